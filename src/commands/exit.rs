//! The exit codes, and which ending gives which.

use crate::session::Ending;
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
    /// SIGHUP, after a checkpoint if there was anything to save.
    HungUp = 129,
    /// SIGINT, after a checkpoint if there was anything to save and no second signal has cut it short.
    Interrupted = 130,
    /// SIGTERM, as SIGINT.
    Terminated = 143,
}

impl Exit {
    /// The code of an error.
    pub fn of(error: &anyhow::Error) -> Self {
        Ending::of(error).into()
    }
}

impl From<Ending> for Exit {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Finished => Self::Finished,
            Ending::Failed | Ending::DataChanged => Self::Failure,
            Ending::Refused => Self::Usage,
            Ending::Locked => Self::Locked,
            Ending::Diverged => Self::Diverged,
            Ending::HungUp => Self::HungUp,
            Ending::Interrupted => Self::Interrupted,
            Ending::Terminated => Self::Terminated,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}
