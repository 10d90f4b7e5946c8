//! Launches of the LayerNorm kernels.

use super::{Slices, add_partials};
use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::stream::{NULL, Stream, int, pointer};
use crate::engine::traffic::{F32, Traffic};

/// Threads of a block; each warp has a row.
const THREADS: u32 = 128;
/// Rows of a block.
const ROWS: usize = THREADS as usize / 32;
/// Warps of a block that sums columns.
const SUM_WARPS: u32 = 8;
const SUM_THREADS: u32 = SUM_WARPS * 32;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] = &[("NORM_THREADS", THREADS), ("SUM_WARPS", SUM_WARPS)];

/// Scale, shift and statistics.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Norm {
    pub(in crate::engine::cuda) weight: Address,
    pub(in crate::engine::cuda) bias: Address,
    pub(in crate::engine::cuda) stats: Address,
}

fn launch<D: Device>(
    stream: &mut Stream<D>,
    kernel: &'static str,
    pointers: &[Address],
    rows: usize,
    c: usize,
    traffic: Traffic,
) {
    let args: Vec<Arg> = pointers.iter().copied().map(pointer).chain([int(rows), int(c)]).collect();
    stream.stating(traffic).launch(kernel, [rows.div_ceil(ROWS), 1, 1], THREADS, &args);
}

/// What every forward kernel moves: scale and shift in, the output out; and 8 operations for each element.
fn forward_traffic<D: Device>(stream: &Stream<D>, rows: usize, c: usize) -> Traffic {
    Traffic::of_kernel().reads(2 * c, F32).writes(rows * c, stream.operand()).computes(8 * rows * c)
}

/// Computes `out [rows, c]` and the statistics from `x [rows, c]`.
pub(in crate::engine::cuda) fn forward<D: Device>(
    stream: &mut Stream<D>,
    x: Address,
    norm: Norm,
    out: Address,
    rows: usize,
    c: usize,
) {
    let traffic = forward_traffic(stream, rows, c).reads(rows * c, F32).writes(2 * rows, F32);
    launch(stream, "layernorm", &[x, norm.weight, norm.bias, norm.stats, out], rows, c, traffic);
}

/// Computes sum = x + delta + delta_bias, and then its LayerNorm; all `[rows, c]` but the bias.
pub(in crate::engine::cuda) fn residual<D: Device>(
    stream: &mut Stream<D>,
    [x, delta, delta_bias, sum]: [Address; 4],
    norm: Norm,
    out: Address,
    rows: usize,
    c: usize,
) {
    let pointers = [x, delta, delta_bias, sum, norm.weight, norm.bias, norm.stats, out];
    let traffic = forward_traffic(stream, rows, c).reads(2 * rows * c + c, F32).writes(rows * (c + 2), F32);
    launch(stream, "residual_layernorm", &pointers, rows, c, traffic);
}

/// Computes `out [rows, c]` again, from stored statistics.
pub(in crate::engine::cuda) fn again<D: Device>(
    stream: &mut Stream<D>,
    x: Address,
    norm: Norm,
    out: Address,
    rows: usize,
    c: usize,
) {
    let traffic = forward_traffic(stream, rows, c).reads(rows * (c + 2), F32);
    launch(stream, "layernorm_again", &[x, norm.weight, norm.bias, norm.stats, out], rows, c, traffic);
}

/// What the backward pass writes.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Gradients {
    pub(in crate::engine::cuda) dx: Address,
    pub(in crate::engine::cuda) accumulate: bool,
    pub(in crate::engine::cuda) low: Option<Address>,
    pub(in crate::engine::cuda) dweight: Address,
    pub(in crate::engine::cuda) dbias: Address,
}

pub(in crate::engine::cuda) fn backward<D: Device>(
    stream: &mut Stream<D>,
    [dout, x]: [Address; 2],
    norm: Norm,
    gradients: Gradients,
    partials: Address,
    rows: usize,
    c: usize,
) {
    let Gradients { dx, accumulate, low, dweight, dbias } = gradients;
    let (n, narrow) = (rows * c, if low.is_some() { rows * c } else { 0 });
    let low = low.map_or(NULL, pointer);
    let [dout, x, weight, stats] = [dout, x, norm.weight, norm.stats].map(pointer);
    let flag = Arg::Int(i32::from(accumulate));
    let args = [dout, x, weight, stats, pointer(dx), flag, low, int(rows), int(c)];
    let traffic = Traffic::of_kernel()
        .reads((2 + usize::from(accumulate)) * n + 2 * rows + c, F32)
        .writes(n, F32)
        .writes(narrow, stream.operand())
        .computes(14 * n);
    stream.stating(traffic).launch("layernorm_backward", [rows.div_ceil(ROWS), 1, 1], THREADS, &args);

    let slices = Slices::of(rows);
    let args = [dout, x, stats, pointer(partials), int(rows), int(c), int(slices.rows)];
    let traffic =
        Traffic::of_kernel().reads(2 * n + 2 * rows, F32).writes(slices.count * 2 * c, F32).computes(5 * n);
    let grid = [c.div_ceil(32), slices.count, 1];
    stream.stating(traffic).launch("layernorm_backward_sums", grid, SUM_THREADS, &args);
    let shift = partials.offset(c * size_of::<f32>());
    for (partials, out) in [(partials, dweight), (shift, dbias)] {
        add_partials(stream, partials, out, slices.count, 2 * c, c);
    }
}
