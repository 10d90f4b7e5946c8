//! Opening files that others may have put there.
//!
//! A name in a run's directory, or of weights from elsewhere, may stand for a pipe, whose reader waits, or for a device
//! that never ends. What is no regular file is refused here, without waiting for it. A link to a regular file is one.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// More than any JSON document or recipe of a run holds, in bytes.
pub const DOCUMENT: u64 = 64 << 20;

/// Opens a regular file for reading, without waiting.
///
/// # Errors
/// Those of the system; [`ErrorKind::IsADirectory`]; [`ErrorKind::InvalidInput`] for a pipe, a socket or a device.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens a regular file in another way than for reading, without waiting.
///
/// # Errors
/// As those of [`open`].
pub fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    regular(opened(path, options, libc::O_NOCTTY))
}

/// Opens a file like [`open_with`] unless its name is a link, which could lead to a file that is not meant.
///
/// # Errors
/// As those of [`open`]; [`ErrorKind::InvalidInput`] for a link.
pub fn open_unlinked(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // The system's own answer to a link is one about loops, which the user could not act on.
    if path.is_symlink() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is a symbolic link: remove the link"));
    }
    regular(opened(path, options, libc::O_NOCTTY | libc::O_NOFOLLOW))
}

/// The bytes of a regular file.
///
/// # Errors
/// As those of [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let mut bytes = Vec::new();
    bytes.try_reserve(usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The bytes of a regular file of at most `most` bytes.
///
/// # Errors
/// As those of [`open`]; [`ErrorKind::FileTooLarge`].
pub fn read_within(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let problem = format!("it is larger than {} MiB", most >> 20);
        return Err(io::Error::new(ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

/// The text of a regular file of at most `most` bytes.
///
/// # Errors
/// As those of [`read_within`]; [`ErrorKind::InvalidData`] for what is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read_within(path, most)?)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

/// The file if it is a regular one.
fn regular(opened: io::Result<File>) -> io::Result<File> {
    let strange = || io::Error::new(ErrorKind::InvalidInput, "it is not a regular file");
    match opened {
        Ok(file) => match file.metadata()?.file_type() {
            kind if kind.is_dir() => Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory")),
            kind if kind.is_file() => Ok(file),
            _ => Err(strange()),
        },
        // a socket, or a pipe to be written to that has no reader
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Err(strange()),
        Err(error) => Err(error),
    }
}

/// Opens without waiting for the other end of a pipe, but waits until a lease on a regular file is given back: file
/// servers take such leases.
fn opened(path: &Path, options: &mut OpenOptions, flags: i32) -> io::Result<File> {
    match options.custom_flags(flags | libc::O_NONBLOCK).open(path) {
        Err(error) if error.kind() == ErrorKind::WouldBlock && path.is_file() => {
            options.custom_flags(flags).open(path)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_is_read_and_nothing_else_is_waited_for() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "text").expect("write");
        std::os::unix::fs::symlink("file", path("link")).expect("link");
        std::os::unix::fs::symlink("/dev/zero", path("zeros")).expect("link");
        let made = std::process::Command::new("mkfifo").arg(path("pipe")).status();
        assert!(made.expect("mkfifo is there").success());
        for name in ["file", "link"] {
            assert_eq!(read(&path(name)).expect(name), b"text");
        }
        let kind = |error: io::Error| error.kind();
        for (name, expected) in [
            ("zeros", ErrorKind::InvalidInput),
            ("pipe", ErrorKind::InvalidInput),
            (".", ErrorKind::IsADirectory),
            ("nothing", ErrorKind::NotFound),
        ] {
            assert_eq!(read(&path(name)).map_err(kind), Err(expected), "{name}");
            assert_eq!(read_within(&path(name), 9).map_err(kind), Err(expected), "{name}");
        }
        assert_eq!(read_within(&path("file"), 4).expect("as long as that"), b"text");
        assert_eq!(read_within(&path("file"), 3).map_err(kind), Err(ErrorKind::FileTooLarge));
        let append = |name: &str| open_unlinked(&path(name), OpenOptions::new().append(true).create(true));
        assert!(append("file").is_ok() && append("new").is_ok());
        assert_eq!(append("link").map_err(kind).err(), Some(ErrorKind::InvalidInput));
        assert_eq!(append("pipe").map_err(kind).err(), Some(ErrorKind::InvalidInput));
    }

    #[test]
    fn what_is_no_text_is_no_text() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("file");
        fs::write(&path, [0xff, 0xfe]).expect("write");
        assert_eq!(read_text(&path, DOCUMENT).map_err(|error| error.kind()), Err(ErrorKind::InvalidData));
    }
}
