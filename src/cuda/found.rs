//! How a library is found and opened.
//!
//! A file with the right name may be a leftover, a stub, built for another processor, or too new for the
//! driver. So each candidate is opened and tried; a refused one is noted with the reason, and the search goes
//! on. Libraries stay loaded until the process ends, because CUDA starts threads that keep running in them.

use super::search::{LIBS_VARIABLE, Search, SearchDir, children, newest_first};
use crate::regular::is_of_directory;
use libloading::Library;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A release of CUDA or of one of its libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Version {
    /// A library whose major release is greater than the driver's does not work with it.
    pub major: u32,
    /// Within a major release, libraries and drivers are compatible.
    pub minor: u32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A file that was found and cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Its path, or its name if the loader found it.
    pub file: String,
    /// Why it cannot be used.
    pub reason: String,
}

/// The result of the search for one library.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// Its name, for people.
    pub name: &'static str,
    /// Whether it was found and works.
    pub usable: bool,
    /// What it is for.
    pub purpose: &'static str,
    /// The file that is used, if any.
    pub path: Option<PathBuf>,
    /// Why its directory was searched.
    pub because: Option<String>,
    /// Its version; for the driver, the newest release of CUDA that it supports.
    pub version: Option<Version>,
    /// Why it cannot be used although it is there.
    pub problem: Option<String>,
    /// The names that were looked for.
    pub looked_for: &'static [&'static str],
    /// Files with these names that cannot be used.
    pub refused: Vec<Refused>,
    /// What its absence means for the user.
    pub meaning: &'static str,
}

impl Finding {
    /// Why it cannot be used, with the names and directories of the search, as one fragment; `None` if it
    /// can.
    pub fn complaint(&self, search: &Search) -> Option<String> {
        let name = self.name;
        if let Some(problem) = &self.problem {
            return Some(format!("{name} cannot be used: {problem}"));
        }
        if self.path.is_some() {
            return None;
        }
        let places: Vec<String> = search.places.iter().map(SearchDir::to_string).collect();
        let mut text = format!(
            "{name} was not found: looked for {} in {}",
            self.looked_for.join(", "),
            places.join(", ")
        );
        for Refused { file, reason } in &self.refused {
            text += &format!("; `{file}` cannot be used: {reason}");
        }
        Some(text)
    }
}

/// What was found of a library, and its functions if it can be used.
pub(super) struct Located<T: 'static> {
    pub(super) finding: Finding,
    pub(super) table: Option<&'static T>,
}

/// How to find one library, and when a file is usable.
pub(super) struct Wanted<'a, T> {
    pub(super) name: &'static str,
    pub(super) purpose: &'static str,
    pub(super) meaning: &'static str,
    /// Names for the system's loader, newest first; in directories, files that begin like the last one.
    pub(super) names: &'static [&'static str],
    /// A library of the same directory that it opens by a name that the loader may not find.
    pub(super) first: Option<&'static str>,
    #[expect(clippy::type_complexity, reason = "the table, an address in the library, its version")]
    pub(super) open: &'a dyn Fn(&Library) -> Result<(T, usize, Version), String>,
}

impl<T> Wanted<'_, T> {
    /// Returns the first usable file.
    pub(super) fn find(&self, search: &Search) -> Located<T> {
        let mut refused = Vec::new();
        let mut seen = BTreeSet::new();
        let mut of_others = Vec::new();
        for place in &search.places {
            let is_named = place.because == LIBS_VARIABLE;
            let files = match &place.directory {
                None => self.names.iter().map(PathBuf::from).collect(),
                Some(directory) => {
                    let (files, others) = self.files(directory, is_named);
                    of_others.extend(others);
                    files
                }
            };
            for file in files {
                let named = if place.directory.is_some() { std::fs::canonicalize(&file).ok() } else { None };
                if named.is_some_and(|real| !seen.insert(real)) {
                    continue;
                }
                match self.try_open(&file, place.directory.as_deref(), is_named) {
                    None => {}
                    Some(Err(reason)) => refused.push(Refused { file: file.display().to_string(), reason }),
                    Some(Ok((table, path, version))) => {
                        let mut finding = self.finding(refused);
                        finding.usable = true;
                        finding.path = Some(path.unwrap_or(file));
                        finding.because = Some(place.because.clone());
                        finding.version = Some(version);
                        return Located { finding, table: Some(Box::leak(Box::new(table))) };
                    }
                }
            }
        }
        // of one that was not found elsewhere
        for directory in search.of_others.iter().filter_map(|place| place.directory.as_deref()) {
            let is_searched = |place: &SearchDir| place.directory.as_deref() == Some(directory);
            if !search.places.iter().any(is_searched) {
                of_others.extend(self.candidates(directory));
            }
        }
        of_others.retain(|file| std::fs::canonicalize(file).is_ok_and(|real| seen.insert(real)));
        let reason = format!(
            "another user has put it there, and it would be executed: name its directory in {LIBS_VARIABLE} to use it"
        );
        let refusal = |file: PathBuf| Refused { file: file.display().to_string(), reason: reason.clone() };
        refused.extend(of_others.into_iter().map(refusal));
        Located { finding: self.finding(refused), table: None }
    }

    fn finding(&self, refused: Vec<Refused>) -> Finding {
        let Self { name, purpose, meaning, names: looked_for, .. } = *self;
        Finding {
            name,
            usable: false,
            purpose,
            path: None,
            because: None,
            version: None,
            problem: None,
            looked_for,
            refused,
            meaning,
        }
    }

    /// The candidates in a directory, newest first, without NVIDIA's `.alt.` builds, which are slower.
    fn candidates(&self, directory: &Path) -> Vec<PathBuf> {
        let stem = self.names.last().copied().unwrap_or_default();
        let mut files = children(directory, stem);
        files.retain(|file| !file.to_string_lossy().contains(".alt."));
        newest_first(files)
    }

    /// The [`candidates`](Self::candidates) of a directory, and those of them that others than its owner have put
    /// there, which count only where the user has named it.
    fn files(&self, directory: &Path, is_named: bool) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let is_trusted = |file: &PathBuf| is_named || is_of_directory(file, directory);
        self.candidates(directory).into_iter().partition(is_trusted)
    }

    /// Opens a file, or a name through the system's loader; `None` for a name that the loader does not know.
    #[expect(clippy::type_complexity, reason = "the table, the path where it can be told, the version")]
    fn try_open(
        &self,
        file: &Path,
        directory: Option<&Path>,
        is_named: bool,
    ) -> Option<Result<(T, Option<PathBuf>, Version), String>> {
        if let (Some(first), Some(directory)) = (self.first, directory) {
            let may_be = |file: &PathBuf| is_named || is_of_directory(file, directory);
            for needed in newest_first(children(directory, first)).into_iter().filter(may_be) {
                // SAFETY: see below. It is kept, because it is later found by its name; if it cannot be used,
                // that shows then.
                std::mem::forget(unsafe { Library::new(needed) });
            }
        }
        // SAFETY: opening runs the library's initializers. Its directory and its name are those of a library
        // of CUDA's: anyone who can put another file there can just as well replace CUDA or this program.
        let library = match unsafe { Library::new(file) } {
            Ok(library) => library,
            Err(error) => {
                // the error itself says only that opening failed
                let reason = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
                let unknown = directory.is_none() && reason.contains("cannot open shared object file");
                let own = reason.starts_with(&*file.to_string_lossy());
                if unknown && own {
                    return None;
                }
                // the loader repeats the file's name
                let said = reason.strip_prefix(&format!("{}: ", file.display())).map(str::to_owned);
                return Some(Err(said.unwrap_or(reason)));
            }
        };
        let opened = (self.open)(&library);
        if opened.is_ok() {
            std::mem::forget(library);
        }
        Some(opened.map(|(table, address, version)| (table, mapped_file(address), version)))
    }
}

/// The file that is mapped at an address of this process, if the system tells (Linux).
fn mapped_file(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let holds = (number(from)?..number(to)?).contains(&address);
        let path = &rest[rest.find('/')?..];
        holds.then(|| PathBuf::from(path))
    })
}
