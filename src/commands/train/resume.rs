//! `runner --resume RUN`: continue a run from its own recipe, changing nothing that would make it another run.

use super::super::build::{self, Data};
use super::super::exit::{Exit, UsageError};
use super::super::ranks;
use super::session::Session;
use super::{Call, open, plan, shown, together};
use crate::recipe::keys::{KEYS, OnResume};
use crate::recipe::{self, Overrides, Resolved};
use crate::run::{RunDir, RunRecord, RunStatus, dir, ensure_writable};
use std::path::Path;

pub(super) fn run(call: &Call, run: &Path, overrides: &Overrides) -> anyhow::Result<Exit> {
    let run = build::absolute(run)?;
    let (original, resolved) = ranks::agree(call.joined(), load(call, &run, overrides))?;
    let runs_dir = run.parent().unwrap_or(call.runs_dir);
    let data = open(call, &resolved, runs_dir)?;
    let hash = recipe::identity(&original.recipe, &data.digests);
    let record = || -> anyhow::Result<_> {
        match RunRecord::read(&run)? {
            Some(record) if record.hash != hash => Err(data_changed(&run, &record, &data).into()),
            record => Ok(record),
        }
    };
    let record = ranks::agree(call.joined(), record())?;
    let changed = recipe::diff(&original.recipe, &resolved.recipe);
    let overrides: Vec<String> =
        changed.iter().map(|c| format!("{}={}", c.key.path, value(&c.right))).collect();
    let lead = || {
        if record.as_ref().is_some_and(|record| record.status == RunStatus::Finished) {
            super::super::terminal::say(&format!("{}: already finished", shown(&run)));
            super::super::print(&format!("{}\n", shown(&run)))?;
            return Ok(Exit::Finished);
        }
        let plan = plan(&resolved, &data, None)?;
        let dir = RunDir::open(&run)?;
        super::super::print(&format!("{}\n", shown(&run)))?;
        let (resolved, data, hash) = (&resolved, &data, hash.as_str());
        Session { call, resolved, data, dir, hash, plan, overrides: &overrides }.train()
    };
    together(call, &resolved, &data, &hash, lead)
}

/// The run's own recipe, without and with what is to change, if that may.
fn load(call: &Call, run: &Path, overrides: &Overrides) -> anyhow::Result<(Resolved, Resolved)> {
    let file = run.join(dir::RECIPE);
    let original = recipe::load(&file, &Overrides::default())?;
    let resolved = recipe::load(&file, overrides)?;
    build::check_supported(&resolved)?;
    let changed = recipe::diff(&original.recipe, &resolved.recipe);
    let mut refused = changed.iter().filter(|change| change.key.on_resume == OnResume::Kept).peekable();
    if refused.peek().is_some() {
        let refused: Vec<String> =
            refused.map(|c| format!("{} ({} -> {})", c.key.path, value(&c.left), value(&c.right))).collect();
        let free = KEYS.iter().filter(|key| key.on_resume == OnResume::Free);
        let free: Vec<&str> = free.map(|key| key.path).collect();
        let message = format!(
            "a resumed run cannot change {}: that would be another experiment; start it as a recipe of its own. These may \
             change: {}",
            refused.join(", "),
            free.join(", ")
        );
        return Err(UsageError(message).into());
    }
    if call.leads() {
        ensure_writable(run.parent().unwrap_or(call.runs_dir))?;
    }
    Ok((original, resolved))
}

/// A value as TOML, or a word where a key has none.
fn value(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or("unset")
}

fn data_changed(run: &Path, record: &RunRecord, data: &Data) -> UsageError {
    let now = data.digests.by_name();
    let differing: Vec<String> = now
        .iter()
        .filter_map(|(what, now)| {
            let then = record.digests.get(what)?;
            (then != now).then(|| format!("{what} had digest {then} at the start and has {now} now"))
        })
        .collect();
    let what =
        if differing.is_empty() { "its recipe.toml was edited".to_owned() } else { differing.join("; ") };
    UsageError(format!(
        "{}: cannot be resumed: {what}; bring the old contents back, or start a new run from the recipe",
        shown(run)
    ))
}
