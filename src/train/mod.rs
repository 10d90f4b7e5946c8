//! The training loop: which step comes when, and nothing about files, terminals or devices.
//!
//! It drives an [`Engine`] over a [`Rows`] source and reports to an [`Events`] receiver, which logs, saves and decides when
//! to stop. All state that a resumed run needs besides the engine's buffers is in [`Progress`].

pub mod sample;
pub mod scaler;
pub mod schedule;

#[cfg(test)]
mod tests;

use crate::engine::{Batch, Engine, EngineError, State, Update};
use crate::recipe::OptimizerConfig;
use scaler::LossScaler;
use schedule::Schedule;
use std::time::{Duration, Instant};

/// What the loop needs to know about a run.
#[derive(Debug, Clone)]
pub struct TrainConfig {
    /// Optimizer steps in all.
    pub max_steps: u64,
    /// Sequences per optimizer step.
    pub rows_per_step: usize,
    /// Sequences per forward pass.
    pub micro_batch: usize,
    /// Tokens per sequence.
    pub block_size: usize,
    /// AdamW and clipping.
    pub optimizer: OptimizerConfig,
    /// Learning rate over the steps.
    pub schedule: Schedule,
    /// Validate before every step that is a multiple of this, and after the last; 0 = never.
    pub eval_every: u64,
    /// Validation rows per evaluation.
    pub eval_rows: usize,
    /// Save after every this many steps; 0 = after the last only.
    pub checkpoint_every: u64,
    /// Generate text before every step that is a multiple of this, and after the last; 0 = never.
    pub sample_every: u64,
}

/// Where a run stands; with the engine's buffers, all that a checkpoint must hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Optimizer steps done, skipped ones included.
    pub step: u64,
    /// Updates applied: AdamW's t.
    pub updates: u64,
    /// fp16's loss scale.
    pub scaler: LossScaler,
    /// Lowest validation loss so far.
    pub best_val_loss: Option<f64>,
}

/// A source of training or validation rows, numbered from 0 without end.
pub trait Rows {
    /// Writes rows `first..first + rows`: inputs and targets `[rows, T]`.
    fn fill(&self, first: u64, rows: usize, inputs: &mut [u32], targets: &mut [u32]);
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

/// Why a run must stop early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
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

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// All steps are done.
    Finished,
    /// Stopped after a checkpoint.
    Stopped(Stop),
    /// Step `step` gave a loss, gradient or weight that is not finite; nothing has been saved since.
    Diverged {
        /// The step.
        step: u64,
        /// What was not finite.
        what: String,
    },
}

/// Receives what happens. Any error ends the run.
pub trait Events {
    /// Its failures.
    type Error;

    /// A step was done.
    fn step(&mut self, report: &StepReport, progress: &Progress) -> Result<(), Self::Error>;
    /// A forward and backward pass over `tokens` tokens was done.
    fn micro_step(&mut self, tokens: usize);
    /// The validation loss after `progress.step` steps.
    fn evaluated(&mut self, val_loss: f64, progress: &Progress) -> Result<(), Self::Error>;
    /// It is time for a sample.
    fn sample(&mut self, engine: &mut dyn Engine, progress: &Progress) -> Result<(), Self::Error>;
    /// It is time to save.
    fn checkpoint(&mut self, engine: &mut dyn Engine, progress: &Progress) -> Result<(), Self::Error>;
    /// Whether to stop now.
    fn stop(&mut self) -> Option<Stop>;
}

/// Trains from `progress` on to the last step.
pub fn train<E: Events>(
    engine: &mut dyn Engine,
    training: &dyn Rows,
    validation: Option<&dyn Rows>,
    config: &TrainConfig,
    progress: &mut Progress,
    events: &mut E,
) -> Result<Outcome, TrainError<E::Error>> {
    let tokens = config.micro_batch * config.block_size;
    let mut buffer = RowBuffer { inputs: vec![0; tokens], targets: vec![0; tokens], first: None };
    let mut saved_at = progress.step;
    let due = |every: u64, step: u64| every > 0 && (step.is_multiple_of(every) || step == config.max_steps);
    loop {
        let step = progress.step;
        if due(config.eval_every, step)
            && let Some(rows) = validation
        {
            let Some(loss) = evaluate(engine, rows, config, &mut buffer, events)? else {
                return stop(engine, progress, saved_at, events);
            };
            if loss.is_finite() {
                progress.best_val_loss = Some(progress.best_val_loss.map_or(loss, |best| best.min(loss)));
            }
            events.evaluated(loss, progress).map_err(TrainError::Events)?;
        }
        if due(config.sample_every, step) {
            events.sample(engine, progress).map_err(TrainError::Events)?;
            // a sample that was cut short is made again by the resumed run
            if events.stop().is_some() {
                return stop(engine, progress, saved_at, events);
            }
        }
        if step == config.max_steps {
            // also when this step is already saved: the best validation loss is new
            return Ok(save(engine, progress, events)?.unwrap_or(Outcome::Finished));
        }

        let start = Instant::now();
        let loss_scale = progress.scaler.scale();
        if !accumulate(engine, training, config, step, loss_scale, &mut buffer, events)? {
            return stop(engine, progress, saved_at, events);
        }
        let lr = config.schedule.lr(step);
        let OptimizerConfig { betas, eps, weight_decay, clip_norm, .. } = config.optimizer;
        let t = progress.updates + 1;
        engine.update(&Update { lr, betas, eps, weight_decay, clip_norm, t, loss_scale })?;
        if step + 1 < config.max_steps {
            // while the device is still busy
            buffer.fill(training, config, (step + 1) * config.rows_per_step as u64);
            engine.stage(buffer.batch(config));
        }
        let applied = engine.applied()?;
        if !applied.loss.is_finite() {
            return Ok(Outcome::Diverged { step, what: format!("the loss is {}", applied.loss) });
        }
        if !progress.scaler.update(applied.applied) {
            let what = format!("the gradient norm is {}", applied.grad_norm);
            return Ok(Outcome::Diverged { step, what });
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
        events.step(&report, progress).map_err(TrainError::Events)?;
        let every = config.checkpoint_every;
        if every > 0 && progress.step.is_multiple_of(every) && progress.step < config.max_steps {
            if let Some(diverged) = save(engine, progress, events)? {
                return Ok(diverged);
            }
            saved_at = progress.step;
        }
        if progress.step < config.max_steps && events.stop().is_some() {
            return stop(engine, progress, saved_at, events);
        }
    }
}

/// Ends early, with a checkpoint of the last whole step. Gradients of a step begun are dropped with the engine.
fn stop<E: Events>(
    engine: &mut dyn Engine,
    progress: &Progress,
    saved_at: u64,
    events: &mut E,
) -> Result<Outcome, TrainError<E::Error>> {
    if (saved_at != progress.step || progress.step == 0)
        && let Some(diverged) = save(engine, progress, events)?
    {
        return Ok(diverged);
    }
    Ok(Outcome::Stopped(events.stop().unwrap_or(Stop::Interrupt)))
}

/// Saves; or tells that the run has diverged, for a checkpoint must be something to go on from. An update by finite
/// gradients may still leave weights that are not, and older checkpoints make way for newer ones.
fn save<E: Events>(
    engine: &mut dyn Engine,
    progress: &Progress,
    events: &mut E,
) -> Result<Option<Outcome>, TrainError<E::Error>> {
    if !engine.read(State::Parameters)?.iter().all(|weight| weight.is_finite()) {
        let what = "a weight is not finite after the update".to_owned();
        return Ok(Some(Outcome::Diverged { step: progress.step.saturating_sub(1), what }));
    }
    events.checkpoint(engine, progress).map_err(TrainError::Events)?;
    Ok(None)
}

/// The rows of one micro-batch.
struct RowBuffer {
    inputs: Vec<u32>,
    targets: Vec<u32>,
    /// The training row that it begins with, if it holds training rows.
    first: Option<u64>,
}

impl RowBuffer {
    /// Makes it hold the training rows from `first` on.
    fn fill(&mut self, rows: &dyn Rows, config: &TrainConfig, first: u64) {
        if self.first != Some(first) {
            rows.fill(first, config.micro_batch, &mut self.inputs, &mut self.targets);
            self.first = Some(first);
        }
    }

    fn batch(&self, config: &TrainConfig) -> Batch<'_> {
        let (rows, cols) = (config.micro_batch, config.block_size);
        Batch { inputs: &self.inputs, targets: &self.targets, rows, cols }
    }
}

/// Forward and backward over the micro-batches of one step; false if a stop was asked for.
fn accumulate<E: Events>(
    engine: &mut dyn Engine,
    rows: &dyn Rows,
    config: &TrainConfig,
    step: u64,
    loss_scale: f64,
    buffer: &mut RowBuffer,
    events: &mut E,
) -> Result<bool, TrainError<E::Error>> {
    let micro_steps = config.rows_per_step / config.micro_batch;
    for micro_step in 0..micro_steps {
        if events.stop().is_some() {
            return Ok(false);
        }
        let first = step * config.rows_per_step as u64 + (micro_step * config.micro_batch) as u64;
        buffer.fill(rows, config, first);
        engine.accumulate(buffer.batch(config), loss_scale / micro_steps as f64)?;
        events.micro_step(config.micro_batch * config.block_size);
    }
    Ok(true)
}

/// Mean loss over the first `eval_rows` validation rows, or None if a stop was asked for.
fn evaluate<E: Events>(
    engine: &mut dyn Engine,
    rows: &dyn Rows,
    config: &TrainConfig,
    buffer: &mut RowBuffer,
    events: &mut E,
) -> Result<Option<f64>, TrainError<E::Error>> {
    let mut total = 0.0;
    buffer.first = None;
    for first in (0..config.eval_rows).step_by(config.micro_batch) {
        if events.stop().is_some() {
            return Ok(None);
        }
        let count = config.micro_batch.min(config.eval_rows - first);
        let tokens = count * config.block_size;
        let (inputs, targets) = (&mut buffer.inputs[..tokens], &mut buffer.targets[..tokens]);
        rows.fill(first as u64, count, inputs, targets);
        let batch = Batch { inputs, targets, rows: count, cols: config.block_size };
        total += engine.evaluate(batch)? * count as f64;
    }
    Ok(Some(total / config.eval_rows as f64))
}
