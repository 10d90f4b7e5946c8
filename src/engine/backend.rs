//! What a device supplies to the fused engine: buffers and kernels.
//!
//! The order of calls (the choreography) is written once, in [`fused`](super::fused). A kernel receives [`Span`]s of the
//! planned buffers. Shapes are row-major; N = rows · cols tokens, C = n_embd.

use super::{Batch, EngineError, Update};
use crate::plan::memory::{Buffer, Span};
use std::borrow::Cow;

/// Sequences, tokens per sequence and heads: the shape of an attention problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Sequences.
    pub rows: usize,
    /// Tokens per sequence.
    pub cols: usize,
    /// Heads.
    pub n_head: usize,
    /// Width of a head.
    pub head_size: usize,
}

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
pub enum Epilogue {
    /// Nothing: the bias is added by whoever reads the result.
    None,
    /// Add the bias; round, for the result is an operand of attention.
    Bias,
    /// Add the bias, and write GELU of the result, rounded, to this span.
    BiasGelu(Span),
}

/// Scale, shift and statistics of a LayerNorm over rows of C.
#[derive(Debug, Clone, Copy)]
pub struct Norm {
    /// Scale, `[C]`.
    pub weight: Span,
    /// Shift, `[C]`.
    pub bias: Span,
    /// Mean and reciprocal standard deviation of each row, `[N, 2]`.
    pub stats: Span,
}

/// Buffers and kernels of one device. Kernels may be asynchronous: a failure surfaces at the next `download`.
pub trait Backend {
    /// Makes a batch's tokens available to the kernels that need them.
    fn upload(&mut self, batch: &Batch);

    /// Copies elements to the host (or lends them), waiting for everything before.
    fn download(&mut self, span: Span) -> Result<Cow<'_, [f32]>, EngineError>;

    /// Overwrites a span from the host.
    fn write(&mut self, span: Span, values: &[f32]) -> Result<(), EngineError>;

    /// Refreshes the low-precision copy of the matrices from the parameters; nothing in fp32.
    fn refresh_low(&mut self);

    /// `out[n] = wte[token[n]] + wpe[n mod cols]`.
    fn embed(&mut self, wte: Span, wpe: Span, out: Span);

    /// `dwte[token[n]] += dx[n]`, `dwpe[n mod cols] += dx[n]`, in a fixed order.
    fn embed_backward(&mut self, dx: Span, dwte: Span, dwpe: Span);

    /// LayerNorm (Ba et al., 2016; eps 1e-5) of each row, rounded; statistics are kept.
    fn layernorm(&mut self, x: Span, norm: Norm, out: Span);

    /// `sum = x + delta + bias`, then LayerNorm of `sum` as in [`layernorm`](Self::layernorm).
    fn residual_layernorm(&mut self, x: Span, delta: Span, bias: Span, sum: Span, norm: Norm, out: Span);

    /// LayerNorm's output again, from its input and kept statistics.
    fn layernorm_again(&mut self, x: Span, norm: Norm, out: Span);

    /// `dx (+)= ` gradient through a LayerNorm of `dout`; adds to `dweight` and `dbias`; writes `dx` rounded to
    /// `dx_low` where given. `accumulate` adds to `dx`, otherwise it is overwritten.
    #[expect(clippy::too_many_arguments, reason = "one argument per tensor of the formula")]
    fn layernorm_backward(
        &mut self,
        dout: Span,
        x: Span,
        norm: Norm,
        dx: Span,
        accumulate: bool,
        dx_low: Option<Span>,
        dweight: Span,
        dbias: Span,
    );

    /// `out[n, outputs] = x[n, inputs] · weight`, then the epilogue.
    fn linear(&mut self, x: Span, linear: Linear, out: Span, epilogue: Epilogue);

    /// `dweight += xᵀ · dout`, `dbias += ` column sums of `dout`.
    fn linear_backward_weight(&mut self, x: Span, dout: Span, linear: Linear, dweight: Span, dbias: Span);

    /// `dx = dout · weightᵀ`, times `factor` elementwise where given; rounded if `round`.
    fn linear_backward_input(
        &mut self,
        dout: Span,
        linear: Linear,
        dx: Span,
        factor: Option<Span>,
        round: bool,
    );

    /// `out = gelu(fc)` rounded, `fc = gelu'(fc)`.
    fn gelu_again(&mut self, fc: Span, out: Span);

    /// Causal attention over `qkv [N, 3C]` into `out [N, C]`, rounded; `softmax` is what the backward pass needs
    /// (see [`LayerSpans`](crate::plan::memory::LayerSpans)), `workers` scratch.
    fn attention(&mut self, qkv: Span, softmax: Span, out: Span, workers: Span, shape: AttentionShape);

    /// Gradient of [`attention`](Self::attention): `dqkv` is overwritten, rounded.
    #[expect(clippy::too_many_arguments, reason = "one argument per tensor of the formula")]
    fn attention_backward(
        &mut self,
        qkv: Span,
        softmax: Span,
        out: Span,
        dout: Span,
        dqkv: Span,
        workers: Span,
        shape: AttentionShape,
    );

    /// `logits[n, padded_vocab] = x[n, C] · wteᵀ`.
    fn head(&mut self, x: Span, wte: Span, logits: Span, width: usize);

    /// Cross-entropy of each row against the targets from `first` on, over the first `vocab_size` columns. With
    /// `weight`, the logits are overwritten by `weight` times their gradient, rounded, zero in the padded columns.
    fn cross_entropy(
        &mut self,
        logits: Span,
        losses: Span,
        first: usize,
        vocab_size: usize,
        weight: Option<f32>,
    );

    /// `dx = dlogits · wte`, `dwte += dlogitsᵀ · x`.
    fn head_backward(&mut self, dlogits: Span, x: Span, wte: Span, dx: Span, dwte: Span, width: usize);

    /// Sum of squares of a whole buffer.
    fn sum_of_squares(&mut self, buffer: Buffer) -> Result<f64, EngineError>;

    /// AdamW over the flat buffers, elements before `decayed` with weight decay; gradients are multiplied by `scale`
    /// first and cleared after; the low-precision copy is refreshed.
    fn adamw(&mut self, update: &Update, scale: f64, decayed: usize);

    /// Sets every gradient to zero.
    fn clear_gradients(&mut self);
}
