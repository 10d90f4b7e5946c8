//! The directory of encoded texts and of the remembered digests of files.
//!
//! What lies there is believed, so another user's directory is not used, whoever may write around it. The directory is
//! held open once it is found: what is put in its place then is neither read nor written.

use super::DataError;
use super::unfinished::dir_of;
use crate::regular::{OpenDir, open_followed};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A cache, which need not exist yet.
#[derive(Debug)]
pub struct Cache {
    dir: PathBuf,
    instead: Option<PathBuf>,
    found: OnceLock<Arc<OpenDir>>,
}

impl Cache {
    /// The cache in the directory `dir`, or else in `instead`: where `dir` is another user's, is reached by a link of
    /// another user, or cannot be written.
    #[must_use]
    pub fn new(dir: PathBuf, instead: Option<PathBuf>) -> Self {
        Self { dir, instead, found: OnceLock::new() }
    }

    /// The directory, if it is there.
    pub(super) fn find(&self) -> Option<Arc<OpenDir>> {
        if let Some(found) = self.found.get() {
            return Some(Arc::clone(found));
        }
        let found = match self.usual() {
            Err(error) if error.kind() == ErrorKind::NotFound && may_come(&self.dir) => None,
            Err(_) => OpenDir::open(self.instead.as_ref()?).and_then(own).ok(),
            Ok(dir) => Some(dir),
        };
        found.map(|found| self.keep(found))
    }

    /// The directory to write in, which is made if it is not there. Other users cannot look into it: texts that they
    /// may not read are encoded there, and they would not use it.
    ///
    /// # Errors
    /// It can neither be made nor opened.
    pub(super) fn make(&self) -> Result<Arc<OpenDir>, DataError> {
        let made = self.make_open()?;
        // where a disk has no such rights, nobody has them
        let _ = made.keep_private();
        Ok(made)
    }

    fn make_open(&self) -> Result<Arc<OpenDir>, DataError> {
        if let Some(found) = self.find() {
            return Ok(found);
        }
        let made = match self.make_usual().or_else(|_| self.usual()) {
            Err(error) => match self.make_instead() {
                Some(Ok(made)) => Ok(made),
                _ if error.kind() == ErrorKind::PermissionDenied => Err(io::Error::new(
                    error.kind(),
                    format!(
                        "{error}, and in your home directory none can be made: set XDG_CACHE_HOME to a directory that \
                         you may write"
                    ),
                )),
                None => Err(error),
                Some(failed) => failed,
            },
            made => made,
        };
        made.map(|made| self.keep(made)).map_err(DataError::write(&self.dir))
    }

    /// Deletes the temporary files of processes that were killed: those older than `age`.
    pub fn sweep(&self, age: Duration) {
        if let Some(dir) = self.find() {
            dir.sweep_temporaries(age);
        }
    }

    fn keep(&self, found: OpenDir) -> Arc<OpenDir> {
        Arc::clone(self.found.get_or_init(|| Arc::new(found)))
    }

    fn usual(&self) -> io::Result<OpenDir> {
        open_followed(&self.dir, dir_of(&self.dir)).and_then(own)
    }

    fn make_usual(&self) -> io::Result<OpenDir> {
        OpenDir::make_all(dir_of(&self.dir))?.make(self.dir.file_name().unwrap_or_default())?;
        self.usual()
    }

    fn make_instead(&self) -> Option<io::Result<OpenDir>> {
        let instead = self.instead.as_ref()?;
        Some(OpenDir::make_all(instead).and_then(own))
    }
}

/// The directory, if it is the user's own: others could read and exchange what is kept in theirs.
fn own(found: OpenDir) -> io::Result<OpenDir> {
    match found.is_of_user()? && found.may_write() {
        true => Ok(found),
        false => Err(io::Error::new(ErrorKind::PermissionDenied, "it is another user's")),
    }
}

/// Whether a directory that is not there can be made.
fn may_come(dir: &Path) -> bool {
    !dir.is_symlink() && OpenDir::open(dir_of(dir)).map_or(true, |above| above.may_write())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

    #[test]
    fn what_is_put_in_the_place_of_a_cache_is_neither_read_nor_written() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = |name: &str| dir.path().join(name);
        let cache = Cache::new(path("cache"), Some(path("own/texts")));
        assert!(cache.find().is_none() && !path("cache").exists(), "nothing is made to look");
        let held = cache.make().expect("made");
        let mode = |name: &str| fs::metadata(path(name)).expect("there").mode() & 0o777;
        assert_eq!(mode("cache"), 0o700);
        // as earlier versions have left it
        fs::set_permissions(path("cache"), fs::Permissions::from_mode(0o755)).expect("it is ours");
        cache.make().expect("there");
        assert_eq!(mode("cache"), 0o700);
        fs::rename(path("cache"), path("moved")).expect("moved");
        fs::create_dir(path("cache")).expect("another one");
        fs::write(path("cache/file"), "theirs").expect("written");
        let found = cache.find().expect("there");
        assert!(found.is(&held).expect("open") && !found.has("file"));
    }

    #[test]
    fn the_cache_of_another_user_and_one_behind_their_link_is_not_used() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = |name: &str| dir.path().join(name);
        let place = |name: &str| {
            let cache = Cache::new(path(name), Some(path("own/texts")));
            assert!(cache.find().is_none_or(|found| found.path() == path("own/texts")), "{name}");
            cache.make().expect("made").path().to_owned()
        };
        fs::create_dir_all(path("disk")).expect("made");
        symlink("disk", path("mine")).expect("a link");
        for (name, used) in [("new", "new"), ("gone/new", "gone/new"), ("disk", "disk"), ("mine", "mine")] {
            let cache = Cache::new(path(name), None);
            assert_eq!(cache.make().expect(name).path(), path(used), "{name}");
        }
        symlink("nowhere", path("dangling")).expect("a link");
        fs::write(path("file"), "").expect("a file");
        assert_eq!([place("dangling"), place("file")], [path("own/texts"), path("own/texts")]);
        assert!(Cache::new(path("file"), None).make().is_err());
        // only root can give something away
        fs::create_dir(path("theirs")).expect("made");
        symlink("disk", path("link")).expect("a link");
        let is_given = chown(path("theirs"), Some(12345), None).is_ok();
        if is_given && lchown(path("link"), Some(12345), None).is_ok() {
            assert_eq!([place("theirs"), place("link")], [path("own/texts"), path("own/texts")]);
            let cache = Cache::new(path("later"), Some(path("own/texts")));
            assert!(cache.find().is_none(), "it was not there to begin with");
            fs::rename(path("theirs"), path("later")).expect("renamed");
            assert_eq!(cache.make().expect("made").path(), path("own/texts"));
            fs::rename(path("later"), path("theirs")).expect("renamed");
            for instead in [None, Some(path("theirs"))] {
                let cache = Cache::new(path("theirs"), instead);
                assert!(cache.find().is_none(), "what is another user's is not read either");
                let refused = cache.make().expect_err("no other place");
                for says in ["another user's", "set XDG_CACHE_HOME to"] {
                    assert!(refused.to_string().contains(says), "{refused}");
                }
            }
        }
    }
}
