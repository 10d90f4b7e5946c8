//! `runner schema`: the JSON Schemas of recipes, comparisons and events, and the keys of recipes on a page.

use super::events;
use super::exit::Exit;
use crate::cli::{SchemaArgs, SchemaOf};
use crate::recipe::{json_schema, key_reference};
use crate::report::document;

/// Prints the schema.
pub(super) fn run(args: &SchemaArgs) -> anyhow::Result<Exit> {
    let schema = match args.of {
        SchemaOf::Recipes => json_schema(),
        SchemaOf::Keys => key_reference(),
        SchemaOf::Comparisons => document::schema(),
        SchemaOf::Events => events::schema(),
    };
    super::print(&format!("{schema}\n"))?;
    Ok(Exit::Finished)
}
