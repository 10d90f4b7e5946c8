//! Faults on demand, for the tests of everything else here.
//!
//! A crash in the middle of a write cannot be produced from outside with any precision. `RUNNER_FAULT=scope.moment`
//! aborts the process the first time it gets there, `scope.moment:3` the third time, and `error:scope.moment` makes
//! that write fail as if the disk were full. Unset, a point costs one load and one comparison.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable that arms a fault.
pub const VARIABLE: &str = "RUNNER_FAULT";

#[derive(Debug, PartialEq, Eq)]
struct Armed {
    /// `scope.moment`.
    point: String,
    /// Counts from 1.
    nth: u64,
    error: bool,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
static VISITS: AtomicU64 = AtomicU64::new(0);

/// A fault that is due; [`Due::strike`] carries it out.
#[derive(Debug)]
pub(super) struct Due {
    error: bool,
}

impl Due {
    /// Aborts the process, or returns the injected error.
    pub(super) fn strike(self) -> io::Result<()> {
        if self.error {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on device (injected)"));
        }
        std::process::abort()
    }
}

/// Whether the armed fault is due at this visit of `scope.moment`.
pub(super) fn due(scope: &str, moment: &str) -> Option<Due> {
    let armed = ARMED.get_or_init(|| std::env::var(VARIABLE).ok().map(|text| parse(&text))).as_ref()?;
    let here = armed.point.strip_prefix(scope)?.strip_prefix('.')? == moment;
    (here && VISITS.fetch_add(1, Ordering::Relaxed) + 1 == armed.nth).then_some(Due { error: armed.error })
}

/// Carries out the armed fault if it is due here.
pub(super) fn point(scope: &str, moment: &str) -> io::Result<()> {
    due(scope, moment).map_or(Ok(()), Due::strike)
}

fn parse(text: &str) -> Armed {
    let (error, text) = match text.strip_prefix("error:") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (point, nth) = match text.rsplit_once(':').map(|(point, nth)| (point, nth.parse())) {
        Some((point, Ok(nth))) => (point, nth),
        _ => (text, 1),
    };
    Armed { point: point.to_owned(), nth, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_a_point_a_count_and_a_kind() {
        let armed = |point: &str, nth, error| Armed { point: point.into(), nth, error };
        assert_eq!(parse("csv.mid_row"), armed("csv.mid_row", 1, false));
        assert_eq!(parse("csv.mid_row:12"), armed("csv.mid_row", 12, false));
        assert_eq!(parse("error:checkpoint.after_model:2"), armed("checkpoint.after_model", 2, true));
    }
}
