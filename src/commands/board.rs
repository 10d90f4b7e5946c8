//! The progress of training as people see it: a bar on a terminal, plain lines without one.
//!
//! Both are drawn by threads of their own from the run's [`Pulse`], so they go on while a step, an evaluation or a
//! checkpoint takes its time.

use super::layout::{self, Piece};
use super::terminal::{self, say};
use crate::report::numbers::{roughly, thousands};
use crate::session::Pulse;
use crate::session::pulse::Moment;
use crate::train::{Doing, StepReport};
use crate::wording::percent;
use indicatif::ProgressBar;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time between two plain lines.
const QUIET: Duration = Duration::from_secs(5);
/// How often it is looked whether a plain line is due.
const LOOK: Duration = Duration::from_millis(500);
/// Time between two drawings of the bar.
const REDRAW: Duration = Duration::from_millis(250);
/// What takes longer than this is shown in parts.
const SLOW: Duration = Duration::from_secs(1);

/// The progress of training.
pub(super) struct Board {
    /// The last step, for the bar.
    last: Arc<Mutex<Option<LastStep>>>,
    bar: Option<ProgressBar>,
    lines: Option<Lines>,
}

/// What is shown of the last step.
#[derive(Debug, Clone, Copy)]
struct LastStep {
    loss: f64,
    lr: f64,
    grad_norm: f64,
    skipped: bool,
    tokens_per_s: f64,
}

impl Board {
    /// A board for a run. A bar is shown if `with_bar`.
    pub(super) fn new(pulse: &Arc<Pulse>, with_bar: bool) -> Self {
        let last = Arc::new(Mutex::new(None));
        let bar = with_bar.then(|| {
            let (pulse, last) = (pulse.clone(), last.clone());
            let bar = terminal::show(pulse.moment().steps, move |width, _| {
                let last = *lock(&last);
                let moment = pulse.moment();
                layout::line(width, share(&moment), pieces(&moment, last))
            });
            bar.enable_steady_tick(REDRAW);
            bar
        });
        let lines = (!with_bar).then(|| Lines::start(pulse.clone()));
        Self { last, bar, lines }
    }

    /// A step is done, `step` of `steps`. Without a bar it is shown as a line of its own if `always`, or if no step was
    /// for a while.
    pub(super) fn step(
        &mut self,
        report: &StepReport,
        (step, steps): (u64, u64),
        tokens_per_s: f64,
        always: bool,
    ) {
        let &StepReport { loss, lr, grad_norm, skipped, .. } = report;
        let last = LastStep { loss, lr, grad_norm, skipped, tokens_per_s };
        *lock(&self.last) = Some(last);
        if let Some(lines) = &mut self.lines {
            lines.step(&format!("step {step}/{steps} {}", last.words().join(" ")), always);
        }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            terminal::hide(bar);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LastStep {
    fn words(&self) -> Vec<String> {
        let mut words = vec![
            format!("loss {:.4}", self.loss),
            format!("lr {:.2e}", self.lr),
            format!("norm {:.3}", self.grad_norm),
            format!("{} tok/s", thousands(self.tokens_per_s as u64)),
        ];
        if self.skipped {
            words.push("skipped".to_owned());
        }
        words
    }
}

/// The share of the run's steps that is done.
fn share(moment: &Moment) -> f64 {
    let in_step = if moment.at.doing == Doing::Step { moment.at.done } else { 0.0 };
    (moment.step as f64 + in_step) / moment.steps.max(1) as f64
}

/// What is going on inside a step, if it takes long enough to be shown.
fn activity(moment: &Moment) -> Option<String> {
    let done = || format!("{:.0} %", percent(moment.at.done));
    (moment.elapsed >= SLOW).then(|| match moment.at.doing {
        Doing::Step => format!("next {}", done()),
        Doing::Evaluation => format!("evaluating {}", done()),
        Doing::Sample => "sampling".to_owned(),
        Doing::Checkpoint => "saving".to_owned(),
    })
}

fn left(moment: &Moment) -> String {
    // what takes longer than expected is not over yet
    let words = |left: Duration| format!("{} left", roughly(left.max(Duration::from_secs(1))));
    moment.left.map_or_else(|| "time left unknown".to_owned(), words)
}

/// The bar's text.
fn pieces(moment: &Moment, last: Option<LastStep>) -> Vec<Piece> {
    let Moment { step, steps, .. } = moment;
    let forms = [format!("step {step}/{steps}"), format!("{step}/{steps}"), step.to_string()];
    let mut pieces = vec![Piece::with_forms(9, forms)];
    pieces.extend(activity(moment).map(|text| Piece::new(5, text)));
    if let Some(last) = last {
        // loss, lr, norm, speed, whether it was skipped
        let ranks = [8, 3, 2, 6, 4];
        pieces.extend(last.words().into_iter().zip(ranks).map(|(text, rank)| Piece::new(rank, text)));
    }
    pieces.push(Piece::new(7, left(moment)));
    pieces
}

/// Plain lines: of steps as they are done, and of what is going on when that takes long.
struct Lines {
    shared: Arc<Shared>,
    last_step: Instant,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<Said>,
    over: Condvar,
}

#[derive(Debug)]
struct Said {
    /// When there was a line last.
    last: Instant,
    is_over: bool,
}

impl Lines {
    fn start(pulse: Arc<Pulse>) -> Self {
        let said = Said { last: Instant::now(), is_over: false };
        let shared = Arc::new(Shared { state: Mutex::new(said), over: Condvar::new() });
        let theirs = shared.clone();
        // without the thread there are lines of steps only
        let thread = thread::Builder::new().name("progress".to_owned());
        let thread = thread.spawn(move || theirs.speak(&pulse)).ok();
        Self { shared, last_step: Instant::now(), thread }
    }

    fn step(&mut self, line: &str, always: bool) {
        if always || self.last_step.elapsed() >= QUIET {
            self.last_step = Instant::now();
            lock(&self.shared.state).last = self.last_step;
            say(line);
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        lock(&self.shared.state).is_over = true;
        self.shared.over.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Says what is going on whenever it takes long and nothing else was said meanwhile.
    fn speak(&self, pulse: &Pulse) {
        let mut said = lock(&self.state);
        while !said.is_over {
            said = self.over.wait_timeout(said, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            let moment = pulse.moment();
            if !said.is_over && said.last.elapsed() >= QUIET && moment.elapsed >= QUIET {
                said.last = Instant::now();
                drop(said);
                say(&under_way(&moment));
                said = lock(&self.state);
            }
        }
    }
}

/// A plain line about what is going on.
fn under_way(moment: &Moment) -> String {
    let Moment { step, steps, at, .. } = moment;
    let mut words = vec![format!("step {step}/{steps}")];
    words.extend(activity(moment));
    if at.passes > 1 {
        let pass = if at.doing == Doing::Step { "micro-step" } else { "pass" };
        words.push(format!("{pass} {} of {}", (at.pass + 1).min(at.passes), at.passes));
    }
    words.extend(moment.tokens_per_s.map(|speed| format!("{} tok/s", thousands(speed as u64))));
    words.push(left(moment));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::Within;

    fn moment(doing: Doing, pass: u64, done: f64) -> Moment {
        Moment {
            step: 0,
            steps: 19073,
            at: Within { doing, pass, passes: 128, done, may_break: true },
            elapsed: Duration::from_secs(60),
            tokens_per_s: (doing == Doing::Step && done > 0.0).then_some(1010.4),
            left: None,
        }
    }

    #[test]
    fn a_plain_line_says_how_far_a_step_or_an_evaluation_is() {
        let line = under_way(&moment(Doing::Step, 3, 0.0296));
        assert_eq!(line, "step 0/19073, next 2 %, micro-step 4 of 128, 1,010 tok/s, time left unknown");
        let line = under_way(&Moment {
            left: Some(Duration::from_secs(7384)),
            ..moment(Doing::Evaluation, 127, 0.999)
        });
        assert_eq!(line, "step 0/19073, evaluating 99 %, pass 128 of 128, 2 h 3 min left");
        let mut saving = moment(Doing::Checkpoint, 0, 0.0);
        saving.at.passes = 1;
        assert_eq!(under_way(&saving), "step 0/19073, saving, time left unknown");
    }

    #[test]
    fn the_bar_says_how_far_a_slow_step_is_and_never_that_no_time_is_left() {
        let text = |moment: &Moment| layout::line(100, 0.0, pieces(moment, None));
        let slow = moment(Doing::Step, 3, 0.0296);
        assert!(text(&slow).ends_with("  step 0/19073  next 2 %  time left unknown"), "{}", text(&slow));
        let quick = Moment { elapsed: Duration::from_millis(100), ..slow };
        assert!(text(&quick).ends_with("  step 0/19073  time left unknown"), "{}", text(&quick));
        let last = LastStep { loss: 9.0, lr: 6e-6, grad_norm: 12.0, skipped: true, tokens_per_s: 1010.4 };
        let all = layout::line(200, 0.0, pieces(&slow, Some(last)));
        assert!(
            all.ends_with(
                "step 0/19073  next 2 %  loss 9.0000  lr 6.00e-6  norm 12.000  1,010 tok/s  skipped  time left unknown"
            ),
            "{all}"
        );
    }
}
