//! The texts of a recipe, and places in them.
//!
//! A recipe file is read once, and every way in which that can fail has its own message: figment would take a missing
//! file for an empty one.

use super::shipped::{self, Shipped};
use crate::regular;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Medium {
    /// A recipe file, as its path was given.
    File(PathBuf),
    /// A recipe that the program carries.
    Shipped(&'static Shipped),
    /// An argument of the command line.
    Flag,
    /// An environment variable of this name.
    Env(String),
    /// A text of this crate.
    BuiltIn,
}

impl Medium {
    /// What names a recipe: its file, or `builtin:NAME`. `None` for texts that are none.
    pub(super) fn path(&self) -> Option<PathBuf> {
        match self {
            Self::File(path) => Some(path.clone()),
            Self::Shipped(shipped) => Some(shipped.path()),
            Self::Flag | Self::Env(_) | Self::BuiltIn => None,
        }
    }
}

/// A text with its origin and the rank of its messages.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) medium: Medium,
    pub(super) text: String,
    /// Messages are sorted by this, then by offset.
    pub(super) rank: usize,
}

impl Source {
    /// Line and column (in characters) of a byte offset, both from 1.
    pub(super) fn line_column(&self, offset: usize) -> (usize, usize) {
        let start = self.line_start(offset);
        let line = 1 + self.text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count();
        (line, 1 + self.text[start..self.floor(offset)].chars().count())
    }

    /// Offset of the first byte of the line that holds `offset`.
    pub(super) fn line_start(&self, offset: usize) -> usize {
        let end = self.floor(offset);
        self.text[..end].rfind('\n').map_or(0, |newline| newline + 1)
    }

    /// Offset of the end of the line that holds `offset`, its newline left out.
    pub(super) fn line_end(&self, offset: usize) -> usize {
        let start = self.floor(offset);
        let end = self.text[start..].find('\n').map_or(self.text.len(), |length| start + length);
        if end > start && self.text.as_bytes()[end - 1] == b'\r' { end - 1 } else { end }
    }

    /// The nearest character boundary at or before `offset`.
    fn floor(&self, offset: usize) -> usize {
        self.text.floor_char_boundary(offset)
    }
}

/// A span of a source, or the source as a whole.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) source: Arc<Source>,
    pub(super) span: Option<Range<usize>>,
}

impl Place {
    pub(super) fn at(source: &Arc<Source>, span: Range<usize>) -> Self {
        Self { source: Arc::clone(source), span: Some(span) }
    }

    pub(super) fn whole(source: &Arc<Source>) -> Self {
        Self { source: Arc::clone(source), span: None }
    }

    /// Whether it is the same place.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.source, &other.source) && self.span == other.span
    }

    /// Order of messages: by source, then by offset.
    pub(super) fn rank(&self) -> (usize, usize) {
        (self.source.rank, self.span.as_ref().map_or(usize::MAX, |span| span.start))
    }
}

/// Why a recipe file could not be read: the reason and the remedy.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) reason: String,
    pub(super) help: String,
    /// The text up to the first byte that is not UTF-8, to point at it.
    pub(super) readable: Option<String>,
}

fn unreadable(reason: impl Into<String>, help: impl Into<String>) -> Unreadable {
    Unreadable { reason: reason.into(), help: help.into(), readable: None }
}

/// Reads a recipe's text.
pub(super) fn read(path: &Path) -> Result<String, Unreadable> {
    let mut bytes = regular::read_within(path, regular::RECIPE).map_err(|error| match error.kind() {
        ErrorKind::IsADirectory => unreadable("it is a directory", "name a recipe file in it"),
        ErrorKind::FileTooLarge => {
            unreadable(error.to_string(), "a recipe is a short TOML file; is this a data file?")
        }
        _ if regular::is_strange(&error) => {
            unreadable(error.to_string(), "write the recipe to a file and name that")
        }
        _ => from_io(path, &error),
    })?;
    // A byte order mark would shift the columns of the first line.
    if bytes.starts_with("\u{feff}".as_bytes()) {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let mut bytes = error.into_bytes();
        let reason = format!("it is not UTF-8: byte 0x{:02x} at offset {valid}", bytes[valid]);
        bytes.truncate(valid);
        let readable = String::from_utf8(bytes).ok();
        Unreadable { reason, help: "recipes are TOML, saved as UTF-8".into(), readable }
    })
}

fn from_io(path: &Path, error: &std::io::Error) -> Unreadable {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            let help = match similar(path) {
                Some(name) => format!("did you mean `{}`?", name.display()),
                None => "check the path".into(),
            };
            unreadable("no such file", help)
        }
        ErrorKind::PermissionDenied => unreadable("permission denied", "make it readable for this user"),
        _ => unreadable(error.to_string(), "check the path and the disk"),
    }
}

/// The recipe that a path which leads nowhere probably means: a file beside it, named without its directory, or, for a
/// name alone, a shipped one, in a copy of the repository or as the program carries it. Looks at the disk.
#[must_use]
pub fn similar(path: &Path) -> Option<PathBuf> {
    let wanted = path.file_name()?.to_str()?;
    // where to look, and what stands before a name found there
    let places: &[(&Path, &str)] = match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => &[(parent, "")],
        None => &[(Path::new("."), ""), (Path::new(shipped::TREE), shipped::TREE)],
    };
    let found = |near: bool| {
        let mut found =
            places.iter().filter_map(|(dir, shown)| Some((shown, similar_in(dir, wanted, near)?)));
        found.next().map(|(shown, name)| Path::new(shown).join(name))
    };
    let carried =
        |found: Option<&Shipped>| found.filter(|_| path.parent() == Some(Path::new(""))).map(Shipped::path);
    found(false)
        .or_else(|| carried(shipped::find(wanted)))
        .or_else(|| found(true))
        .or_else(|| carried(shipped::nearest(wanted)))
}

/// The recipe of a directory with this name, its extension perhaps left out; or, with `near`, with a name near to it.
fn similar_in(dir: &Path, wanted: &str, near: bool) -> Option<String> {
    let entries = fs::read_dir(dir).ok()?.take(1000);
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".toml"))
        .collect();
    names.sort();
    let wanted = wanted.trim_end_matches(".toml");
    let mut stems = names.iter().map(|name| name.trim_end_matches(".toml"));
    let stem = match near {
        false => stems.find(|stem| *stem == wanted),
        true => super::suggest::nearest(wanted, stems),
    };
    stem.map(|stem| format!("{stem}.toml"))
}
