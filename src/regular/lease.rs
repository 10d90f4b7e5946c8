//! Leases on files: the system tells who has one before another process opens the file, and lets that process wait
//! meanwhile, up to 45 seconds (`fcntl(2)`, `F_SETLEASE`). File servers take leases and give them back at once. Every
//! user can take one on a file of his own, and give back nothing.

use super::OFlags;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How long this process waits, all files together: of hundreds of files, each may have a lease.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// Attempts that have been waited for.
static WAITED: AtomicU64 = AtomicU64::new(0);

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
        if PAUSE * WAITED.fetch_add(1, Ordering::Relaxed) as u32 >= PATIENCE {
            let problem = "a process of its owner holds a lease on it and does not give it back";
            return Err(io::Error::new(ErrorKind::WouldBlock, problem));
        }
        thread::sleep(PAUSE);
    }
}
