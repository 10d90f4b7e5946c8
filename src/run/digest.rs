//! BLAKE3 digests of files, taken while they are written or read once.
//!
//! Files are read with ordinary reads, not memory maps: a bad sector is then an error with a name, not a signal.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};

/// Bytes handed to the hasher and the disk at a time; large enough for the hasher to use several threads.
pub(super) const CHUNK: usize = 4 << 20;

/// What a file must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Its size.
    pub bytes: u64,
    /// Its BLAKE3 digest, hexadecimal.
    pub blake3: String,
}

impl FileDigest {
    /// The digest of a file with these contents.
    #[must_use]
    pub fn of(contents: &[u8]) -> Self {
        Self { bytes: contents.len() as u64, blake3: blake3::hash(contents).to_hex().to_string() }
    }
}

/// A new file that is hashed as it is written, in large chunks.
#[derive(Debug)]
pub(super) struct HashedFile {
    file: File,
    hasher: blake3::Hasher,
    pending: Vec<u8>,
    bytes: u64,
}

impl HashedFile {
    pub(super) fn new(file: File) -> Self {
        Self { file, hasher: blake3::Hasher::new(), pending: Vec::with_capacity(CHUNK), bytes: 0 }
    }

    pub(super) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - self.pending.len()));
            self.pending.extend_from_slice(now);
            self.flush_if(self.pending.len() == CHUNK)?;
            bytes = later;
        }
        Ok(())
    }

    /// Writes values as little-endian bytes.
    pub(super) fn write_f32(&mut self, values: &[f32]) -> io::Result<()> {
        let mut rest = values;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min((CHUNK - self.pending.len()).div_ceil(4)));
            self.pending.extend(now.iter().flat_map(|v| v.to_le_bytes()));
            self.flush_if(self.pending.len() >= CHUNK)?;
            rest = later;
        }
        Ok(())
    }

    /// Writes what is pending, makes the file durable and returns its digest.
    pub(super) fn finish(mut self) -> io::Result<FileDigest> {
        self.flush_if(true)?;
        self.file.sync_all()?;
        Ok(FileDigest { bytes: self.bytes, blake3: self.hasher.finalize().to_hex().to_string() })
    }

    fn flush_if(&mut self, due: bool) -> io::Result<()> {
        if due {
            self.file.write_all(&self.pending)?;
            self.hasher.update_rayon(&self.pending);
            self.bytes += self.pending.len() as u64;
            self.pending.clear();
        }
        Ok(())
    }
}

/// The digest of a file of weights, or of what an optimizer keeps of them. One of more than twice the memory of the
/// machine is refused, for nothing on it can use that: to read a hole of terabytes takes hours.
pub(super) fn of_weights(file: &File) -> io::Result<FileDigest> {
    let bytes = file.metadata()?.len();
    if memory().is_some_and(|memory| bytes / 2 > memory) {
        let why = format!(
            "{bytes} bytes are more than twice the memory of this machine, so nothing on it can use them"
        );
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    of_reader(file)
}

/// Bytes of memory of the machine, where that is known.
fn memory() -> Option<u64> {
    #[cfg(target_os = "linux")]
    let memory = Some(rustix::system::sysinfo()).map(|of| of.totalram * u64::from(of.mem_unit));
    #[cfg(not(target_os = "linux"))]
    let memory = None;
    memory
}

/// The digest of the rest of a file.
pub(super) fn of_reader(mut source: impl Read) -> io::Result<FileDigest> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK];
    let mut bytes = 0;
    loop {
        let mut filled = 0;
        while filled < CHUNK {
            match source.read(&mut chunk[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        hasher.update_rayon(&chunk[..filled]);
        bytes += filled as u64;
        if filled < CHUNK {
            return Ok(FileDigest { bytes, blake3: hasher.finalize().to_hex().to_string() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_written_in_pieces_has_the_digest_of_its_bytes() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("f");
        let values: Vec<f32> = (0..CHUNK / 2).map(|i| i as f32).collect();
        let mut file = HashedFile::new(File::create_new(&path).expect("create"));
        file.write(b"odd").expect("write");
        file.write_f32(&values).expect("write");
        file.write(&vec![7; CHUNK + 1]).expect("write");
        let digest = file.finish().expect("finish");
        let bytes = std::fs::read(&path).expect("read");
        assert_eq!(bytes.len(), 3 + 4 * values.len() + CHUNK + 1);
        assert!(bytes[3..].chunks(4).zip(&values).all(|(b, v)| b == v.to_le_bytes()));
        assert_eq!(digest.blake3, blake3::hash(&bytes).to_hex().as_str());
        assert_eq!(of_reader(File::open(&path).expect("open")).expect("read"), digest);
    }
}
