//! What the progress of a run is measured in, and how far of it a report looks.

use super::numbers::{seconds, whole};

/// The horizontal axis of a comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Optimizer steps taken.
    #[default]
    Step,
    /// Tokens trained on.
    Tokens,
    /// Seconds trained, over all sessions.
    Time,
}

impl Axis {
    /// The column of `train.csv` that has it.
    #[must_use]
    pub fn column(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Tokens => "tokens",
            Self::Time => "elapsed_s",
        }
    }

    /// How far a run is after the step of a row, from the value of [`column`](Self::column) there: steps are counted
    /// from 0 in the log.
    #[must_use]
    pub fn reached(self, value: f64) -> f64 {
        if self == Self::Step { value + 1.0 } else { value }
    }

    /// Its place among steps, tokens and seconds.
    pub(super) fn place(self) -> usize {
        self as usize
    }

    /// What stands at the axis.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Tokens => "tokens",
            Self::Time => "training time",
        }
    }
}

/// The point up to which rows count: what lies beyond it is as if it were not there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    /// What the point is measured in.
    pub axis: Axis,
    /// The last value that counts: steps taken, tokens trained on, or seconds trained.
    pub at: f64,
}

impl Cut {
    /// What it makes of figures, for people.
    #[must_use]
    pub fn shown(self) -> String {
        let (at, unit) = match self.axis {
            Axis::Time => (seconds(self.at), " of training"),
            Axis::Step => (whole(self.at), " steps"),
            Axis::Tokens => (whole(self.at), " tokens"),
        };
        format!("compared after {at}{unit}")
    }
}
