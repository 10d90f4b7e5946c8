//! The end of a step: gradients summed over the ranks, measured, and spent on an update or thrown away.

use super::{CpuBackend, optimizer};
use crate::comm::CommError;
use crate::engine::fused::backend::{AdamWTensors, Backend, StepOutcome};
use crate::engine::memory::{Buffer, Span};
use crate::engine::optimizer::OptimizerStep;
use crate::engine::optimizer::adamw::Constants;
use crate::engine::{EngineError, no_update};

/// What was decided about the step at hand.
#[derive(Clone, Copy)]
pub(super) enum Decision {
    /// Nothing: the ranks cannot go on.
    None,
    /// The update is applied, with the gradients times this.
    Apply(f64),
    /// The gradients are cleared only.
    Clear,
}

impl CpuBackend {
    /// The value that the ranks agreed on; `None` once they have failed, and then for ever.
    fn note<T>(&mut self, result: Result<T, CommError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.failed.get_or_insert(error);
                None
            }
        }
    }

    /// The error, if the ranks have failed.
    pub(super) fn check_ranks(&self) -> Result<(), EngineError> {
        match &self.failed {
            Some(error) => Err(error.clone().into()),
            None => Ok(()),
        }
    }

    /// Adds up gradients and loss over the ranks. A rank that updates a part only gets the sums of its part.
    pub(super) fn sum_over_ranks(&mut self) {
        let gradients = self.memory.whole(Buffer::Gradients);
        let ([], [gradients]) = self.memory.split([], [gradients]);
        let summed = match &self.owners {
            None => self.comm.all_reduce(gradients),
            Some(owners) => self.comm.reduce_scatter(gradients, owners),
        };
        let loss = summed.and_then(|()| self.comm.sum(self.loss));
        self.loss = self.note(loss).unwrap_or(f64::NAN);
    }

    pub(super) fn measure_gradients(&mut self, step: &OptimizerStep) {
        self.decision = Decision::None;
        let squares = self.squares();
        let Some(squares) = self.note(squares) else { return };
        let loss = std::mem::take(&mut self.loss);
        let norm = squares.sqrt() / step.loss_scale;
        let applied = norm.is_finite() && loss.is_finite();
        self.decision = match applied {
            true => Decision::Apply(step.clip_factor(norm) / step.loss_scale),
            false => Decision::Clear,
        };
        self.outcome = Some(StepOutcome { loss, squares, applied });
    }

    /// The sum of the squares of all gradients.
    fn squares(&mut self) -> Result<f64, CommError> {
        let gradients = self.memory.whole(Buffer::Gradients);
        let gradients = self.memory.read(gradients.slice(self.owned.start, self.owned.len()));
        let squares = optimizer::sum_of_squares(&self.team, gradients);
        if self.owners.is_some() { self.comm.sum(squares) } else { Ok(squares) }
    }

    pub(super) fn apply_adamw(&mut self, tensors: AdamWTensors, constants: &Constants) {
        let AdamWTensors { parameters, gradients, exp_avg, exp_avg_sq, low } = tensors;
        match self.decision {
            Decision::None => {}
            Decision::Clear => self.clear(gradients),
            Decision::Apply(scale) => {
                let low = low.unwrap_or(parameters.head(0));
                let ([], [p, g, m, v, low]) =
                    self.memory.split([], [parameters, gradients, exp_avg, exp_avg_sq, low]);
                let buffers = optimizer::Buffers { p, g, m, v, low };
                optimizer::adamw(&self.team, self.precision, buffers, scale, constants);
            }
        }
    }

    pub(super) fn gather_parameters(&mut self) {
        let Some(owners) = &self.owners else { return };
        match self.decision {
            Decision::None => {}
            Decision::Clear => self.clear(self.memory.whole(Buffer::Gradients)),
            Decision::Apply(_) => {
                let [p, g] = [Buffer::Parameters, Buffer::Gradients].map(|buffer| self.memory.whole(buffer));
                let ([], [p, g]) = self.memory.split([], [p, g]);
                g.fill(0.0);
                let gathered = self.comm.all_gather(p, owners);
                self.note(gathered);
                self.refresh_low();
            }
        }
    }

    pub(super) fn discard_gradients(&mut self) {
        self.clear(self.memory.whole(Buffer::Gradients));
        let loss = std::mem::take(&mut self.loss);
        self.outcome = Some(StepOutcome { loss, squares: 0.0, applied: false });
    }

    pub(super) fn step_outcome(&self) -> Result<StepOutcome, EngineError> {
        self.check_ranks()?;
        self.outcome.ok_or_else(no_update)
    }

    pub(super) fn clear(&mut self, span: Span) {
        let ([], [values]) = self.memory.split([], [span]);
        values.fill(0.0);
    }
}
