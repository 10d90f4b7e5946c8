//! A resolved recipe as a list of keys and values: what is written, compared and hashed.

use super::keys::{KEYS, known};
use super::schema::Recipe;
use super::value::{comma, float, quoted};
use serde_json::Value as Json;

/// A key whose values differ between two recipes; `None` where a recipe has no such key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Dotted path.
    pub key: &'static str,
    /// TOML value in the first recipe.
    pub left: Option<String>,
    /// TOML value in the second recipe.
    pub right: Option<String>,
}

/// Every key that the recipe has, in the order of the table of keys, with its value as TOML on one line.
#[must_use]
pub fn leaves(recipe: &Recipe) -> Vec<(&'static str, String)> {
    values(recipe).into_iter().map(|(key, value)| (key, toml(&value))).collect()
}

/// The keys in which two recipes differ, in the order of the table of keys.
#[must_use]
pub fn diff(left: &Recipe, right: &Recipe) -> Vec<Difference> {
    let (left, right) = (leaves(left), leaves(right));
    let find =
        |leaves: &[(&str, String)], key| leaves.iter().find(|(name, _)| *name == key).map(|(_, v)| v.clone());
    KEYS.iter()
        .map(|key| Difference { key: key.path, left: find(&left, key.path), right: find(&right, key.path) })
        .filter(|difference| difference.left != difference.right)
        .collect()
}

/// True if a run may not be continued under another value of `key`.
///
/// False for what decides where, how fast or how often something happens: `name`, `batch.micro_batch`,
/// `batch.world_size`, `compute.device`, `compute.threads` and all of `distributed`, `eval`, `checkpoint`, `watchdog`, `sample` and `lints`
/// (a run that the watchdog has stopped must be able to go on under a milder one). Also false for the paths `data.train`, `data.val` and `model.init_from`: a moved tree changes them, so what they hold is compared
/// by digest elsewhere.
#[must_use]
pub fn changes_mathematics(key: &str) -> bool {
    const HARMLESS: &[&str] =
        &["name", "batch.micro_batch", "batch.world_size", "compute.device", "compute.threads"];
    const BY_DIGEST: &[&str] = &["data.train", "data.val", "model.init_from"];
    const TABLES: &[&str] = &["distributed.", "eval.", "checkpoint.", "watchdog.", "sample.", "lints."];
    !HARMLESS.contains(&key)
        && !BY_DIGEST.contains(&key)
        && !TABLES.iter().any(|table| key.starts_with(table))
}

/// The values behind [`leaves`].
pub(super) fn values(recipe: &Recipe) -> Vec<(&'static str, Json)> {
    let root = serde_json::to_value(recipe).expect("a recipe is plain data");
    let lookup = |path: &'static str| -> Option<Json> {
        let key = known(path);
        let table = if key.table().is_empty() { &root } else { root.get(key.table())? };
        table.get(key.leaf()).cloned()
    };
    KEYS.iter().filter_map(|key| Some((key.path, lookup(key.path)?))).collect()
}

/// A value as TOML, on one line.
pub(super) fn toml(value: &Json) -> String {
    match value {
        Json::String(text) => quoted(text),
        Json::Array(items) => format!("[{}]", comma(items.iter().map(toml))),
        Json::Number(number) if number.is_f64() => number.as_f64().map(float).unwrap_or_default(),
        other => other.to_string(),
    }
}
