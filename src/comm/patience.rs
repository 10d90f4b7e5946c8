//! How long a rank waits for another.

use std::time::{Duration, Instant};

/// A wait that takes longer than was asked for by more than this, or by a quarter of the whole time, was no wait: the
/// process did not run.
const STOPPED: Duration = Duration::from_secs(2);

/// The time that is left for another rank. Time in which this process was stopped, as by SIGSTOP or with its machine,
/// does not count: the others may have answered, or may have been stopped, too.
pub(crate) struct Patience {
    whole: Duration,
    deadline: Instant,
}

impl Patience {
    pub(crate) fn new(whole: Duration) -> Self {
        Self { whole, deadline: Instant::now() + whole }
    }

    /// The other rank has shown that it is alive.
    pub(crate) fn renew(&mut self) {
        self.deadline = Instant::now() + self.whole;
    }

    /// A wait that was to end after `asked` has begun at `begun` and ended now.
    pub(crate) fn waited(&mut self, begun: Instant, asked: Duration) {
        self.waited_until(Instant::now(), begun, asked);
    }

    fn waited_until(&mut self, now: Instant, begun: Instant, asked: Duration) {
        let beyond = now.saturating_duration_since(begun).saturating_sub(asked);
        if beyond > STOPPED.min(self.whole / 4) {
            self.deadline += beyond;
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() > self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_the_process_was_stopped_does_not_count() {
        let (begun, asked) = (Instant::now(), Duration::from_millis(100));
        let mut patience = Patience::new(Duration::from_secs(5));
        let before = patience.deadline;
        patience.waited_until(begun + Duration::from_secs(1), begun, asked);
        assert_eq!(patience.deadline, before, "a busy machine");
        patience.waited_until(begun + Duration::from_secs(60), begun, asked);
        assert_eq!(patience.deadline, before + Duration::from_millis(59_900));
        let mut short = Patience::new(Duration::from_secs(1));
        let before = short.deadline;
        short.waited_until(begun + Duration::from_millis(1_800), begun, asked);
        assert_eq!(short.deadline, before + Duration::from_millis(1_700));
    }
}
