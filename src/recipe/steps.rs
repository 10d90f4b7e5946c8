//! The optimizer steps of a run: how many rows each of them takes, and what lengths in tokens and in steps come to.
//!
//! A batch may grow (Brown et al., 2020, appendix B). How many rows a step takes is a function of the step alone, so
//! nothing about it has to be kept with a run. Nothing else multiplies steps by rows: [`StepSizes`] is asked.

use super::schema::{BatchConfig, Recipe, ScheduleConfig};
use super::words::ScheduleKind;
use std::sync::Arc;

/// A batch grows in at most this many stages.
pub const MOST_STAGES: usize = 4096;

/// Neighbouring steps of equally many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// The first of them, counted from 0.
    pub first_step: u64,
    /// The rows of all steps before.
    pub first_row: u64,
    /// Rows of each step, over all ranks.
    pub rows: u64,
}

/// How many rows of T tokens each optimizer step takes, over all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepSizes {
    block_size: u64,
    /// In order; the last one has no end.
    stages: Arc<[Stage]>,
}

impl StepSizes {
    /// Steps of `rows` rows of `block_size` tokens each.
    #[must_use]
    pub fn constant(rows: usize, block_size: usize) -> Self {
        let stage = Stage { first_step: 0, first_row: 0, rows: rows.max(1) as u64 };
        Self { block_size: block_size as u64, stages: [stage].into() }
    }

    /// The steps of a batch, whose tokens are whole rows of `block_size` tokens.
    ///
    /// With n increments between the first size and the last, the k-th is added as soon as k / n of
    /// `batch.ramp_tokens` have been read. That is the rule of Megatron-LM's `--rampup-batch-size`, in integers.
    #[must_use]
    pub fn new(batch: &BatchConfig, block_size: usize) -> Self {
        let rows = |tokens: usize| (tokens / block_size).max(1) as u64;
        let (full, Some(ramp)) = (rows(batch.total_tokens), batch.ramp()) else {
            return Self::constant(batch.total_tokens / block_size, block_size);
        };
        let (start, increment) = (rows(ramp.start), rows(ramp.increment));
        let increments = full.saturating_sub(start) / increment;
        let mut next = Stage { first_step: 0, first_row: 0, rows: start };
        let mut stages = Vec::new();
        for k in 1..=increments.min(MOST_STAGES as u64) {
            let rows_of_part = u128::from(increments) * block_size as u128;
            // the rows after which the k-th increment is added; more than 64 bits hold no run
            let end = (u128::from(k) * u128::from(ramp.tokens)).div_ceil(rows_of_part);
            let missing = u64::try_from(end).unwrap_or(u64::MAX).saturating_sub(next.first_row);
            // a step may take more than a whole stage
            if missing > 0 {
                let steps = missing.div_ceil(next.rows);
                stages.push(next);
                next.first_step += steps;
                next.first_row += steps * next.rows;
            }
            next.rows += increment;
        }
        stages.push(Stage { rows: full, ..next });
        Self { block_size: block_size as u64, stages: stages.into() }
    }

    /// Tokens of a row.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// The stages in order; the last one has no end.
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Whether all steps are of one size.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.stages.len() == 1
    }

    fn stage(&self, step: u64) -> &Stage {
        &self.stages[self.stages.partition_point(|stage| stage.first_step <= step) - 1]
    }

    /// Rows of a step.
    #[must_use]
    pub fn rows(&self, step: u64) -> u64 {
        self.stage(step).rows
    }

    /// Tokens of a step.
    #[must_use]
    pub fn tokens(&self, step: u64) -> u64 {
        self.rows(step) * self.block_size
    }

    /// Rows of the first `steps` steps, which is the first row of the step after them.
    ///
    /// # Panics
    /// In a debug build, where that is beyond 64 bits; [`checked_tokens_before`](Self::checked_tokens_before) tells.
    #[must_use]
    pub fn rows_before(&self, steps: u64) -> u64 {
        let stage = self.stage(steps);
        stage.first_row + (steps - stage.first_step) * stage.rows
    }

    /// Tokens of the first `steps` steps.
    ///
    /// # Panics
    /// As [`rows_before`](Self::rows_before).
    #[must_use]
    pub fn tokens_before(&self, steps: u64) -> u64 {
        self.rows_before(steps) * self.block_size
    }

    /// Tokens of the first `steps` steps; `None` beyond 64 bits.
    #[must_use]
    pub fn checked_tokens_before(&self, steps: u64) -> Option<u64> {
        let stage = self.stage(steps);
        let rows = (steps - stage.first_step).checked_mul(stage.rows)?.checked_add(stage.first_row)?;
        rows.checked_mul(self.block_size)
    }

    /// How many steps take at most `tokens` tokens together.
    #[must_use]
    pub fn steps_within(&self, tokens: u64) -> u64 {
        let rows = tokens / self.block_size;
        let stage = &self.stages[self.stages.partition_point(|stage| stage.first_row <= rows) - 1];
        stage.first_step + (rows - stage.first_row) / stage.rows
    }

    /// The fewest steps that take at least `tokens` tokens together.
    #[must_use]
    pub fn steps_for(&self, tokens: u64) -> u64 {
        tokens.checked_sub(1).map_or(0, |last| self.steps_within(last) + 1)
    }
}

/// A batch that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ramp {
    /// Tokens of the first steps.
    pub start: usize,
    /// Tokens by which a step grows from stage to stage.
    pub increment: usize,
    /// Tokens over which it grows.
    pub tokens: u64,
}

impl BatchConfig {
    /// How the batch grows, if it does.
    #[must_use]
    pub fn ramp(&self) -> Option<Ramp> {
        let (start, tokens) = (self.ramp_start, self.ramp_tokens?);
        let increment = self.ramp_increment.unwrap_or(start).max(1);
        (start > 0).then_some(Ramp { start, increment, tokens })
    }
}

/// The lengths of a schedule in one unit: in steps where all steps are of one size, else in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Of the run.
    pub run: u64,
    /// Of the warm-up.
    pub warmup: u64,
    /// Where the decay begins.
    pub decay_start: u64,
    /// Where the rate has reached its minimum.
    pub decay_end: u64,
}

impl ScheduleConfig {
    /// Whether a length is given in tokens.
    #[must_use]
    pub fn counts_tokens(&self) -> bool {
        self.max_tokens.or(self.warmup_tokens).or(self.decay_tokens).is_some()
    }

    /// The key that says how long the run is.
    #[must_use]
    pub fn length_key(&self) -> &'static str {
        if self.max_tokens.is_some() { "schedule.max_tokens" } else { "schedule.max_steps" }
    }

    /// The key that says how long the warm-up is.
    #[must_use]
    pub fn warmup_key(&self) -> &'static str {
        if self.warmup_tokens.is_some() { "schedule.warmup_tokens" } else { "schedule.warmup_steps" }
    }

    /// The key that says how long the decay is.
    #[must_use]
    pub fn decay_key(&self) -> &'static str {
        if self.decay_tokens.is_some() { "schedule.decay_tokens" } else { "schedule.decay_steps" }
    }

    /// Optimizer steps of the run: those that `max_tokens` are enough for, where that is what is said.
    #[must_use]
    pub fn steps(&self, sizes: &StepSizes) -> u64 {
        let within = |tokens| sizes.steps_within(tokens);
        self.max_steps.or(self.max_tokens.map(within)).unwrap_or(0)
    }

    /// What the run, its warm-up and its decay take. Where all steps are of one size, lengths that are given in tokens
    /// are taken as whole steps, rounded down.
    #[must_use]
    pub fn lengths(&self, sizes: &StepSizes) -> Lengths {
        let steps = self.steps(sizes);
        let (run, warmup, decay) = if sizes.is_constant() {
            let within = |tokens| sizes.steps_within(tokens);
            let decay = self.decay_tokens.map(|tokens| within(tokens).max(1));
            (steps, self.warmup_steps.or(self.warmup_tokens.map(within)), self.decay_steps.or(decay))
        } else {
            let run = sizes.checked_tokens_before(steps).unwrap_or(u64::MAX);
            // what ends with the run's tokens ends with its last whole step
            let whole = |tokens: u64| {
                if self.max_tokens.is_some_and(|max| tokens <= max) { tokens.min(run) } else { tokens }
            };
            (run, self.warmup_tokens.map(whole), self.decay_tokens.map(whole))
        };
        let warmup = warmup.unwrap_or(0);
        let (decay_start, decay_end) = match self.kind {
            ScheduleKind::Wsd => (run.saturating_sub(decay.unwrap_or(run.div_ceil(5))).max(warmup), run),
            ScheduleKind::Constant | ScheduleKind::Cosine | ScheduleKind::Linear => {
                (warmup, decay.unwrap_or(run))
            }
        };
        Lengths { run, warmup, decay_start, decay_end }
    }
}

impl Recipe {
    /// The size of each step.
    #[must_use]
    pub fn step_sizes(&self) -> StepSizes {
        StepSizes::new(&self.batch, self.model.block_size)
    }

    /// Optimizer steps of the run.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.schedule.steps(&self.step_sizes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::MicroBatch;
    use super::*;
    use proptest::prelude::*;

    fn batch(start: usize, increment: usize, total: usize, tokens: u64) -> BatchConfig {
        BatchConfig {
            total_tokens: total,
            micro_batch: MicroBatch::Auto,
            world_size: 1,
            ramp_start: start,
            ramp_tokens: Some(tokens),
            ramp_increment: Some(increment),
        }
    }

    #[test]
    fn a_batch_that_does_not_grow_has_steps_of_one_size() {
        let sizes = StepSizes::new(&BatchConfig { ramp_tokens: None, ..batch(0, 1, 64, 1) }, 16);
        assert_eq!(sizes, StepSizes::constant(4, 16));
        assert!(sizes.is_constant());
        assert_eq!((sizes.rows(9), sizes.rows_before(9), sizes.tokens_before(9)), (4, 36, 576));
        assert_eq!([0, 63, 64, 575, 576].map(|tokens| sizes.steps_within(tokens)), [0, 0, 1, 8, 9]);
        assert_eq!(sizes.checked_tokens_before(u64::MAX), None);
    }

    #[test]
    fn a_step_may_be_larger_than_a_stage() {
        // the first step of 2 rows takes what three of four stages are for
        let sizes = StepSizes::new(&batch(2, 1, 6, 3), 1);
        let rows: Vec<u64> = (0..5).map(|step| sizes.rows(step)).collect();
        assert_eq!(rows, [2, 4, 6, 6, 6]);
    }

    proptest! {
        /// Megatron-LM's rule, a step at a time: after c tokens of S, floor(c n / S) of n increments are added.
        #[test]
        fn the_stages_are_those_of_the_rule(
            (block, start, increment, increments) in (1..9_usize, 1..9_usize, 1..9_usize, 1..30_usize),
            tokens in 1..20_000_u64,
        ) {
            let total = start + increment * increments;
            let sizes = StepSizes::new(&batch(start * block, increment * block, total * block, tokens), block);
            let mut read = 0;
            for step in 0..400 {
                let added = (u128::from(read) * increments as u128 / u128::from(tokens)).min(increments as u128);
                let rows = start as u64 + added as u64 * increment as u64;
                prop_assert_eq!(sizes.rows(step), rows, "step {}", step);
                prop_assert_eq!(sizes.tokens_before(step), read);
                prop_assert_eq!(sizes.checked_tokens_before(step), Some(read));
                prop_assert_eq!((sizes.steps_within(read), sizes.steps_for(read)), (step, step));
                prop_assert_eq!(sizes.steps_for(read + 1), step + 1);
                prop_assert_eq!(sizes.steps_within(read + sizes.tokens(step) - 1), step);
                read += rows * block as u64;
            }
        }
    }
}
