//! How long the steps of a session took, where not all of them are of one size.

use crate::report::stats::median;

/// The times of steps.
pub(super) struct StepTimes {
    /// Rows of a step of full size.
    full: u64,
    /// Rows and milliseconds.
    steps: Vec<(u64, f64)>,
}

impl StepTimes {
    /// None yet; a step of full size takes so many rows.
    pub(super) fn new(full: usize) -> Self {
        Self { full: full as u64, steps: Vec::new() }
    }

    pub(super) fn push(&mut self, rows: u64, ms: f64) {
        self.steps.push((rows, ms));
    }

    /// The median time in milliseconds of all steps, as if each had taken the rows of a full one at its speed.
    pub(super) fn median_ms(&self) -> Option<f64> {
        let scaled = |(rows, ms): &(u64, f64)| ms * (self.full as f64 / *rows as f64);
        median(&mut self.steps.iter().map(scaled).collect::<Vec<_>>())
    }

    /// How many steps were of full size.
    pub(super) fn full_steps(&self) -> u64 {
        self.full_ms().count() as u64
    }

    /// The median time in milliseconds of the steps of full size.
    pub(super) fn full_median_ms(&self) -> Option<f64> {
        median(&mut self.full_ms().collect::<Vec<_>>())
    }

    fn full_ms(&self) -> impl Iterator<Item = f64> {
        self.steps.iter().filter(|(rows, _)| *rows == self.full).map(|(_, ms)| *ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_steps_count_for_full_ones_but_not_as_such() {
        let mut times = StepTimes::new(8);
        assert_eq!((times.median_ms(), times.full_median_ms()), (None, None));
        for (rows, ms) in [(2, 1.0), (4, 3.0), (8, 5.0)] {
            times.push(rows, ms);
        }
        assert_eq!(times.median_ms(), Some(5.0));
        assert_eq!((times.full_steps(), times.full_median_ms()), (1, Some(5.0)));
    }
}
