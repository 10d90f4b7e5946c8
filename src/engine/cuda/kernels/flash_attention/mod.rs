//! Launches of the flash attention kernels.

mod geometry;

pub use geometry::{Flash, Geometry, LARGEST_HEAD};

use crate::engine::EngineError;
use crate::engine::cuda::device::{Address, Arg, Device, KernelConfig};
use crate::engine::cuda::stream::{Stream, int, pointer};
use crate::engine::fused::backend::AttentionShape;
use crate::engine::traffic::{F32, Traffic, Unit};
use crate::recipe::Precision;

fn launch<D: Device>(
    stream: &mut Stream<D>,
    kernel: &'static str,
    geometry: Geometry,
    pointers: &[Address],
    shape: AttentionShape,
    scale: Option<f32>,
    traffic: Traffic,
) {
    let sizes = [int(shape.cols), int(shape.n_head)];
    let args: Vec<Arg> =
        pointers.iter().copied().map(pointer).chain(sizes).chain(scale.map(Arg::Float)).collect();
    let grid = geometry.grid.map(|blocks| blocks as usize);
    stream.stating(traffic).launch_shared(kernel, grid, geometry.block, geometry.shared, &args);
}

/// What one launch moves: so many operand matrices `[rows · cols, C]` in and out, and numbers of statistics for each
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
    let (queries, pairs) = (rows * cols * n_head, rows * n_head * cols * (cols + 1) / 2);
    Traffic::by(unit)
        .reads(reads * queries * head_size, operand)
        .reads(statistics_in * queries, F32)
        .writes(writes * queries * head_size, operand)
        .writes(statistics_out * queries, F32)
        .computes(products * 2 * pairs * head_size)
}

fn launches<D: Device>(stream: &mut Stream<D>, precision: Precision, shape: AttentionShape) -> Option<Flash> {
    let config = KernelConfig { precision, head_size: shape.head_size };
    stream.run(|_| Flash::new(&config, shape).ok_or_else(|| too_wide(shape.head_size)))
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
    precision: Precision,
    [qkv, lse, out]: [Address; 3],
    shape: AttentionShape,
) {
    if let Some(flash) = launches(stream, precision, shape) {
        let traffic = traffic(stream.operand(), shape, Unit::AttentionForward, [3, 1], [0, 1], 2);
        launch(stream, "flash_forward", flash.forward, &[qkv, out, lse], shape, Some(flash.scale), traffic);
    }
}

/// The buffers of the backward pass.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Backward {
    pub(in crate::engine::cuda) qkv: Address,
    pub(in crate::engine::cuda) lse: Address,
    pub(in crate::engine::cuda) out: Address,
    pub(in crate::engine::cuda) dout: Address,
    pub(in crate::engine::cuda) dqkv: Address,
    /// Scratch: one number per row and head.
    pub(in crate::engine::cuda) delta: Address,
}

/// Computes the gradients of queries, keys and values.
pub(in crate::engine::cuda) fn backward<D: Device>(
    stream: &mut Stream<D>,
    precision: Precision,
    spans: Backward,
    shape: AttentionShape,
) {
    let Some(flash) = launches(stream, precision, shape) else { return };
    let Backward { qkv, lse, out, dout, dqkv, delta } = spans;
    let operand = stream.operand();
    let stated = traffic(operand, shape, Unit::Cores, [2, 0], [0, 1], 0);
    let stated = stated.computes(2 * shape.rows * shape.cols * shape.n_head * shape.head_size);
    launch(stream, "flash_delta", flash.delta, &[out, dout, delta], shape, None, stated);
    let (pointers, scale) = ([qkv, dout, lse, delta, dqkv], Some(flash.scale));
    let (kernel, geometry) = ("flash_backward_keys_values", flash.backward_keys_values);
    let stated = traffic(operand, shape, Unit::AttentionBackward, [4, 2], [2, 0], 4);
    launch(stream, kernel, geometry, &pointers, shape, scale, stated);
    let (kernel, geometry) = ("flash_backward_queries", flash.backward_queries);
    let stated = traffic(operand, shape, Unit::AttentionBackward, [4, 1], [2, 0], 3);
    launch(stream, kernel, geometry, &pointers, shape, scale, stated);
}
