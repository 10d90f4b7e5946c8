//! Which rows of its data a number of a run is of.

use super::super::metrics::Metric;
use super::super::runs::Run;
use crate::run::column::{Aggregate, Unit};
use crate::run::columns::NAMED_SET;
use crate::run::dir;

/// Tokens of a row.
pub(super) const BLOCK_SIZE: &str = "model.block_size";
const BATCH: &str = "batch.total_tokens";

/// Which rows the last loss of a training is of, where they are read in order: all seeds of a recipe end on the same
/// ones, whose text is no part of the noise between these. They are the last of the tokens, as many as a step takes.
pub(super) fn last_rows(run: &Run, metric: &Metric) -> Option<String> {
    let is_last_loss =
        metric.log == dir::TRAIN_CSV && metric.unit == Unit::Loss && metric.aggregate == Aggregate::Last;
    let is_in_order = run.value("data.shuffle").and_then(|shuffle| shuffle.as_bool()) == Some(false);
    if !is_last_loss || !is_in_order {
        return None;
    }
    let [tokens, steps] = ["tokens", "steps"].map(|name| run.results.get(name));
    let last =
        run.step_sizes().zip(steps).map(|(sizes, steps)| sizes.tokens((steps as u64).saturating_sub(1)));
    // rows of another length begin elsewhere in all shards but the first
    Some(format!("{:?} of {:?} to {}", last, run.value(BLOCK_SIZE), tokens?))
}

/// The tokens of an evaluation of the set that a column is of: from the record, or else as many as the recipe asks for
/// at most. Where the length of a row decides which these are, it stands behind them.
pub(super) fn evaluated(run: &Run, column: &str) -> Option<String> {
    let number = |key: &str| run.value(key)?.as_u64();
    let batches = || number("eval.batches")?.checked_mul(number(BATCH)?);
    let rounded = || number("eval.tokens")?.checked_next_multiple_of(number(BLOCK_SIZE)?);
    let asked = || rounded().or_else(batches);
    let other = column.strip_prefix(NAMED_SET).and_then(|set| run.facts.eval_others.get(set));
    let rows = other.copied().or(run.facts.eval_rows);
    let known = || rows?.checked_mul(number(BLOCK_SIZE)?);
    let tokens = known().or_else(asked)?;
    match length_of_rows(run, column) {
        Some(length) => Some(format!("{tokens}/{length}")),
        None => Some(tokens.to_string()),
    }
}

/// The tokens of a row, where they decide which tokens a loss is of.
pub(super) fn length_of_rows(run: &Run, column: &str) -> Option<u64> {
    let is_by_row = run.facts.by_row.iter().flatten().any(|loss| loss == column);
    run.value(BLOCK_SIZE).filter(|_| is_by_row)?.as_u64()
}
