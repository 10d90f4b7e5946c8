//! The lock that makes one process the writer of a run.
//!
//! It is the operating system's lock on an open file, so it ends with its holder, however that ends, and is never
//! stale. The file's text only serves the message; the file itself stays. Readers do not take it.

use super::RunError;
use super::error::Context;
use super::facts;
use crate::regular::{self, OFlags, OpenDir};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

/// Name of the lock file in a run directory.
pub const FILE: &str = "lock";

/// A probe by [`is_held`] holds the lock for an instant, which must not look like a second writer.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes of the text that are shown.
const MOST_WORDS: u64 = 200;

/// The right to write a run; given back on drop.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock of a run's directory, creating its file if needed. Does not wait for a live holder.
    ///
    /// Errors: [`RunError::Locked`] naming the holder; [`RunError::Io`] where files cannot be locked.
    pub fn acquire(run: &OpenDir) -> Result<Self, RunError> {
        let path = &run.join(FILE);
        // through a link, another file would be written to
        let opened = run.open_file(FILE, OFlags::RDWR | OFlags::CREATE);
        let mut file = opened.map_err(|error| refusal(run, error))?;
        for attempt in 1.. {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(source)) => return Err(told(source)).context("lock", path),
                Err(TryLockError::WouldBlock) if attempt < ATTEMPTS => std::thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    let holder = words_of_holder(&mut file);
                    return Err(RunError::Locked { path: run.path().to_owned(), holder });
                }
            }
        }
        let line = format!("process {} on {} since {}\n", std::process::id(), facts::host(), facts::now());
        file.set_len(0).and_then(|()| file.rewind()).context("write", path)?;
        file.write_all(line.as_bytes()).context("write", path)?;
        Ok(Self { file })
    }

    /// Checks that the lock file of `run` is still the one that is locked: of another one, another process may hold the
    /// lock.
    ///
    /// Errors: [`RunError::Io`].
    pub fn check(&self, run: &OpenDir) -> Result<(), RunError> {
        let path = run.join(FILE);
        if run.is_named(FILE, &self.file).context("read", &path)? {
            return Ok(());
        }
        let gone = "it was removed or replaced, so that another process may write the run: this one ends";
        Err(std::io::Error::other(gone)).context("keep", &path)
    }
}

/// Checks that the lock of a run's directory can be taken, unless a live process holds it.
///
/// Errors: as of [`Lock::acquire`].
pub fn check_may_take(run: &OpenDir) -> Result<(), RunError> {
    let usable = match run.open_file(FILE, OFlags::RDWR) {
        Err(error) if error.kind() == ErrorKind::NotFound => run.check_writable(),
        opened => opened.map(drop),
    };
    usable.map_err(|error| refusal(run, error))
}

/// Why the lock file cannot be opened. Where several share a directory of runs, another may have made this one first.
fn refusal(run: &OpenDir, error: io::Error) -> RunError {
    match regular::another_owner(run.path()) {
        Some(user) if error.kind() == ErrorKind::PermissionDenied => {
            RunError::OfAnother { path: run.path().to_owned(), user }
        }
        _ => RunError::Io { action: "open", path: run.join(FILE), error },
    }
}

/// Whether a live process holds the lock file `path`; false if there is no such file. Holds the lock itself only for
/// the moment of asking.
pub fn is_held(path: &Path) -> Result<bool, RunError> {
    Ok(held(path)?.is_some())
}

/// The live process that holds the lock file `path`, in its own words; `None` if none does. Asks like [`is_held`].
pub fn holder(path: &Path) -> Result<Option<String>, RunError> {
    Ok(held(path)?.as_mut().map(words_of_holder))
}

/// The lock file `path`, if a live process holds it.
fn held(path: &Path) -> Result<Option<File>, RunError> {
    // a device that a link leads to may act on being opened
    let file = match regular::open_unlinked(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("open", path),
    };
    // Shared, so that two readers asking at once do not see each other.
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => Ok(Some(file)),
        Err(TryLockError::Error(source)) => Err(told(source)).context("lock", path),
    }
}

/// The system's answer to who would lock a file, and what to do about it: file servers may have no locks.
fn told(error: io::Error) -> io::Error {
    let without = [Errno::NOSYS, Errno::NOLCK, Errno::OPNOTSUPP].map(|errno| Some(errno.raw_os_error()));
    if !without.contains(&error.raw_os_error()) {
        return error;
    }
    let problem = format!(
        "its file system gives no locks ({error}): mount it with them, as Lustre with `-o flock`, or name a directory \
         of another one with --runs-dir"
    );
    io::Error::new(error.kind(), problem)
}

/// The text of a lock file, unless it names a process of this machine that is gone: then who holds the lock has not
/// written it, as who may only read the file cannot.
fn words_of_holder(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // The text is a courtesy: where it cannot be read, the lock still counts.
    let read = file.rewind().and_then(|()| file.take(MOST_WORDS).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    match text.lines().next().unwrap_or_default().trim() {
        line if read.is_err() || line.is_empty() => "another process".to_owned(),
        line if is_gone(line) => {
            format!("a process that has not written the lock file ({line}, and has ended)")
        }
        line => line.to_owned(),
    }
}

/// Whether a line of [`Lock::acquire`] names a process of this machine that does not exist.
fn is_gone(line: &str) -> bool {
    let named =
        line.strip_prefix("process ").and_then(|rest| rest.split_once(&format!(" on {} ", facts::host())));
    let process = named.and_then(|(id, _)| Pid::from_raw(id.parse().ok()?));
    process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_refused_and_told_of_the_first() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join(FILE);
        let run = OpenDir::open(dir.path()).expect("open");
        assert!(!is_held(&path).expect("no file yet"));
        let first = Lock::acquire(&run).expect("free");
        assert!(is_held(&path).expect("held"));
        let told = holder(&path).expect("held").expect("a holder");
        assert!(told.starts_with(&format!("process {} on ", std::process::id())), "{told}");
        let error = Lock::acquire(&run).expect_err("held");
        assert!(error.is_locked() && !error.is_usage());
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        assert!(!is_held(&path).expect("free") && holder(&path).expect("free").is_none());
        Lock::acquire(&run).expect("free again, whatever the file says");
    }

    #[test]
    fn a_process_that_has_ended_is_not_named_as_the_holder() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join(FILE);
        let mut ended = std::process::Command::new("true").spawn().expect("a process");
        ended.wait().expect("it ends");
        let words =
            |process: u32, host: &str| format!("process {process} on {host} since 2026-01-01T00:00:00Z");
        let told = |line: &str| {
            std::fs::write(&path, format!("{line}\n")).expect("write");
            // as who may only read the file
            let other = File::open(&path).expect("open");
            other.lock().expect("free");
            holder(&path).expect("held").expect("a holder")
        };
        let (here, gone) = (facts::host(), ended.id());
        for line in [words(gone, "elsewhere"), words(std::process::id(), &here)] {
            assert_eq!(told(&line), line);
        }
        let line = words(gone, &here);
        assert_eq!(
            told(&line),
            format!("a process that has not written the lock file ({line}, and has ended)")
        );
    }

    #[test]
    fn probing_does_not_keep_a_writer_out() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join(FILE);
        let run = OpenDir::open(dir.path()).expect("open");
        std::fs::write(&path, "").expect("write");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..500 {
                    is_held(&path).expect("probe");
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            for _ in 0..200 {
                drop(Lock::acquire(&run).expect("only probes in the way"));
            }
        });
    }
}
