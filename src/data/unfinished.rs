//! What shows that data are not whole: what lies beside shards while a preparation or a download goes on, or was
//! killed, and holes in a file.

use super::DataError;
use super::card::CARD;
use crate::regular::{self, another_owner, is_put_beside};
use crate::wording::grouped;
use std::collections::{HashMap, HashSet};
use std::fs::{self, DirEntry, File};
use std::path::{Path, PathBuf};

/// The directory of an unfinished preparation, beside its shards.
pub(super) const PREPARE: &str = ".prepare";
/// Its state, which is there before its first shard is.
pub(super) const STATE: &str = "state.json";
/// The directory of files that are not fetched yet, beside those that are.
pub(super) const FETCH: &str = ".fetch";
/// How the names end there of what has come of a file.
const PART: &str = ".part";
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

/// Downloads that have not ended, looked for while the files in a directory and below it are found.
pub(super) struct Downloads {
    /// That directory, without links.
    asked: PathBuf,
    /// By the directories of downloads, those that have files of unfinished ones, or something below that has.
    known: HashMap<PathBuf, HashSet<PathBuf>>,
}

impl Downloads {
    /// Looks for files in `asked`; an empty one is the first of a path, as is `is_absolute` or is not.
    pub(super) fn among(asked: &Path, is_absolute: bool) -> Self {
        let first = Path::new(if is_absolute { "/" } else { "." });
        let asked = if asked.as_os_str().is_empty() { first } else { asked };
        Self { asked: fs::canonicalize(asked).unwrap_or_else(|_| asked.to_owned()), known: HashMap::new() }
    }

    /// The directory of a download that has not ended and has files in `dir`, where these files lie, or below it: one
    /// into `dir`, or into a directory above it some of whose files are there and others missing, of these one in the
    /// directory that is asked for. One that another user has put there is no download of a third one's files.
    pub(super) fn unfinished<'f>(
        &mut self,
        dir: &Path,
        files: impl IntoIterator<Item = &'f PathBuf> + Clone,
    ) -> Option<PathBuf> {
        here(dir, files.clone()).or_else(|| {
            let real = fs::canonicalize(dir).ok()?;
            above(&real, |out, below| {
                let parts = directory(out, FETCH).filter(|parts| counts(parts, dir, files.clone()))?;
                let is_one = match real.starts_with(&self.asked) {
                    true => {
                        let of = || directories(&parts, out, &self.asked);
                        self.known.entry(out.to_owned()).or_insert_with(of).contains(below)
                    }
                    // a link has led there
                    false => directories(&parts, out, &real).contains(below),
                };
                is_one.then_some(parts)
            })
        })
    }
}

/// The directory of a download that has not ended and of which files in `dir` or below it are missing.
pub(super) fn fetch_into(dir: &Path) -> Option<PathBuf> {
    here(dir, &[]).or_else(|| {
        // which need not be there yet
        let known =
            dir.ancestors().find_map(|known| Some((fs::canonicalize(dir_or_here(known)).ok()?, known)));
        let (real, known) = known?;
        let real = real.join(dir.strip_prefix(known).ok()?);
        above(&real, |out, _| {
            let parts = directory(out, FETCH).filter(|parts| counts(parts, dir, &[]))?;
            let is_one = lists(&parts).any(|list| is_missing_in(&real, out, &list));
            is_one.then_some(parts)
        })
    })
}

/// The directory of a download into `dir` that has not ended.
fn here<'f>(dir: &Path, files: impl IntoIterator<Item = &'f PathBuf> + Clone) -> Option<PathBuf> {
    directory(dir, FETCH).filter(|parts| !is_empty(parts) && counts(parts, dir, files))
}

/// Whether a directory of downloads is no other user's, or has files in `dir` of theirs.
fn counts<'f>(parts: &Path, dir: &Path, files: impl IntoIterator<Item = &'f PathBuf>) -> bool {
    another_owner(parts).is_none_or(|stranger| {
        let is_theirs = |path: &Path| another_owner(path) == Some(stranger);
        is_theirs(dir) || files.into_iter().any(|file| dir_of(file) == dir && is_theirs(file))
    })
}

/// What is `found` first in the directories above one, told of each and of the way from there.
fn above<T>(real: &Path, mut found: impl FnMut(&Path, &Path) -> Option<T>) -> Option<T> {
    real.ancestors().skip(1).find_map(|above| found(above, real.strip_prefix(above).ok()?))
}

/// The directories below `out` that have files of unfinished downloads into it, or something below that has. One of the
/// files that are missing is in `asked` or below it.
fn directories(parts: &Path, out: &Path, asked: &Path) -> HashSet<PathBuf> {
    let entries = fs::read_dir(parts).into_iter().flatten().flatten();
    let names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    let begun = names.iter().filter_map(|name| end_of_part(name.to_str()?)).collect();
    let is_unfinished = |list: &Vec<String>| is_missing_in(asked, out, list) && is_begun(out, list, &begun);
    let mut found = HashSet::new();
    for name in lists(parts).filter(is_unfinished).flatten() {
        for dir in Path::new(&name).ancestors().skip(1) {
            if !found.insert(dir.to_owned()) {
                break;
            }
        }
    }
    found
}

/// Whether one of these files in the directory `out` that are in `dir` or below it is missing.
fn is_missing_in(dir: &Path, out: &Path, list: &[String]) -> bool {
    let mut paths = list.iter().map(|name| out.join(name));
    paths.any(|path| path.starts_with(dir) && !path.exists())
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

/// How the names of the parts of a file end, whatever its contents are to be.
pub(super) fn part_end(name: &Path) -> String {
    format!("-{}{PART}", short(name.as_os_str().as_encoded_bytes()))
}

/// Hexadecimal digits that stand for a name.
pub(super) fn short(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..32].to_owned()
}

/// The [`part_end`] of a name, if it is that of a part.
pub(super) fn end_of_part(name: &str) -> Option<&str> {
    name.rfind('-').map(|end| &name[end..]).filter(|end| end.ends_with(PART))
}

/// The files of a download into `out` that are missing.
pub(super) fn missing<'l>(out: &Path, list: &'l [String]) -> impl Iterator<Item = &'l String> {
    list.iter().filter(move |name| !out.join(name).exists())
}

/// Whether files of a download are missing of which others have come, whole or in part: of one that is missing there is
/// a part with one of these ends.
pub(super) fn is_begun(out: &Path, list: &[String], parts: &HashSet<&str>) -> bool {
    let is_there = |name: &String| out.join(name).exists();
    let has_part = |name: &String| parts.contains(&*part_end(Path::new(name)));
    missing(out, list).next().is_some()
        && (list.iter().any(is_there) || !parts.is_empty() && missing(out, list).any(has_part))
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
    let mut downloads = Downloads::among(asked, Path::new(pattern).is_absolute());
    let mut last = None;
    for path in paths {
        let dir = dir_of(path);
        if last != Some(dir)
            && let Some(by) = downloads.unfinished(dir, paths)
        {
            return Err(Unfinished::Fetch { pattern: pattern.to_owned(), by });
        }
        last = Some(dir);
    }
    paths.iter().try_for_each(|path| check_shard(path))
}

/// The directory that a file lies in.
pub(super) fn dir_of(path: &Path) -> &Path {
    path.parent().map_or(Path::new("."), dir_or_here)
}

fn dir_or_here(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}
