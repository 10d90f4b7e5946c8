//! Launches of the flash attention kernels, and the scratch of their backward pass.

mod geometry;

pub use geometry::{Flash, Geometry, LARGEST_HEAD, defines};

use super::dropout::Draws;
use super::{PartialSums, Slices};
use crate::engine::EngineError;
use crate::engine::cuda::device::{Address, Arg, Device, KernelConfig};
use crate::engine::cuda::stream::{Stream, int, pointer};
use crate::engine::fused::backend::AttentionShape;
use crate::engine::traffic::{F32, Traffic, Unit};

fn launch<D: Device>(
    stream: &mut Stream<D>,
    kernel: &'static str,
    geometry: Geometry,
    pointers: &[Address],
    sizes: &[usize],
    further: impl IntoIterator<Item = Arg>,
    traffic: Traffic,
) {
    let sizes = sizes.iter().map(|&size| int(size));
    let args: Vec<Arg> = pointers.iter().copied().map(pointer).chain(sizes).chain(further).collect();
    let grid = geometry.grid.map(|blocks| blocks as usize);
    stream.stating(traffic).launch_shared(kernel, grid, geometry.block, geometry.shared, &args);
}

/// Pairs of a query and a key that it sees.
fn pairs(shape: AttentionShape) -> usize {
    shape.rows * shape.n_head * shape.cols * (shape.cols + 1) / 2
}

/// What one launch moves and computes, but for dropout's draws, which ordinary cores make beside the products. It
/// reads and writes so many matrices `[rows · cols, C]` of `operand` bytes an element, and so many statistics of each
/// query and head. Tiles that blocks fetch again come from the cache of the device, which holds the keys and values of
/// the heads in flight. It multiplies `products` pairs of matrices, of which causal attention needs half and the
/// diagonal.
fn traffic(
    operand: usize,
    shape: AttentionShape,
    unit: Unit,
    [reads, writes]: [usize; 2],
    [statistics_in, statistics_out]: [usize; 2],
    products: usize,
) -> Traffic {
    let AttentionShape { rows, cols, n_head, head_size } = shape;
    let (queries, pairs) = (rows * cols * n_head, pairs(shape));
    Traffic::by(unit)
        .reads(reads * queries * head_size, operand)
        .reads(statistics_in * queries, F32)
        .writes(writes * queries * head_size, operand)
        .writes(statistics_out * queries, F32)
        .computes(products * 2 * pairs * head_size)
}

fn launches<D: Device>(
    stream: &mut Stream<D>,
    config: &KernelConfig,
    shape: AttentionShape,
) -> Option<Flash> {
    stream.run(|_| Flash::new(config, shape).ok_or_else(|| too_wide(shape.head_size)))
}

/// The error for a head size that flash attention does not support.
pub(in crate::engine::cuda) fn too_wide(head_size: usize) -> EngineError {
    EngineError::Unsupported(format!(
        "flash attention on CUDA has heads of at most {LARGEST_HEAD}, the model's have {head_size}: use more heads \
         (model.n_head) or compute.attention = \"naive\""
    ))
}

/// Computes the output from queries, keys and values, and keeps the log-sum-exp of the scores.
pub(in crate::engine::cuda) fn forward<D: Device>(
    stream: &mut Stream<D>,
    config: &KernelConfig,
    [qkv, lse, out]: [Address; 3],
    shape: AttentionShape,
    draws: Draws,
) {
    if let Some(flash) = launches(stream, config, shape) {
        let sizes = [shape.cols, shape.n_head];
        let traffic = traffic(stream.operand(), shape, Unit::AttentionForward, [3, 1], [0, 1], 2);
        let traffic = draws.stated(traffic, 0);
        let pointers = [qkv, out, lse];
        let further = [Arg::Float(flash.scale)].into_iter().chain(draws.args());
        launch(stream, "flash_forward", flash.forward, &pointers, &sizes, further, traffic);
    }
}

/// Elements (fp32) of the scratch that the backward pass needs for this shape and for all smaller ones.
pub(in crate::engine::cuda) fn scratch(config: &KernelConfig, shape: AttentionShape) -> usize {
    geometry::most_scratch(config, shape)
}

/// The buffers of the backward pass.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Backward {
    pub(in crate::engine::cuda) qkv: Address,
    pub(in crate::engine::cuda) lse: Address,
    pub(in crate::engine::cuda) out: Address,
    pub(in crate::engine::cuda) dout: Address,
    pub(in crate::engine::cuda) dqkv: Address,
    /// As many elements as [`scratch`] says.
    pub(in crate::engine::cuda) scratch: Address,
}

/// Computes the gradients of queries, keys and values. Returns where the partial sums of the columns of all three are,
/// `[3C]`: in the scratch.
pub(in crate::engine::cuda) fn backward<D: Device>(
    stream: &mut Stream<D>,
    config: &KernelConfig,
    spans: Backward,
    shape: AttentionShape,
    draws: Draws,
) -> Option<PartialSums> {
    let flash = launches(stream, config, shape)?;
    let Backward { qkv, lse, out, dout, dqkv, scratch: sums } = spans;
    // sums come first, for they are read 16 bytes at a time
    let delta = sums.offset(flash.sums * F32);
    let columns = delta.offset(flash.delta * F32);
    let sizes = [shape.cols, shape.n_head, flash.parts];
    let (scale, operand) = (Arg::Float(flash.scale), stream.operand());
    let pointers = [qkv, out, dout, lse, dqkv, sums, delta, columns];
    // each sum is read from the cache where its block has just left it
    let written = if flash.parts > 1 { 2 } else { 3 };
    let stated = traffic(operand, shape, Unit::AttentionBackward, [5, written], [1, 0], 5);
    let stated = stated.writes(flash.kept + flash.deltas_kept + flash.columns, F32);
    let stated = stated.computes(2 * shape.rows * shape.cols * shape.n_head * shape.head_size);
    let stated = draws.stated(stated, 0);
    let further = [scale].into_iter().chain(draws.args());
    launch(stream, "flash_backward", flash.backward, &pointers, &sizes[..2], further, stated);
    if flash.parts > 1 {
        let stated = traffic(operand, shape, Unit::Cores, [0, 1], [0, 0], 0).reads(flash.kept, F32);
        let stated = stated.computes(flash.kept);
        launch(stream, "flash_backward_sum", flash.backward_sum, &[sums, dqkv], &sizes, [scale], stated);
    }
    let slices = Slices { rows: shape.cols, count: shape.rows * flash.parts };
    Some(PartialSums { at: columns, stride: 3 * shape.n_head * shape.head_size, slices })
}
