//! Deleting files and whole directories.
//!
//! A name is gone before anything that it stood for is, so nothing half-deleted carries a real name. Everything is
//! deleted by the handles of directories: whatever somebody puts in the place of one meanwhile, such as a link, nothing
//! is deleted elsewhere.

use super::error::Context;
use super::files::temporary_name;
use super::{RunError, fault, lock};
use crate::regular::OpenDir;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};

/// How many directories are held open at a time.
const MOST_LEVELS: usize = 32;

/// Deletes a file or a directory tree; its name is gone before anything in it is.
///
/// Fault points: `before_delete`, `mid_delete` (before each file of a directory).
pub fn remove(dir: &OpenDir, name: impl AsRef<OsStr>, scope: &str) -> Result<(), RunError> {
    let name = name.as_ref();
    let path = dir.join(name);
    let doomed = hide(dir, name, scope).context("delete", &path)?;
    delete(dir, &doomed, scope).context("delete", &path)
}

/// Takes the name from what is to be deleted, durably, and returns the one that it has until then.
///
/// Fault point: `before_delete`.
pub fn hide(dir: &OpenDir, name: &OsStr, scope: &str) -> io::Result<OsString> {
    fault::point(scope, "before_delete")?;
    let doomed = temporary_name(name);
    dir.rename(name, &doomed)?;
    dir.sync()?;
    Ok(doomed)
}

/// Deletes a file or a directory tree that nothing needs any more. What is gone already is no error: another process
/// may delete the same.
///
/// Fault point: `mid_delete` (before each file of a directory).
pub fn delete(dir: &OpenDir, name: impl AsRef<OsStr>, scope: &str) -> io::Result<()> {
    let name = name.as_ref();
    gone(dir.inside(name).map_or_else(
        |error| if is_no_directory(&error) { dir.remove_file(name) } else { Err(error) },
        |top| {
            // what lay too deep lies in the top now, and is deleted from there
            while empty(&top, &top, 1, scope)? {}
            dir.remove_dir(name)
        },
    ))
}

/// Deletes what is in a directory of a tree. What lies deeper than [`MOST_LEVELS`] is moved to the top: returns whether
/// anything was.
fn empty(dir: &OpenDir, top: &OpenDir, level: usize, scope: &str) -> io::Result<bool> {
    let mut moved = false;
    let mut names = dir.names()?;
    // a run is known by its lock to the end
    names.sort_by_key(|name| name == lock::FILE);
    for name in names {
        fault::point(scope, "mid_delete")?;
        let deleted = match dir.inside(&name) {
            Err(error) if is_no_directory(&error) => dir.remove_file(&name),
            Err(error) => Err(error),
            Ok(_) if level == MOST_LEVELS => {
                moved = true;
                dir.rename_into(&name, top, temporary_name(OsStr::new("deep")))
            }
            Ok(inner) => {
                moved |= empty(&inner, top, level + 1, scope)?;
                dir.remove_dir(&name)
            }
        };
        gone(deleted)?;
    }
    Ok(moved)
}

/// Whether a name is that of a file, or of a link, wherever that leads.
fn is_no_directory(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotADirectory | ErrorKind::InvalidInput)
}

fn gone(deleted: io::Result<()>) -> io::Result<()> {
    match deleted {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        deleted => deleted,
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::tests::names;
    use super::*;
    use std::fs;

    #[test]
    fn a_tree_goes_and_what_its_links_lead_to_stays() {
        let above = tempfile::tempdir().expect("tempdir");
        let dir = OpenDir::open(above.path()).expect("open");
        let tree = above.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).expect("mkdir");
        fs::write(tree.join("a/b/file"), "x").expect("write");
        fs::create_dir(above.path().join("other")).expect("mkdir");
        fs::write(above.path().join("other/file"), "x").expect("write");
        std::os::unix::fs::symlink("../../other", tree.join("a/link")).expect("link");
        std::os::unix::fs::symlink("nowhere", tree.join("dangling")).expect("link");
        std::os::unix::fs::symlink("other", above.path().join("outer")).expect("link");
        remove(&dir, "tree", "test").expect("a tree");
        remove(&dir, "outer", "test").expect("a link");
        assert_eq!(names(above.path()), ["other"]);
        assert_eq!(names(&above.path().join("other")), ["file"]);
        remove(&dir, "other", "test").expect("a tree");
        assert!(remove(&dir, "other", "test").is_err());
        delete(&dir, "other", "test").expect("gone already");
    }

    #[test]
    fn a_tree_may_be_deeper_than_the_files_that_a_process_may_open() {
        let above = tempfile::tempdir().expect("tempdir");
        let dir = OpenDir::open(above.path()).expect("open");
        // deeper than a path may be long
        dir.make("deep").expect("mkdir");
        let mut inner = dir.inside("deep").expect("open");
        for level in 0..1100 {
            inner.make("d").expect("mkdir");
            if level % 300 == 0 {
                inner.create_file("file").expect("create");
            }
            inner = inner.inside("d").expect("open");
        }
        drop(inner);
        remove(&dir, "deep", "test").expect("deleted");
        assert_eq!(names(above.path()), [""; 0]);
    }
}
