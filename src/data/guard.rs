//! Notices that a file of tokens is changed while it is mapped.
//!
//! The system tells for next to nothing when a file was last changed. Where that has moved on, the contents are read
//! again: a touched, copied or linked file is still the same data, and a run of days goes on. What is trained on are
//! the bytes of the file that was opened, so another file at its path only matters if it holds something else.

use super::DataError;
use super::tokens::Tokens;
use crate::regular;
use rustix::process::{Resource, getrlimit};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Bytes that are read and hashed at a time.
const CHUNK: usize = 4 << 20;

/// A file that was changed this recently may be changed again without another time: the coarsest clock of a file system
/// that is still in use.
const YOUNG: Duration = Duration::from_secs(2);

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
        Self {
            file: (meta.dev(), meta.ino()),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
            is_young: is_young(meta.ctime()),
        }
    }
}

/// Whether what was changed in this second, after 1970, may have been changed again without another time.
pub(super) fn is_young(changed: i64) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.abs_diff(Duration::from_secs(changed.try_into().unwrap_or(0))) <= YOUNG
}

/// A file that is kept open to be asked about. A mapped file can be read without that, and a process may have so many
/// open files only.
struct Held(File);

/// The files that are kept open in this process.
static HELD: AtomicU64 = AtomicU64::new(0);

impl Held {
    /// Keeps a file open, unless half of what the process may have open are kept already.
    fn new(file: File) -> Option<Self> {
        let held = Self(file);
        let room = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
        (HELD.fetch_add(1, Ordering::Relaxed) < room).then_some(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a mapped file must stay.
pub(super) struct Guard {
    path: PathBuf,
    /// The file that is mapped, unless too many are open already.
    file: Option<Arc<Held>>,
    /// Its mapped tokens.
    tokens: Arc<Tokens>,
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
    /// Whether the file itself can no longer be asked about, and what is mapped of it was right.
    is_lost: bool,
}

impl Guard {
    /// Guards a file that was opened from `path` when it had this stamp, whose contents from byte `from` on have this
    /// digest, and whose `tokens` are mapped. Where too many files are open, the path can be looked at alone, and the
    /// mapped contents once it leads elsewhere.
    pub(super) fn new(
        (path, file, stamp): (&Path, File, Stamp),
        tokens: Arc<Tokens>,
        watches_path: bool,
        (from, digest): (usize, blake3::Hash),
    ) -> Self {
        let seen = Mutex::new(Seen { file: stamp, other: None, is_lost: false });
        let from = from as u64;
        let file = Held::new(file).map(Arc::new);
        Self { path: path.into(), file, tokens, watches_path, from, digest, bytes: stamp.bytes, seen }
    }

    /// Another guard of the same file, which finds for itself that the file was changed.
    pub(super) fn twin(&self) -> Self {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            path: self.path.clone(),
            file: self.file.clone(),
            tokens: self.tokens.clone(),
            watches_path: self.watches_path,
            from: self.from,
            digest: self.digest,
            bytes: self.bytes,
            seen: Mutex::new(seen),
        }
    }

    /// Checks that the file is what it was. Reads its contents if `again`, or if the system says that something has
    /// been done to it; returns whether they were read.
    ///
    /// # Errors
    /// [`DataError::InUse`] says what has changed.
    pub(super) fn check(&self, again: bool) -> Result<bool, DataError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let at_path = std::fs::metadata(&self.path).map(|meta| Stamp::from(&meta));
        let held = self.file.as_ref().map(|held| &held.0);
        let now = match held {
            Some(file) => Some(Stamp::from(&file.metadata().map_err(|error| self.unreadable(&error))?)),
            None => at_path.as_ref().ok().filter(|stamp| stamp.file == seen.file.file).copied(),
        };
        let is_known = |before: &Stamp, now: &Stamp| {
            !before.is_young && Stamp { is_young: false, ..*now } == Stamp { is_young: false, ..*before }
        };
        if let Some(now) = now.filter(|now| now.bytes != self.bytes) {
            let what = format!("it had {} bytes at the start and has {} now", self.bytes, now.bytes);
            return Err(self.changed(what));
        }
        let was_read = again || now.map_or(!seen.is_lost, |now| !is_known(&seen.file, &now));
        if was_read {
            let is_same = match (held, now) {
                (Some(file), _) => self.is_same(file),
                (None, Some(_)) => regular::open(&self.path).and_then(|file| self.is_same(&file)),
                (None, None) => Ok(blake3::hash(&self.tokens.file()[self.from as usize..]) == self.digest),
            };
            if !is_same.map_err(|error| self.unreadable(&error))? {
                return Err(self.changed("its contents are others than at the start".to_owned()));
            }
            seen.file = now.unwrap_or(seen.file);
            seen.is_lost = now.is_none();
        }
        // a file that is gone from its path is read as before
        let Ok(other) = at_path else { return Ok(was_read) };
        if self.watches_path
            && other.file != seen.file.file
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

    /// Whether a file has the contents. What is done to it meanwhile is dated later than what was known of it before.
    fn is_same(&self, file: &File) -> io::Result<bool> {
        regular::date_changes(file);
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
    use super::super::format::{Format, Layout, Width};
    use super::super::mapping::map;
    use super::*;
    use std::fs;

    const OLD: Duration = Duration::from_secs(3600);

    fn guard(path: &Path, from: usize, is_held: bool, watches_path: bool) -> Guard {
        let (file, map) = map(path).expect("open");
        let stamp = Stamp::from(&file.metadata().expect("stat"));
        let digest = blake3::hash(&fs::read(path).expect("read")[from..]);
        let layout = Layout { format: Format::Headerless, offset: from, width: Width::U16 };
        let tokens = Arc::new(Tokens::mapped(map, layout));
        let mut guard = Guard::new((path, file, stamp), tokens, watches_path, (from, digest));
        guard.file = guard.file.filter(|_| is_held);
        guard
    }

    fn message(guard: &Guard) -> String {
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
            guarded.check(true).expect("the mapped file is still there");
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
        guarded.seen.lock().expect("not poisoned").file = now;
        assert!(message(&guarded).contains("its contents"));
    }
}
