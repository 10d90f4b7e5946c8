//! `runner explain RECIPE [KEY]`: every value with where it comes from.

use super::exit::Exit;
use super::named::Named;
use crate::cli::{ExplainArgs, Format};
use crate::recipe::keys::{Fallback, Key, Kind, OnResume, SCHEDULE_KIND, find_table};
use crate::recipe::{self, Origin, Resolved, Setting, silenced_by};
use crate::wording::tame_line;
use serde_json::{Value as Json, json};
use std::fmt::Write;
use std::path::Path;

/// Prints all values, those of a table, or the layers of one key.
pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<Exit> {
    let mut named = Named::here(&args.recipe);
    let asked = (named.recipes.len() == 2).then(|| named.recipes.remove(1));
    let asked = asked.as_deref().map(Path::to_string_lossy);
    let key = match asked.as_deref() {
        Some(name) if find_table(name).is_none() => Some(recipe::find_key(name)?),
        _ => None,
    };
    let (recipe, overrides) = named.one("explain")?;
    let resolved = recipe::load_among(&recipe, &overrides, &args.runs.runs_dir)?;
    let here = std::path::absolute(".")?;
    let text = match (key, args.format) {
        (Some(key), Format::Text) => one(&resolved, key, &here),
        (Some(key), Format::Json) => format!("{:#}\n", one_json(&resolved, key, &here)),
        (None, Format::Text) => all(&resolved, asked.as_deref(), &here),
        (None, Format::Json) => format!("{:#}\n", all_json(&resolved, asked.as_deref(), &here)),
    };
    super::print(&text)?;
    Ok(Exit::Finished)
}

/// The keys with a value, in the order of the table of keys; only those of `table` where one is given.
fn winners<'a>(
    resolved: &'a Resolved,
    table: Option<&'a str>,
) -> impl Iterator<Item = (&'static str, &'a Setting)> {
    let settings = resolved.origins().filter_map(|(key, settings)| Some((key, settings.last()?)));
    settings.filter(move |(key, _)| {
        table.is_none_or(|table| key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.')))
    })
}

fn all(resolved: &Resolved, table: Option<&str>, here: &Path) -> String {
    let rows: Vec<[String; 3]> = winners(resolved, table)
        .map(|(key, setting)| {
            let mut origin = shown(&setting.origin, here);
            if let Some(why) = silenced_by(&resolved.recipe, key) {
                let _ = write!(origin, " (no effect: {why})");
            }
            [key.to_owned(), setting.value_seen_from(here), origin]
        })
        .collect();
    aligned(&rows)
}

fn all_json(resolved: &Resolved, table: Option<&str>, here: &Path) -> Json {
    let entry = |(key, setting): (&str, &Setting)| {
        let mut entry = setting_json(setting, here);
        entry["no_effect"] = silenced_by(&resolved.recipe, key).into();
        (key.to_owned(), entry)
    };
    Json::Object(winners(resolved, table).map(entry).collect())
}

/// What every layer says about one key.
fn one(resolved: &Resolved, key: &'static Key, here: &Path) -> String {
    let settings = settings(resolved, key);
    let mut out = format!("{}: {}\n", key.path, key.doc);
    let last = settings.len().saturating_sub(1);
    let rows: Vec<[String; 3]> = settings
        .iter()
        .enumerate()
        .map(|(i, setting)| {
            let wins = if i == last { "<- in force" } else { "" };
            [format!("  {}", shown(&setting.origin, here)), setting.value_seen_from(here), wins.to_owned()]
        })
        .collect();
    out.push_str(&aligned(&rows));
    if settings.is_empty() {
        let _ = writeln!(out, "  {}", absence(resolved, key, here));
    }
    if let Some(why) = silenced_by(&resolved.recipe, key.path) {
        let _ = writeln!(out, "  it has no effect with {why}");
    }
    if key.is_resolved() {
        let may = if key.on_resume == OnResume::Free { "may change it" } else { "keeps it as it began" };
        let _ = writeln!(out, "  a resumed run {may}");
    }
    out
}

fn one_json(resolved: &Resolved, key: &'static Key, here: &Path) -> Json {
    let layers: Vec<Json> =
        settings(resolved, key).iter().map(|setting| setting_json(setting, here)).collect();
    json!({
        "key": key.path,
        "doc": key.doc,
        "value": layers.last().map_or(Json::Null, |winner| winner["value"].clone()),
        "no_effect": silenced_by(&resolved.recipe, key.path),
        "resume_may_change": key.on_resume == OnResume::Free,
        "layers": layers,
    })
}

fn settings<'a>(resolved: &'a Resolved, key: &Key) -> &'a [Setting] {
    resolved.origins().find(|(name, _)| *name == key.path).map_or(&[], |(_, settings)| settings)
}

/// Why a key has no value.
fn absence(resolved: &Resolved, key: &Key, here: &Path) -> String {
    if key.kind == Kind::Extends {
        let files: Vec<String> = resolved.files.iter().map(|file| seen(file, here)).collect();
        return format!("files read, weakest first: {}", files.join(", "));
    }
    if let Some(other) = key.instead_of.filter(|other| resolved.origin(other).is_some()) {
        return format!("{other} says it instead");
    }
    let kind = resolved.origin(SCHEDULE_KIND).map_or("", |setting| setting.value.as_str());
    if matches!(key.default, Fallback::FifthOf(_)) && key.special_in == Some(kind.trim_matches('"')) {
        return "no layer sets it: a fifth of the run is taken".to_owned();
    }
    if key.is_used_by(kind.trim_matches('"')) {
        return match key.schedules {
            [] => "no layer sets it, and it has no default".to_owned(),
            // what a weaker layer says beside another kind is dropped with that
            _ => format!("no layer sets it beside schedule.kind = {kind}, and it has no default"),
        };
    }
    format!("it has no value with schedule.kind = {kind}, only with {}", key.schedules.join(", "))
}

fn setting_json(setting: &Setting, here: &Path) -> Json {
    let origin = match &setting.origin {
        Origin::Default => json!({ "kind": "default" }),
        Origin::Preset(name) => json!({ "kind": "preset", "name": name }),
        Origin::InitFrom(path) => json!({ "kind": "init_from", "path": seen(path, here) }),
        Origin::Data(path) => json!({ "kind": "data", "path": seen(path, here) }),
        Origin::File { path, line, column } => {
            json!({ "kind": "file", "path": seen(path, here), "line": line, "column": column })
        }
        Origin::Env(name) => json!({ "kind": "environment", "name": name }),
        Origin::Set(argument) => json!({ "kind": "flag", "argument": argument }),
    };
    json!({ "value": setting.json_seen_from(here), "origin": origin })
}

fn shown(origin: &Origin, here: &Path) -> String {
    match origin {
        Origin::File { path, line, column } => format!("{}:{line}:{column}", seen(path, here)),
        Origin::InitFrom(path) => Origin::InitFrom(seen(path, here).into()).to_string(),
        Origin::Data(path) => Origin::Data(seen(path, here).into()).to_string(),
        other => other.to_string(),
    }
}

/// A path relative to the current directory where it lies below it.
fn seen(path: &Path, here: &Path) -> String {
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}

/// Rows with their first two columns padded. A value too long for its column pushes only its own row.
fn aligned(rows: &[[String; 3]]) -> String {
    const WIDEST: usize = 44;
    // the name of a file may have a line feed, and makes no row of its own
    let rows: Vec<[String; 3]> = rows.iter().map(|row| row.each_ref().map(|cell| tame_line(cell))).collect();
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.filter(|width| *width <= WIDEST).max().unwrap_or(0)
    };
    let (first, second) = (width(0), width(1));
    let mut out = String::new();
    for [a, b, c] in &rows {
        let line = format!("{a:first$}  {b:second$}  {c}");
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::keys::{KEYS, TABLES};

    #[test]
    fn every_key_is_in_one_of_the_shown_tables() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("recipe.toml");
        std::fs::write(&path, "schedule.max_steps = 9\ndata.train = \"x\"\n").expect("a file");
        let resolved = recipe::load(&path, &recipe::Overrides::default()).expect("right");
        let lines = all(&resolved, None, dir.path());
        let by_table: usize =
            TABLES.iter().map(|table| all(&resolved, Some(table.name), dir.path()).lines().count()).sum();
        let top = KEYS.iter().filter(|key| key.table().is_empty() && key.kind != Kind::Extends).count();
        assert_eq!(lines.lines().count(), by_table + top, "{lines}");
        let train = lines.lines().find(|line| line.starts_with("data.train ")).expect("a line");
        assert!(train.contains(" [\"x\"] ") && train.ends_with("recipe.toml:2:14"), "{train}");
    }

    #[test]
    fn a_line_feed_in_the_name_of_a_file_makes_no_row() {
        let row = ["key", "value", "base\nkey  other"].map(str::to_owned);
        assert_eq!(aligned(&[row]).lines().count(), 1);
    }
}
