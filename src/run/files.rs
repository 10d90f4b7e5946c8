//! Files and directories that appear whole or not at all.
//!
//! Every write of a run goes through here. What is new is made under a temporary name in the same directory, synced,
//! and renamed, so nothing half-written ever carries a real name. After a crash, [`sweep`] removes what was left under
//! temporary names; only the holder of the run's lock may.
//!
//! Each function takes a `scope`, the prefix of its fault points: `scope.before_rename` and the like.

use super::deletion::{self, delete};
use super::error::Context;
use super::{RunError, fault};
use crate::regular::{self, OpenDir, is_temporary, temporary_name};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

/// A directory that is being replaced: still good until its successor has the name.
const OLD: &str = ".old-";

/// Writes a file of a directory atomically and durably.
///
/// Fault points: `mid_write`, `before_rename`, `after_rename`.
pub fn write_in(dir: &OpenDir, name: impl AsRef<OsStr>, bytes: &[u8], scope: &str) -> Result<(), RunError> {
    let name = name.as_ref();
    let (path, temporary) = (dir.join(name), temporary_name(name));
    let written = (|| {
        // a name that something else has taken is not written through
        let _ = dir.remove_file(&temporary);
        let mut file = dir.create_file(&temporary)?;
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        file.write_all(head)?;
        fault::point(scope, "mid_write")?;
        file.write_all(tail)?;
        file.sync_all()?;
        fault::point(scope, "before_rename")?;
        dir.rename(&temporary, name)
    })();
    if written.is_err() {
        // The first error is the one to report; a leftover is swept when the run is next opened.
        let _ = dir.remove_file(&temporary);
    }
    written.context("write", &path)?;
    dir.sync().context("sync", dir.path())?;
    fault::point(scope, "after_rename").context("write", &path)
}

/// Writes a file atomically and durably, as [`write_in`] does.
pub fn write_atomic(path: &Path, bytes: &[u8], scope: &str) -> Result<(), RunError> {
    let dir = OpenDir::open(parent(path)).context("write", path)?;
    write_in(&dir, path.file_name().unwrap_or_default(), bytes, scope)
}

/// A directory being filled under a temporary name. Dropped without [`publish`](NewDir::publish), it is removed.
#[derive(Debug)]
pub struct NewDir {
    above: OpenDir,
    inside: OpenDir,
    temporary: OsString,
    target: String,
    published: bool,
}

impl NewDir {
    /// Makes the temporary directory in `above`, beside where `target` will be.
    pub fn create(above: OpenDir, target: &str) -> Result<Self, RunError> {
        let temporary = temporary_name(OsStr::new(target));
        let path = above.join(&temporary);
        if !above.make(&temporary).context("create", &path)? {
            // from a process that had the same number, and was killed
            delete(&above, &temporary, "sweep").context("delete", &path)?;
            above.make(&temporary).context("create", &path)?;
        }
        let inside = above.inside(&temporary).context("open", &path)?;
        Ok(Self { above, inside, temporary, target: target.to_owned(), published: false })
    }

    /// Where the files go meanwhile.
    pub fn dir(&self) -> &OpenDir {
        &self.inside
    }

    /// Gives the directory its name, replacing one that has it. The files must have been synced by their writers.
    ///
    /// Fault points: `before_rename`, `mid_replace`, `after_rename`.
    pub fn publish(mut self, scope: &str) -> Result<(), RunError> {
        let (above, target) = (&self.above, self.above.join(&self.target));
        self.inside.sync().context("sync", self.inside.path())?;
        fault::point(scope, "before_rename").context("publish", &target)?;
        let old = prefixed(OLD, OsStr::new(&self.target));
        let replaces = above.has(&self.target);
        if replaces {
            above.rename_dir(&self.target, &old).context("rename", &target)?;
            fault::point(scope, "mid_replace").context("publish", &target)?;
        }
        above.rename(&self.temporary, &self.target).context("publish", &target)?;
        self.published = true;
        above.sync().context("sync", above.path())?;
        fault::point(scope, "after_rename").context("publish", &target)?;
        if replaces { deletion::remove(above, &old, scope) } else { Ok(()) }
    }
}

impl Drop for NewDir {
    fn drop(&mut self) {
        if !self.published {
            // Best effort: the next opening of the run sweeps what stays.
            let _ = delete(&self.above, &self.temporary, "sweep");
        }
    }
}

/// Whether a name is one that [`sweep`] takes away.
pub(super) fn is_passing(name: &OsStr) -> bool {
    is_temporary(name) || name.as_encoded_bytes().starts_with(OLD.as_bytes())
}

/// Cleans a directory after a crash: temporaries are deleted, and a directory that was being replaced gets its name
/// back unless its successor has it. Only for the holder of the run's lock.
pub fn sweep(dir: &OpenDir) -> Result<(), RunError> {
    for name in dir.names().context("read", dir.path())? {
        let path = dir.join(&name);
        if is_temporary(&name) {
            deletion::delete_unless_kept(dir, &name, "sweep").context("delete", &path)?;
        } else if let Some(target) = name.to_str().and_then(|name| name.strip_prefix(OLD)) {
            if dir.has(target) {
                deletion::remove(dir, &name, "sweep")?;
            } else {
                dir.rename(&name, target).context("restore", &path)?;
                dir.sync().context("sync", dir.path())?;
            }
        }
    }
    Ok(())
}

/// Deletes the files that writers of this name have left half-written. Only for the one writer that there is; what
/// cannot be deleted stays.
pub(super) fn remove_temporaries(dir: &OpenDir, name: &str) {
    let is_left = |other: &OsString| {
        let rest = regular::meant(other).and_then(|meant| meant.to_str()?.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with('-'))
    };
    for left in dir.names().unwrap_or_default().iter().filter(|name| is_left(name)) {
        let _ = dir.remove_file(left);
    }
}

/// Creates a directory and its missing ancestors, and makes their names durable.
pub fn create_dir_all(dir: &Path) -> Result<(), RunError> {
    if dir.is_dir() {
        return Ok(());
    }
    OpenDir::make_all(dir).map(drop).context("create", dir)
}

/// Makes the names in a directory durable.
pub fn sync_dir(dir: &Path) -> Result<(), RunError> {
    OpenDir::open(dir).and_then(|dir| dir.sync()).context("sync", dir)
}

/// The part of a growing text file that its writer has completed: up to and with the last newline.
pub fn whole_lines(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().rposition(|&b| b == b'\n').map_or(0, |last| last + 1)]
}

/// The directory that holds `path`; `.` for a bare name.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn prefixed(prefix: &str, name: &OsStr) -> OsString {
    let mut prefixed = OsString::from(prefix);
    prefixed.push(name);
    prefixed
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

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
    fn a_file_may_have_any_name() {
        let dir = tempfile::tempdir().expect("tempdir");
        for name in [OsStr::from_bytes(b"\xff\xfe.svg"), OsStr::new(&"a".repeat(255))] {
            write_atomic(&dir.path().join(name), b"one", "test").expect("written");
            assert_eq!(fs::read(dir.path().join(name)).expect("read"), b"one");
        }
        assert_eq!(names(dir.path()).len(), 2);
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
        let target = dir.path().join("target");
        let create = || NewDir::create(OpenDir::open(dir.path()).expect("open"), "target").expect("create");
        for content in ["one", "two"] {
            let new = create();
            fs::write(new.dir().join("f"), content).expect("write");
            assert_ne!(fs::read_to_string(target.join("f")).unwrap_or_default(), content);
            new.publish("test").expect("publish");
            assert_eq!(fs::read_to_string(target.join("f")).expect("read"), content);
        }
        drop(create());
        assert_eq!(names(dir.path()), ["target"]);
    }

    #[test]
    fn a_sweep_deletes_temporaries_and_undoes_a_half_done_replacement() {
        let dir = tempfile::tempdir().expect("tempdir");
        for name in [".tmp-step-7-99-0", ".old-step-1", "step-1", ".old-step-2"] {
            fs::create_dir(dir.path().join(name)).expect("mkdir");
            fs::write(dir.path().join(name).join("f"), name).expect("write");
        }
        fs::write(dir.path().join(".tmp-run.json-99-1"), "{").expect("write");
        sweep(&OpenDir::open(dir.path()).expect("open")).expect("sweep");
        assert_eq!(names(dir.path()), ["step-1", "step-2"]);
        assert_eq!(fs::read_to_string(dir.path().join("step-1/f")).expect("read"), "step-1");
        assert_eq!(fs::read_to_string(dir.path().join("step-2/f")).expect("read"), ".old-step-2");
    }
}
