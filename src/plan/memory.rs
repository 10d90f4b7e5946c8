//! Every byte of a training step, laid out before anything is allocated.
//!
//! The engines allocate exactly the buffers listed here and address them by [`Span`], so the plan's byte count *is* the
//! memory used, and a run that does not fit can be refused before it starts.

use crate::model::{Dims, ParamLayout};
use crate::recipe::{Attention, Precision};
use std::ops::Range;
use std::sync::Arc;

/// Spans of the arena start on multiples of this many elements (one cache line).
const ALIGN: usize = 16;
/// Rows of queries in one tile of flash attention.
pub const QUERY_TILE: usize = 64;
/// Rows of keys in one tile of flash attention.
pub const KEY_TILE: usize = 128;
/// Column sums over rows are split into this many partial sums, whatever the number of threads, so that the order of
/// additions is fixed.
pub const PARTIALS: usize = 32;
/// The chunk of logits that exists at a time is at most this large, unless 64 rows already exceed it.
const LOGITS_BYTES: usize = 64 << 20;

/// One allocation of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// fp32 master weights.
    Parameters,
    /// fp32 gradients.
    Gradients,
    /// AdamW's first moment.
    FirstMoment,
    /// AdamW's second moment.
    SecondMoment,
    /// The matrices rounded to the recipe's precision (absent in fp32).
    Low,
    /// Activations and scratch.
    Arena,
}

/// A run of elements inside one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The allocation.
    pub buffer: Buffer,
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl Span {
    /// A range of one of the flat parameter-shaped buffers.
    pub fn of(buffer: Buffer, range: &Range<usize>) -> Self {
        Self { buffer, start: range.start, len: range.len() }
    }

    /// The first `len` elements.
    pub fn head(self, len: usize) -> Self {
        self.part(0, len)
    }

    /// `len` elements from `start` on, both relative to this span.
    pub fn part(self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len, "part {start}+{len} of a span of {}", self.len);
        Self { start: self.start + start, len, ..self }
    }

    /// Whether two spans share an element.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.buffer == other.buffer
            && self.start < other.start + other.len
            && other.start < self.start + self.len
    }
}

/// Whether the arena serves training or only forward passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Activations of every layer are kept for the backward pass.
    Train,
    /// Layers share one set of activations; there are no gradients and no moments.
    Infer,
}

/// What the size of the buffers depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryConfig {
    /// The model.
    pub dims: Dims,
    /// Sequences per forward pass, B.
    pub micro_batch: usize,
    /// Precision of matrix-product operands.
    pub precision: Precision,
    /// Attention backend.
    pub attention: Attention,
    /// Workers with scratch of their own.
    pub threads: usize,
    /// Training or inference.
    pub mode: Mode,
}

impl MemoryConfig {
    /// Roughly what a training step needs, in bytes, for sizes of any magnitude.
    fn about_bytes(&self) -> f64 {
        let Dims { n_layer, n_head, n_embd, block_size, padded_vocab, .. } = self.dims;
        let [l, h, c, t, v] = [n_layer, n_head, n_embd, block_size, padded_vocab].map(|size| size as f64);
        let n = self.micro_batch as f64 * t;
        let parameters = v * c + t * c + 12.0 * l * c * c;
        let naive = if self.attention == Attention::Naive { n * h * t * l } else { n * h * l };
        let workers = self.threads as f64 * (t * t + 4.0 * t * c / h);
        4.0 * (5.0 * parameters + (10.0 * l + 8.0) * n * c + naive + workers + 64.0 * v)
    }
}

/// Activations of one block; N = B·T rows, C = n_embd.
#[derive(Debug, Clone, Copy)]
pub struct LayerSpans {
    /// The block's input, `[N, C]`.
    pub x: Span,
    /// Mean and reciprocal deviation of the first LayerNorm, `[N, 2]`.
    pub ln_1: Span,
    /// Queries, keys and values, `[N, 3C]`.
    pub qkv: Span,
    /// Flash: log-sum-exp of each row of scores, `[B, n_head, T]`. Naive: probabilities, `[B, n_head, T, T]`.
    pub softmax: Span,
    /// Attention's output before its projection, `[N, C]`.
    pub att: Span,
    /// The residual stream between attention and MLP, `[N, C]`.
    pub x_mid: Span,
    /// Statistics of the second LayerNorm, `[N, 2]`.
    pub ln_2: Span,
    /// The MLP's hidden layer before GELU, `[N, 4C]`.
    pub fc: Span,
}

/// The arena: what is kept between forward and backward pass, and the scratch that is used again and again.
#[derive(Debug, Clone)]
pub struct Arena {
    /// Per block.
    pub layers: Vec<LayerSpans>,
    /// The last block's output, `[N, C]`.
    pub x_out: Span,
    /// Statistics of the final LayerNorm, `[N, 2]`.
    pub ln_f: Span,
    /// A LayerNorm's output, `[N, C]`, overwritten by each.
    pub ln: Span,
    /// Forward: a projection's output. Backward: gradient of a LayerNorm's output. `[N, C]`.
    pub delta: Span,
    /// The MLP's hidden layer after GELU; in the backward pass its gradient, or those of qkv and att. `[N, 4C]`.
    pub wide: Span,
    /// Gradient of the residual stream, `[N, C]` (training).
    pub dx: Option<Span>,
    /// `dx` rounded, where it is an operand of a matrix product in low precision.
    pub dx_low: Option<Span>,
    /// One chunk of logits, `[chunk, padded_vocab]`.
    pub logits: Span,
    /// Rows of `logits`.
    pub chunk: usize,
    /// Loss of each token, `[N]`.
    pub losses: Span,
    /// Partial column sums, `[PARTIALS, 4·C]`.
    pub partials: Span,
    /// Scratch of the attention workers, `[threads, worker]`.
    pub workers: Span,
    /// Elements of scratch per worker.
    pub worker: usize,
    /// Elements in all.
    pub len: usize,
    /// Elements kept from the forward to the backward pass.
    pub activations: usize,
}

/// All buffers of an engine.
#[derive(Debug, Clone)]
pub struct MemoryPlan {
    /// What it was computed from.
    pub config: MemoryConfig,
    /// The flat parameter layout.
    pub layout: Arc<ParamLayout>,
    /// The arena.
    pub arena: Arc<Arena>,
}

impl MemoryPlan {
    /// Lays everything out.
    pub fn new(config: MemoryConfig) -> Self {
        Self {
            config,
            layout: Arc::new(ParamLayout::new(&config.dims)),
            arena: Arc::new(Arena::new(&config)),
        }
    }

    /// The same, or `None` for more than about a PiB: beyond that, sizes would not be numbers of this machine.
    pub fn checked(config: MemoryConfig) -> Option<Self> {
        (config.about_bytes() < (1u64 << 50) as f64).then(|| Self::new(config))
    }

    /// Elements of one buffer; 0 if the engine does not have it.
    pub fn elements(&self, buffer: Buffer) -> usize {
        let training = self.config.mode == Mode::Train;
        match buffer {
            Buffer::Parameters => self.layout.len,
            Buffer::Gradients | Buffer::FirstMoment | Buffer::SecondMoment if training => self.layout.len,
            Buffer::Gradients | Buffer::FirstMoment | Buffer::SecondMoment => 0,
            Buffer::Low if self.config.precision == Precision::Fp32 => 0,
            Buffer::Low => self.layout.decayed,
            Buffer::Arena => self.arena.len,
        }
    }

    /// Bytes of every kind, in the order in which they are shown.
    pub fn bytes(&self) -> Vec<(&'static str, usize)> {
        let size = |buffer| self.elements(buffer) * size_of::<f32>();
        let activations = self.arena.activations * size_of::<f32>();
        vec![
            ("parameters", size(Buffer::Parameters)),
            ("gradients", size(Buffer::Gradients)),
            ("moments", size(Buffer::FirstMoment) + size(Buffer::SecondMoment)),
            ("low_precision_copy", size(Buffer::Low)),
            ("activations", activations),
            ("scratch", size(Buffer::Arena) - activations),
        ]
    }

    /// Bytes in all.
    pub fn total_bytes(&self) -> usize {
        self.bytes().iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Arena {
    fn new(config: &MemoryConfig) -> Self {
        let Dims { n_layer, n_head, n_embd: c, block_size: t, padded_vocab: v, .. } = config.dims;
        let n = config.micro_batch * t;
        let training = config.mode == Mode::Train;
        let keeps_probabilities = config.attention == Attention::Naive && training;
        let softmax = match config.attention {
            Attention::Naive if keeps_probabilities => config.micro_batch * n_head * t * t,
            _ => config.micro_batch * n_head * t,
        };
        let mut end = 0;
        let mut take = |len: usize| {
            let span = Span { buffer: Buffer::Arena, start: end, len };
            end = (end + len).next_multiple_of(ALIGN);
            span
        };
        let mut layer = || LayerSpans {
            x: take(n * c),
            ln_1: take(2 * n),
            qkv: take(3 * n * c),
            softmax: take(softmax),
            att: take(n * c),
            x_mid: take(n * c),
            ln_2: take(2 * n),
            fc: take(4 * n * c),
        };
        let layers: Vec<_> = if training {
            (0..n_layer).map(|_| layer()).collect()
        } else {
            // Two sets in turn: a block's output is the next one's input.
            let pair = [layer(), layer()];
            (0..n_layer).map(|l| pair[l % 2]).collect()
        };
        let x_out = take(n * c);
        let ln_f = take(2 * n);
        let activations = end;
        let mut take = |len: usize| {
            let span = Span { buffer: Buffer::Arena, start: end, len };
            end = (end + len).next_multiple_of(ALIGN);
            span
        };
        let chunk = (LOGITS_BYTES / (v * size_of::<f32>()) / 64 * 64).max(64).min(n);
        let worker = worker_scratch(config).next_multiple_of(ALIGN);
        let low = config.precision != Precision::Fp32;
        Self {
            layers,
            x_out,
            ln_f,
            ln: take(n * c),
            delta: take(n * c),
            wide: take(4 * n * c),
            dx: training.then(|| take(n * c)),
            dx_low: (training && low).then(|| take(n * c)),
            logits: take(chunk * v),
            chunk,
            losses: take(n),
            partials: take(if training { PARTIALS * 4 * c } else { 0 }),
            workers: take(worker * config.threads),
            worker,
            activations,
            len: end,
        }
    }
}

/// Elements of scratch that one attention worker needs.
fn worker_scratch(config: &MemoryConfig) -> usize {
    let (t, head_size) = (config.dims.block_size, config.dims.head_size());
    let heads = match config.mode {
        // gradients of one head's queries, keys and values, and one number per row
        Mode::Train => 3 * t * head_size + t,
        // one head's output
        Mode::Infer => t * head_size,
    };
    let scores = match config.attention {
        // scores and their gradient, running maximum and sum
        Attention::Flash => 2 * QUERY_TILE * KEY_TILE + 2 * QUERY_TILE,
        Attention::Naive => t * t,
    };
    heads + scores
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(mode: Mode, attention: Attention, block_size: usize) -> MemoryConfig {
        let dims = Dims { n_layer: 3, n_head: 2, n_embd: 32, block_size, vocab_size: 100, padded_vocab: 128 };
        MemoryConfig { dims, micro_batch: 2, precision: Precision::Bf16, attention, threads: 2, mode }
    }

    #[test]
    fn arena_spans_are_aligned_and_disjoint() {
        let arena = MemoryPlan::new(config(Mode::Train, Attention::Naive, 24)).arena;
        let mut spans: Vec<Span> = arena
            .layers
            .iter()
            .flat_map(|l| [l.x, l.ln_1, l.qkv, l.softmax, l.att, l.x_mid, l.ln_2, l.fc])
            .chain([arena.x_out, arena.ln_f, arena.ln, arena.delta, arena.wide, arena.logits])
            .chain([arena.losses, arena.partials, arena.workers])
            .chain(arena.dx)
            .chain(arena.dx_low)
            .collect();
        spans.sort_by_key(|s| s.start);
        assert!(spans.iter().all(|s| s.start % ALIGN == 0));
        assert!(spans.windows(2).all(|w| w[0].start + w[0].len <= w[1].start));
        assert!(spans.last().is_some_and(|s| s.start + s.len <= arena.len));
    }

    #[test]
    fn flash_memory_is_linear_in_t_and_naive_is_not() {
        let bytes = |a, t| MemoryPlan::new(config(Mode::Train, a, t)).arena.len as f64;
        let growth = |a| (bytes(a, 4096) - bytes(a, 2048)) / (bytes(a, 2048) - bytes(a, 1024));
        assert!((growth(Attention::Flash) - 2.0).abs() < 0.01, "{}", growth(Attention::Flash));
        assert!(growth(Attention::Naive) > 3.0);
    }

    #[test]
    fn inference_needs_less_than_training() {
        let plan = |mode| MemoryPlan::new(config(mode, Attention::Flash, 64));
        assert!(plan(Mode::Infer).total_bytes() * 4 < plan(Mode::Train).total_bytes() * 3);
    }
}
