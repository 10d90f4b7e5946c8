//! What a device supplies to the fused engine: buffers and kernels.
//!
//! The order of calls (the choreography) is written once, in [`fused`](super). A kernel receives [`Span`]s of
//! the planned buffers. Shapes are row-major; N = rows · cols tokens, C = n_embd.

mod attention;
mod layernorm;
mod muon;

pub use attention::{AttentionBackward, AttentionShape, NextAttention};
pub use layernorm::{LayerNormBackward, Norm, ResidualLayerNorm};
pub use muon::{MuonKernels, MuonMomentum, MuonProduct, MuonUpdate};

use super::{Gather, Packed};
use crate::engine::dropout::Site;
use crate::engine::memory::Span;
use crate::engine::optimizer::OptimizerStep;
use crate::engine::optimizer::adamw::Constants;
use crate::engine::traffic::{Mark, Measured};
use crate::engine::{Batch, EngineError, FastPaths, Next};
use std::borrow::Cow;
use std::fmt::Display;

/// A weight matrix `[inputs, outputs]` and its gradient; `weight` lies in the low-precision copy where there is one.
#[derive(Debug, Clone, Copy)]
pub struct Linear {
    /// The layer's name, for time by phase.
    pub name: &'static str,
    /// `[inputs, outputs]`.
    pub weight: Span,
    /// `[outputs]`.
    pub bias: Span,
    /// Number of input features.
    pub inputs: usize,
    /// Number of output features.
    pub outputs: usize,
}

/// What follows a matrix product while its result is at hand.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
pub enum Epilogue {
    /// The [`residual_layernorm`](Backend::residual_layernorm) of these tensors follows, and adds the result and its
    /// bias to the residual stream. A backend may leave the sum instead of the result, if it then knows that it did.
    Residual(ResidualLayerNorm),
    /// Add the bias; round, for the result is an operand of attention.
    Bias,
    /// Add the bias, and write GELU of the result, rounded, to this span.
    BiasGelu(Span),
}

/// A sequence of kernels that comes again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sequence {
    /// Forward and backward pass over a batch of this shape.
    Train {
        /// Sequences.
        rows: usize,
        /// Tokens per sequence.
        cols: usize,
        /// Whether gradients are added up over all ranks meanwhile.
        last: bool,
    },
}

/// What to do with a [`Sequence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// Nothing: it is on its way.
    Done,
    /// Issue its kernels.
    Issue,
}

/// The tensors of a linear layer's weight gradient.
#[derive(Debug, Clone, Copy)]
pub struct WeightGradient {
    /// The layer's input, `[N, inputs]`.
    pub x: Span,
    /// Gradient of its output, `[N, outputs]`.
    pub dout: Span,
    /// The layer.
    pub linear: Linear,
    /// Gradient of the weight, `[inputs, outputs]`, added to.
    pub dweight: Span,
    /// Gradient of the bias, `[outputs]`, added to, unless the kernel that wrote `dout` does it.
    pub dbias: Option<Span>,
}

/// The tensors of a linear layer's input gradient.
#[derive(Debug, Clone, Copy)]
pub struct InputGradient {
    /// Gradient of the layer's output, `[N, outputs]`.
    pub dout: Span,
    /// The layer.
    pub linear: Linear,
    /// Gradient of its input, `[N, inputs]`.
    pub dx: Span,
    /// GELU's slope at the input, `[N, inputs]`, as [`Backend::gelu_again`] left it: a factor of `dx`.
    pub slope: Option<Span>,
    /// Whether `dx` is an operand of matrix products. It is then rounded, except in tf32 on CUDA: there it may be
    /// stored unrounded, and the kernel that multiplies it rounds it. Otherwise only its span says how it is stored.
    pub is_operand: bool,
    /// Where the backend [sums columns](Backend::sums_columns): the gradient of the bias of the layer whose output's
    /// gradient `dx` is, `[inputs]`. The column sums of `dx` are added to it.
    pub dx_sums: Option<Span>,
}

/// The tensors of the loss of some rows.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropy {
    /// `[rows, padded_vocab]`.
    pub logits: Span,
    /// The loss of each row.
    pub losses: Span,
    /// The first row's place among the uploaded targets.
    pub first: usize,
    /// Columns that count.
    pub vocab_size: usize,
    /// Whether the logits become their gradient.
    pub gradient: bool,
}

/// The tensors of the language-model head's backward pass.
#[derive(Debug, Clone, Copy)]
pub struct HeadBackward {
    /// Gradient of the logits, `[rows, padded_vocab]`.
    pub dlogits: Span,
    /// The head's input, `[rows, width]`.
    pub x: Span,
    /// The embedding, `[padded_vocab, width]`.
    pub wte: Span,
    /// Gradient of the input, `[rows, width]`, overwritten.
    pub dx: Span,
    /// Gradient of the embedding, `[padded_vocab, width]`, added to.
    pub dwte: Span,
    /// C.
    pub width: usize,
}

/// The tensors of AdamW for a range of the flat buffers, all of one length.
#[derive(Debug, Clone, Copy)]
pub struct AdamWTensors {
    /// Parameters.
    pub parameters: Span,
    /// Accumulated gradients.
    pub gradients: Span,
    /// First moment.
    pub exp_avg: Span,
    /// Second moment.
    pub exp_avg_sq: Span,
    /// The parameters as operands of matrix products, where they are to be written as well.
    pub low: Option<Span>,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// The sum of the micro-batches' mean losses.
    pub loss: f64,
    /// The sum of the squares of the gradients as they were accumulated, times the loss scale; 0 if they were
    /// discarded.
    pub squares: f64,
    /// Whether the parameters changed.
    pub applied: bool,
}

/// Buffers and kernels of one device. Kernels may be asynchronous: a failure surfaces at the next call that returns a
/// result.
pub trait Backend {
    /// Begins to bring the batch of the next [`upload`](Self::upload) to the device, where that takes time.
    fn stage(&mut self, _batch: &Batch) {}

    /// Makes a batch's tokens available to the kernels that need them, with the weight of each token's loss.
    fn upload(&mut self, batch: &Batch, weight: f32);

    /// Makes the next tokens of some sequences, all different, available to [`embed_next`](Self::embed_next) and
    /// [`attention_next`](Self::attention_next).
    fn upload_next(&mut self, next: &[Next]);

    /// Makes packed tokens available to [`embed_next`](Self::embed_next), [`gather`](Self::gather) and
    /// [`cross_entropy`](Self::cross_entropy).
    fn upload_packed(&mut self, packed: &Packed);

    /// What numbers of packed rows are filled up to a multiple of, where a device tunes its products for each number
    /// that it meets.
    fn row_step(&self) -> usize {
        1
    }

    /// Before a sequence of kernels that will come again with other tokens and weights: `Done` if the device has
    /// carried it out from a recording. Otherwise issue the kernels and call [`end`](Self::end).
    fn begin(&mut self, _sequence: Sequence) -> Begun {
        Begun::Issue
    }

    /// After a sequence of kernels. False if it was recorded in vain: issue it again.
    fn end(&mut self, _sequence: Sequence) -> bool {
        true
    }

    /// Which ways to be faster are in use; `None` where there is no choice.
    fn fast_paths(&self) -> Option<FastPaths> {
        None
    }

    /// Whether a kernel is done when its call returns, and no sequence of kernels is recorded: only then does it mean
    /// something to look up between two kernels, or to leave the rest of a pass out.
    fn is_immediate(&self) -> bool {
        true
    }

    /// Waits until the kernels issued so far are done.
    fn wait(&mut self) {}

    /// A moment in the order of the kernels, by the device's own clock; `None` where kernels have to be waited for.
    fn mark(&mut self) -> Option<Mark> {
        None
    }

    /// The seconds between pairs of moments, and every launch since the last call where launches are noted. Waits for
    /// all work, once, and forgets all moments.
    fn measured(&mut self, _pairs: &[(Mark, Mark)]) -> Result<Measured, EngineError> {
        Ok(Measured::default())
    }

    /// Begins a range of work with this name for a profiler, or ends the last one. Does nothing without a profiler.
    fn annotate(&mut self, _name: Option<&dyn Display>) {}

    /// Bytes of the device's memory that this process was seen to take; `None` where they cannot be measured.
    fn memory_taken(&self) -> Option<u64> {
        None
    }

    /// Copies elements to the host (or lends them), waiting for everything before.
    fn download(&mut self, span: Span) -> Result<Cow<'_, [f32]>, EngineError>;

    /// Overwrites a span from the host.
    fn write(&mut self, span: Span, values: &[f32]) -> Result<(), EngineError>;

    /// Refreshes the low-precision copy of the matrices from the parameters; nothing in fp32.
    fn refresh_low(&mut self);

    /// `out[n] = wte[token[n]] + wpe[n mod cols]`.
    fn embed(&mut self, wte: Span, wpe: Span, out: Span);

    /// [`embed`](Self::embed), and then the [`layernorm`](Self::layernorm) of what it writes.
    fn embed_layernorm(&mut self, wte: Span, wpe: Span, x: Span, norm: Norm, out: Span) {
        self.embed(wte, wpe, x);
        self.layernorm(x, norm, out);
    }

    /// `out[r] = wte[token[r]] + wpe[position[r]]` of the next tokens.
    fn embed_next(&mut self, wte: Span, wpe: Span, out: Span);

    /// `out[r] = from[number[r]]`, rows of `width`, with the numbers that the packed tokens at hand have for it.
    fn gather(&mut self, rows: Gather, from: Span, out: Span, width: usize);

    /// `dwte[token[n]] += dx[n]` and, where it is given, `dwpe[n mod cols] += dx[n]`, in a fixed order. `dx_low` as in
    /// [`LayerNormBackward`].
    fn embed_backward(&mut self, dx: Span, dx_low: Option<Span>, dwte: Span, dwpe: Option<Span>);

    /// Whether [`layernorm_backward`](Self::layernorm_backward) can add the gradient that it writes to that of the
    /// position embeddings, for the batch at hand. Otherwise [`embed_backward`](Self::embed_backward) has to.
    fn sums_positions(&self) -> bool {
        false
    }

    /// Adds up the biases `[C]` of all projections to the residual stream in their order, those of block after block:
    /// `sums[0] = 0`, `sums[k + 1] = sums[k] + biases[k]`. Called before each pass where the plan has a place for the
    /// sums, and so not where the residual stream never lacks biases.
    fn add_up_biases(&mut self, _biases: &[Span], sums: Span) {
        panic!("the plan has {sums:?} for a device whose residual stream lacks nothing");
    }

    /// Drops elements of `x [N, C]`, a residual stream or its gradient, in place: what is drawn for the rows of the
    /// uploaded batch at this site multiplies them.
    fn drop_out(&mut self, x: Span, site: Site);

    /// LayerNorm (Ba et al., 2016; eps 1e-5) of each row, rounded; statistics are kept.
    fn layernorm(&mut self, x: Span, norm: Norm, out: Span);

    /// `sum = x + drop(delta + bias)`, then LayerNorm of `sum` as in [`layernorm`](Self::layernorm). Comes after the
    /// product that computes `delta`, with [`Epilogue::Residual`].
    fn residual_layernorm(&mut self, tensors: ResidualLayerNorm);

    /// LayerNorm's output again, from its input and kept statistics.
    fn layernorm_again(&mut self, x: Span, norm: Norm, out: Span);

    /// The gradient through a LayerNorm.
    fn layernorm_backward(&mut self, tensors: LayerNormBackward);

    /// `out[n, outputs] = x[n, inputs] · weight`, then the epilogue.
    fn linear(&mut self, x: Span, linear: Linear, out: Span, epilogue: Epilogue);

    /// Whether kernels that write the gradient of a layer's output sum its columns as well, for the bias. Otherwise
    /// [`linear_backward_weight`](Self::linear_backward_weight) sums them.
    fn sums_columns(&self) -> bool {
        false
    }

    /// Completes the gradients of these vectors (biases, scales and shifts of one block, or of the final LayerNorm,
    /// which lie together), of which the kernels may have left partial sums.
    fn add_sums(&mut self, _gradients: Span) {}

    /// `dweight += xᵀ · dout`, `dbias += ` column sums of `dout` where given.
    fn linear_backward_weight(&mut self, tensors: WeightGradient);

    /// `dx = dout · weightᵀ`, times GELU's slope where given.
    fn linear_backward_input(&mut self, tensors: InputGradient);

    /// `out = gelu(fc)` rounded. Leaves in `fc` whatever the backend needs to multiply by gelu'(fc).
    fn gelu_again(&mut self, fc: Span, out: Span);

    /// Causal attention over `qkv [N, 3C]` into `out [N, C]`, rounded; `softmax` is what the backward pass needs
    /// (see [`LayerSpans`](crate::engine::memory::LayerSpans)). With a site, probabilities are dropped there.
    fn attention(
        &mut self,
        qkv: Span,
        softmax: Span,
        out: Span,
        shape: AttentionShape,
        dropout: Option<Site>,
    );

    /// Attention of the next tokens to themselves and all earlier ones of their sequences, rounded. Their keys and
    /// values are kept.
    fn attention_next(&mut self, tensors: NextAttention);

    /// Gradient of [`attention`](Self::attention), rounded.
    fn attention_backward(&mut self, tensors: AttentionBackward);

    /// `logits[n, padded_vocab] = x[n, C] · wteᵀ`.
    fn head(&mut self, x: Span, wte: Span, logits: Span, width: usize);

    /// Cross-entropy of each row against the targets from `first` on, over the first `vocab_size` columns. Where a
    /// gradient is wanted, it takes the place of the logits, times the uploaded weight, rounded, zero in the padded
    /// columns.
    fn cross_entropy(&mut self, tensors: CrossEntropy);

    /// `dx = dlogits · wte`, `dwte += dlogitsᵀ · x`.
    fn head_backward(&mut self, tensors: HeadBackward);

    /// Adds the mean of these losses to the step's sum.
    fn add_loss(&mut self, losses: Span);

    /// The step's sum of losses so far.
    fn loss(&mut self) -> Result<f64, EngineError>;

    /// Whether gradients are to be added up although there is one rank only: what does it elsewhere is then tried.
    fn reduces_alone(&self) -> bool {
        false
    }

    /// Begins to add up a range of the gradients over all ranks, where there are several. Nothing adds to it until the
    /// update. May go on beside what follows.
    fn reduce(&mut self, _gradients: Span) {}

    /// Completes what [`reduce`](Self::reduce) began, for all gradients and for the step's sum of losses. Where the
    /// plan shards the optimizer's states, a rank gets the sums of its own part of the gradients only.
    fn reduced(&mut self) {}

    /// Begins an update: measures the accumulated gradients, whichever rank has them, and decides whether the step is
    /// applied, which it is if their norm and the loss are finite. Takes the step's loss.
    fn measure(&mut self, step: &OptimizerStep);

    /// AdamW on a range of the flat buffers, if [`measure`](Self::measure) decided so; clears the range's gradients
    /// either way. Gradients are unscaled and clipped as they are read.
    fn adamw(&mut self, tensors: AdamWTensors, constants: &Constants);

    /// Muon's kernels.
    fn muon(&mut self) -> &mut dyn MuonKernels;

    /// Ends an update where the optimizer's states are sharded: brings the parameters that other ranks updated here,
    /// refreshes the low-precision copy and clears the gradients.
    fn all_gather_parameters(&mut self);

    /// Ends a step without an update: clears the gradients and takes the loss.
    fn discard(&mut self);

    /// How the last step ended, once [`measure`](Self::measure) or [`discard`](Self::discard) has.
    fn outcome(&mut self) -> Result<StepOutcome, EngineError>;
}
