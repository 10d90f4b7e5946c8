//! Paths in recipes: relative to the file that names them when written, absolute when resolved.
//!
//! `~` is the home directory, as in a shell, but only in what people write: a resolved path has none. A path may name
//! something that does not exist yet, or be a glob, so paths are resolved as they are written, except that a path that
//! exists is no glob. The system takes `..` behind a link for another directory: where that matters, [`unambiguous`]
//! refuses the path.

use super::diagnostics::Problem;
use super::source::Place;
use crate::regular::is_spelled;
use crate::weights::checkpoint_name;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// An entry that begins with this is no path.
pub(super) const BUILTIN: &str = "builtin:";

/// `path` without `.` and, where a parent is known, `..`.
pub(super) fn normalize(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => match out.components().next_back() {
                Some(Component::Normal(_)) => {
                    out.pop();
                }
                Some(Component::RootDir | Component::Prefix(_)) => {}
                Some(Component::ParentDir | Component::CurDir) | None => out.push(".."),
            },
            other => out.push(other),
        }
    }
    if out.as_os_str().is_empty() { PathBuf::from(".") } else { out }
}

/// Why a written path cannot be made absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is relative to a directory whose name is not UTF-8.
    NotUtf8(PathBuf),
    /// It begins with `~`, and HOME names no directory.
    NoHome,
    /// It begins with `~` and the name of a user.
    OtherHome,
    /// It has `..` behind a link.
    Linked {
        /// What it is as it is written.
        written: PathBuf,
        /// What the system takes it for.
        followed: PathBuf,
    },
}

impl Fault {
    /// What to say where `key` names the path.
    pub(super) fn complain(&self, key: &str, place: &Place) -> Problem {
        let (what, help) = self.explain();
        Problem::new(format!("`{key}` {what}"), place.clone()).help(help)
    }

    /// What is wrong, after the name of the key, and what to do.
    fn explain(&self) -> (String, String) {
        match self {
            Self::NotUtf8(dir) => (
                "is relative to a directory that is not UTF-8".into(),
                format!("move the recipe, or rename `{}`", dir.display()),
            ),
            Self::NoHome => (
                "begins with `~`, but HOME names no directory".into(),
                "set HOME to an absolute path, or write the path out".into(),
            ),
            Self::OtherHome => (
                "begins with `~` and a name".into(),
                "only `~` and `~/…` stand for a home directory, yours: write the path out; a file of that name is \
                 `./~…`"
                    .into(),
            ),
            Self::Linked { written, followed } => (
                format!(
                    "has `..` behind a link: as it is written it is `{}`, where the link leads it is `{}`",
                    written.display(),
                    followed.display()
                ),
                "write out the one that is meant".into(),
            ),
        }
    }
}

/// The directory to which a written path is relative, and the path relative to it: for a path that begins with `~` that
/// is `home`, the value of HOME, else `dir`.
fn origin<'a>(dir: &Path, home: Option<OsString>, entry: &'a str) -> Result<(PathBuf, &'a str), Fault> {
    let Some(rest) = entry.strip_prefix('~') else { return Ok((dir.to_owned(), entry)) };
    if !rest.is_empty() && !rest.starts_with('/') {
        return Err(Fault::OtherHome);
    }
    let home = home.map(PathBuf::from).filter(|home| home.is_absolute()).ok_or(Fault::NoHome)?;
    Ok((home, rest.trim_start_matches('/')))
}

/// The value of HOME, if this process has one.
fn home() -> Option<OsString> {
    std::env::var_os("HOME")
}

/// A path of the command line, where no shell expands `~/` behind `=`: as paths in recipes, it is below the home
/// directory then, if there is one.
#[must_use]
pub fn at_home(path: PathBuf) -> PathBuf {
    let at_home = path.to_str().and_then(|entry| origin(Path::new(""), home(), entry).ok());
    let at_home = at_home.map(|(dir, rest)| dir.join(rest));
    at_home.unwrap_or(path)
}

/// The path of a file or directory that `entry`, written in a file of `dir`, names.
///
/// # Errors
/// It begins with a `~` that cannot be replaced.
pub(super) fn join(dir: &Path, entry: &str) -> Result<PathBuf, Fault> {
    let (dir, entry) = origin(dir, home(), entry)?;
    Ok(normalize(&dir.join(entry)))
}

/// `path` without `.` and, where a parent is known, `..`, as the system takes it where it exists.
pub(crate) fn settled(path: &Path) -> PathBuf {
    let (head, rest) = at_last_parent(path);
    let folded = normalize(&head);
    let head = match fs::canonicalize(&head) {
        Ok(real) if fs::canonicalize(&folded).ok().as_ref() != Some(&real) => real,
        _ => folded,
    };
    normalize(&head.join(rest))
}

/// Checks that a path, written by a person in a file of `dir` ([`settled`]), is the same file as it is written and as
/// the system takes it. A path that names nothing behind the link is what it is as written.
///
/// # Errors
/// [`Fault::Linked`] if the system takes it for another file, or a pattern for other files, that exists.
pub(super) fn unambiguous(dir: &Path, entry: &str) -> Result<(), Fault> {
    if entry.starts_with(BUILTIN) {
        return Ok(());
    }
    let (dir, entry) = origin(dir, home(), entry)?;
    let (head, rest) = at_last_parent(&dir.join(entry));
    let folded = normalize(&head);
    // also where the pattern is above `..`: no file has that name
    let Ok(real) = fs::canonicalize(&head) else { return Ok(()) };
    if fs::canonicalize(&folded).ok().as_ref() == Some(&real) {
        return Ok(());
    }
    let (written, followed) = (folded.join(&rest), real.join(&rest));
    let is_pattern = rest.to_str().is_some_and(is_glob) && !is_spelled(&followed);
    let meant =
        |dir: &Path| if is_pattern { matches(dir, &rest) } else { Vec::from_iter(file_of(&dir.join(&rest))) };
    let found = meant(&real);
    if found.is_empty() || found == meant(&folded) {
        return Ok(());
    }
    Err(Fault::Linked { written, followed })
}

/// A path to its last `..`, and the rest of it.
fn at_last_parent(path: &Path) -> (PathBuf, PathBuf) {
    let parts: Vec<Component> = path.components().collect();
    let parents = parts.iter().rposition(|part| *part == Component::ParentDir).map_or(0, |last| last + 1);
    (parts[..parents].iter().collect(), parts[parents..].iter().collect())
}

/// What tells a file from all others, where there is one; of a run's checkpoint, the run.
fn file_of(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).or_else(|error| match checkpoint_name(path) {
        Some((run, _)) => fs::metadata(run),
        None => Err(error),
    });
    found.ok().map(|found| (found.dev(), found.ino()))
}

/// The files below `dir` that a pattern matches, in the order of their names.
fn matches(dir: &Path, pattern: &Path) -> Vec<(u64, u64)> {
    let pattern = dir.to_str().map(|dir| Path::new(&glob::Pattern::escape(dir)).join(pattern));
    let found = pattern.as_deref().and_then(Path::to_str).and_then(|pattern| glob::glob(pattern).ok());
    found.into_iter().flatten().filter_map(|path| file_of(&path.ok()?)).collect()
}

/// The absolute form of an entry written in a file of `dir` (absolute).
///
/// A glob stays a glob, and characters of `dir` and of the home directory do not become part of the pattern. A path
/// that exists as it is spelled is no glob.
///
/// # Errors
/// It has no absolute form, or none in UTF-8.
pub(super) fn absolute(dir: &Path, entry: &str) -> Result<String, Fault> {
    if entry.starts_with(BUILTIN) {
        return Ok(entry.to_string());
    }
    let (dir, entry) = origin(dir, home(), entry)?;
    let not_utf8 = || Fault::NotUtf8(dir.clone());
    let spelled = normalize(&dir.join(entry));
    let joined = if is_glob(entry) && !is_spelled(&spelled) {
        let escaped = glob::Pattern::escape(dir.to_str().ok_or_else(not_utf8)?);
        // Components above `entry` may be dropped by its `..`; escaping does not change their number.
        normalize(&Path::new(&escaped).join(entry))
    } else {
        spelled
    };
    joined.to_str().map(str::to_string).ok_or_else(not_utf8)
}

/// The shortest form of an absolute entry for a file in `dir` (absolute).
///
/// An entry that shares only the root with `dir` stays absolute: it does not belong to the tree that moves with it.
pub(super) fn relative(dir: &Path, entry: &str) -> String {
    let path = Path::new(entry);
    if entry.starts_with(BUILTIN) || !path.is_absolute() {
        return entry.to_string();
    }
    let dir: Vec<Component> = dir.components().collect();
    let parts: Vec<Component> = path.components().collect();
    let same = |(dir, part): &(&Component, &Component)| {
        dir == part
            || (is_glob(entry)
                && dir
                    .as_os_str()
                    .to_str()
                    .is_some_and(|dir| part.as_os_str() == glob::Pattern::escape(dir).as_str()))
    };
    let shared = dir.iter().zip(&parts).take_while(same).count();
    if shared < 2 {
        return entry.to_string();
    }
    let mut out: PathBuf = std::iter::repeat_n(Component::ParentDir, dir.len() - shared).collect();
    out.extend(&parts[shared..]);
    match out.to_str() {
        Some("") | None => ".".to_string(),
        // what a reader would take for something else
        Some(text) if text.starts_with(BUILTIN) || text.starts_with('~') => format!("./{text}"),
        Some(text) => text.to_string(),
    }
}

fn is_glob(entry: &str) -> bool {
    entry.contains(['*', '?', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_folded_without_looking_at_the_disk() {
        for (path, expected) in [
            ("/a/./b/../c", "/a/c"),
            ("/../a", "/a"),
            ("../../a", "../../a"),
            ("a/..", "."),
            ("/a/b*/../c?", "/a/c?"),
        ] {
            assert_eq!(normalize(Path::new(path)), Path::new(expected), "{path}");
        }
    }

    #[test]
    fn entries_come_back_from_another_directory() {
        let home = Path::new("/home/u/recipes");
        let run = Path::new("/home/u/runs/a-1234");
        for (written, resolved, moved) in [
            ("../data/*.bin", "/home/u/data/*.bin", "../../data/*.bin"),
            ("x.txt", "/home/u/recipes/x.txt", "../../recipes/x.txt"),
            ("/mnt/big/x.bin", "/mnt/big/x.bin", "/mnt/big/x.bin"),
            ("builtin:lipsum", "builtin:lipsum", "builtin:lipsum"),
            ("../runs/a-1234/./builtin:x", "/home/u/runs/a-1234/builtin:x", "./builtin:x"),
            ("../runs/a-1234", "/home/u/runs/a-1234", "."),
            ("../runs/a-1234/~/x.txt", "/home/u/runs/a-1234/~/x.txt", "./~/x.txt"),
            ("../data/~u.txt", "/home/u/data/~u.txt", "../../data/~u.txt"),
        ] {
            let absolute = absolute(home, written).expect("UTF-8");
            assert_eq!(absolute, resolved);
            assert_eq!(relative(run, &absolute), moved);
            assert_eq!(super::absolute(run, moved).as_deref(), Ok(resolved));
        }
    }

    #[test]
    fn a_directory_with_brackets_is_no_pattern() {
        let dir = Path::new("/home/[new]/recipes");
        let glob = absolute(dir, "../data/*.bin").expect("UTF-8");
        let pattern = glob::Pattern::new(&glob).expect("a valid pattern");
        assert!(pattern.matches("/home/[new]/data/a.bin"), "{glob}");
        assert_eq!(relative(Path::new("/home/[new]/runs/a"), &glob), "../../data/*.bin");
        assert_eq!(absolute(dir, "x.txt").as_deref(), Ok("/home/[new]/recipes/x.txt"));
    }

    #[test]
    fn what_exists_as_it_is_spelled_is_no_pattern() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = normalize(root.path()).join("[x]");
        std::fs::create_dir(&dir).expect("a directory");
        std::fs::write(dir.join("a[1].bin"), "").expect("a file");
        let there = dir.join("a[1].bin").to_str().expect("UTF-8").to_owned();
        assert_eq!(absolute(&dir, "a[1].bin"), Ok(there.clone()));
        assert_eq!(relative(&dir.join("runs/a"), &there), "../../a[1].bin");
        assert!(absolute(&dir, "b[1].bin").is_ok_and(|glob| glob.ends_with("/[[]x[]]/b[1].bin")));
    }

    #[test]
    fn a_tilde_is_the_home_directory_and_nothing_else() {
        let (dir, home) = (Path::new("/recipes"), |path: &str| Some(OsString::from(path)));
        let found = |home, entry| origin(dir, home, entry).map(|(dir, rest)| dir.join(rest));
        for (entry, expected) in [
            ("~/data/*.bin", "/home/u/data/*.bin"),
            ("~//x", "/home/u/x"),
            ("~", "/home/u/"),
            ("x/~/y", "/recipes/x/~/y"),
            ("./~x", "/recipes/./~x"),
        ] {
            assert_eq!(found(home("/home/u"), entry).as_deref(), Ok(Path::new(expected)), "{entry}");
        }
        for (home, entry, fault) in [
            (home("/home/u"), "~root/x", Fault::OtherHome),
            (None, "~x", Fault::OtherHome),
            (None, "~/x", Fault::NoHome),
            (home(""), "~", Fault::NoHome),
            (home("relative"), "~/x", Fault::NoHome),
        ] {
            assert_eq!(found(home, entry), Err(fault), "{entry}");
        }
    }
}
