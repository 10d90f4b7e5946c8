//! Notices that a file of tokens is changed while it is mapped.
//!
//! The system tells for next to nothing when a file was last changed. Where that has moved on, the contents are read
//! again: a touched, copied or linked file is still the same data, and a run of days goes on. What is trained on are
//! the bytes of the file that was opened, so another file at its path only matters if it holds something else.
//!
//! A guarded file is held open, so that it can be looked at when its path leads elsewhere. A process may hold so many
//! files only; of the others, what is mapped is looked at then.

use super::DataError;
use crate::regular;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Bytes that are read and hashed at a time.
const CHUNK: usize = 4 << 20;

/// A file that was changed this recently may be changed again without another time: the coarsest clock of a file system
/// that is still in use.
const YOUNG: Duration = Duration::from_secs(2);

/// Files that are held open by guards.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// A file that is held open.
struct Held(File);

impl Held {
    /// Holds a file, unless half of what the process may have open is held already.
    fn new(file: File) -> Option<Self> {
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most = most.map_or(usize::MAX, |most| usize::try_from(most / 2).unwrap_or(usize::MAX));
        let taken = HELD.fetch_update(Relaxed, Relaxed, |held| (held < most).then_some(held + 1));
        taken.is_ok().then_some(Self(file))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Relaxed);
    }
}

/// A file at one moment, as far as the system tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Device and inode.
    file: (u64, u64),
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
    /// Whether a further change might not show.
    is_young: bool,
}

impl From<&Metadata> for Stamp {
    fn from(meta: &Metadata) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::new(meta.ctime().try_into().unwrap_or(0), 0);
        Self {
            file: (meta.dev(), meta.ino()),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
            is_young: now.abs_diff(changed) <= YOUNG,
        }
    }
}

/// What a mapped file must stay.
pub(super) struct Guard {
    path: PathBuf,
    /// The file that is mapped, unless too many are open already.
    file: Option<Arc<Held>>,
    /// Whether another file at the path matters. The program's own cache may be emptied at any time.
    watches_path: bool,
    /// The part whose contents count, up to the end.
    from: u64,
    /// blake3 of that part.
    digest: blake3::Hash,
    bytes: u64,
    seen: Mutex<Seen>,
}

/// What was last found to hold the right contents.
#[derive(Clone, Copy)]
struct Seen {
    file: Stamp,
    /// Another file at the path.
    other: Option<Stamp>,
    /// Whether nothing but the map leads to the file, which was compared since.
    is_lost: bool,
}

impl Guard {
    /// Guards a file that was opened from `path` when it had this stamp, and whose contents from byte `from` on have
    /// this digest. The file is held open if there is room for it.
    pub(super) fn new(
        path: &Path,
        file: File,
        watches_path: bool,
        stamp: Stamp,
        (from, digest): (usize, blake3::Hash),
    ) -> Self {
        let seen = Mutex::new(Seen { file: stamp, other: None, is_lost: false });
        let from = from as u64;
        let file = Held::new(file).map(Arc::new);
        Self { path: path.into(), file, watches_path, from, digest, bytes: stamp.bytes, seen }
    }

    /// Another guard of the same file, which finds for itself that the file was changed.
    pub(super) fn twin(&self) -> Self {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            path: self.path.clone(),
            file: self.file.clone(),
            watches_path: self.watches_path,
            from: self.from,
            digest: self.digest,
            bytes: self.bytes,
            seen: Mutex::new(seen),
        }
    }

    /// Checks that the file, of which these bytes are `mapped`, is what it was. Reads its contents if `again`, or if the
    /// system says that something has been done to it; returns whether they were read.
    ///
    /// # Errors
    /// [`DataError::InUse`] says what has changed.
    pub(super) fn check(&self, again: bool, mapped: &[u8]) -> Result<bool, DataError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let at_path = std::fs::metadata(&self.path).map(|meta| Stamp::from(&meta));
        let now = match &self.file {
            Some(held) => Some(Stamp::from(&held.0.metadata().map_err(|error| self.unreadable(&error))?)),
            None => at_path.as_ref().ok().filter(|stamp| stamp.file == seen.file.file).copied(),
        };
        if let Some(now) = now.filter(|now| now.bytes != self.bytes) {
            let what = format!("it had {} bytes at the start and has {} now", self.bytes, now.bytes);
            return Err(self.changed(what));
        }
        let is_known = |before: &Stamp, now: &Stamp| {
            !before.is_young && Stamp { is_young: false, ..*now } == Stamp { is_young: false, ..*before }
        };
        let was_done = now.map_or(!seen.is_lost, |now| !is_known(&seen.file, &now));
        let was_read = again || was_done;
        if was_read {
            let is_same = match (&self.file, now) {
                (Some(held), _) => self.is_same(&held.0),
                (None, Some(_)) => regular::open(&self.path).and_then(|file| self.is_same(&file)),
                (None, None) => Ok(self.are_same(mapped)),
            };
            if !is_same.map_err(|error| self.unreadable(&error))? {
                return Err(self.changed("its contents are others than at the start".to_owned()));
            }
            seen.file = now.unwrap_or(seen.file);
        }
        seen.is_lost = now.is_none();
        // a file that is gone from its path is read as before
        let Ok(other) = at_path else { return Ok(was_read) };
        if self.watches_path
            && now.is_none_or(|now| other.file != now.file)
            && !seen.other.is_some_and(|before| is_known(&before, &other))
        {
            let is_same = other.bytes == self.bytes
                && regular::open(&self.path)
                    .and_then(|file| self.is_same(&file))
                    .map_err(|error| self.unreadable(&error))?;
            if !is_same {
                return Err(self.changed("another file with other contents is at its path now".to_owned()));
            }
            seen.other = Some(other);
        }
        Ok(was_read)
    }

    /// Whether a file has the contents.
    fn is_same(&self, file: &File) -> io::Result<bool> {
        let mut hasher = blake3::Hasher::new();
        let (mut chunk, mut at) = (vec![0; CHUNK.min(self.bytes as usize)], self.from);
        while at < self.bytes {
            let wanted = chunk.len().min((self.bytes - at) as usize);
            match file.read_at(&mut chunk[..wanted], at) {
                Ok(0) => return Ok(false),
                Ok(read) => {
                    hasher.update_rayon(&chunk[..read]);
                    at += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(hasher.finalize() == self.digest)
    }

    /// Whether these bytes are those of a file with the contents.
    fn are_same(&self, bytes: &[u8]) -> bool {
        let part = bytes.get(self.from as usize..).unwrap_or_default();
        blake3::Hasher::new().update_rayon(part).finalize() == self.digest
    }

    /// The size of the file in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn changed(&self, what: String) -> DataError {
        DataError::InUse { name: self.path.display().to_string(), what }
    }

    fn unreadable(&self, error: &io::Error) -> DataError {
        self.changed(format!("it can no longer be read: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const OLD: Duration = Duration::from_secs(3600);

    /// A guard with the file that it guards, as it is mapped.
    struct Guarded(Guard, memmap2::Mmap);

    impl Guarded {
        fn check(&self, again: bool) -> Result<bool, DataError> {
            self.0.check(again, &self.1)
        }
    }

    fn guard(path: &Path, from: usize, is_held: bool, watches_path: bool) -> Guarded {
        let (file, map) = super::super::mapping::map(path).expect("mapped");
        let stamp = Stamp::from(&file.metadata().expect("stat"));
        let digest = blake3::hash(&map[from..]);
        let mut guard = Guard::new(path, file, watches_path, stamp, (from, digest));
        assert!(guard.file.is_some(), "a test has few files open");
        if !is_held {
            guard.file = None;
        }
        Guarded(guard, map)
    }

    fn message(guard: &Guarded) -> String {
        guard.check(false).expect_err("changed").to_string()
    }

    #[test]
    fn what_changes_the_contents_is_named_and_what_does_not_goes_on() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("a.bin");
        let other = dir.path().join("b.bin");
        for is_held in [true, false] {
            let written = || fs::write(&path, "headerTOKENS").expect("written");
            written();
            let guarded = guard(&path, 6, is_held, true);
            guarded.check(false).expect("as it was");
            // touched, and written with the same bytes
            fs::File::options()
                .append(true)
                .open(&path)
                .and_then(|f| f.set_modified(SystemTime::now() - OLD))
                .expect("dated");
            assert!(guarded.check(false).expect("the same contents"), "they were read");
            written();
            assert!(guarded.check(false).expect("the same contents"));
            for (bytes, what) in
                [("headerTOKEN", "12 bytes at the start and has 11 now"), ("headerTOKENs", "its contents")]
            {
                fs::write(&path, bytes).expect("written");
                assert!(message(&guarded).contains(what), "{}", message(&guarded));
                assert!(message(&guarded).contains("a.bin` was changed while it is in use"));
            }
            written();
            guarded.check(false).expect("back as it was");
            // put in its place by renaming
            fs::write(&other, "headerTOKENS").expect("written");
            fs::rename(&other, &path).expect("renamed");
            guarded.check(false).expect("an equal file");
            fs::write(&other, "headerTOKENs").expect("written");
            fs::rename(&other, &path).expect("renamed");
            let message = message(&guarded);
            assert!(message.contains("another file with other contents"), "{message}");
            fs::remove_file(&path).expect("removed");
            guarded.check(true).expect("the file that is mapped is still there");
        }
    }

    #[test]
    fn an_emptied_cache_does_no_harm_and_an_overwritten_one_does() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("a.bin");
        fs::write(&path, "tokens").expect("written");
        let guarded = guard(&path, 0, true, false);
        let file = fs::File::options().write(true).open(&path).expect("open");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "others").expect("written");
        guarded.check(true).expect("the open file is the same");
        file.write_at(b"x", 0).expect("written");
        assert!(message(&guarded).contains("its contents"));
    }

    #[test]
    fn a_change_that_the_clock_does_not_show_is_found() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("a.bin");
        fs::write(&path, "tokens").expect("written");
        let guarded = guard(&path, 0, true, true);
        fs::write(&path, "others").expect("written");
        // as if both were written within one tick
        let now = Stamp::from(&fs::metadata(&path).expect("stat"));
        assert!(now.is_young);
        guarded.0.seen.lock().expect("not poisoned").file = now;
        assert!(message(&guarded).contains("its contents"));
    }
}
