//! A resolved recipe as a file, which a run directory keeps so that the run can be repeated from there.

use super::effect::silenced_by;
use super::leaves::{toml, values};
use super::paths;
use super::schema::Recipe;
use serde_json::Value as Json;
use std::fmt::Write;
use std::path::Path;

/// What the recipe in a run's directory begins with.
pub(super) const HEADER: &str = "# resolved by runner";

/// The recipe as a complete TOML document for a file in `dir`, an absolute directory.
///
/// Every key with a value and an effect is written, in the order of the table of keys. Paths are relative to `dir`
/// unless they share nothing with it. Loading the file gives the same recipe. The keys that resolution consumes,
/// `extends` and `model.preset`, are left out.
#[must_use]
pub fn to_toml(recipe: &Recipe, dir: &Path) -> String {
    let mut out = format!("{HEADER}: every value is written out, paths are relative to this file\n");
    let (dir, mut table) = (paths::settled(dir), "");
    for (key, mut value) in values(recipe) {
        if silenced_by(recipe, key.path).is_some() {
            continue;
        }
        if key.table() != table {
            table = key.table();
            // Writing to a string cannot fail.
            let _ = write!(out, "\n[{table}]\n");
        }
        if key.is_path() {
            make_relative(&mut value, &dir);
        }
        let _ = writeln!(out, "{} = {}", key.leaf(), toml(&value));
    }
    out
}

fn make_relative(value: &mut Json, dir: &Path) {
    match value {
        Json::String(path) => *path = paths::relative(dir, path),
        // a branch, whose one text is a path
        Json::Object(members) => members.values_mut().for_each(|member| make_relative(member, dir)),
        Json::Array(items) => items.iter_mut().for_each(|item| make_relative(item, dir)),
        _ => {}
    }
}
