//! A directory that is held open while files are made, renamed and deleted in it.
//!
//! Who may write above a directory can exchange it for a link at any moment, so a path that was looked at says nothing
//! of the moment after. What goes through a handle stays in the directory that was opened, wherever that is moved.

use super::{bytes_of, is_another, lease, mounts, owner_of, refused, regular, temporary_name};
use rustix::fs::{self as unix, Access, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
pub(super) const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o777);

/// A directory held open. A name given to its functions is that of one entry: no path, and no link is followed.
///
/// Every function has the system's errors; [`ErrorKind::InvalidInput`] for a name with a slash or a zero in it.
#[derive(Debug)]
pub struct OpenDir {
    path: PathBuf,
    handle: File,
    /// The directories in this one that have to stay the same.
    own: Mutex<Own>,
}

/// Directories by name, with their device and number.
type Own = BTreeMap<OsString, (u64, u64)>;

/// Takes note of a directory, or checks that it is the one that was noted.
fn keep(own: &mut Own, name: &OsStr, identity: (u64, u64)) -> io::Result<()> {
    if *own.entry(name.to_owned()).or_insert(identity) == identity {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "another directory was put in its place"))
}

impl OpenDir {
    /// Opens a directory that the user has named, through links too.
    pub fn open(path: &Path) -> io::Result<Self> {
        let handle = retry_on_intr(|| unix::open(path, DIRECTORY, Mode::empty()))?;
        Ok(Self::of(path.to_owned(), handle.into()))
    }

    /// [`open`](Self::open) of a directory that is made where it is missing, as are those above it. The names of what
    /// is made are durable then.
    pub fn make_all(path: &Path) -> io::Result<Self> {
        let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.is_dir();
        let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
        fs::create_dir_all(path)?;
        for made in missing {
            let above = made.parent().filter(|above| !above.as_os_str().is_empty());
            match Self::open(above.unwrap_or(Path::new("."))) {
                // a directory in which one may make others without a right to see them
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                above => above?.sync()?,
            }
        }
        Self::open(path)
    }

    /// Opens for reading the directory that `place` is held open by, which was reached by this path.
    pub(super) fn at(place: impl AsFd, path: &Path) -> io::Result<Self> {
        let handle = retry_on_intr(|| unix::openat(&place, ".", DIRECTORY, Mode::empty()))?;
        Ok(Self::of(path.to_owned(), handle.into()))
    }

    /// Opens a directory in this one. A link is refused with [`ErrorKind::InvalidInput`].
    pub fn inside(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = one(name.as_ref())?;
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        match retry_on_intr(|| unix::openat(&self.handle, name, flags, Mode::empty())) {
            Ok(handle) => Ok(Self::of(self.join(name), handle.into())),
            Err(Errno::NOTDIR | Errno::LOOP) if self.is_link(name) => Err(refused()),
            Err(error) => Err(error.into()),
        }
    }

    fn of(path: PathBuf, handle: File) -> Self {
        Self { path, handle, own: Mutex::default() }
    }

    /// Opens a directory in this one that has to stay the same. Another one that somebody has put in its place since
    /// the first time is refused with [`ErrorKind::InvalidInput`], unless this process has [made](Self::make) it.
    pub fn own(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let (mut own, name) = (self.owned(), name.as_ref());
        let found = self.inside(name)?;
        let metadata = found.handle.metadata()?;
        keep(&mut own, name, (metadata.dev(), metadata.ino())).map(|()| found)
    }

    /// Checks what [`own`](Self::own) would, by one look at the name. Nothing by that name is no error.
    pub fn check_own(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let (mut own, name) = (self.owned(), name.as_ref());
        match self.stat(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(stat) => match kind(&stat) {
                FileType::Directory => keep(&mut own, name, (stat.st_dev, stat.st_ino)),
                FileType::Symlink => Err(refused()),
                _ => Err(Errno::NOTDIR.into()),
            },
        }
    }

    /// What has to stay the same, to be held from a look at the directory on: while one thread makes it, another may
    /// look.
    fn owned(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a directory in this one; false if something by that name is there.
    pub fn make(&self, name: impl AsRef<OsStr>) -> io::Result<bool> {
        let (mut own, name) = (self.owned(), name.as_ref());
        match unix::mkdirat(&self.handle, one(name)?, DIRECTORY_MODE) {
            Ok(()) => {
                own.remove(name);
                Ok(true)
            }
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes from other users all rights in it.
    pub fn keep_private(&self) -> io::Result<()> {
        let mode = self.handle.metadata()?.mode();
        match mode & 0o077 {
            0 => Ok(()),
            _ => Ok(unix::fchmod(&self.handle, Mode::from_raw_mode(mode & 0o700))?),
        }
    }

    /// The path by which it was opened, for messages and for readers.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of an entry, for messages and for readers.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Whether it is of the user that this process works for.
    pub fn is_of_user(&self) -> io::Result<bool> {
        let owner = owner_of(&self.handle.metadata()?);
        Ok(owner == geteuid().as_raw() || owner != 0 && self.of_another()?.is_none())
    }

    /// The user who has put a file into this directory to whom the directory does not belong, if that is neither this
    /// process's user nor root.
    pub fn maker_of(&self, file: &File) -> io::Result<Option<u32>> {
        let maker = owner_of(&file.metadata()?);
        let is_put = is_another(maker) && owner_of(&self.handle.metadata()?) != maker;
        Ok(is_put.then_some(maker))
    }

    /// The user to whom it belongs, if that is neither root nor the one to whom files belong that this process makes in
    /// it: a file server may give root's files to nobody.
    pub fn of_another(&self) -> io::Result<Option<u32>> {
        let found = self.handle.metadata()?;
        if let Some(mounter) = mounts::mounter(found.dev()) {
            return Ok(Some(mounter));
        }
        let owner = found.uid();
        if !is_another(owner) {
            return Ok(None);
        }
        let probe = temporary_name(OsStr::new("owner"));
        let made = self.open_file(&probe, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL);
        let is_own = made.and_then(|file| file.metadata()).is_ok_and(|made| made.uid() == owner);
        let _ = self.remove_file(&probe);
        Ok((!is_own).then_some(owner))
    }

    /// Whether files can be made in it.
    pub fn may_write(&self) -> bool {
        let wanted = Access::WRITE_OK | Access::EXEC_OK;
        unix::accessat(&self.handle, ".", wanted, AtFlags::empty()).is_ok()
    }

    /// Whether it still lies at the path by which it was opened.
    pub fn is_in_place(&self) -> io::Result<bool> {
        let ours = self.handle.metadata()?;
        Ok(fs::metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino())))
    }

    /// Whether the other is the same directory.
    pub fn is(&self, other: &Self) -> io::Result<bool> {
        let (ours, theirs) = (self.handle.metadata()?, other.handle.metadata()?);
        Ok((ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()))
    }

    /// Makes a file, for writing. [`ErrorKind::AlreadyExists`] if something by that name is there.
    pub fn create_file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        self.open_file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// Checks that this process may make files in it.
    pub fn check_writable(&self) -> io::Result<()> {
        let access = unix::Access::WRITE_OK | unix::Access::EXEC_OK;
        Ok(unix::accessat(&self.handle, ".", access, unix::AtFlags::EACCESS)?)
    }

    /// Opens a regular file, without waiting.
    ///
    /// Besides: [`ErrorKind::InvalidInput`] for a link, a pipe, a socket or a device; [`ErrorKind::IsADirectory`].
    pub fn open_file(&self, name: impl AsRef<OsStr>, flags: OFlags) -> io::Result<File> {
        let name = one(name.as_ref())?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        let open = |flags| match retry_on_intr(|| unix::openat(&self.handle, name, flags, FILE_MODE)) {
            Err(Errno::LOOP | Errno::MLINK) if self.is_link(name) => Err(refused()),
            opened => Ok(File::from(opened?)),
        };
        regular(lease::opened(flags, open, || self.has_file(name)))
    }

    /// The bytes of a regular file of at most `most` bytes; none where there is no file.
    ///
    /// Besides: as those of [`open_file`](Self::open_file); [`ErrorKind::FileTooLarge`].
    pub fn read(&self, name: impl AsRef<OsStr>, most: u64) -> io::Result<Vec<u8>> {
        match self.open_file(name, OFlags::RDONLY) {
            Ok(file) => bytes_of(file, most),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Whether something has this name, be it a link that leads nowhere.
    pub fn has(&self, name: impl AsRef<OsStr>) -> bool {
        self.stat(name.as_ref()).is_ok()
    }

    /// Whether a regular file has this name.
    pub fn has_file(&self, name: impl AsRef<OsStr>) -> bool {
        self.stat(name.as_ref()).is_ok_and(|stat| kind(&stat) == FileType::RegularFile)
    }

    /// Whether a link has this name.
    pub fn is_link(&self, name: impl AsRef<OsStr>) -> bool {
        self.stat(name.as_ref()).is_ok_and(|stat| kind(&stat) == FileType::Symlink)
    }

    /// Whether this name is that of a file that was opened.
    pub fn is_named(&self, name: impl AsRef<OsStr>, file: &File) -> io::Result<bool> {
        let ours = unix::fstat(file)?;
        Ok(self.stat(name.as_ref()).is_ok_and(|it| (it.st_dev, it.st_ino) == (ours.st_dev, ours.st_ino)))
    }

    /// Gives an entry another name, in the place of a file that has it.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        self.rename_into(from, self, to)
    }

    /// Moves an entry into another directory, in the place of a file that has its name there.
    pub fn rename_into(
        &self,
        from: impl AsRef<OsStr>,
        other: &Self,
        to: impl AsRef<OsStr>,
    ) -> io::Result<()> {
        Ok(unix::renameat(&self.handle, one(from.as_ref())?, &other.handle, one(to.as_ref())?)?)
    }

    /// Gives a file a second name in another directory. [`ErrorKind::AlreadyExists`] if something has it.
    pub fn link_into(&self, from: impl AsRef<OsStr>, other: &Self, to: impl AsRef<OsStr>) -> io::Result<()> {
        let (from, to) = (one(from.as_ref())?, one(to.as_ref())?);
        Ok(unix::linkat(&self.handle, from, &other.handle, to, AtFlags::empty())?)
    }

    /// Moves a file into another directory under a name that nothing has. [`ErrorKind::AlreadyExists`] if something
    /// does.
    pub fn name_into(&self, from: impl AsRef<OsStr>, other: &Self, to: impl AsRef<OsStr>) -> io::Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        match self.link_into(from, other, to) {
            Ok(()) => self.remove_file(from),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
            // a file system without a second name for a file
            Err(_) if other.has(to) => Err(ErrorKind::AlreadyExists.into()),
            Err(_) => self.rename_into(from, other, to),
        }
    }

    /// Deletes a file or a link.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unix::unlinkat(&self.handle, one(name.as_ref())?, AtFlags::empty())?)
    }

    /// Deletes an empty directory.
    pub fn remove_dir(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unix::unlinkat(&self.handle, one(name.as_ref())?, AtFlags::REMOVEDIR)?)
    }

    /// The names of its entries, in no order.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.handle)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Makes the names in it durable, where the file system can be told to.
    pub fn sync(&self) -> io::Result<()> {
        match self.handle.sync_all() {
            Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }

    pub(super) fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(unix::statat(&self.handle, one(name)?, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

impl AsFd for OpenDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The name if it is that of an entry.
fn one(name: &OsStr) -> io::Result<&OsStr> {
    let bytes = name.as_encoded_bytes();
    let is_one = !matches!(bytes, b"" | b"." | b"..") && !bytes.contains(&b'/') && !bytes.contains(&0);
    let none = || io::Error::new(ErrorKind::InvalidInput, "it is not the name of one file");
    is_one.then_some(name).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_this_process_makes_anew_is_no_other_one_meanwhile() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = OpenDir::open(dir.path()).expect("opened");
        let (is_over, name) = (std::sync::atomic::AtomicBool::new(false), "checkpoints");
        std::thread::scope(|scope| {
            let look = || {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    open.check_own(name)?;
                    std::thread::yield_now();
                }
                Ok::<(), io::Error>(())
            };
            let looks = scope.spawn(look);
            let others = (0..3000).find_map(|i| {
                // the number of one that is gone may come again
                let kept = dir.path().join(i.to_string());
                let made = open.make(name).and_then(|_| open.own(name));
                made.and_then(|_| fs::rename(dir.path().join(name), kept)).err()
            });
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(others.is_none(), "{others:?}");
            looks.join().expect("joined").expect("the same directory");
        });
        open.make(name).expect("made");
        open.own(name).expect("opened");
        fs::rename(dir.path().join(name), dir.path().join("moved")).expect("moved");
        fs::create_dir(dir.path().join(name)).expect("made by another one");
        for found in [open.check_own(name), open.own(name).map(|_| ())] {
            assert_eq!(found.expect_err("another one").kind(), ErrorKind::InvalidInput);
        }
    }
}
