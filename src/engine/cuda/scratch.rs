//! What the kernels of a CUDA device need beside activations.

use super::batch::Words;
use super::device::KernelConfig;
use super::kernels::flash_attention;
use crate::engine::fused::backend::AttentionShape;
use crate::engine::memory::{Element, MemoryConfig, Mode, Scratch};
use crate::recipe::Attention;

/// What cuBLASLt gets as workspace, the size that its documentation recommends for Hopper.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;
/// Column sums over rows are split into this many partial sums at most, so that the order of additions is fixed.
pub(super) const PARTIALS: usize = 128;
/// Bytes of the chunk of logits that exists at a time: enough to fill the device.
const LOGITS_BYTES: usize = 1 << 30;

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
    let (dims, n) = (config.dims, config.micro_batch * config.dims.block_size);
    let chunk = (LOGITS_BYTES / (dims.padded_vocab * Element::F32.bytes()) / 64 * 64).max(64).min(n);
    let scores = dims.n_head * dims.block_size * dims.block_size;
    let (workers, scores) = match (config.attention, config.mode) {
        (Attention::Naive, _) => (scores, scores),
        (Attention::Flash, Mode::Train(_)) => {
            let (rows, cols, n_head, head_size) =
                (config.micro_batch, dims.block_size, dims.n_head, dims.head_size());
            let kernels = KernelConfig { precision: config.precision, head_size };
            (flash_attention::scratch(&kernels, AttentionShape { rows, cols, n_head, head_size }), 0)
        }
        (Attention::Flash, Mode::Infer) => (0, 0),
    };
    Scratch {
        chunk,
        partials: PARTIALS,
        workers,
        scores,
        batch: Words::new(n).len(),
        sums: sums::PARTIALS + sums::PARTIAL_COUNT,
        ..Scratch::default()
    }
}

/// Bytes beside the planned buffers: the library's workspace and two batches on their way.
pub(in crate::engine) fn device_bytes(config: &MemoryConfig) -> usize {
    let words = Words::new(config.micro_batch * config.dims.block_size);
    WORKSPACE_BYTES + 2 * words.len() * Element::F32.bytes()
}
