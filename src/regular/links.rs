//! Links that somebody else has made. Who may write in a directory of runs can put links in it, and what is deleted,
//! trained or shown through one would be what its maker chose.

use super::OpenDir;
use rustix::process::geteuid;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// As many links on one way as the system follows.
const MOST: usize = 40;

/// Where a path really leads. Links that this process's user or root has made are followed; Linux holds links in
/// directories like `/tmp` to the same rule (`fs.protected_symlinks`). The user has named `trusted`, so links on the
/// way to that are followed, too.
///
/// # Errors
/// Those of the system; [`ErrorKind::InvalidInput`] for a link of another user.
pub fn followed(path: &Path, trusted: &Path) -> io::Result<PathBuf> {
    let (mut at, ahead) = match path.strip_prefix(trusted) {
        Ok(below) if !trusted.as_os_str().is_empty() => (trusted.canonicalize()?, below),
        _ => (std::env::current_dir()?, path),
    };
    let parts =
        |path: &Path| -> Vec<OsString> { path.components().map(|part| part.as_os_str().into()).collect() };
    let mut ahead: VecDeque<OsString> = parts(ahead).into();
    let mut links = 0;
    while let Some(part) = ahead.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        // a root takes the place of all before it
        let next = at.join(part);
        let found = fs::symlink_metadata(&next)?;
        if !found.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > MOST {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
        if ![0, geteuid().as_raw()].contains(&found.uid()) {
            let problem = format!("`{}` is a link of another user: name what it leads to", next.display());
            return Err(io::Error::new(ErrorKind::InvalidInput, problem));
        }
        parts(&fs::read_link(&next)?).into_iter().rev().for_each(|part| ahead.push_front(part));
    }
    Ok(at)
}

/// Opens a directory that may be reached as [`followed`] says.
///
/// # Errors
/// As those of [`followed`].
pub fn open_followed(path: &Path, trusted: &Path) -> io::Result<OpenDir> {
    let dir = OpenDir::open(path)?;
    match OpenDir::open(&followed(path, trusted)?)?.is(&dir)? {
        true => Ok(dir),
        false => Err(io::Error::other("another directory was put in its place")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
