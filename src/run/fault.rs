//! Faults on demand, for the tests of everything else here.
//!
//! A crash in the middle of a write cannot be produced from outside with any precision. `RUNNER_FAULT=scope.moment`
//! aborts the process the first time it gets there, `scope.moment:3` the third time. `error:scope.moment` makes that
//! write fail as if the disk were full, `eio:scope.moment` as if it were broken, and `pause:scope.moment` holds it for
//! as long as the file that `RUNNER_FAULT_WHILE` names exists; it writes "held" there when it gets to the point.
//! Unset, a point costs one load and one comparison.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable that arms a fault.
pub const VARIABLE: &str = "RUNNER_FAULT";
/// The environment variable that names the file whose existence keeps a paused write waiting.
pub const WHILE: &str = "RUNNER_FAULT_WHILE";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Abort,
    Full,
    Broken,
    Pause,
}

#[derive(Debug, PartialEq, Eq)]
struct Armed {
    /// The place of the fault, as `scope.moment`.
    point: String,
    /// The visit at which the fault is due, counted from 1.
    nth: u64,
    kind: Kind,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
static VISITS: AtomicU64 = AtomicU64::new(0);

/// A fault that is due; [`Due::strike`] carries it out.
#[derive(Debug)]
pub(super) struct Due(Kind);

impl Due {
    /// Aborts the process, waits, or returns the injected error.
    pub(super) fn strike(self) -> io::Result<()> {
        const EIO: i32 = 5;
        match self.0 {
            Kind::Abort => std::process::abort(),
            Kind::Full => {
                Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on device (injected)"))
            }
            Kind::Broken => Err(io::Error::from_raw_os_error(EIO)),
            Kind::Pause => {
                let held = std::env::var_os(WHILE).unwrap_or_default();
                // a file that is gone is not made again: it would hold the process for ever
                if let Ok(mut file) = OpenOptions::new().write(true).open(&held) {
                    file.write_all(b"held")?;
                }
                while Path::new(&held).exists() {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                Ok(())
            }
        }
    }
}

/// Whether the armed fault is due at this visit of `scope.moment`.
pub(super) fn due(scope: &str, moment: &str) -> Option<Due> {
    let armed = ARMED.get_or_init(|| std::env::var(VARIABLE).ok().map(|text| parse(&text))).as_ref()?;
    let here = armed.point.strip_prefix(scope)?.strip_prefix('.')? == moment;
    (here && VISITS.fetch_add(1, Ordering::Relaxed) + 1 == armed.nth).then_some(Due(armed.kind))
}

/// Carries out the armed fault if it is due here.
///
/// # Errors
/// The error of a write that is to fail.
pub fn point(scope: &str, moment: &str) -> io::Result<()> {
    due(scope, moment).map_or(Ok(()), Due::strike)
}

/// A point between two writes, such as within a step: an armed fault aborts the process there or holds it. There is no
/// write that could fail.
pub fn between(scope: &str, moment: &str) {
    let _ = point(scope, moment);
}

fn parse(text: &str) -> Armed {
    let kinds = [("error:", Kind::Full), ("eio:", Kind::Broken), ("pause:", Kind::Pause)];
    let (kind, text) = kinds
        .into_iter()
        .find_map(|(prefix, kind)| Some((kind, text.strip_prefix(prefix)?)))
        .unwrap_or((Kind::Abort, text));
    let (point, nth) = match text.rsplit_once(':').map(|(point, nth)| (point, nth.parse())) {
        Some((point, Ok(nth))) => (point, nth),
        _ => (text, 1),
    };
    Armed { point: point.to_owned(), nth, kind }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_a_point_a_count_and_a_kind() {
        let armed = |point: &str, nth, kind| Armed { point: point.into(), nth, kind };
        assert_eq!(parse("csv.mid_row"), armed("csv.mid_row", 1, Kind::Abort));
        assert_eq!(parse("csv.mid_row:12"), armed("csv.mid_row", 12, Kind::Abort));
        assert_eq!(parse("error:checkpoint.after_model:2"), armed("checkpoint.after_model", 2, Kind::Full));
        assert_eq!(parse("eio:checkpoint.read"), armed("checkpoint.read", 1, Kind::Broken));
        assert_eq!(parse("pause:checkpoint.mid_model:3"), armed("checkpoint.mid_model", 3, Kind::Pause));
    }
}
