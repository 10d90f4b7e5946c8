//! Launches of the flash attention kernels.

mod geometry;

pub use geometry::{Flash, Geometry, LARGEST_HEAD};

use crate::engine::EngineError;
use crate::engine::cuda::device::{Address, Arg, Device, KernelConfig};
use crate::engine::cuda::stream::{Stream, int, pointer};
use crate::engine::fused::backend::AttentionShape;
use crate::recipe::Precision;

fn launch<D: Device>(
    stream: &mut Stream<D>,
    kernel: &'static str,
    geometry: Geometry,
    pointers: &[Address],
    shape: AttentionShape,
    scale: Option<f32>,
) {
    let sizes = [int(shape.cols), int(shape.n_head)];
    let args: Vec<Arg> =
        pointers.iter().copied().map(pointer).chain(sizes).chain(scale.map(Arg::Float)).collect();
    let grid = geometry.grid.map(|blocks| blocks as usize);
    stream.launch_shared(kernel, grid, geometry.block, geometry.shared, &args);
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
        launch(stream, "flash_forward", flash.forward, &[qkv, out, lse], shape, Some(flash.scale));
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
    launch(stream, "flash_delta", flash.delta, &[out, dout, delta], shape, None);
    let (pointers, scale) = ([qkv, dout, lse, delta, dqkv], Some(flash.scale));
    launch(stream, "flash_backward_keys_values", flash.backward_keys_values, &pointers, shape, scale);
    launch(stream, "flash_backward_queries", flash.backward_queries, &pointers, shape, scale);
}
