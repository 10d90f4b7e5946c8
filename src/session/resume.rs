//! Continuing a run from its own recipe, changing nothing that would make it another run.

use super::call::Call;
use super::ending::{Ending, UsageError};
use super::inputs::Data;
use super::job::Job;
use super::rehearsal::rehearse;
use super::{instead, leader, ranks, supported};
use crate::recipe::keys::{Identity, OnResume};
use crate::recipe::{self, Difference, Overrides, Resolved};
use crate::regular;
use crate::report::own::has_own_values;
use crate::run::{RunDir, RunRecord, RunStatus, checkpoint, dir, ensure_writable, find};
use crate::wording::items;
use anyhow::Context;
use std::path::{Path, PathBuf};

impl Call<'_> {
    /// Continues a run from its own recipe: `run` is its directory, its id or the beginning of its id. `overrides` may
    /// change only what does not change the mathematics.
    ///
    /// # Errors
    /// Where there is no such run, or it cannot go on.
    pub fn resume(self, run: &Path, overrides: &Overrides) -> anyhow::Result<Ending> {
        self.with_ranks("resume a run", |call| resume(call, run, overrides))
    }
}

fn resume(call: &Call, named: &Path, overrides: &Overrides) -> anyhow::Result<Ending> {
    let found = find::one(call.runs_dir, named).map_err(Into::into);
    let run = ranks::agree(call.joined(), found)?;
    let runs_dir = runs_dir_of(&run)?;
    let (original, resolved) = ranks::agree(call.joined(), load(call, &run, &runs_dir, overrides))?;
    let begun = ranks::agree(call.joined(), begun(&run, &original, &resolved))?;
    let data = call.open(&resolved, &runs_dir, begun.as_deref())?;
    let hash = recipe::identity(&original.recipe, &data.digests);
    let record = || -> anyhow::Result<_> {
        let recipe = run.join(dir::RECIPE);
        let text =
            regular::read_text(&recipe, regular::RECIPE).with_context(|| recipe.display().to_string())?;
        match RunRecord::read(&run)? {
            Some(record) if !has_own_values(&text, &record) => Err(edited(&run).into()),
            Some(record) if record.hash != hash => Err(data_changed(&run, &record, &data).into()),
            record => Ok(record),
        }
    };
    let record = ranks::agree(call.joined(), record())?;
    let changed = recipe::diff(&original.recipe, &resolved.recipe);
    let overrides: Vec<String> =
        changed.iter().map(|c| format!("{}={}", c.key.path, value(&c.right))).collect();
    let lead = || {
        let target = resolved.recipe.schedule.stop_at_val_loss;
        let has_ended = |record: &&RunRecord| record.status == RunStatus::Finished && !record.goes_on(target);
        if let Some(record) = record.as_ref().filter(has_ended) {
            call.finished(&run, Some(record), &data, false)?;
            call.audience.result(&run)?;
            return Ok(Ending::Finished);
        }
        let plan = call.plan(&resolved, &data, &run)?;
        let (resolved, data, hash) = (&resolved, &data, hash.as_str());
        if call.dry {
            return rehearse(call, resolved, data, (&run, hash), plan);
        }
        let dir = RunDir::open(&run, call.runs_dir)?;
        call.audience.result(&run)?;
        leader::train(Job::new(call, (resolved, data), (dir, hash), plan).overriding(&overrides))
    };
    call.together(&resolved, &data, (&run, &hash), lead)
}

/// The digest on record of the weights or the state that a run has begun from, if it goes on from a checkpoint of its
/// own: what it began from may be gone.
fn begun(run: &Path, original: &Resolved, resolved: &Resolved) -> anyhow::Result<Option<String>> {
    let named = |resolved: &Resolved| resolved.recipe.model.init_from.clone();
    if named(resolved).is_none() || named(original) != named(resolved) || checkpoint::list(run)?.is_empty() {
        return Ok(None);
    }
    Ok(RunRecord::read(run)?.and_then(|record| record.digests.get("init_from").cloned()))
}

/// The directory of runs that holds a run.
fn runs_dir_of(run: &Path) -> anyhow::Result<PathBuf> {
    Ok(match run.parent() {
        // the parent of `.` and `..` does not stand in the path
        _ if run.file_name().is_none() || run.ends_with("..") => run
            .canonicalize()
            .with_context(|| format!("could not read `{}`", run.display()))?
            .parent()
            .unwrap_or(run)
            .to_owned(),
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
    regular::refuse_link(&file).with_context(|| format!("could not read `{}`", file.display()))?;
    let original = recipe::load(&file, &Overrides::default())?;
    let resolved = recipe::load(&file, overrides)?;
    supported::check(&resolved, call.audience)?;
    let changed = recipe::diff(&original.recipe, &resolved.recipe);
    let refused: Vec<&Difference> =
        changed.iter().filter(|change| change.key.on_resume == OnResume::Kept).collect();
    if !refused.is_empty() {
        return Err(refusal(run, &refused, resolved.recipe.steps()).into());
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

/// Why a resumed run cannot change these keys of its recipe, and what to do instead.
fn refusal(run: &Path, refused: &[&Difference], max_steps: u64) -> UsageError {
    let shown = |change: &&Difference| {
        format!("{} ({} -> {})", change.key.path, value(&change.left), value(&change.right))
    };
    let shown: Vec<String> = refused.iter().map(shown).collect();
    let why = match refused.iter().any(|change| !matches!(change.key.identity, Identity::Never)) {
        true => "it would compute something else, and so be another experiment",
        false => "its directory is called so",
    };
    let changes: Vec<_> = refused.iter().map(|change| (change.key.path, change.right.as_deref())).collect();
    let branch = instead::branch(run, &changes, max_steps)
        .map(|command| format!("begin another experiment from this run's state: {command}"));
    let advice = [
        Some(format!(
            "train that as a run of its own, from the start: {}",
            instead::from_start(run, &changes)
        )),
        branch,
        Some("\"Resuming\" in runs/README.md lists the keys that a resumed run may change".to_owned()),
    ];
    let advice: Vec<String> = advice.into_iter().flatten().collect();
    UsageError(format!("a resumed run cannot change {}: {why}{}", shown.join(", "), items(advice)))
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
    if differing.is_empty() {
        return edited(run);
    }
    UsageError(format!(
        "{}: cannot be resumed: {}; bring the old contents back, or start a new run from the recipe",
        run.display(),
        differing.join("; ")
    ))
}

fn edited(run: &Path) -> UsageError {
    let run = run.display();
    UsageError(format!(
        "{run}: cannot be resumed: its recipe.toml was edited; bring the old contents back, or start a new run from \
         the recipe: what a resumed run may change is said with --set"
    ))
}
