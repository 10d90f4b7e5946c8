//! A run that goes on without what it began from: the other run has deleted that checkpoint, or was moved.

use super::inputs::Data;
use super::standing::run_id;
use crate::recipe::{self, DataDigests, InitFrom, Overrides, Recipe, Resolved};
use crate::run::{RunError, RunRecord, RunStatus, checkpoint, dir, find, status};
use std::path::{Path, PathBuf};

/// What a run has begun from, as the run itself says.
pub(super) struct Begun {
    /// The digest on record.
    pub(super) digest: String,
    /// What its recipe names.
    pub(super) named: InitFrom,
}

impl Begun {
    /// Of the run of a recipe, in the directory of runs, that has ended or has a checkpoint of its own. `None` where no
    /// run began from what the recipe names, where several did, since the recipe leaves the step open, and where it is
    /// still there: it is damaged then, or does not fit.
    pub(super) fn find(resolved: &Resolved, data: &Data, runs_dir: &Path) -> Option<Self> {
        let named = resolved.recipe.model.init_from.as_ref()?;
        let runs = find::list(runs_dir).unwrap_or_default();
        let of_run = |run: &PathBuf| Self::of_run(run, &resolved.recipe, data).ok().flatten();
        let mut found = runs.iter().filter_map(of_run).filter(|begun| named.names(&begun.named));
        found.next().filter(|begun| found.next().is_none() && !is_there(&begun.named))
    }

    fn of_run(run: &Path, recipe: &Recipe, data: &Data) -> anyhow::Result<Option<Self>> {
        let is_called = |id: &str| run.file_name().is_some_and(|name| name == id);
        let Some(record) = RunRecord::read(run)? else { return Ok(None) };
        let Some(digest) = record.digests.get("init_from").cloned() else { return Ok(None) };
        let digests = DataDigests { init_from: Some(digest.clone()), ..data.digests.clone() };
        let hash = recipe::identity(recipe, &digests);
        if hash != record.hash || !is_called(&run_id(recipe, &hash)) || !stands_alone(run)? {
            return Ok(None);
        }
        let own = recipe::load(&run.join(dir::RECIPE), &Overrides::default())?;
        Ok(own.recipe.model.init_from.map(|named| Self { digest, named }))
    }
}

/// Whether a run needs nothing else any more.
fn stands_alone(run: &Path) -> Result<bool, RunError> {
    let ended = matches!(status(run)?, RunStatus::Finished | RunStatus::Diverged);
    Ok(ended || !checkpoint::list(run)?.is_empty())
}

/// Whether what a run has begun from is still there, in whatever state.
fn is_there(begun: &InitFrom) -> bool {
    match begun.place() {
        ((run, _), Some(step)) => checkpoint::path_of(&run, step).exists(),
        ((path, _), None) => path.exists(),
    }
}
