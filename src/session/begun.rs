//! A run that goes on without what it began from: the other run has deleted that checkpoint, or was moved.

use super::inputs::Data;
use super::standing::run_id;
use crate::recipe::{self, Branch, DataDigests, InitFrom, Overrides, Recipe, Resolved};
use crate::run::{RunError, RunRecord, RunStatus, checkpoint, dir, find, status};
use crate::weights::checkpoint_name;
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
        let mut found = runs.iter().filter_map(of_run).filter(|begun| names(named, &begun.named));
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

/// Whether a recipe names what a run has `begun` from. A recipe may leave the step open, and a run never does.
fn names(asked: &InitFrom, begun: &InitFrom) -> bool {
    let ((asked, asked_step), (begun, step)) = (place(asked), place(begun));
    asked == begun && (asked_step.is_none() || asked_step == step)
}

/// Whether what a run has begun from is still there, in whatever state.
fn is_there(begun: &InitFrom) -> bool {
    match place(begun) {
        ((run, _), Some(step)) => checkpoint::path_of(&run, step).exists(),
        ((path, _), None) => path.exists(),
    }
}

/// What is named, whether with the states of its optimizer, and the step where one is told.
fn place(from: &InitFrom) -> ((PathBuf, bool), Option<u64>) {
    let (branch_step, optimizer) = match from {
        InitFrom::Weights(_) => (None, false),
        InitFrom::Run(Branch { step, optimizer, .. }) => (*step, *optimizer),
    };
    let (path, word) = match checkpoint_name(from.path()) {
        Some((run, word)) => (run, word.parse().ok()),
        None => (from.path(), None),
    };
    let path = recipe::normalize(&std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    ((path, optimizer), branch_step.or(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_names_what_a_run_began_from_at_the_same_step_or_at_one_it_leaves_open() {
        let weights = |path: &str| InitFrom::Weights(PathBuf::from(path));
        let branch = |run: &str, step, optimizer| InitFrom::Run(Branch { run: run.into(), step, optimizer });
        let begun = branch("/runs/trunk", Some(30), true);
        for asked in ["/runs/trunk", "/runs/trunk@best", "/runs/trunk@30", "/runs/x/../trunk"] {
            assert!(names(&branch(asked, None, true), &begun), "{asked}");
        }
        assert!(names(&begun, &begun));
        for other in [
            branch("/runs/trunk", Some(20), true),
            branch("/runs/trunk", Some(30), false),
            branch("/runs/trunk@20", None, true),
            branch("/runs/other", Some(30), true),
            weights("/runs/trunk@30"),
        ] {
            assert!(!names(&other, &begun), "{other:?}");
        }
        assert!(names(&weights("/w"), &weights("/w")) && !names(&weights("/w"), &weights("/v")));
        assert!(names(&weights("/runs/trunk@latest"), &weights("/runs/trunk@30")));
        assert!(!names(&weights("/runs/trunk@20"), &weights("/runs/trunk@30")));
    }
}
