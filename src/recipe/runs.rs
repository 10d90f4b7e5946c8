//! The recipes in the directories of runs: what a run says of itself, and which runs began from the same.

use super::init_from::{Branch, InitFrom};
use super::keys::INIT_FROM;
use super::paths;
use super::write::HEADER;
use super::written::written;
use crate::regular;
use crate::weights::Unreadable;
use serde_json::Value as Json;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

/// The recipe in a run's directory.
const RECIPE: &str = "recipe.toml";

/// Whether a recipe of this path and this text is one that this program has written for a run.
pub(super) fn is_recipe_of_run(path: &Path, text: &str) -> bool {
    let is_kept = || text.starts_with(HEADER) || path.with_file_name("run.json").exists();
    path.file_name().is_some_and(|name| name == RECIPE) && is_kept()
}

/// What a run's recipe says.
pub(super) struct RunsRecipe {
    pub(super) file: PathBuf,
    values: Vec<(String, Json)>,
}

impl RunsRecipe {
    /// Reads it in the run's directory.
    pub(super) fn read(run: &Path) -> Result<Self, Unreadable> {
        Ok(Self { file: run.join(RECIPE), values: values_of(run)? })
    }

    /// Its integers by their keys.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (String, i64)> {
        self.values.iter().filter_map(|(key, value)| Some((key.clone(), value.as_i64()?)))
    }

    /// What the run has begun from, if it names that; `run` is its directory, absolute.
    fn begun(&self, run: &Path) -> Option<InitFrom> {
        let (_, value) = self.values.iter().find(|(key, _)| key == INIT_FROM)?;
        let mut begun: InitFrom = serde_json::from_value(value.clone()).ok()?;
        let (InitFrom::Weights(path) | InitFrom::Run(Branch { run: path, .. })) = &mut begun;
        *path = paths::join(run, path.to_str()?).ok()?;
        Some(begun)
    }
}

/// The values of the recipe in a run's directory by their keys.
///
/// # Errors
/// Where it cannot be read.
pub fn values_of(run: &Path) -> Result<Vec<(String, Json)>, Unreadable> {
    let file = run.join(RECIPE);
    let read = regular::read_unlinked_text(&file, regular::RECIPE).map_err(|error| error.to_string());
    read.and_then(|text| written(&text)).map_err(|problem| Unreadable { file, problem })
}

/// The recipes of the runs in a directory that began from what another recipe names, by the names of the runs. What
/// cannot be read is passed over.
pub(super) fn begun_from(asked: &InitFrom, runs_dir: &Path) -> Vec<RunsRecipe> {
    let runs_dir = std::path::absolute(runs_dir).map(|dir| paths::settled(&dir));
    let Ok(entries) = runs_dir.and_then(fs::read_dir) else { return Vec::new() };
    let is_shown = |entry: &DirEntry| !regular::is_hidden(entry.file_name());
    let mut runs: Vec<PathBuf> =
        entries.filter_map(Result::ok).filter(is_shown).map(|entry| entry.path()).collect();
    runs.sort();
    let recipe = |run: &PathBuf| {
        let recipe = RunsRecipe::read(run).ok()?;
        recipe.begun(run).is_some_and(|begun| asked.names(&begun)).then_some(recipe)
    };
    runs.iter().filter_map(recipe).collect()
}
