//! The engines: what computes losses, gradients and updates.
//!
//! `fused` is the fast one, `dfdx` the readable reference. Both keep their state in the flat layout of
//! [`ParamLayout`], so trainer, checkpoints and verification do not know which one runs.

pub mod cpu;
pub mod cuda;
pub mod dfdx;
pub mod dropout;
pub mod fused;
pub mod memory;
pub mod optimizer;
pub mod pooled;
pub mod traffic;
pub mod verify;

use crate::comm::CommError;
use crate::model::ParamLayout;
use optimizer::{OptimizerState, OptimizerStep};
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

/// One of the buffers that hold an engine's training state: one number per element of the flat layout, or of those
/// [`parts`](Self::parts) of it that an optimizer's state covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The fp32 master weights.
    Parameters,
    /// Gradients accumulated since the last update, times the loss scale in force.
    Gradients,
    /// What the optimizer keeps from step to step: one of [`Engine::optimizer_states`].
    Optimizer(&'static OptimizerState),
}

impl State {
    /// The parts of the flat layout whose elements the buffer holds one after the other, in order, gaps included.
    pub fn parts(self, layout: &ParamLayout) -> Vec<Range<usize>> {
        match self {
            Self::Parameters | Self::Gradients => layout.parts(|_| true),
            Self::Optimizer(state) => layout.parts(state.covers),
        }
    }

    /// Elements of the buffer.
    pub fn len_in(self, layout: &ParamLayout) -> usize {
        self.parts(layout).iter().map(ExactSizeIterator::len).sum()
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::Optimizer(state) => state.label,
        })
    }
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
    /// The number of the first row among those of a training run, which follow each other. What dropout leaves out of a
    /// pass that trains depends on it; for other passes it means nothing.
    pub first_row: u64,
}

/// The next token of a sequence whose keys and values an engine keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next {
    /// Which sequence, from 0.
    pub sequence: usize,
    /// Tokens before this one in the sequence, fewer than `block_size`.
    pub position: usize,
    /// Its id.
    pub token: u32,
}

/// How an optimizer step ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Applied {
    /// Mean loss over the step's micro-batches, in nats per token.
    pub loss: f64,
    /// Global L2 norm of the unscaled gradients before clipping; not finite if a gradient was not, not a number if the
    /// step was discarded.
    pub grad_norm: f64,
    /// False when the norm or the loss was not finite, or the step was discarded: parameters and optimizer states are
    /// then unchanged.
    pub applied: bool,
}

/// What a forward pass says about the targets of the positions that it was asked about, in their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenLosses {
    /// The loss of each in nats.
    pub losses: Vec<f32>,
    /// Whether no token is more likely than the target, and none with a lower id is as likely; empty where it was not
    /// asked for.
    pub is_greedy: Vec<bool>,
    /// Tokens that were computed for it.
    pub computed: usize,
}

/// Whether a greedy choice from these logits takes the target: the first of the highest ones is its.
fn is_greedy(logits: &[f32], target: u32) -> bool {
    let target = target as usize;
    let (before, after) = logits.split_at(target);
    before.iter().all(|&other| other < logits[target]) && after.iter().all(|&other| other <= logits[target])
}

/// Looks on while a pass is computed: called between two kernels with the share of the pass's work that is done, from 0
/// to 1. [`Break`](ControlFlow::Break) ends the pass there.
pub type Watch<'a> = dyn Fn(f64) -> ControlFlow<()> + Sync + 'a;

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
    /// Logits that no token can be drawn from.
    #[error("the model's logits are not finite: its weights are damaged, or its training diverged")]
    NotFinite,
    /// The device or its library failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// The ranks of the run cannot go on together.
    #[error(transparent)]
    Comm(#[from] CommError),
}

/// Sum of squares in f64, in lanes whose number does not depend on the machine.
///
/// A backend measures the gradients of an update with a sum of its own, in another order: the two differ in their last
/// digits, and the gradient norm of a step that the watchdog skips is logged from this one.
fn sum_of_squares_on_host(values: &[f32]) -> f64 {
    let mut lanes = [0.0; 16];
    for chunk in values.chunks(lanes.len()) {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(value) * f64::from(value);
        }
    }
    lanes.into_iter().sum()
}

/// The index of the first value that is not finite.
fn first_not_finite(values: &[f32]) -> Option<usize> {
    // a chunk at a time, so that the look is a few vector instructions
    const CHUNK: usize = 4096;
    let finite = |chunk: &[f32]| chunk.iter().fold(true, |finite, value| finite & value.is_finite());
    let chunk = values.chunks(CHUNK).position(|chunk| !finite(chunk))?;
    values[chunk * CHUNK..].iter().position(|value| !value.is_finite()).map(|i| chunk * CHUNK + i)
}

/// [`Engine::saved_states`] with these states of the optimizer.
fn saved_states(states: &'static [OptimizerState]) -> Vec<State> {
    [State::Parameters].into_iter().chain(states.iter().map(State::Optimizer)).collect()
}

/// The place in the flat layout of an element of a buffer that holds these parts of it one after the other.
///
/// Panics if the buffer has fewer elements.
fn flat_index(parts: &[Range<usize>], mut index: usize) -> usize {
    for part in parts {
        if index < part.len() {
            return part.start + index;
        }
        index -= part.len();
    }
    panic!("the buffer has no element {index} behind its last part")
}

/// The outcome of an update was asked for before there was one.
fn no_update() -> EngineError {
    EngineError::Input("there has been no update".into())
}

/// Which of the ways to be faster, which a device or its libraries may lack, are in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FastPaths {
    /// Sequences of kernels that were recorded as CUDA graphs and are played from them.
    pub graphs: usize,
    /// What is left out, and why: one line each.
    pub notes: Vec<String>,
}

/// A GPT-2 with its gradients and optimizer state, on some device.
///
/// One optimizer step is: [`accumulate`](Engine::accumulate) for every micro-batch, then [`update`](Engine::update),
/// which also clears the gradients. Neither waits for the device; [`applied`](Engine::applied) does.
pub trait Engine {
    /// The layout of the flat buffers.
    fn layout(&self) -> &ParamLayout;

    /// What the optimizer keeps from step to step; nothing if the engine does not train.
    fn optimizer_states(&self) -> &'static [OptimizerState];

    /// The buffers that a run needs in order to go on from here, in the order in which a checkpoint has them:
    /// parameters, then the optimizer's states. Gradients are zero between two steps.
    fn saved_states(&self) -> Vec<State> {
        saved_states(self.optimizer_states())
    }

    /// Reads a whole buffer: the elements of the state's [`parts`](State::parts) of the layout, one after the other.
    /// Gaps and padded rows are zero.
    ///
    /// Where the optimizer's states are sharded, all ranks must read one together; rank 0 gets it, the others get
    /// nothing.
    fn read(&mut self, state: State) -> Result<Cow<'_, [f32]>, EngineError>;

    /// Overwrites a whole buffer, with values in the order of [`read`](Self::read). Where the optimizer's states are
    /// sharded, each rank is given all of them.
    fn write(&mut self, state: State, values: &[f32]) -> Result<(), EngineError>;

    /// Begins to bring the batch of the next [`accumulate`](Self::accumulate) to the device, where that takes time.
    fn stage(&mut self, _batch: Batch) {}

    /// Forward and backward pass: adds `weight` x the gradient of the batch's *mean* loss to the gradients.
    ///
    /// With equal micro-batches, `weight` is loss_scale / (micro-steps per step on this rank).
    fn accumulate(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError>;

    /// [`accumulate`](Self::accumulate) for the last micro-batch of a step: where there are several ranks, gradients
    /// and loss are those of all of them from then on.
    fn accumulate_last(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        self.accumulate(batch, weight)
    }

    /// [`accumulate`](Self::accumulate), or [`accumulate_last`](Self::accumulate_last) if `last`, watched where the
    /// engine can be: one whose device runs ahead of the host has nothing to show between two kernels.
    ///
    /// After a `Break` the gradients and the loss hold a part of the pass, until [`discard`](Self::discard) clears
    /// them. Where there are several ranks, none may break off: the others would wait for it.
    fn accumulate_watched(
        &mut self,
        batch: Batch,
        weight: f64,
        last: bool,
        _watch: &Watch,
    ) -> Result<ControlFlow<()>, EngineError> {
        match last {
            false => self.accumulate(batch, weight)?,
            true => self.accumulate_last(batch, weight)?,
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Mean loss over the micro-batches accumulated since the last update, unweighted, in nats per token.
    fn loss(&mut self) -> Result<f64, EngineError>;

    /// Unscales, measures and clips the gradients, applies the optimizer's rule (unless norm or loss are not finite),
    /// clears the gradients.
    ///
    /// Panics if the engine was made for another rule.
    fn update(&mut self, step: &OptimizerStep) -> Result<(), EngineError>;

    /// What the last update found and did.
    fn applied(&mut self) -> Result<Applied, EngineError>;

    /// Global L2 norm of the accumulated gradients over `loss_scale`, before an update measures it. Reads all of them,
    /// which a device has to send.
    fn grad_norm(&mut self, loss_scale: f64) -> Result<f64, EngineError> {
        Ok(sum_of_squares_on_host(&self.read(State::Gradients)?).sqrt() / loss_scale)
    }

    /// The place in the flat layout of a state's first element that is not finite, if there is one: the same on every
    /// rank, which call this together.
    fn first_not_finite(&mut self, state: State) -> Result<Option<usize>, EngineError> {
        let found = first_not_finite(&self.read(state)?);
        Ok(found.map(|index| flat_index(&state.parts(self.layout()), index)))
    }

    /// Ends a step without an update: clears the gradients and changes nothing else. [`applied`](Self::applied) then
    /// has the step's loss and no norm. Where there are several ranks, all of them call this together.
    fn discard(&mut self) -> Result<(), EngineError>;

    /// [`update`](Self::update) and [`applied`](Self::applied).
    fn finish_step(&mut self, step: &OptimizerStep) -> Result<Applied, EngineError> {
        self.update(step)?;
        self.applied()
    }

    /// Which ways to be faster are in use, once a few steps have been done; `None` for a device without choice.
    fn fast_paths(&self) -> Option<FastPaths> {
        None
    }

    /// Bytes that this process was seen to take of the device's memory; `None` where they cannot be measured.
    fn memory_taken(&self) -> Option<u64> {
        None
    }

    /// Mean loss over the batch, forward pass only.
    fn evaluate(&mut self, batch: Batch) -> Result<f64, EngineError>;

    /// [`evaluate`](Self::evaluate), watched where the engine can be; `None` after a `Break`.
    fn evaluate_watched(&mut self, batch: Batch, _watch: &Watch) -> Result<Option<f64>, EngineError> {
        self.evaluate(batch).map(Some)
    }

    /// The loss of each position of the batch in nats, `[rows, cols]`, row-major; forward pass only.
    fn token_losses(&mut self, batch: Batch) -> Result<Vec<f32>, EngineError>;

    /// The losses at some ascending positions in `0..rows * cols`, forward pass only; with `greedy`, also whether a
    /// greedy choice would take each target, which costs a look at the logits there. An engine may leave out what these
    /// positions do not depend on, and compute once what several rows begin with. The batch may have more rows than the
    /// micro-batch, while it has no more tokens than that many rows of `block_size`.
    ///
    /// # Panics
    /// Where the positions do not ascend or leave the batch.
    fn losses_at(&mut self, batch: Batch, at: &[usize], greedy: bool) -> Result<TokenLosses, EngineError>;

    /// Logits over `vocab_size` ids for the token after each of `tokens` (one sequence of at most `block_size`):
    /// `[tokens.len(), vocab_size]`, row-major, or only the last row of it if `last_only`.
    fn logits(&mut self, tokens: &[u32], last_only: bool) -> Result<Vec<f32>, EngineError>;

    /// Sequences that can be continued at once, a token at a time, because the engine keeps their keys and values; 0
    /// for an engine that keeps none.
    fn sequences(&self) -> usize {
        0
    }

    /// Begins a sequence (below [`sequences`](Self::sequences)) with these tokens, at most `block_size`, and keeps
    /// their keys and values until another pass than these two. Returns the logits after the last token,
    /// `[vocab_size]`: those of [`logits`](Self::logits).
    fn begin_sequence(&mut self, _sequence: usize, _tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        Err(EngineError::Unsupported("this engine keeps no keys and values".into()))
    }

    /// Appends a token to each of some sequences, in one pass. Returns the logits after each, `[next.len(),
    /// vocab_size]`: on the CPU, bit for bit those that [`logits`](Self::logits) computes of the whole sequence.
    fn continue_sequences(&mut self, _next: &[Next]) -> Result<Vec<f32>, EngineError> {
        Err(EngineError::Unsupported("this engine keeps no keys and values".into()))
    }
}
