//! `runner export RUN... --tensorboard DIR`: runs for other programs, once or for as long as they train.

use super::exit::Exit;
use super::terminal::say;
use super::{find_runs, signals};
use crate::cli::ExportArgs;
use crate::regular;
use crate::report::tensorboard::{Export, News};
use crate::run::{RunError, RunStatus, files, is_left_over, status};
use crate::session::{Ending, UsageError};
use crate::wording::grouped;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between two looks at the logs.
const LOOK: Duration = Duration::from_secs(1);

/// A run, and where it is exported to.
struct Exported {
    run: PathBuf,
    target: PathBuf,
    export: Export,
    events: u64,
    in_place_of_others: bool,
    /// What was said last of what cannot be read or written.
    problems: Vec<String>,
    /// Whether the last attempt to write has failed.
    has_failed: bool,
    /// Whether a log of it could not be read.
    lacks_some: bool,
    /// Whether the run had ended when it was exported.
    is_whole: bool,
    /// Looks in a row that found neither recipe nor record in its directory.
    refused: u32,
}

/// Exports the runs; with `--follow` until all have ended, or a signal comes.
pub(super) fn run(args: &ExportArgs) -> anyhow::Result<Exit> {
    let paths = find_runs(&args.dir, &args.runs)?;
    // somebody else's link may lead to what others must not see, and event files are for others; a directory may become
    // such a link
    regular::confine();
    let really = |run: PathBuf| match regular::followed(&run, &args.dir.runs_dir) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            say(&format!("`{}` is left out: {error}", run.display()));
            None
        }
        Ok(real) => Some((run, real)),
        Err(_) => Some((run.clone(), run)),
    };
    let paths: Vec<_> = paths.into_iter().filter_map(really).collect();
    if paths.is_empty() {
        return Err(UsageError("there is no run to export".into()).into());
    }
    if args.tensorboard.exists() && !args.tensorboard.is_dir() {
        let message = format!("--tensorboard: `{}` is not a directory", args.tensorboard.display());
        return Err(UsageError(message).into());
    }
    let mut runs = named(paths, &args.tensorboard)?;
    let requests = if args.follow { Some(signals::install()?) } else { None };
    let _held = requests.as_ref().map(|requests| requests.hold());
    let mut is_open = true;
    let mut is_first = true;
    let ended = loop {
        let mut all_have_ended = true;
        for exported in &mut runs {
            // asked first: what a run logs before it ends is then exported with its end
            let has_ended = exported.has_ended();
            all_have_ended &= has_ended;
            if has_ended && exported.is_whole {
                continue;
            }
            exported.update();
            exported.is_whole = has_ended && !exported.has_failed;
            if has_ended || !args.follow {
                // of hundreds of runs, not all can be open at a time
                exported.export.close();
            }
            if is_first && is_open && !exported.has_failed {
                is_open = super::print_path(&exported.target)?;
            }
        }
        is_first = false;
        let Some(requests) = requests.as_ref().filter(|_| !all_have_ended) else { break None };
        let stop = signals::wait(requests, LOOK, || Ok(()))?;
        if stop.is_some() {
            break stop;
        }
    };
    for exported in &runs {
        say(&exported.line());
    }
    match ended {
        None if runs.iter().any(|exported| exported.has_failed || exported.lacks_some) => Ok(Exit::Failure),
        _ => Ok(ended.map_or(Ending::Finished, Ending::from).into()),
    }
}

/// The runs with a directory of its own for each below `dir`, called like the run where it really lies: that was found
/// once, and what is put in its place meanwhile has no part in it.
fn named(paths: Vec<(PathBuf, PathBuf)>, dir: &Path) -> Result<Vec<Exported>, UsageError> {
    let mut names: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    let mut runs = Vec::new();
    for (run, real) in paths {
        let name = real.file_name().unwrap_or_default().to_owned();
        let target = dir.join(&name);
        if let Some(other) = names.insert(name, run.clone()) {
            return Err(UsageError(format!(
                "`{}` and `{}` would both be exported to `{}`: export them to different directories",
                other.display(),
                run.display(),
                target.display()
            )));
        }
        let export = Export::new(&run, &target);
        runs.push(Exported {
            run,
            target,
            export,
            events: 0,
            in_place_of_others: false,
            problems: Vec::new(),
            has_failed: false,
            lacks_some: false,
            is_whole: false,
            refused: 0,
        });
    }
    Ok(runs)
}

impl Exported {
    /// Whether nothing more is to be expected of the run.
    fn has_ended(&mut self) -> bool {
        let status = status(&self.run);
        self.refused = if matches!(status, Err(RunError::NotARun { .. })) { self.refused + 1 } else { 0 };
        match status {
            Ok(RunStatus::Created | RunStatus::Running) => false,
            Ok(_) => true,
            // it is being started over
            Err(RunError::NotARun { path }) => !path.exists() || is_left_over(&path, self.refused),
            Err(error) => error.is_damage(),
        }
    }

    /// Brings the event file up to date, and says what is in the way, once.
    fn update(&mut self) {
        let updated = files::create_dir_all(&self.target).and_then(|()| self.export.update());
        self.has_failed = updated.is_err();
        let News { events, in_place_of_others, problems, lacks_some } =
            updated.unwrap_or_else(|error| News { problems: vec![error.to_string()], ..News::default() });
        self.events += events;
        self.lacks_some = lacks_some;
        self.in_place_of_others |= in_place_of_others;
        if problems != self.problems {
            let kind = if self.has_failed { "error" } else { "warning" };
            problems.iter().for_each(|problem| say(&format!("{kind}: {problem}")));
            self.problems = problems;
        }
    }

    /// What was done, on one line.
    fn line(&self) -> String {
        let name = self.target.file_name().unwrap_or_default().to_string_lossy();
        let lacking = if self.lacks_some { ", without what cannot be read" } else { "" };
        let done = match self.events {
            _ if self.has_failed => format!("{name}: not exported"),
            0 => format!("{name}: up to date"),
            events if self.in_place_of_others => format!(
                "{name}: {} exported, in place of those of an earlier start or of another run of this name",
                grouped(events, "event")
            ),
            events => format!("{name}: {} exported", grouped(events, "event")),
        };
        done + lacking
    }
}
