//! What the terminal says while a session works: the words for every event, and the bar.

use super::board::Board;
use super::signals;
use super::terminal::{self, Passes, report, say, tame};
use crate::data;
use crate::plan::predict::Prediction;
use crate::plan::{Plan, gib};
use crate::report::numbers::{duration, roughly, thousands};
use crate::session::{Audience, End, Event};
use crate::train::Outcome;
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

/// The audience of a command.
#[derive(Default)]
pub(super) struct Voice {
    /// Whether the same command would start over instead of resuming.
    fresh: bool,
    /// Whether lines begin with the run's id, and no bar is shown.
    named: bool,
    /// On the screen while a run is trained.
    board: Mutex<Option<Board>>,
    passes: Passes,
}

impl Voice {
    pub(super) fn new(fresh: bool, named: bool) -> Self {
        Self { fresh, named, ..Self::default() }
    }

    /// Acts on the board, if there is one.
    fn on_board(&self, act: impl FnOnce(&mut Board)) {
        if let Some(board) = &mut *self.board.lock().unwrap_or_else(PoisonError::into_inner) {
            act(board);
        }
    }

    fn set_board(&self, board: Option<Board>) {
        *self.board.lock().unwrap_or_else(PoisonError::into_inner) = board;
    }

    /// The lines that follow are about this run.
    fn about(&self, run: &Path) {
        if self.named {
            terminal::name(Some(run));
        }
    }

    /// The last words about a run.
    fn ended(&self, end: &End) {
        self.set_board(None);
        let run = end.run.display();
        match &end.outcome {
            Ok(Outcome::Finished) => {
                let loss = end.loss.map_or_else(String::new, |loss| format!(", training loss {loss:.4}"));
                let speed = end.tokens_per_s.map(|speed| format!(", {} tokens/s", thousands(speed as u64)));
                let (time, speed) = (duration(end.elapsed), speed.unwrap_or_default());
                say(&format!("{run}: finished in {time}{loss}{speed}"));
                if let (Some(val), Some(entropy)) = (end.val_loss, end.val_unigram_entropy) {
                    say(&format!(
                        "validation loss {val:.4} nats per token; knowing only how often each token occurs would give \
                         {entropy:.4}"
                    ));
                }
            }
            Ok(Outcome::Stopped(_)) => say(&format!(
                "{run}: interrupted after {} of {} steps; the same command{} resumes",
                end.steps_done,
                end.steps,
                if self.fresh { " without --fresh" } else { "" }
            )),
            Ok(Outcome::Diverged { step, what }) => say(&format!(
                "{run}: diverged at step {step}: {what}; nothing is saved of it, the last checkpoint is kept and \
                 --resume goes on from it. Try a lower optimizer.lr, a longer schedule.warmup_steps or a smaller \
                 optimizer.clip_norm"
            )),
            // the caller shows the error
            Err(_) => {}
        }
    }
}

impl Audience for Voice {
    fn tell(&self, event: Event) {
        if let Event::AlreadyFinished { run, .. } | Event::AlreadyDiverged { run, .. } = event {
            self.about(run);
        }
        match event {
            Event::CudaPassedOver(missing) => {
                static SAID: Once = Once::new();
                SAID.call_once(|| {
                    say(&format!("warning: the CUDA device is not used: {missing}; {}", missing.help));
                });
            }
            Event::AlreadyFinished { run, by_recipe } => {
                let hint = if by_recipe { "; --fresh starts over" } else { "" };
                say(&format!("{}: already finished{hint}", run.display()));
            }
            Event::AlreadyDiverged { run, error } => say(&format!(
                "{}: diverged: {error}\nthe same recipe would diverge again: change it, start over with --fresh, or \
                 retry from the last checkpoint with --resume",
                run.display()
            )),
            Event::Damaged { checkpoint, reason } => {
                say(&format!("warning: {} cannot be used: {reason}", checkpoint.display()));
            }
            Event::SetAside { aside, instead } => {
                say(&format!("  set aside as {}; going on from {}", aside.display(), instead.display()));
            }
            Event::Planned { run, step, plan, prediction, lints } => {
                let time =
                    prediction.map_or_else(String::new, |prediction| time_line(plan, step, prediction));
                say(&format!("{}: step {step} of {}\n{}{time}", run.display(), plan.steps, plan_lines(plan)));
                for lint in lints {
                    say(&format!("  lint {}: {}; {}", lint.code.as_str(), lint.message, lint.help));
                }
            }
            Event::RowsMissing { log, rows, steps } => say(&format!(
                "warning: {} has {rows} rows for {steps} steps; earlier ones were removed",
                log.display()
            )),
            Event::Started { pulse } => {
                let with_bar = !self.named && terminal::moves_its_cursor();
                self.set_board(Some(Board::new(pulse, with_bar)));
            }
            // the board looks at the pulse
            Event::MicroStep => {}
            Event::Step { report, step, steps, tokens_per_s } => {
                let always = report.step == 0 || step == steps;
                self.on_board(|board| board.step(report, (step, steps), tokens_per_s, always));
            }
            Event::Skipped { step, why } => {
                say(&format!("warning: step {step} is skipped by the watchdog: {why}"));
            }
            Event::Evaluated { step, steps, val_loss } => {
                say(&format!("step {step}/{steps} validation loss {val_loss:.4}"));
            }
            Event::Sampled(text) => say(&format!("sample: {}", tame(text))),
            Event::CopyDoesNotFit { needed, free } => say(&format!(
                "a copy of {} does not fit in the {} of memory that are free: training waits while checkpoints are \
                 written",
                gib(needed),
                gib(free)
            )),
            Event::SavedAsAsked { step } => {
                say(&format!("checkpoint of step {step} as asked by SIGUSR1 is on the disk"));
            }
            Event::Ended(end) => {
                self.ended(end);
                if end.outcome.is_ok() {
                    terminal::name(None);
                }
            }
            Event::Failed(error) => {
                self.set_board(None);
                report(error);
                terminal::name(None);
            }
            Event::Hung(error) => signals::end_hung(error),
        }
    }

    fn result(&self, run: &Path) -> anyhow::Result<()> {
        self.about(run);
        super::print(&format!("{}\n", run.display())).map(drop)
    }

    fn progress(&self) -> &dyn data::Progress {
        &self.passes
    }
}

/// The plan, for people.
fn plan_lines(plan: &Plan) -> String {
    let emulated = if plan.emulated { " (emulated by rounding)" } else { "" };
    let bytes: Vec<String> = (plan.bytes.kinds.iter().filter(|(_, bytes)| *bytes > 0))
        .map(|(kind, bytes)| format!("{} {}", kind.replace('_', " "), gib(*bytes)))
        .collect();
    format!(
        "  model    {} parameters: {} in {} tensors decayed, {} in {} not\n\
         \x20 batch    {} tokens = {}{} x {} rows of {}\n\
         \x20 run      {} steps, {} tokens, {:.2} epochs of {} rows\n\
         \x20 compute  {:.1} MFLOP per token, {:.4} PFLOP in all, on {} with {}{} threads, {}{emulated}\n\
         \x20 memory   {}{}{}: {}{}",
        thousands(plan.parameters.total as u64),
        thousands(plan.parameters.decayed.elements as u64),
        plan.parameters.decayed.tensors,
        thousands(plan.parameters.not_decayed.elements as u64),
        plan.parameters.not_decayed.tensors,
        thousands(plan.batch.tokens_per_step as u64),
        ranks(plan.ranks.world_size),
        plan.batch.micro_steps,
        plan.batch.micro_batch,
        plan.memory.dims.block_size,
        thousands(plan.steps),
        thousands(plan.tokens),
        plan.epochs,
        thousands(plan.data.train_rows),
        plan.flops_per_token as f64 / 1e6,
        plan.flops / 1e15,
        plan.device,
        ranks(plan.ranks.here),
        plan.threads,
        plan.memory.precision.as_str(),
        if plan.bytes.exact { "" } else { "about " },
        gib(plan.bytes.total),
        if plan.ranks.world_size > 1 { " for each rank" } else { "" },
        bytes.join(", "),
        match plan.bytes.snapshot {
            0 => String::new(),
            more => format!("; {} more while a checkpoint is written", gib(more)),
        }
    )
}

/// How long the steps that are left will take, a line after those of the plan.
fn time_line(plan: &Plan, step: u64, prediction: &Prediction) -> String {
    let left = plan.steps.saturating_sub(step);
    let share = left as f64 / plan.steps.max(1) as f64;
    let Ok(time) = Duration::try_from_secs_f64(prediction.total_s * share) else { return String::new() };
    let what =
        if step > 0 { format!(" for the {} steps that are left", thousands(left)) } else { String::new() };
    let speed = thousands(prediction.tokens_per_s as u64);
    format!("\n  time     about {}{what}, predicted at {speed} tokens per second", roughly(time))
}

/// A number of ranks as a factor before what each of them has; nothing for one.
pub(super) fn ranks(ranks: usize) -> String {
    if ranks > 1 { format!("{ranks} ranks x ") } else { String::new() }
}
