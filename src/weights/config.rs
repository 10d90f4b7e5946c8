//! Hugging Face's `config.json`.

use super::Stated;
use crate::{json, regular};
use serde_json::Value;
use std::path::Path;

/// The name of a model's configuration.
pub const CONFIG: &str = "config.json";

/// No configuration comes near this size.
const MAX_BYTES: u64 = 16 << 20;

/// The dimensions that a configuration states; `None` if it cannot be read or is another architecture's.
pub(super) fn stated(path: &Path) -> Option<Stated> {
    let config = json(path).ok()?;
    if config.get("model_type").is_some_and(|kind| !kind.is_null() && kind != "gpt2") {
        return None;
    }
    let number = |names: &[&str]| names.iter().find_map(|&name| config.get(name)?.as_u64());
    Some(Stated {
        file: path.to_owned(),
        n_layer: number(&["n_layer"]),
        n_head: number(&["n_head"]),
        n_embd: number(&["n_embd"]),
        block_size: number(&["n_positions", "n_ctx"]),
        vocab_size: number(&["vocab_size"]),
    })
}

/// Reads a JSON file of a model's directory.
///
/// # Errors
/// Why it cannot be read, with the file's name.
pub fn json(path: &Path) -> Result<Value, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let read = regular::read_within(path, MAX_BYTES);
    let bytes = read.map_err(|error| format!("could not read {name}: {error}"))?;
    json::value(&bytes).map_err(|error| format!("{name} is malformed: {error}"))
}
