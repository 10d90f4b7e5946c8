//! Leases on files: the system tells who has one before another process opens the file, and lets that process wait
//! meanwhile, up to 45 seconds (`fcntl(2)`, `F_SETLEASE`). File servers take leases and give them back at once. Every
//! user can take one on a file of his own, and give back nothing.

use super::OFlags;
use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long this process waits, all files together: of hundreds of files, each may have a lease.
const PATIENCE: Duration = Duration::from_secs(5);
/// Of the time in which it does not wait, the part by which it may wait again.
const REGAINED: u32 = 10;
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// How long this process has waited, less what it has regained, and when that was noted.
static WAITED: Mutex<Option<(Duration, Instant)>> = Mutex::new(None);

/// Notes that a thread waits for a moment, in which others may wait as well. Whether there is patience left.
fn may_wait() -> bool {
    let mut waited = WAITED.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let (before, noted) = waited.unwrap_or((Duration::ZERO, now));
    let since = now - noted;
    let spent = before.saturating_sub(since / REGAINED);
    if spent >= PATIENCE {
        return false;
    }
    *waited = Some((spent + since.min(2 * PAUSE), now));
    true
}

/// Opens with these flags, without waiting for the other end of a pipe, and no longer than [`PATIENCE`] until a lease
/// on a regular file is given back.
///
/// # Errors
/// Those of `open`; [`ErrorKind::WouldBlock`] for a lease that is not given back.
pub(super) fn opened<T>(
    flags: OFlags,
    open: impl Fn(OFlags) -> io::Result<T>,
    is_file: impl Fn() -> bool,
) -> io::Result<T> {
    loop {
        match open(flags | OFlags::NONBLOCK) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && is_file() => {}
            opened => return opened,
        }
        if !may_wait() {
            let problem = "a process of its owner holds a lease on it and does not give it back";
            return Err(io::Error::new(ErrorKind::WouldBlock, problem));
        }
        thread::sleep(PAUSE);
    }
}
