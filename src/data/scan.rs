//! The single pass over a shard when it is opened: its digest and the range of its tokens.
//!
//! The results for big files are cached, so that a run over tens of gigabytes restarts at once. A result
//! holds only for the file that it was computed from: same path, size, modification and change time, and
//! inode. That of tokens also holds for their layout alone, which may be stated by another file.

use super::DataError;
use super::cache::Cache;
use super::guard::is_young;
use super::progress::{NoProgress, Progress, Task};
use super::tokens::Tokens;
use super::write::{stated_in, write_whole};
use crate::regular;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes hashed and searched together, while they are in cache; a multiple of every token width.
const SEGMENT: usize = 16 << 20;
/// More than any record holds, in bytes.
const LONGEST_RECORD: u64 = 1 << 20;

/// The results of a pass over a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Scan {
    /// blake3 of the scanned bytes.
    #[serde(with = "hex")]
    pub(super) digest: blake3::Hash,
    /// Smallest and largest token; `None` for text and for an empty shard.
    pub(super) range: Option<(i32, i32)>,
    /// Whether the header of a shard states the digest of other tokens.
    pub(super) is_damaged: bool,
}

/// Serializes a digest as hexadecimal digits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(digest: &blake3::Hash, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&digest.to_hex())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<blake3::Hash, D::Error> {
        blake3::Hash::from_hex(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A file at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    /// The canonical path, for people; the name of the record is computed from the exact bytes.
    path: String,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
    inode: u64,
}

impl Identity {
    /// The identity of `file`, which was opened from `path`.
    pub(super) fn of(path: &Path, file: &File) -> Result<Self, DataError> {
        let meta = file.metadata().map_err(DataError::read(path))?;
        Ok(Self {
            path: canonical(path)?.to_string_lossy().into_owned(),
            bytes: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
            inode: meta.ino(),
        })
    }
}

fn canonical(path: &Path) -> Result<PathBuf, DataError> {
    fs::canonicalize(path).map_err(DataError::read(path))
}

/// Bytes before the first token, and of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Places {
    offset: usize,
    width: usize,
}

/// A cached scan.
#[derive(Serialize, Deserialize)]
struct Record {
    file: Identity,
    /// Of a text, and in records of earlier versions, there are none.
    #[serde(default)]
    tokens: Option<Places>,
    scan: Scan,
}

/// Scans files, or looks up cached results.
#[derive(Clone, Copy)]
pub(super) struct Scanner<'a> {
    /// Where results and encoded texts are kept.
    pub(super) cache: &'a Cache,
    /// Is told about files over `big` bytes.
    pub(super) progress: &'a dyn Progress,
    /// Results for files over this many bytes are cached.
    pub(super) big: u64,
}

impl Scanner<'_> {
    /// Digest and range of a shard. If `payload_only`, the digest covers only the tokens, otherwise the whole
    /// file.
    pub(super) fn tokens(
        &self,
        path: &Path,
        file: &File,
        tokens: &Tokens,
        payload_only: bool,
    ) -> Result<Scan, DataError> {
        let role = if payload_only { "payload" } else { "shard" };
        let places = Places { offset: tokens.header().len(), width: tokens.width() };
        self.remembering(role, path, file, Some(places), |task| {
            let header = if payload_only { &[] } else { tokens.header() };
            scan_tokens(header, tokens, |by| task.advance(by))
        })
    }

    /// Digest of a text file.
    pub(super) fn text(&self, path: &Path, file: &File, text: &[u8]) -> Result<Scan, DataError> {
        self.remembering("text", path, file, None, |task| {
            let mut hasher = blake3::Hasher::new();
            for segment in text.chunks(SEGMENT) {
                hasher.update_rayon(segment);
                task.advance(segment.len() as u64);
            }
            Scan { digest: hasher.finalize(), range: None, is_damaged: false }
        })
    }

    fn remembering(
        &self,
        role: &str,
        path: &Path,
        file: &File,
        tokens: Option<Places>,
        scan: impl FnOnce(&Task) -> Scan,
    ) -> Result<Scan, DataError> {
        let look = || Identity::of(path, file);
        let bytes = look()?.bytes;
        if bytes <= self.big {
            return Ok(scan(&Task::start(&NoProgress, "", bytes)));
        }
        let before = regular::dated(file, look)?;
        let is_young = is_young(before.changed.0);
        let key = [role.as_bytes(), b"\0", canonical(path)?.as_os_str().as_encoded_bytes()].concat();
        let name = format!("{}.scan.json", &blake3::hash(&key).to_hex()[..32]);
        // a record that is missing, unreadable or of another version is replaced
        let record = self.cache.find().and_then(|dir| dir.read(&name, LONGEST_RECORD).ok());
        let record = record.and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        if let Some(record) = record.filter(|record| record.file == before && record.tokens == tokens) {
            return Ok(record.scan);
        }
        let what = format!("checking {}", path.display());
        let scan = scan(&Task::start(self.progress, &what, before.bytes));
        if Identity::of(path, file)? != before {
            return Err(DataError::Changed { path: path.into() });
        }
        // what was changed just before may have been changed again without another time
        if is_young {
            return Ok(scan);
        }
        let record = serde_json::to_vec(&Record { file: before, tokens, scan: scan.clone() })
            .expect("a record holds nothing that JSON cannot");
        write_whole(&self.cache.make()?, name, &record)?;
        Ok(scan)
    }
}

/// Digest of `header` and the tokens together, and the range of the tokens.
pub(super) fn scan_tokens(header: &[u8], tokens: &Tokens, advance: impl Fn(u64)) -> Scan {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header);
    advance(header.len() as u64);
    let mut range: Option<(i32, i32)> = None;
    let mut of_tokens = stated_in(header).map(|stated| (stated, blake3::Hasher::new()));
    for segment in tokens.payload().chunks(SEGMENT) {
        let (_, found) = rayon::join(|| hasher.update_rayon(segment).count(), || tokens.range(segment));
        if let Some((_, hasher)) = &mut of_tokens {
            hasher.update_rayon(segment);
        }
        range = [range, found].into_iter().flatten().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        advance(segment.len() as u64);
    }
    let is_damaged = of_tokens.is_some_and(|(stated, hasher)| hasher.finalize() != stated);
    Scan { digest: hasher.finalize(), range, is_damaged }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::format::{Format, Layout, Width};
    use crate::data::mapping::map;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Counts the reported bytes.
    #[derive(Default)]
    struct Counter(AtomicU64);

    impl Progress for Counter {
        fn start(&self, what: &str, total: u64) {
            assert!(what.starts_with("checking ") && total > 0, "{what} {total}");
        }

        fn advance(&self, by: u64) {
            self.0.fetch_add(by, Ordering::Relaxed);
        }

        fn finish(&self) {}
    }

    fn scan(path: &Path, cache_dir: &Path, big: u64) -> (Scan, u64) {
        let layout = Layout { format: Format::Headerless, offset: 0, width: Width::U16 };
        scan_as(layout, path, cache_dir, big)
    }

    fn scan_as(layout: Layout, path: &Path, cache_dir: &Path, big: u64) -> (Scan, u64) {
        let progress = Counter::default();
        let (file, bytes) = map(path).expect("mapped");
        let tokens = Tokens::mapped(bytes, layout);
        let cache = &Cache::new(cache_dir.to_owned(), None);
        let scanner = Scanner { cache, progress: &progress, big };
        let scan = scanner.tokens(path, &file, &tokens, false).expect("scanned");
        (scan, progress.0.into_inner())
    }

    /// Waits until nothing that was written before is young.
    fn settle() {
        std::thread::sleep(std::time::Duration::from_millis(3100));
    }

    fn records(cache_dir: &Path) -> Vec<PathBuf> {
        match fs::read_dir(cache_dir) {
            Ok(entries) => entries.map(|entry| entry.expect("an entry").path()).collect(),
            Err(_) => Vec::new(),
        }
    }

    #[test]
    fn what_is_remembered_of_tokens_holds_for_their_layout_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, cache) = (dir.path().join("a.bin"), dir.path().join("cache"));
        fs::write(&path, [5, 0, 1, 0, 9, 1, 0, 0]).expect("written");
        settle();
        let layout = |width, offset| Layout { format: Format::Headerless, offset, width };
        // an index that comes later says that tokens are wider, for instance
        for (layout, range) in [
            (layout(Width::U16, 0), (0, 265)),
            (layout(Width::I32, 0), (265, 65_541)),
            (layout(Width::I32, 4), (265, 265)),
            (layout(Width::U16, 0), (0, 265)),
        ] {
            let (fresh, again) = (scan_as(layout, &path, &cache, 5), scan_as(layout, &path, &cache, 5));
            assert_eq!((fresh.0.range, fresh.1), (Some(range), 8), "{layout:?}");
            assert_eq!(again, (fresh.0, 0), "{layout:?} is remembered");
        }
        assert_eq!(records(&cache).len(), 1, "in one place");
    }

    #[test]
    fn big_files_are_scanned_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, cache) = (dir.path().join("a.bin"), dir.path().join("cache"));
        fs::write(&path, [5, 0, 1, 0, 9, 1]).expect("written");
        let fresh =
            Scan { digest: blake3::hash(&[5, 0, 1, 0, 9, 1]), range: Some((1, 265)), is_damaged: false };

        assert_eq!(scan(&path, &cache, 6), (fresh.clone(), 0), "not over the limit: no progress");
        assert!(records(&cache).is_empty(), "and nothing remembered");
        assert_eq!(scan(&path, &cache, 5), (fresh.clone(), 6));
        assert!(records(&cache).is_empty(), "it may be written to without another time");
        settle();
        assert_eq!(scan(&path, &cache, 5), (fresh.clone(), 6));
        assert_eq!(records(&cache).len(), 1);
        assert_eq!(scan(&path, &cache, 5), (fresh.clone(), 0), "remembered");

        // an unreadable record is replaced
        fs::write(&records(&cache)[0], b"{\"file\":").expect("written");
        assert_eq!(scan(&path, &cache, 5), (fresh.clone(), 6));
        // and so is what is no file, for which nothing waits
        for by in ["a pipe", "zeros without end"] {
            let record = records(&cache).remove(0);
            fs::remove_file(&record).expect("removed");
            match by {
                "a pipe" => {
                    let made = std::process::Command::new("mkfifo").arg(&record).status();
                    assert!(made.expect("mkfifo is there").success());
                }
                _ => std::os::unix::fs::symlink("/dev/zero", &record).expect("a link"),
            }
            assert_eq!(scan(&path, &cache, 5), (fresh.clone(), 6), "{by}");
            assert_eq!(scan(&path, &cache, 5), (fresh.clone(), 0), "{by} was replaced");
        }
        // and so is the record of a file that another one of the same size and modification time has replaced
        let time = fs::metadata(&path).and_then(|meta| meta.modified()).expect("a time");
        let other = dir.path().join("b.bin");
        fs::write(&other, [6, 0, 2, 0, 8, 1]).expect("written");
        File::options().append(true).open(&other).and_then(|f| f.set_modified(time)).expect("dated");
        fs::rename(&other, &path).expect("renamed");
        assert_eq!(
            scan(&path, &cache, 5),
            (Scan { digest: blake3::hash(&[6, 0, 2, 0, 8, 1]), range: Some((2, 264)), is_damaged: false }, 6)
        );
    }

    #[test]
    fn segments_add_up() {
        let values = (0..SEGMENT as u32 / 2 + 1000).map(|i| (i % 50_000 + 7) as u16);
        let tokens = Tokens::owned(values.chain([3, 60_000]));
        let header = [1, 2, 3];
        let scan = scan_tokens(&header, &tokens, |_| ());
        assert_eq!(scan.range, Some((3, 60_000)));
        assert_eq!(scan.digest, blake3::hash(&[&header, tokens.payload()].concat()));
    }
}
