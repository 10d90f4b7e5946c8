//! What the kernels of LayerNorm get.

use crate::engine::dropout::Site;
use crate::engine::memory::Span;

/// Scale, shift and statistics of a LayerNorm over rows of C.
#[derive(Debug, Clone, Copy)]
pub struct Norm {
    /// What is to be added to each row of the input, `[C]`: biases that the residual stream
    /// [lacks](crate::engine::memory::MemoryConfig::residual_lacks_biases).
    pub lacks: Option<Span>,
    /// Scale, `[C]`.
    pub weight: Span,
    /// Shift, `[C]`.
    pub bias: Span,
    /// Mean and reciprocal standard deviation of each row, `[N, 2]`.
    pub stats: Span,
}

/// The tensors of `sum = x + drop(delta + bias)` and of LayerNorm after it.
#[derive(Debug, Clone, Copy)]
pub struct ResidualLayerNorm {
    /// The residual stream, `[N, C]`.
    pub x: Span,
    /// What is added to it, `[N, C]`.
    pub delta: Span,
    /// The bias of the layer that computed `delta`, `[C]`. Not added where the norm's input lacks biases.
    pub bias: Span,
    /// Where `delta + bias` is dropped.
    pub dropout: Option<Site>,
    /// Where the sum goes, `[N, C]`.
    pub sum: Span,
    /// The LayerNorm of the sum.
    pub norm: Norm,
    /// Its output, `[N, C]`, rounded.
    pub out: Span,
}

/// The tensors of LayerNorm's backward pass.
#[derive(Debug, Clone, Copy)]
pub struct LayerNormBackward {
    /// Gradient of the output, `[N, C]`.
    pub dout: Span,
    /// The input, `[N, C]`.
    pub x: Span,
    /// Scale, and the statistics that the forward pass kept.
    pub norm: Norm,
    /// Gradient of the input, `[N, C]`.
    pub dx: Span,
    /// Whether the gradient is added to `dx`; otherwise it overwrites it.
    pub accumulate: bool,
    /// Where `dx` goes as an operand of matrix products, rounded; where the gradient is
    /// [in halves](crate::engine::memory::MemoryConfig::halves_gradient), also the first halves of what is added to.
    pub dx_low: Option<Span>,
    /// Where the output of the layer that comes before was dropped: `dx_low` and `dx_sums` are then of `drop(dx)`.
    pub dropout: Option<Site>,
    /// Gradient of the scale, `[C]`, added to.
    pub dweight: Span,
    /// Gradient of the shift, `[C]`, added to.
    pub dbias: Span,
    /// Where the backend [sums columns](super::Backend::sums_columns): the gradient of the bias of the layer whose
    /// output's gradient `dx` is, `[C]`. The column sums of `dx` are added to it.
    pub dx_sums: Option<Span>,
    /// Where the backend [sums positions](super::Backend::sums_positions) and nothing is dropped: `dwpe[n mod cols] +=
    /// dx[n]`, for the gradient of the embeddings.
    pub dwpe: Option<Span>,
}
