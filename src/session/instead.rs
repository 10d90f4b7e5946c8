//! What to do where a resumed run may not change: the command that branches off it.

use crate::run::checkpoint;
use std::path::Path;

/// The command that begins a new run from the newest state of `run` with these values, which are TOML. `None` where no
/// branch can have them, or where there is no state yet.
pub(super) fn branch(run: &Path, changes: &[(&str, &str)]) -> Option<String> {
    let is_fixed = |key: &str| key.starts_with("model.") || key == "batch.total_tokens" || key == "name";
    if changes.iter().any(|(key, _)| is_fixed(key)) {
        return None;
    }
    let (step, _) = checkpoint::list(run).ok()?.pop()?;
    let run = run.display();
    let sets: Vec<String> =
        changes.iter().map(|(key, value)| format!("--set {}", quoted(key, value))).collect();
    Some(format!(
        "runner {run}/recipe.toml --set 'model.init_from={{run=\"{run}\",step={step}}}' {}",
        sets.join(" ")
    ))
}

/// An assignment as a word of a shell.
fn quoted(key: &str, value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if value.chars().all(plain) { format!("{key}={value}") } else { format!("'{key}={value}'") }
}
