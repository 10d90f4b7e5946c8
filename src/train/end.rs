//! How a run ends: after its last step, at its target, by request, or because its numbers are not finite.

use super::Best;

/// Why a run must stop early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal is gone.
    HangUp,
}

impl Stop {
    const ALL: [Self; 3] = [Self::Interrupt, Self::Terminate, Self::HangUp];

    /// A request, or none, as a number below 128, as ranks tell each other.
    pub fn code(stop: Option<Self>) -> u8 {
        stop.and_then(|stop| Self::ALL.iter().position(|one| *one == stop)).map_or(0, |place| place as u8 + 1)
    }

    /// The request that a [`code`](Self::code) stands for.
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// All steps are done.
    Finished,
    /// This evaluation reached the target before the last step. What follows the last step was done after it: a sample
    /// and a checkpoint.
    Reached(Best),
    /// Stopped after a checkpoint.
    Stopped(Stop),
    /// Step `step` gave a loss, gradient, weight or optimizer state that is not finite, or one that the watchdog
    /// stopped; nothing has been saved since.
    Diverged {
        /// The step.
        step: u64,
        /// What was wrong, and what is to blame as far as can be told.
        what: String,
    },
}

/// The evaluation that ends a run, if its loss is at most the `target`. The loss is taken as `val.csv` states it, in
/// the fewest digits that read back as the same fp32 number, so that what the log shows is what decides.
pub fn reached(target: Option<f64>, step: u64, val_loss: f64) -> Option<Best> {
    let logged: f64 = (val_loss as f32).to_string().parse().ok()?;
    // not a number reaches nothing
    target.filter(|target| logged <= *target).map(|_| Best { step, val_loss: logged })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_reached_by_the_loss_that_the_log_states() {
        let at = |target: f64, val_loss: f64| reached(Some(target), 7, val_loss);
        assert_eq!(at(3.4, 3.3), Some(Best { step: 7, val_loss: 3.3 }));
        assert_eq!(at(3.4, 3.41), None);
        // as fp32 this is 3.4000000954, which the log states as 3.4
        assert_eq!(at(3.4, 3.400_000_05), Some(Best { step: 7, val_loss: 3.4 }));
        assert_eq!(at(3.4, 3.400_001), None);
        assert_eq!([f64::NAN, f64::INFINITY].map(|loss| at(3.4, loss)), [None; 2]);
        assert_eq!(reached(None, 7, 0.1), None);
    }
}
