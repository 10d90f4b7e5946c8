//! Where what is found out about this machine is remembered: small JSON files in the user's cache.
//!
//! The cache is a convenience. A file that cannot be read counts as empty, and what cannot be written is found out
//! again next time.

use crate::regular::{self, OFlags, OpenDir};
use crate::run::files;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::File;
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
        let bytes = self.dir.as_ref().and_then(|dir| regular::read_within(&dir.join(file), LONGEST).ok());
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Changes what a file remembers. Other processes that change it at the same time wait.
    pub(super) fn update<T: Serialize + DeserializeOwned>(
        &self,
        file: &str,
        change: impl FnOnce(&mut BTreeMap<String, T>),
    ) {
        let Some(dir) = self.dir.as_ref().filter(|dir| std::fs::create_dir_all(dir).is_ok()) else { return };
        let Some(_lock) = locked(&dir.join(LOCK)) else { return };
        // of processes that were killed while they wrote: all others wait for the lock
        if let Ok(dir) = OpenDir::open(dir) {
            dir.sweep_temporaries(regular::STALE);
        }
        let mut remembered = self.read(file);
        change(&mut remembered);
        if let Ok(text) = serde_json::to_string_pretty(&remembered) {
            // a machine without a writable cache measures each time
            let _ = files::write_atomic(&dir.join(file), text.as_bytes(), "calibration");
        }
    }
}

/// The lock file, locked; `None` where that is not to be had.
fn locked(path: &Path) -> Option<File> {
    let file = regular::open_with(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE).ok()?;
    (0..ATTEMPTS).find_map(|attempt| {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        file.try_lock().is_ok().then_some(())
    })?;
    Some(file)
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
}
