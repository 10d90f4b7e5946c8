//! Turns a recipe's list of data into the files and built-in texts to open.

use super::lipsum::{Lipsum, PREFIX};
use super::{DataError, unfinished};
use crate::regular::{
    self, Looked, Matches, Refused, check_listed, check_planted, is_spelled, matching_within,
};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The origin of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    File(Found),
    Builtin(Lipsum),
}

/// A file or a directory, and what of its path the user has spelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) named: PathBuf,
}

impl Found {
    /// What the user has named.
    pub(super) fn named(path: &Path) -> Self {
        Self { path: path.to_owned(), named: path.to_owned() }
    }

    /// A file or a directory below this one.
    pub(super) fn below(&self, path: PathBuf) -> Self {
        Self { path, named: self.named.clone() }
    }

    /// Opens the file, though not through a link of another user to what is not theirs, unless the user has named it.
    pub(super) fn open(&self) -> io::Result<File> {
        regular::open_unplanted(&self.path, &self.named)
    }
}

/// Expands each glob in sorted order, and keeps plain paths and built-in names as they are.
pub(super) fn expand(specs: &[String]) -> Result<Vec<Source>, DataError> {
    expand_within(specs, &mut Looked::default())
}

fn expand_within(specs: &[String], looked: &mut Looked) -> Result<Vec<Source>, DataError> {
    if specs.is_empty() {
        return Err(DataError::NothingNamed);
    }
    let mut sources = Vec::new();
    for spec in specs {
        if spec.starts_with(PREFIX) {
            sources.push(Source::Builtin(Lipsum::parse(spec)?));
        } else if is_name(spec) {
            unfinished::check_shard(Path::new(spec))?;
            sources.push(Source::File(Found::named(Path::new(spec))));
        } else {
            let paths = matches(spec, looked)?;
            let named = Found::named(Path::new(&spec[..literal(spec)]));
            let planted = |path: &PathBuf| check_planted(path, &named.path).map_err(DataError::read(path));
            paths.iter().try_for_each(planted)?;
            unfinished::check_matches(spec, &named.path, &paths)?;
            sources.extend(paths.into_iter().map(|path| Source::File(named.below(path))));
        }
    }
    Ok(sources)
}

/// The files that names lead to: paths, and what patterns match. What leads to nothing, or is built in, is left out.
#[must_use]
pub fn files(specs: &[String]) -> Vec<PathBuf> {
    files_of_each(specs).flat_map(|(_, files)| files).collect()
}

/// The [`files`] that each name leads to.
pub(super) fn files_of_each(specs: &[String]) -> impl Iterator<Item = (&String, Vec<PathBuf>)> {
    let mut looked = Looked::default();
    let path = |source| match source {
        Source::File(found) => Some(found.path),
        Source::Builtin(_) => None,
    };
    specs.iter().filter_map(move |spec| {
        let sources = expand_within(std::slice::from_ref(spec), &mut looked).ok()?;
        Some((spec, sources.into_iter().filter_map(path).collect()))
    })
}

/// The path that an entry names, or those that it matches as a pattern, in order. What is there as it is spelled is no
/// pattern.
///
/// # Errors
/// [`DataError`] for a pattern that matches nothing, is malformed, or leads past too many names or to a directory that
/// cannot be read.
pub fn named_or_matching(entry: &str, looked: &mut Looked) -> Result<Vec<PathBuf>, DataError> {
    if is_name(entry) {
        return Ok(vec![PathBuf::from(entry)]);
    }
    let (paths, listed) = (matches(entry, looked)?, Path::new(&entry[..literal(entry)]));
    paths.iter().try_for_each(|path| check_listed(path, listed).map_err(DataError::read(path)))?;
    Ok(paths)
}

/// Why a name would lead to nothing, for each such name in `specs`.
pub(super) fn missing(specs: &[String]) -> Vec<DataError> {
    let mut looked = Looked::default();
    let fault = |spec: &String| match expand_within(std::slice::from_ref(spec), &mut looked) {
        Ok(sources) => sources.iter().find_map(|source| match source {
            Source::File(Found { path, .. }) => path.metadata().err().map(DataError::read(path)),
            Source::Builtin(_) => None,
        }),
        Err(error) => Some(error),
    };
    specs.iter().filter_map(fault).collect()
}

/// Whether an entry names a path.
pub(super) fn is_name(entry: &str) -> bool {
    !entry.contains(['*', '?', '[']) || is_spelled(Path::new(entry))
}

fn matches(pattern: &str, looked: &mut Looked) -> Result<Vec<PathBuf>, DataError> {
    let refused = |refused: Refused| match refused {
        Refused::Malformed(error) => {
            DataError::BadPattern { pattern: pattern.into(), detail: error.to_string() }
        }
        Refused::TooMany => DataError::Read { path: pattern.into(), error: io::Error::other(refused) },
    };
    let Matches { paths, unreadable } =
        matching_within(&escape_directories(pattern), looked).map_err(refused)?;
    match unreadable {
        Some((path, error)) => Err(DataError::Read { path, error }),
        None if paths.is_empty() => Err(DataError::NoMatch { pattern: pattern.into() }),
        None => Ok(paths),
    }
}

/// The length of the leading directories that exist as spelled.
fn literal(pattern: &str) -> usize {
    let slashes = pattern.match_indices('/').map(|(slash, _)| slash);
    slashes.take_while(|&slash| slash == 0 || Path::new(&pattern[..slash]).is_dir()).last().unwrap_or(0)
}

/// Escapes the leading directories that exist as spelled, so that a project may be in a directory named like
/// `runs[old]`.
fn escape_directories(pattern: &str) -> String {
    let (directories, rest) = pattern.split_at(literal(pattern));
    glob::Pattern::escape(directories) + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: PathBuf) -> PathBuf {
        std::fs::write(&path, "x").expect("written");
        path
    }

    fn files(specs: &[&str]) -> Result<Vec<Source>, DataError> {
        expand(&specs.iter().map(|s| s.to_string()).collect::<Vec<_>>())
    }

    fn found(path: &Path, named: &Path) -> Source {
        Source::File(Found { path: path.to_owned(), named: named.to_owned() })
    }

    #[test]
    fn globs_are_sorted_and_stand_where_they_are_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str| dir.path().join(name);
        let (b, a, c) = (touch(file("train-2.bin")), touch(file("train-10.bin")), touch(file("first.bin")));
        let glob = file("train-*.bin").display().to_string();
        let sources = files(&[&c.display().to_string(), &glob, "builtin:lipsum:seed=4"]).expect("expanded");
        let lipsum = Source::Builtin(Lipsum { seed: 4, words: 200_000 });
        let named = dir.path();
        assert_eq!(sources, [found(&c, &c), found(&a, named), found(&b, named), lipsum]);
    }

    #[test]
    fn glob_characters_in_existing_names_are_literal() {
        let dir = tempfile::tempdir().expect("a directory");
        let odd = dir.path().join("runs[old] *");
        std::fs::create_dir(&odd).expect("a directory");
        let (a, b) = (touch(odd.join("a[1].bin")), touch(odd.join("b.bin")));
        assert_eq!(files(&[&a.display().to_string()]).expect("expanded"), [found(&a, &a)]);
        let glob = odd.join("*.bin").display().to_string();
        assert_eq!(files(&[&glob]).expect("expanded"), [found(&a, &odd), found(&b, &odd)]);
    }

    #[test]
    fn a_spec_that_names_no_file_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let glob = dir.path().join("val-*.bin").display().to_string();
        assert!(
            files(&[&glob])
                .expect_err("refused")
                .to_string()
                .starts_with(&format!("`{glob}` matches no file"))
        );
        assert!(
            files(&["/x/[a.bin"])
                .expect_err("refused")
                .to_string()
                .contains("`/x/[a.bin` is not a valid glob")
        );
        assert!(files(&[]).expect_err("refused").to_string().contains("no data is named"));
        assert!(files(&["builtin:x"]).expect_err("refused").to_string().contains("not built in"));
    }
}
