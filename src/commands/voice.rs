//! What the terminal says while a session works: the words for every event, and the bar.

use super::amiss::{is_amiss, warning};
use super::board::Board;
use super::signals;
use super::terminal::{self, Passes, report, say, say_lines};
use crate::data::{self, NoProgress};
use crate::plan::predict::Prediction;
use crate::plan::{Plan, gib};
use crate::report::numbers::{count, duration, flop, flop_rate, grouped, roughly, thousands};
use crate::run::RunRecord;
use crate::run::record::{Peak, ReachedTarget};
use crate::session::machine::calibration::day;
use crate::session::standing::Standing;
use crate::session::{Audience, End, Event};
use crate::train::{Best, Outcome};
use crate::wording::word;
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

/// How much is said.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Volume {
    /// What is wrong.
    Quiet,
    /// What people want to know while they wait.
    #[default]
    Normal,
    /// Every step and every checkpoint, too.
    Verbose,
}

/// The audience of a command.
#[derive(Default)]
pub(super) struct Voice {
    /// Whether the same command would start over instead of resuming.
    fresh: bool,
    /// Whether lines begin with the run's id, and no bar is shown.
    named: bool,
    /// How much is said.
    volume: Volume,
    /// On the screen while a run is trained.
    board: Mutex<Option<Board>>,
    passes: Passes,
}

impl Voice {
    pub(super) fn new(fresh: bool, named: bool, volume: Volume) -> Self {
        Self { fresh, named, volume, ..Self::default() }
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

    /// What resumes a run that was interrupted. A recipe that names another run without a step begins another branch
    /// once that run has a newer checkpoint.
    fn resumes(&self, run: &Path) -> String {
        let is_branch = RunRecord::read(run).ok().flatten().is_some_and(|record| record.parent.is_some());
        match (is_branch, self.fresh) {
            (true, _) => format!("`runner --resume {}`", word(&run.display().to_string())),
            (false, true) => "the same command without --fresh".to_owned(),
            (false, false) => "the same command".to_owned(),
        }
    }

    /// The last words about a run.
    fn ended(&self, end: &End) {
        self.set_board(None);
        let run = end.run.display();
        match &end.outcome {
            Ok(Outcome::Finished | Outcome::Reached(_)) => {
                let reached = end.reached_target();
                let how = reached.map_or_else(
                    || "finished".to_owned(),
                    |reached| {
                        format!(
                            "finished at its target, {},",
                            reached_text(&reached, end.steps_done, end.steps)
                        )
                    },
                );
                let loss = end.loss.map_or_else(String::new, |loss| format!(", training loss {loss:.4}"));
                let speed = end.tokens_per_s.map(|speed| format!(", {} tokens/s", thousands(speed as u64)));
                let (time, speed) = (duration(end.elapsed), speed.unwrap_or_default());
                say(&format!("{run}: {how} in {time}{loss}{speed}"));
                if let (Some(val), Some(entropy)) = (end.val_loss, end.val_unigram_entropy) {
                    let of_all = if end.val_is_part { " on the whole set" } else { "" };
                    say(&format!(
                        "validation loss {val:.4} nats per token; knowing only how often each token occurs would give \
                         {entropy:.4}{of_all}"
                    ));
                }
            }
            Ok(Outcome::Stopped(_)) => say(&format!(
                "{run}: interrupted after {} of {}; {} resumes",
                end.steps_done,
                count(end.steps, "step"),
                self.resumes(end.run)
            )),
            Ok(Outcome::Diverged { step, what }) => say(&format!(
                "{run}: diverged at step {step}: {what}; nothing is saved of it, and --resume goes on from the last \
                 checkpoint, where there is one. Try a lower optimizer.lr, a longer schedule.warmup_steps or a smaller \
                 optimizer.clip_norm (0 clips nothing)"
            )),
            // the caller shows the error
            Err(_) => {}
        }
    }
}

impl Audience for Voice {
    fn tell(&self, event: Event) {
        if self.volume == Volume::Quiet && !is_amiss(&event) {
            return;
        }
        if let Event::AlreadyFinished { run, .. } | Event::AlreadyDiverged { run, .. } = event {
            self.about(run);
        }
        if let Some(message) = warning(&event) {
            static SAID: Once = Once::new();
            let say = || say(&format!("warning: {message}"));
            return match event {
                // of this machine, whatever the number of runs
                Event::CudaPassedOver(_) => SAID.call_once(say),
                _ => say(),
            };
        }
        match event {
            Event::AlreadyFinished { run, by_recipe, reached } => {
                let fresh = if by_recipe { "; --fresh starts over" } else { "" };
                let (run, offered) = (run.display(), word(&run.display().to_string()));
                let (why, hint) = reached.map_or_else(Default::default, |(reached, taken, steps)| {
                    let hint = format!(
                        "; --resume {offered} goes on with a lower schedule.stop_at_val_loss, or with --unset of it"
                    );
                    (format!(" at its target, {}", reached_text(&reached, taken, steps)), hint)
                });
                say(&format!("{run}: already finished{why}{fresh}{hint}"));
            }
            Event::AlreadyDiverged { run, error } => {
                say(&format!("{}: diverged: {error}", run.display()));
                say(
                    "the same recipe would diverge again: change it, start over with --fresh, or retry from the last \
                     checkpoint with --resume",
                );
            }
            Event::SetAside { aside, instead } => {
                say(&format!("  set aside as {}; going on from {}", aside.display(), instead.display()));
            }
            Event::Planned { run, step, plan, prediction, lints } => {
                let time =
                    prediction.map_or_else(String::new, |prediction| time_line(plan, step, prediction));
                say(&format!("{}: step {step} of {}", run.display(), plan.steps));
                say_lines(&(plan_lines(plan) + &time));
                for lint in lints {
                    say(&format!("  lint {}: {}; {}", lint.code.as_str(), lint.message, lint.help));
                }
            }
            Event::Begins(line) => say(&format!("  {line}")),
            Event::Rehearsed { run, step, steps, reached, checkpoint, discarded } => {
                let run = run.display();
                if let Some(standing) = discarded {
                    say(&format!("{run}: would be discarded; it is {}", how_far(standing, steps)));
                }
                let from = match checkpoint {
                    Some(checkpoint) => format!("from {}", checkpoint.display()),
                    None if step > 0 => format!("from step {step} of the run that it branches off"),
                    None => "from the beginning".to_owned(),
                };
                let what = match reached {
                    Some(Best { step, val_loss }) => format!(
                        "would end at its target, which val_loss {val_loss} has reached after {},",
                        grouped(step, "step")
                    ),
                    None => format!("would train {}", grouped(steps.saturating_sub(step), "step")),
                };
                say(&format!("{run}: {what} {from}; --dry-run ends here"));
            }
            Event::Started { pulse } => {
                let with_bar = !self.named && self.volume == Volume::Normal && terminal::moves_its_cursor();
                self.set_board(Some(Board::new(pulse, with_bar)));
            }
            // the board looks at the pulse; the others are warnings
            Event::MicroStep
            // the others are in samples.txt
            | Event::Sampled { is_last: false, .. }
            | Event::CudaPassedOver(_)
            | Event::TurnedAway(_)
            | Event::Discrepant(_)
            | Event::Damaged { .. }
            | Event::BestDamaged { .. }
            | Event::BestCeased { .. }
            | Event::NotScored { .. }
            | Event::OfAnother { .. }
            | Event::RunsOfAnother { .. }
            | Event::DataOfAnother { .. }
            | Event::RecipeRestored { .. }
            | Event::OtherRounding(_)
            | Event::Rewritten { .. }
            | Event::NotExported(_)
            | Event::Skipped { .. } => {}
            Event::Step { report, step, steps, row } => {
                let always = report.step == 0 || step == steps || self.volume == Volume::Verbose;
                self.on_board(|board| board.step(report, (step, steps), row.tokens_per_s, always));
            }
            Event::Evaluated { step, steps, val_loss, also, .. } => {
                let also: String = also.iter().map(|(name, value)| format!(", {name} {value:.4}")).collect();
                say(&format!("step {step}/{steps} validation loss {val_loss:.4}{also}"));
            }
            Event::Sampled { text, is_last: true, .. } => terminal::say_set_in(&format!("sample: {text}")),
            Event::CopyDoesNotFit { needed, free } => say(&format!(
                "a copy of {} does not fit in the {} of memory that are free: training waits while checkpoints are \
                 written",
                gib(needed),
                gib(free)
            )),
            Event::Saved { step, checkpoint, took } => {
                if self.volume == Volume::Verbose {
                    say(&format!(
                        "checkpoint of step {step} is on the disk after {:.1} s: {}",
                        took.as_secs_f64(),
                        checkpoint.display()
                    ));
                }
            }
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
        super::print_path(run).map(drop)
    }

    fn progress(&self) -> &dyn data::Progress {
        if self.volume == Volume::Quiet { &NoProgress } else { &self.passes }
    }
}

/// The plan, for people.
fn plan_lines(plan: &Plan) -> String {
    let emulated = if plan.emulated { " (emulated by rounding)" } else { "" };
    let target = plan.target.map_or_else(String::new, |target| format!("; less once val_loss <= {target}"));
    let bytes: Vec<String> = (plan.bytes.kinds.iter().filter(|(_, bytes)| *bytes > 0))
        .map(|(kind, bytes)| format!("{} {}", kind.replace('_', " "), gib(*bytes)))
        .collect();
    let own = match plan.before.steps {
        0 => String::new(),
        _ => format!("; {} of its own", grouped(plan.own_steps(), "step")),
    };
    let ramp = match &plan.stages()[..] {
        [] => String::new(),
        [first, .., last] if last.tokens_per_step == plan.batch.tokens_per_step as u64 => format!(
            "  ramp     from {} per step, in full from step {} on\n",
            grouped(first.tokens_per_step, "token"),
            thousands(last.first_step)
        ),
        [first, ..] => format!(
            "  ramp     from {} per step, longer than the run\n",
            grouped(first.tokens_per_step, "token")
        ),
    };
    format!(
        "  model    {} parameters: {} in {} decayed, {} in {} not\n\
         \x20 batch    {} tokens = {}{} x {} of {}\n\
         {ramp}\x20 run      {}, {}{own}, {:.2} epochs of {}{target}\n\
         \x20 compute  {:.1} MFLOP per token, {} in all, on {} with {}{}, {}{emulated}\n\
         \x20 memory   {}{}{}: {}{}",
        thousands(plan.parameters.total as u64),
        thousands(plan.parameters.decayed.elements as u64),
        count(plan.parameters.decayed.tensors, "tensor"),
        thousands(plan.parameters.not_decayed.elements as u64),
        plan.parameters.not_decayed.tensors,
        thousands(plan.batch.tokens_per_step as u64),
        ranks(plan.ranks.world_size),
        plan.batch.micro_steps,
        count(plan.batch.micro_batch, "row"),
        plan.memory.dims.block_size,
        grouped(plan.steps, "step"),
        grouped(plan.tokens, "token"),
        plan.epochs,
        grouped(plan.data.train_rows, "row"),
        plan.flops_per_token as f64 / 1e6,
        flop(plan.flops),
        plan.device,
        ranks(plan.ranks.here),
        count(plan.threads, "thread"),
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

/// How a run stands and what a call would do with it, in words that follow its path.
pub(super) fn standing_text(standing: &Standing, steps: u64) -> String {
    let then = match standing {
        Standing::Begun { checkpoint: Some((step, _)), .. } => {
            format!(": goes on from its checkpoint of step {step}")
        }
        Standing::Begun { checkpoint: None, saved: Some(step), .. } => {
            format!(
                ": has no checkpoint left, and was trained up to step {step}; only --fresh starts it over"
            )
        }
        Standing::Begun { checkpoint: None, .. } => ": begins again, for it has no checkpoint".to_owned(),
        _ => String::new(),
    };
    format!("{}{then}", how_far(standing, steps))
}

/// How far a run has come.
fn how_far(standing: &Standing, steps: u64) -> String {
    let steps = grouped(steps, "step");
    match standing {
        Standing::NotBegun => "not begun".to_owned(),
        Standing::Begun { steps_done, error: None, .. } => {
            format!("interrupted after {steps_done} of {steps}")
        }
        Standing::Begun { steps_done, error: Some(error), .. } => {
            format!("failed after {steps_done} of {steps} ({error})")
        }
        Standing::Live { holder, steps_done } => {
            format!("trained now by {holder}: {steps_done} of {steps} done")
        }
        Standing::Finished { at_target: None } => "finished".to_owned(),
        Standing::Finished { at_target: Some(step) } => {
            format!("finished at its target after {step} of {steps}")
        }
        Standing::Diverged { error } => format!("diverged {error}"),
    }
}

/// The evaluation that ended a run of `steps` steps before its last one, after it had `taken` so many.
fn reached_text(reached: &ReachedTarget, taken: u64, steps: u64) -> String {
    let ReachedTarget { step, val_loss, target } = reached;
    let of = grouped(steps, "step");
    let beyond = if taken > *step { format!(" (it has taken {})", thousands(taken)) } else { String::new() };
    format!("val_loss {val_loss} <= {target} after {} of {of}{beyond}", thousands(*step))
}

/// A peak rate, where it comes from, and when it was measured.
pub(super) fn peak_text(peak: &Peak) -> String {
    let on = peak.measured.as_deref().map(|time| format!(" on {}, the highest so far", day(time)));
    format!("{} ({}{})", flop_rate(peak.flops), peak.how, on.unwrap_or_default())
}

/// How long the steps that are left will take, a line after those of the plan.
fn time_line(plan: &Plan, step: u64, prediction: &Prediction) -> String {
    let left = plan.steps.saturating_sub(step);
    // a step takes as long as its rows
    let [all, done] = [plan.steps, step.min(plan.steps)].map(|steps| plan.own_rows(steps));
    let share = (all - done) as f64 / all.max(1) as f64;
    let Ok(time) = Duration::try_from_secs_f64(prediction.total_s * share) else { return String::new() };
    let what =
        if step > 0 { format!(" for the {} steps that are left", thousands(left)) } else { String::new() };
    let speed = thousands(prediction.tokens_per_s as u64);
    let without = if plan.ranks.world_size > 1 { ", without what ranks exchange" } else { "" };
    format!("\n  time     about {}{what}, predicted at {speed} tokens per second{without}", roughly(time))
}

/// A number of ranks as a factor before what each of them has; nothing for one.
pub(super) fn ranks(ranks: usize) -> String {
    if ranks > 1 { format!("{ranks} ranks x ") } else { String::new() }
}
