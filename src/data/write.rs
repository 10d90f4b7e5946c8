//! Writes llm.c shards, and small files, whole or not at all.
//!
//! Words 3 to 10 of the header, which llm.c leaves at zero and does not read, hold the blake3 checksum of the
//! tokens, so that a damaged cache is recognized.

use super::DataError;
use super::llmc::{CHECKSUM, HEADER, MAGIC};
use super::unfinished::dir_of;
use crate::regular::{self, OpenDir, temporary_name};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tokens hashed and written at a time.
const BLOCK: usize = 1 << 18;

/// Writes a shard in llm.c's format and returns its number of tokens.
///
/// The file replaces what was at `path` only when it is complete and on the disk; missing directories are
/// created.
///
/// # Errors
/// When the file cannot be written, or when there are more tokens than llm.c's header can count (2^31 - 1).
pub fn write_llmc(path: &Path, tokens: impl IntoIterator<Item = u16>) -> Result<u64, DataError> {
    let (dir, name) = place_of(path)?;
    let mut writer = ShardWriter::create(&dir, name)?;
    let mut tokens = tokens.into_iter().peekable();
    while tokens.peek().is_some() {
        writer.push(tokens.by_ref().take(BLOCK))?;
    }
    writer.finish().map(|made| made.tokens)
}

/// The checksum that [`ShardWriter`] stored in a shard's header.
pub(super) fn stored_checksum(header: &[u8]) -> &[u8] {
    &header[CHECKSUM]
}

/// The digest of its tokens that the header of a shard of [`ShardWriter`] states; `None` for another header. One of
/// another maker may have a number in one of these words, and none has one in each.
pub(super) fn stated_in(header: &[u8]) -> Option<blake3::Hash> {
    let digest: [u8; 32] = header.get(CHECKSUM)?.try_into().ok()?;
    let is_of_writer = header.len() == HEADER && digest.chunks(4).all(|word| word != [0; 4]);
    is_of_writer.then(|| blake3::Hash::from_bytes(digest))
}

/// The tokens of a shard of [`ShardWriter`] that is whole; `None` for what is missing, cut off or changed. Reads it.
pub(super) fn whole(path: &Path) -> Result<Option<Made>, DataError> {
    let read = || -> io::Result<Option<Made>> {
        let mut file = match regular::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        let (Some(tokens), 0) = (length.checked_sub(HEADER as u64).map(|bytes| bytes / 2), length % 2) else {
            return Ok(None);
        };
        let mut header = [0; HEADER];
        file.read_exact(&mut header)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file)?;
        let made = Made { tokens, blake3: hasher.finalize().to_hex().to_string() };
        Ok((header == header_of(tokens, &hasher.finalize())).then_some(made))
    };
    read().map_err(DataError::read(path))
}

/// The digest of its tokens that a shard states; `None` for a file that states none.
pub(super) fn stated(path: &Path) -> Option<blake3::Hash> {
    let mut header = [0; HEADER];
    regular::open(path).ok()?.read_exact(&mut header).ok()?;
    stated_in(&header)
}

/// What a shard of so many tokens, with this digest, begins with.
fn header_of(tokens: u64, digest: &blake3::Hash) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    for (place, word) in header.chunks_exact_mut(4).zip([MAGIC, 1, tokens as i32]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    header[CHECKSUM].copy_from_slice(digest.as_bytes());
    header
}

/// A file of tokens that is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Made {
    /// Tokens in it.
    pub(super) tokens: u64,
    /// blake3 of what it holds; of a shard, of what follows its header.
    pub(super) blake3: String,
}

/// A shard that is being written.
pub(super) struct ShardWriter {
    file: BufWriter<Unfinished>,
    path: PathBuf,
    hasher: blake3::Hasher,
    count: u64,
}

impl ShardWriter {
    /// Starts a shard that will have this name in a directory.
    pub(super) fn create(dir: &Arc<OpenDir>, name: impl AsRef<OsStr>) -> Result<Self, DataError> {
        let path = dir.join(name.as_ref());
        Self::staged(dir, name, path)
    }

    /// Starts a shard that will have this name in a directory, and lie at another path in the end.
    pub(super) fn staged(
        dir: &Arc<OpenDir>,
        name: impl AsRef<OsStr>,
        path: PathBuf,
    ) -> Result<Self, DataError> {
        let name = name.as_ref();
        let begin = || -> io::Result<_> {
            let mut file = BufWriter::with_capacity(1 << 20, Unfinished::create(dir, name)?);
            file.write_all(&[0; HEADER])?;
            Ok(file)
        };
        let file = begin().map_err(DataError::write(&path))?;
        Ok(Self { file, path, hasher: blake3::Hasher::new(), count: 0 })
    }

    /// Appends tokens; they are collected in memory and written in blocks.
    pub(super) fn push(&mut self, tokens: impl IntoIterator<Item = u16>) -> Result<(), DataError> {
        let bytes: Vec<u8> = tokens.into_iter().flat_map(u16::to_le_bytes).collect();
        self.file.write_all(&bytes).map_err(DataError::write(&self.path))?;
        self.hasher.update(&bytes);
        self.count += bytes.len() as u64 / 2;
        if self.count > i32::MAX as u64 {
            return Err(DataError::TooManyTokens { path: self.path.clone() });
        }
        Ok(())
    }

    /// Completes the header and gives the file its name.
    pub(super) fn finish(self) -> Result<Made, DataError> {
        let Self { file, path, hasher, count } = self;
        let digest = hasher.finalize();
        let header = header_of(count, &digest);
        let complete = || -> io::Result<()> {
            let mut unfinished = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            unfinished.file.rewind()?;
            unfinished.file.write_all(&header)?;
            unfinished.publish()
        };
        complete().map_err(DataError::write(&path))?;
        Ok(Made { tokens: count, blake3: digest.to_hex().to_string() })
    }
}

/// The directory of a file, which is created if missing, and the file's name.
///
/// # Errors
/// The directory cannot be created or opened.
pub(super) fn place_of(path: &Path) -> Result<(Arc<OpenDir>, &OsStr), DataError> {
    let above = dir_of(path);
    let dir = OpenDir::make_all(above);
    Ok((Arc::new(dir.map_err(DataError::write(path))?), path.file_name().unwrap_or_default()))
}

/// Writes a small file, whole or not at all.
pub(super) fn write_whole(
    dir: &Arc<OpenDir>,
    name: impl AsRef<OsStr>,
    bytes: &[u8],
) -> Result<(), DataError> {
    write_through(dir, name, |file| file.write_all(bytes))
}

/// Writes a file through a buffer, whole or not at all.
pub(super) fn write_through(
    dir: &Arc<OpenDir>,
    name: impl AsRef<OsStr>,
    fill: impl FnOnce(&mut BufWriter<Unfinished>) -> io::Result<()>,
) -> Result<(), DataError> {
    let name = name.as_ref();
    let write = || -> io::Result<()> {
        let mut file = BufWriter::new(Unfinished::create(dir, name)?);
        fill(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.publish()
    };
    write().map_err(DataError::write(&dir.join(name)))
}

/// A file that has no name yet but a temporary one. Dropped without [`publish`](Unfinished::publish), it is removed.
pub(super) struct Unfinished {
    dir: Arc<OpenDir>,
    file: File,
    temporary: OsString,
    name: OsString,
    is_published: bool,
}

impl Unfinished {
    fn create(dir: &Arc<OpenDir>, name: &OsStr) -> io::Result<Self> {
        loop {
            let temporary = temporary_name(name);
            match dir.create_file(&temporary) {
                // of a killed process that had the same number, perhaps on another machine
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                file => {
                    let (dir, name) = (Arc::clone(dir), name.to_owned());
                    return Ok(Self { dir, file: file?, temporary, name, is_published: false });
                }
            }
        }
    }

    /// Makes the file durable and gives it its name, in the place of a file that has it.
    fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        self.dir.rename(&self.temporary, &self.name)?;
        self.is_published = true;
        self.dir.sync()
    }
}

impl Write for Unfinished {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_published {
            // what stays does no harm, and goes when a preparation is gone on with
            let _ = self.dir.remove_file(&self.temporary);
        }
    }
}
