//! What a log of evaluations says at a point between two of them.
//!
//! Runs are evaluated every so many steps, so at the point where they are aligned most of them have no evaluation. The
//! value there is interpolated linearly between the evaluations on both sides; where a side has none it is not known.

use super::axis::{Axis, Cut};

/// The evaluations of one column on both sides of a cut, each as its place along the axis and its value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Around {
    before: Option<(f64, f64)>,
    after: Option<(f64, f64)>,
}

impl Around {
    /// Takes an evaluation; they come in the order of the log. One whose place is not known is on no side.
    pub(super) fn take(&mut self, at: f64, value: f64, cut: f64) {
        if at <= cut {
            self.before = Some((at, value));
        } else if at > cut {
            self.after = self.after.or(Some((at, value)));
        }
    }

    /// The values of the evaluations before and after the cut; twice that of one at the cut.
    pub(super) fn sides(&self, cut: f64) -> Option<[f64; 2]> {
        let (from, first) = self.before?;
        let after = if from == cut { Some(first) } else { self.after.map(|(_, second)| second) };
        Some([first, after?])
    }

    /// Whether there was any evaluation.
    pub(super) fn is_known(&self) -> bool {
        self.before.is_some() || self.after.is_some()
    }

    /// The value at the cut, and whether it is interpolated. `None` unless an evaluation is there or on both sides. A
    /// loss that is finite on one side only gives none: where it diverged is not known.
    pub(super) fn value(&self, cut: f64) -> Option<(f64, bool)> {
        let (from, first) = self.before?;
        if from == cut {
            return Some((first, false));
        }
        let (to, second) = self.after?;
        let along = (cut - from) / (to - from);
        match first.is_finite() == second.is_finite() {
            // the difference of two huge numbers may be no number
            true if (second - first).is_infinite() => Some((first * (1.0 - along) + second * along, true)),
            true => Some((first + along * (second - first), true)),
            false => None,
        }
    }
}

/// When steps were over. Evaluations have no clock of their own: each is as old as the step before it.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock {
    is_needed: bool,
    /// Steps that were taken before those of the run itself, which takes no time for them.
    before: f64,
    /// Steps and seconds, in order.
    times: Vec<(f64, f64)>,
}

impl Clock {
    /// A clock that notes times for a cut that is one, or for a search that asks for them.
    pub(super) fn new(cut: Option<Cut>, is_asked: bool, before: u64) -> Self {
        let is_needed = is_asked || cut.is_some_and(|cut| cut.axis == Axis::Time);
        Self { is_needed, before: before as f64, times: Vec::new() }
    }

    /// Whether it notes times.
    pub(super) fn is_needed(&self) -> bool {
        self.is_needed
    }

    /// Notes that a step, counted from 0, was over after so many seconds.
    pub(super) fn take(&mut self, step: f64, seconds: f64) {
        if self.is_needed {
            self.times.push((step, seconds));
        }
    }

    /// The age in seconds of an evaluation after so many steps; not a number where no row tells of the last of them.
    pub(super) fn at(&self, steps: f64) -> f64 {
        if steps <= self.before {
            return 0.0;
        }
        let after = self.times.partition_point(|(step, _)| *step < steps);
        let last = after.checked_sub(1).map(|last| self.times[last]);
        last.filter(|(step, _)| *step + 1.0 >= steps).map_or(f64::NAN, |(_, seconds)| seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_diverges_between_two_evaluations_has_no_value_there() {
        let around = |values: [f64; 2]| {
            let mut around = Around::default();
            (0..2).for_each(|i| around.take(i as f64, values[i], 0.5));
            around.value(0.5)
        };
        assert_eq!(around([4.0, 2.0]), Some((3.0, true)));
        assert_eq!(around([4.0, f64::NAN]), None);
        assert_eq!(around([1.5e308, -1.5e308]), Some((0.0, true)));
        assert!(around([f64::NAN, f64::NAN]).is_some_and(|(value, _)| value.is_nan()));
    }

    #[test]
    fn what_no_row_tells_of_has_no_age() {
        let mut clock = Clock::new(None, true, 2);
        assert!(clock.at(4.0).is_nan() && clock.at(2.0) == 0.0);
        for step in [3, 4, 6] {
            clock.take(f64::from(step), f64::from(step));
        }
        assert_eq!([0.0, 2.0, 4.0, 5.0, 7.0].map(|steps| clock.at(steps)), [0.0, 0.0, 3.0, 4.0, 6.0]);
        assert!([3.0, 6.0, 8.0].into_iter().all(|steps| clock.at(steps).is_nan()));
        let mut around = Around::default();
        around.take(f64::NAN, 3.0, 1.0);
        assert!(!around.is_known());
    }
}
