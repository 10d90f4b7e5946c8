//! Paths in recipes: relative to the file that names them when written, absolute when resolved.
//!
//! All functions are lexical, so a path may name something that does not exist yet, or be a glob.

use std::path::{Component, Path, PathBuf};

/// An entry that begins with this is no path.
const BUILTIN: &str = "builtin:";

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

/// The absolute form of an entry written in a file of `dir` (absolute). `None` if it is not UTF-8.
///
/// A glob stays a glob, and characters of `dir` do not become part of the pattern.
pub(super) fn absolute(dir: &Path, entry: &str) -> Option<String> {
    if entry.starts_with(BUILTIN) {
        return Some(entry.to_string());
    }
    let joined = if is_glob(entry) {
        let escaped = glob::Pattern::escape(dir.to_str()?);
        // Components above `entry` may be dropped by its `..`; escaping does not change their number.
        normalize(&Path::new(&escaped).join(entry))
    } else {
        normalize(&dir.join(entry))
    };
    joined.to_str().map(str::to_string)
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
        Some(text) if text.starts_with(BUILTIN) => format!("./{text}"),
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
        ] {
            let absolute = absolute(home, written).expect("UTF-8");
            assert_eq!(absolute, resolved);
            assert_eq!(relative(run, &absolute), moved);
            assert_eq!(super::absolute(run, moved).as_deref(), Some(resolved));
        }
    }

    #[test]
    fn a_directory_with_brackets_is_no_pattern() {
        let dir = Path::new("/home/[new]/recipes");
        let glob = absolute(dir, "../data/*.bin").expect("UTF-8");
        let pattern = glob::Pattern::new(&glob).expect("a valid pattern");
        assert!(pattern.matches("/home/[new]/data/a.bin"), "{glob}");
        assert_eq!(relative(Path::new("/home/[new]/runs/a"), &glob), "../../data/*.bin");
        assert_eq!(absolute(dir, "x.txt").as_deref(), Some("/home/[new]/recipes/x.txt"));
    }
}
