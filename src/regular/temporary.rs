//! The names of what is half-written or half-deleted.

use super::OpenDir;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

const PREFIX: &str = ".tmp-";
/// How long a temporary file must have been left alone before it counts as abandoned.
pub const STALE: Duration = Duration::from_secs(3600);
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

impl OpenDir {
    /// Deletes the temporary files in a directory that several processes may be writing into, except those that may
    /// still be in use: only a file that has not been written to for `age` is deleted. Errors are ignored: a file that
    /// cannot be deleted stays.
    pub fn sweep_temporaries(&self, age: Duration) {
        let names = self.names().unwrap_or_default();
        for name in names.iter().filter(|name| is_temporary(name)) {
            let Ok(stat) = self.stat(name) else { continue };
            let written = UNIX_EPOCH + Duration::from_secs(stat.st_mtime.try_into().unwrap_or(0));
            if written.elapsed().is_ok_and(|since| since >= age) {
                let _ = self.remove_file(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::SystemTime;

    #[test]
    fn a_stale_temporary_goes_and_a_fresh_one_stays() {
        let dir = tempfile::tempdir().expect("tempdir");
        for name in [".tmp-a", ".tmp-b", "c"] {
            let file = File::create(dir.path().join(name)).expect("create");
            let age = Duration::from_secs(if name == ".tmp-b" { 0 } else { 7200 });
            file.set_modified(SystemTime::now() - age).expect("a time");
        }
        let opened = OpenDir::open(dir.path()).expect("open");
        opened.sweep_temporaries(Duration::from_secs(3600));
        let mut left = opened.names().expect("readable");
        left.sort();
        assert_eq!(left, [".tmp-b", "c"]);
    }
}
