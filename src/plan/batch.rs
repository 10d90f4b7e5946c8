//! How the tokens of a step divide into rows, ranks and micro-batches.

use super::PlanError;
use crate::recipe::{MicroBatch, Recipe};
use crate::wording::count;

/// The division of an optimizer step; where the batch grows, of those that have their full size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlan {
    /// Tokens per optimizer step.
    pub tokens_per_step: usize,
    /// Sequences per optimizer step.
    pub rows_per_step: usize,
    /// Sequences per optimizer step on one rank.
    pub rows_per_rank: usize,
    /// Sequences per forward pass.
    pub micro_batch: usize,
    /// Forward passes per optimizer step on one rank.
    pub micro_steps: usize,
    /// Sequences of which every step of one rank takes a multiple: those of a step, or fewer where the batch grows.
    pub rows_unit: usize,
}

/// The sequences of an optimizer step.
pub(super) struct Rows {
    per_step: usize,
    per_rank: usize,
    /// What the rows of every step of a rank are multiples of.
    unit: usize,
}

impl Rows {
    /// Errors: a step's tokens that are not whole rows, or rows that do not divide among the ranks.
    pub(super) fn new(recipe: &Recipe) -> Result<Self, PlanError> {
        let (tokens, block_size) = (recipe.batch.total_tokens, recipe.model.block_size);
        let per_step = tokens / block_size;
        if per_step * block_size != tokens || per_step == 0 {
            let lower = per_step.max(1) * block_size;
            return Err(PlanError::new(
                "batch.total_tokens",
                format!("batch.total_tokens = {tokens} is not a multiple of block_size = {block_size}"),
                format!("use {lower} or {}", lower + block_size),
            ));
        }
        let world_size = recipe.batch.world_size;
        let unit = recipe.step_sizes().stages().iter().fold(0, |unit, stage| gcd(unit, stage.rows as usize));
        let divisible = if per_step.is_multiple_of(world_size) { unit } else { per_step };
        if !divisible.is_multiple_of(world_size) {
            return Err(PlanError::new(
                "batch.world_size",
                format!("a step of {} does not divide among {world_size} ranks", count(divisible, "row")),
                format!("use a divisor of {divisible}"),
            ));
        }
        Ok(Self { per_step, per_rank: per_step / world_size, unit: unit / world_size })
    }

    /// Divides a rank's rows into the recipe's micro-batches. `"auto"` is what the run began with (`kept`), unless
    /// other ranks than before cannot divide by it, or else the largest that fits in memory, which `largest` finds
    /// among the divisors of the rows of each of a rank's steps.
    ///
    /// Errors: a micro-batch that does not divide the rows of a rank's steps.
    pub(super) fn batch(
        &self,
        recipe: &Recipe,
        kept: Option<usize>,
        largest: impl Fn(usize) -> Option<usize>,
    ) -> Result<BatchPlan, PlanError> {
        let unit = self.unit;
        let micro_batch = match (recipe.batch.micro_batch, kept) {
            (MicroBatch::Rows(rows), _) => rows,
            (MicroBatch::Auto, Some(kept)) if unit.is_multiple_of(kept) => kept,
            (MicroBatch::Auto, _) => largest(unit).unwrap_or(1),
        };
        let rows = if self.per_rank.is_multiple_of(micro_batch) { unit } else { self.per_rank };
        if !rows.is_multiple_of(micro_batch) {
            let whose = if recipe.batch.world_size > 1 { " of a rank" } else { "" };
            return Err(PlanError::new(
                "batch.micro_batch",
                format!(
                    "a step of {}{whose} does not divide into micro-batches of {micro_batch}",
                    count(rows, "row")
                ),
                format!("use a divisor of {rows}"),
            ));
        }
        Ok(BatchPlan {
            tokens_per_step: recipe.batch.total_tokens,
            rows_per_step: self.per_step,
            rows_per_rank: self.per_rank,
            micro_batch,
            micro_steps: self.per_rank / micro_batch,
            rows_unit: unit,
        })
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
