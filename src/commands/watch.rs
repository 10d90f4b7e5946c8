//! `runner watch RUN...`: follows runs while they train, as a chart on a terminal, as lines without one, and as a page
//! for browsers.
//!
//! It only reads. A run that starts again from a checkpoint takes its rows back, and so does the chart.

mod header;
mod screen;
mod serve;
mod view;

use super::exit::Exit;
use super::find_runs;
use super::signals;
use crate::cli::WatchArgs;
use crate::report::follow::{Follow, News};
use crate::report::left::{Place, RECENT, Way};
use crate::report::numbers::{seconds, significant, thousands};
use crate::report::runs::Run;
use crate::run::column::Unit;
use crate::run::{REFUSED, RunError, RunStatus, dir, is_left_over, lock};
use crate::session::{Ending, UsageError};
use crate::wording::tame_line;
use header::Figure;
use screen::Screen;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use view::View;

/// Time between two looks at the logs, on a terminal and without one.
const LIVE: Duration = Duration::from_millis(300);
const PLAIN: Duration = Duration::from_secs(1);

/// The columns of the logs that lines and axes need; the one that is drawn comes behind them.
const TRAIN: [&str; 8] = ["step", "tokens", "loss", "lr", "grad_norm", "tokens_per_s", "mfu", "elapsed_s"];
const VAL: [&str; 3] = ["step", "tokens", "val_loss"];

/// A run that is followed.
struct Watched {
    path: PathBuf,
    id: String,
    status: RunStatus,
    /// Its status in words.
    stands: String,
    /// The steps that another run has taken, which stand in no row.
    steps_before: u64,
    total_steps: f64,
    /// Tokens of the whole run, once it is planned.
    total_tokens: Option<f64>,
    train: Follow,
    val: Follow,
    /// Why a file of it cannot be read, naming it.
    problem: Option<String>,
    /// How many looks in a row found no record for a reason that may pass.
    refused: u32,
}

/// How long a watch may still write, or look at many long logs, after a signal. Then the process is ended.
const UNREAD: Duration = Duration::from_secs(5);

/// Follows the runs until all have ended, or a signal comes.
pub(super) fn run(args: &WatchArgs) -> anyhow::Result<Exit> {
    if let Some(address) = &args.serve {
        return serve::run(args, address);
    }
    let paths = find_runs(&args.dir, &args.runs)?;
    if paths.is_empty() {
        return Err(UsageError("there is no run to watch".into()).into());
    }
    let view = View::new(&args.y, super::axis(args.x), &paths)?;
    let requests = signals::install()?;
    let _held = requests.hold();
    signals::insist(requests.clone(), UNREAD)?;
    let mut runs: Vec<Watched> =
        paths.iter().map(|path| Watched::new(path, &view)).collect::<Result<_, _>>()?;
    let is_live = std::io::stdout().is_terminal();
    let mut screen = if is_live { Some(Screen::open()?) } else { None };
    let ended = loop {
        let mut lines = String::new();
        for run in &mut runs {
            lines.extend(run.poll(&view).iter().map(|line| tame_line(line) + "\n"));
        }
        match &mut screen {
            Some(screen) => screen.draw(&runs, &view)?,
            // stdout is closed
            None if !lines.is_empty() && !super::print(&lines)? => break None,
            None => {}
        }
        // on a terminal the watch goes on: an interrupted run may be started again
        if runs.iter().all(|run| run.has_ended(is_live)) {
            break None;
        }
        let redraw = || match screen.as_mut().filter(|screen| screen.was_resized()) {
            Some(screen) => Ok(screen.draw(&runs, &view)?),
            None => Ok(()),
        };
        let stop = signals::wait(&requests, if is_live { LIVE } else { PLAIN }, redraw)?;
        if stop.is_some() {
            break stop;
        }
    };
    // the terminal is given back before the last words
    drop(screen);
    if is_live {
        super::print(&runs.iter().map(|run| tame_line(&run.whole_line(&view)) + "\n").collect::<String>())?;
    }
    match ended {
        None if runs.iter().any(|run| run.problem.is_some()) => Ok(Exit::Failure),
        _ => Ok(ended.map_or(Ending::Finished, Ending::from).into()),
    }
}

impl Watched {
    fn new(path: &Path, view: &View) -> Result<Self, RunError> {
        let run = Run::read(path)?;
        let asked = run.value("schedule.max_steps").and_then(serde_json::Value::as_f64);
        Ok(Self {
            path: path.to_owned(),
            steps_before: run.facts.steps_before(),
            total_steps: asked.unwrap_or(run.facts.total_steps as f64),
            total_tokens: run.facts.total_tokens.map(|tokens| tokens as f64),
            id: run.id,
            // what it does now is news
            status: RunStatus::Created,
            stands: RunStatus::Created.to_string(),
            train: Follow::new(&path.join(dir::TRAIN_CSV), view.columns(dir::TRAIN_CSV)),
            val: Follow::new(&path.join(dir::VAL_CSV), view.columns(dir::VAL_CSV)),
            problem: None,
            refused: 0,
        })
    }

    /// Looks at the files; a line on where the run is if that is new, behind one on where it went back to. What cannot
    /// be read is part of a line, so that the other runs can be watched.
    fn poll(&mut self, view: &View) -> Vec<String> {
        let before = self.problem.take();
        // removed or moved; some file servers show nothing for a while
        let is_gone = !self.path.exists();
        // asked first: what a run logs before it ends is then seen with its end
        let looked = crate::run::status(&self.path).and_then(|status| self.held(status));
        self.refused = if looked.is_ok() { 0 } else { self.refused + 1 };
        let status = match looked {
            Ok(status) => status,
            // it is being started over
            Err(RunError::NotARun { .. }) if !is_gone && !is_left_over(&self.path, self.refused) => {
                RunStatus::Created
            }
            // what is damaged stays so, as lists show it; anything else may pass
            Err(error) => {
                let lasts = error.is_damage() || self.refused >= REFUSED;
                self.problem = Some(match is_gone {
                    true => format!("`{}` is not there any more", self.path.display()),
                    false => error.to_string(),
                });
                if lasts { RunStatus::Unknown } else { self.status }
            }
        };
        let [train, val] = [&mut self.train, &mut self.val].map(|log| {
            // what was read stays until it is known what has become of it
            let news = if is_gone { Ok(News::default()) } else { log.poll() };
            news.unwrap_or_else(|error| {
                self.problem.get_or_insert_with(|| error.to_string());
                News::default()
            })
        });
        let is_new = std::mem::replace(&mut self.status, status) != status;
        if is_new {
            // a run that is being started over has none for a moment
            let run = Run::read(&self.path);
            self.stands = run.as_ref().map_or_else(|_| status.to_string(), Run::status_shown);
            if let Ok(run) = run {
                self.total_tokens = run.facts.total_tokens.map(|tokens| tokens as f64);
                self.steps_before = run.facts.steps_before();
                // a run whose length is said in tokens has its steps on record only
                if self.total_steps == 0.0 {
                    self.total_steps = run.facts.total_steps as f64;
                }
            }
        }
        let mut lines = Vec::new();
        if train.was_cut {
            let rows = self.train.rows();
            let kept = rows[..rows.len() - train.added].last();
            lines.push(format!("{}: went back to step {}", self.id, self.steps_with(kept)));
        }
        let is_new = is_new || self.problem != before;
        if is_new || train.was_cut || train.added > 0 || val.added > 0 {
            lines.push(self.whole_line(view));
        }
        lines
    }

    /// The status, unless the lock is no file: nobody would ever learn that its holder has ended.
    fn held(&self, status: RunStatus) -> Result<RunStatus, RunError> {
        match status {
            RunStatus::Created | RunStatus::Running => match lock::is_held(&self.path.join(lock::FILE)) {
                Err(error) if error.is_damage() => Err(error),
                _ => Ok(status),
            },
            _ => Ok(status),
        }
    }

    fn has_ended(&self, may_resume: bool) -> bool {
        match self.status {
            RunStatus::Finished | RunStatus::Diverged | RunStatus::Failed | RunStatus::Unknown => true,
            RunStatus::Interrupted => !may_resume,
            RunStatus::Created | RunStatus::Running => false,
        }
    }

    fn steps(&self) -> f64 {
        self.steps_with(self.train.rows().last())
    }

    /// The steps that have been taken with the one of a row; without a row, those that another run has taken.
    fn steps_with(&self, row: Option<&Vec<f64>>) -> f64 {
        row.map_or(self.steps_before as f64, |row| row[0] + 1.0)
    }

    /// Seconds to the end at the pace of the last steps.
    fn left(&self) -> Option<f64> {
        let rows = self.train.rows();
        let recent = &rows[rows.len().saturating_sub(RECENT)..];
        let (first, last) = recent.first().zip(recent.last())?;
        let place = |row: &[f64]| Place::new(row[0], row[1], row[7]);
        let way = Way { steps: self.total_steps, tokens: self.total_tokens };
        way.seconds(place(first), place(last))
    }

    /// Where the run is, on one line.
    fn line(&self) -> String {
        let progress = format!("{}: {}, step {}/{}", self.id, self.stands, self.steps(), self.total_steps);
        let figures = self.figures().into_iter().map(|figure| figure.text);
        std::iter::once(progress).chain(figures).chain(self.problem.clone()).collect::<Vec<_>>().join("  ")
    }

    /// Where the run is, with the value that is drawn.
    fn whole_line(&self, view: &View) -> String {
        let drawn = view.latest(self).map(|text| format!("  {text}"));
        self.line() + &drawn.unwrap_or_default()
    }

    /// The latest figures, in order.
    fn figures(&self) -> Vec<Figure> {
        let figure = |leaves, text| Figure { leaves, text };
        let mut figures = Vec::new();
        if let Some(row) = self.train.rows().last() {
            let of_step = [
                (0, "loss", row[2], Unit::Loss.shown(row[2])),
                (60, "lr", row[3], significant(row[3], 3)),
                (70, "norm", row[4], significant(row[4], 3)),
                (30, "tok/s", row[5], thousands(row[5].round() as u64)),
                (50, "MFU", row[6], Unit::Fraction.shown(row[6])),
            ];
            let known = of_step.into_iter().filter(|(_, _, value, _)| !value.is_nan());
            figures.extend(known.map(|(leaves, name, _, shown)| figure(leaves, format!("{name} {shown}"))));
        }
        if let Some(row) = self.val.rows().last() {
            figures.push(figure(10, format!("val {}", Unit::Loss.shown(row[2]))));
        }
        if let (RunStatus::Running, Some(left)) = (self.status, self.left()) {
            figures.push(figure(20, format!("{} left", seconds(left))));
        }
        figures
    }
}
