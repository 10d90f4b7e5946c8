//! Reading logs that others may have made: a hole of four gigabytes takes no place on a disk.

use super::{LOG, open_unlinked};
use memchr::memchr;
use rustix::fs as unix;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// How much is read at a time.
const PIECE: u64 = 1 << 20;

/// Whether a file has a hole before its byte `end`, as far as the system tells. Reading begins at the beginning then.
pub fn has_hole_before(file: &File, end: u64) -> bool {
    let hole = unix::seek(file, unix::SeekFrom::Hole(0));
    let is_at_beginning = unix::seek(file, unix::SeekFrom::Start(0)).is_ok();
    !is_at_beginning || hole.is_ok_and(|hole| hole < end)
}

/// Appends a log to `buffer`, without the zeros of its holes: of zeros in a row one is left, more or less, which no log
/// has.
///
/// # Errors
/// Those of the system; [`ErrorKind::InvalidInput`] for a link, [`ErrorKind::FileTooLarge`].
pub fn read_without_holes(path: &Path, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut file = open_unlinked(path)?;
    if file.metadata()?.len() > LOG {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "it is larger than any log"));
    }
    let mut at = 0;
    while at < LOG {
        let before = buffer.len();
        let read = file.by_ref().take(PIECE).read_to_end(buffer)? as u64;
        if read == 0 {
            break;
        }
        at += read;
        let Some(zero) = memchr(0, &buffer[before..]) else { continue };
        let first = before + zero + 1;
        let mut kept = first;
        for next in first..buffer.len() {
            if buffer[next] != 0 || buffer[next - 1] != 0 {
                buffer[kept] = buffer[next];
                kept += 1;
            }
        }
        buffer.truncate(kept);
        if buffer.last() == Some(&0) {
            // past a hole, where the system knows of one
            match unix::seek(&file, unix::SeekFrom::Data(at)) {
                Ok(data) => at = data,
                // up to the end
                Err(Errno::NXIO) => break,
                Err(_) => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    #[test]
    fn zeros_that_were_written_are_no_hole() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("file");
        fs::write(&path, [0; 1 << 16]).expect("written");
        let read = || File::open(&path).expect("there");
        assert!(!has_hole_before(&read(), 1 << 16));
        let mut file = fs::OpenOptions::new().append(true).open(&path).expect("there");
        file.set_len(1 << 20).and_then(|()| file.write_all(b"end")).expect("written");
        let mut file = read();
        // a file system without holes has written zeros there
        let has_holes = fs::metadata(&path).is_ok_and(|found| {
            use std::os::unix::fs::MetadataExt;
            found.blocks() * 512 < found.len()
        });
        assert_eq!(has_hole_before(&file, 1 << 20), has_holes);
        assert!(!has_hole_before(&file, 1 << 16), "it ends before the hole");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("read");
        assert_eq!(bytes.len(), (1 << 20) + 3, "from the beginning");
    }
}
