//! One run of the live page: its files are looked at now and then, and what is new is noted for every reader.

use crate::regular;
use crate::report::follow::{LogTail, Piece};
use crate::report::left::{Place, RECENT, Way};
use crate::report::numbers::{seconds, thousands};
use crate::report::page::points::{Points, Position};
use crate::report::page::{columns, kept};
use crate::report::plot::{Quantity, quantities};
use crate::report::runs::Run;
use crate::report::scan::scan_bytes;
use crate::report::tail::identity;
use crate::run::column::Unit;
use crate::run::{RunError, RunRecord, RunStatus, dir, record, samples};
use crate::wording::tame;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Time between two looks at a run that trains, and at one that does not: it may be started again.
pub(super) const LIVE: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_secs(5);
/// Further columns of a `val.csv` that the page offers.
const MOST_FURTHER: usize = 40;
/// Characters of such a column's name, and of an error.
const MOST_NAME: usize = 80;
const MOST_WHY: usize = 400;
/// Samples of a run that the page shows.
const MOST_SAMPLES: usize = 12;

/// The columns of the training log whose latest values stand in the table of runs.
const FIGURES: [&str; 6] = ["step", "tokens", "elapsed_s", "loss", "tokens_per_s", "mfu"];

/// What tells that a file was written: its length, its time, and which file it is.
type Stamp = (u64, SystemTime, u64);

/// A run that is followed.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) key: u64,
    pub(super) run: Run,
    /// Whether it is shown at first.
    pub(super) is_chosen: bool,
    /// Its number among all changes of all runs.
    pub(super) version: u64,
    stamps: [Option<Stamp>; 2],
    /// The status on record, which a killed process leaves behind.
    recorded: RunStatus,
    status: RunStatus,
    problem: Option<String>,
    train: Log,
    val: Log,
    /// The latest rows of [`FIGURES`].
    recent: VecDeque<[f64; FIGURES.len()]>,
    val_loss: f64,
    samples: u64,
    /// When it is looked at again; at once if it has not been.
    next: Option<Instant>,
}

/// A log as the points that the page draws.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    tail: LogTail,
    stamp: Option<Stamp>,
    points: Points,
    /// Whether it is `val.csv`, of which further columns are drawn.
    is_evaluated: bool,
}

/// How much of a run a reader has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) version: u64,
    train: Position,
    val: Position,
}

/// What a look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing new.
    Nothing,
    /// New rows, or another status.
    News,
    /// Another recipe or record, or other columns: what all runs have in common, or can be drawn of them, may change.
    Facts,
}

impl Followed {
    /// Begins to follow the run in a directory; nothing is read of its logs yet. Each is thinned to `most` points.
    ///
    /// Errors: [`RunError::NotARun`].
    pub(super) fn new(key: u64, path: &Path, is_chosen: bool, most: usize) -> Result<Self, RunError> {
        let log = |name| Log::new(path, name, most);
        Ok(Self {
            key,
            run: Run::read(path)?,
            is_chosen,
            version: 0,
            stamps: [None; 2],
            recorded: RunStatus::Created,
            status: RunStatus::Created,
            problem: None,
            train: log(dir::TRAIN_CSV),
            val: log(dir::VAL_CSV),
            recent: VecDeque::new(),
            val_loss: f64::NAN,
            samples: 0,
            next: None,
        })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &PathBuf {
        &self.run.path
    }

    /// Looks at the files if it is time. Links of other users are followed on the way to `runs_dir` alone. A run that
    /// is no longer there is an error.
    pub(super) fn look(&mut self, now: Instant, runs_dir: &Path) -> Result<Found, RunError> {
        if self.next.is_some_and(|next| now < next) {
            return Ok(Found::Nothing);
        }
        // somebody may have put a link in its place
        regular::followed(self.path(), runs_dir).map_err(|error| {
            let path = self.path().clone();
            RunError::Io { action: "look at", path, error }
        })?;
        let before = (self.status, self.recorded, self.problem.take(), self.samples);
        let mut found = Found::Nothing;
        // asked before the record is read: what ends in between is then on record
        let status = match self.stamps[0].is_none() || self.may_train() {
            true => crate::run::status(self.path()),
            false => Ok(self.status),
        };
        let stamps = [record::FILE, dir::RECIPE].map(|file| stamp(&self.path().join(file)));
        if self.stamps != stamps || self.stamps[0].is_none() {
            self.stamps = stamps;
            let run = Run::read(self.path())?;
            self.recorded = match RunRecord::read(self.path()) {
                Ok(record) => record.map_or(RunStatus::Created, |record| record.status),
                Err(_) => run.status,
            };
            self.status = run.status;
            found = match run.recipe == self.run.recipe && run.facts == self.run.facts && self.version > 0 {
                true => Found::Nothing,
                false => Found::Facts,
            };
            self.run = run;
        } else {
            match status {
                Ok(status) => self.status = status,
                Err(error @ RunError::NotARun { .. }) => return Err(error),
                Err(error) => self.problem = Some(error.to_string()),
            }
        }
        let columns = self.val.points.columns().len();
        let has_rows = self.read_logs();
        if self.val.points.columns().len() != columns {
            // there is more to choose from
            found = Found::Facts;
        }
        self.samples = stamp(&self.path().join(dir::SAMPLES)).map_or(0, |(length, ..)| length);
        self.next = Some(now + if self.is_training() { LIVE } else { QUIET });
        let after = (self.status, self.recorded, self.problem.clone(), self.samples);
        Ok(match found {
            Found::Nothing if has_rows || before != after => Found::News,
            found => found,
        })
    }

    /// Reads what is new in the logs; true if something is.
    fn read_logs(&mut self) -> bool {
        let Self { train, val, recent, val_loss, .. } = self;
        let before = (train.points.position(), val.points.position());
        let of_train = train.read(&FIGURES, |row| match row {
            None => recent.clear(),
            Some(row) => {
                if recent.len() == RECENT {
                    recent.pop_front();
                }
                recent.push_back(std::array::from_fn(|i| row[i]));
            }
        });
        let of_val = val.read(&["val_loss"], |row| match row {
            None => *val_loss = f64::NAN,
            Some(row) if row[0].is_nan() => {}
            Some(row) => *val_loss = row[0],
        });
        let is_new = before != (train.points.position(), val.points.position());
        if let Err(error) = of_train.and(of_val) {
            self.problem.get_or_insert_with(|| error.to_string());
        }
        is_new
    }

    /// Whether a process trains it.
    pub(super) fn is_training(&self) -> bool {
        matches!(self.status, RunStatus::Created | RunStatus::Running)
    }

    /// Whether its record says that a process trains it, which may have been killed.
    fn may_train(&self) -> bool {
        matches!(self.recorded, RunStatus::Created | RunStatus::Running)
    }

    /// How it stands: in a word, and whether that is good.
    fn stands(&self) -> (String, &'static str) {
        match self.status {
            RunStatus::Created => ("starting".to_owned(), "good"),
            RunStatus::Running => ("training".to_owned(), "good"),
            RunStatus::Finished => (self.run.status_shown(), ""),
            // no live process holds its lock
            RunStatus::Interrupted if self.may_train() => ("killed".to_owned(), "bad"),
            RunStatus::Interrupted => ("interrupted".to_owned(), "waiting"),
            RunStatus::Diverged | RunStatus::Failed | RunStatus::Unknown => (self.status.to_string(), "bad"),
        }
    }

    /// The columns of `val.csv` that the table of columns lacks.
    pub(super) fn further(&self) -> impl Iterator<Item = Quantity> {
        let is_known = |name: &String| quantities().iter().any(|quantity| quantity.name == *name);
        let names = self.val.points.columns().iter().skip(2).filter(move |name| !is_known(name));
        names.map(|name| Quantity::evaluated(name))
    }

    /// What a reader lacks, who has it all then; `None` if there is nothing.
    pub(super) fn news(&self, reader: &mut Seen) -> Option<Value> {
        if reader.version >= self.version {
            return None;
        }
        let part = |log: &Log, seen: Position| {
            let first = log.points.first_new(seen);
            first.map_or(Value::Null, |first| json!({"from": first, "columns": log.points.from(first)}))
        };
        let (status, kind) = self.stands();
        let error = self.run.facts.error.as_ref().filter(|_| kind == "bad");
        let why = self.problem.iter().chain(error).chain(&self.run.warnings).next();
        let news = json!({
            "key": self.key,
            "status": status,
            "kind": kind,
            "why": why.map(|why| tame(why).chars().take(MOST_WHY).collect::<String>()),
            "cells": self.cells(),
            "samples": self.samples,
            "stride": self.train.points.stride(),
            "train": part(&self.train, reader.train),
            "val": part(&self.val, reader.val),
        });
        *reader = Seen {
            version: self.version,
            train: self.train.points.position(),
            val: self.val.points.position(),
        };
        Some(news)
    }

    /// The cells of [`CELLS`], each as people read it, with its number.
    fn cells(&self) -> Value {
        let last = self.recent.back().copied().unwrap_or([f64::NAN; FIGURES.len()]);
        let [step, _, _, loss, rate, mfu] = last;
        let done = if step.is_nan() { 0.0 } else { step + 1.0 };
        let total = self.total_steps();
        let cell = |text: String, value: f64| json!([text, Some(value).filter(|value| value.is_finite())]);
        let shown = |unit: Unit, value: f64| {
            cell(if value.is_nan() { String::new() } else { unit.shown(value) }, value)
        };
        let left = self.left().filter(|_| self.is_training());
        Value::Array(vec![
            cell(format!("{} / {}", thousands(done as u64), thousands(total as u64)), done),
            shown(Unit::Loss, loss),
            shown(Unit::Loss, self.val_loss),
            shown(Unit::Rate, rate),
            shown(Unit::Fraction, mfu),
            cell(left.map_or_else(String::new, seconds), left.unwrap_or(f64::NAN)),
            cell(self.run.facts.created.replace('T', " ").replace('Z', ""), f64::NAN),
        ])
    }

    fn total_steps(&self) -> f64 {
        let asked = self.run.value("schedule.max_steps").and_then(Value::as_f64);
        asked.unwrap_or(self.run.facts.total_steps as f64)
    }

    /// Seconds to the end at the pace of the last steps.
    fn left(&self) -> Option<f64> {
        let place = |row: &[f64; FIGURES.len()]| Place::new(row[0], row[1], row[2]);
        let (first, last) = self.recent.front().zip(self.recent.back())?;
        let tokens = self.run.facts.total_tokens.map(|tokens| tokens as f64);
        Way { steps: self.total_steps(), tokens }.seconds(place(first), place(last))
    }
}

/// The columns of the table of runs behind the run and its status: name and whether it holds numbers.
pub(super) const CELLS: [(&str, bool); 7] = [
    ("step", true),
    ("loss", true),
    ("val loss", true),
    ("tok/s", true),
    ("MFU", true),
    ("left", true),
    ("begun (UTC)", false),
];

impl Log {
    fn new(run: &Path, name: &'static str, most: usize) -> Self {
        let (columns, places) = columns(name, quantities());
        let path = run.join(name);
        let points = Points::new(columns, places, kept(name), most);
        Self { tail: LogTail::new(&path), path, stamp: None, points, is_evaluated: name == dir::VAL_CSV }
    }

    /// Reads what is new: points of the log's columns, and rows of the columns `wanted` for `each`, which gets `None`
    /// where the log begins anew. A file that was not written since the last time is not opened.
    fn read(&mut self, wanted: &[&str], mut each: impl FnMut(Option<&[f64]>)) -> Result<(), RunError> {
        let now = stamp(&self.path);
        if now.is_some() && now == self.stamp {
            return Ok(());
        }
        let Self { tail, points, is_evaluated, .. } = self;
        tail.poll(|piece| match piece {
            Piece::Anew => {
                points.clear();
                each(None);
            }
            Piece::Rows(text) => {
                if *is_evaluated && points.is_empty() {
                    points.restart(evaluated(text));
                }
                let mut columns: Vec<String> = points.columns().to_vec();
                let own = columns.len();
                let places: Vec<usize> = wanted.iter().map(|name| place(&mut columns, name)).collect();
                let names: Vec<&str> = columns.iter().map(String::as_str).collect();
                let mut further = vec![f64::NAN; wanted.len()];
                scan_bytes(text, &names, |row| {
                    points.push(&row[..own]);
                    further.iter_mut().zip(&places).for_each(|(value, &place)| *value = row[place]);
                    each(Some(&further));
                });
            }
        })?;
        self.stamp = now;
        Ok(())
    }
}

/// Where a column lies among some, to which it is added if need be.
fn place(columns: &mut Vec<String>, name: &str) -> usize {
    columns.iter().position(|column| column == name).unwrap_or_else(|| {
        columns.push(name.to_owned());
        columns.len() - 1
    })
}

/// The columns of a `val.csv` that the page draws: those of the table of columns, and what else its header names.
fn evaluated(text: &[u8]) -> Vec<String> {
    let header = text.split_inclusive(|&b| b == b'\n').next().unwrap_or_default();
    let mut columns = columns(dir::VAL_CSV, quantities()).0;
    let most = columns.len() + MOST_FURTHER;
    // a name that the training log has too would be two curves of one name
    let is_free = |name: &String| quantities().iter().all(|quantity| quantity.name != *name);
    for name in scan_bytes(header, &[], |_| {}).header {
        let fits = !name.is_empty() && name.chars().count() <= MOST_NAME && columns.len() < most;
        if fits && is_free(&name) && !columns.contains(&name) {
            columns.push(name);
        }
    }
    columns
}

/// The newest samples of a run, the newest first: the step and the text of each.
pub(super) fn newest_samples(run: &Path) -> Value {
    let file = run.join(dir::SAMPLES);
    let found = samples::newest(&file, MOST_SAMPLES);
    let shown = |(step, text): (u64, String)| json!({"step": step, "text": tame(&text)});
    match found {
        Ok(found) => found.into_iter().map(shown).collect(),
        Err(error) => json!([{"step": null, "text": tame(&error.to_string())}]),
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = path.symlink_metadata().ok()?;
    Some((metadata.len(), metadata.modified().ok()?, identity(&metadata)))
}
