//! The way to a file, gone part by part: each part is held open before it is looked at.

use super::open_dir::FILE_MODE;
use super::users::is_same;
use super::{acl, is_another, mounts, refused};
use rustix::fs::{self as unix, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// As many links on one way as the system follows.
const MOST: usize = 40;

/// What links of other users do not lead to, as part of a sentence.
const CLOSED: &str = "is not open to all users";

/// How a part of a way is held open, without a right to read it.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A way that is gone part by part.
pub(super) struct Way {
    /// Where it has led to, held open, and the path of that without a link.
    pub(super) at: OwnedFd,
    pub(super) path: PathBuf,
    ahead: VecDeque<OsString>,
    links: usize,
    others: Others,
    /// The links of other users that are being followed.
    following: Vec<OthersLink>,
    /// Those that have led to what is not their maker's.
    through: Vec<OthersLink>,
}

/// What becomes of links of other users.
enum Others {
    Refused,
    /// They are followed to what is their maker's own and, in part, to what is open to all users.
    Followed(Unspelled),
}

/// How many of the last parts of a way the user has not spelled, but were found in lists of directories.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unspelled {
    /// Parts of which a link of another user leads only to what is that user's own.
    pub(super) strict: usize,
    /// Parts that were found where links of other users have led, who may have to do without such a list.
    pub(super) listed: usize,
}

/// A link of another user that is being followed.
struct OthersLink {
    path: PathBuf,
    maker: u32,
    /// Whether it must lead to what is its maker's own.
    is_strict: bool,
    /// Parts that are ahead where it has led.
    left: usize,
    /// Whether it has led through what its maker may be kept out of.
    is_closed: bool,
}

/// What a way has led to.
struct Reached {
    owner: u32,
    /// Whether all users may read the file, or enter the directory, and list it if that was done.
    is_open: bool,
}

impl Reached {
    fn look(at: &OwnedFd, is_listed: bool) -> io::Result<Self> {
        let found = unix::fstat(at)?;
        let is_dir = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        // whom a group has, nobody here can tell, and it may be denied what all others have
        let (mut of_all, mut of_group) = (Mode::ROTH, Mode::RGRP);
        if is_dir && is_listed {
            (of_all, of_group) = (of_all | Mode::XOTH, of_group | Mode::XGRP);
        } else if is_dir {
            (of_all, of_group) = (Mode::XOTH, Mode::XGRP);
        }
        let is_open = Mode::from_raw_mode(found.st_mode).contains(of_all | of_group)
            && !acl::keeps_out(at, of_all).unwrap_or(false)
            && !mounts::may_be_private(at);
        Ok(Self { owner: mounts::owner(found.st_uid, found.st_dev), is_open })
    }
}

impl OthersLink {
    /// Whether its maker may be kept out of what it has led to.
    fn is_kept_out(&self, reached: &Reached) -> bool {
        !is_same(reached.owner, self.maker) && !reached.is_open
    }

    fn refused(&self, what: &str) -> io::Error {
        let problem = format!(
            "`{}` is another user's link to what {what}: name what it leads to if you mean that",
            self.path.display()
        );
        io::Error::new(ErrorKind::InvalidInput, problem)
    }
}

impl Way {
    /// The way to a path, from `trusted` on if it lies below that.
    pub(super) fn to(path: &Path, trusted: &Path) -> io::Result<Self> {
        let (from, ahead) = match path.strip_prefix(trusted) {
            Ok(below) if !trusted.as_os_str().is_empty() => (trusted, below),
            _ => (Path::new("."), path),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let at = retry_on_intr(|| unix::open(from, flags, Mode::empty()))?;
        let (path, ahead) = (from.canonicalize()?, parts(ahead).collect());
        let (following, through) = (Vec::new(), Vec::new());
        Ok(Self { at, path, ahead, links: 0, others: Others::Refused, following, through })
    }

    /// [`to`](Self::to), where links of other users are followed to what is their maker's own and, from all but the
    /// last strict parts, to what is open to all users.
    pub(super) fn shared(path: &Path, trusted: &Path, last: Unspelled) -> io::Result<Self> {
        Ok(Self { others: Others::Followed(last), ..Self::to(path, trusted)? })
    }

    /// Goes one part further; false if there is none.
    pub(super) fn go(&mut self) -> io::Result<bool> {
        let Some(part) = self.ahead.pop_front() else { return Ok(false) };
        let look = |at: &OwnedFd, flags| retry_on_intr(|| unix::openat(at, &part, flags, Mode::empty()));
        let next = match Path::new(&part).components().next() {
            Some(Component::RootDir) => {
                self.path = PathBuf::from("/");
                look(&self.at, LOOK)?
            }
            Some(Component::ParentDir) => {
                self.path.pop();
                look(&self.at, LOOK)?
            }
            Some(Component::Normal(_)) => {
                let next = look(&self.at, LOOK)?;
                if is_link(&next)? && !is_of_the_system(&next)? {
                    return self.turn(&next, &part).map(|()| true);
                }
                self.path.push(&part);
                if is_link(&next)? {
                    self.check_of_the_system()?;
                    look(&self.at, LOOK - OFlags::NOFOLLOW)?
                } else {
                    next
                }
            }
            _ => return Ok(true),
        };
        self.at = next;
        if self.is_behind_another() {
            self.reach(&Reached::look(&self.at, self.is_listed())?)?;
        }
        Ok(true)
    }

    /// Goes to the end, and opens the file there.
    pub(super) fn open(mut self, flags: OFlags) -> io::Result<OwnedFd> {
        let unlinked = flags | OFlags::NOFOLLOW;
        loop {
            while self.ahead.len() > 1 {
                self.go()?;
            }
            let last = self.ahead.pop_front().unwrap_or_else(|| ".".into());
            let open = |at: &OwnedFd, flags| retry_on_intr(|| unix::openat(at, &last, flags, mode(flags)));
            let found = match Path::new(&last).components().next() {
                // which no link can be
                Some(Component::Normal(_)) => match open(&self.at, LOOK) {
                    Err(Errno::NOENT) if flags.contains(OFlags::CREATE) => {
                        return Ok(open(&self.at, unlinked)?);
                    }
                    found => found?,
                },
                _ => self.at.try_clone()?,
            };
            let is_link = is_link(&found)?;
            if is_link && flags.contains(OFlags::NOFOLLOW) {
                return Err(refused());
            }
            if is_link && !is_of_the_system(&found)? {
                self.turn(&found, &last)?;
                continue;
            }
            if is_link {
                self.check_of_the_system()?;
            }
            // what was a file and now is a link is refused by the system
            let file = open(&self.at, if is_link { flags } else { unlinked })?;
            self.path.push(&last);
            if self.is_behind_another() {
                self.reach(&Reached::look(&file, self.is_listed())?)?;
            }
            return Ok(file);
        }
    }

    /// Turns to where an open link leads, which has this name where the way has led to.
    fn turn(&mut self, link: &OwnedFd, name: &OsStr) -> io::Result<()> {
        self.links += 1;
        if self.links > MOST {
            return Err(Errno::LOOP.into());
        }
        let found = unix::fstat(link)?;
        let maker = mounts::owner(found.st_uid, found.st_dev);
        if is_another(maker) {
            let (path, left) = (self.path.join(name), self.ahead.len());
            let Others::Followed(Unspelled { strict, .. }) = self.others else {
                let problem =
                    format!("`{}` is a link of another user: name what it leads to", path.display());
                return Err(io::Error::new(ErrorKind::InvalidInput, problem));
            };
            self.following.push(OthersLink { path, maker, is_strict: left < strict, left, is_closed: false });
        }
        let target = OsString::from_vec(unix::readlinkat(link, "", Vec::new())?.into_bytes());
        parts(Path::new(&target)).rev().for_each(|part| self.ahead.push_front(part));
        Ok(())
    }

    /// Refuses a link of the system behind one of another user: it leads into the middle of a tree, past the
    /// directories that are closed, and to whatever a process of this user works with.
    fn check_of_the_system(&self) -> io::Result<()> {
        match self.following.iter().chain(&self.through).next() {
            Some(link) => Err(link.refused(CLOSED)),
            None => Ok(()),
        }
    }

    /// Whether a link of another user was on the way.
    fn is_behind_another(&self) -> bool {
        !self.following.is_empty() || !self.through.is_empty()
    }

    /// Whether the parts that are ahead were found in lists of directories, this one's first.
    fn is_listed(&self) -> bool {
        matches!(self.others, Others::Followed(last) if last.listed > 0 && self.ahead.len() <= last.listed)
    }

    /// Looks at what the way has reached, where links of other users have led.
    fn reach(&mut self, reached: &Reached) -> io::Result<()> {
        if let Some(link) = self.through.iter().find(|link| link.is_kept_out(reached)) {
            return Err(link.refused(CLOSED));
        }
        let is_own = reached.owner == geteuid().as_raw();
        for link in &mut self.following {
            // in a group's directory above the link, its maker has been; to one's own it may have been moved
            let counts = is_own || !link.path.starts_with(&self.path);
            link.is_closed |= counts && link.is_kept_out(reached);
        }
        while let Some(link) = self.following.pop_if(|link| link.left >= self.ahead.len()) {
            if is_same(link.maker, reached.owner) {
                continue;
            }
            if link.is_strict {
                return Err(link.refused("is not theirs"));
            }
            if link.is_closed {
                return Err(link.refused(CLOSED));
            }
            self.through.push(link);
        }
        Ok(())
    }
}

fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().map(|part| part.as_os_str().into())
}

fn is_link(opened: impl AsFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(unix::fstat(opened)?.st_mode) == FileType::Symlink)
}

/// Whether an open link is one of `/proc`, whose text does not say where it leads.
fn is_of_the_system(link: &OwnedFd) -> io::Result<bool> {
    Ok(unix::fstatfs(link)?.f_type == unix::PROC_SUPER_MAGIC)
}

/// The permissions of a file that is made.
pub(super) fn mode(flags: OFlags) -> Mode {
    if flags.contains(OFlags::CREATE) { FILE_MODE } else { Mode::empty() }
}
