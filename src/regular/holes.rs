//! Holes in files that others may have made: one of terabytes takes no place on a disk. Logs are read without them, and
//! those of other files are counted.

use super::{LOG, open_unlinked};
use memchr::{memchr, memrchr};
use rustix::fs as unix;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

/// How much is read at a time.
const PIECE: u64 = 1 << 20;

/// Whether a file has a hole before its byte `end`, as far as the system tells. Reading begins at the beginning then.
pub fn has_hole_before(file: &File, end: u64) -> bool {
    let hole = unix::seek(file, unix::SeekFrom::Hole(0));
    let is_at_beginning = unix::seek(file, unix::SeekFrom::Start(0)).is_ok();
    !is_at_beginning || hole.is_ok_and(|hole| hole < end)
}

/// How many bytes of a file are in holes, as far as the system tells. The count stops once it exceeds `most`. Reading
/// begins at the beginning then.
///
/// # Errors
/// Those of the system.
pub fn holes(file: &File, most: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    let (mut at, mut bytes) = (0, 0);
    while at < length && bytes <= most {
        // what a system without holes has behind the last byte
        let hole = unix::seek(file, unix::SeekFrom::Hole(at)).unwrap_or(length).min(length);
        let data = match unix::seek(file, unix::SeekFrom::Data(hole)) {
            Ok(data) => data.min(length),
            Err(Errno::NXIO) => length,
            // it does not tell
            Err(_) => break,
        };
        if data <= at {
            break;
        }
        bytes += data.saturating_sub(hole);
        at = data;
    }
    unix::seek(file, unix::SeekFrom::Start(0))?;
    Ok(bytes)
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
    append(&mut file, 0..LOG, buffer, false).map(drop)
}

/// The lines of a log that end in what was read of it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Whole {
    /// Where the last of them ends in the file, in bytes from its beginning.
    pub end: u64,
    /// How long the buffer was with them.
    pub length: usize,
}

/// Appends a part of an open text to `buffer`, and says which whole lines it has; `None` if no line ends there. In a
/// file with a hole, of zeros in a row one is left, more or less.
///
/// # Errors
/// Those of the system.
pub fn append_lines(file: &mut File, part: Range<u64>, buffer: &mut Vec<u8>) -> io::Result<Option<Whole>> {
    // beyond its end, a file is one hole
    let end = part.end.min(file.metadata()?.len());
    let keeps_zeros = !has_hole_before(file, end);
    append(file, part, buffer, keeps_zeros)
}

fn append(
    file: &mut File,
    part: Range<u64>,
    buffer: &mut Vec<u8>,
    keeps_zeros: bool,
) -> io::Result<Option<Whole>> {
    let mut at = file.seek(SeekFrom::Start(part.start))?;
    let mut whole = None;
    while at < part.end {
        let before = buffer.len();
        let read = file.by_ref().take(PIECE.min(part.end - at)).read_to_end(buffer)? as u64;
        if read == 0 {
            break;
        }
        let last = memrchr(b'\n', &buffer[before..]);
        let end = last.map(|last| at + last as u64 + 1);
        at += read;
        let has_zeros = !keeps_zeros && drop_zeros(buffer, before);
        if let (Some(end), Some(last)) = (end, memrchr(b'\n', &buffer[before..])) {
            whole = Some(Whole { end, length: before + last + 1 });
        }
        if has_zeros && buffer.last() == Some(&0) {
            // past a hole, where the system knows of one
            match unix::seek(&*file, unix::SeekFrom::Data(at)) {
                Ok(data) => at = data,
                // up to the end
                Err(Errno::NXIO) => break,
                Err(_) => {}
            }
        }
    }
    Ok(whole)
}

/// Leaves one of zeros in a row, from a place in a buffer on. Whether there are any.
fn drop_zeros(buffer: &mut Vec<u8>, from: usize) -> bool {
    let Some(zero) = memchr(0, &buffer[from..]) else { return false };
    let first = from + zero + 1;
    let mut kept = first;
    for next in first..buffer.len() {
        if buffer[next] != 0 || buffer[next - 1] != 0 {
            buffer[kept] = buffer[next];
            kept += 1;
        }
    }
    buffer.truncate(kept);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    #[test]
    fn lines_around_a_hole_are_read_without_it() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("file");
        fs::write(&path, "one\ntwo\nthr").expect("written");
        let part = |part: Range<u64>| {
            let mut bytes = b"> ".to_vec();
            let mut file = File::open(&path).expect("there");
            let whole = append_lines(&mut file, part, &mut bytes).expect("read");
            (String::from_utf8(bytes).expect("text"), whole.map(|whole| (whole.end, whole.length)))
        };
        assert_eq!(part(0..99), ("> one\ntwo\nthr".to_owned(), Some((8, 10))));
        assert_eq!(part(4..8), ("> two\n".to_owned(), Some((8, 6))));
        assert_eq!(part(8..11), ("> thr".to_owned(), None));
        fs::write(&path, "a\0\0\0b\nc").expect("written");
        assert_eq!(part(0..99), ("> a\0\0\0b\nc".to_owned(), Some((6, 8))), "zeros that were written");
        fs::write(&path, "one\ntwo\nthr").expect("written");
        let mut file = fs::OpenOptions::new().append(true).open(&path).expect("there");
        file.set_len(64 << 20).and_then(|()| file.write_all(b"ee\nfour")).expect("written");
        let (text, whole) = part(8..99 << 20);
        assert!(text.len() < 99 && text.starts_with("> thr\0") && text.ends_with("\0ee\nfour"), "{text:?}");
        assert_eq!(whole, Some(((64 << 20) + 3, text.len() - 4)));
    }

    #[test]
    fn holes_are_counted_until_there_are_too_many() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("file");
        fs::write(&path, [1; 1 << 16]).expect("written");
        let counted = |most| holes(&File::open(&path).expect("there"), most).expect("counted");
        assert_eq!(counted(u64::MAX), 0);
        let mut file = fs::OpenOptions::new().append(true).open(&path).expect("there");
        for length in [1 << 20, 2 << 20] {
            file.set_len(length).and_then(|()| file.write_all(&[1; 1 << 16])).expect("written");
        }
        file.set_len(3 << 20).expect("longer");
        // a file system without holes has written zeros there, and one of larger blocks has smaller holes
        if has_hole_before(&file, 1 << 20) {
            let all = counted(u64::MAX);
            assert!((1 << 20..=(3 << 20) - 3 * (1 << 16)).contains(&all), "{all}");
            assert_eq!((counted(all), counted(all - 1)), (all, all));
            assert!((1..1 << 20).contains(&counted(0)), "the first is enough");
        }
        let mut bytes = Vec::new();
        let mut file = File::open(&path).expect("there");
        holes(&file, 0).expect("counted");
        file.read_to_end(&mut bytes).expect("read");
        assert_eq!(bytes.len(), 3 << 20, "from the beginning");
    }

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
