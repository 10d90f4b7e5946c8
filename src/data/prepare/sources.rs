//! Which files of text there are, and what their names say about them.

use super::{PrepareError, parquet, zstd};
use crate::data::DataError;
use crate::data::card::{CARD, SourceCard};
use crate::data::source::{Found, Source, expand};
use crate::data::unfinished::{Downloads, Unfinished};
use crate::regular;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How documents lie in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// One document, or documents between separators.
    Text,
    /// A JSON object per line.
    Lines,
    /// A column of a table.
    Parquet,
}

/// How the names of formats begin that have documents between separators.
pub(super) const TEXT: &str = "txt";

/// What a file is compressed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// A file of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TextFile {
    found: Found,
    pub(super) shape: Shape,
    pub(super) packing: Packing,
    pub(super) bytes: u64,
}

impl TextFile {
    pub(super) fn path(&self) -> &Path {
        &self.found.path
    }

    /// Whether its bytes are those of its texts.
    pub(super) fn is_plain(&self) -> bool {
        self.shape != Shape::Parquet && self.packing == Packing::Plain
    }

    /// Opens it, as [`Found::open`] does.
    pub(super) fn open(&self) -> Result<File, DataError> {
        self.found.open().map_err(DataError::read(self.path()))
    }

    /// How it is read, as the shortest ending of a name that says so.
    pub(super) fn format(&self) -> String {
        ending(self.shape, self.packing)
    }

    /// What is on record of it before its documents are known.
    pub(super) fn card(&self, digest: blake3::Hash) -> SourceCard {
        SourceCard {
            path: self.path().display().to_string(),
            format: Some(self.format()),
            bytes: self.bytes,
            blake3: digest.to_hex().to_string(),
            documents: 0,
            tokens: None,
        }
    }

    /// Bytes that the reader of the file holds besides a reader's usual memory: a long window of zstd, as the first
    /// frame states it, and pages of the table's column `field`. 0 for a file that cannot be read.
    pub(super) fn held(&self, field: &str) -> u64 {
        let file = || self.open().ok();
        match (self.shape, self.packing) {
            (Shape::Parquet, _) => file().and_then(|file| parquet::held(file, field).ok()).unwrap_or(0),
            (_, Packing::Zstd) => {
                let mut head = Vec::new();
                let read =
                    file().and_then(|file| file.take(zstd::LONGEST_HEADER).read_to_end(&mut head).ok());
                let window = read.and_then(|_| zstd::window(&head)).unwrap_or(0);
                window.saturating_sub(zstd::USUAL_WINDOW)
            }
            _ => 0,
        }
    }
}

/// How a source on record was read: where an earlier version has not recorded it, as the name says.
pub(super) fn recorded(source: &SourceCard) -> Option<String> {
    let by_name = || kind(Path::new(&source.path)).map(|(shape, packing)| ending(shape, packing));
    source.format.clone().or_else(by_name)
}

fn ending(shape: Shape, packing: Packing) -> String {
    let shape = match shape {
        Shape::Text => TEXT,
        Shape::Lines => "jsonl",
        Shape::Parquet => "parquet",
    };
    let packing = match packing {
        Packing::Plain => "",
        Packing::Gzip => ".gz",
        Packing::Zstd => ".zst",
    };
    format!("{shape}{packing}")
}

/// The files that sources name, in the order of the sources: paths, globs in sorted order, and directories with
/// everything below them in sorted order.
pub(super) fn find(named: &[String]) -> Result<Vec<TextFile>, PrepareError> {
    let mut files = Vec::new();
    for source in expand(named)? {
        match source {
            Source::Builtin(lipsum) => {
                let problem = format!("`{lipsum}` needs no preparation: name it in a recipe as it is");
                return Err(PrepareError::Options(problem));
            }
            Source::File(found) => {
                let path = &found.path;
                let meta = fs::metadata(path).map_err(DataError::read(path))?;
                if meta.is_dir() {
                    let before = files.len();
                    let mut downloads = Downloads::among(&found.named, path.is_absolute());
                    walk(&found, MOST_LEVELS, &mut files, &mut HashSet::new(), &mut downloads)?;
                    if files.len() == before {
                        return Err(PrepareError::NoFile { path: found.path });
                    }
                } else if !meta.is_file() {
                    return Err(DataError::NotRegular { path: found.path }.into());
                } else {
                    let (shape, packing) =
                        kind(path).ok_or_else(|| PrepareError::Unknown { path: path.clone() })?;
                    files.push(TextFile { found, shape, packing, bytes: meta.len() });
                }
            }
        }
    }
    match files.iter().find(|file| file.bytes == 0) {
        Some(file) => Err(PrepareError::Empty { path: file.path().to_owned() }),
        None => Ok(files),
    }
}

/// Directories in one another that are walked: the system takes time for each part of a path.
const MOST_LEVELS: usize = 100;

/// Adds the files of text below a directory, so many `levels` deep. Hidden ones are left out, and so is everything that
/// is no text of a corpus. A directory is walked once: links may lead to it again and again, and in circles.
fn walk(
    found: &Found,
    levels: usize,
    files: &mut Vec<TextFile>,
    seen: &mut HashSet<(u64, u64)>,
    downloads: &mut Downloads,
) -> Result<(), PrepareError> {
    let dir = &found.path;
    let meta = fs::metadata(dir).map_err(DataError::read(dir))?;
    if !seen.insert((meta.dev(), meta.ino())) {
        return Ok(());
    }
    let entries = fs::read_dir(dir).map_err(DataError::read(dir))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(DataError::read(dir))?.path());
    }
    paths.sort();
    let shown = paths.iter().filter(|path| !regular::is_hidden(path));
    if let Some(by) = downloads.unfinished(dir, shown) {
        let pattern = dir.display().to_string();
        return Err(DataError::from(Unfinished::Fetch { pattern, by }).into());
    }
    for path in paths {
        // the card of a set that was prepared here is no text
        if regular::is_hidden(&path) || path.file_name().is_some_and(|name| name == CARD) {
            continue;
        }
        let text = kind(&path).filter(|_| !describes(&path));
        let meta = match fs::metadata(&path) {
            // a link to nothing, whose name is not that of a text
            Err(error) if text.is_none() && error.kind() == ErrorKind::NotFound => continue,
            meta => meta.map_err(DataError::read(&path))?,
        };
        // what takes the place of a directory meanwhile is seen when its files are opened
        if (meta.is_dir() || text.is_some()) && path.is_symlink() {
            regular::check_planted(&path, dir).map_err(DataError::read(&path))?;
        }
        if meta.is_dir() {
            let Some(levels) = levels.checked_sub(1) else {
                let deep = format!("it lies more than {MOST_LEVELS} directories deep: name one further in");
                return Err(DataError::read(&path)(io::Error::other(deep)).into());
            };
            walk(&found.below(path), levels, files, seen, downloads)?;
        } else if let Some((shape, packing)) = text {
            if !meta.is_file() {
                return Err(DataError::NotRegular { path }.into());
            }
            files.push(TextFile { found: found.below(path), shape, packing, bytes: meta.len() });
        }
    }
    Ok(())
}

/// Whether a file below a directory of texts is one that describes them rather than one of them, as its name says.
fn describes(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

fn kind(path: &Path) -> Option<(Shape, Packing)> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let (name, packing) = match (name.strip_suffix(".gz"), name.strip_suffix(".zst")) {
        (Some(name), _) => (name, Packing::Gzip),
        (_, Some(name)) => (name, Packing::Zstd),
        _ => (&name[..], Packing::Plain),
    };
    let shape = match name.rsplit_once('.')?.1 {
        TEXT => Shape::Text,
        "jsonl" | "ndjson" | "json" => Shape::Lines,
        // a table has compressed pages of its own, and is read from its end
        "parquet" if packing == Packing::Plain => Shape::Parquet,
        _ => return None,
    };
    Some((shape, packing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_files_are() {
        for (name, expected) in [
            ("a.txt", Some((Shape::Text, Packing::Plain))),
            ("a.b.TXT.gz", Some((Shape::Text, Packing::Gzip))),
            ("c4-train.00000.json.gz", Some((Shape::Lines, Packing::Gzip))),
            ("a.jsonl.zst", Some((Shape::Lines, Packing::Zstd))),
            ("a.ndjson", Some((Shape::Lines, Packing::Plain))),
            ("a.parquet", Some((Shape::Parquet, Packing::Plain))),
            ("a.parquet.gz", None),
            ("a.bin", None),
            ("txt", None),
        ] {
            assert_eq!(kind(Path::new(name)), expected, "{name}");
            // what is on record says the same
            let recorded = expected.map(|(shape, packing)| format!("a.{}", ending(shape, packing)));
            assert_eq!(recorded.and_then(|name| kind(Path::new(&name))), expected, "{name}");
        }
    }

    #[test]
    fn directories_are_walked_in_order() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("b/c")).expect("directories");
        for name in ["z.txt", "b/c/a.jsonl", "b/.hidden.txt", "b/notes.pdf", "a.txt", "b/infos.json"] {
            fs::write(dir.path().join(name), "x").expect("written");
        }
        let found = find(&[dir.path().display().to_string()]).expect("found");
        let names: Vec<_> =
            found.iter().map(|file| file.path().strip_prefix(dir.path()).expect("below")).collect();
        assert_eq!(names, ["a.txt", "b/c/a.jsonl", "z.txt"].map(Path::new));
        let named = dir.path().join("b/infos.json").display().to_string();
        assert_eq!(find(&[named]).expect("found")[0].shape, Shape::Lines);
        fs::write(dir.path().join("a.txt"), "").expect("written");
        assert!(
            find(&[dir.path().display().to_string()])
                .expect_err("refused")
                .to_string()
                .contains("a.txt` is empty")
        );
        // two links in a directory lead to 2^40 paths
        for name in ["round", "again"] {
            std::os::unix::fs::symlink(".", dir.path().join("b").join(name)).expect("a link");
        }
        // and one that leads nowhere, which matters where it is called a text
        std::os::unix::fs::symlink("nowhere", dir.path().join("b/gone.pdf")).expect("a link");
        fs::write(dir.path().join("a.txt"), "x").expect("written");
        assert_eq!(find(&[dir.path().display().to_string()]).expect("found").len(), 3);
        let pdf = dir.path().join("b/notes.pdf").display().to_string();
        assert!(find(&[pdf]).expect_err("refused").to_string().contains("not known to be text"));
    }
}
