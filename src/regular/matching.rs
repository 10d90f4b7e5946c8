//! The paths that a pattern matches, however links lead round below it.
//!
//! Two links from a directory to itself make 2^40 paths to it before the system stops. So `**` enters each directory
//! once here, and a pattern that leads past too many names is refused. `glob` has the patterns, and would walk all of
//! that.

use glob::{MatchOptions, Pattern, PatternError};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes that the paths which are looked at for one pattern, or for those of a key, take in memory at most: a million
/// of usual length.
const MOST: usize = 128 << 20;
/// Directories that are entered for as many at most. A deep one counts as several, for the system takes time for each
/// name of the path to it.
const MOST_ENTERED: usize = 1 << 18;
const USUAL_DEPTH: usize = 16;

const WHOLE_NAMES: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: false,
    require_literal_leading_dot: true,
};

/// What a pattern matches.
#[derive(Debug, Default)]
pub struct Matches {
    /// The paths, sorted. Below `**`, a directory has the first of the paths that lead there.
    pub paths: Vec<PathBuf>,
    /// The first directory that could not be read, and why.
    pub unreadable: Option<(PathBuf, io::Error)>,
}

/// Why nothing can be said of a pattern.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It cannot be parsed.
    #[error("{0}")]
    Malformed(#[from] PatternError),
    /// It leads past more names than are looked at.
    #[error("{TOO_MANY}")]
    TooMany,
}

const TOO_MANY: &str = "it leads past too many names: name a directory further down";

impl Refused {
    /// The reason without the place in the pattern.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(error) => error.msg,
            Self::TooMany => TOO_MANY,
        }
    }
}

/// Finds the paths that a pattern matches, as `glob` has it: `*` stays within a name, `**` stands for any directories,
/// and a pattern that ends in a slash or in `**` matches directories. A hidden name, which begins with a dot, is
/// matched where the pattern has that dot, as in a shell; `**` stands for no hidden directory.
///
/// # Errors
/// [`Refused`]. Directories that cannot be read are noted and passed over.
pub fn matching(pattern: &str) -> Result<Matches, Refused> {
    matching_within(pattern, &mut Looked::default())
}

/// [`matching`] of one of several patterns, which together lead past no more names than one may.
///
/// # Errors
/// As those of [`matching`].
pub fn matching_within(pattern: &str, looked: &mut Looked) -> Result<Matches, Refused> {
    let mut walk = Walk { looked, unreadable: None };
    let mut parts = pattern.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>();
    // any directories below any directories
    parts.dedup_by(|part, before| *part == "**" && *before == "**");
    let mut parts = parts.into_iter().peekable();
    let mut paths = vec![PathBuf::from(if pattern.starts_with('/') { "/" } else { "" })];
    let mut matches_directories = pattern.ends_with('/');
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        if part == "**" {
            matches_directories |= is_last;
            // what it begins with is not below itself
            let begins: HashSet<PathBuf> = paths.iter().filter(|_| is_last).cloned().collect();
            paths = walk.below(paths)?;
            paths.retain(|path| !begins.contains(path));
        } else {
            let pattern = Pattern::new(part)?;
            let is_literal = !part.contains(['*', '?', '[']);
            let mut found = Vec::new();
            for path in paths {
                match is_literal {
                    true => found.extend(literally(&path, part)),
                    false => found.extend(walk.names(&path)?.into_iter().filter(|path| {
                        let name = path.file_name().unwrap_or_default().to_string_lossy();
                        pattern.matches_with(&name, WHOLE_NAMES)
                    })),
                }
            }
            paths = found;
        }
        if !is_last {
            paths.retain(|path| path.as_os_str().is_empty() || path.is_dir());
        }
    }
    paths.retain(|path| !path.as_os_str().is_empty() && (!matches_directories || path.is_dir()));
    paths.sort();
    Ok(Matches { paths, unreadable: walk.unreadable })
}

/// The path of a name as it is written, if there is something.
fn literally(dir: &Path, name: &str) -> Option<PathBuf> {
    if name == "." && dir.as_os_str().is_empty() {
        return Some(PathBuf::new());
    }
    let path = dir.join(name);
    fs::symlink_metadata(&path).is_ok().then_some(path)
}

/// Whether the last name of a path begins with a dot.
#[must_use]
pub fn is_hidden(path: impl AsRef<Path>) -> bool {
    path.as_ref().file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Where a directory lies: the empty path is the current one.
fn place_of(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

/// How much was looked at for some patterns.
#[derive(Debug, Default)]
pub struct Looked {
    /// What the paths took in memory.
    taken: usize,
    /// The directories that were entered.
    entered: usize,
}

struct Walk<'a> {
    looked: &'a mut Looked,
    unreadable: Option<(PathBuf, io::Error)>,
}

impl Walk<'_> {
    /// What lies in a directory, by name.
    fn names(&mut self, dir: &Path) -> Result<Vec<PathBuf>, Refused> {
        let place = place_of(dir);
        let mut names = Vec::new();
        self.looked.entered += 1 + dir.components().count() / USUAL_DEPTH;
        if self.looked.entered > MOST_ENTERED {
            return Err(Refused::TooMany);
        }
        let entries = match fs::read_dir(place) {
            Ok(entries) => entries,
            Err(error) => {
                self.unreadable.get_or_insert_with(|| (place.to_owned(), error));
                return Ok(names);
            }
        };
        for entry in entries {
            match entry {
                Ok(entry) => {
                    let path = dir.join(entry.file_name());
                    self.looked.taken += size_of::<PathBuf>() + path.as_os_str().len();
                    names.push(path);
                }
                Err(error) => drop(self.unreadable.get_or_insert_with(|| (place.to_owned(), error))),
            }
            if self.looked.taken > MOST {
                return Err(Refused::TooMany);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Directories and all below them, each once.
    fn below(&mut self, dirs: Vec<PathBuf>) -> Result<Vec<PathBuf>, Refused> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        // in the order of names, so that of several paths to a directory the first one is taken
        let mut next: Vec<PathBuf> = dirs.into_iter().rev().collect();
        while let Some(dir) = next.pop() {
            let is_new = |found: fs::Metadata| seen.insert((found.dev(), found.ino()));
            if !fs::metadata(place_of(&dir)).is_ok_and(is_new) {
                continue;
            }
            next.extend(self.names(&dir)?.into_iter().rev().filter(|path| !is_hidden(path) && path.is_dir()));
            found.push(dir);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, "x").expect("a file");
        }
        dir
    }

    fn found(dir: &tempfile::TempDir, pattern: &str) -> Vec<String> {
        let whole = format!("{}/{pattern}", Pattern::escape(dir.path().to_str().expect("UTF-8")));
        let found = matching(&whole).expect("a pattern");
        let below = |path: &PathBuf| path.strip_prefix(dir.path()).expect("below").display().to_string();
        found.paths.iter().map(below).collect()
    }

    #[test]
    fn patterns_match_what_glob_matches() {
        let dir = tree(&["a/x.bin", "a/b/y.bin", "a/b/c/w.txt", "d/x.bin", "[e]/x.bin", "f"]);
        for pattern in [
            "*",
            "a/*",
            "a/*.bin",
            "*/x.bin",
            "**/*.bin",
            "a/**/*.bin",
            "a/**",
            "**",
            "**/",
            "a/b/",
            "f/",
            "*/",
            "a/**/b/*",
            "**/c/**/w.txt",
            "[ad]/?.bin",
            "[[]e]/*",
            "a/b/../*",
            "./a/./*",
            "**/**/*.txt",
            "nothing/*",
            "f/*",
            "a//x.bin",
        ] {
            let whole = format!("{}/{pattern}", Pattern::escape(dir.path().to_str().expect("UTF-8")));
            let mut expected: Vec<PathBuf> =
                glob::glob(&whole).expect("a pattern").map(Result::unwrap).collect();
            // it may name one twice, by two ways to go through `**`
            expected.sort();
            expected.dedup();
            let of = |path: &PathBuf| path.components().collect::<PathBuf>();
            let found: Vec<_> = matching(&whole).expect("a pattern").paths.iter().map(of).collect();
            assert_eq!(found, expected.iter().map(of).collect::<Vec<_>>(), "{pattern}");
        }
    }

    #[test]
    fn hidden_names_are_matched_where_the_pattern_has_their_dot() {
        let dir = tree(&["a/.z.bin", "a/x.bin", "a/.h/y.bin", "a/.h/b/w.bin", ".top/x.bin"]);
        assert_eq!(found(&dir, "a/*"), ["a/x.bin"]);
        assert_eq!(found(&dir, "**/*.bin"), ["a/x.bin"]);
        assert_eq!(found(&dir, "*/x.bin"), ["a/x.bin"]);
        assert_eq!(found(&dir, "a/.*.bin"), ["a/.z.bin"]);
        assert_eq!(found(&dir, "a/.h/**/*.bin"), ["a/.h/b/w.bin", "a/.h/y.bin"]);
        assert_eq!(found(&dir, ".t*/*"), [".top/x.bin"]);
    }

    #[test]
    fn links_that_lead_round_are_entered_once() {
        let dir = tree(&["a/x.txt"]);
        for name in ["1", "2", "3"] {
            symlink(".", dir.path().join("a").join(name)).expect("a link");
        }
        assert_eq!(found(&dir, "**/*.txt"), ["a/x.txt"]);
        assert_eq!(found(&dir, "a/*/x.txt"), ["a/1/x.txt", "a/2/x.txt", "a/3/x.txt"]);
        let stars = format!("{}x.txt", "*/".repeat(30));
        let whole = format!("{}/a/{stars}", dir.path().display());
        assert!(matches!(matching(&whole), Err(Refused::TooMany)));
    }

    #[test]
    fn any_directories_below_any_directories_are_any_directories() {
        let names: Vec<String> = (0..20).map(|name| format!("{name}/x")).collect();
        let dir = tree(&names.iter().map(String::as_str).collect::<Vec<_>>());
        // each of them would enter 20 directories
        let whole = format!("{}/{}x", dir.path().display(), "**/".repeat(60_000));
        assert_eq!(matching(&whole).expect("a pattern").paths.len(), 20);
    }

    #[test]
    fn a_broken_pattern_is_refused() {
        for pattern in ["a[", "x/***", "a**/b"] {
            assert!(matches!(matching(pattern), Err(Refused::Malformed(_))), "{pattern}");
        }
    }
}
