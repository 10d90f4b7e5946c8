//! What to do where a resumed run may not change: the command that branches off it.

use crate::recipe::keys::{Stated, find};
use crate::run::checkpoint;
use std::path::Path;

/// The command that begins a new run from the newest state of `run` with these values, which are TOML; with them it
/// takes `max_steps` steps. `None` where no branch can have them, where there is no state yet, and where that is the
/// last one.
pub(super) fn branch(run: &Path, changes: &[(&str, &str)], max_steps: u64) -> Option<String> {
    let is_bound =
        |key: &str| find(key).and_then(|key| key.stated).is_some_and(|stated| stated != Stated::Any);
    if changes.iter().any(|(key, _)| is_bound(key)) {
        return None;
    }
    let (step, _) = checkpoint::list(run).ok()?.pop().filter(|(step, _)| *step < max_steps)?;
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
