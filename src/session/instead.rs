//! What to do where a resumed run may not change: the commands that train something else.

use crate::recipe::keys::{Stated, find};
use crate::recipe::quoted;
use crate::run::{checkpoint, dir};
use crate::wording::word;
use std::path::Path;

/// A key with its new value, which is TOML; without one the key is unset.
pub(super) type Change<'a> = (&'a str, Option<&'a str>);

/// The command that trains the recipe of `run` from the start with these changes.
pub(super) fn from_start(run: &Path, changes: &[Change]) -> String {
    format!("runner {}{}", recipe(run), flags(changes))
}

/// The command that begins a new run from the newest state of `run` with these changes; with them it takes `max_steps`
/// steps. `None` where no branch can have them, where there is no state yet, and where that is the last one.
pub(super) fn branch(run: &Path, changes: &[Change], max_steps: u64) -> Option<String> {
    let is_bound =
        |key: &str| find(key).and_then(|key| key.stated).is_some_and(|stated| stated != Stated::Any);
    if changes.iter().any(|(key, _)| is_bound(key)) {
        return None;
    }
    let (step, _) = checkpoint::list(run).ok()?.pop().filter(|(step, _)| *step < max_steps)?;
    let from = format!("model.init_from={{run={},step={step}}}", quoted(&run.display().to_string()));
    Some(format!("runner {} --set {}{}", recipe(run), word(&from), flags(changes)))
}

fn recipe(run: &Path) -> String {
    word(&run.join(dir::RECIPE).display().to_string())
}

fn flags(changes: &[Change]) -> String {
    let flag = |(key, value): &Change| match value {
        Some(value) => format!(" --set {}", word(&format!("{key}={value}"))),
        None => format!(" --unset {key}"),
    };
    changes.iter().map(flag).collect()
}
