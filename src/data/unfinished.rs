//! What shows that data are not whole: what lies beside shards while a preparation or a download goes on, or was
//! killed, and holes in a file.

use super::DataError;
use super::card::CARD;
use crate::regular::{self, another_owner, is_put_beside};
use crate::wording::grouped;
use std::fs::{self, DirEntry, File};
use std::path::{Path, PathBuf};

/// The directory of an unfinished preparation, beside its shards.
pub(super) const PREPARE: &str = ".prepare";
/// Its state, which is there before its first shard is.
pub(super) const STATE: &str = "state.json";
/// The directory of files that are not fetched yet, beside those that are.
pub(super) const FETCH: &str = ".fetch";
/// How the names in [`FETCH`] end of lists of the files of a download, as an array of JSON.
pub(super) const FILES: &str = ".files";

/// More than is in the holes of any whole file, in bytes: of one that claims terabytes, nearly all is a hole.
pub(super) const HOLES: u64 = 1 << 30;

/// Files that are not to be used yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfinished {
    /// A shard of a preparation that has not ended.
    #[error(
        "`{}` is a shard of an unfinished preparation, as `{}` shows: wait for its end, or start the same `runner data \
         prepare` again, which finishes it",
        path.display(),
        by.display()
    )]
    Preparation {
        /// The shard.
        path: PathBuf,
        /// What shows it.
        by: PathBuf,
    },
    /// Files among which others are missing.
    #[error(
        "`{pattern}` names files of an unfinished `runner data fetch`, as `{}` shows: wait for its end, start the same \
         command again, or remove that directory to do without the files that are missing",
        by.display()
    )]
    Fetch {
        /// The pattern, or a directory.
        pattern: String,
        /// What shows it.
        by: PathBuf,
    },
    /// A file with large parts that nothing was written to.
    #[error(
        "`{}` has {} in holes, which are read as zeros: what wrote it may have ended early; make or get the file again",
        path.display(),
        grouped(*bytes, "byte")
    )]
    Hole {
        /// The file.
        path: PathBuf,
        /// Bytes of such parts, or of the first of them.
        bytes: u64,
    },
}

/// How many bytes of a file are in holes, as far as the system tells. Reading begins at the beginning then.
///
/// # Errors
/// [`Unfinished::Hole`] where these are more than `most`: to read terabytes of them would take hours.
pub(super) fn holes(path: &Path, file: &File, most: u64) -> Result<u64, DataError> {
    match regular::holes(file, most).map_err(DataError::read(path))? {
        bytes if bytes > most => Err(Unfinished::Hole { path: path.to_owned(), bytes }.into()),
        bytes => Ok(bytes),
    }
}

/// [`holes`] of a file that is trained on, however large it is: fewer than a gigabyte, or than it has data.
///
/// # Errors
/// As those of [`holes`].
pub(super) fn holes_of_data(path: &Path, file: &File, length: usize) -> Result<u64, DataError> {
    holes(path, file, HOLES.max(length as u64 / 2))
}

/// The directory of a preparation into `dir` that has not ended.
pub(super) fn preparation(dir: &Path) -> Option<PathBuf> {
    directory(dir, PREPARE).filter(|_| !dir.join(CARD).exists())
}

/// A directory in another one, and no link to one.
fn directory(dir: &Path, name: &str) -> Option<PathBuf> {
    let path = dir.join(name);
    path.symlink_metadata().is_ok_and(|found| found.is_dir()).then_some(path)
}

/// The directory of a download that has not ended and has files in `dir`, where these files lie, or below it: one into
/// `dir`, or into a directory above it some of whose files are there and others missing, of these one in `asked` or
/// below it, which is the directory in which files are looked for. An empty one is the first that there is.
pub(super) fn fetch<'f>(
    dir: &Path,
    asked: &Path,
    files: impl IntoIterator<Item = &'f PathBuf> + Clone,
) -> Option<PathBuf> {
    let here = Path::new(if dir.is_absolute() { "/" } else { "." });
    let asked = if asked.as_os_str().is_empty() { here } else { asked };
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    // through a link they lie elsewhere
    let (below, asked) = (real(dir), real(asked));
    let asked = Some(asked).filter(|asked| below.starts_with(asked)).unwrap_or(below);
    unended(dir, files, |above, list| lacks(above, list) && is_missing_in(&asked, above, list))
}

/// The directory of a download that has not ended and of which files in `dir` or below it are missing.
pub(super) fn fetch_into(dir: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(dir).ok()?;
    unended(dir, &[], |above, list| is_missing_in(&real, above, list))
}

/// Whether one of these files in the directory `above` that are in `dir` or below it is missing.
fn is_missing_in(dir: &Path, above: &Path, list: &[String]) -> bool {
    let mut paths = list.iter().map(|name| above.join(name));
    paths.any(|path| path.starts_with(dir) && !path.exists())
}

/// The directory of a download into `dir` that has not ended, or of one into a directory above it that has files in
/// `dir` or below it, and of whose files `is_one` holds: it is told of that directory, and what they are called there.
/// One that another user has put there is no download of a third one's files.
fn unended<'f>(
    dir: &Path,
    files: impl IntoIterator<Item = &'f PathBuf> + Clone,
    is_one: impl Fn(&Path, &[String]) -> bool,
) -> Option<PathBuf> {
    let counts = |parts: &PathBuf| {
        another_owner(parts).is_none_or(|stranger| {
            let is_theirs = |path: &Path| another_owner(path) == Some(stranger);
            is_theirs(dir) || files.clone().into_iter().any(|file| dir_of(file) == dir && is_theirs(file))
        })
    };
    let here = directory(dir, FETCH).filter(|parts| !is_empty(parts) && counts(parts));
    here.or_else(|| {
        let real = fs::canonicalize(dir).ok()?;
        real.ancestors().skip(1).find_map(|above| {
            let below = real.strip_prefix(above).ok()?;
            let has = |list: &[String]| list.iter().any(|name| Path::new(name).starts_with(below));
            let is_one = |parts: &PathBuf| lists(parts).any(|list| has(&list) && is_one(above, &list));
            directory(above, FETCH).filter(counts).filter(is_one)
        })
    })
}

/// The lists of files in the directory of downloads. What cannot be read is passed over.
fn lists(parts: &Path) -> impl Iterator<Item = Vec<String>> {
    let entries = fs::read_dir(parts).into_iter().flatten().flatten();
    let lists = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.ends_with(FILES)));
    let text = |entry: DirEntry| regular::read_unlinked(&entry.path(), regular::DOCUMENT).ok();
    lists.filter_map(text).map(|text| list(&text))
}

/// A list of files. What is none, as after a power failure, is empty: it is written before the first of them gets its
/// name.
pub(super) fn list(text: &[u8]) -> Vec<String> {
    serde_json::from_slice(text).unwrap_or_default()
}

/// Whether some of these files in a directory are there and others missing.
pub(super) fn lacks(dir: &Path, list: &[String]) -> bool {
    let is_there = |name: &String| dir.join(name).exists();
    list.iter().any(is_there) && !list.iter().all(is_there)
}

/// Whether nothing is in a directory, or only what a file server keeps there of files that were deleted while they were
/// open. What cannot be read may hold anything.
fn is_empty(dir: &Path) -> bool {
    let is_left = |name: &str| name.starts_with(".nfs") || name.starts_with(".fuse_hidden");
    let is_left = |entry: &DirEntry| entry.file_name().to_str().is_some_and(is_left);
    fs::read_dir(dir).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| is_left(&entry))))
}

/// Checks that a file, if it is a shard, is not one of an unfinished preparation. What another user has put beside it
/// has made no shard of a third one's.
///
/// # Errors
/// [`Unfinished::Preparation`].
pub fn check_shard(path: &Path) -> Result<(), Unfinished> {
    if path.extension().is_none_or(|extension| extension != "bin") {
        return Ok(());
    }
    let is_its = |inside: &PathBuf| inside.join(STATE).exists() && !is_put_beside(inside, path);
    match preparation(dir_of(path)).filter(is_its) {
        Some(by) => Err(Unfinished::Preparation { path: path.to_owned(), by }),
        None => Ok(()),
    }
}

/// Checks that the files are all there that a pattern may match in `asked`, the directory that it begins with, or below
/// it.
pub(super) fn check_matches(pattern: &str, asked: &Path, paths: &[PathBuf]) -> Result<(), Unfinished> {
    let mut last = None;
    for path in paths {
        let dir = dir_of(path);
        if last != Some(dir)
            && let Some(by) = fetch(dir, asked, paths)
        {
            return Err(Unfinished::Fetch { pattern: pattern.to_owned(), by });
        }
        last = Some(dir);
    }
    paths.iter().try_for_each(|path| check_shard(path))
}

/// The directory that a file lies in.
pub(super) fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
