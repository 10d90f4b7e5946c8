//! `runner schema`: the JSON Schemas of recipes, comparisons and events.

use super::events;
use super::exit::Exit;
use crate::cli::{SchemaArgs, SchemaOf};
use crate::recipe::json_schema;
use crate::report::document;

/// Prints the schema.
pub(super) fn run(args: &SchemaArgs) -> anyhow::Result<Exit> {
    let schema = match args.of {
        SchemaOf::Recipes => json_schema(),
        SchemaOf::Comparisons => document::schema(),
        SchemaOf::Events => events::schema(),
    };
    super::print(&format!("{schema}\n"))?;
    Ok(Exit::Finished)
}
