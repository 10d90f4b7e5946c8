//! Finding runs by what people call them: a directory, a directory of runs, a pattern, or the beginning of an id.

use super::dir::{is_run, list};
use super::error::RunError;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// What one name stands for.
enum Found {
    /// A run's directory.
    Run(PathBuf),
    /// A directory or file that is no run; these are the runs below it, perhaps none.
    Below(Vec<PathBuf>),
    /// At least one run whose path matches a pattern, or whose id begins so.
    Matching(Vec<PathBuf>),
}

/// The runs that are named by directories, directories of runs, globs and beginnings of ids; each once, in that order.
/// `empty` is called with each name that exists and neither is a run nor holds one, as `runs/*` of a shell may give.
///
/// # Errors
/// [`RunError::NoSuchRun`] for a name that leads to nothing, [`RunError::Pattern`], [`RunError::Io`].
pub fn all(
    runs_dir: &Path,
    named: &[PathBuf],
    mut empty: impl FnMut(&Path),
) -> Result<Vec<PathBuf>, RunError> {
    let mut found = Vec::new();
    for name in named {
        match search(runs_dir, name)? {
            Found::Run(run) => found.push(run),
            Found::Below(runs) if runs.is_empty() => empty(name),
            Found::Below(runs) | Found::Matching(runs) => found.extend(runs),
        }
    }
    let mut seen = HashSet::new();
    found.retain(|path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
    Ok(found)
}

/// The one run that is named by its directory, its id, or a pattern or the beginning of an id that no other run
/// shares.
///
/// # Errors
/// [`RunError::NoSuchRun`], [`RunError::SeveralRuns`], [`RunError::Pattern`], [`RunError::Io`].
pub fn one(runs_dir: &Path, named: &Path) -> Result<PathBuf, RunError> {
    let mut found = match search(runs_dir, named)? {
        Found::Run(run) => return Ok(run),
        // what is in the way here may still be the beginning of an id
        Found::Below(_) => beginning(runs_dir, named)?,
        Found::Matching(runs) => runs,
    };
    match found.len() {
        0 => Err(no_such_run(runs_dir, named)),
        1 => Ok(found.remove(0)),
        _ => Err(RunError::SeveralRuns { named: named.to_owned(), ids: ids(&found) }),
    }
}

fn search(runs_dir: &Path, named: &Path) -> Result<Found, RunError> {
    let in_runs_dir = runs_dir.join(named);
    if let Some(run) = [named, &in_runs_dir].into_iter().find(|path| is_run(path)) {
        return Ok(Found::Run(run.to_owned()));
    }
    if named.exists() {
        return Ok(Found::Below(if named.is_dir() { list(named)? } else { Vec::new() }));
    }
    let text = named.to_str().unwrap_or_default();
    let found = match text.contains(['*', '?', '[']) {
        true => matching(&[named, &in_runs_dir])?,
        false => beginning(runs_dir, named)?,
    };
    if found.is_empty() { Err(no_such_run(runs_dir, named)) } else { Ok(Found::Matching(found)) }
}

/// The runs whose paths match one of the patterns.
fn matching(patterns: &[&Path]) -> Result<Vec<PathBuf>, RunError> {
    let mut found = Vec::new();
    for pattern in patterns.iter().map(|pattern| pattern.to_str().unwrap_or_default()) {
        let paths = glob::glob(pattern)
            .map_err(|error| RunError::Pattern { pattern: pattern.to_owned(), problem: error.msg })?;
        found.extend(paths.filter_map(Result::ok).filter(|path| is_run(path)));
    }
    Ok(found)
}

/// The runs in a directory of runs whose ids begin with a text, which must not be empty.
fn beginning(runs_dir: &Path, text: &Path) -> Result<Vec<PathBuf>, RunError> {
    let text = text.to_str().unwrap_or_default();
    let begins = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(text));
    let mut found = list(runs_dir)?;
    found.retain(|path| !text.is_empty() && begins(path));
    Ok(found)
}

fn no_such_run(runs_dir: &Path, named: &Path) -> RunError {
    RunError::NoSuchRun { named: named.to_owned(), runs_dir: runs_dir.to_owned() }
}

fn ids(runs: &[PathBuf]) -> Vec<String> {
    let names = runs.iter().map(|path| path.file_name().unwrap_or_default());
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}
