//! Every byte of a training step, laid out before anything is allocated.
//!
//! The engines allocate exactly the buffers listed here and address them by [`Span`], so the plan's byte count *is* the
//! memory used, and a run that does not fit can be refused before it starts.

mod arena;

pub use arena::{Arena, LayerSpans, sums};

use crate::comm;
use crate::model::{Dims, ParamLayout};
use crate::recipe::{Attention, Precision};
use std::ops::Range;
use std::sync::Arc;

/// CPU: queries, and keys, of one tile of flash attention; a multiple of [`PANEL_COLS`].
pub const SCORE_TILE: usize = 128;
/// CPU: elements from one row of a tile of scores to the next; not a power of two, for the columns are read as well, and would
/// have to share a few places in the cache.
pub const SCORE_STRIDE: usize = SCORE_TILE + 16;
/// CPU: keys that a few queries meet at a time in the forward pass; a multiple of [`SCORE_TILE`].
pub const KEY_STRIP: usize = 512;
/// CPU: products per element of a result between two visits of it. A longer sum is cut at its multiples, so this is part
/// of the result.
pub const DEPTH: usize = 1024;
/// CPU: rows of a result that one task multiplies at most.
pub const TASK_ROWS: usize = 96;
/// CPU: rows of a result that are computed together.
pub const TILE_ROWS: usize = 8;
/// CPU: columns of a packed panel.
pub const PANEL_COLS: usize = 32;
/// CPU: elements of the panels that threads share at most, so many that they stay in the last-level cache.
const PANELS: usize = 1 << 20;
/// Column sums over rows are split into this many partial sums, whatever the number of threads, so that the order of
/// additions is fixed.
pub const PARTIALS: usize = 32;
/// The same on CUDA, where more of them run at a time.
pub const CUDA_PARTIALS: usize = 128;
/// What cuBLASLt gets as workspace, the size that its documentation recommends for Hopper.
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// CPU: elements of a packed matrix of `rows` x `cols`.
pub fn panel_elements(rows: usize, cols: usize) -> usize {
    rows * cols.next_multiple_of(PANEL_COLS)
}

/// How one number is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// 4 bytes: fp32, also where a lower precision is emulated by rounding; or a word of 32 bits.
    F32,
    /// 2 bytes: bf16 or fp16, as the precision says.
    Half,
}

impl Element {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Half => 2,
        }
    }
}

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
    /// The parameters as operands of matrix products: rounded to the recipe's precision, on CUDA also stored in it.
    /// Absent where the products read the parameters themselves.
    Low,
    /// Activations and scratch.
    Arena,
}

/// A run of elements inside one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The allocation.
    pub buffer: Buffer,
    /// How its elements are stored.
    pub element: Element,
    /// First element: a buffer begins at element 0 of either kind.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl Span {
    /// Bytes from the start of the buffer.
    pub fn byte_range(&self) -> Range<usize> {
        let size = self.element.bytes();
        self.start * size..(self.start + self.len) * size
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
        let (a, b) = (self.byte_range(), other.byte_range());
        self.buffer == other.buffer && a.start < b.end && b.start < a.end
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

/// What the buffers are laid out for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The CPU, with so many workers that have scratch of their own. Lower precisions are emulated in fp32.
    Cpu {
        /// Workers.
        threads: usize,
    },
    /// A CUDA device. Operands of bf16 and fp16 products are stored in 2 bytes.
    Cuda,
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
    /// Which device they are for.
    pub target: Target,
    /// Training or inference.
    pub mode: Mode,
}

impl MemoryConfig {
    /// CPU threads that compute; 1 where a CUDA device does.
    pub fn threads(&self) -> usize {
        if let Target::Cpu { threads } = self.target { threads } else { 1 }
    }

    /// How operands of matrix products are stored.
    pub fn operand(&self) -> Element {
        match (self.target, self.precision) {
            (Target::Cuda, Precision::Bf16 | Precision::Fp16) => Element::Half,
            _ => Element::F32,
        }
    }

    /// Roughly what a training step needs, in bytes, for sizes of any magnitude.
    fn about_bytes(&self) -> f64 {
        let Dims { n_layer, n_head, n_embd, block_size, padded_vocab, .. } = self.dims;
        let [l, h, c, t, v] = [n_layer, n_head, n_embd, block_size, padded_vocab].map(|size| size as f64);
        let n = self.micro_batch as f64 * t;
        let parameters = v * c + t * c + 12.0 * l * c * c;
        let naive = if self.attention == Attention::Naive { n * h * t * l } else { n * h * l };
        let workers = self.threads() as f64 * (t * t + 9.0 * t * c / h);
        4.0 * (5.0 * parameters + (10.0 * l + 8.0) * n * c + naive + workers + 64.0 * v)
    }
}

/// The part of the optimizer's state that one of several ranks keeps (Rajbhandari et al., 2020, ZeRO, stage 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Which part.
    pub index: usize,
    /// Of how many; 1 is the whole.
    pub count: usize,
}

impl Shard {
    /// All of it.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// This part of a flat buffer.
    pub fn range(&self, len: usize) -> Range<usize> {
        comm::share(len, self.index, self.count)
    }
}

/// All buffers of an engine.
#[derive(Debug, Clone)]
pub struct MemoryPlan {
    /// What it was computed from.
    pub config: MemoryConfig,
    /// The part of the moments that is kept.
    pub shard: Shard,
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
            shard: Shard::WHOLE,
            layout: Arc::new(ParamLayout::new(&config.dims)),
            arena: Arc::new(Arena::new(&config)),
        }
    }

    /// The same with a part of the moments only.
    pub fn sharded(self, shard: Shard) -> Self {
        Self { shard, ..self }
    }

    /// The elements of the flat layout whose moments are kept, and which this rank updates.
    pub fn owned(&self) -> Range<usize> {
        self.shard.range(self.layout.len)
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
            Buffer::Gradients if training => self.layout.len,
            Buffer::FirstMoment | Buffer::SecondMoment if training => self.owned().len(),
            Buffer::Gradients | Buffer::FirstMoment | Buffer::SecondMoment => 0,
            Buffer::Low => match (self.config.target, self.config.precision) {
                (_, Precision::Fp32) | (Target::Cuda, Precision::Tf32) => 0,
                (Target::Cpu { .. }, _) => self.layout.decayed,
                // biases too, for the library adds them in the precision of the product
                (Target::Cuda, _) => self.layout.len,
            },
            Buffer::Arena => self.arena.len,
        }
    }

    /// How the elements of a buffer are stored. Those of the arena differ: its length is in 4-byte words.
    pub fn element(&self, buffer: Buffer) -> Element {
        if buffer == Buffer::Low { self.config.operand() } else { Element::F32 }
    }

    /// A range of one of the parameter-shaped buffers.
    pub fn span(&self, buffer: Buffer, range: &Range<usize>) -> Span {
        Span { buffer, element: self.element(buffer), start: range.start, len: range.len() }
    }

    /// A whole parameter-shaped buffer.
    pub fn whole(&self, buffer: Buffer) -> Span {
        self.span(buffer, &(0..self.elements(buffer)))
    }

    /// Where matrix products read the matrices.
    pub fn matrices(&self) -> Buffer {
        if self.elements(Buffer::Low) > 0 { Buffer::Low } else { Buffer::Parameters }
    }

    /// Bytes of an allocation.
    pub fn buffer_bytes(&self, buffer: Buffer) -> usize {
        self.elements(buffer) * self.element(buffer).bytes()
    }

    /// Words of a batch as it goes to a CUDA device: how many distinct input tokens there are, the weight of the loss,
    /// inputs, targets, the positions ordered by input token, where each token's positions begin, and the end of the last.
    pub fn batch_words(micro_batch: usize, block_size: usize) -> usize {
        3 + 4 * micro_batch * block_size
    }

    /// What a CUDA device needs beside the buffers: the library's workspace and two batches on their way.
    pub fn device_bytes(&self) -> usize {
        match self.config.target {
            Target::Cpu { .. } => 0,
            Target::Cuda => {
                let words = Self::batch_words(self.config.micro_batch, self.config.dims.block_size);
                WORKSPACE_BYTES + 2 * words * Element::F32.bytes()
            }
        }
    }

    /// Bytes of every kind, in the order in which they are shown.
    pub fn bytes(&self) -> Vec<(&'static str, usize)> {
        let size = |buffer| self.buffer_bytes(buffer);
        let activations = self.arena.activations * Element::F32.bytes();
        vec![
            ("parameters", size(Buffer::Parameters)),
            ("gradients", size(Buffer::Gradients)),
            ("moments", size(Buffer::FirstMoment) + size(Buffer::SecondMoment)),
            ("low_precision_copy", size(Buffer::Low)),
            ("activations", activations),
            ("scratch", size(Buffer::Arena) - activations + self.device_bytes()),
        ]
    }

    /// Bytes in all.
    pub fn total_bytes(&self) -> usize {
        self.bytes().iter().map(|(_, bytes)| bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGETS: [Target; 2] = [Target::Cpu { threads: 2 }, Target::Cuda];

    fn config(mode: Mode, attention: Attention, block_size: usize, target: Target) -> MemoryConfig {
        let dims = Dims { n_layer: 3, n_head: 2, n_embd: 32, block_size, vocab_size: 100, padded_vocab: 128 };
        MemoryConfig { dims, micro_batch: 2, precision: Precision::Bf16, attention, target, mode }
    }

    #[test]
    fn arena_spans_are_aligned_and_disjoint() {
        for (target, attention) in [(TARGETS[0], Attention::Naive), (TARGETS[1], Attention::Flash)] {
            let arena = MemoryPlan::new(config(Mode::Train, attention, 23, target)).arena;
            let in_place = arena.dlogits == arena.logits;
            assert_eq!(in_place, target != Target::Cuda);
            let mut spans: Vec<Span> = arena
                .layers
                .iter()
                .flat_map(|l| [l.x, l.ln_1, l.qkv, l.softmax, l.att, l.x_mid, l.ln_2, l.fc])
                .chain([arena.x_out, arena.ln_f, arena.ln, arena.delta, arena.wide, arena.logits])
                .chain([
                    arena.losses,
                    arena.partials,
                    arena.workers,
                    arena.panels,
                    arena.scores,
                    arena.batch,
                    arena.sums,
                ])
                .chain((!in_place).then_some(arena.dlogits))
                .chain(arena.dx)
                .chain(arena.dx_low)
                .filter(|span| span.len > 0)
                .collect();
            spans.sort_by_key(|s| s.byte_range().start);
            assert!(spans.iter().all(|s| s.byte_range().start.is_multiple_of(64)));
            assert!(spans.windows(2).all(|w| !w[0].overlaps(&w[1])));
            assert!(spans.last().is_some_and(|s| s.byte_range().end <= arena.len * 4));
        }
    }

    #[test]
    fn flash_memory_is_linear_in_t_and_naive_is_not() {
        for target in TARGETS {
            let bytes = |a, t| MemoryPlan::new(config(Mode::Train, a, t, target)).arena.len as f64;
            let growth = |a| (bytes(a, 4096) - bytes(a, 2048)) / (bytes(a, 2048) - bytes(a, 1024));
            assert!((growth(Attention::Flash) - 2.0).abs() < 0.01, "{}", growth(Attention::Flash));
            assert!(growth(Attention::Naive) > 2.9, "{}", growth(Attention::Naive));
        }
    }

    #[test]
    fn inference_needs_less_than_training() {
        let total = |mode, target| {
            let plan = MemoryPlan::new(config(mode, Attention::Flash, 64, target));
            plan.total_bytes() - plan.device_bytes()
        };
        for target in TARGETS {
            assert!(total(Mode::Infer, target) * 4 < total(Mode::Train, target) * 3);
        }
    }

    #[test]
    fn cuda_stores_operands_in_two_bytes() {
        let plan = |target| MemoryPlan::new(config(Mode::Train, Attention::Flash, 256, target));
        let [cpu, cuda] = TARGETS.map(plan);
        assert_eq!(cuda.buffer_bytes(Buffer::Low), 2 * cuda.layout.len);
        assert!(cuda.arena.activations * 3 < cpu.arena.activations * 2);
        assert_eq!(cuda.matrices(), Buffer::Low);
    }
}
