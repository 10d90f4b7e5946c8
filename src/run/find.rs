//! Finding runs by what people call them: a directory, a directory of runs, a pattern, or the beginning of an id.

use super::dir::{self, is_run};
use super::error::{Context, RunError};
use super::made::{HASH, is_id, is_made, whole_id};
use super::record;
use crate::regular::{self, Refused};
use crate::weights::{self, checkpoint_name};
use glob::Pattern;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The directory of runs where none is named.
pub const RUNS_DIR: &str = "runs";

/// What one name stands for.
enum Found {
    /// A run's directory.
    Run(PathBuf),
    /// A directory or file that is no run; these are the runs below it, perhaps none.
    Below(Vec<PathBuf>),
    /// At least one run whose path matches a pattern, or whose id begins so.
    Matching(Vec<PathBuf>),
}

/// The runs below a runs directory, sorted by name; none where the directory is missing. A directory that may not be
/// looked into, as another user's, counts as one, and by its name does one that has lost its recipe.
///
/// # Errors
/// [`RunError::NoDirectory`], [`RunError::Io`].
pub fn list(runs_dir: &Path) -> Result<Vec<PathBuf>, RunError> {
    let entries = match fs::read_dir(runs_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(RunError::NoDirectory { path: runs_dir.to_owned() });
        }
        Err(error) => return Err(error).context("read", runs_dir),
    };
    let paths: io::Result<Vec<_>> = entries.map(|entry| entry.map(|e| e.path())).collect();
    let mut runs = paths.context("read", runs_dir)?;
    runs.retain(|path| is_listed(path));
    runs.sort();
    Ok(runs)
}

/// Whether a path is that of a run among others.
fn is_listed(path: &Path) -> bool {
    let Some(name) = path.file_name() else { return is_run(path) };
    let has_lost_recipe = || is_id(&name.to_string_lossy()) && path.join(record::FILE).is_file();
    !regular::is_hidden(name) && (is_run(path) || has_lost_recipe() || is_closed(path) && !is_of_disk(name))
}

/// Whether a name is that of the directory which every disk has for root.
fn is_of_disk(name: &OsStr) -> bool {
    name == "lost+found"
}

/// Whether a directory that is there may not be looked into.
fn is_closed(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
        && path.join(dir::RECIPE).metadata().is_err_and(|error| is_refused(&error))
}

fn is_refused(error: &io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied
}

/// Whether two paths are of one directory, of which nobody need be able to look into it.
fn is_one(a: &Path, b: &Path) -> bool {
    a == b || a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b))
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
            // what is in the way here may still be the beginning of an id
            Found::Below(runs) if runs.is_empty() => match beginning(runs_dir, name)? {
                runs if runs.is_empty() => empty(name),
                runs => found.extend(runs),
            },
            Found::Below(runs) | Found::Matching(runs) => found.extend(runs),
        }
    }
    Ok(each_once(found))
}

/// Runs without those that an earlier path leads to already.
fn each_once(mut runs: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    runs.retain(|path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
    runs
}

/// The one run that is named by its directory, its id, or a pattern or the beginning of an id that no other run
/// shares.
///
/// # Errors
/// [`RunError::NoSuchRun`], [`RunError::SeveralRuns`], [`RunError::Planted`], [`RunError::Pattern`], [`RunError::Io`].
pub fn one(runs_dir: &Path, named: &Path) -> Result<PathBuf, RunError> {
    let mut found = match search(runs_dir, named)? {
        Found::Run(run) => return Ok(run),
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
    let is_pattern = named.to_string_lossy().contains(['*', '?', '[']);
    let is_name = !is_pattern || regular::is_spelled(named);
    for path in [named, &runs_dir.join(named)] {
        if is_pattern && !regular::is_spelled(path) {
            continue;
        }
        // what is in a directory of runs that is closed, nobody knows
        let is_of_runs = is_closed(path) && is_one(path, runs_dir);
        let may_be_run = || is_listed(path) || is_run(path) || is_closed(path);
        if checkpoint_name(path).is_none() && !is_of_runs && may_be_run() {
            check_meant(runs_dir, named, path)?;
            return Ok(holding(path).map_or_else(|| Found::Run(path.to_owned()), Found::Below));
        }
        // a directory of runs that exists as it is written stays that, whatever lies below the directory of runs
        if path == named && checkpoint_name(named).is_none() && named.is_dir() {
            let below = list(named)?;
            if !below.is_empty() {
                check_meant(runs_dir, named, named)?;
                return Ok(Found::Below(below));
            }
        }
    }
    // also a link that leads to nothing, as a shell finds it by a pattern
    let found = named.symlink_metadata();
    if checkpoint_name(named).is_none() && found.is_ok() && is_name {
        return Ok(Found::Below(Vec::new()));
    }
    // what lies in a directory that is closed may be a run
    if !is_pattern && named.components().count() > 1 && found.as_ref().is_err_and(is_refused) {
        found.context("read", named)?;
    }
    let text = named.to_str().unwrap_or_default();
    let found = match is_pattern {
        true => matching(runs_dir, text)?,
        false => beginning(runs_dir, named)?,
    };
    if found.is_empty() { Err(no_such_run(runs_dir, named)) } else { Ok(Found::Matching(found)) }
}

/// Refuses to take what another user has called like a run of somebody else's, the beginning of its id, or one of its
/// checkpoints, for what is meant by that name.
///
/// # Errors
/// [`RunError::Planted`], [`RunError::Io`].
pub fn check_meant(runs_dir: &Path, named: &Path, path: &Path) -> Result<(), RunError> {
    let Some(user) = regular::another_maker(path).filter(|_| named.components().count() == 1) else {
        return Ok(());
    };
    // a slash behind a name is no part of it
    let named = named.components().as_path();
    let mut meant = beginning(runs_dir, named)?;
    if let Some((run, _)) = weights::parts(named) {
        meant.extend(beginning(runs_dir, run)?);
    }
    meant.retain(|run| regular::is_put_beside(path, run));
    match meant.is_empty() {
        true => Ok(()),
        false => Err(RunError::Planted { named: path.to_owned(), user, others: meant }),
    }
}

/// The runs in a directory that has a recipe, as projects do, and was not made as a run itself; `None` if it was, or
/// holds none. A record that another user has put there makes it no run.
fn holding(path: &Path) -> Option<Vec<PathBuf>> {
    let runs = || list(path).ok().filter(|runs| !runs.is_empty());
    let is_theirs = regular::is_put_beside(&path.join(record::FILE), path);
    if is_made(path) && !is_theirs { None } else { runs() }
}

/// The runs that a pattern matches in the first place where it matches any. With a slash it is a path, or else one
/// below the directory of runs. Without one it is a name in that directory; where none was asked for, the current one
/// may be meant.
fn matching(runs_dir: &Path, pattern: &str) -> Result<Vec<PathBuf>, RunError> {
    let here = Path::new("");
    let places: &[&Path] = match pattern.trim_end_matches('/').contains('/') {
        true => &[here, runs_dir],
        false if runs_dir == Path::new(RUNS_DIR) => &[runs_dir, here],
        false => &[runs_dir],
    };
    for place in places {
        let found = matching_in(place, pattern)?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// The runs that a pattern matches in a directory. Directories that exist as they are spelled are no patterns, though
/// their names have such characters.
fn matching_in(place: &Path, pattern: &str) -> Result<Vec<PathBuf>, RunError> {
    let whole = place.join(pattern);
    let whole = whole.to_str().unwrap_or_default();
    let place = whole.len().saturating_sub(pattern.len());
    let slashes = whole.match_indices('/').map(|(slash, _)| slash).filter(|&slash| slash >= place);
    let exists = |slash: &usize| *slash == 0 || Path::new(&whole[..*slash]).is_dir();
    let (literal, rest) = whole.split_at(slashes.take_while(exists).last().unwrap_or(place));
    let problem =
        |refused: Refused| RunError::Pattern { pattern: pattern.to_owned(), problem: refused.reason() };
    let matches = regular::matching(&(Pattern::escape(literal) + rest)).map_err(problem)?;
    Ok(each_once(matches.paths.into_iter().filter(|path| is_listed(path)).collect()))
}

/// The runs in a directory of runs whose ids begin with a text, which must not be empty. What another user has called
/// like a checkpoint of a run is none of them.
fn beginning(runs_dir: &Path, text: &Path) -> Result<Vec<PathBuf>, RunError> {
    let text = text.to_str().unwrap_or_default();
    let begins = |path: &PathBuf| path.file_name().is_some_and(|n| is_beginning(text, &n.to_string_lossy()));
    let mut found = list(runs_dir)?;
    found.retain(|path| !text.is_empty() && begins(path) && checkpoint_name(path).is_none());
    Ok(found)
}

/// Whether a text is the beginning of a run's name, `NAME-HASH`. A text that reaches into the hash means that run, and
/// not a copy that somebody has called `NAME-HASH-backup`.
fn is_beginning(text: &str, name: &str) -> bool {
    let id = whole_id(name);
    name.starts_with(text)
        && id.is_none_or(|id| id == name.len() || text.len() <= id - HASH || text.len() > id)
}

fn no_such_run(runs_dir: &Path, named: &Path) -> RunError {
    if let Some((run, word)) = checkpoint_name(named)
        && let Ok(run) = one(runs_dir, run)
    {
        let checkpoint = word.to_owned();
        return RunError::NamesCheckpoint { named: named.to_owned(), run, checkpoint };
    }
    RunError::NoSuchRun { named: named.to_owned(), runs_dir: runs_dir.to_owned() }
}

fn ids(runs: &[PathBuf]) -> Vec<String> {
    let names = runs.iter().map(|path| path.file_name().unwrap_or_default());
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A directory of runs `a-1`, `a-12` and `b-1`, and a directory `c` that holds none.
    fn runs() -> tempfile::TempDir {
        let runs = tempfile::tempdir().expect("tempdir");
        for id in ["a-1", "a-12", "b-1"] {
            fs::create_dir(runs.path().join(id)).expect("mkdir");
            fs::write(runs.path().join(id).join("recipe.toml"), "").expect("write");
        }
        fs::create_dir(runs.path().join("c")).expect("mkdir");
        runs
    }

    fn many(runs: &Path, named: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let mut empty = Vec::new();
        let found = all(runs, named, |name| empty.push(name.to_owned())).expect("found");
        (found, empty)
    }

    #[test]
    fn one_run_is_named_by_path_id_beginning_or_pattern() {
        let dir = runs();
        let runs = dir.path();
        for (named, id) in [("a-1", "a-1"), ("a-12", "a-12"), ("b", "b-1"), ("*2", "a-12")] {
            assert_eq!(one(runs, Path::new(named)).expect(named), runs.join(id));
        }
        assert_eq!(one(runs, &runs.join("b-1")).expect("a path"), runs.join("b-1"));
        assert_eq!(one(Path::new("elsewhere"), &runs.join("b-*")).expect("a pattern"), runs.join("b-1"));
    }

    #[test]
    fn what_is_not_one_run_is_refused_with_what_it_is() {
        let dir = runs();
        let runs = dir.path();
        let said = |named: &Path| {
            let error = one(runs, named).expect_err("not one run");
            assert!(error.is_usage(), "{error}");
            error.to_string()
        };
        for named in [Path::new("nothing"), Path::new(""), runs, &runs.join("c"), Path::new("z*")] {
            let text = said(named);
            assert!(text.contains(&format!("`{}` is not a run", named.display())), "{text}");
            assert!(text.contains(&runs.display().to_string()) && text.contains("--runs-dir"), "{text}");
        }
        for named in ["a", "a-*"] {
            let text = said(Path::new(named));
            assert!(text.contains(&format!("`{named}` stands for several runs: a-1, a-12;")), "{text}");
        }
        assert!(said(Path::new("a[")).contains("is not a pattern"));
    }

    #[test]
    fn a_copy_that_is_called_after_a_run_is_not_the_run() {
        let dir = tempfile::tempdir().expect("tempdir");
        let runs = dir.path();
        let make = |id: &str| {
            fs::create_dir(runs.join(id)).expect("mkdir");
            fs::write(runs.join(id).join("recipe.toml"), "").expect("write");
        };
        make("small-0123abcd-backup");
        make("small-76543210.old");
        for named in ["small-0123abcd", "small-0123", "small-76543210", "small-7"] {
            let error = one(runs, Path::new(named)).expect_err(named).to_string();
            assert!(error.contains(&format!("`{named}` is not a run")), "{error}");
        }
        let found = |named: &str| one(runs, Path::new(named)).expect(named);
        for named in ["small-0123abcd-backup", "small-0123abcd-b", "*-backup"] {
            assert_eq!(found(named), runs.join("small-0123abcd-backup"));
        }
        // a name may end like an id
        make("other-01234567-89abcdef");
        for named in ["other-01234567", "other-01", "other", "other-01234567-8"] {
            assert_eq!(found(named), runs.join("other-01234567-89abcdef"));
        }
        make("small-0123abcd");
        assert_eq!(found("small-0123abc"), runs.join("small-0123abcd"));
    }

    #[test]
    fn names_that_begin_with_a_dot_are_matched_by_patterns_with_the_dot() {
        let dir = tempfile::tempdir().expect("tempdir");
        let runs = dir.path();
        for run in ["a/t-1", ".trash/t-2", "a/.old/t-3", "a/.tmp-t-4"] {
            fs::create_dir_all(runs.join(run)).expect("mkdir");
            fs::write(runs.join(run).join("recipe.toml"), "").expect("write");
        }
        let found = |pattern: &str| {
            let mut found = all(runs, &[runs.join(pattern)], |_| ()).unwrap_or_default();
            found.iter_mut().for_each(|path| *path = path.strip_prefix(runs).expect("below").to_owned());
            found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        for pattern in ["*/t-*", "**/t-*", "?trash/t-*", "a/*", "[.a]*/*"] {
            assert!(found(pattern).iter().all(|path| path == "a/t-1"), "{pattern}: {:?}", found(pattern));
        }
        assert_eq!(found("*/t-*"), ["a/t-1"]);
        assert_eq!(found(".trash/*"), [".trash/t-2"]);
        assert_eq!(found(".tr*/*"), [".trash/t-2"]);
        assert_eq!(found("*/.old/t-?"), ["a/.old/t-3"]);
    }

    #[test]
    fn many_are_found_once_each_and_what_holds_none_is_told() {
        let dir = runs();
        let runs = dir.path();
        let paths = |ids: &[&str]| ids.iter().map(|id| runs.join(id)).collect::<Vec<_>>();
        assert_eq!(many(runs, &[runs.to_owned()]), (paths(&["a-1", "a-12", "b-1"]), vec![]));
        assert_eq!(many(runs, &["b".into(), "a".into(), "b-1".into()]).0, paths(&["b-1", "a-1", "a-12"]));
        assert_eq!(many(runs, &paths(&["c", "b-1"])), (paths(&["b-1"]), paths(&["c"])));
        assert!(all(runs, &["nothing".into()], |_| ()).is_err());
    }
}
