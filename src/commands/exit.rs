//! The exit codes, and which error gives which.

use super::ranks::{Elsewhere, OnOthers};
use crate::data::DataError;
use crate::engine::EngineError;
use crate::plan::PlanError;
use crate::recipe::Diagnostics;
use crate::run::RunError;
use std::process::ExitCode;

/// How the process ends. The numbers are part of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Finished, or already finished.
    Finished = 0,
    /// Internal or I/O failure; a verification or comparison that did not hold.
    Failure = 1,
    /// Usage or recipe.
    Usage = 2,
    /// The run is locked by a live process.
    Locked = 3,
    /// The loss or a gradient is not finite, or stood out and `watchdog.action` is "stop".
    Diverged = 4,
    /// SIGHUP, after a checkpoint.
    HungUp = 129,
    /// SIGINT, after a checkpoint.
    Interrupted = 130,
    /// SIGTERM, after a checkpoint.
    Terminated = 143,
}

impl Exit {
    /// The exit with this number; a failure for a number that is none.
    pub fn from_code(code: u8) -> Self {
        let all = [
            Self::Finished,
            Self::Usage,
            Self::Locked,
            Self::Diverged,
            Self::HungUp,
            Self::Interrupted,
            Self::Terminated,
        ];
        all.into_iter().find(|exit| *exit as u8 == code).unwrap_or(Self::Failure)
    }

    /// The code of an error.
    pub fn of(error: &anyhow::Error) -> Self {
        let mut causes = error.chain();
        causes.find_map(Self::of_cause).unwrap_or(Self::Failure)
    }

    fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Self> {
        if cause.is::<Diagnostics>() || cause.is::<PlanError>() || cause.is::<UsageError>() {
            return Some(Self::Usage);
        }
        if let Some(error) = cause.downcast_ref::<DataError>() {
            return Some(if matches!(error, DataError::Write { .. }) { Self::Failure } else { Self::Usage });
        }
        if let Some(Elsewhere(exit)) = cause.downcast_ref() {
            return Some(*exit);
        }
        if let Some(OnOthers { exit, .. }) = cause.downcast_ref() {
            return Some(*exit);
        }
        if let Some(EngineError::Unsupported(_)) = cause.downcast_ref() {
            return Some(Self::Usage);
        }
        let error = cause.downcast_ref::<RunError>()?;
        Some(match error {
            _ if error.is_locked() => Self::Locked,
            _ if error.is_usage() => Self::Usage,
            _ => Self::Failure,
        })
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// A mistake in the use of a command that no other error type covers.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);
