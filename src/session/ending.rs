//! How a session ends: what an error means, and what is known of a run at its end.

use super::inputs::{InputError, InputErrors};
use crate::data::DataError;
use crate::data::fetch::FetchError;
use crate::data::prepare::PrepareError;
use crate::data::tokenizer::PromptError;
use crate::engine::EngineError;
use crate::eval::EvalError;
use crate::plan::PlanError;
use crate::recipe::Diagnostics;
use crate::run::record::ReachedTarget;
use crate::run::{RunError, RunStatus};
use crate::train::{Best, Outcome, Stop};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// How a call ended, for a caller that has to act on it. Ranks tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Everything was done, now or before.
    Finished,
    /// An internal or I/O failure.
    Failed,
    /// Others have changed the data while they were trained on.
    DataChanged,
    /// What was asked for is at fault: a recipe, an option, data.
    Refused,
    /// A live process writes the run, or fetches into the directory.
    Locked,
    /// The loss or a gradient is not finite, or the watchdog has stopped the run.
    Diverged,
    /// Stopped with a checkpoint, as SIGHUP asks.
    HungUp,
    /// Stopped with a checkpoint, as SIGINT asks.
    Interrupted,
    /// Stopped with a checkpoint, as SIGTERM asks.
    Terminated,
}

impl Ending {
    /// What an error comes down to.
    pub fn of(error: &anyhow::Error) -> Self {
        error.chain().find_map(Self::of_cause).unwrap_or(Self::Failed)
    }

    fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Self> {
        if cause.is::<Diagnostics>()
            || cause.is::<PlanError>()
            || cause.is::<PromptError>()
            || cause.is::<EvalError>()
            || cause.is::<UsageError>()
        {
            return Some(Self::Refused);
        }
        // what was asked for was right when the run began
        let of_data = |error: &DataError| match error {
            DataError::Write { .. } => Self::Failed,
            DataError::InUse { .. } => Self::DataChanged,
            _ => Self::Refused,
        };
        if let Some(InputErrors(errors)) = cause.downcast_ref() {
            let mut endings = errors.iter().map(|InputError { error, .. }| of_data(error));
            return Some(endings.find(|ending| *ending != Self::Refused).unwrap_or(Self::Refused));
        }
        if let Some(InputError { error, .. }) = cause.downcast_ref() {
            return Some(of_data(error));
        }
        if let Some(error) = cause.downcast_ref() {
            return Some(of_data(error));
        }
        if let Some(error) = cause.downcast_ref::<PrepareError>() {
            return Some(match error {
                PrepareError::Locked { .. } => Self::Locked,
                error if error.is_usage() => Self::Refused,
                _ => Self::Failed,
            });
        }
        if let Some(Elsewhere(ending)) = cause.downcast_ref() {
            return Some(*ending);
        }
        if let Some(OnOthers { ending, .. }) = cause.downcast_ref() {
            return Some(*ending);
        }
        match cause.downcast_ref() {
            Some(FetchError::Busy { .. }) => return Some(Self::Locked),
            Some(error) if error.is_usage() => return Some(Self::Refused),
            _ => {}
        }
        if let Some(EngineError::Unsupported(_)) = cause.downcast_ref() {
            return Some(Self::Refused);
        }
        let error = cause.downcast_ref::<RunError>()?;
        Some(match error {
            _ if error.is_locked() => Self::Locked,
            _ if error.is_usage() => Self::Refused,
            _ => Self::Failed,
        })
    }
}

impl From<Stop> for Ending {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Interrupt => Self::Interrupted,
            Stop::Terminate => Self::Terminated,
            Stop::HangUp => Self::HungUp,
        }
    }
}

/// An error as part of a sentence: of a recipe's problems, what each comes down to.
pub fn in_short(error: &anyhow::Error) -> String {
    match error.downcast_ref::<Diagnostics>() {
        Some(problems) => problems.titles().collect::<Vec<_>>().join("; "),
        None => format!("{error:#}"),
    }
}

/// A mistake in what was asked for that no other error type covers.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// What went wrong is said already, or by another rank, so there is nothing more to say.
#[derive(Debug, thiserror::Error)]
#[error("the reason was given before, or by another rank")]
pub struct Elsewhere(pub Ending);

/// What went wrong on other ranks than this one.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct OnOthers {
    /// The ranks and what each of them says.
    pub text: String,
    /// The ending of the first of them.
    pub ending: Ending,
}

/// The end of a run, with what is known of it then.
#[derive(Debug)]
pub struct End<'a> {
    /// The run's directory.
    pub run: &'a Path,
    /// How the loop ended, or the failure that ended it.
    pub outcome: Result<Outcome, String>,
    /// Whether that failure is that others have changed the data.
    pub data_changed: bool,
    /// Optimizer steps taken.
    pub steps_done: u64,
    /// Optimizer steps of the run.
    pub steps: u64,
    /// Time trained, over all sessions.
    pub elapsed: Duration,
    /// The last training loss, in nats per token.
    pub loss: Option<f64>,
    /// The validation loss that the recipe stops at, in nats per token.
    pub target: Option<f64>,
    /// The median speed of this session's steps.
    pub tokens_per_s: Option<f64>,
    /// The last validation loss of this session, in nats per token.
    pub val_loss: Option<f64>,
    /// Entropy of the frequencies of all validation tokens, in nats per token, where it is quick to compute.
    pub val_unigram_entropy: Option<f64>,
    /// Whether an evaluation is of a part of the validation tokens.
    pub val_is_part: bool,
}

impl End<'_> {
    /// What the run's record calls it.
    pub fn status(&self) -> RunStatus {
        match &self.outcome {
            Ok(Outcome::Finished | Outcome::Reached(_)) => RunStatus::Finished,
            Ok(Outcome::Stopped(_)) => RunStatus::Interrupted,
            Ok(Outcome::Diverged { .. }) => RunStatus::Diverged,
            Err(_) => RunStatus::Failed,
        }
    }

    /// Why the run failed or diverged, for its record.
    pub fn error(&self) -> Option<String> {
        match &self.outcome {
            Ok(Outcome::Diverged { step, what }) => Some(format!("at step {step} {what}")),
            Ok(_) => None,
            Err(error) => Some(error.clone()),
        }
    }

    /// The evaluation that ended the run before its last step, for its record.
    pub fn reached_target(&self) -> Option<ReachedTarget> {
        let Ok(Outcome::Reached(Best { step, val_loss })) = self.outcome else { return None };
        Some(ReachedTarget { step, val_loss, target: self.target? })
    }

    /// What it is to the caller.
    pub fn ending(&self) -> Ending {
        match &self.outcome {
            Ok(Outcome::Finished | Outcome::Reached(_)) => Ending::Finished,
            Ok(Outcome::Stopped(stop)) => (*stop).into(),
            Ok(Outcome::Diverged { .. }) => Ending::Diverged,
            Err(_) => Ending::Failed,
        }
    }
}
