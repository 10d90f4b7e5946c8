//! Files and directories that appear whole or not at all.
//!
//! Every write of a run goes through here. What is new is made under a temporary name in the same directory, synced,
//! and renamed; what is deleted is renamed first, so nothing half-written or half-deleted ever carries a real name.
//! After a crash, [`sweep`] removes what was left under temporary names; only the holder of the run's lock may.
//!
//! Each function takes a `scope`, the prefix of its fault points: `scope.before_rename` and the like.

use super::RunError;
use super::error::Context;
use super::{fault, lock};
use crate::regular;
use rustix::fs::{self as unix, AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const TEMPORARY: &str = ".tmp-";
/// A directory that is being replaced: still good until its successor has the name.
const OLD: &str = ".old-";

/// How directories are opened whose entries are deleted.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Writes a file atomically and durably.
///
/// Fault points: `mid_write`, `before_rename`, `after_rename`.
pub fn write_atomic(path: &Path, bytes: &[u8], scope: &str) -> Result<(), RunError> {
    let temporary = temporary_name(path);
    let written = (|| {
        // a name that something else has taken is not written through
        let _ = fs::remove_file(&temporary);
        let mut file = File::create_new(&temporary)?;
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        file.write_all(head)?;
        fault::point(scope, "mid_write")?;
        file.write_all(tail)?;
        file.sync_all()?;
        fault::point(scope, "before_rename")?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        // The first error is the one to report; a leftover is swept when the run is next opened.
        let _ = fs::remove_file(&temporary);
    }
    written.context("write", path)?;
    sync_dir(parent(path))?;
    fault::point(scope, "after_rename").context("write", path)
}

/// A directory being filled under a temporary name. Dropped without [`publish`](NewDir::publish), it is removed.
#[derive(Debug)]
pub struct NewDir {
    temporary: PathBuf,
    target: PathBuf,
    published: bool,
}

impl NewDir {
    /// Makes the temporary directory beside `target`. The directory above is created if it is missing, but none above
    /// that: what was moved away must not come into being again.
    pub fn create(target: &Path) -> Result<Self, RunError> {
        let above = parent(target);
        regular::refuse_link(above).context("use", above)?;
        match fs::create_dir(above) {
            Ok(()) => sync_dir(parent(above))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).context("create", above),
        }
        let temporary = temporary_name(target);
        fs::create_dir(&temporary).context("create", &temporary)?;
        Ok(Self { temporary, target: target.to_owned(), published: false })
    }

    /// Where the files go meanwhile.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Gives the directory its name, replacing one that has it. The files must have been synced by their writers.
    ///
    /// Fault points: `before_rename`, `mid_replace`, `after_rename`.
    pub fn publish(mut self, scope: &str) -> Result<(), RunError> {
        sync_dir(&self.temporary)?;
        fault::point(scope, "before_rename").context("publish", &self.target)?;
        let parent = parent(&self.target);
        let old = parent.join(prefixed(OLD, &self.target));
        let replaces = self.target.exists();
        if replaces {
            fs::rename(&self.target, &old).context("rename", &self.target)?;
            fault::point(scope, "mid_replace").context("publish", &self.target)?;
        }
        fs::rename(&self.temporary, &self.target).context("publish", &self.target)?;
        self.published = true;
        sync_dir(parent)?;
        fault::point(scope, "after_rename").context("publish", &self.target)?;
        if replaces { remove(&old, scope) } else { Ok(()) }
    }
}

impl Drop for NewDir {
    fn drop(&mut self) {
        if !self.published {
            // Best effort: the next opening of the run sweeps what stays.
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// Deletes a file or a directory tree; its name is gone before anything in it is.
///
/// Fault points: `before_delete`, `mid_delete` (before each file of a directory).
pub fn remove(path: &Path, scope: &str) -> Result<(), RunError> {
    fault::point(scope, "before_delete").context("delete", path)?;
    let doomed = temporary_name(path);
    fs::rename(path, &doomed).context("delete", path)?;
    sync_dir(parent(path))?;
    delete(&doomed, scope).context("delete", path)
}

/// Deletes a file or a directory tree that nothing needs any more. What is gone already is no error: another process
/// may delete the same.
///
/// Fault point: `mid_delete` (before each file of a directory).
pub(super) fn delete(path: &Path, scope: &str) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default();
    let above = unix::open(parent(path), DIRECTORY, Mode::empty())?;
    delete_in(above.as_fd(), &CString::new(name.as_encoded_bytes())?, scope)
}

/// Deletes by the handles of directories: whatever somebody puts in the place of one meanwhile, such as a link, nothing
/// is deleted elsewhere.
fn delete_in(above: BorrowedFd, name: &CStr, scope: &str) -> io::Result<()> {
    let delete = || -> io::Result<()> {
        let dir = match unix::openat(above, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(dir) => dir,
            // a file, or a link, wherever that leads
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(unix::unlinkat(above, name, AtFlags::empty())?),
            Err(error) => return Err(error.into()),
        };
        let mut names = Vec::new();
        for entry in Dir::read_from(&dir)? {
            names.push(entry?.file_name().to_owned());
        }
        names.retain(|name| ![&b"."[..], b".."].contains(&name.as_bytes()));
        // a run is known by its lock to the end
        names.sort_by_key(|name| name.as_bytes() == lock::FILE.as_bytes());
        for name in names {
            fault::point(scope, "mid_delete")?;
            delete_in(dir.as_fd(), &name, scope)?;
        }
        Ok(unix::unlinkat(above, name, AtFlags::REMOVEDIR)?)
    };
    match delete() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    }
}

/// Whether a name is that of something half-written or half-deleted.
pub(super) fn is_temporary(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(TEMPORARY.as_bytes())
}

/// Cleans a directory after a crash: temporaries are deleted, and a directory that was being replaced gets its name
/// back unless its successor has it. Only for the holder of the run's lock.
pub fn sweep(dir: &Path) -> Result<(), RunError> {
    for entry in fs::read_dir(dir).context("read", dir)? {
        let entry = entry.context("read", dir)?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.starts_with(TEMPORARY) {
            delete(&path, "sweep").context("delete", &path)?;
        } else if let Some(name) = name.strip_prefix(OLD) {
            let target = dir.join(name);
            if target.exists() {
                remove(&path, "sweep")?;
            } else {
                fs::rename(&path, &target).context("restore", &target)?;
                sync_dir(dir)?;
            }
        }
    }
    Ok(())
}

/// Deletes the temporary files in a directory that several processes may be writing into, except those that may still
/// be in use: only a file that has not been written to for `age` is deleted. Errors are ignored: a file that cannot be
/// deleted stays.
pub fn sweep_stale(dir: &Path, age: Duration) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with(TEMPORARY)) {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        if modified.is_ok_and(|at| at.elapsed().is_ok_and(|since| since >= age)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Creates a directory and its missing ancestors, and makes its name durable.
pub fn create_dir_all(dir: &Path) -> Result<(), RunError> {
    if dir.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(dir).context("create", dir)?;
    sync_dir(parent(dir))
}

/// Makes the names in a directory durable.
pub fn sync_dir(dir: &Path) -> Result<(), RunError> {
    // Elsewhere directories cannot be opened, and renames are journalled by the system.
    if cfg!(unix) { File::open(dir).and_then(|d| d.sync_all()).context("sync", dir) } else { Ok(()) }
}

/// The part of a growing text file that its writer has completed: up to and with the last newline.
pub fn whole_lines(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().rposition(|&b| b == b'\n').map_or(0, |last| last + 1)]
}

/// The directory that holds `path`; `.` for a bare name.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn prefixed(prefix: &str, path: &Path) -> String {
    format!("{prefix}{}", path.file_name().unwrap_or(OsStr::new("file")).to_string_lossy())
}

fn temporary_name(path: &Path) -> PathBuf {
    // Threads of one process may write the same name at once.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    parent(path).join(format!("{}-{}-{n}", prefixed(TEMPORARY, path), std::process::id()))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The names in a directory, sorted.
    pub(in crate::run) fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .expect("read")
            .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_nothing_else_stays() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("a.txt");
        write_atomic(&path, b"one", "test").expect("first");
        write_atomic(&path, b"two", "test").expect("second");
        assert_eq!(fs::read(&path).expect("read"), b"two");
        assert_eq!(names(dir.path()), ["a.txt"]);
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_temporary() {
        let dir = tempfile::tempdir().expect("tempdir");
        // Renaming a file over a directory fails.
        let path = dir.path().join("taken");
        fs::create_dir(&path).expect("mkdir");
        let error = write_atomic(&path, b"x", "test").expect_err("a directory is in the way");
        assert!(error.to_string().contains("taken"), "{error}");
        assert_eq!(names(dir.path()), ["taken"]);
    }

    #[test]
    fn a_directory_appears_on_publication_only_and_replaces_its_predecessor() {
        let dir = tempfile::tempdir().expect("tempdir");
        let target = dir.path().join("deep/target");
        for content in ["one", "two"] {
            let new = NewDir::create(&target).expect("create");
            fs::write(new.path().join("f"), content).expect("write");
            assert_ne!(fs::read_to_string(target.join("f")).unwrap_or_default(), content);
            new.publish("test").expect("publish");
            assert_eq!(fs::read_to_string(target.join("f")).expect("read"), content);
        }
        drop(NewDir::create(&target).expect("create"));
        assert_eq!(names(&dir.path().join("deep")), ["target"]);
    }

    #[test]
    fn a_stale_temporary_goes_and_a_fresh_one_stays() {
        let dir = tempfile::tempdir().expect("tempdir");
        for name in [".tmp-a", ".tmp-b", "c"] {
            let file = File::create(dir.path().join(name)).expect("create");
            let age = Duration::from_secs(if name == ".tmp-b" { 0 } else { 7200 });
            file.set_modified(std::time::SystemTime::now() - age).expect("a time");
        }
        sweep_stale(dir.path(), Duration::from_secs(3600));
        assert_eq!(names(dir.path()), [".tmp-b", "c"]);
        sweep_stale(&dir.path().join("missing"), Duration::ZERO);
    }

    #[test]
    fn a_sweep_deletes_temporaries_and_undoes_a_half_done_replacement() {
        let dir = tempfile::tempdir().expect("tempdir");
        for name in [".tmp-step-7-99-0", ".old-step-1", "step-1", ".old-step-2"] {
            fs::create_dir(dir.path().join(name)).expect("mkdir");
            fs::write(dir.path().join(name).join("f"), name).expect("write");
        }
        fs::write(dir.path().join(".tmp-run.json-99-1"), "{").expect("write");
        sweep(dir.path()).expect("sweep");
        assert_eq!(names(dir.path()), ["step-1", "step-2"]);
        assert_eq!(fs::read_to_string(dir.path().join("step-1/f")).expect("read"), "step-1");
        assert_eq!(fs::read_to_string(dir.path().join("step-2/f")).expect("read"), ".old-step-2");
    }
}
