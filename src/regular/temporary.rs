//! The names of what is half-written or half-deleted.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};

const PREFIX: &str = ".tmp-";
/// Bytes of the real name that are shown: a name may have 255 in all.
const SHOWN: usize = 100;

/// Whether a name is that of something half-written or half-deleted.
#[must_use]
pub fn is_temporary(name: &OsStr) -> bool {
    name.as_bytes().starts_with(PREFIX.as_bytes())
}

/// What a temporary name begins the name of, after which a process and a number follow; `None` for another name.
#[must_use]
pub fn meant(name: &OsStr) -> Option<&OsStr> {
    name.as_bytes().strip_prefix(PREFIX.as_bytes()).map(OsStr::from_bytes)
}

/// A new name for what is to have this one, or had it.
#[must_use]
pub fn temporary_name(name: &OsStr) -> OsString {
    // Threads of one process may write the same name at once.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut temporary = OsString::from(PREFIX);
    temporary.push(OsStr::from_bytes(&name.as_bytes()[..name.len().min(SHOWN)]));
    temporary.push(format!("-{}-{n}", std::process::id()));
    temporary
}
