//! The fused engine: GPT-2's forward and backward pass as a fixed sequence of kernels over planned memory.
//!
//! Written once over [`Backend`], so CPU and CUDA differ in kernels only: `forward.rs` and `backward.rs` have the
//! passes, `packed.rs` those that score tokens, `generate.rs` those that continue sequences, `optimizer.rs` the update;
//! `states.rs` reads and writes what is kept. The inputs of each block's matrix products are kept from forward to
//! backward where they cannot be recomputed cheaply. LayerNorm and GELU outputs are computed again in the backward
//! pass, which on a CPU costs less than the memory traffic of keeping them; a CUDA device keeps them where its memory
//! allows it. A recipe may have more computed again, which takes less memory (`memory::Recompute`).

pub mod backend;
mod backward;
mod forward;
mod generate;
mod optimizer;
mod pace;
mod packed;
mod states;
pub mod timed;

pub use optimizer::update;
pub use packed::{Gather, Packed};

use self::backend::{Backend, Begun, Sequence};
use crate::comm::Comm;
use crate::engine::dropout::Site;
use crate::engine::memory::{Buffer, MemoryPlan};
use crate::engine::optimizer::{OptimizerState, OptimizerStep};
use crate::engine::{
    Applied, Batch, Engine, EngineError, FastPaths, Next, State, TokenLosses, Watch, no_update,
    sum_of_squares_on_host,
};
use crate::model::ParamLayout;
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Elements of a sharded state that each rank sends at a time, so that no other rank needs memory for the whole.
const PIECE: usize = 1 << 20;

/// A GPT-2 on a [`Backend`].
pub struct Fused<B> {
    plan: MemoryPlan,
    backend: B,
    /// The other ranks, which the backend knows too.
    comm: Arc<dyn Comm>,
    /// Where matrix products read the matrices: the low-precision copy, or the parameters themselves in fp32.
    matrices: Buffer,
    /// Micro-batches accumulated since the last update.
    accumulated: u32,
    /// How the last step was ended.
    ended: Option<Ended>,
    /// Elements of a sharded state that each rank sends at a time.
    piece: usize,
}

/// The end of a step.
#[derive(Clone, Copy)]
struct Ended {
    /// Micro-batches that it had.
    micro_batches: u32,
    /// Its loss scale, unless it was discarded.
    loss_scale: Option<f64>,
}

/// Which tokens a pass computes.
#[derive(Clone, Copy)]
enum Tokens {
    /// Whole sequences, whose keys and values go where those of this sequence and the following ones are kept.
    Whole {
        /// The first of them.
        sequence: usize,
    },
    /// The next one of each of some sequences.
    Next,
    /// Those of a batch that its losses at some positions depend on.
    Packed,
}

/// The shape of the batch at hand, at most the planned one.
#[derive(Clone, Copy)]
struct Shape {
    tokens: Tokens,
    rows: usize,
    cols: usize,
    /// Tokens that are computed: rows · cols, unless they are packed.
    n: usize,
    /// Width of the residual stream.
    c: usize,
    /// Whether dropout acts, as it does in passes that train.
    drops: bool,
}

impl Shape {
    /// The site if dropout acts.
    fn drops_at(self, site: Site) -> Option<Site> {
        self.drops.then_some(site)
    }
}

impl<B: Backend> Fused<B> {
    /// An engine over a backend that has allocated this plan, for one of the ranks that `comm` connects.
    ///
    /// Panics if the plan has another rank's share of the optimizer's states.
    pub fn new(plan: MemoryPlan, backend: B, comm: Arc<dyn Comm>) -> Self {
        let (shard, rank, size) = (plan.shard, comm.rank(), comm.size());
        let is_own = !plan.is_sharded() || (shard.index, shard.count) == (rank, size);
        assert!(is_own, "the plan of rank {rank} of {size} has {shard:?}");
        let matrices = plan.matrices();
        Self { plan, backend, comm, matrices, accumulated: 0, ended: None, piece: PIECE }
    }

    /// Has ranks send so many elements of a sharded state at a time, at least one; the same on all ranks.
    pub fn send_at_a_time(&mut self, elements: usize) {
        self.piece = elements;
    }

    /// The backend underneath.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The backend underneath, to change.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    fn check(&self, batch: &Batch) -> Shape {
        assert!(batch.rows <= self.plan.config.micro_batch, "batch exceeds the plan");
        self.check_tokens(batch)
    }

    /// [`check`](Self::check) of a batch that may have more rows, if they are shorter.
    fn check_tokens(&self, batch: &Batch) -> Shape {
        let Batch { rows, cols, inputs, targets, .. } = *batch;
        let config = &self.plan.config;
        assert!(cols <= config.dims.block_size, "batch exceeds the plan");
        assert!(
            rows * cols <= config.tokens(),
            "a batch of {} tokens exceeds the plan's {}",
            rows * cols,
            config.tokens()
        );
        assert!(inputs.len() == rows * cols && targets.len() == rows * cols, "batch is not rows x cols");
        let tokens = Tokens::Whole { sequence: 0 };
        Shape { tokens, rows, cols, n: rows * cols, c: config.dims.n_embd, drops: false }
    }

    /// Checks a batch and brings it to the device; `weight` is that of its mean loss.
    fn upload(&mut self, batch: &Batch, weight: f64) -> Shape {
        let shape = self.check(batch);
        self.backend.upload(batch, (weight / shape.n as f64) as f32);
        shape
    }

    fn train(&mut self, batch: &Batch, weight: f64, last: bool, watch: &Watch) -> ControlFlow<()> {
        assert!(self.plan.config.mode.is_training(), "an engine for inference cannot accumulate gradients");
        let last = last && (self.comm.size() > 1 || self.backend.reduces_alone());
        let shape = self.upload(batch, weight / self.comm.size() as f64);
        let shape = Shape { drops: self.plan.config.dropout().is_some(), ..shape };
        let sequence = Sequence::Train { rows: shape.rows, cols: shape.cols, last };
        while self.backend.begin(sequence) == Begun::Issue {
            // only a backend that records nothing is watched, so no recording is left open
            let pace = &mut self.pace(shape, true, watch);
            self.forward(shape, pace)?;
            self.head(shape, true, pace)?;
            self.backend.add_loss(self.plan.arena.losses.head(shape.n));
            self.backward(shape, last, pace)?;
            if self.backend.end(sequence) {
                break;
            }
        }
        self.accumulated += 1;
        ControlFlow::Continue(())
    }

    /// Embedding to losses, left in the arena.
    fn losses(&mut self, batch: &Batch, watch: &Watch) -> ControlFlow<(), Shape> {
        let shape = self.upload(batch, 0.0);
        let pace = &mut self.pace(shape, false, watch);
        self.forward(shape, pace)?;
        self.head(shape, false, pace)?;
        ControlFlow::Continue(shape)
    }

    fn end_step(&mut self, loss_scale: Option<f64>) {
        self.ended = Some(Ended { micro_batches: std::mem::take(&mut self.accumulated), loss_scale });
    }
}

/// Watches a pass that nothing breaks off.
fn unwatched(_done: f64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

impl<B: Backend> Engine for Fused<B> {
    fn layout(&self) -> &ParamLayout {
        &self.plan.layout
    }

    fn optimizer_states(&self) -> &'static [OptimizerState] {
        self.plan.states()
    }

    fn read(&mut self, state: State) -> Result<Cow<'_, [f32]>, EngineError> {
        self.read_state(state)
    }

    fn write(&mut self, state: State, values: &[f32]) -> Result<(), EngineError> {
        self.write_state(state, values)
    }

    fn stage(&mut self, batch: Batch) {
        self.check(&batch);
        self.backend.stage(&batch);
    }

    fn accumulate(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        let _ = self.train(&batch, weight, false, &unwatched);
        Ok(())
    }

    fn accumulate_last(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        let _ = self.train(&batch, weight, true, &unwatched);
        Ok(())
    }

    fn accumulate_watched(
        &mut self,
        batch: Batch,
        weight: f64,
        last: bool,
        watch: &Watch,
    ) -> Result<ControlFlow<()>, EngineError> {
        Ok(self.train(&batch, weight, last, watch))
    }

    fn loss(&mut self) -> Result<f64, EngineError> {
        Ok(self.backend.loss()? / (f64::from(self.accumulated) * self.comm.size() as f64))
    }

    fn grad_norm(&mut self, loss_scale: f64) -> Result<f64, EngineError> {
        let mut squares = sum_of_squares_on_host(&self.backend.download(self.gradient(&self.plan.owned()))?);
        if self.plan.is_sharded() {
            squares = self.comm.sum(squares)?;
        }
        Ok(squares.sqrt() / loss_scale)
    }

    fn first_not_finite(&mut self, state: State) -> Result<Option<usize>, EngineError> {
        self.find_not_finite(state)
    }

    fn update(&mut self, step: &OptimizerStep) -> Result<(), EngineError> {
        update(&mut self.backend, &self.plan, step);
        self.end_step(Some(step.loss_scale));
        Ok(())
    }

    fn fast_paths(&self) -> Option<FastPaths> {
        self.backend.fast_paths()
    }

    fn memory_taken(&self) -> Option<u64> {
        self.backend.memory_taken()
    }

    fn discard(&mut self) -> Result<(), EngineError> {
        self.backend.discard();
        self.end_step(None);
        Ok(())
    }

    fn applied(&mut self) -> Result<Applied, EngineError> {
        let Ended { micro_batches, loss_scale } = self.ended.ok_or_else(no_update)?;
        let outcome = self.backend.outcome()?;
        Ok(Applied {
            loss: outcome.loss / (f64::from(micro_batches) * self.comm.size() as f64),
            grad_norm: loss_scale.map_or(f64::NAN, |scale| outcome.squares.sqrt() / scale),
            applied: outcome.applied,
        })
    }

    fn evaluate(&mut self, batch: Batch) -> Result<f64, EngineError> {
        self.evaluate_watched(batch, &unwatched).map(|loss| loss.unwrap_or(f64::NAN))
    }

    fn evaluate_watched(&mut self, batch: Batch, watch: &Watch) -> Result<Option<f64>, EngineError> {
        let ControlFlow::Continue(shape) = self.losses(&batch, watch) else { return Ok(None) };
        let losses = self.backend.download(self.plan.arena.losses.head(shape.n))?;
        Ok(Some(losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / shape.n as f64))
    }

    fn token_losses(&mut self, batch: Batch) -> Result<Vec<f32>, EngineError> {
        let ControlFlow::Continue(shape) = self.losses(&batch, &unwatched) else { return Ok(Vec::new()) };
        Ok(self.backend.download(self.plan.arena.losses.head(shape.n))?.into_owned())
    }

    fn losses_at(&mut self, batch: Batch, at: &[usize], greedy: bool) -> Result<TokenLosses, EngineError> {
        self.packed_losses(&batch, at, greedy)
    }

    fn logits(&mut self, tokens: &[u32], last_only: bool) -> Result<Vec<f32>, EngineError> {
        let shape = self.upload_sequence(0, tokens)?;
        self.rows_logits(shape, if last_only { shape.n - 1 } else { 0 })
    }

    fn sequences(&self) -> usize {
        self.plan.config.sequences()
    }

    fn begin_sequence(&mut self, sequence: usize, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        assert!(sequence < self.sequences(), "sequence {sequence} of {}", self.sequences());
        let shape = self.upload_sequence(sequence, tokens)?;
        self.rows_logits(shape, shape.n - 1)
    }

    fn continue_sequences(&mut self, next: &[Next]) -> Result<Vec<f32>, EngineError> {
        let shape = self.upload_next(next)?;
        self.rows_logits(shape, 0)
    }
}
