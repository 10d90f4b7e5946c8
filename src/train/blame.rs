//! Finds what is to blame for numbers that are not finite: rows of the step, and the first tensor.
//!
//! A run that diverges ends, so there is time to look: nothing of the step was applied, and its micro-batches can be
//! computed again, one at a time and then row by row.

use super::passes::RowBuffer;
use super::ranks::own_rows;
use super::{Rows, TrainConfig};
use crate::comm::Comm;
use crate::engine::{Batch, Engine, EngineError, State};
use std::ops::Range;

/// At most this many rows are named; the others are counted.
const NAMED: usize = 4;

/// Names the first tensor, in the order of the layout, that has an element that is not finite in one of these states,
/// as in "the second moment of `h.0.mlp.c_fc.weight`".
pub(super) fn first_not_finite(
    engine: &mut dyn Engine,
    states: &[State],
) -> Result<Option<String>, EngineError> {
    for &state in states {
        let Some(index) = engine.first_not_finite(state)? else { continue };
        let found = engine.layout().tensors.iter().find(|tensor| tensor.range().contains(&index));
        let kind = match state {
            State::Parameters => "the weight".to_owned(),
            State::Gradients => "the gradient of".to_owned(),
            State::Optimizer(state) => format!("{} of", state.label),
        };
        let name = found.map_or("a gap between tensors", |tensor| &tensor.name);
        return Ok(Some(format!("{kind} `{name}`")));
    }
    Ok(None)
}

/// What there is to say about a step whose loss or gradient norm was not finite, as clauses that follow "; ".
///
/// Each rank computes its micro-batches of the step again, up to the first bad one, and all return what the first rank
/// has found that found something. Gradients are left in disorder.
pub(super) fn of_step(
    comm: &dyn Comm,
    engine: &mut dyn Engine,
    rows: &dyn Rows,
    config: &TrainConfig,
    step: u64,
    loss_scale: f64,
    buffer: &mut RowBuffer,
) -> Result<String, EngineError> {
    if let Some(what) = first_not_finite(engine, &[State::Parameters])? {
        return Ok(format!("; {what} is not finite"));
    }
    // one rank may find something in its first micro-batch, and another nothing in many
    comm.set_working(true);
    let found = of_rows(engine, rows, config, own_rows(config, comm, step), loss_scale, buffer);
    comm.set_working(false);
    let all = comm.exchange(found?.unwrap_or_default().as_bytes())?;
    if let Some(first) = all.iter().find(|text| !text.is_empty()) {
        return Ok(String::from_utf8_lossy(first).into_owned());
    }
    let [start, end] = [step, step + 1].map(|step| config.sizes.rows_before(step));
    Ok(format!("; each of the rows {start} to {} by itself is finite", end - 1))
}

/// What there is to say about the rows in `range`, as clauses that follow "; "; `None` if each of their micro-batches
/// is finite.
fn of_rows(
    engine: &mut dyn Engine,
    rows: &dyn Rows,
    config: &TrainConfig,
    range: Range<u64>,
    loss_scale: f64,
    buffer: &mut RowBuffer,
) -> Result<Option<String>, EngineError> {
    let cols = config.block_size;
    for first in range.step_by(config.micro_batch) {
        buffer.fill(rows, config, first);
        let batch = buffer.batch(config);
        if let Some(mut what) = not_finite(engine, batch, loss_scale)? {
            let mut bad = Vec::new();
            for row in 0..batch.rows {
                let span = row * cols..(row + 1) * cols;
                let (inputs, targets) = (&batch.inputs[span.clone()], &batch.targets[span]);
                let first_row = batch.first_row + row as u64;
                let alone = Batch { inputs, targets, rows: 1, cols, first_row };
                if let Some(here) = not_finite(engine, alone, loss_scale)? {
                    if bad.is_empty() {
                        what = here;
                    }
                    bad.push(first + row as u64);
                }
            }
            let place = named(rows, &bad, first..first + batch.rows as u64);
            return Ok(Some(format!("; {what} is not finite, {place}")));
        }
    }
    Ok(None)
}

/// What is not finite after a forward and backward pass over a batch alone, if anything.
fn not_finite(engine: &mut dyn Engine, batch: Batch, loss_scale: f64) -> Result<Option<String>, EngineError> {
    let zeros = vec![0.0; engine.layout().len];
    engine.write(State::Gradients, &zeros)?;
    let loss = engine.evaluate(batch)?;
    engine.accumulate(batch, loss_scale)?;
    let tensor = first_not_finite(engine, &[State::Gradients])?;
    Ok(tensor.or_else(|| (!loss.is_finite()).then(|| "the loss".to_owned())))
}

fn named(rows: &dyn Rows, bad: &[u64], all: Range<u64>) -> String {
    if bad.is_empty() {
        return format!("though each of the rows {} to {} by itself is", all.start, all.end - 1);
    }
    let places: Vec<String> =
        bad.iter().take(NAMED).map(|&row| format!("row {row}{}", place(rows, row))).collect();
    let more = match bad.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("from {}{more}", places.join(", "))
}

fn place(rows: &dyn Rows, row: u64) -> String {
    rows.locate(row).map_or_else(String::new, |place| format!(" ({place})"))
}
