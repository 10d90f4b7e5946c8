//! `runner list`: the runs there are, what they are doing, and removing those that are no longer wanted.

mod table;

use super::exit::Exit;
use super::terminal::say;
use super::{exporter, find_runs};
use crate::cli::{ListArgs, TableFormat};
use crate::regular;
use crate::report::fit::{Fitted, fit, wrapped};
use crate::report::notes::{note_owners, of_each};
use crate::report::numbers::bytes;
use crate::run::deletion::{check_removable, remove_run, sweep_removed};
use crate::run::made::keeps_its_name;
use crate::run::{RunDir, RunError, RunStatus, checkpoint, dir, find};
use crate::session::UsageError;
use crate::wording::{count, tame_line};
use anyhow::bail;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use table::{Differing, Item, Written};

/// Prints the list, or removes what is on it.
pub(super) fn run(args: &ListArgs) -> anyhow::Result<Exit> {
    let statuses = statuses(&args.status)?;
    let paths = match args.runs.is_empty() {
        true => find::list(&args.dir.runs_dir)?,
        false => find_runs(&args.dir, &args.runs).inspect_err(|_| sweep_unless_asked(args))?,
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
    note_owners(items.iter_mut().map(|item| &mut item.run));
    items.retain(|item| statuses.is_empty() || statuses.contains(&item.run.status));
    items.retain(|item| args.older_than.is_none_or(|age| item.age >= age));
    if args.remove {
        return remove(args, &items);
    }
    if items.is_empty() {
        say(&format!("there are no such runs in `{}`", args.dir.runs_dir.display()));
    }
    let differences = Differing::new(&items);
    if let Some(name) = &args.sort {
        table::sort(&mut items, name, &differences)?;
    }
    if args.reverse {
        items.reverse();
    }
    let of_order = table::notes_on_order(&items, args.sort.as_deref(), &differences);
    if !is_for_people(args) {
        // there is no place for a sentence on all runs
        let notes = items.iter_mut().map(|item| &mut item.run.notes);
        notes.for_each(|notes| notes.extend(of_order.iter().cloned()));
    }
    super::print(&text(args, &items, &differences, of_order))?;
    warn_of(&items);
    Ok(Exit::Finished)
}

/// Says what is wrong with the runs.
fn warn_of(items: &[Item]) {
    for warning in items.iter().flat_map(|item| &item.run.warnings) {
        say(&format!("warning: {warning}"));
    }
}

fn is_for_people(args: &ListArgs) -> bool {
    matches!(args.format, TableFormat::Table | TableFormat::Markdown)
}

/// The list in the format that was asked for, with what is to be known of its order.
fn text(args: &ListArgs, items: &[Item], differing: &Differing, of_order: Vec<String>) -> String {
    let for_people = is_for_people(args);
    let table = table::table(items, differing, for_people);
    if !for_people {
        return exporter(args.format).export(&table);
    }
    let (table, hidden) = match super::room(&args.width, args.format) {
        Some(room) => {
            let Fitted { table, hidden } = fit(&table, room, &table::leaving(differing));
            (
                table,
                hidden.map(|hidden| format!("\n{}\n", wrapped(&format!("{hidden}; --wide shows all"), room))),
            )
        }
        None => (table, None),
    };
    let notes = of_each(&items.iter().map(|item| &item.run).collect::<Vec<_>>());
    let notes = differing.note.iter().cloned().chain(of_order).chain(notes);
    let notes: String = notes.map(|note| format!("{}\n", exporter(args.format).sentence(&note))).collect();
    let gap = if notes.is_empty() { "" } else { "\n" };
    format!("{}{}{gap}{notes}", exporter(args.format).export(&table), hidden.unwrap_or_default())
}

fn statuses(names: &[String]) -> anyhow::Result<Vec<RunStatus>> {
    let parse = |name: &String| {
        RunStatus::ALL.into_iter().find(|status| status.to_string() == *name).ok_or_else(|| {
            let known = RunStatus::ALL.map(|status| status.to_string()).join(", ");
            UsageError(format!("`{name}` is not a status; there are {known}")).into()
        })
    };
    names.iter().map(parse).collect()
}

/// Finishes what a removal that was killed had begun, for the same call once more: it finds the run no more.
fn sweep_unless_asked(args: &ListArgs) {
    if args.remove && args.yes {
        sweep(&args.dir.runs_dir);
    }
}

/// Deletes what a removal that was killed has left in a directory of runs, and says so.
fn sweep(runs_dir: &Path) {
    match sweep_removed(runs_dir) {
        Ok(left) => left.iter().for_each(|left| {
            say(&format!("{}: deleted what an interrupted removal had left", on_a_line(left)));
        }),
        // what looks for the runs there says that there is no such directory
        Err(_) if !runs_dir.exists() => {}
        Err(error) => say(&error.to_string()),
    }
}

/// Removes the runs after asking, except those that a live process trains and what may be none.
fn remove(args: &ListArgs, items: &[Item]) -> anyhow::Result<Exit> {
    if args.runs.is_empty() && args.status.is_empty() && args.older_than.is_none() {
        return Err(UsageError(
            "--remove needs to know which: name runs, or use --status or --older-than".into(),
        )
        .into());
    }
    if items.is_empty() {
        sweep_unless_asked(args);
        say("there is nothing to remove");
        return Ok(Exit::Finished);
    }
    warn_of(items);
    let mut exit = Exit::Finished;
    let mut doomed = Vec::new();
    for item in items {
        let path = bare(&item.run.path);
        let foreign = foreign(path);
        if let Err(error) = may_go(path, &args.dir.runs_dir, foreign.as_deref().filter(|_| args.yes)) {
            refuse(&mut exit, &error);
            continue;
        }
        let size = bytes(size(path) as f64);
        let foreign = foreign.map(|foreign| format!(", with {foreign}")).unwrap_or_default();
        let steps = item.steps().map_or_else(|| "an unknown number of".to_owned(), |steps| steps.to_string());
        say(&format!(
            "{}: {}, {steps} steps, {size}{}{foreign}",
            on_a_line(&item.run.path),
            item.run.status,
            behind_a_link(path)
        ));
        doomed.push(item);
    }
    if doomed.is_empty() {
        return Ok(exit);
    }
    if !args.yes && !confirmed(doomed.len())? {
        say("nothing was removed");
        return Ok(Exit::Failure);
    }
    places(&doomed).iter().for_each(|place| sweep(place));
    for item in doomed {
        match remove_listed(item, &args.dir.runs_dir) {
            Ok(()) => {
                super::print_path(&item.run.path)?;
            }
            Err(error) => refuse(&mut exit, &error),
        }
    }
    Ok(exit)
}

/// Says why a run stays. The first reason decides how the call ends.
fn refuse(exit: &mut Exit, error: &anyhow::Error) {
    say(&format!("not removed: {error}"));
    if *exit == Exit::Finished {
        *exit = Exit::of(error);
    }
}

/// Checks that a directory may be removed as a run. `unasked` are files in it that no run has written and that nobody
/// is asked about.
fn may_go(run: &Path, runs_dir: &Path, unasked: Option<&str>) -> anyhow::Result<()> {
    check_removable(run)?;
    if let Err(error) = regular::followed(run, runs_dir) {
        return Err(RunError::Io { action: "remove", path: run.to_owned(), error }.into());
    }
    match unasked.filter(|_| !keeps_its_name(run)) {
        Some(foreign) => Err(UsageError(format!(
            "`{}` has no record of a run of this name, so --yes does not cover {foreign}; move them elsewhere, or \
             leave --yes out and answer",
            run.display()
        ))
        .into()),
        None => Ok(()),
    }
}

/// Removes a run that is as it was when its row of the list was read.
fn remove_listed(item: &Item, runs_dir: &Path) -> anyhow::Result<()> {
    let opened = RunDir::open(bare(&item.run.path), runs_dir)?;
    // status and age chose it, and both are of then
    if Written::of(opened.path()) != item.written {
        bail!("`{}` has been trained or evaluated since it was listed", on_a_line(&item.run.path));
    }
    Ok(remove_run(opened, runs_dir)?)
}

/// The directories in which the runs really lie, each once.
fn places(items: &[&Item]) -> BTreeSet<PathBuf> {
    let real = |item: &&Item| item.run.path.canonicalize().ok();
    items.iter().filter_map(|item| real(item)?.parent().map(Path::to_owned)).collect()
}

/// A path without the slash at its end, which would follow a link.
fn bare(path: &Path) -> &Path {
    path.components().as_path()
}

/// A path of which nothing can pass for another line.
fn on_a_line(path: &Path) -> String {
    tame_line(&path.to_string_lossy())
}

/// Where a run really lies that is called by a link, as part of a sentence.
fn behind_a_link(run: &Path) -> String {
    if !run.is_symlink() {
        return String::new();
    }
    let real = run.canonicalize().unwrap_or_else(|_| run.to_owned());
    format!(", a link to `{}`, which is removed too", on_a_line(&real))
}

/// The files in a run's directory that the run has not written, if there are any.
fn foreign(run: &Path) -> Option<String> {
    const MOST: usize = 3;
    let mut foreign: Vec<PathBuf> = dir::foreign(run).into_iter().map(PathBuf::from).collect();
    foreign.extend(checkpoint::foreign(run));
    if foreign.is_empty() {
        return None;
    }
    let names: Vec<_> = foreign.iter().take(MOST).map(|path| on_a_line(path)).collect();
    let more = if foreign.len() > MOST { ", …" } else { "" };
    let files = count(foreign.iter().map(|path| files_of(&run.join(path))).sum::<usize>(), "file");
    Some(format!("{files} that the run has not written: {}{more}", names.join(", ")))
}

/// How many files a path leads to: itself, or what lies below it, as far as it can be read.
fn files_of(path: &Path) -> usize {
    let is_dir = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    match fs::read_dir(path).ok().filter(|_| is_dir) {
        Some(entries) => entries.flatten().map(|entry| files_of(&entry.path())).sum::<usize>().max(1),
        None => 1,
    }
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
    let what = match runs {
        1 => "this run with everything in it".to_owned(),
        _ => format!("these {runs} runs with everything in them"),
    };
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "remove {what}? [y/N] ").and_then(|()| stderr.flush());
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
