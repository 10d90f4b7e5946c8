//! What several ranks cost: the bytes that they send each other, and how much of the step that is.
//!
//! A sum over W ranks takes each of them two passes over the buffer, less its own part: every part is sent once on
//! the way to its sum and once on the way back (Patarasuk and Yuan, 2009, a ring that is optimal in bytes;
//! reduce-scatter and all-gather of sharded moments send the same).

use super::Plan;
use super::predict::Prediction;
use serde::Serialize;

/// Bytes that each of `ranks` sends to add up `elements` gradients in fp32: 2 (W - 1) / W times their size.
pub fn wire_bytes(elements: usize, ranks: usize) -> u64 {
    (2 * (ranks as u128 - 1) * 4 * elements as u128 / ranks as u128) as u64
}

/// A step of several ranks, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Scaling {
    /// Bytes per second at which a rank sends.
    pub bytes_per_s: f64,
    /// What the sum of the gradients takes.
    pub communication_s: f64,
    /// The part of it that nothing else hides.
    pub exposed_s: f64,
    /// The whole step.
    pub step_s: f64,
    /// Tokens per second of all ranks.
    pub tokens_per_s: f64,
    /// Speed as a fraction of that many ranks without communication.
    pub efficiency: f64,
}

impl Scaling {
    /// A step that computes for `compute_s` in `micro_steps` passes on each rank, and then, or meanwhile, sends
    /// `wire_bytes`. What is `hidden` is hidden behind the last backward pass, two thirds of a micro-step: a CUDA
    /// device adds up the gradients of a block while it computes those of the block before.
    pub fn new(
        wire_bytes: u64,
        bytes_per_s: f64,
        compute_s: f64,
        micro_steps: usize,
        hidden: bool,
        tokens: usize,
    ) -> Self {
        let communication_s = wire_bytes as f64 / bytes_per_s;
        let hidden_s = if hidden { compute_s / micro_steps as f64 * 2.0 / 3.0 } else { 0.0 };
        let exposed_s = (communication_s - hidden_s).max(0.0);
        let step_s = compute_s + exposed_s;
        Self {
            bytes_per_s,
            communication_s,
            exposed_s,
            step_s,
            tokens_per_s: tokens as f64 / step_s,
            efficiency: compute_s / step_s,
        }
    }
}

impl Plan {
    /// A step of all ranks with communication at this rate. On the CPU nothing is hidden.
    pub fn scaling(&self, prediction: &Prediction, bytes_per_s: f64) -> Scaling {
        let hidden = self.cuda.is_some();
        let (bytes, tokens) = (self.wire_bytes_per_step, self.batch.tokens_per_step);
        Scaling::new(bytes, bytes_per_s, prediction.step_s, self.batch.micro_steps, hidden, tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_on_the_wire() {
        assert_eq!(wire_bytes(1000, 1), 0);
        assert_eq!(wire_bytes(1000, 2), 4000);
        assert_eq!(wire_bytes(1000, 4), 6000);
        // towards twice the buffer
        assert_eq!(wire_bytes(1_000_000, 1000), 7_992_000);
    }
}
