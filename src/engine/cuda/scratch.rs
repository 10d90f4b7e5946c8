//! What the kernels of a CUDA device need beside activations.

use super::batch::{PackedWords, Words};
use super::device::KernelConfig;
use super::kernels::flash_attention;
use crate::engine::fused::backend::AttentionShape;
use crate::engine::memory::{Element, MemoryConfig, Mode, Scratch};
use crate::model::ParamLayout;
use crate::recipe::Attention;

/// What cuBLASLt gets as workspace, the size that its documentation recommends for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;
/// Column sums over rows are split into this many partial sums at most, so that the order of additions is fixed.
pub(super) const PARTIALS: usize = 512;
/// Rows that have a partial sum of their own at least.
pub(super) const PARTIAL_ROWS: usize = 8;
/// Bytes of the chunk of logits that exists at a time, where memory is short: enough to fill the device.
const LOGITS_BYTES: usize = 1 << 30;
/// Rows of the chunk at most: each chunk reads and writes the gradient of the whole embedding.
const LOGITS_ROWS: usize = 1 << 14;

/// Places in the arena's `sums`, counted in numbers of 64 bits.
pub(super) mod sums {
    /// The sum of the micro-batches' mean losses.
    pub(in crate::engine::cuda) const LOSS: usize = 0;
    /// The last update: loss, sum of the squares of the gradients, whether it was applied, and the factor on gradients.
    pub(in crate::engine::cuda) const OUTCOME: usize = 1;
    /// The first of the partial sums of squares.
    pub(in crate::engine::cuda) const PARTIALS: usize = 8;
    /// How many partial sums there are.
    pub(in crate::engine::cuda) const PARTIAL_COUNT: usize = 1024;
}

/// The scratch of a configuration.
pub(in crate::engine) fn of(config: &MemoryConfig) -> Scratch {
    let (dims, n) = (config.dims, config.tokens());
    let scores = dims.n_head * dims.block_size * dims.block_size;
    let (workers, scores) = match (config.attention, config.mode) {
        (Attention::Naive, _) => (scores, scores),
        (Attention::Flash, Mode::Train(_)) => {
            let (rows, cols, n_head, head_size) =
                (config.micro_batch, dims.block_size, dims.n_head, dims.head_size());
            let kernels = KernelConfig::of(config);
            (flash_attention::scratch(&kernels, AttentionShape { rows, cols, n_head, head_size }), 0)
        }
        (Attention::Flash, Mode::Infer | Mode::Generate) => (0, 0),
    };
    Scratch {
        chunk: chunk(config),
        partials: Partials::of(&ParamLayout::new(&dims), n).floats(),
        workers,
        scores,
        batch: batch_words(n),
        sums: sums::PARTIALS + sums::PARTIAL_COUNT,
        ..Scratch::default()
    }
}

/// Words of a batch of at most `n` tokens, packed or not.
fn batch_words(n: usize) -> usize {
    Words::new(n).len().max(PackedWords::most(n))
}

/// Rows of the chunk of logits: a power of two, for products are fastest there.
fn chunk(config: &MemoryConfig) -> usize {
    let row = config.dims.padded_vocab * config.operand().bytes();
    let most = if config.keeps_outputs() { LOGITS_ROWS } else { (LOGITS_BYTES / row).max(64) };
    let rows = most.min(LOGITS_ROWS);
    (1 << rows.ilog2()).min(config.tokens())
}

/// Where the partial sums of the gradients of vectors lie: two matrices, for blocks take turns (the kernel that begins
/// the gradient of one block's vectors ends that of another's), with one row per slice and one column for each element
/// of a block's vectors. Behind them, the sums that matrix products leave as operands.
pub(super) struct Partials {
    /// Rows of each matrix at most.
    slices: usize,
    /// Columns.
    pub(super) stride: usize,
}

impl Partials {
    /// For batches of at most `n` tokens.
    pub(super) fn of(layout: &ParamLayout, n: usize) -> Self {
        let stride = layout.vectors().map(|range| range.len()).max().unwrap_or(0);
        Self { slices: n.div_ceil(PARTIAL_ROWS).min(PARTIALS), stride }
    }

    /// The first float of a block's matrix; blocks are counted from 0, the final LayerNorm follows the last one.
    pub(super) fn matrix(&self, block: usize) -> usize {
        block % 2 * self.slices * self.stride
    }

    /// The first float of the sums that matrix products leave.
    pub(super) fn sums(&self) -> usize {
        2 * self.slices * self.stride
    }

    /// All of it; the sums are no more than a row.
    fn floats(&self) -> usize {
        self.sums() + self.stride
    }
}

/// Bytes beside the planned buffers: the library's workspace and two batches on their way.
pub(in crate::engine) fn device_bytes(config: &MemoryConfig) -> usize {
    WORKSPACE_BYTES + 2 * batch_words(config.tokens()) * Element::F32.bytes()
}
