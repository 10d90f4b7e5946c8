//! Reading logs that others may have made: a hole of four gigabytes takes no place on a disk.

use super::{LOG, open_unlinked};
use memchr::memchr;
use rustix::fs as unix;
use rustix::io::Errno;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// How much is read at a time.
const PIECE: u64 = 1 << 20;

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
