//! Maps files into memory, so that tokens are read without being copied.

use super::DataError;
use super::source::Found;
use crate::regular::{self, OFlags, OpenDir};
use memmap2::Mmap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

/// Opens a regular file and maps it into memory. An empty file maps to no bytes.
pub(super) fn map(path: &Path) -> Result<(File, Mmap), DataError> {
    mapped(path, regular::open(path))
}

/// [`map`] for one of the files that the user's names lead to.
pub(super) fn map_found(found: &Found) -> Result<(File, Mmap), DataError> {
    mapped(&found.path, found.open())
}

/// Maps the regular file in `dir` that has this name, which must not be that of a link, like [`map`].
pub(super) fn map_in(dir: &OpenDir, name: &str) -> Result<(File, Mmap), DataError> {
    mapped(&dir.join(name), dir.open_file(name, OFlags::RDONLY))
}

fn mapped(path: &Path, opened: io::Result<File>) -> Result<(File, Mmap), DataError> {
    let file = opened.map_err(|error| match error.kind() {
        ErrorKind::IsADirectory => DataError::Directory { path: path.into() },
        _ if regular::is_strange(&error) => DataError::NotRegular { path: path.into() },
        _ => DataError::read(path)(error),
    })?;
    let map = of_open(path, &file)?;
    Ok((file, map))
}

/// Maps a file again whose map of this many bytes was read as a whole: a new map gives that memory back.
pub(super) fn again(path: &Path, file: &File, bytes: usize) -> Result<Mmap, DataError> {
    let map = of_open(path, file)?;
    if map.len() == bytes { Ok(map) } else { Err(DataError::Changed { path: path.into() }) }
}

fn of_open(path: &Path, file: &File) -> Result<Mmap, DataError> {
    // SAFETY: the map is read-only. This program never writes to a file that has its final name, and
    // datasets/README.md tells users not to change the files of a running experiment.
    unsafe { Mmap::map(file) }.map_err(|error| match error.kind() {
        // the system's limit on maps is hit long before its memory: files of this program are only read
        ErrorKind::OutOfMemory => DataError::TooManyMaps { path: path.into(), error },
        _ => DataError::read(path)(error),
    })
}
