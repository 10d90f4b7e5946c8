//! A run that goes on without what it began from: the other run has deleted that checkpoint, was moved, or has a newer
//! one by now.

use super::inputs::Data;
use super::standing::run_id;
use super::start::digest;
use crate::plan::Before;
use crate::recipe::{self, DataDigests, InitFrom, Overrides, Recipe, Resolved};
use crate::regular;
use crate::run::checkpoint::{self, CheckpointState};
use crate::run::record::Parent;
use crate::run::{RunError, RunRecord, RunStatus, dir, find, import, status};
use std::path::{Path, PathBuf};

/// What a run has begun from, as the run itself says.
pub(super) struct Begun {
    /// The digest on record.
    pub(super) digest: String,
    /// What its recipe names.
    pub(super) named: InitFrom,
    /// What another run has done of its steps.
    pub(super) before: Before,
    /// What it began from, for people.
    from: Option<Parent>,
    /// Whether another user has made it.
    is_of_another: bool,
}

impl Begun {
    /// Of the run of a recipe, in the directory of runs, that has ended or has a checkpoint of its own. `None` where no
    /// run began from what the recipe names, where several did, since the recipe leaves the step open, and where it is
    /// still there: it is damaged then, or does not fit.
    pub(super) fn find(resolved: &Resolved, data: &Data, runs_dir: &Path) -> Option<Self> {
        let mut found = Self::all(resolved, data, runs_dir, stands_alone).into_iter();
        found.next().filter(|begun| found.next().is_none() && !is_there(&begun.named))
    }

    /// Of the run of a recipe that has a checkpoint of its own and has not ended, where the recipe leaves open which
    /// checkpoint of the other run is meant. The newest is another one once that run has gone on, and the same command
    /// is to go on with the run that it began. Of several, the one that began at the latest step.
    pub(super) fn unended(resolved: &Resolved, data: &Data, runs_dir: &Path) -> Option<Self> {
        let named = resolved.recipe.model.init_from.as_ref()?;
        let ((trunk, _), step) = named.place();
        let is_open = named.is_of_run() && step.is_none() && dir::is_run(&trunk);
        let all = || Self::all(resolved, data, runs_dir, is_unended);
        let is_same = |begun: &Self| begun.is_replaced().is_ok_and(|is_replaced| !is_replaced);
        is_open.then(all)?.into_iter().filter(is_same).max_by_key(|begun| begun.named.place().1)
    }

    /// Whether the checkpoint that a run has begun from is there and is another one by now: the other run was started
    /// over.
    fn is_replaced(&self) -> anyhow::Result<bool> {
        let ((trunk, takes_state), Some(step)) = self.named.place() else { return Ok(false) };
        let checkpoint = checkpoint::path_of(&trunk, step);
        if !checkpoint.exists() {
            return Ok(false);
        }
        let digest = match takes_state {
            true => digest(&CheckpointState::read(&checkpoint)?),
            false => import::content_digest(&checkpoint)?,
        };
        Ok(digest != self.digest)
    }

    /// What a person should know of a run that goes on although the other one has a newer checkpoint by now.
    pub(super) fn line(&self) -> Option<String> {
        let Parent { run, step, optimizer, .. } = self.from.as_ref()?;
        let ((trunk, _), _) = self.named.place();
        let (newest, _) = checkpoint::list(&trunk).ok()?.pop()?;
        let began = if *optimizer { "branched off" } else { "began with the weights of" };
        (newest > *step).then(|| {
            format!(
                "{began} {run} at step {step} and has not ended, so it goes on; to begin another one at a later step, \
                 name it: {run} has step {newest} by now"
            )
        })
    }

    /// Of all runs of a recipe that are `wanted` and began from what it names.
    fn all(
        resolved: &Resolved,
        data: &Data,
        runs_dir: &Path,
        wanted: fn(&Path) -> Result<bool, RunError>,
    ) -> Vec<Self> {
        let Some(named) = &resolved.recipe.model.init_from else { return Vec::new() };
        let runs = find::list(runs_dir).unwrap_or_default();
        let of_run = |run: &PathBuf| Self::of_run(run, &resolved.recipe, data, wanted).ok().flatten();
        let found = runs.iter().filter_map(of_run).filter(|begun| named.names(&begun.named));
        let (others, own): (Vec<_>, Vec<_>) = found.partition(|begun| begun.is_of_another);
        // anybody who shares the directory of runs can begin one like it
        if own.is_empty() { others } else { own }
    }

    fn of_run(
        run: &Path,
        recipe: &Recipe,
        data: &Data,
        wanted: fn(&Path) -> Result<bool, RunError>,
    ) -> anyhow::Result<Option<Self>> {
        let is_called = |id: &str| run.file_name().is_some_and(|name| name == id);
        let Some(record) = RunRecord::read(run)? else { return Ok(None) };
        let Some(digest) = record.digests.get("init_from").cloned() else { return Ok(None) };
        let digests = DataDigests { init_from: Some(digest.clone()), ..data.digests.clone() };
        let hash = recipe::identity(recipe, &digests);
        if hash != record.hash || !is_called(&run_id(recipe, &hash)) || !wanted(run)? {
            return Ok(None);
        }
        let own = recipe::load(&run.join(dir::RECIPE), &Overrides::default())?;
        let before = Before { steps: record.first_step(), data_from: data_from(run).unwrap_or_default() };
        let (from, is_of_another) = (record.parent, regular::another_owner(run).is_some());
        Ok(own.recipe.model.init_from.map(|named| Self { digest, named, before, from, is_of_another }))
    }
}

/// The step from which on the rows were those of the run's training data, as its checkpoints have it.
fn data_from(run: &Path) -> Option<u64> {
    let (_, newest) = checkpoint::list(run).ok()?.pop()?;
    Some(CheckpointState::read(&newest).ok()?.data_from)
}

fn has_ended(run: &Path) -> Result<bool, RunError> {
    Ok(matches!(status(run)?, RunStatus::Finished | RunStatus::Diverged))
}

fn has_checkpoint(run: &Path) -> Result<bool, RunError> {
    Ok(!checkpoint::list(run)?.is_empty())
}

/// Whether a run has a checkpoint of its own to go on from.
fn is_unended(run: &Path) -> Result<bool, RunError> {
    Ok(!has_ended(run)? && has_checkpoint(run)?)
}

/// Whether a run needs nothing else any more.
fn stands_alone(run: &Path) -> Result<bool, RunError> {
    Ok(has_ended(run)? || has_checkpoint(run)?)
}

/// Whether what a run has begun from is still there, in whatever state.
fn is_there(begun: &InitFrom) -> bool {
    match begun.place() {
        ((run, _), Some(step)) => checkpoint::path_of(&run, step).exists(),
        ((path, _), None) => path.exists(),
    }
}
