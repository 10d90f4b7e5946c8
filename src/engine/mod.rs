//! The engines: what computes losses, gradients and updates.
//!
//! `fused` is the fast one, `dfdx` the readable reference. Both keep their state in the flat layout of
//! [`ParamLayout`], so trainer, checkpoints and verification do not know which one runs.

pub mod backend;
pub mod cpu;
pub mod cuda;
pub mod dfdx;
pub mod fused;
pub mod pooled;
pub mod timed;
pub mod verify;

use crate::model::ParamLayout;
use std::borrow::Cow;

/// One of the flat buffers that hold an engine's training state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The fp32 master weights.
    Parameters,
    /// Gradients accumulated since the last update, times the loss scale in force.
    Gradients,
    /// AdamW's first moment.
    FirstMoment,
    /// AdamW's second moment.
    SecondMoment,
}

/// Token rows for one forward pass: `inputs` and `targets` are `[rows, cols]`, row-major.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Input token ids.
    pub inputs: &'a [u32],
    /// The id that follows each input.
    pub targets: &'a [u32],
    /// Number of sequences, at most the engine's micro-batch.
    pub rows: usize,
    /// Tokens per sequence, at most `block_size`.
    pub cols: usize,
}

/// What one optimizer update needs besides the accumulated gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// Learning rate.
    pub lr: f64,
    /// Decay rates of the moments.
    pub betas: [f64; 2],
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Maximal global norm, 0 for no clipping.
    pub clip_norm: f64,
    /// Updates applied so far, this one included: the exponent of the bias correction.
    pub t: u64,
    /// The factor by which the accumulated gradients are too large.
    pub loss_scale: f64,
}

impl Update {
    /// What gradients of this global norm are multiplied by: `clip_norm / (norm + 1e-6)` above `clip_norm`, else 1
    /// (`torch.nn.utils.clip_grad_norm_`).
    pub fn clip_factor(&self, norm: f64) -> f64 {
        if self.clip_norm > 0.0 && norm > self.clip_norm { self.clip_norm / (norm + 1e-6) } else { 1.0 }
    }
}

/// What became of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Applied {
    /// Global L2 norm of the unscaled gradients before clipping; not finite if a gradient was not.
    pub grad_norm: f64,
    /// False when the norm was not finite: parameters and moments are then unchanged.
    pub applied: bool,
}

/// A failure inside an engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The recipe asks for something that this engine or build cannot do.
    #[error("{0}")]
    Unsupported(String),
    /// Memory could not be had.
    #[error("could not allocate {bytes} bytes for {what}")]
    Allocation {
        /// What the memory was for.
        what: &'static str,
        /// How much was asked for.
        bytes: usize,
    },
    /// A batch, a prompt or a buffer that does not fit the model.
    #[error("{0}")]
    Input(String),
    /// The device or its library failed.
    #[error("the device failed: {0}")]
    Device(String),
}

/// A GPT-2 with its gradients and optimizer state, on some device.
///
/// One optimizer step is: [`accumulate`](Engine::accumulate) for every micro-batch, then
/// [`finish_step`](Engine::finish_step), which also clears the gradients.
pub trait Engine {
    /// The layout of the flat buffers.
    fn layout(&self) -> &ParamLayout;

    /// Reads a whole flat buffer (`layout().len` elements; gaps and padded rows are zero).
    fn read(&mut self, state: State) -> Result<Cow<'_, [f32]>, EngineError>;

    /// Overwrites a whole flat buffer.
    fn write(&mut self, state: State, values: &[f32]) -> Result<(), EngineError>;

    /// Forward and backward pass: adds `weight` x the gradient of the batch's *mean* loss to the gradients.
    /// Returns the mean loss over the batch, unweighted, in nats per token.
    ///
    /// With equal micro-batches, `weight` is loss_scale / (micro-steps per step).
    fn accumulate(&mut self, batch: Batch, weight: f64) -> Result<f64, EngineError>;

    /// Unscales, measures and clips the gradients, applies AdamW (unless the norm is not finite), clears the gradients.
    fn finish_step(&mut self, update: &Update) -> Result<Applied, EngineError>;

    /// Mean loss over the batch, forward pass only.
    fn evaluate(&mut self, batch: Batch) -> Result<f64, EngineError>;

    /// Logits over `vocab_size` ids for the token after each of `tokens` (one sequence of at most `block_size`):
    /// `[tokens.len(), vocab_size]`, row-major, or only the last row of it if `last_only`.
    fn logits(&mut self, tokens: &[u32], last_only: bool) -> Result<Vec<f32>, EngineError>;
}
