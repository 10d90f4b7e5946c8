//! Deleting and copying whole directories.

use super::{OFlags, OpenDir, temporary_name};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};

/// How many directories are held open at a time.
const MOST_LEVELS: usize = 32;

/// What happens on the way.
struct Deletion<'a> {
    top: OpenDir,
    last: &'a str,
    before_each: &'a dyn Fn() -> io::Result<()>,
}

impl OpenDir {
    /// Deletes a file, a link or a whole directory. Whatever somebody puts in the place of a directory meanwhile, such
    /// as a link, nothing is deleted elsewhere. What is gone already is no error: another process may delete the same.
    ///
    /// In every directory, the entry named `last` goes last. `before_each` is called before each entry of a directory.
    ///
    /// # Errors
    /// The system's, and those of `before_each`.
    pub fn remove_tree(
        &self,
        name: impl AsRef<OsStr>,
        last: &str,
        before_each: &dyn Fn() -> io::Result<()>,
    ) -> io::Result<()> {
        let name = name.as_ref();
        gone(match self.inside(name) {
            Err(error) if is_no_directory(&error) => self.remove_file(name),
            Err(error) => Err(error),
            Ok(top) => Deletion { top, last, before_each }.run().and_then(|()| self.remove_dir(name)),
        })
    }

    /// Gives a directory a name that nothing has. Where an overlay does not rename it, because it lies in a layer
    /// below, it is copied and then deleted, as `mv` does.
    ///
    /// # Errors
    /// The system's; [`ErrorKind::InvalidInput`] for a link in what must be copied.
    pub fn rename_dir(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        match self.rename(from, to) {
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {}
            renamed => return renamed,
        }
        if !self.make(to)? {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.inside(from)?.copy_into(&self.inside(to)?)?;
        self.remove_tree(from, "", &|| Ok(()))
    }

    fn copy_into(&self, other: &Self) -> io::Result<()> {
        for name in self.names()? {
            match self.inside(&name) {
                Ok(inner) => {
                    other.make(&name)?;
                    inner.copy_into(&other.inside(&name)?)?;
                }
                Err(error) if is_no_directory(&error) => {
                    let mut found = self.open_file(&name, OFlags::RDONLY)?;
                    let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                    let mut copy = other.open_file(&name, new)?;
                    io::copy(&mut found, &mut copy)?;
                    copy.sync_all()?;
                }
                Err(error) => return Err(error),
            }
        }
        other.sync()
    }

    /// [`remove_tree`](Self::remove_tree) of a directory that is held open, if it still has this name: what somebody
    /// has put in its place stays. The entry named `last` is the file of the lock, which `lock` holds.
    ///
    /// # Errors
    /// The system's, and those of `before_each`.
    pub fn remove_held(
        &self,
        name: impl AsRef<OsStr>,
        held: &Self,
        before_each: &dyn Fn() -> io::Result<()>,
        (last, lock): (&str, impl Sized),
    ) -> io::Result<()> {
        let name = name.as_ref();
        gone(match self.inside(name) {
            Ok(top) if top.is(held)? => {
                Deletion { top, last, before_each }.run().and_then(|()| self.remove_emptied(name, lock))
            }
            Ok(_) => Ok(()),
            Err(error) if is_no_directory(&error) => Ok(()),
            Err(error) => Err(error),
        })
    }

    /// Removes a directory from which all was deleted, and in which this process had `lock` open. File servers keep
    /// what is open under another name in the directory, as NFS does with `.nfs…`, so it is closed where the
    /// directory would stay. What another process has made there by then does stay.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_emptied(&self, name: impl AsRef<OsStr>, lock: impl Sized) -> io::Result<()> {
        match self.remove_dir(&name) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                drop(lock);
                self.remove_dir(name)
            }
            removed => removed,
        }
    }
}

impl Deletion<'_> {
    /// Deletes all that is in the top.
    fn run(&self) -> io::Result<()> {
        // what lay too deep lies in the top then, and is deleted from there
        while self.empty(&self.top, 1)? {}
        Ok(())
    }

    /// Deletes what is in a directory. What lies deeper than [`MOST_LEVELS`] is moved to the top: returns whether
    /// anything was.
    fn empty(&self, dir: &OpenDir, level: usize) -> io::Result<bool> {
        let mut moved = false;
        let mut names = dir.names()?;
        names.sort_by_key(|name| name == self.last);
        for name in names {
            (self.before_each)()?;
            let deleted = match dir.inside(&name) {
                Err(error) if is_no_directory(&error) => dir.remove_file(&name),
                Err(error) => Err(error),
                Ok(_) if level == MOST_LEVELS => {
                    moved = true;
                    // the next removal of a run finishes one that was killed, if only temporaries are left in it
                    dir.rename_into(&name, &self.top, temporary_name(OsStr::new("deep")))
                }
                Ok(inner) => {
                    moved |= self.empty(&inner, level + 1)?;
                    dir.remove_dir(&name)
                }
            };
            gone(deleted)?;
        }
        Ok(moved)
    }
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
    use super::*;
    use std::fs;

    #[test]
    fn a_tree_goes_and_what_its_links_lead_to_stays() {
        let above = tempfile::tempdir().expect("tempdir");
        let dir = OpenDir::open(above.path()).expect("open");
        let tree = above.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).expect("mkdir");
        for file in ["a/b/file", "a/b/last", "first"] {
            fs::write(tree.join(file), "x").expect("write");
        }
        fs::create_dir(above.path().join("other")).expect("mkdir");
        fs::write(above.path().join("other/file"), "x").expect("write");
        std::os::unix::fs::symlink("../../other", tree.join("a/link")).expect("link");
        std::os::unix::fs::symlink("nowhere", tree.join("dangling")).expect("link");
        std::os::unix::fs::symlink("other", above.path().join("outer")).expect("link");
        let entries = std::cell::Cell::new(0);
        let count = || {
            entries.set(entries.get() + 1);
            let file = tree.join("a/b/file");
            assert!(tree.join("a/b/last").exists() || !file.exists(), "`last` goes last");
            Ok(())
        };
        dir.remove_tree("tree", "last", &count).expect("a tree");
        assert_eq!(entries.get(), 7);
        dir.remove_tree("outer", "", &|| Ok(())).expect("a link");
        assert_eq!(dir.names().expect("read"), ["other"]);
        assert!(above.path().join("other/file").exists());
        dir.remove_tree("other", "", &|| Ok(())).expect("a tree");
        dir.remove_tree("other", "", &|| Ok(())).expect("gone already");
        assert_eq!(dir.names().expect("read"), [""; 0]);
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
        dir.remove_tree("deep", "", &|| Ok(())).expect("deleted");
        assert_eq!(dir.names().expect("read"), [""; 0]);
    }
}
