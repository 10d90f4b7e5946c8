//! A resolved recipe as a list of keys and values, to be written, compared and hashed.

use super::keys::{KEYS, Key, OnResume};
use super::schema::Recipe;
use super::value::{bare, comma, float, quoted};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// A key whose values differ between two recipes; `None` where a recipe has no such key.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The key.
    pub key: &'static Key,
    /// TOML value in the first recipe.
    pub left: Option<String>,
    /// TOML value in the second recipe.
    pub right: Option<String>,
}

/// Every key that the recipe has, in the order of the table of keys, with its value as TOML on one line.
#[must_use]
pub fn leaves(recipe: &Recipe) -> Vec<(&'static Key, String)> {
    values(recipe).into_iter().map(|(key, value)| (key, toml(&value))).collect()
}

/// The keys in which two recipes differ, in the order of the table of keys.
#[must_use]
pub fn diff(left: &Recipe, right: &Recipe) -> Vec<Difference> {
    let (left, right) = (leaves(left), leaves(right));
    let find = |leaves: &[(&'static Key, String)], key: &Key| {
        leaves.iter().find(|(known, _)| known.path == key.path).map(|(_, value)| value.clone())
    };
    KEYS.iter()
        .map(|key| Difference { key, left: find(&left, key), right: find(&right, key) })
        .filter(|difference| difference.left != difference.right)
        .collect()
}

/// The keys that a resumed run may change, with their values, where these are not the defaults. Paths are left out.
#[must_use]
pub fn changeable(recipe: &Recipe) -> BTreeMap<String, Json> {
    let is_meant = |(key, value): &(&Key, Json)| {
        key.on_resume == OnResume::Free && !key.is_path() && key.default_json() != Some(value)
    };
    let meant = values(recipe).into_iter().filter(is_meant);
    meant.map(|(key, value)| (key.path.to_owned(), value)).collect()
}

/// Every key that the recipe has, in the order of the table of keys, with its value as JSON.
pub(super) fn values(recipe: &Recipe) -> Vec<(&'static Key, Json)> {
    let root = serde_json::to_value(recipe).expect("a recipe is plain data");
    let lookup = |key: &Key| -> Option<Json> {
        let table = if key.table().is_empty() { &root } else { root.get(key.table())? };
        table.get(key.leaf()).cloned()
    };
    KEYS.iter().filter_map(|key| Some((key, lookup(key)?))).collect()
}

/// A value as TOML, on one line.
pub(super) fn toml(value: &Json) -> String {
    match value {
        Json::String(text) => quoted(text),
        Json::Array(items) => format!("[{}]", comma(items.iter().map(toml))),
        Json::Object(members) => {
            format!(
                "{{ {} }}",
                comma(members.iter().map(|(name, value)| format!("{} = {}", bare(name), toml(value))))
            )
        }
        Json::Number(number) if number.is_f64() => number.as_f64().map(float).unwrap_or_default(),
        other => other.to_string(),
    }
}
