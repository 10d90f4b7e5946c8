//! What stands below the curves of the live page: results, recipes and plans side by side, and samples.
//!
//! It is read from the files of the chosen runs when a reader asks, and sent as texts in tables.

use super::followed::newest_samples;
use crate::recipe::spelled;
use crate::report::compare::{Comparison, Options, RowOrder};
use crate::report::differences::{shown, value};
use crate::report::export::{Cell, Column, Table};
use crate::report::numbers::{compact, thousands};
use crate::report::page::lines::lines;
use crate::report::page::results as tables;
use crate::report::plot::{self, Quantity};
use crate::report::runs::Run;
use crate::report::sentences::first;
use crate::run::{RunError, RunRecord};
use crate::wording::{tame, tame_line};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Rows of a plan, and how deep its fields are looked into.
const MOST_FIELDS: usize = 120;
const DEEPEST: usize = 3;
/// Runs whose samples are shown side by side.
const MOST_SAMPLED: usize = 24;

/// The comparison of runs as JSON: tables of results, sentences, and the recipes and plans side by side, what differs
/// first.
///
/// Errors: [`RunError::NotARun`] if a run is gone.
pub fn results(paths: &[PathBuf], quantities: &[Quantity]) -> Result<Value, RunError> {
    let options = Options {
        cut: None,
        judge: None,
        further: Vec::new(),
        named: Vec::new(),
        drawn: plot::drawn(quantities, true, paths),
        for_people: true,
        targets: Vec::new(),
        order: RowOrder::Best,
        reverse: false,
    };
    let comparison = Comparison::new(paths, &options)?;
    let (runs, differences) = (&comparison.runs, &comparison.differences);
    let lines = lines(runs, &comparison.groups, &differences.differing);
    let mut columns = vec![String::new(); runs.len()];
    lines.into_iter().for_each(|line| columns[line.run] = line.label);
    let in_words =
        |sentences: Vec<String>| -> Vec<String> { sentences.iter().map(|text| tame(text)).collect() };
    let shared = differences.shared.iter().map(|(key, value)| (key.clone(), spelled(value)));
    let differing = differences.differing.iter().map(|key| {
        let of = |run: &Run| value(run, key).map_or_else(String::new, |value| shown(&value));
        (key.clone(), runs.iter().map(of).collect())
    });
    let recipes = side_by_side(&columns, runs, differing.collect(), shared.collect());
    let of_plan: Vec<Vec<(String, String)>> = runs.iter().map(plan).collect();
    let (differing, shared) = told_apart(&of_plan);
    let measured = tables(&comparison, &comparison.measures);
    let measured: Vec<Value> = measured.iter().map(|(title, table)| json_of(*title, table, &[])).collect();
    Ok(json!({
        "shared": tame(&comparison.shared_line()),
        "tables": measured,
        "notes": in_words(comparison.notes()),
        "sentences": in_words(comparison.in_short("runner compare --format json")),
        "remarks": in_words(first(comparison.remarks(), "runner compare")),
        "recipes": recipes,
        "plan": side_by_side(&columns, runs, differing, shared),
    }))
}

/// The newest samples of runs as JSON.
#[must_use]
pub fn samples(runs: &[(u64, PathBuf)]) -> Value {
    let of = |(key, path): &(u64, PathBuf)| json!({"key": key, "samples": newest_samples(path)});
    runs.iter().take(MOST_SAMPLED).map(of).collect()
}

/// Two tables: what differs, a column for each run, and what is the same in all.
fn side_by_side(
    labels: &[String],
    runs: &[Run],
    differing: Vec<(String, Vec<String>)>,
    shared: Vec<(String, String)>,
) -> Vec<Value> {
    let text = |text: String| Cell::text(tame_line(&text));
    let mut found = Vec::new();
    if !differing.is_empty() {
        let names = std::iter::once("key").chain(labels.iter().map(String::as_str));
        let columns = names.map(|name| Column::words(name, name)).collect();
        let row = |(key, values): (String, Vec<String>)| {
            std::iter::once(text(key)).chain(values.into_iter().map(text)).collect()
        };
        let ids: Vec<&str> = std::iter::once("").chain(runs.iter().map(|run| run.id.as_str())).collect();
        let table = Table { columns, rows: differing.into_iter().map(row).collect() };
        found.push(json_of(Some("What differs"), &table, &ids));
    }
    if !shared.is_empty() {
        let columns = ["key", "value"].map(|name| Column::words(name, name)).to_vec();
        let rows = shared.into_iter().map(|(key, value)| vec![text(key), text(value)]).collect();
        let title = if runs.len() > 1 { "The same in all" } else { "" };
        found.push(json_of(Some(title), &Table { columns, rows }, &[]));
    }
    found
}

/// A table for the script. `hints` say more about columns than their titles.
fn json_of(title: Option<&str>, table: &Table, hints: &[&str]) -> Value {
    let column = |(i, column): (usize, &Column)| {
        let hint = hints.get(i).map(|hint| tame_line(hint));
        json!({"title": tame_line(&column.title), "numeric": column.is_numeric, "hint": hint})
    };
    let cell = |cell: &Cell| json!([tame_line(&cell.shown), cell.value.as_f64()]);
    let row = |row: &Vec<Cell>| row.iter().map(cell).collect::<Value>();
    json!({
        "title": title,
        "columns": table.columns.iter().enumerate().map(column).collect::<Vec<_>>(),
        "rows": table.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

/// What a run's record says of its making, and the numbers of its plan.
fn plan(run: &Run) -> Vec<(String, String)> {
    let facts = &run.facts;
    let made = [
        ("run", run.id.clone()),
        ("status", run.status_shown()),
        ("error", facts.error.clone().unwrap_or_default()),
        ("begun", facts.created.clone()),
        ("ended", facts.ended.clone().unwrap_or_default()),
        ("device", facts.device.clone()),
        ("host", facts.host.clone()),
        ("version", facts.version.clone()),
        ("commit", facts.git_commit.clone().unwrap_or_default()),
    ];
    let mut rows: Vec<(String, String)> = made
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| (name.to_owned(), text))
        .collect();
    if let Ok(Some(record)) = RunRecord::read(&run.path) {
        fields("", &record.plan, 0, &mut rows);
    }
    rows
}

/// The fields of a JSON value, with the way to each.
fn fields(way: &str, value: &Value, depth: usize, rows: &mut Vec<(String, String)>) {
    let under = |name: &str| if way.is_empty() { name.to_owned() } else { format!("{way}.{name}") };
    if depth > DEEPEST || rows.len() >= MOST_FIELDS {
        return;
    }
    match value {
        Value::Null => {}
        Value::Object(fields_of) => {
            fields_of.iter().for_each(|(name, value)| fields(&under(name), value, depth + 1, rows));
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                match item.as_array().map(Vec::as_slice) {
                    // pairs of a kind and a number
                    Some([Value::String(name), value]) => fields(&under(name), value, depth + 1, rows),
                    _ => fields(&under(&i.to_string()), item, depth + 1, rows),
                }
            }
        }
        Value::Number(number) => {
            let grouped = number.as_u64().map(thousands);
            let text = grouped.or_else(|| number.as_f64().map(compact)).unwrap_or_default();
            rows.push((way.to_owned(), text));
        }
        Value::String(text) => rows.push((way.to_owned(), text.clone())),
        Value::Bool(is) => rows.push((way.to_owned(), is.to_string())),
    }
}

/// A row for each name whose texts differ, with the text of each run, and one for each name whose texts are the same.
type Apart = (Vec<(String, Vec<String>)>, Vec<(String, String)>);

fn told_apart(runs: &[Vec<(String, String)>]) -> Apart {
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in runs.iter().flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let (mut differing, mut shared) = (Vec::new(), Vec::new());
    for name in names {
        let of = |run: &Vec<(String, String)>| {
            run.iter().find(|(other, _)| other == name).map_or_else(String::new, |(_, text)| text.clone())
        };
        let mut texts: Vec<String> = runs.iter().map(of).collect();
        match texts.iter().all(|text| *text == texts[0]) {
            true => shared.push((name.clone(), texts.swap_remove(0))),
            false => differing.push((name.clone(), texts)),
        }
    }
    (differing, shared)
}
