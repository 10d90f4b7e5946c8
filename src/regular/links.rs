//! Links that somebody else has made. Who may write in a directory of runs can put links in it, and what is deleted,
//! trained or shown through one would be what its maker chose.
//!
//! A way is gone part by part, and each part is held open before it is looked at: what is put in its place meanwhile is
//! not what was looked at, and leads nowhere.

use super::OpenDir;
use super::way::{Unspelled, Way, mode};
use rustix::fs::{self as unix, OFlags};
use rustix::io::{Errno, retry_on_intr};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The directory to which links of other users are followed like one's own, see [`trust`].
static NAMED: OnceLock<PathBuf> = OnceLock::new();

/// To look at what a path leads to, without a right to read it.
const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Whether no other link of another user is followed, see [`confine`].
static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// From now on, this process follows links of other users on the way to a directory, which the user has named. Once for
/// a process.
pub fn trust(named: &Path) {
    NAMED.get_or_init(|| named.to_owned());
}

fn named() -> &'static Path {
    NAMED.get().map_or(Path::new(""), PathBuf::as_path)
}

/// From now on, this process opens no file by a link of another user but on the way to what it was told to
/// [`trust`]: others see what it reads.
pub fn confine() {
    IS_CONFINED.store(true, Ordering::SeqCst);
}

/// The directory outside of which no link of another user is followed, after [`confine`].
pub(super) fn confined() -> Option<&'static Path> {
    IS_CONFINED.load(Ordering::SeqCst).then(named)
}

/// Where a path really leads. Links that this process's user or root has made are followed; Linux holds links in
/// directories like `/tmp` to the same rule (`fs.protected_symlinks`). The user has named `trusted`, so links on the
/// way to that are followed, too.
///
/// # Errors
/// Those of the system; [`InvalidInput`](io::ErrorKind::InvalidInput) for a link of another user.
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
    Way::to(path, trusted)?.open(flags)
}

/// Refuses a path that was found below the directory `listed`, which the user has named, if it leads through a link
/// that another user has put there to what is not that user's own, or if another user's link on the way to the
/// directory leads to what is not for all users to list: the link's maker need not be able to read it, and to copy it
/// would show it.
///
/// # Errors
/// Those of the system; [`InvalidInput`](io::ErrorKind::InvalidInput) for such a link.
pub fn check_planted(path: &Path, listed: &Path) -> io::Result<()> {
    let last = parts_below(path, listed);
    open_shared(path, LOOK, Unspelled { strict: last, listed: last }).map(drop)
}

/// [`check_planted`] but for links below the directory, which may lead to all that is open to all users.
///
/// # Errors
/// As those of [`check_planted`].
pub fn check_listed(path: &Path, listed: &Path) -> io::Result<()> {
    open_shared(path, LOOK, Unspelled { strict: 0, listed: parts_below(path, listed) }).map(drop)
}

/// Opens a regular file for reading unless [`check_planted`] refuses the path, even one that others change meanwhile.
///
/// # Errors
/// As those of [`check_planted`] and [`open`](super::open).
pub fn open_unplanted(path: &Path, listed: &Path) -> io::Result<File> {
    let last = parts_below(path, listed);
    super::regular(super::opened_below(path, OFlags::RDONLY, Unspelled { strict: last, listed: last }))
}

/// How many parts of a path were found below a directory: all of them, where it does not lead through that.
fn parts_below(path: &Path, listed: &Path) -> usize {
    let plain =
        |path: &Path| path.components().filter(|part| *part != Component::CurDir).collect::<PathBuf>();
    let (path, listed) = (plain(path), plain(listed));
    path.strip_prefix(listed).unwrap_or(&path).components().count()
}

/// Opens a file, though not by another user's link to what is neither that user's own nor open to all users: what is
/// made of it may be for others to read, and where a directory was listed, to what is not for all users to list.
///
/// # Errors
/// Those of the system; [`InvalidInput`](io::ErrorKind::InvalidInput) for such a link.
pub(super) fn open_shared(path: &Path, flags: OFlags, last: Unspelled) -> io::Result<OwnedFd> {
    let without_links = unix::ResolveFlags::NO_SYMLINKS;
    match retry_on_intr(|| unix::openat2(unix::CWD, path, flags, mode(flags), without_links)) {
        // a link is on the way, or the system cannot tell
        Err(Errno::LOOP | Errno::NOSYS | Errno::PERM) => {}
        opened => return Ok(opened?),
    }
    Way::shared(path, named(), last)?.open(flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::ErrorKind;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

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

    #[test]
    fn what_anothers_link_leads_to_is_opened_if_it_is_theirs_even_while_they_exchange_it() {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().canonicalize().expect("there");
        let path = |name: &str| root.join(name);
        fs::create_dir_all(path("corpus/deep")).expect("a directory");
        fs::create_dir(path("home")).expect("a directory");
        for name in ["", "home"] {
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).expect("open to all");
        }
        fs::write(path("home/diary.txt"), "mine").expect("written");
        fs::write(path("theirs.txt"), "theirs").expect("written");
        symlink("../home/diary.txt", path("corpus/own.txt")).expect("a link");
        let read = |name: &str| {
            let file = open_unplanted(&path(name), &path("corpus"));
            file.and_then(io::read_to_string).map_err(|error| error.kind())
        };
        assert_eq!(read("corpus/own.txt").as_deref(), Ok("mine"));
        assert_eq!(read("corpus/deep"), Err(ErrorKind::IsADirectory));
        assert_eq!(read("corpus/gone.txt"), Err(ErrorKind::NotFound));
        // only root can give a link away
        if std::os::unix::fs::chown(path("theirs.txt"), Some(12345), None).is_err() {
            return;
        }
        let theirs = |target: &str, name: &str| {
            symlink(target, path(name)).expect("a link");
            lchown(path(name), Some(12345), None).expect("given away");
        };
        theirs("../theirs.txt", "corpus/a.txt");
        theirs("../home/diary.txt", "corpus/b.txt");
        theirs("../../home/./diary.txt", "corpus/deep/c.txt");
        theirs("../home", "corpus/home");
        theirs("own.txt", "corpus/through.txt");
        assert_eq!(read("corpus/a.txt").as_deref(), Ok("theirs"));
        for name in ["corpus/b.txt", "corpus/deep/c.txt", "corpus/home/diary.txt", "corpus/through.txt"] {
            assert_eq!(read(name), Err(ErrorKind::InvalidInput), "{name}");
            assert!(check_planted(&path(name), &path("corpus")).is_err(), "{name}");
            let spelled = || super::super::open(&path(name));
            assert!(spelled().is_ok(), "{name} is spelled, and everybody may read it");
            for (part, hidden, open) in
                [("home/diary.txt", 0o600, 0o644), ("home", 0o700, 0o755), ("", 0o700, 0o755)]
            {
                let mode = |mode| fs::set_permissions(path(part), fs::Permissions::from_mode(mode));
                mode(hidden).expect("hidden");
                let refused = spelled().expect_err(name).to_string();
                assert!(
                    refused.contains("another user's link to what is not open to all users"),
                    "{refused}"
                );
                assert!(fs::read(path(name)).is_ok(), "the system does not mind");
                mode(open).expect("open");
            }
        }
        // what may be entered and not listed: its names are known to those who are told
        theirs("../home", "corpus/way");
        let found = || open_unplanted(&path("corpus/way/diary.txt"), &path("corpus/way"));
        let planted = || check_planted(&path("corpus/way/diary.txt"), &path("corpus/way"));
        let mode = |mode| fs::set_permissions(path("home"), fs::Permissions::from_mode(mode)).expect("set");
        assert!(found().is_ok() && planted().is_ok());
        for closed in [0o711, 0o715, 0o751] {
            mode(closed);
            let listed = check_listed(&path("corpus/way/diary.txt"), &path("corpus/way"));
            for refused in [found().map(drop), planted(), listed] {
                let refused = refused.expect_err("closed").to_string();
                assert!(
                    refused.contains("another user's link to what is not open to all users"),
                    "{refused}"
                );
            }
            assert!(super::super::open(&path("corpus/way/diary.txt")).is_ok(), "it is spelled");
        }
        mode(0o755);
        let none = Path::new("");
        // what a third user has closed, and a group's directory
        symlink("../theirs.txt", path("corpus/d.txt")).expect("a link");
        lchown(path("corpus/d.txt"), Some(12346), None).expect("given away");
        let spelled = |name: &str| super::super::open(&path(name)).map(drop).map_err(|error| error.kind());
        let mode = |name: &str, mode| {
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).expect("set");
        };
        assert_eq!(spelled("corpus/d.txt"), Ok(()));
        for closed in [0o640, 0o604] {
            mode("theirs.txt", closed);
            assert_eq!(spelled("corpus/d.txt"), Err(ErrorKind::InvalidInput), "{closed:o}");
            assert_eq!(spelled("corpus/a.txt"), Ok(()));
        }
        mode("theirs.txt", 0o644);
        fs::create_dir_all(path("team/deep")).expect("a directory");
        fs::write(path("team/text"), "ours").expect("written");
        for (target, name) in [("../text", "team/deep/near"), ("../team/text", "corpus/far")] {
            symlink(target, path(name)).expect("a link");
            lchown(path(name), Some(12346), None).expect("given away");
        }
        mode("team", 0o770);
        let near = || (spelled("team/deep/near"), spelled("corpus/far"));
        assert_eq!(near(), (Err(ErrorKind::InvalidInput), Err(ErrorKind::InvalidInput)), "it is one's own");
        std::os::unix::fs::chown(path("team"), Some(12347), None).expect("given away");
        assert_eq!(near(), (Ok(()), Err(ErrorKind::InvalidInput)));
        // and what a process of this user works with
        for (target, name) in [("/proc/self/cwd/Cargo.toml", "corpus/cwd"), ("/proc/self/cwd", "corpus/dir")]
        {
            symlink(target, path(name)).expect("a link");
            assert!(followed(&path(name), none).is_ok(), "one's own");
            lchown(path(name), Some(12346), None).expect("given away");
        }
        for name in ["corpus/cwd", "corpus/dir/Cargo.toml"] {
            assert_eq!(spelled(name), Err(ErrorKind::InvalidInput), "{name}");
        }
        // what only the system can follow
        let file = File::open(path("home/diary.txt")).expect("there");
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert!(super::super::open(Path::new(&format!("/proc/self/fd/{number}"))).is_ok());
        assert!(super::super::open(Path::new("/dev/fd").join(number.to_string()).as_path()).is_ok());
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let [a, b] = ["corpus/a.txt", "corpus/b.txt"].map(path);
                    unix::renameat_with(unix::CWD, &a, unix::CWD, &b, unix::RenameFlags::EXCHANGE)
                        .expect("exchanged");
                }
            });
            let all: Vec<_> = (0..4000).map(|_| read("corpus/a.txt")).collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(all.iter().all(|text| text.as_deref() != Ok("mine")), "a private text was read");
        });
    }
}
