//! What a run that goes on takes over from its checkpoint: choices that were made by the memory of a device.

use super::{BatchPlan, Plan};
use crate::engine::memory::Target;
use serde::{Deserialize, Serialize};

/// The choices that a run began with and on which its result depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Sequences per forward pass.
    pub micro_batch: usize,
    /// Whether a CUDA device keeps the outputs of LayerNorm and GELU for the backward pass; `None` where that was not
    /// decided, as on a CPU.
    pub keeps_outputs: Option<bool>,
}

impl Begun {
    /// The choice about outputs, if the run goes on with the micro-batch that it was made for.
    pub(super) fn keeps_outputs(self, batch: &BatchPlan) -> Option<bool> {
        self.keeps_outputs.filter(|_| self.micro_batch == batch.micro_batch)
    }
}

impl Plan {
    /// What a checkpoint of the run states, for the run to go on with.
    pub fn begun(&self) -> Begun {
        let memory = &self.memory;
        let keeps_outputs = (memory.target == Target::Cuda).then(|| memory.keeps_outputs());
        Begun { micro_batch: memory.micro_batch, keeps_outputs }
    }
}
