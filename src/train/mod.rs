//! The training loop: which step comes when, and nothing about files, terminals or devices.
//!
//! It drives an [`Engine`] over a [`Rows`] source and reports to an [`Events`] receiver, which logs, saves and decides
//! when to stop. All state that a resumed run needs besides the engine's buffers is in [`Progress`].

mod blame;
mod end;
mod evaluations;
mod passes;
mod ranks;
pub mod sample;
pub mod scaler;
pub mod schedule;
pub mod watchdog;

#[cfg(test)]
mod tests;

use crate::comm::Comm;
use crate::engine::optimizer::OptimizerStep;
use crate::engine::{Engine, EngineError};
use crate::recipe::{OptimizerConfig, StepSizes};
use evaluations::evaluate_together;
use passes::{Accumulated, RowBuffer, accumulate, judge};
use ranks::{Agreed, own_rows};
use scaler::LossScaler;
use schedule::Schedule;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use watchdog::{Verdict, Watchdog};

pub use end::{Outcome, Stop, reached};
pub use evaluations::{Evaluations, Measured, ValidationSet};
pub use passes::{RowLoss, evaluate};

/// What the loop needs to know about a run.
#[derive(Debug, Clone)]
pub struct TrainConfig {
    /// Optimizer steps in all.
    pub max_steps: u64,
    /// Sequences of each optimizer step, over all ranks.
    pub sizes: StepSizes,
    /// Sequences per forward pass.
    pub micro_batch: usize,
    /// Tokens per sequence.
    pub block_size: usize,
    /// The optimizer's rule and clipping.
    pub optimizer: OptimizerConfig,
    /// Learning rate over the steps.
    pub schedule: Schedule,
    /// Validate before every step that is a multiple of this, and after the last; 0 = never.
    pub eval_every: u64,
    /// End after the first evaluation whose loss is at most this.
    pub stop_at_val_loss: Option<f64>,
    /// Save after every this many steps; 0 = after the last only.
    pub checkpoint_every: u64,
    /// Save at each evaluation that is the best so far.
    pub keep_best: bool,
    /// Generate text before every step that is a multiple of this, and after the last; 0 = never.
    pub sample_every: u64,
}

/// An evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Best {
    /// Optimizer steps done before it.
    pub step: u64,
    /// Its validation loss in nats per token.
    pub val_loss: f64,
}

/// Where a run stands; with the engine's buffers, all that a checkpoint must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Optimizer steps done, skipped ones included.
    pub step: u64,
    /// Updates applied: the t of the last one.
    pub updates: u64,
    /// fp16's loss scale.
    pub scaler: LossScaler,
    /// What the watchdog remembers.
    pub watchdog: Watchdog,
    /// Lowest validation loss so far.
    pub best_val_loss: Option<f64>,
    /// The best evaluation among those since which the best checkpoint is kept: the one whose checkpoint is kept.
    pub kept: Option<Best>,
    /// Whether this step was evaluated before the run was resumed from its checkpoint, which is saved before the
    /// evaluation: it is evaluated again then, even if none is due here any more.
    pub evaluated: bool,
    /// The evaluation that has reached the target before the run went on from here: it ends here, before another step.
    pub reached: Option<Best>,
}

/// A source of training or validation rows, numbered from 0 without end.
pub trait Rows {
    /// Writes rows `first..first + rows`: inputs and targets `[rows, T]`.
    fn fill(&self, first: u64, rows: usize, inputs: &mut [u32], targets: &mut [u32]);

    /// Where a row's tokens are, for messages; `None` if that means nothing here.
    fn locate(&self, _row: u64) -> Option<String> {
        None
    }
}

/// One finished step, in the terms of `train.csv`.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// From 0.
    pub step: u64,
    /// Mean loss over the whole batch before the update.
    pub loss: f64,
    /// Learning rate used.
    pub lr: f64,
    /// Global norm before clipping.
    pub grad_norm: f64,
    /// Loss scale used.
    pub loss_scale: f64,
    /// Whether the update was left out.
    pub skipped: bool,
    /// Wall time of the step.
    pub time: Duration,
}

/// What the loop is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// An optimizer step.
    Step,
    /// An evaluation.
    Evaluation,
    /// A sample.
    Sample,
    /// A checkpoint.
    Checkpoint,
}

/// Where the loop is inside a step or an evaluation: between two passes, or between two kernels of one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Within {
    /// A step or an evaluation.
    pub doing: Doing,
    /// Passes of this rank that are done.
    pub pass: u64,
    /// Passes that it consists of.
    pub passes: u64,
    /// The share of its work that is done, from 0 to 1.
    pub done: f64,
    /// Whether a `Break` is heeded here: not by one of several ranks.
    pub may_break: bool,
}

/// Looks on while the loop works. An engine may call it from threads of its own.
pub trait Watcher: Sync {
    /// The loop is here. `Break` asks it to leave the rest out, which it does where that is possible; the reason is
    /// asked for by [`Events::stop`].
    fn within(&self, at: Within) -> ControlFlow<()>;
}

/// What can go wrong while training.
#[derive(Debug, thiserror::Error)]
pub enum TrainError<E> {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The receiver of events failed.
    #[error(transparent)]
    Events(E),
}

/// Receives what happens in the loop. Any error ends the run.
pub trait Events {
    /// Its failures.
    type Error;

    /// A step was done.
    fn step(&mut self, report: &StepReport, progress: &Progress) -> Result<(), Self::Error>;
    /// A forward and backward pass over `tokens` tokens was done.
    fn micro_step(&mut self, tokens: usize);
    /// What was measured after `progress.step` steps.
    fn evaluated(&mut self, measured: &Measured, progress: &Progress) -> Result<(), Self::Error>;
    /// The run ends after `step` steps, for it has reached its target: what follows the last step follows now.
    fn reached(&mut self, _step: u64) {}
    /// It is time for a sample.
    fn sample(&mut self, engine: &mut dyn Engine, progress: &Progress) -> Result<(), Self::Error>;
    /// It is time to save.
    fn checkpoint(&mut self, engine: &mut dyn Engine, progress: &Progress) -> Result<(), Self::Error>;
    /// Whether what is read and written is still what it was: asked before a validation loss is reported, where a run
    /// diverges, and on all ranks before any of them takes part in a checkpoint.
    fn check(&mut self, _progress: &Progress) -> Result<(), Self::Error> {
        Ok(())
    }
    /// Whether to stop now.
    fn stop(&mut self) -> Option<Stop>;
    /// Who looks on inside steps and evaluations.
    fn watcher(&self) -> Option<&dyn Watcher> {
        None
    }
    /// Whether to save now, as soon as can be, and go on. Asked once, answered once.
    fn save_now(&mut self) -> bool {
        false
    }
    /// A step's update was left out by the watchdog, for this reason.
    fn skipped(&mut self, _step: u64, _why: &str) {}
}

/// Trains from `progress` on to the last step, as one of the ranks that `comm` connects. All of them call this with
/// equal arguments, each with an engine and a receiver of its own, and all return the same.
pub fn train<E: Events>(
    comm: &dyn Comm,
    engine: &mut dyn Engine,
    training: &dyn Rows,
    evaluations: &Evaluations,
    config: &TrainConfig,
    progress: &mut Progress,
    events: &mut E,
) -> Result<Outcome, TrainError<E::Error>> {
    let events = &mut Agreed::new(comm, events);
    let outcome = steps(comm, engine, training, evaluations, config, progress, events)?;
    if let Outcome::Diverged { .. } = outcome {
        // of data that are others now, nothing is said of the recipe
        events.working(|events| events.check(progress)).map_err(TrainError::Events)?;
        // a rank whose data are others has gone by now, and the rest learns why
        comm.barrier().map_err(EngineError::from)?;
    }
    Ok(outcome)
}

fn steps<E: Events>(
    comm: &dyn Comm,
    engine: &mut dyn Engine,
    training: &dyn Rows,
    evaluations: &Evaluations,
    config: &TrainConfig,
    progress: &mut Progress,
    events: &mut Agreed<E>,
) -> Result<Outcome, TrainError<E::Error>> {
    let mut buffer = RowBuffer::new(config);
    events.compare(engine, progress)?;
    events.compare_evaluations(evaluations)?;
    progress.kept = progress.kept.filter(|_| config.keep_best);
    events.as_first(progress)?;
    let mut saved_at = progress.step;
    let due = |every: u64, step: u64| every > 0 && (step.is_multiple_of(every) || step == config.max_steps);
    loop {
        let step = progress.step;
        let mut reached = progress.reached.take().filter(|_| step < config.max_steps);
        let again = std::mem::take(&mut progress.evaluated);
        if (again || due(config.eval_every, step)) && !evaluations.is_empty() {
            let Some(measured) = evaluate_together(engine, evaluations, config, events)? else {
                return stop(engine, progress, saved_at, events);
            };
            events.working(|events| events.check(progress)).map_err(TrainError::Events)?;
            // finite weights may still overflow on other data, most easily in fp16
            if let Some(what) = measured.not_finite(evaluations) {
                return Ok(Outcome::Diverged { step, what });
            }
            let loss = measured.val_loss();
            progress.best_val_loss = Some(progress.best_val_loss.map_or(loss, |best| best.min(loss)));
            // of equal losses the earlier one stays
            let is_best = config.keep_best && progress.kept.is_none_or(|kept| loss < kept.val_loss);
            if is_best {
                progress.kept = Some(Best { step, val_loss: loss });
            }
            events.working(|events| events.evaluated(&measured, progress)).map_err(TrainError::Events)?;
            if step < config.max_steps {
                reached = reached.or_else(|| end::reached(config.stop_at_val_loss, step, loss));
            }
            // the last step is saved in any case
            if is_best && step < config.max_steps && reached.is_none() && (saved_at != step || step == 0) {
                if let Some(diverged) = save(engine, progress, events)? {
                    return Ok(diverged);
                }
                saved_at = step;
            }
        }
        if reached.is_some() {
            events.events.reached(step);
        }
        let is_last = step == config.max_steps || reached.is_some();
        if due(config.sample_every, step) || (is_last && config.sample_every > 0) {
            events.working(|events| events.sample(engine, progress)).map_err(TrainError::Events)?;
            // a sample that was cut short is made again by the resumed run
            if events.stop()?.is_some() {
                return stop(engine, progress, saved_at, events);
            }
        }
        if is_last {
            // also when this step is already saved: the best validation loss is new
            let outcome = reached.map_or(Outcome::Finished, Outcome::Reached);
            return Ok(save(engine, progress, events)?.unwrap_or(outcome));
        }

        let start = Instant::now();
        let loss_scale = progress.scaler.scale();
        match accumulate(engine, training, config, progress, &mut saved_at, &mut buffer, events)? {
            Accumulated::All => {}
            Accumulated::Stopped { begun } => {
                if begun {
                    engine.discard()?;
                }
                return stop(engine, progress, saved_at, events);
            }
            Accumulated::Diverged(outcome) => return Ok(outcome),
        }
        let verdict = judge(engine, &mut progress.watchdog, loss_scale)?;
        if let Some((Verdict::Stop(what), _)) = verdict {
            return Ok(Outcome::Diverged { step, what });
        }
        let lr = config.schedule.lr(step);
        let t = progress.updates + 1;
        match verdict {
            None => engine.update(&OptimizerStep::new(&config.optimizer, lr, t, loss_scale))?,
            Some(_) => engine.discard()?,
        }
        if step + 1 < config.max_steps {
            // while the device is still busy
            buffer.fill(training, config, own_rows(config, comm, step + 1).start);
            engine.stage(buffer.batch(config));
        }
        let mut applied = engine.applied()?;
        let what = if !applied.loss.is_finite() {
            Some(format!("the loss is {}", applied.loss))
        } else if verdict.is_none() && !progress.scaler.update(applied.applied) {
            Some(format!("the gradient norm is {}", applied.grad_norm))
        } else {
            None
        };
        if let Some(what) = what {
            let blame = blame::of_step(comm, engine, training, config, step, loss_scale, &mut buffer)?;
            return Ok(Outcome::Diverged { step, what: what + &blame });
        }
        if applied.applied {
            progress.watchdog.take(applied.loss, applied.grad_norm);
        }
        if let Some((Verdict::Skip(why), grad_norm)) = &verdict {
            applied.grad_norm = *grad_norm;
            events.events.skipped(step, why);
        }
        progress.updates += u64::from(applied.applied);
        progress.step += 1;
        let report = StepReport {
            step,
            loss: applied.loss,
            lr,
            grad_norm: applied.grad_norm,
            loss_scale,
            skipped: !applied.applied,
            time: start.elapsed(),
        };
        events.working(|events| events.step(&report, progress)).map_err(TrainError::Events)?;
        let every = config.checkpoint_every;
        if every > 0 && progress.step.is_multiple_of(every) && progress.step < config.max_steps {
            if let Some(diverged) = save(engine, progress, events)? {
                return Ok(diverged);
            }
            saved_at = progress.step;
        }
        if progress.step < config.max_steps && events.stop()?.is_some() {
            return stop(engine, progress, saved_at, events);
        }
    }
}

/// Ends early, with a checkpoint of the last whole step. Gradients of a step that has begun are lost.
fn stop<E: Events>(
    engine: &mut dyn Engine,
    progress: &Progress,
    saved_at: u64,
    events: &mut Agreed<E>,
) -> Result<Outcome, TrainError<E::Error>> {
    if (saved_at != progress.step || progress.step == 0)
        && let Some(diverged) = save(engine, progress, events)?
    {
        return Ok(diverged);
    }
    Ok(Outcome::Stopped(events.reason().unwrap_or(Stop::Interrupt)))
}

/// Saves, or reports that the run has diverged. An update by finite gradients may still leave weights or optimizer
/// states that are not finite; saving those would leave no checkpoint to resume from, since older ones are deleted.
fn save<E: Events>(
    engine: &mut dyn Engine,
    progress: &Progress,
    events: &mut Agreed<E>,
) -> Result<Option<Outcome>, TrainError<E::Error>> {
    // before the ranks compare their parameters: none of them saves if one cannot vouch for its data
    events.working(|events| events.check(progress)).map_err(TrainError::Events)?;
    let states = engine.saved_states();
    if let Some(what) = blame::first_not_finite(engine, &states)? {
        let what = format!("{what} is not finite after the update");
        return Ok(Some(Outcome::Diverged { step: progress.step.saturating_sub(1), what }));
    }
    events.compare(engine, progress)?;
    events.working(|events| events.checkpoint(engine, progress)).map_err(TrainError::Events)?;
    Ok(None)
}
