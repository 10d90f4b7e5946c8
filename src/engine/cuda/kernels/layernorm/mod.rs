//! Launches of the LayerNorm kernels.

use super::dropout::Draws;
use super::{PartialSums, for_residual};
use crate::engine::EngineError;
use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::stream::{NULL, Stream, int, pointer};
use crate::engine::memory::Element;
use crate::engine::traffic::{F32, Traffic};

/// The most threads of a block.
const MOST_THREADS: usize = 1024;
/// Columns of a thread.
const COLUMNS: usize = 4;
/// Rows that a block of the forward pass has at a time.
const ROWS: usize = 4;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] =
    &[("NORM_THREADS", MOST_THREADS as u32), ("FORWARD_ROWS", ROWS as u32)];

/// The widest rows that the kernels support.
pub(in crate::engine::cuda) const WIDEST: usize = MOST_THREADS * COLUMNS;

/// The error for a residual stream that is too wide.
pub(in crate::engine::cuda) fn too_wide(n_embd: usize) -> EngineError {
    EngineError::Unsupported(format!(
        "LayerNorm on CUDA has at most {WIDEST} columns, the model has model.n_embd = {n_embd}: choose a narrower model"
    ))
}

/// Threads of a block for rows of `c` columns, whole warps.
fn threads(c: usize) -> u32 {
    c.div_ceil(COLUMNS).next_multiple_of(32).min(MOST_THREADS) as u32
}

/// Scale, shift and statistics.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Norm {
    pub(in crate::engine::cuda) weight: Address,
    pub(in crate::engine::cuda) bias: Address,
    pub(in crate::engine::cuda) stats: Address,
    /// How the residual stream is stored, of which the normalized rows are.
    pub(in crate::engine::cuda) residual: Element,
}

fn launch<D: Device>(
    stream: &mut Stream<D>,
    kernel: &'static str,
    pointers: &[Address],
    rows: usize,
    c: usize,
    traffic: Traffic,
) {
    launch_with(stream, kernel, pointers, [rows, c], [], traffic);
}

/// [`launch`] with further arguments.
fn launch_with<D: Device, const N: usize>(
    stream: &mut Stream<D>,
    kernel: &'static str,
    pointers: &[Address],
    [rows, c]: [usize; 2],
    further: [Arg; N],
    traffic: Traffic,
) {
    let sizes = [int(rows), int(c)];
    let args: Vec<Arg> = pointers.iter().copied().map(pointer).chain(sizes).chain(further).collect();
    stream.stating(traffic).launch(kernel, [rows.div_ceil(ROWS), 1, 1], threads(c), &args);
}

/// The arguments of kernels that may drop what they have of tokens in rows of `cols`.
fn dropped(draws: Draws, cols: usize) -> [Arg; 3] {
    let [words, site] = draws.args();
    [words, site, int(cols)]
}

/// What every forward kernel moves: the residual stream, scale and shift in, the output out; and 8 operations for each
/// element.
fn forward_traffic<D: Device>(stream: &Stream<D>, norm: Norm, rows: usize, c: usize) -> Traffic {
    let n = rows * c;
    let read = Traffic::of_kernel().reads(n, norm.residual.bytes()).reads(2 * c, F32);
    read.writes(n, stream.operand()).computes(8 * n)
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
    let kernel = for_residual(norm.residual, ["layernorm", "layernorm_low"]);
    let traffic = forward_traffic(stream, norm, rows, c).writes(2 * rows, F32);
    launch(stream, kernel, &[x, norm.weight, norm.bias, norm.stats, out], rows, c, traffic);
}

/// Computes sum = x + drop(delta + delta_bias), and then its LayerNorm; all `[rows, c]` but the bias. Sequences have
/// `cols` tokens.
pub(in crate::engine::cuda) fn residual<D: Device>(
    stream: &mut Stream<D>,
    [x, delta, delta_bias, sum]: [Address; 4],
    norm: Norm,
    out: Address,
    [rows, c]: [usize; 2],
    (draws, cols): (Draws, usize),
) {
    let pointers = [x, delta, delta_bias, sum, norm.weight, norm.bias, norm.stats, out];
    let kernel = for_residual(norm.residual, ["residual_layernorm", "residual_layernorm_low"]);
    let (n, stored) = (rows * c, norm.residual.bytes());
    let sum =
        forward_traffic(stream, norm, rows, c).reads(n, stream.operand()).reads(c, F32).writes(n, stored);
    let traffic = draws.stated(sum.writes(2 * rows, F32), n / 4);
    launch_with(stream, kernel, &pointers, [rows, c], dropped(draws, cols), traffic);
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
    let kernel = for_residual(norm.residual, ["layernorm_again", "layernorm_again_low"]);
    let traffic = forward_traffic(stream, norm, rows, c).reads(2 * rows, F32);
    launch(stream, kernel, &[x, norm.weight, norm.bias, norm.stats, out], rows, c, traffic);
}

/// What the backward pass writes.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Gradients {
    pub(in crate::engine::cuda) dx: Address,
    pub(in crate::engine::cuda) accumulate: bool,
    pub(in crate::engine::cuda) low: Option<Address>,
    pub(in crate::engine::cuda) dweight: PartialSums,
    pub(in crate::engine::cuda) dbias: PartialSums,
    /// Of the columns of `drop(dx)`.
    pub(in crate::engine::cuda) dx_sums: Option<PartialSums>,
}

/// Computes the gradient of the input, and partial sums of those of scale and shift.
pub(in crate::engine::cuda) fn backward<D: Device>(
    stream: &mut Stream<D>,
    [dout, x]: [Address; 2],
    norm: Norm,
    gradients: Gradients,
    [rows, c]: [usize; 2],
    (draws, cols): (Draws, usize),
) {
    let Gradients { dx, accumulate, low, dweight, dbias, dx_sums } = gradients;
    let slices = dweight.slices;
    let (n, stored, operand) = (rows * c, norm.residual.bytes(), stream.operand());
    let columns = if dx_sums.is_some() { 3 } else { 2 };
    let traffic = Traffic::of_kernel()
        .reads(n, operand)
        .reads(if accumulate { 2 * n } else { n }, stored)
        .reads(2 * rows + c, F32)
        .writes(n, stored)
        .writes(if low.is_some() { n } else { 0 }, operand)
        .writes(columns * slices.count * c, F32)
        .computes(19 * n);
    let [low, dx_sums] = [low, dx_sums.map(|sums| sums.at)].map(|at| at.map_or(NULL, pointer));
    let [dout, x, weight, stats] = [dout, x, norm.weight, norm.stats].map(pointer);
    let (flag, sums) = (Arg::Int(i32::from(accumulate)), [dweight.at, dbias.at].map(pointer));
    let sizes = [rows, c, slices.rows, dweight.stride].map(int);
    let head = [dout, x, weight, stats, pointer(dx), flag, low];
    let args: Vec<Arg> =
        head.into_iter().chain(sums).chain([dx_sums]).chain(sizes).chain(dropped(draws, cols)).collect();
    let kernel = for_residual(norm.residual, ["layernorm_backward", "layernorm_backward_low"]);
    let stream = stream.stating(draws.stated(traffic, n / 4));
    stream.launch(kernel, [slices.count, 1, 1], threads(c), &args);
}
