//! Looking after the data while they are trained on: on every rank that has opened files of its own.

use super::inputs::{Data, InputError};
use crate::train::Progress;
use std::time::{Duration, Instant};

/// Between evaluations and checkpoints, the data are looked at this often.
const EVERY: Duration = Duration::from_secs(60);

/// Notices data that others change.
pub(super) struct DataWatch<'a> {
    data: &'a Data,
    /// The step after which the run ends.
    steps: u64,
    looked: Instant,
    /// Whether small files have been read again at the end.
    has_read_again: bool,
}

impl<'a> DataWatch<'a> {
    pub(super) fn new(data: &'a Data, steps: u64) -> Self {
        Self { data, steps, looked: Instant::now(), has_read_again: false }
    }

    /// Whether the run ends here.
    pub(super) fn is_last(&self, progress: &Progress) -> bool {
        progress.step == self.steps
    }

    /// To be called with every step. Errors: a token that cannot be one, or, now and then, what [`check`](Self::check)
    /// finds.
    pub(super) fn step(&mut self, progress: &Progress) -> Result<(), InputError> {
        self.data.outside()?;
        if self.looked.elapsed() < EVERY { Ok(()) } else { self.check(progress) }
    }

    /// The run ends after this step, before the last one of its recipe.
    pub(super) fn ends_at(&mut self, step: u64) {
        self.steps = step;
    }

    /// Checks that all that was read came from the data as they were opened. After the last step, small files are read
    /// again, once.
    pub(super) fn check(&mut self, progress: &Progress) -> Result<(), InputError> {
        self.looked = Instant::now();
        let contents = self.is_last(progress) && !self.has_read_again;
        self.has_read_again |= contents;
        self.data.check(contents)
    }
}
