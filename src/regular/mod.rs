//! Opening files that others may have put there.
//!
//! A name in a run's directory, or of weights from elsewhere, may stand for a pipe, whose reader waits, or for a device
//! that never ends. What is no regular file is refused here, without waiting for it. A link to a regular file is one.

mod acl;
mod holes;
mod lease;
mod links;
mod matching;
mod mounts;
mod open_dir;
mod temporary;
mod tree;
mod users;
mod way;

pub use holes::{append_lines, has_hole_before, holes, read_without_holes};
pub use links::{check_listed, check_planted, confine, followed, open_followed, open_unplanted, trust};
pub use matching::{Looked, Matches, Refused, is_hidden, matching, matching_within};
pub use open_dir::OpenDir;
pub use rustix::fs::OFlags;
pub use temporary::{STALE, is_temporary, meant, temporary_name};

use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use way::Unspelled;

/// More than any JSON document of a run holds, in bytes.
pub const DOCUMENT: u64 = 64 << 20;
/// More than any recipe holds, in bytes: what reads TOML takes up to six hundred times its text, where that is nested.
pub const RECIPE: u64 = 256 << 10;
/// More than any log holds, in bytes: forty million steps. Files that claim a terabyte take no room on a disk.
pub const LOG: u64 = 4 << 30;

/// More than a file grows by while it is read, in bytes.
const GROWTH: u64 = 16 << 20;

const STRANGE: &str = "it is not a regular file";

/// Whether an error of this module says that a path leads to a pipe, a socket or a device.
#[must_use]
pub fn is_strange(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|told| told.to_string() == STRANGE)
}

/// Whether a name from a file is that of a file beside it, and leads nowhere else.
#[must_use]
pub fn is_beside(name: &str) -> bool {
    !name.contains('\0') && Path::new(name).file_name().is_some_and(|last| last == name)
}

/// The user to whom a file or a directory belongs, if that is neither this process's user nor root; `None`, too, for
/// what is not there.
#[must_use]
pub fn another_owner(path: &Path) -> Option<u32> {
    path.metadata().ok().map(|found| owner_of(&found)).filter(|owner| is_another(*owner))
}

/// Whether `note` was put beside a file by another user, to whom the file does not belong: it may say anything of it.
#[must_use]
pub fn is_put_beside(note: &Path, file: &Path) -> bool {
    let maker = another_maker(note);
    maker.is_some() && owner(file) != maker
}

/// Whether `note` was [put beside](is_put_beside) a file, into a directory that does not [belong](is_of_its_directory)
/// to who has put it there.
#[must_use]
pub fn is_planted(note: &Path, file: &Path) -> bool {
    is_put_beside(note, file) && !is_of_its_directory(note)
}

/// Whether a path with the signs of a pattern is that of what is there: it exists, and no other user has put a part
/// with such signs into a directory that is not theirs, in the place of all that the pattern matches.
#[must_use]
pub fn is_spelled(path: &Path) -> bool {
    let has_signs = |name: &OsStr| name.as_encoded_bytes().iter().any(|byte| b"*?[".contains(byte));
    let mut parts = path.ancestors().filter(|part| part.file_name().is_some_and(has_signs));
    path.exists() && !parts.any(|part| is_put_beside(part, above(part)))
}

/// The directory that a path lies in as it is written.
fn above(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The user who has made a file, a directory or a link, if that is neither this process's user nor root.
#[must_use]
pub fn another_maker(path: &Path) -> Option<u32> {
    owner(path).filter(|owner| is_another(*owner))
}

/// Whether nothing on the way from a directory down to `path` was made by another user than the one to whom `anchor`
/// belongs, who is trusted with what lies around it.
#[must_use]
pub fn is_of_one_owner(above: &Path, path: &Path, anchor: &Path) -> bool {
    // of a link, also who has made it
    let trusted = [owner(anchor), anchor.metadata().ok().map(|found| owner_of(&found))];
    let is_trusted = |path: &Path| another_maker(path).is_none_or(|maker| trusted.contains(&Some(maker)));
    path.ancestors().take_while(|part| *part != above).all(is_trusted)
}

/// Whether a file in a directory, and what it leads to, was made by nobody but this user, root and the directory's
/// owner.
#[must_use]
pub fn is_of_directory(file: &Path, directory: &Path) -> bool {
    let is_theirs = another_owner(file).is_none_or(|user| another_owner(directory) == Some(user));
    is_theirs && is_of_one_owner(directory, file, directory)
}

/// Whether a file, and what it leads to, was certainly made by nobody but this user, root and the owner of the
/// directory that it lies in. A number that stands for several users is nobody's.
#[must_use]
pub fn is_of_its_directory(file: &Path) -> bool {
    let mut others = [another_owner(file), another_maker(file)].into_iter().flatten();
    others.all(|user| users::is_same(user, user)) && is_of_directory(file, above(file))
}

/// The last of these paths that [another user has made](another_maker), and who: of a path's ancestors the one from
/// which on a way is not this user's.
pub fn last_of_another<'a>(way: impl Iterator<Item = &'a Path>) -> Option<(&'a Path, u32)> {
    way.filter_map(|path| Some((path, another_maker(path)?))).last()
}

/// The owner of a file, a directory or a link. A slash or `/.` behind a link's name is ignored: the link's owner
/// counts, not its target's.
fn owner(path: &Path) -> Option<u32> {
    path.components().as_path().symlink_metadata().ok().map(|found| owner_of(&found))
}

/// The user to whom belongs what was looked at.
fn owner_of(found: &Metadata) -> u32 {
    mounts::owner(found.uid(), found.dev())
}

/// Whether a user is neither this process's nor root.
fn is_another(user: u32) -> bool {
    ![0, geteuid().as_raw()].contains(&user)
}

/// Opens a regular file for reading, without waiting.
///
/// # Errors
/// Those of the system; [`ErrorKind::IsADirectory`]; [`ErrorKind::InvalidInput`] for a pipe, a socket or a device.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OFlags::RDONLY)
}

/// Opens a regular file in another way than for reading, without waiting.
///
/// # Errors
/// As those of [`open`].
pub fn open_with(path: &Path, flags: OFlags) -> io::Result<File> {
    regular(opened(path, flags))
}

/// Opens a regular file for reading unless its name is a link, which could lead to a file that others must not see.
///
/// # Errors
/// As those of [`open`]; [`ErrorKind::InvalidInput`] for a link.
pub fn open_unlinked(path: &Path) -> io::Result<File> {
    open_unlinked_with(path, OFlags::RDONLY)
}

/// Opens a file like [`open_with`] unless its name is a link, which could lead to a file that is not meant.
///
/// # Errors
/// As those of [`open_unlinked`].
pub fn open_unlinked_with(path: &Path, flags: OFlags) -> io::Result<File> {
    match opened(path, flags | OFlags::NOFOLLOW) {
        // the system's own answer to a link is one about loops, which the user could not act on
        Err(_) if path.is_symlink() => Err(refused()),
        opened => regular(opened),
    }
}

/// Checks that a name is none of a link, which could lead to what is not meant. Nothing by that name is fine.
///
/// # Errors
/// [`ErrorKind::InvalidInput`].
pub fn refuse_link(path: &Path) -> io::Result<()> {
    match path.is_symlink() {
        true => Err(refused()),
        false => Ok(()),
    }
}

/// Has the system date what is done to a file from now on: what somebody writes through a memory map gets no new date
/// where it is not yet on the disk. A system that cannot do this is no worse off.
pub fn date_changes(file: &File) {
    let _ = file.sync_data();
}

/// What a look at a file says before its contents are read. What is done to the file after the look is
/// [dated](date_changes).
pub fn dated<T>(file: &File, look: impl FnOnce() -> T) -> T {
    /// Longer than the clock by which systems date changes takes for a step, which is 10 ms at most.
    const STEP: Duration = Duration::from_millis(20);
    // a server dates what is written out to it
    date_changes(file);
    let looked = look();
    let changed = file
        .metadata()
        .map_or(0, |found| i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec()));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    if (now.as_nanos() as i128).abs_diff(changed) < STEP.as_nanos() {
        // what is done from now on is not to have the same date
        std::thread::sleep(STEP);
    }
    // what was done since the first time would be dated once for all that follows
    date_changes(file);
    looked
}

fn refused() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "it is a symbolic link: remove the link")
}

/// The bytes of a regular file of at most [`LOG`] bytes.
///
/// # Errors
/// As those of [`read_within`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_within(path, LOG)
}

/// The bytes of a regular file of at most `most` bytes.
///
/// # Errors
/// As those of [`open`]; [`ErrorKind::FileTooLarge`].
pub fn read_within(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    bytes_of(open(path)?, most)
}

/// The bytes of a regular file of at most `most` bytes that is no link.
///
/// # Errors
/// As those of [`open_unlinked`] and [`read_within`].
pub fn read_unlinked(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    bytes_of(open_unlinked(path)?, most)
}

fn bytes_of(file: File, most: u64) -> io::Result<Vec<u8>> {
    let too_large = |most: u64| {
        let problem = match most >> 20 {
            0 => format!("it is larger than {} KiB", most >> 10),
            mib => format!("it is larger than {mib} MiB"),
        };
        io::Error::new(ErrorKind::FileTooLarge, problem)
    };
    // said before anything is read; a file may also grow meanwhile
    let length = file.metadata()?.len();
    if length > most {
        return Err(too_large(most));
    }
    // what the system makes up while it is read has no length, and need not end
    let most = most.min(length.saturating_add(GROWTH));
    let mut bytes = Vec::new();
    bytes.try_reserve(length as usize)?;
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large(most)) } else { Ok(bytes) }
}

/// The text of a regular file of at most `most` bytes.
///
/// # Errors
/// As those of [`read_within`]; [`ErrorKind::InvalidData`] for what is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    text_of(read_within(path, most)?)
}

/// The text of a regular file of at most `most` bytes that is no link.
///
/// # Errors
/// As those of [`read_unlinked`] and [`read_text`].
pub fn read_unlinked_text(path: &Path, most: u64) -> io::Result<String> {
    text_of(read_unlinked(path, most)?)
}

fn text_of(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

/// The file if it is a regular one.
fn regular(opened: io::Result<File>) -> io::Result<File> {
    let strange = || io::Error::new(ErrorKind::InvalidInput, STRANGE);
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

fn opened(path: &Path, flags: OFlags) -> io::Result<File> {
    opened_below(path, flags, Unspelled::default())
}

/// Opens as [`lease::opened`] does. Links of other users are looked at, see [`links::open_shared`].
fn opened_below(path: &Path, flags: OFlags, last: Unspelled) -> io::Result<File> {
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "a path has no NUL byte in it"));
    }
    let flags = flags | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |flags| match links::confined() {
        None => links::open_shared(path, flags, last),
        Some(trusted) => links::file_followed(path, trusted, flags),
    };
    lease::opened(flags, open, || path.is_file()).map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    #[cfg(target_os = "linux")]
    fn what_the_system_makes_up_without_end_is_too_large() {
        // some gigabytes of it would be read first
        assert!(read_within(Path::new("/proc/self/pagemap"), LOG).is_err());
        assert!(!read_within(Path::new("/proc/self/status"), LOG).expect("a text").is_empty());
    }

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
        let append =
            |name: &str| open_unlinked_with(&path(name), OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE);
        assert!(append("file").is_ok() && append("new").is_ok());
        assert_eq!(append("link").map_err(kind).err(), Some(ErrorKind::InvalidInput));
        assert_eq!(read_unlinked(&path("file"), 4).expect("no link"), b"text");
        for (name, expected) in [("link", ErrorKind::InvalidInput), ("nothing", ErrorKind::NotFound)] {
            assert_eq!(read_unlinked(&path(name), 4).map_err(kind), Err(expected), "{name}");
        }
        let strange = |name: &str| read(&path(name)).is_err_and(|error| is_strange(&error));
        assert!(strange("pipe") && strange("zeros") && !strange("link") && !strange("nothing"));
        assert_eq!(append("pipe").map_err(kind).err(), Some(ErrorKind::InvalidInput));
    }

    #[test]
    fn a_file_that_only_claims_to_be_large_is_not_read() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("file");
        fs::write(&path, "text").expect("write");
        open_with(&path, OFlags::WRONLY).and_then(|file| file.set_len(1 << 40)).expect("sparse");
        assert_eq!(read(&path).map_err(|error| error.kind()), Err(ErrorKind::FileTooLarge));
    }

    #[test]
    fn a_name_beside_a_file_leads_nowhere_else() {
        for name in ["a", "a.b", "..a", "ä"] {
            assert!(is_beside(name), "{name}");
        }
        for name in ["", ".", "..", "/", "/a", "a/b", "../a", "a/", "a\0"] {
            assert!(!is_beside(name), "{name:?}");
        }
    }

    #[test]
    fn what_is_no_text_is_no_text() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("file");
        fs::write(&path, [0xff, 0xfe]).expect("write");
        assert_eq!(read_text(&path, DOCUMENT).map_err(|error| error.kind()), Err(ErrorKind::InvalidData));
    }
}
