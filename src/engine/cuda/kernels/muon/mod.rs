//! Launches of Muon's passes over a matrix.

use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::kernels::optimizer;
use crate::engine::cuda::scratch::sums;
use crate::engine::cuda::stream::{NULL, Stream, int, long, pointer};
use crate::engine::optimizer::muon::{Constants, LEAST_NORM};
use crate::engine::traffic::{F32, F64, Traffic};
use crate::recipe::MuonPrecision;

/// Threads of a block.
const THREADS: u32 = 256;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] = &[("MUON_THREADS", THREADS)];
/// Elements that a thread processes; buffers are padded to a multiple of it.
const WIDE: usize = 4;

fn blocks(len: usize) -> [usize; 3] {
    [len.div_ceil(WIDE * THREADS as usize), 1, 1]
}

fn wide(len: usize) -> usize {
    len.next_multiple_of(WIDE)
}

fn is_bf16(precision: MuonPrecision) -> Arg {
    int(usize::from(precision == MuonPrecision::Bf16))
}

/// The running mean of `len` gradients, and what is made orthogonal: gradients, mean, result.
pub(in crate::engine::cuda) fn momentum<D: Device>(
    stream: &mut Stream<D>,
    buffers: [Address; 3],
    totals: Address,
    len: usize,
    constants: &Constants,
) {
    let rate = constants.one_minus_momentum as f32;
    let ahead = if constants.nesterov { rate } else { 0.0 };
    let [g, m, out] = buffers.map(pointer);
    let numbers = [Arg::Float(rate), Arg::Float(ahead), is_bf16(constants.ns_precision)];
    let args = [g, m, out, pointer(totals), long(len), numbers[0], numbers[1], numbers[2]];
    let traffic = Traffic::of_kernel()
        .reads(2 * wide(len), F32)
        .reads(2, F64)
        .writes(3 * wide(len), F32)
        .computes(8 * len);
    stream.stating(traffic).launch("muon_momentum", blocks(len), THREADS, &args);
}

/// Divides `len` numbers by their norm. The partial sums of squares take the place of those of the gradients.
pub(in crate::engine::cuda) fn normalize<D: Device>(
    stream: &mut Stream<D>,
    x: Address,
    totals: Address,
    len: usize,
    precision: MuonPrecision,
) {
    optimizer::squares(stream, x, len, totals);
    let partials = pointer(optimizer::partials(totals));
    let numbers = [Arg::Float(LEAST_NORM), is_bf16(precision)];
    let args = [pointer(x), partials, int(sums::PARTIAL_COUNT), long(len), numbers[0], numbers[1]];
    let grid = blocks(len);
    let traffic = Traffic::of_kernel()
        .reads(wide(len), F32)
        .reads(sums::PARTIAL_COUNT, F64)
        .writes(wide(len), F32)
        .computes(len);
    stream.stating(traffic).launch("muon_divide", grid, THREADS, &args);
}

/// `x = factors[0] · x + factors[1] · plus`, rounded, on `len` numbers.
pub(in crate::engine::cuda) fn combine<D: Device>(
    stream: &mut Stream<D>,
    x: Address,
    plus: Option<Address>,
    len: usize,
    factors: [f32; 2],
    precision: MuonPrecision,
) {
    let [factor, other] = factors.map(Arg::Float);
    let args = [pointer(x), plus.map_or(NULL, pointer), long(len), factor, other, is_bf16(precision)];
    let read = if plus.is_some() { 2 } else { 1 };
    let traffic = Traffic::of_kernel().reads(read * wide(len), F32).writes(wide(len), F32).computes(3 * len);
    stream.stating(traffic).launch("muon_combine", blocks(len), THREADS, &args);
}

/// The update of `len` parameters.
pub(in crate::engine::cuda) fn apply<D: Device>(
    stream: &mut Stream<D>,
    [parameters, update]: [Address; 2],
    low: Option<Address>,
    totals: Address,
    len: usize,
    constants: &Constants,
) {
    let [keep, step_size] = [constants.keep, constants.step_size].map(|x| Arg::Float(x as f32));
    let pointers = [pointer(parameters), pointer(update), low.map_or(NULL, pointer), pointer(totals)];
    let [p, u, low_at, totals] = pointers;
    let args = [p, u, low_at, totals, long(len), keep, step_size];
    let narrow = if low.is_some() { wide(len) } else { 0 };
    let traffic = Traffic::of_kernel()
        .reads(2 * wide(len), F32)
        .reads(1, F64)
        .writes(wide(len), F32)
        .writes(narrow, stream.operand())
        .computes(3 * len);
    stream.stating(traffic).launch("muon_apply", blocks(len), THREADS, &args);
}
