//! What the kernels of attention get.

use crate::engine::dropout::Site;
use crate::engine::memory::Span;

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

/// The tensors of attention of one new token per sequence; C = n_head · head_size.
#[derive(Debug, Clone, Copy)]
pub struct NextAttention {
    /// Queries, keys and values of the new tokens, `[rows, 3C]`.
    pub qkv: Span,
    /// Those of every token so far, `[sequences, T, 3C]`; keys and values of the new ones are added, queries need not
    /// be.
    pub kept: Span,
    /// The output, `[rows, C]`.
    pub out: Span,
    /// Heads.
    pub n_head: usize,
    /// Width of a head.
    pub head_size: usize,
    /// Tokens of a sequence for which there is room, T.
    pub block_size: usize,
}

/// The tensors of attention's backward pass; C = n_head · head_size.
#[derive(Debug, Clone, Copy)]
pub struct AttentionBackward {
    /// Queries, keys and values, `[N, 3C]`.
    pub qkv: Span,
    /// What the forward pass kept.
    pub softmax: Span,
    /// Its output, `[N, C]`.
    pub out: Span,
    /// Gradient of the output, `[N, C]`.
    pub dout: Span,
    /// Gradient of queries, keys and values, `[N, 3C]`, overwritten.
    pub dqkv: Span,
    /// Where the backend [sums columns](super::Backend::sums_columns): the gradient of the bias of the layer whose
    /// output's gradient `dqkv` is, `[3C]`. The column sums of `dqkv` are added to it.
    pub dqkv_sums: Option<Span>,
    /// Where probabilities were dropped.
    pub dropout: Option<Site>,
    /// Sizes.
    pub shape: AttentionShape,
}
