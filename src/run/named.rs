//! The checkpoint that `RUN@best`, `RUN@latest` or `RUN@1000` names.

use super::checkpoint::{self, list, newest_intact};
use super::{RunError, RunRecord};
use std::path::{Path, PathBuf};

/// The directory of the checkpoint of `run` that a word names: `best`, which `run.json` names, `latest`, the newest
/// intact one, or the number of a step.
///
/// # Errors
/// [`RunError::NoSuchCheckpoint`] with the steps that there are; [`RunError::NoCheckpoint`] for the latest of none;
/// [`RunError::Io`], [`RunError::Malformed`] and [`RunError::NewerFormat`] where the record or a checkpoint cannot be
/// read.
pub fn checkpoint_of(run: &Path, word: &str) -> Result<PathBuf, RunError> {
    let all = list(run)?;
    let missing = |why: String| RunError::NoSuchCheckpoint {
        run: run.to_owned(),
        why,
        steps: all.iter().map(|(step, _)| *step).collect(),
    };
    match word {
        "latest" => latest(run),
        "best" => {
            let best = RunRecord::read(run)?.and_then(|record| record.best_checkpoint);
            let best = best.ok_or_else(|| {
                missing("keeps no best checkpoint, as it does with checkpoint.keep_best = true".to_owned())
            })?;
            let path = checkpoint::path_of(run, best.step);
            let gone = || missing(format!("has lost its best checkpoint, that of step {}", best.step));
            path.is_dir().then_some(path).ok_or_else(gone)
        }
        _ => {
            let step: u64 = word.parse().map_err(|_| {
                missing(format!(
                    "has no checkpoint that is called `{word}`: @best, @latest and @STEP name one"
                ))
            })?;
            let found = all.iter().find(|(known, _)| *known == step).map(|(_, path)| path.clone());
            found.ok_or_else(|| missing(format!("has no checkpoint of step {step}")))
        }
    }
}

/// The newest intact checkpoint of a run.
///
/// # Errors
/// [`RunError::NoCheckpoint`], [`RunError::Malformed`] where none is intact, [`RunError::Io`],
/// [`RunError::NewerFormat`].
pub fn latest(run: &Path) -> Result<PathBuf, RunError> {
    let newest = newest_intact(run)?;
    match (newest.reader, newest.rejected.first()) {
        (Some(reader), _) => Ok(reader.path().to_owned()),
        (None, None) => Err(RunError::NoCheckpoint { path: run.to_owned() }),
        (None, Some(rejected)) => {
            let problem = format!("none of its checkpoints is intact: {}", rejected.reason);
            Err(RunError::malformed(run, problem))
        }
    }
}
