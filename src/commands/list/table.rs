//! The rows of the list: what each run is doing, when it began, and in what the runs differ.

use crate::report::basis::Basis;
use crate::report::differences::{self, Differences, differences, short, shown};
use crate::report::export::{Cell, Column, Table};
use crate::report::fit::Leaving;
use crate::report::gather;
use crate::report::notes::{dropout_between, trained_on_validation};
use crate::report::own::other_log;
use crate::report::runs::{LOG_CHANGED, Run};
use crate::report::scan::{header, last_row};
use crate::run::checkpoint::FileDigest;
use crate::run::column::Unit;
use crate::run::{RunError, RunStatus, dir, record};
use crate::session::UsageError;
use crate::wording::percent;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Runs of several recipes differ in more keys than this; then only those count in which runs of one name differ.
const MOST_KEYS: usize = 5;

/// Bytes of a log that is read whole, to hold it against its digest.
const SHORT: u64 = 1 << 15;

/// A run in the list.
pub(super) struct Item {
    pub(super) run: Run,
    /// `step` and `loss` of the last row of the training log.
    last: Option<(f64, f64)>,
    /// Whether the log cannot be read, or that row has no step, so that nobody knows how many steps there are.
    is_unknown: bool,
    val_loss: Option<f64>,
    /// Its files, before anything of them was read.
    pub(super) written: Written,
    /// Time since something was written.
    pub(super) age: Duration,
}

/// The files that training and evaluating a run write, each by its number, its size and when it was written.
#[derive(Debug, PartialEq)]
pub(super) struct Written(Vec<Option<(u64, u64, SystemTime)>>);

impl Written {
    /// As they are now.
    pub(super) fn of(run: &Path) -> Self {
        // a log grows with every step, the record changes at the end, and a run may be evaluated long after it
        let names = [dir::TRAIN_CSV, dir::VAL_CSV, dir::EVAL_CSV, dir::SAMPLES, record::FILE, dir::RECIPE];
        let of = |name: &str| {
            let file = fs::metadata(run.join(name)).ok()?;
            Some((file.ino(), file.len(), file.modified().ok()?))
        };
        Self(names.map(of).into())
    }

    /// Time since the latest was written.
    fn age(&self) -> Duration {
        let latest = self.0.iter().flatten().map(|(.., time)| *time).max();
        latest.and_then(|time| SystemTime::now().duration_since(time).ok()).unwrap_or_default()
    }
}

impl Item {
    pub(super) fn read(path: &Path) -> Result<Self, RunError> {
        let written = Written::of(path);
        let mut run = Run::read(path)?;
        let mut last_row = |log: &str, columns: &[&str]| {
            last_row(&path.join(log), columns).inspect_err(|error| run.warnings.push(error.to_string()))
        };
        let last = last_row(dir::TRAIN_CSV, &["step", "loss"]);
        // what was logged is on record
        let is_lost = run.facts.logs.contains_key(dir::TRAIN_CSV) && !path.join(dir::TRAIN_CSV).exists();
        let is_unreadable = last.is_err() || is_lost;
        let last = last.ok().flatten().map(|row| (row[0], row[1]));
        let is_malformed = last.is_some_and(|(step, _)| !step.is_finite());
        let last = last.filter(|_| !is_malformed);
        let of_validation = ["step", "val_loss"];
        let logged = last_row(dir::VAL_CSV, &of_validation).ok().flatten();
        let before = run.facts.evaluated_before.as_ref();
        let before = before.map(|row| gather::cells(row, &header(&path.join(dir::VAL_CSV)), &of_validation));
        let is_later =
            |row: &Vec<f64>| row[0].is_finite() && logged.as_ref().is_none_or(|logged| row[0] > logged[0]);
        let validated = before.filter(is_later).or(logged).map(|row| (row[0], row[1]));
        // of a long log the size tells; `compare`, which reads all of it, goes by the digest
        for log in [dir::TRAIN_CSV, dir::VAL_CSV] {
            let size = fs::metadata(path.join(log)).map_or(0, |meta| meta.len());
            let is_same = |noted: &FileDigest| noted.bytes == size && size > SHORT;
            let changed = other_log(path, log, &run.facts.logs, is_same);
            run.notes.extend(changed.as_ref().map(|_| LOG_CHANGED.to_owned()));
            run.warnings.extend(changed);
        }
        if is_malformed {
            let log = path.join(dir::TRAIN_CSV);
            run.warnings.push(format!("`{}` is malformed: its last row has no `step`", log.display()));
        }
        if let (Some((step, _)), Some((at, _))) = (last, validated)
            && run.status == RunStatus::Finished
            && at < step + 1.0
        {
            run.notes.push(format!("its validation loss is of step {at}, before its end"));
        }
        let val_loss = validated.map(|(_, loss)| loss);
        let is_unknown = is_unreadable || is_malformed;
        Ok(Self { run, last, is_unknown, val_loss, age: written.age(), written })
    }

    /// How many steps it has done, where its log says.
    pub(super) fn steps(&self) -> Option<f64> {
        let steps = self.last.map_or(self.run.facts.steps_before() as f64, |(step, _)| step + 1.0);
        Some(steps).filter(|_| !self.is_unknown)
    }

    fn total_steps(&self) -> Option<f64> {
        let recipe = self.run.value("schedule.max_steps").and_then(Json::as_f64);
        Some(self.run.facts.total_steps as f64).filter(|&steps| steps > 0.0).or(recipe)
    }

    fn name(&self) -> &str {
        self.run.value("name").and_then(Json::as_str).unwrap_or(&self.run.facts.name)
    }
}

/// In what the runs of a list differ.
pub(super) struct Differing {
    /// All keys in which two runs differ.
    all: Vec<String>,
    /// For people: these keys, and which of them tell the runs of each name apart. `None` stands for every name.
    shown: Vec<String>,
    of_name: Option<BTreeMap<String, Vec<String>>>,
    /// What a reader should know about them.
    pub(super) note: Option<String>,
}

impl Differing {
    pub(super) fn new(items: &[Item]) -> Self {
        let found = compared(items.iter());
        let (note, all) = (found.note(), found.differing);
        if all.len() <= MOST_KEYS {
            return Self { shown: all.clone(), all, of_name: None, note };
        }
        let mut by_name: BTreeMap<&str, Vec<&Item>> = BTreeMap::new();
        items.iter().for_each(|item| by_name.entry(item.name()).or_default().push(item));
        let of_name: BTreeMap<String, Vec<String>> = by_name
            .into_iter()
            .map(|(name, items)| (name.to_owned(), compared(items.into_iter()).differing))
            .collect();
        let is_shown = |key: &&String| of_name.values().any(|keys| keys.contains(key));
        Self { shown: all.iter().filter(is_shown).cloned().collect(), all, of_name: Some(of_name), note }
    }

    /// Whether a key tells a run from others of its name.
    fn tells(&self, item: &Item, key: &String) -> bool {
        self.of_name
            .as_ref()
            .is_none_or(|names| names.get(item.name()).is_some_and(|keys| keys.contains(key)))
    }
}

fn compared<'a>(items: impl Iterator<Item = &'a Item>) -> Differences {
    let runs: Vec<&Run> = items.map(|item| &item.run).collect();
    if runs.len() < 2 { Differences::default() } else { differences(&runs) }
}

/// The list as a table.
pub(super) fn table(items: &[Item], differing: &Differing, for_people: bool) -> Table {
    let mut columns = vec![
        Column::words("run", "run"),
        Column::words("status", "status"),
        Column::numbers("steps", "steps"),
        Column::numbers("total_steps", "of"),
        Column::numbers("progress", "done"),
        Column::numbers("loss", "loss"),
        Column::numbers("val_loss", "val loss"),
        Column::numbers("age_s", "age"),
        Column::words("began", "began (UTC)"),
    ];
    let keys = if for_people { &differing.shown } else { &differing.all };
    for key in keys {
        let is_number =
            |item: &Item| differences::value(&item.run, key).is_none_or(|value| value.is_number());
        let title = if for_people { short(key, keys) } else { key };
        let is_numeric = items.iter().all(is_number);
        columns.push(Column { name: key.clone(), title: title.to_owned(), is_numeric });
    }
    let has_notes = !for_people && items.iter().any(|item| !item.run.notes.is_empty());
    columns.extend(has_notes.then(|| Column::words("notes", "notes")));
    let row = |item: &Item| {
        let mut cells = cells(item);
        cells.extend(keys.iter().map(|key| {
            let value =
                differences::value(&item.run, key).filter(|_| !for_people || differing.tells(item, key));
            value.map_or_else(Cell::empty, |value| Cell { shown: shown(&value), value })
        }));
        cells.extend(has_notes.then(|| Cell::text(item.run.notes.join("; "))));
        cells
    };
    Table { rows: items.iter().map(row).collect(), columns }
}

/// What does not depend on the other runs.
fn cells(item: &Item) -> Vec<Cell> {
    let whole = |x: f64| format!("{x}");
    let progress = item.total_steps().zip(item.steps()).map(|(total, steps)| steps / total);
    // all rows are there before the last checkpoint is
    let most = if item.run.status == RunStatus::Finished { f64::INFINITY } else { 99.0 };
    let created = &item.run.facts.created;
    let began = Cell { value: created.as_str().into(), shown: minute(created) };
    vec![
        Cell::text(&*item.run.id),
        Cell { value: item.run.status.to_string().into(), shown: item.run.status_shown() },
        Cell::number(item.steps(), whole),
        Cell::number(item.total_steps(), whole),
        Cell::number(progress, |share| format!("{} %", percent(share).min(most))),
        Cell::number(item.last.map(|(_, loss)| loss), |x| Unit::Loss.shown(x)),
        Cell::number(item.val_loss, |x| Unit::Loss.shown(x)),
        Cell::number(Some(item.age.as_secs() as f64), |_| age(item.age)),
        if created.is_empty() { Cell::empty() } else { began },
    ]
}

/// What a narrow list leaves out.
pub(super) fn leaving(differing: &Differing) -> Leaving {
    let first =
        ["total_steps", "steps", "loss", "age_s", "began", "progress", "status"].map(str::to_owned).to_vec();
    Leaving { first, at_last: differing.shown.clone() }
}

/// Sorts by a column or a key of the recipe, what has none last.
///
/// Errors: [`UsageError`] for what is neither.
pub(super) fn sort(items: &mut Vec<Item>, name: &str, differing: &Differing) -> Result<(), UsageError> {
    let table = table(items, differing, false);
    let column = match name {
        "time" => "began",
        "age" => "age_s",
        "done" => "progress",
        other => other,
    };
    // headings show the last part of a key where no other ends so
    let suffix = format!(".{column}");
    let named = |name: &str| name == column || name.ends_with(&suffix);
    let place = table.columns.iter().position(|known| known.name == column);
    let place = place.or_else(|| table.columns.iter().position(|known| named(&known.name)));
    let is_key = || items.iter().any(|item| item.run.value(name).is_some());
    if place.is_none() && !is_key() {
        let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
        return Err(UsageError(format!(
            "cannot sort by `{name}`: it is no column and no key of these runs; there are time, name, {}",
            names.join(", ")
        )));
    }
    let values = items.drain(..).zip(table.rows).map(|(item, row)| {
        let value = match place {
            Some(place) => Some(row[place].value.clone()).filter(|value| !value.is_null()),
            None => item.run.value(name).cloned(),
        };
        (value, item)
    });
    let mut sorted: Vec<(Option<Json>, Item)> = values.collect();
    sorted.sort_by(|(a, _), (b, _)| differences::order(a.clone(), b.clone()));
    items.extend(sorted.into_iter().map(|(_, item)| item));
    Ok(())
}

/// What to know of an order by a loss: whether that was measured on different data, and which runs were trained on what
/// they are validated on.
pub(super) fn notes_on_order(items: &[Item], sorted_by: Option<&str>, keys: &Differing) -> Vec<String> {
    let (column, is_validation) = match sorted_by {
        Some("val_loss" | "val loss") => ("val_loss", true),
        Some("loss") => ("loss", false),
        _ => return Vec::new(),
    };
    let has_it = |item: &&Item| if is_validation { item.val_loss.is_some() } else { item.last.is_some() };
    let runs: Vec<&Run> = items.iter().filter(has_it).map(|item| &item.run).collect();
    let of = if is_validation { Basis::of_validation } else { Basis::of_training };
    let bases = Basis::settled(runs.iter().map(|run| of(run, column)).collect());
    let differing = Basis::differing(&bases.iter().collect::<Vec<_>>());
    let mixed = (!differing.is_empty()).then(|| {
        format!(
            "{column} was measured {}, so this order does not say which is better; `runner compare` ranks runs of \
             the same data",
            Basis::differently(&differing)
        )
    });
    let seen = if is_validation { trained_on_validation(&runs) } else { Vec::new() };
    let under_dropout = dropout_between(column, &keys.all).filter(|_| !is_validation);
    mixed.into_iter().chain(under_dropout).chain(seen).collect()
}

/// A time of the record to the minute.
fn minute(rfc3339: &str) -> String {
    rfc3339.replacen('T', " ", 1).chars().take("2000-01-01 00:00".len()).collect()
}

/// A time in its largest unit.
fn age(time: Duration) -> String {
    let s = time.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let (unit, name) = units.into_iter().find(|(unit, _)| s >= *unit).unwrap_or((1, "s"));
    format!("{} {name}", s / unit)
}
