//! The checkpoint that `RUN@best`, `RUN@latest` or `RUN@1000` names.

use super::checkpoint::{self, CheckpointState, Rejected, list, newest_intact};
use super::{RunError, RunRecord, record};
use std::path::{Path, PathBuf};

/// The directory of the checkpoint of `run` that a word names: `best`, which `run.json` names, `latest`, the newest
/// intact one, or the number of a step. Newer ones that are damaged are named to `passed_over`.
///
/// # Errors
/// [`RunError::NoSuchCheckpoint`] with the steps that there are; [`RunError::NoCheckpoint`] for the latest of none;
/// [`RunError::Io`], [`RunError::Malformed`] and [`RunError::NewerFormat`] where the record or a checkpoint cannot be
/// read, or is another run's.
pub fn checkpoint_of(
    run: &Path,
    word: &str,
    passed_over: impl FnMut(&Rejected),
) -> Result<PathBuf, RunError> {
    let found = place_of(run, word, passed_over)?;
    own(&found)?;
    Ok(found)
}

fn place_of(run: &Path, word: &str, passed_over: impl FnMut(&Rejected)) -> Result<PathBuf, RunError> {
    let all = list(run)?;
    let missing = |why: String| RunError::NoSuchCheckpoint {
        run: run.to_owned(),
        why,
        steps: all.iter().map(|(step, _)| *step).collect(),
    };
    match word {
        "latest" => latest(run, passed_over),
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

/// The newest intact checkpoint of a run. Newer ones that are damaged are named to `passed_over`.
///
/// # Errors
/// [`RunError::NoCheckpoint`], [`RunError::Malformed`] where none is intact or it is another run's, [`RunError::Io`],
/// [`RunError::NewerFormat`].
pub fn latest(run: &Path, passed_over: impl FnMut(&Rejected)) -> Result<PathBuf, RunError> {
    let newest = newest_intact(run)?;
    match (newest.reader, newest.rejected.first()) {
        (Some(reader), _) => {
            own_state(run, reader.path(), reader.state())?;
            newest.rejected.iter().for_each(passed_over);
            Ok(reader.path().to_owned())
        }
        (None, None) => Err(RunError::NoCheckpoint { path: run.to_owned() }),
        (None, Some(rejected)) => {
            let problem = format!("none of its checkpoints is intact: {}", rejected.reason);
            Err(RunError::malformed(run, problem))
        }
    }
}

/// Refuses a checkpoint in a run's directory that another run has written. One that cannot be read is none of another
/// run, and neither is one without a record beside it.
///
/// # Errors
/// [`RunError::Malformed`] with both hashes.
pub fn own(checkpoint: &Path) -> Result<(), RunError> {
    let run = checkpoint::above(checkpoint, record::FILE);
    match (run, CheckpointState::read(checkpoint)) {
        (Some(run), Ok(state)) => own_state(run, checkpoint, &state),
        _ => Ok(()),
    }
}

fn own_state(run: &Path, checkpoint: &Path, state: &CheckpointState) -> Result<(), RunError> {
    let hash = RunRecord::read(run).ok().flatten().map_or_else(String::new, |record| record.hash);
    if hash.is_empty() || state.recipe_hash.is_empty() || state.recipe_hash == hash {
        return Ok(());
    }
    let problem = format!(
        "it belongs to an experiment with hash {}, and the run in whose directory it is has {hash}; move it to a \
         directory of its own, if it is what you mean",
        state.recipe_hash
    );
    Err(RunError::malformed(checkpoint, problem))
}
