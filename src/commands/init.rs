//! `runner init [NAME]`: a recipe to start from, where no copy of the repository is.

use super::exit::Exit;
use super::terminal;
use crate::cli::InitArgs;
use crate::recipe::shipped::{self, Shipped};
use crate::recipe::{Overrides, load};
use crate::regular;
use crate::session::{UsageError, missing};
use crate::wording::{tame_line, word};
use anyhow::Context;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Writes the recipe and prints its path.
pub(super) fn run(args: &InitArgs) -> anyhow::Result<Exit> {
    let shipped = find(&args.name)?;
    let path = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{}.toml", shipped.stem())));
    write(&path, &shipped.standalone())?;
    super::print_path(&path)?;
    let shown = tame_line(&path.to_string_lossy());
    let next = match shipped.is_base() {
        true => format!("a base: a recipe builds upon it with `extends = \"{shown}\"`"),
        false => {
            let offered = word(&shown);
            format!("`runner {offered}` trains it, `runner plan {offered}` shows what follows from it")
        }
    };
    terminal::say(&next);
    if let Some(help) = missing_data(&path) {
        terminal::say(&format!("its data are not here yet: {help}"));
    }
    Ok(Exit::Finished)
}

/// What gets the training data of a recipe, if they are not there. A base names none.
fn missing_data(recipe: &Path) -> Option<String> {
    let resolved = load(recipe, &Overrides::default()).ok()?;
    let is_missing = |named: &&String| regular::matching(named).is_ok_and(|found| found.paths.is_empty());
    let mut named = resolved.recipe.data.train.iter().filter(is_missing);
    named.find_map(|named| missing::fetching(Path::new(named)))
}

/// The shipped recipe of this name, with or without `builtin:`.
fn find(name: &str) -> Result<&'static Shipped, UsageError> {
    let name = shipped::name_in(Path::new(name)).unwrap_or(name);
    shipped::find(name).ok_or_else(|| {
        let (what, help) = shipped::unknown(name, "");
        UsageError(format!("{what}: {help}"))
    })
}

/// Writes a file that is not there yet.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let shown = path.display();
    let mut file = match OpenOptions::new().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let help = "name another file with --out";
            return Err(UsageError(format!("`{shown}` exists already and is left as it is: {help}")).into());
        }
        other => other.with_context(|| format!("could not write `{shown}`"))?,
    };
    file.write_all(text.as_bytes()).with_context(|| {
        // what is left of it would be taken for the recipe
        let _ = std::fs::remove_file(path);
        format!("could not write `{shown}`")
    })
}
