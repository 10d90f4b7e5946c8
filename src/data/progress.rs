//! Progress reports of long work on big files, independent of terminals.

/// Receives reports of long passes over data. One task runs at a time; totals and advances are in bytes.
///
/// [`advance`](Progress::advance) may be called from any thread.
pub trait Progress: Sync {
    /// A pass over `total` bytes begins; `what` says what is done to which file.
    fn start(&self, what: &str, total: u64);

    /// `by` more bytes are done.
    fn advance(&self, by: u64);

    /// The last pass has ended, successfully or not.
    fn finish(&self);
}

/// Ignores all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _what: &str, _total: u64) {}

    fn advance(&self, _by: u64) {}

    fn finish(&self) {}
}

/// One reported pass. It ends when dropped, so that an error leaves no progress bar behind.
pub(super) struct Task<'a>(&'a dyn Progress);

impl<'a> Task<'a> {
    pub(super) fn start(progress: &'a dyn Progress, what: &str, total: u64) -> Self {
        progress.start(what, total);
        Self(progress)
    }

    pub(super) fn advance(&self, by: u64) {
        self.0.advance(by);
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}
