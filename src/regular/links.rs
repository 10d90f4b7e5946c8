//! Links that somebody else has made. Who may write in a directory of runs can put links in it, and what is deleted,
//! trained or shown through one would be what its maker chose.
//!
//! A way is gone part by part, and each part is held open before it is looked at: what is put in its place meanwhile is
//! not what was looked at, and leads nowhere.

use super::{OpenDir, refused};
use rustix::fs::{self as unix, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

/// As many links on one way as the system follows.
const MOST: usize = 40;

/// What no link of another user is followed outside of, see [`confine`].
static TRUSTED: OnceLock<PathBuf> = OnceLock::new();

/// From now on, this process opens no file by a link of another user but on the way to `trusted`, which the user has
/// named: others see what it reads. Once for a process.
pub fn confine(trusted: &Path) {
    TRUSTED.get_or_init(|| trusted.to_owned());
}

/// What [`confine`] was told, if it was.
pub(super) fn confined() -> Option<&'static Path> {
    TRUSTED.get().map(PathBuf::as_path)
}

/// Where a path really leads. Links that this process's user or root has made are followed; Linux holds links in
/// directories like `/tmp` to the same rule (`fs.protected_symlinks`). The user has named `trusted`, so links on the
/// way to that are followed, too.
///
/// # Errors
/// Those of the system; [`ErrorKind::InvalidInput`] for a link of another user.
pub fn followed(path: &Path, trusted: &Path) -> io::Result<PathBuf> {
    let mut way = Way::to(path, trusted)?;
    while way.go()? {}
    Ok(way.path)
}

/// Opens a directory that may be reached as [`followed`] says.
///
/// # Errors
/// As those of [`followed`].
pub fn open_followed(path: &Path, trusted: &Path) -> io::Result<OpenDir> {
    let mut way = Way::to(path, trusted)?;
    while way.go()? {}
    OpenDir::at(way.at, path)
}

/// Opens a file that may be reached as [`followed`] says. Where `flags` have [`OFlags::NOFOLLOW`], its name may be that
/// of no link at all.
///
/// # Errors
/// As those of [`followed`].
pub(super) fn file_followed(path: &Path, trusted: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let mut way = Way::to(path, trusted)?;
    loop {
        while way.ahead.len() > 1 {
            way.go()?;
        }
        let last = way.ahead.pop_front().unwrap_or_else(|| ".".into());
        let found = match Path::new(&last).components().next() {
            // which no link can be
            Some(Component::Normal(_)) => {
                retry_on_intr(|| unix::openat(&way.at, &last, LOOK, Mode::empty()))?
            }
            _ => way.at.try_clone()?,
        };
        if !is_link(&found)? {
            // what was a file and now is a link is refused by the system
            let flags = flags | OFlags::NOFOLLOW;
            return Ok(retry_on_intr(|| unix::openat(&way.at, &last, flags, Mode::empty()))?);
        }
        if flags.contains(OFlags::NOFOLLOW) {
            return Err(refused());
        }
        way.turn(&found, &last)?;
    }
}

/// Refuses a path below `trusted`, which the user has named, if it leads through a link that another user has put
/// there to what is not that user's own: the link's maker need not be able to read it, and to copy it would show it.
///
/// # Errors
/// Those of the system; [`ErrorKind::InvalidInput`] for such a link.
pub fn check_planted(path: &Path, trusted: &Path) -> io::Result<()> {
    for part in path.ancestors().take_while(|part| *part != trusted && !part.as_os_str().is_empty()) {
        let found = part.symlink_metadata()?;
        let maker = found.uid();
        if found.is_symlink() && ![0, geteuid().as_raw()].contains(&maker) && part.metadata()?.uid() != maker
        {
            let problem = format!(
                "`{}` is another user's link to a file that is not theirs: name what it leads to if you mean that",
                part.display()
            );
            return Err(io::Error::new(ErrorKind::InvalidInput, problem));
        }
    }
    Ok(())
}

/// How a part of a way is held open, without a right to read it.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A way that is gone part by part.
struct Way {
    /// Where it has led to, held open, and the path of that without a link.
    at: OwnedFd,
    path: PathBuf,
    ahead: VecDeque<OsString>,
    links: usize,
}

impl Way {
    /// The way to a path, from `trusted` on if it lies below that.
    fn to(path: &Path, trusted: &Path) -> io::Result<Self> {
        let (from, ahead) = match path.strip_prefix(trusted) {
            Ok(below) if !trusted.as_os_str().is_empty() => (trusted, below),
            _ => (Path::new("."), path),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = retry_on_intr(|| unix::open(from, flags, Mode::empty()))?;
        Ok(Self { at, path: from.canonicalize()?, ahead: parts(ahead).collect(), links: 0 })
    }

    /// Goes one part further; false if there is none.
    fn go(&mut self) -> io::Result<bool> {
        let Some(part) = self.ahead.pop_front() else { return Ok(false) };
        let next = match Path::new(&part).components().next() {
            Some(Component::RootDir) => {
                self.path = PathBuf::from("/");
                unix::open("/", LOOK, Mode::empty())?
            }
            Some(Component::ParentDir) => {
                self.path.pop();
                unix::openat(&self.at, "..", LOOK, Mode::empty())?
            }
            Some(Component::Normal(_)) => {
                let next = retry_on_intr(|| unix::openat(&self.at, &part, LOOK, Mode::empty()))?;
                if is_link(&next)? {
                    return self.turn(&next, &part).map(|()| true);
                }
                self.path.push(&part);
                next
            }
            _ => return Ok(true),
        };
        self.at = next;
        Ok(true)
    }

    /// Turns to where an open link leads, which has this name where the way has led to.
    fn turn(&mut self, link: &OwnedFd, name: &OsStr) -> io::Result<()> {
        self.links += 1;
        if self.links > MOST {
            return Err(Errno::LOOP.into());
        }
        if ![0, geteuid().as_raw()].contains(&unix::fstat(link)?.st_uid) {
            let link = self.path.join(name);
            let problem = format!("`{}` is a link of another user: name what it leads to", link.display());
            return Err(io::Error::new(ErrorKind::InvalidInput, problem));
        }
        let target = OsString::from_vec(unix::readlinkat(link, "", Vec::new())?.into_bytes());
        parts(Path::new(&target)).rev().for_each(|part| self.ahead.push_front(part));
        Ok(())
    }
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().map(|part| part.as_os_str().into())
}

fn is_link(opened: impl AsFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(unix::fstat(opened)?.st_mode) == FileType::Symlink)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn links_of_ones_own_are_followed_and_those_of_others_only_on_the_way_to_what_is_trusted() {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().canonicalize().expect("there");
        let path = |name: &str| root.join(name);
        fs::create_dir_all(path("real/run")).expect("a directory");
        symlink("real", path("own")).expect("a link");
        symlink(path("own/../own/run"), path("far")).expect("a link");
        symlink("round", path("round")).expect("a link");
        let none = Path::new("");
        for name in ["real/run", "own/run", "own/../real/./run", "far", "far/"] {
            assert_eq!(followed(&path(name), none).expect(name), path("real/run"), "{name}");
            assert_eq!(followed(&path(name), &root).expect(name), path("real/run"), "{name}");
        }
        assert_eq!(followed(Path::new("."), none).ok(), std::env::current_dir().ok());
        assert_eq!(followed(&path("gone"), none).map_err(|error| error.kind()), Err(ErrorKind::NotFound));
        assert_eq!(
            followed(&path("round"), none).map_err(|error| error.raw_os_error()),
            Err(Some(libc::ELOOP))
        );
        // only root can give a link away
        symlink("own", path("theirs")).expect("a link");
        if lchown(path("theirs"), Some(12345), None).is_ok() {
            for name in ["theirs/run", "theirs"] {
                let refused = followed(&path(name), none).expect_err(name);
                assert!(refused.to_string().contains("theirs` is a link of another user"), "{refused}");
            }
            assert!(followed(&path("theirs/run"), &path("theirs")).is_ok());
            symlink("theirs/run", path("through")).expect("a link");
            assert!(followed(&path("through"), none).is_err());
        }
    }
}
