//! Launches of the LayerNorm kernels.

use super::dropout::Draws;
use super::embedding::Tokens;
use super::ready::Ready;
use super::{Gradient, PartialSums, Slices, for_residual};
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
/// Threads of a block that adds up biases.
const BIAS_THREADS: usize = 128;
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
    /// What the residual stream as it is stored lacks, `[c]`.
    pub(in crate::engine::cuda) lacks: Option<Address>,
    pub(in crate::engine::cuda) weight: Address,
    pub(in crate::engine::cuda) bias: Address,
    pub(in crate::engine::cuda) stats: Address,
    /// How the residual stream is stored, of which the normalized rows are.
    pub(in crate::engine::cuda) residual: Element,
}

/// A kernel on rows of `c`, as many to a block as [`ROWS`]. Its parameters are the pointers `before`, those of the
/// norm and `out`, the sizes, and then others.
fn over_rows<const N: usize>(
    kernel: &'static str,
    before: &[Arg],
    norm: Norm,
    out: Address,
    [rows, c]: [usize; 2],
    further: [Arg; N],
    traffic: Traffic,
) -> Ready {
    let lacks = norm.lacks.map_or(NULL, pointer);
    let own = [norm.weight, norm.bias, norm.stats, out].map(pointer);
    let sizes = [int(rows), int(c)];
    let args = before.iter().copied().chain([lacks]).chain(own).chain(sizes).chain(further).collect();
    Ready { kernel, grid: [rows.div_ceil(ROWS), 1, 1], threads: threads(c), args, traffic }
}

/// The arguments of kernels that may drop what they have of tokens in rows of `cols`.
fn dropped(draws: Draws, cols: usize) -> [Arg; 3] {
    let [words, site] = draws.args();
    [words, site, int(cols)]
}

/// What every forward kernel moves: the residual stream, scale and shift in, the output out; and 8 operations for each
/// element.
fn forward_traffic(operand: Element, norm: Norm, rows: usize, c: usize) -> Traffic {
    let n = rows * c;
    let vectors = if norm.lacks.is_some() { 3 } else { 2 };
    let read = Traffic::of_kernel().reads(n, norm.residual.bytes()).reads(vectors * c, F32);
    read.writes(n, operand.bytes()).computes(8 * n)
}

/// The kernel that computes `out [rows, c]`, of operands stored so, and the statistics from `x [rows, c]`.
pub(in crate::engine::cuda) fn forward(
    operand: Element,
    x: Address,
    norm: Norm,
    out: Address,
    rows: usize,
    c: usize,
) -> Ready {
    let kernel = for_residual(norm.residual, ["layernorm", "layernorm_low"]);
    let traffic = forward_traffic(operand, norm, rows, c).writes(2 * rows, F32);
    over_rows(kernel, &[pointer(x)], norm, out, [rows, c], [], traffic)
}

/// The kernel that computes sum = x + drop(delta + delta_bias), and then its LayerNorm; all `[rows, c]` but the bias.
/// Without a bias, the sum lacks it. Sequences have `cols` tokens.
pub(in crate::engine::cuda) fn residual(
    operand: Element,
    [x, delta, sum]: [Address; 3],
    delta_bias: Option<Address>,
    norm: Norm,
    out: Address,
    [rows, c]: [usize; 2],
    (draws, cols): (Draws, usize),
) -> Ready {
    let before = [pointer(x), pointer(delta), delta_bias.map_or(NULL, pointer), pointer(sum)];
    let kernel = for_residual(norm.residual, ["residual_layernorm", "residual_layernorm_low"]);
    let (n, stored) = (rows * c, norm.residual.bytes());
    let sum = forward_traffic(operand, norm, rows, c).reads(n, operand.bytes()).writes(n, stored);
    let sum = sum.reads(if delta_bias.is_some() { c } else { 0 }, F32);
    let traffic = draws.stated(sum.writes(2 * rows, F32), n / 4);
    over_rows(kernel, &before, norm, out, [rows, c], dropped(draws, cols), traffic)
}

/// The kernel that computes sum = wte[token] + wpe[position], and then its LayerNorm.
pub(in crate::engine::cuda) fn embedded(
    operand: Element,
    tokens: Tokens,
    [wte, wpe, sum]: [Address; 3],
    norm: Norm,
    out: Address,
    c: usize,
) -> Ready {
    let kernel = for_residual(norm.residual, ["embed_layernorm", "embed_layernorm_low"]);
    let before = [tokens.inputs, wte, wpe, sum].map(pointer);
    let (rows, vectors) = (tokens.count(), if norm.lacks.is_some() { 3 } else { 2 });
    let traffic = tokens.sums_of_embeddings(c).reads(vectors * c, F32).writes(rows * c, operand.bytes());
    let traffic = traffic.writes(2 * rows, F32).computes(8 * rows * c);
    over_rows(kernel, &before, norm, out, [rows, c], [int(tokens.cols)], traffic)
}

/// The biases `[c]` of the two projections of each block, one pair after the other in memory.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Biases {
    /// The first one.
    pub(in crate::engine::cuda) first: Address,
    /// Floats from the first to the second of a block.
    pub(in crate::engine::cuda) between: usize,
    /// Floats from a block to the next.
    pub(in crate::engine::cuda) stride: usize,
    /// Number of blocks.
    pub(in crate::engine::cuda) blocks: usize,
}

/// Computes `sums [2 * blocks + 1, c]`: zeros, and then after each bias the sum of all so far.
pub(in crate::engine::cuda) fn add_up_biases<D: Device>(
    stream: &mut Stream<D>,
    biases: Biases,
    sums: Address,
    c: usize,
) {
    let Biases { first, between, stride, blocks } = biases;
    let [between, stride, blocks_arg, c_arg] = [between, stride, blocks, c].map(int);
    let args = [pointer(first), between, stride, pointer(sums), blocks_arg, c_arg];
    let n = 2 * blocks * c;
    let traffic = Traffic::of_kernel().reads(n, F32).writes(n + c, F32).computes(n);
    let grid = [c.div_ceil(BIAS_THREADS), 1, 1];
    stream.stating(traffic).launch("add_up_biases", grid, BIAS_THREADS as u32, &args);
}

/// The kernel that computes `out [rows, c]` again, from stored statistics.
pub(in crate::engine::cuda) fn again(
    operand: Element,
    x: Address,
    norm: Norm,
    out: Address,
    rows: usize,
    c: usize,
) -> Ready {
    let kernel = for_residual(norm.residual, ["layernorm_again", "layernorm_again_low"]);
    let traffic = forward_traffic(operand, norm, rows, c).reads(2 * rows, F32);
    over_rows(kernel, &[pointer(x)], norm, out, [rows, c], [], traffic)
}

/// What the backward pass writes.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Gradients {
    pub(in crate::engine::cuda) dx: Gradient,
    pub(in crate::engine::cuda) accumulate: bool,
    pub(in crate::engine::cuda) dweight: PartialSums,
    pub(in crate::engine::cuda) dbias: PartialSums,
    /// Of the columns of `drop(dx)`.
    pub(in crate::engine::cuda) dx_sums: Option<PartialSums>,
    /// The gradient of the position embeddings `[cols, c]`, to which that of the rows is added; only for a `dx` in
    /// halves and slices of whole positions.
    pub(in crate::engine::cuda) dwpe: Option<Address>,
}

/// Whether the slices of these rows, of sequences of `cols`, hold whole positions when rows come by position.
pub(in crate::engine::cuda) fn sums_positions(rows: usize, cols: usize) -> bool {
    Slices::of(rows).rows.is_multiple_of(rows / cols)
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
    let Gradients { dx, accumulate, dweight, dbias, dx_sums, dwpe } = gradients;
    let slices = dweight.slices;
    let (n, stored, operand) = (rows * c, norm.residual.bytes(), stream.operand());
    let columns = if dx_sums.is_some() { 3 } else { 2 };
    let vectors = if norm.lacks.is_some() { 2 } else { 1 };
    // both halves together take as much as the whole
    let copied = if dx.halves { None } else { dx.low };
    let traffic = Traffic::of_kernel()
        .reads(n, operand)
        .reads(if accumulate { 2 * n } else { n }, stored)
        .reads(2 * rows + vectors * c, F32)
        .writes(n, stored)
        .writes(if copied.is_some() { n } else { 0 }, operand)
        .writes(columns * slices.count * c, F32)
        .computes(19 * n);
    let nullable = [dx.low, dx_sums.map(|sums| sums.at), norm.lacks];
    let [low, dx_sums, lacks] = nullable.map(|at| at.map_or(NULL, pointer));
    let [dout, x, weight, stats] = [dout, x, norm.weight, norm.stats].map(pointer);
    let (flag, sums) = (Arg::Int(i32::from(accumulate)), [dweight.at, dbias.at].map(pointer));
    let sizes = [rows, c, slices.rows, dweight.stride].map(int);
    let head = [dout, x, lacks, weight, stats, pointer(dx.at), flag, low];
    let mut args: Vec<Arg> =
        head.into_iter().chain(sums).chain([dx_sums]).chain(sizes).chain(dropped(draws, cols)).collect();
    let mut traffic = traffic;
    let kernel = match (dwpe, dx.halves) {
        (Some(dwpe), _) => {
            assert!(dx.halves && sums_positions(rows, cols), "slices of parts of positions");
            assert!(gradients.dx_sums.is_none(), "no bias comes before the embeddings");
            args.extend([pointer(dwpe), int(rows / cols)]);
            traffic = traffic.reads(cols * c, F32).writes(cols * c, F32).computes(n);
            "layernorm_backward_positions"
        }
        (None, true) => "layernorm_backward_halves",
        (None, false) => for_residual(norm.residual, ["layernorm_backward", "layernorm_backward_low"]),
    };
    let stream = stream.stating(draws.stated(traffic, n / 4));
    stream.launch(kernel, [slices.count, 1, 1], threads(c), &args);
}
