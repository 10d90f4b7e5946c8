//! Hugging Face's `config.json`.

use super::Stated;
use crate::{json, regular};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The name of a model's configuration.
pub const CONFIG: &str = "config.json";

/// No configuration comes near this size.
const MAX_BYTES: u64 = 16 << 20;

/// The directory of the weights at `path`, where what describes them lies.
#[must_use]
pub fn dir_of(path: &Path) -> &Path {
    if path.is_dir() { path } else { path.parent().unwrap_or(path) }
}

/// Where the configuration of the weights at `path` lies, whatever their names are: in their directory.
#[must_use]
pub fn config_of(path: &Path) -> PathBuf {
    dir_of(path).join(CONFIG)
}

/// What a configuration says of another architecture than GPT-2's; `None` for that of a GPT-2.
#[must_use]
pub fn other_kind(config: &Value) -> Option<String> {
    let kind = config.get("model_type").filter(|kind| !kind.is_null() && *kind != "gpt2")?;
    Some(format!("`model_type` should be \"gpt2\" but is {kind}"))
}

/// The dimensions that a configuration states. Errors: why it cannot be read, or that it is another architecture's.
pub(super) fn stated(path: &Path) -> Result<Stated, String> {
    let config = json(path)?;
    if let Some(other) = other_kind(&config) {
        return Err(other);
    }
    let number = |names: &[&str]| names.iter().find_map(|&name| config.get(name)?.as_u64());
    Ok(Stated {
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
