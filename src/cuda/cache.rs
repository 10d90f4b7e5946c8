//! Cache files, which save work and can be deleted at any time: compiled kernels, and the fastest algorithms.
//!
//! A file appears whole or not at all, and begins with a checksum. If it cannot be read, the work is done
//! again; if it cannot be written, the work is done at every start.

use crate::regular;
use std::io::Write;
use std::path::Path;

/// Bytes of the checksum before the content.
const CHECKSUM: usize = blake3::OUT_LEN;
/// More than any of the files holds, in bytes.
pub(super) const LONGEST: u64 = 64 << 20;

/// The content of a file that [`write`] wrote, if it is undamaged.
pub(super) fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = regular::read_within(path, LONGEST).ok()?;
    let (checksum, content) = bytes.split_at_checked(CHECKSUM)?;
    if blake3::hash(content).as_bytes() != checksum {
        return None;
    }
    bytes.drain(..CHECKSUM);
    Some(bytes)
}

/// Stores content, if possible.
pub(super) fn write(path: &Path, content: &[u8]) {
    let checksum = blake3::hash(content);
    // without a cache everything works, only slower
    let _ = replace(path, &[checksum.as_bytes(), content]);
}

/// Replaces a file as a whole. It is not synced: after a crash, the checksum or the parser rejects a broken
/// file.
pub(super) fn replace(path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_file_is_not_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("below/kernels.cubin");
        assert_eq!(read(&path), None);
        write(&path, b"content");
        assert_eq!(read(&path).as_deref(), Some(&b"content"[..]));
        let whole = std::fs::read(&path).expect("a file");
        for broken in [&whole[..whole.len() - 1], &whole[..10], b""] {
            std::fs::write(&path, broken).expect("a file");
            assert_eq!(read(&path), None, "{} bytes", broken.len());
        }
        let mut changed = whole.clone();
        changed[CHECKSUM] ^= 1;
        std::fs::write(&path, changed).expect("a file");
        assert_eq!(read(&path), None);
        write(&path, b"");
        assert_eq!(read(&path).as_deref(), Some(&b""[..]), "empty content is content");
        std::fs::remove_file(&path).expect("removed");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo is there").success());
        assert_eq!(read(&path), None, "nothing waits for a pipe");
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_not_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("file"), "").expect("a file");
        write(&dir.path().join("file/below"), b"content");
        assert_eq!(read(&dir.path().join("file/below")), None);
    }
}
