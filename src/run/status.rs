//! How far a run has come, as its record says and its lock corrects.

use super::error::RunError;
use super::record::RunRecord;
use super::{dir, lock};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// How far a run has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    /// The directory exists, no step has been taken.
    #[default]
    Created,
    /// A process is training.
    Running,
    /// It was stopped before the last step and can be resumed.
    Interrupted,
    /// Every step has been taken, or the target was reached.
    Finished,
    /// The loss or the gradients stopped being finite.
    Diverged,
    /// An error ended it.
    Failed,
    /// Its record cannot be read. No record says so.
    #[serde(skip_deserializing)]
    Unknown,
}

impl RunStatus {
    /// Every status, in the order of a run's life.
    pub const ALL: [Self; 7] = [
        Self::Created,
        Self::Running,
        Self::Interrupted,
        Self::Finished,
        Self::Diverged,
        Self::Failed,
        Self::Unknown,
    ];
}

impl std::fmt::Display for RunStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.pad(match self {
            Self::Created => "created",
            Self::Running => "running",
            Self::Interrupted => "interrupted",
            Self::Finished => "finished",
            Self::Diverged => "diverged",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        })
    }
}

/// The status of a run now. A record that says `running` while no live process holds the lock belongs to a killed run,
/// which is interrupted.
///
/// Errors: [`RunError::NotARun`] where there is neither recipe nor record.
pub fn status(run_dir: &Path) -> Result<RunStatus, RunError> {
    status_and_record(run_dir).map(|(status, _)| status)
}

/// Looks in a row that find no record, after which it counts as lost: a file server may take a while.
pub const REFUSED: u32 = 10;

/// Whether a directory is what a removal left of a run, after so many looks in a row that found neither recipe nor
/// record there. A run that is being started over has neither for a moment, and is held by a process, or will be.
#[must_use]
pub fn is_left_over(run_dir: &Path, looks: u32) -> bool {
    looks >= REFUSED && !lock::is_held(&run_dir.join(lock::FILE)).unwrap_or(true)
}

/// The [`status`] of a run with the record that it is of.
///
/// Errors: [`RunError::NotARun`] where there is neither recipe nor record; a record that cannot be read.
pub fn status_and_record(run_dir: &Path) -> Result<(RunStatus, Option<RunRecord>), RunError> {
    let lock = run_dir.join(lock::FILE);
    // Asked before: a run that ends in between has written its record by then.
    // A lock that nobody may ask leaves the word of the record.
    let is_free = || !lock::is_held(&lock).unwrap_or(true);
    let was_free = is_free();
    let record = RunRecord::read(run_dir)?;
    let recorded = match &record {
        Some(record) => record.status,
        None if dir::is_run(run_dir) => RunStatus::Created,
        None => return Err(RunError::NotARun { path: run_dir.to_owned() }),
    };
    let status = match recorded {
        // Asked after: a run that starts in between holds the lock by now.
        RunStatus::Created | RunStatus::Running if was_free && is_free() => RunStatus::Interrupted,
        other => other,
    };
    Ok((status, record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regular::OpenDir;
    use crate::run::RunDir;

    #[test]
    fn a_killed_run_is_interrupted_though_its_record_says_running() {
        let runs = tempfile::tempdir().expect("tempdir");
        assert!(matches!(status(runs.path()), Err(RunError::NotARun { .. })));
        let run = RunDir::create_or_open(runs.path(), "r", "", false).expect("create");
        assert_eq!(status(run.path()).expect("status"), RunStatus::Created);
        let mut record = RunRecord::new("r", "r", "aa");
        record.status = RunStatus::Running;
        run.write_record(&record).expect("write");
        assert_eq!(status(run.path()).expect("status"), RunStatus::Running);
        let path = run.path().to_owned();
        drop(run);
        assert_eq!(status(&path).expect("status"), RunStatus::Interrupted);
        record.status = RunStatus::Finished;
        record.write(&OpenDir::open(&path).expect("open")).expect("write");
        assert_eq!(status(&path).expect("status"), RunStatus::Finished);
    }
}
