//! A resolved recipe as a file: what a run directory keeps, so that it can be run again from there.

use super::effect::silenced_by;
use super::leaves::{toml, values};
use super::paths;
use super::schema::Recipe;
use serde_json::Value as Json;
use std::fmt::Write;
use std::path::Path;

/// The recipe as a complete TOML document for a file in `dir`, an absolute directory.
///
/// Every key with a value and an effect is there, in the order of the table of keys; paths are relative to `dir` unless they share
/// nothing with it. Loading the file gives the same recipe. The keys that only lead to values, `extends` and
/// `model.preset`, are gone.
#[must_use]
pub fn to_toml(recipe: &Recipe, dir: &Path) -> String {
    let mut out =
        String::from("# resolved by runner: every value is written out, paths are relative to this file\n");
    let mut table = "";
    for (path, mut value) in values(recipe) {
        if silenced_by(recipe, path).is_some() {
            continue;
        }
        let (header, leaf) = path.rsplit_once('.').unwrap_or(("", path));
        if header != table {
            table = header;
            // Writing to a string cannot fail.
            let _ = write!(out, "\n[{table}]\n");
        }
        match path {
            "data.train" | "data.val" | "model.init_from" => make_relative(&mut value, dir),
            _ => {}
        }
        let _ = writeln!(out, "{leaf} = {}", toml(&value));
    }
    out
}

fn make_relative(value: &mut Json, dir: &Path) {
    match value {
        Json::String(path) => *path = paths::relative(&paths::normalize(dir), path),
        Json::Array(items) => items.iter_mut().for_each(|item| make_relative(item, dir)),
        _ => {}
    }
}

/// A word of the recipe language, such as `bf16` or `fused`. Empty for a value that is no word.
#[must_use]
pub fn word(value: impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
