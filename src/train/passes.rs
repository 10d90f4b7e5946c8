//! Forward and backward passes over rows: this rank's share of a step, and evaluations.

use super::ranks::{Agreed, own_rows};
use super::watchdog::{Verdict, Watchdog};
use super::{Doing, Events, Outcome, Progress, Rows, TrainConfig, TrainError, save};
use crate::engine::{Batch, Engine, EngineError};
use std::ops::{ControlFlow, Range};

/// The rows of one micro-batch.
pub(super) struct RowBuffer {
    inputs: Vec<u32>,
    targets: Vec<u32>,
    /// The training row that it begins with, once it has been filled.
    first: Option<u64>,
}

impl RowBuffer {
    pub(super) fn new(config: &TrainConfig) -> Self {
        let tokens = config.micro_batch * config.block_size;
        Self { inputs: vec![0; tokens], targets: vec![0; tokens], first: None }
    }

    /// Makes it hold the training rows from `first` on.
    pub(super) fn fill(&mut self, rows: &dyn Rows, config: &TrainConfig, first: u64) {
        if self.first != Some(first) {
            rows.fill(first, config.micro_batch, &mut self.inputs, &mut self.targets);
            self.first = Some(first);
        }
    }

    pub(super) fn batch(&self, config: &TrainConfig) -> Batch<'_> {
        let (rows, cols) = (config.micro_batch, config.block_size);
        Batch { inputs: &self.inputs, targets: &self.targets, rows, cols, first_row: self.first.unwrap_or(0) }
    }
}

/// How the forward and backward passes of a step ended.
pub(super) enum Accumulated {
    All,
    /// Between two passes or within one; `begun` if there are gradients to discard.
    Stopped {
        begun: bool,
    },
    Diverged(Outcome),
}

/// Forward and backward passes over this rank's micro-batches of one step, unless a stop is asked for. A requested
/// checkpoint is made at once: until the update, parameters and optimizer states are those of the last whole step.
pub(super) fn accumulate<E: Events>(
    engine: &mut dyn Engine,
    rows: &dyn Rows,
    config: &TrainConfig,
    progress: &Progress,
    saved_at: &mut u64,
    buffer: &mut RowBuffer,
    events: &mut Agreed<E>,
) -> Result<Accumulated, TrainError<E::Error>> {
    let own = own_rows(config, events.comm, progress.step);
    let micro_steps = (own.end - own.start) / config.micro_batch as u64;
    let weight = progress.scaler.scale() / micro_steps as f64;
    for (pass, first) in own.clone().step_by(config.micro_batch).enumerate() {
        let at = (pass as u64, micro_steps);
        let _ = events.onlooker().within(Doing::Step, at, 0.0);
        if events.stop()?.is_some() {
            return Ok(Accumulated::Stopped { begun: pass > 0 });
        }
        // asked for a step that is saved already, the next one is
        if (*saved_at != progress.step || progress.step == 0) && events.save_now() {
            if let Some(outcome) = save(engine, progress, events)? {
                return Ok(Accumulated::Diverged(outcome));
            }
            *saved_at = progress.step;
        }
        buffer.fill(rows, config, first);
        let batch = buffer.batch(config);
        let last = first + config.micro_batch as u64 == own.end;
        let onlooker = events.onlooker();
        let watch = |part| onlooker.within(Doing::Step, at, part);
        if engine.accumulate_watched(batch, weight, last, &watch)?.is_break() {
            events.stop()?;
            return Ok(Accumulated::Stopped { begun: true });
        }
        events.events.micro_step(config.micro_batch * config.block_size);
    }
    Ok(Accumulated::All)
}

/// What the watchdog says about the accumulated step, with its gradient norm. Numbers that it does not watch are not
/// read: that would wait for the device.
pub(super) fn judge(
    engine: &mut dyn Engine,
    watchdog: &mut Watchdog,
    loss_scale: f64,
) -> Result<Option<(Verdict, f64)>, EngineError> {
    let loss = watchdog.watches_loss().then(|| engine.loss()).transpose()?;
    let norm = watchdog.watches_grad_norm().then(|| engine.grad_norm(loss_scale)).transpose()?;
    let Some(verdict) = watchdog.judge(loss, norm) else { return Ok(None) };
    let norm = norm.map_or_else(|| engine.grad_norm(loss_scale), Ok)?;
    Ok(Some((verdict, norm)))
}

/// The loss of a model on some rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowLoss {
    /// Sum over the rows of their mean losses, in nats per token.
    pub total: f64,
    /// Number of rows.
    pub rows: u64,
}

impl RowLoss {
    /// Mean loss in nats per token; not a number without rows.
    pub fn mean(&self) -> f64 {
        self.total / self.rows as f64
    }
}

/// The loss of an engine's model on the rows in `range`, forward passes only, `micro_batch` rows of `block_size`
/// tokens at a time. `before` is asked before each pass, with the rows that are done; when it breaks, the result is
/// `None`.
///
/// # Errors
/// [`EngineError`] as `E`, or what `before` returns.
///
/// # Panics
/// Where `micro_batch` is 0.
pub fn evaluate<E: From<EngineError>>(
    engine: &mut dyn Engine,
    rows: &dyn Rows,
    range: Range<u64>,
    (micro_batch, block_size): (usize, usize),
    mut before: impl FnMut(u64) -> Result<ControlFlow<()>, E>,
) -> Result<Option<RowLoss>, E> {
    over(rows, range, (micro_batch, block_size), |batch, done| match before(done)? {
        ControlFlow::Continue(()) => Ok(Some(engine.evaluate(batch)?)),
        ControlFlow::Break(()) => Ok(None),
    })
}

/// The loss on the rows in `range` from the mean loss of each pass, which is given its batch and the number of rows
/// that are done; `None` as soon as a pass has none.
pub(super) fn over<E>(
    rows: &dyn Rows,
    range: Range<u64>,
    (micro_batch, block_size): (usize, usize),
    mut pass: impl FnMut(Batch, u64) -> Result<Option<f64>, E>,
) -> Result<Option<RowLoss>, E> {
    assert!(micro_batch > 0, "micro_batch must be positive");
    let mut loss = RowLoss { total: 0.0, rows: 0 };
    let (mut inputs, mut targets) = (vec![0; micro_batch * block_size], vec![0; micro_batch * block_size]);
    while range.start + loss.rows < range.end {
        let first = range.start + loss.rows;
        let count = (micro_batch as u64).min(range.end - first) as usize;
        let (inputs, targets) = (&mut inputs[..count * block_size], &mut targets[..count * block_size]);
        rows.fill(first, count, inputs, targets);
        let batch = Batch { inputs, targets, rows: count, cols: block_size, first_row: first };
        let Some(mean) = pass(batch, loss.rows)? else { return Ok(None) };
        loss.total += mean * count as f64;
        loss.rows += count as u64;
    }
    Ok(Some(loss))
}
