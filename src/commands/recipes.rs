//! `runner recipes`: what the program carries.

use super::exit::Exit;
use crate::cli::{Format, RecipesArgs};
use crate::recipe::shipped::{SHIPPED, Shipped};
use serde_json::{Value as Json, json};
use std::fmt::Write;

/// Prints the list.
pub(super) fn run(args: &RecipesArgs) -> anyhow::Result<Exit> {
    let text = match args.format {
        Format::Text => table(),
        Format::Json => format!("{:#}\n", SHIPPED.iter().map(object).collect::<Json>()),
    };
    super::print(&text)?;
    Ok(Exit::Finished)
}

fn object(shipped: &Shipped) -> Json {
    json!({
        "name": shipped.name,
        "path": shipped.path().display().to_string(),
        "about": shipped.about(),
        "base": shipped.is_base(),
    })
}

fn table() -> String {
    let (bases, whole): (Vec<&Shipped>, Vec<&Shipped>) =
        SHIPPED.iter().partition(|shipped| shipped.is_base());
    let width = SHIPPED.iter().map(|shipped| shipped.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (head, shipped) in [
        ("`runner init NAME` writes one of these here, `runner builtin:NAME` trains it as it is:", whole),
        ("bases, to build upon with `extends = \"builtin:NAME\"`:", bases),
    ] {
        let _ = writeln!(out, "{head}");
        for shipped in shipped {
            let _ = writeln!(out, "  {:width$}  {}", shipped.name, shipped.about());
        }
    }
    out
}
