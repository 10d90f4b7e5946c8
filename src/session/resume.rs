//! Continuing a run from its own recipe, changing nothing that would make it another run.

use super::audience::Event;
use super::call::{Call, plan};
use super::ending::{Ending, UsageError};
use super::inputs::Data;
use super::job::Job;
use super::{leader, ranks, supported};
use crate::recipe::keys::{KEYS, OnResume};
use crate::recipe::{self, Overrides, Resolved};
use crate::run::{RunDir, RunRecord, RunStatus, dir, ensure_writable, find};
use std::path::{Path, PathBuf};

impl Call<'_> {
    /// Continues a run from its own recipe: `run` is its directory, its id or the beginning of its id. `overrides` may
    /// change only what does not change the mathematics.
    ///
    /// # Errors
    /// Where there is no such run, or it cannot go on.
    pub fn resume(self, run: &Path, overrides: &Overrides) -> anyhow::Result<Ending> {
        self.with_ranks(|call| resume(call, run, overrides))
    }
}

fn resume(call: &Call, named: &Path, overrides: &Overrides) -> anyhow::Result<Ending> {
    let found = find::one(call.runs_dir, named).map_err(Into::into);
    let run = ranks::agree(call.joined(), found)?;
    let runs_dir = runs_dir_of(&run)?;
    let (original, resolved) = ranks::agree(call.joined(), load(call, &run, &runs_dir, overrides))?;
    let data = call.open(&resolved, &runs_dir)?;
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
            call.audience.tell(Event::AlreadyFinished { run: &run, by_recipe: false });
            call.audience.result(&run)?;
            return Ok(Ending::Finished);
        }
        let plan = plan(&resolved, &data, None)?;
        let dir = RunDir::open(&run)?;
        call.audience.result(&run)?;
        let (resolved, data, hash) = (&resolved, &data, hash.as_str());
        leader::train(Job { call, resolved, data, dir, hash, plan, prediction: None, overrides: &overrides })
    };
    call.together(&resolved, &data, &hash, lead)
}

/// The directory of runs that holds a run.
fn runs_dir_of(run: &Path) -> anyhow::Result<PathBuf> {
    Ok(match run.parent() {
        // the parent of `.` and `..` does not stand in the path
        _ if run.file_name().is_none() || run.ends_with("..") => {
            run.canonicalize()?.parent().unwrap_or(run).to_owned()
        }
        Some(parent) if parent == Path::new("") => PathBuf::from("."),
        Some(parent) => parent.to_owned(),
        None => run.to_owned(),
    })
}

/// The run's own recipe, without and with what is to change, if that may.
fn load(
    call: &Call,
    run: &Path,
    runs_dir: &Path,
    overrides: &Overrides,
) -> anyhow::Result<(Resolved, Resolved)> {
    let file = run.join(dir::RECIPE);
    let original = recipe::load(&file, &Overrides::default())?;
    let resolved = recipe::load(&file, overrides)?;
    supported::check(&resolved, call.audience)?;
    let changed = recipe::diff(&original.recipe, &resolved.recipe);
    let mut refused = changed.iter().filter(|change| change.key.on_resume == OnResume::Kept).peekable();
    if refused.peek().is_some() {
        let refused: Vec<String> =
            refused.map(|c| format!("{} ({} -> {})", c.key.path, value(&c.left), value(&c.right))).collect();
        let free = KEYS.iter().filter(|key| key.on_resume == OnResume::Free);
        let free: Vec<&str> = free.map(|key| key.path).collect();
        let message = format!(
            "a resumed run cannot change {}: that would be another experiment; start it as a recipe of its own. \
             These may change: {}",
            refused.join(", "),
            free.join(", ")
        );
        return Err(UsageError(message).into());
    }
    if call.leads() {
        ensure_writable(runs_dir)?;
    }
    Ok((original, resolved))
}

/// A value as TOML, or `unset`.
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
        run.display()
    ))
}
