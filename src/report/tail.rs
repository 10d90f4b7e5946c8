//! The end of a text file that grows, read line by line, whatever becomes of the file meanwhile.

use crate::regular;
use crate::run::RunError;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A growing text file, and how far it has been read.
#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    /// Which file it is: a log is cut back by putting another one in its place.
    identity: Option<u64>,
    /// Bytes read so far, whole lines only.
    offset: u64,
    /// The last of them: a file that was put in its place may have the number of an earlier one, and be longer.
    ending: Vec<u8>,
}

/// Bytes that are held against those that were read before.
const ENDING: u64 = 256;

/// What [`Tail::read`] found.
#[derive(Debug)]
pub(super) struct Grown {
    /// The lines that are new, whole ones only.
    pub(super) lines: Vec<u8>,
    /// Whether they are those of a file that has not been read before, from its beginning, or there is no file.
    pub(super) is_other: bool,
}

impl Tail {
    /// The tail of a file, which need not exist yet.
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), identity: None, offset: 0, ending: Vec::new() }
    }

    /// Begins from the beginning.
    pub(super) fn forget(&mut self) {
        (self.identity, self.offset) = (None, 0);
        self.ending.clear();
    }

    /// Reads the lines that are new. A file that is missing has none.
    ///
    /// # Errors
    /// [`RunError::Io`].
    pub(super) fn read(&mut self) -> Result<Grown, RunError> {
        match self.read_on() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.forget();
                Ok(Grown { lines: Vec::new(), is_other: true })
            }
            read => read.map_err(|error| RunError::Io { action: "read", path: self.path.clone(), error }),
        }
    }

    fn read_on(&mut self) -> io::Result<Grown> {
        let mut file = regular::open_unlinked(&self.path)?;
        let metadata = file.metadata()?;
        let is_known = self.identity == Some(identity(&metadata)) && metadata.len() >= self.offset;
        let is_other = !is_known || !self.goes_on_in(&file)?;
        if is_other {
            self.forget();
            self.identity = Some(identity(&metadata));
        }
        let mut lines = Vec::new();
        if metadata.len().saturating_sub(self.offset) > regular::LOG {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "it is larger than any log"));
        }
        let new = regular::append_lines(&mut file, self.offset..metadata.len(), &mut lines)?;
        lines.truncate(new.map_or(0, |new| new.length));
        self.offset = new.map_or(self.offset, |new| new.end);
        if !lines.is_empty() {
            // as the file has them: of a hole, zeros are left out of the lines
            let from = self.offset.saturating_sub(ENDING);
            self.ending.resize((self.offset - from) as usize, 0);
            file.read_exact_at(&mut self.ending, from)?;
        }
        Ok(Grown { lines, is_other })
    }

    /// Whether what was read last is still there.
    fn goes_on_in(&self, file: &File) -> io::Result<bool> {
        let mut found = vec![0; self.ending.len()];
        let from = self.offset.saturating_sub(found.len() as u64);
        match file.read_exact_at(&mut found, from) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| found == self.ending),
        }
    }
}

/// What tells a file from one that is put in its place.
#[cfg(unix)]
pub(super) fn identity(metadata: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

/// Elsewhere a log that was cut back is noticed by being shorter.
#[cfg(not(unix))]
pub(super) fn identity(_: &Metadata) -> u64 {
    0
}
