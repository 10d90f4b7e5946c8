//! Where what is found out about this machine is remembered: small JSON files in the user's cache.
//!
//! The cache is a convenience. A file that cannot be read counts as empty, and what cannot be written is found out
//! again next time. What lies there is believed, and written in, so another user's directory is none, nor is one that
//! another user's link leads to.

use crate::regular::{self, OFlags, OpenDir, open_followed};
use crate::run::files;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Held while a file is read, changed and written.
const LOCK: &str = "lock";
/// More than any of the files holds, in bytes.
const LONGEST: u64 = 4 << 20;
/// How often the lock is tried before the change is given up, and the pause in between.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// A directory of remembered findings, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cache {
    dir: Option<PathBuf>,
}

impl Cache {
    /// The user's cache, see [`cache_dir`].
    pub fn of_user() -> Self {
        Self { dir: cache_dir() }
    }

    /// A directory, which need not exist yet.
    pub fn at(dir: &Path) -> Self {
        Self { dir: Some(dir.to_owned()) }
    }

    /// What a file remembers, by key.
    pub(super) fn read<T: DeserializeOwned>(&self, file: &str) -> BTreeMap<String, T> {
        let dir = self.dir.as_deref().and_then(|dir| own(dir).ok());
        dir.map(|dir| remembered(&dir, file)).unwrap_or_default()
    }

    /// Changes what a file remembers. Other processes that change it at the same time wait.
    pub(super) fn update<T: Serialize + DeserializeOwned>(
        &self,
        file: &str,
        change: impl FnOnce(&mut BTreeMap<String, T>),
    ) {
        let Some(Ok(dir)) = self.dir.as_deref().map(make) else { return };
        let Some(_lock) = locked(&dir) else { return };
        // of processes that were killed while they wrote: all others wait for the lock
        dir.sweep_temporaries(regular::STALE);
        let mut remembered = remembered(&dir, file);
        change(&mut remembered);
        if let Ok(text) = serde_json::to_string_pretty(&remembered) {
            // a machine without a writable cache measures each time
            let _ = files::write_in(&dir, file, text.as_bytes(), "calibration");
        }
    }
}

/// What a file of the directory remembers, by key.
fn remembered<T: DeserializeOwned>(dir: &OpenDir, file: &str) -> BTreeMap<String, T> {
    let bytes = dir.read(file, LONGEST).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// The lock file, locked; `None` where that is not to be had.
fn locked(dir: &OpenDir) -> Option<File> {
    let file = dir.open_file(LOCK, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE).ok()?;
    (0..ATTEMPTS).find_map(|attempt| {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        file.try_lock().is_ok().then_some(())
    })?;
    Some(file)
}

/// The directory, if it is the user's own. He may read what lies on a disk that he cannot write.
fn own(dir: &Path) -> io::Result<OpenDir> {
    let found = open_followed(dir, files::parent(dir))?;
    match found.is_of_user()? {
        true => Ok(found),
        false => Err(ErrorKind::PermissionDenied.into()),
    }
}

/// The directory, made if there is none, if it is the user's own.
fn make(dir: &Path) -> io::Result<OpenDir> {
    match own(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound && !dir.is_symlink() => {
            OpenDir::make_all(files::parent(dir))?.make(dir.file_name().unwrap_or_default())?;
            own(dir)
        }
        found => found,
    }
}

/// Whether a directory is the user's own, as one is that he has yet to make.
pub fn is_own(dir: &Path) -> bool {
    own(dir).is_ok() || !dir.exists() && !dir.is_symlink()
}

/// The [`cache_dir`] if it is the user's own.
pub fn own_cache_dir() -> Option<PathBuf> {
    cache_dir().filter(|dir| is_own(dir))
}

/// The user's cache directory, `$XDG_CACHE_HOME/runner` or `~/.cache/runner`; `None` if neither variable is set.
pub fn cache_dir() -> Option<PathBuf> {
    let dir = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let base = dir("XDG_CACHE_HOME").or_else(|| Some(dir("HOME")?.join(".cache")))?;
    Some(base.join("runner"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    #[test]
    fn changes_at_the_same_time_are_all_kept() {
        let dir = tempfile::tempdir().expect("tempdir");
        let cache = Cache::at(&dir.path().join("deep/cache"));
        std::thread::scope(|scope| {
            for n in 0..8_u32 {
                let cache = &cache;
                scope.spawn(move || {
                    cache.update("x.json", |all| {
                        all.insert(n.to_string(), n);
                    })
                });
            }
        });
        assert_eq!(cache.read::<u32>("x.json").len(), 8);
    }

    #[test]
    fn without_a_directory_nothing_is_remembered_and_nothing_fails() {
        let cache = Cache::default();
        cache.update("x.json", |all| {
            all.insert("a".to_owned(), 1_u32);
        });
        assert!(cache.read::<u32>("x.json").is_empty());
    }

    #[test]
    fn what_is_no_file_counts_as_empty_and_is_replaced() {
        let dir = tempfile::tempdir().expect("tempdir");
        let cache = Cache::at(dir.path());
        let remember = || {
            cache.update("x.json", |all| {
                all.insert("a".to_owned(), 1_u32);
            });
            cache.read::<u32>("x.json").len()
        };
        let pipe = |name: &str| {
            let made = std::process::Command::new("mkfifo").arg(dir.path().join(name)).status();
            assert!(made.expect("mkfifo is there").success());
        };
        pipe("x.json");
        assert_eq!((cache.read::<u32>("x.json").len(), remember()), (0, 1));
        std::fs::remove_file(dir.path().join("x.json")).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("x.json")).expect("a link");
        assert_eq!((cache.read::<u32>("x.json").len(), remember()), (0, 1));
        // without its lock nothing is remembered, and nothing waits for it
        std::fs::remove_file(dir.path().join("x.json")).expect("removed");
        std::fs::remove_file(dir.path().join(LOCK)).expect("it was made");
        pipe(LOCK);
        assert_eq!(remember(), 0);
    }

    #[test]
    fn nothing_is_made_through_links_or_in_a_directory_of_another_user() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = |name: &str| dir.path().join(name);
        let remember = |name: &str| {
            let cache = Cache::at(&path(name));
            cache.update("x.json", |all| {
                all.insert("a".to_owned(), 1_u32);
            });
            cache.read::<u32>("x.json").len()
        };
        std::fs::create_dir_all(path("disk")).expect("made");
        symlink(path("elsewhere"), path("disk").join(LOCK)).expect("a link");
        assert_eq!((remember("disk"), path("elsewhere").exists()), (0, false));
        std::fs::remove_file(path("disk").join(LOCK)).expect("removed");
        // what one cannot write is one's own all the same
        let rights = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::write(path("disk/y.json"), "{\"a\": 1}").expect("written");
        std::fs::set_permissions(path("disk"), rights(0o555)).expect("it is ours");
        assert!(is_own(&path("disk")) && Cache::at(&path("disk")).read::<u32>("y.json").len() == 1);
        std::fs::set_permissions(path("disk"), rights(0o755)).expect("it is ours");
        symlink("disk", path("mine")).expect("a link");
        assert_eq!((remember("mine"), is_own(&path("mine")), is_own(&path("none"))), (1, true, true));
        // only root can give something away
        std::fs::create_dir(path("theirs")).expect("made");
        std::fs::write(path("theirs/x.json"), "{\"b\": 1}").expect("written");
        symlink("disk", path("link")).expect("a link");
        symlink("elsewhere", path("dangling")).expect("a link");
        if ["theirs", "link", "dangling"].iter().all(|name| lchown(path(name), Some(12345), None).is_ok()) {
            assert_eq!(["theirs", "link", "dangling"].map(remember), [0; 3]);
            assert_eq!(["theirs", "link", "dangling"].map(|name| is_own(&path(name))), [false; 3]);
            assert!(!path("theirs").join(LOCK).exists() && !path("elsewhere").exists());
        }
    }
}
