//! `runner schema`: the JSON Schema of recipes, for editors.

use super::exit::Exit;
use crate::recipe::json_schema;

/// Prints the schema.
pub(super) fn run() -> anyhow::Result<Exit> {
    super::print(&format!("{}\n", json_schema()))?;
    Ok(Exit::Finished)
}
