//! How a run stands before a call goes on with it, found out without taking its lock and without writing anything.

use super::continued::{choices, saved_step};
use crate::plan::Begun;
use crate::recipe::Recipe;
use crate::run::{RunError, RunStatus, checkpoint, dir, lock, read_train, status_and_record};
use std::path::{Path, PathBuf};

/// How a run stands.
#[derive(Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is no such run.
    NotBegun,
    /// It was begun and can go on.
    Begun {
        /// Steps on its log.
        steps_done: u64,
        /// The step and the directory of the checkpoint that it goes on from, the newest that has all its files. Their
        /// contents are not checked.
        checkpoint: Option<(u64, PathBuf)>,
        /// The furthest step of which its record says that a checkpoint was saved. With none of them left the run is
        /// refused; without one at all it begins again.
        saved: Option<u64>,
        /// Why it failed, if it did.
        error: Option<String>,
    },
    /// A live process trains it.
    Live {
        /// The process, as it wrote into the lock.
        holder: String,
        /// Steps on its log.
        steps_done: u64,
    },
    /// All its steps were taken, or it has reached its target.
    Finished {
        /// The steps after which the run ended at its target, before the last one.
        at_target: Option<u64>,
    },
    /// Its loss or a gradient was not finite, or the watchdog has stopped it.
    Diverged {
        /// At which step, and what.
        error: String,
    },
}

impl Standing {
    /// How the run in a directory stands, for a recipe that would end it at this validation loss.
    ///
    /// # Errors
    /// Files of the run that cannot be read.
    pub fn of(run: &Path, target: Option<f64>) -> Result<Self, RunError> {
        if let Some(holder) = lock::holder(&run.join(lock::FILE))? {
            return Ok(Self::Live { holder, steps_done: steps_done(run)? });
        }
        let (status, record) = match status_and_record(run) {
            // one that has lost both goes on from what is left
            Err(RunError::NotARun { .. }) if checkpoint::list(run)?.is_empty() => return Ok(Self::NotBegun),
            Err(RunError::NotARun { .. }) => (RunStatus::Interrupted, None),
            known => known?,
        };
        let at_target = record.as_ref().and_then(|record| record.reached_target.map(|_| record.steps_done));
        let goes_on = record.as_ref().is_some_and(|record| record.goes_on(target));
        let saved = record.as_ref().and_then(saved_step);
        let error = record.and_then(|record| record.error);
        Ok(match status {
            RunStatus::Finished if !goes_on => Self::Finished { at_target },
            RunStatus::Diverged => Self::Diverged { error: error.unwrap_or_default() },
            _ => {
                let whole = |(_, path): &(u64, PathBuf)| checkpoint::Reader::open(path).is_ok();
                let checkpoint = checkpoint::list(run)?.into_iter().rev().find(whole);
                Self::Begun { steps_done: steps_done(run)?, checkpoint, saved, error }
            }
        })
    }

    /// How a run stands of which something cannot be read: as one that has begun.
    pub(super) fn damaged(run: &Path) -> Self {
        let steps_done = steps_done(run).unwrap_or(0);
        Self::Begun { steps_done, checkpoint: None, saved: None, error: None }
    }

    /// One word for it, for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotBegun => "not begun",
            Self::Begun { error: Some(_), .. } => "failed",
            Self::Begun { .. } => "interrupted",
            Self::Live { .. } => "running",
            Self::Finished { .. } => "finished",
            Self::Diverged { .. } => "diverged",
        }
    }
}

/// What the run in a directory keeps of earlier choices when it goes on under a recipe, as the newest checkpoint has it
/// that has all its files; `None` where it begins. Contents are not checked, and what cannot be read is passed over.
pub fn begun(run: &Path, recipe: &Recipe) -> Option<Begun> {
    let all = checkpoint::list(run).unwrap_or_default();
    let newest = all.into_iter().rev().find_map(|(_, path)| checkpoint::Reader::open(&path).ok())?;
    Some(choices(newest.state(), recipe).now)
}

/// The steps of which the training log has rows: the record of a run that was killed is behind.
fn steps_done(run: &Path) -> Result<u64, RunError> {
    let log = run.join(dir::TRAIN_CSV);
    if !log.exists() {
        return Ok(0);
    }
    let rows = read_train(&log)?;
    // the last row of a run that is killed or still trains may be torn
    Ok(rows.map_while(Result::ok).last().map_or(0, |row| row.step + 1))
}

/// The name of a recipe's run: the recipe's name and the beginning of the run's identity.
pub fn run_id(recipe: &Recipe, hash: &str) -> String {
    format!("{}-{}", recipe.name, &hash[..8])
}
