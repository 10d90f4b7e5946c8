//! Launches of the kernels for the gradient norm, the decision to update, and AdamW.

use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::scratch::sums;
use crate::engine::cuda::stream::{NULL, Stream, int, long, pointer};
use crate::engine::optimizer::OptimizerStep;
use crate::engine::optimizer::adamw::Constants;
use crate::engine::traffic::{F32, F64, Traffic};

/// Threads of a block.
const THREADS: u32 = 256;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] = &[
    ("SQUARE_THREADS", THREADS),
    ("DECIDE_THREADS", THREADS),
    ("ROUND_THREADS", THREADS),
    ("ADAMW_THREADS", THREADS),
];
/// Elements that a thread processes at a time.
const WIDE: usize = 4;

/// What AdamW works on, each of `len` elements.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct AdamWBuffers {
    /// Parameters, gradients, first and second moment.
    pub(in crate::engine::cuda) flat: [Address; 4],
    /// Where the parameters go as operands.
    pub(in crate::engine::cuda) low: Option<Address>,
    /// Number of elements.
    pub(in crate::engine::cuda) len: usize,
}

fn blocks(len: usize) -> [usize; 3] {
    [len.div_ceil(WIDE * THREADS as usize), 1, 1]
}

/// The elements that threads which take [`WIDE`] at a time work on; buffers are padded to that.
fn wide(len: usize) -> usize {
    len.next_multiple_of(WIDE)
}

/// The address of the partial sums of squares.
pub(in crate::engine::cuda) fn partials(totals: Address) -> Address {
    totals.offset(sums::PARTIALS * size_of::<f64>())
}

/// Computes partial sums of squares. Each is of a block's share; there are no more blocks than have something to do,
/// and the partial sums that are left are zero.
pub(in crate::engine::cuda) fn squares<D: Device>(
    stream: &mut Stream<D>,
    x: Address,
    len: usize,
    totals: Address,
) {
    let args = [pointer(x), pointer(partials(totals)), int(sums::PARTIAL_COUNT), long(len)];
    let [most, ..] = blocks(len);
    let grid = [most.clamp(1, sums::PARTIAL_COUNT), 1, 1];
    let traffic =
        Traffic::of_kernel().reads(wide(len), F32).writes(sums::PARTIAL_COUNT, F64).computes(2 * len);
    stream.stating(traffic).launch("sum_of_squares", grid, THREADS, &args);
}

/// Computes the norm from the partial sums, and decides whether to update; see `decide_update` in `step.cu`.
pub(in crate::engine::cuda) fn decide<D: Device>(
    stream: &mut Stream<D>,
    totals: Address,
    step: &OptimizerStep,
) {
    let partials = pointer(partials(totals));
    let numbers = [step.loss_scale, step.clip_norm].map(Arg::Double);
    let args = [partials, int(sums::PARTIAL_COUNT), pointer(totals), numbers[0], numbers[1]];
    let traffic = Traffic::of_kernel().reads(sums::PARTIAL_COUNT + 1, F64).writes(5, F64);
    stream.stating(traffic.computes(sums::PARTIAL_COUNT)).launch("decide_update", [1, 1, 1], THREADS, &args);
}

/// Ends a step without an update; see `discard_update` in `step.cu`.
pub(in crate::engine::cuda) fn discard<D: Device>(stream: &mut Stream<D>, totals: Address) {
    let traffic = Traffic::of_kernel().reads(1, F64).writes(5, F64);
    stream.stating(traffic).launch("discard_update", [1, 1, 1], 32, &[pointer(totals)]);
}

/// AdamW on `len` elements; its constants are rounded once, as on the CPU.
pub(in crate::engine::cuda) fn adamw<D: Device>(
    stream: &mut Stream<D>,
    buffers: AdamWBuffers,
    totals: Address,
    constants: &Constants,
) {
    let Constants { keep, one_minus_beta1, beta2, one_minus_beta2, step_size, rsqrt_correction, eps } =
        *constants;
    let constants = [keep, one_minus_beta1, beta2, one_minus_beta2, step_size, rsqrt_correction, eps];
    let pointers =
        buffers.flat.map(pointer).into_iter().chain([buffers.low.map_or(NULL, pointer), pointer(totals)]);
    let constants = constants.map(|x| Arg::Float(x as f32));
    let args: Vec<Arg> = pointers.chain([long(buffers.len)]).chain(constants).collect();
    let (len, narrow) = (wide(buffers.len), if buffers.low.is_some() { wide(buffers.len) } else { 0 });
    let traffic = Traffic::of_kernel()
        .reads(4 * len, F32)
        .reads(2, F64)
        .writes(4 * len, F32)
        .writes(narrow, stream.operand())
        .computes(15 * len);
    stream.stating(traffic).launch("adamw", blocks(buffers.len), THREADS, &args);
}

/// Parameters as operands of matrix products.
pub(in crate::engine::cuda) fn round<D: Device>(
    stream: &mut Stream<D>,
    parameters: Address,
    low: Address,
    len: usize,
) {
    let args = [pointer(parameters), pointer(low), long(len)];
    let traffic = Traffic::of_kernel().reads(wide(len), F32).writes(wide(len), stream.operand());
    stream.stating(traffic).launch("round_parameters", blocks(len), THREADS, &args);
}
