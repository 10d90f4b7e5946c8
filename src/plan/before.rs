//! What another run has done of the steps of a run that branches off it.

use super::Plan;

/// What another run has done of a run's steps: nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Before {
    /// The steps that it has taken, which is the first step that the run takes itself.
    pub steps: u64,
    /// The step from which on the rows were those of the run's training data: 0 where it has read the same, its last
    /// one where it has not.
    pub data_from: u64,
}

impl Plan {
    /// The plan of a run that goes on after another one: what its own steps take, and how often it reads its data.
    #[must_use]
    pub fn after(self, before: Before) -> Self {
        let plan = Self { before, ..self };
        let flops = plan.flops_per_token as f64 * plan.own_tokens() as f64;
        Self { epochs: plan.epochs_at(plan.steps), flops, ..plan }
    }

    /// The steps that the run takes itself.
    pub fn own_steps(&self) -> u64 {
        self.steps.saturating_sub(self.before.steps)
    }

    /// The rows that the run trains on itself up to a step.
    pub fn own_rows(&self, step: u64) -> u64 {
        self.rows_between(self.before.steps, step)
    }

    fn rows_between(&self, first: u64, end: u64) -> u64 {
        self.sizes.rows_before(end).saturating_sub(self.sizes.rows_before(first))
    }

    /// The tokens that the run trains on itself.
    pub fn own_tokens(&self) -> u64 {
        self.own_rows(self.steps) * self.sizes.block_size()
    }

    /// The rows of the run's training data that its weights have seen by a step.
    pub fn rows_seen(&self, step: u64) -> u64 {
        self.rows_between(self.before.data_from, step)
    }

    /// Times that the training rows have been gone through by a step.
    pub fn epochs_at(&self, step: u64) -> f64 {
        self.rows_seen(step) as f64 / self.data.train_rows as f64
    }
}
