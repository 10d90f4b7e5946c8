//! Which runs a command is about, and how it prints its table: what `compare`, `list` and `watch` share.

use super::exit::UsageError;
use super::terminal::say;
use crate::cli::TableFormat;
use crate::report::export::{Csv, Export, Json, Markdown, Text};
use crate::run::dir::{is_run, list};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The runs that are named by directories, directories of runs, globs and beginnings of ids; each once, in that order.
///
/// Errors: [`UsageError`] for a name that leads to nothing.
pub(super) fn find_runs(runs_dir: &Path, named: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for name in named {
        found.extend(one(runs_dir, name)?);
    }
    let mut seen = HashSet::new();
    found.retain(|path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
    Ok(found)
}

fn one(runs_dir: &Path, named: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let in_runs_dir = runs_dir.join(named);
    if let Some(run) = [named, &in_runs_dir].into_iter().find(|path| is_run(path)) {
        return Ok(vec![run.to_owned()]);
    }
    if named.exists() {
        let below = if named.is_dir() { list(named)? } else { Vec::new() };
        if below.is_empty() {
            // `runs/*` of a shell also gives what is no run
            say(&format!("`{}` is not a run and holds none; left out", named.display()));
        }
        return Ok(below);
    }
    let text = named.to_str().unwrap_or_default();
    let mut found = Vec::new();
    if text.contains(['*', '?', '[']) {
        for pattern in [text, in_runs_dir.to_str().unwrap_or_default()] {
            let paths = glob::glob(pattern)
                .map_err(|error| UsageError(format!("`{text}` is not a pattern: {}", error.msg)))?;
            found.extend(paths.filter_map(Result::ok).filter(|path| is_run(path)));
        }
    } else if !text.is_empty() {
        let begins = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(text));
        found = list(runs_dir)?;
        found.retain(begins);
    }
    if found.is_empty() {
        return Err(UsageError(format!(
            "`{}` is no run: neither a directory, nor a pattern or the beginning of a name in `{}`; `runner list` \
             shows what there is, --runs-dir names another directory of runs",
            named.display(),
            runs_dir.display()
        ))
        .into());
    }
    Ok(found)
}

/// The writer of a format.
pub(super) fn exporter(format: TableFormat) -> &'static dyn Export {
    match format {
        TableFormat::Table => &Text,
        TableFormat::Csv => &Csv,
        TableFormat::Json => &Json,
        TableFormat::Markdown => &Markdown,
    }
}
