//! `runner list`: the runs there are, what they are doing, and removing those that are no longer wanted.

use super::exit::Exit;
use super::terminal::say;
use super::{exporter, find_runs};
use crate::cli::ListArgs;
use crate::report::export::{Cell, Column, Table};
use crate::report::numbers::bytes;
use crate::report::runs::Run;
use crate::report::scan::last_row;
use crate::run::column::Unit;
use crate::run::{RunDir, RunError, RunStatus, dir, files};
use crate::session::UsageError;
use std::fs;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A run in the list.
struct Item {
    run: Run,
    /// `step` and `loss` of the last row of the training log.
    last: Option<(f64, f64)>,
    val_loss: Option<f64>,
    /// Time since something was written.
    age: Duration,
}

/// Prints the list, or removes what is on it.
pub(super) fn run(args: &ListArgs) -> anyhow::Result<Exit> {
    let statuses = statuses(&args.status)?;
    let paths = match args.runs.is_empty() {
        true => dir::list(&args.dir.runs_dir)?,
        false => find_runs(&args.dir, &args.runs)?,
    };
    let mut items = Vec::new();
    for path in paths {
        match Item::read(&path) {
            Ok(item) => items.push(item),
            // it went away while the list was made
            Err(RunError::NotARun { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    items.retain(|item| statuses.is_empty() || statuses.contains(&item.run.status));
    items.retain(|item| args.older_than.is_none_or(|age| item.age >= age));
    if args.remove {
        return remove(args, &items);
    }
    if items.is_empty() {
        say(&format!("there are no such runs in `{}`", args.dir.runs_dir.display()));
    }
    super::print(&exporter(args.format).export(&table(&items)))?;
    for warning in items.iter().flat_map(|item| &item.run.warnings) {
        say(&format!("warning: {warning}"));
    }
    Ok(Exit::Finished)
}

impl Item {
    fn read(path: &Path) -> Result<Self, RunError> {
        let run = Run::read(path)?;
        let pair = |row: Vec<f64>| (row[0], row[1]);
        let last = last_row(&path.join(dir::TRAIN_CSV), &["step", "loss"])?.map(pair);
        let val_loss = last_row(&path.join(dir::VAL_CSV), &["val_loss"])?.map(|row| row[0]);
        // a log grows with every step, the record changes at the end
        let written = [dir::TRAIN_CSV, dir::VAL_CSV, crate::run::record::FILE, dir::RECIPE]
            .iter()
            .filter_map(|name| fs::metadata(path.join(name)).ok()?.modified().ok())
            .max();
        let age = written.and_then(|time| SystemTime::now().duration_since(time).ok()).unwrap_or_default();
        Ok(Self { run, last, val_loss, age })
    }

    fn steps(&self) -> f64 {
        self.last.map_or(0.0, |(step, _)| step + 1.0)
    }

    fn total_steps(&self) -> Option<f64> {
        let recipe = self.run.value("schedule.max_steps").and_then(serde_json::Value::as_f64);
        Some(self.run.facts.total_steps as f64).filter(|&steps| steps > 0.0).or(recipe)
    }
}

fn table(items: &[Item]) -> Table {
    let columns = vec![
        Column::words("run", "run"),
        Column::words("status", "status"),
        Column::numbers("steps", "steps"),
        Column::numbers("total_steps", "of"),
        Column::numbers("progress", "done"),
        Column::numbers("loss", "loss"),
        Column::numbers("val_loss", "val loss"),
        Column::numbers("age_s", "age"),
    ];
    let whole = |x: f64| format!("{x}");
    let row = |item: &Item| {
        let progress = item.total_steps().map(|total| item.steps() / total);
        vec![
            Cell::text(&*item.run.id),
            Cell::text(item.run.status.to_string()),
            Cell::number(Some(item.steps()), whole),
            Cell::number(item.total_steps(), whole),
            // cut off, not rounded: 100 % is the end
            Cell::number(progress, |x| format!("{} %", (x * 100.0).floor())),
            Cell::number(item.last.map(|(_, loss)| loss), |x| Unit::Loss.shown(x)),
            Cell::number(item.val_loss, |x| Unit::Loss.shown(x)),
            Cell::number(Some(item.age.as_secs() as f64), |_| age(item.age)),
        ]
    };
    Table { rows: items.iter().map(row).collect(), columns }
}

/// A time in its largest unit.
fn age(time: Duration) -> String {
    let s = time.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let (unit, name) = units.into_iter().find(|(unit, _)| s >= *unit).unwrap_or((1, "s"));
    format!("{} {name}", s / unit)
}

fn statuses(names: &[String]) -> anyhow::Result<Vec<RunStatus>> {
    let parse = |name: &String| {
        serde_json::from_value(serde_json::Value::from(name.as_str())).map_err(|_| {
            let known = "created, running, interrupted, finished, diverged, failed";
            anyhow::Error::from(UsageError(format!("`{name}` is not a status; there are {known}")))
        })
    };
    names.iter().map(parse).collect()
}

/// Removes the runs after asking, except those that a live process trains.
fn remove(args: &ListArgs, items: &[Item]) -> anyhow::Result<Exit> {
    if args.runs.is_empty() && args.status.is_empty() && args.older_than.is_none() {
        return Err(UsageError(
            "--remove needs to know which: name runs, or use --status or --older-than".into(),
        )
        .into());
    }
    if items.is_empty() {
        say("there is nothing to remove");
        return Ok(Exit::Finished);
    }
    for item in items {
        let size = bytes(size(&item.run.path) as f64);
        say(&format!("{}: {}, {} steps, {size}", item.run.path.display(), item.run.status, item.steps()));
    }
    if !args.yes && !confirmed(items.len())? {
        say("nothing was removed");
        return Ok(Exit::Failure);
    }
    let mut exit = Exit::Finished;
    for item in items {
        match remove_one(&item.run.path) {
            Ok(()) => {
                super::print(&format!("{}\n", item.run.path.display()))?;
            }
            Err(error) => {
                say(&format!("not removed: {error}"));
                if exit == Exit::Finished {
                    exit = Exit::of(&error.into());
                }
            }
        }
    }
    Ok(exit)
}

/// Removes a run. Its lock is held meanwhile, so that no process starts to train it.
fn remove_one(path: &Path) -> Result<(), RunError> {
    let lock = RunDir::open(path)?;
    // what a link leads to is the run; the link alone would be taken away and the run stay
    let real = path.canonicalize().unwrap_or_else(|_| PathBuf::from(path));
    files::remove(&real, "remove")?;
    drop(lock);
    Ok(())
}

/// Asks for confirmation on the terminal; without a terminal that is an error.
fn confirmed(runs: usize) -> anyhow::Result<bool> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(UsageError(
            "--remove asks before it removes, and there is no terminal to ask on; --yes says yes".into(),
        )
        .into());
    }
    let what = if runs == 1 { "this run".to_owned() } else { format!("these {runs} runs") };
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "remove {what} with everything in it? [y/N] ").and_then(|()| stderr.flush());
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Bytes of the files below a directory, as far as they can be read.
fn size(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(of).sum()
}
