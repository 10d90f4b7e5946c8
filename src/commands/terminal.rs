//! What people see: everything on stderr, a bar on a terminal, plain lines without one.

use crate::data::Progress;
use crate::recipe::Diagnostics;
use crate::session::ending::Elsewhere;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two plain lines.
const QUIET: Duration = Duration::from_secs(5);

/// Whether stderr wants colour: it is a terminal, and neither `NO_COLOR` nor `TERM=dumb` is set.
fn color() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal()
        && !set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Writes a line for people. A stderr that is closed is no failure.
pub(super) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// A model's text for the screen. Its control characters, which could do anything to a terminal, are replaced.
pub(super) fn tame(text: &str) -> String {
    let harmless = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars().map(|c| if harmless(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// Shows an error: a recipe's problems as they are, others as a chain of causes.
pub(super) fn report(error: &anyhow::Error) {
    if error.is::<Elsewhere>() {
        return;
    }
    match error.downcast_ref::<Diagnostics>() {
        Some(diagnostics) => say(&diagnostics.render(color())),
        None => say(&format!("error: {error:#}")),
    }
}

/// The bars on the screen, for a process that has to end at once.
static BARS: Mutex<Vec<ProgressBar>> = Mutex::new(Vec::new());

/// Puts a bar on the screen.
fn show(length: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let mut bars = BARS.lock().unwrap_or_else(PoisonError::into_inner);
    bars.retain(|bar| !bar.is_finished());
    bars.push(bar.clone());
    bar
}

/// Takes all bars away.
pub(super) fn clear_bars() {
    BARS.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(ProgressBar::finish_and_clear);
}

/// The progress of training.
pub(super) struct Board {
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Board {
    /// A board for `steps` steps of `micro_steps` forward passes each; `done` steps were taken before.
    pub(super) fn new(steps: u64, micro_steps: u64, done: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = show(steps * micro_steps);
            let style = ProgressStyle::with_template("{bar:30} {prefix} {msg} {eta_precise} left");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(format!("step {done}/{steps}"));
            bar.set_position(done * micro_steps);
            // what was done in an earlier session says nothing about the speed of this one
            bar.reset_eta();
            bar
        });
        Self { bar, last_line: Instant::now() }
    }

    /// A forward pass is done.
    pub(super) fn tick(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// A step is done. `line` describes it; it is shown in the bar, or as a line of its own if `always` or if there
    /// was none for a while.
    pub(super) fn step(&mut self, step: u64, steps: u64, line: &str, always: bool) {
        match &self.bar {
            Some(bar) => {
                bar.set_prefix(format!("step {step}/{steps}"));
                bar.set_message(line.to_owned());
            }
            None if always || self.last_line.elapsed() >= QUIET => {
                self.last_line = Instant::now();
                say(&format!("step {step}/{steps} {line}"));
            }
            None => {}
        }
    }

    /// A line that stays.
    pub(super) fn line(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        }
    }

    /// Takes the bar away.
    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The progress of long passes over data.
#[derive(Default)]
pub(super) struct Passes {
    bar: Mutex<Option<ProgressBar>>,
}

impl Passes {
    fn with(&self, act: impl FnOnce(&mut Option<ProgressBar>)) {
        // a panic elsewhere must not become another one here
        act(&mut self.bar.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Progress for Passes {
    fn start(&self, what: &str, total: u64) {
        if !std::io::stderr().is_terminal() {
            say(what);
            return;
        }
        let bar = show(total);
        let style = ProgressStyle::with_template("{bar:30} {msg} {bytes}/{total_bytes} {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what.to_owned());
        self.with(|slot| *slot = Some(bar));
    }

    fn advance(&self, by: u64) {
        self.with(|slot| slot.iter().for_each(|bar| bar.inc(by)));
    }

    fn finish(&self) {
        self.with(|slot| slot.take().iter().for_each(ProgressBar::finish_and_clear));
    }
}
