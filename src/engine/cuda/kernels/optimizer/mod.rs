//! Launches of the norm, the decision and the update.

use crate::engine::Update;
use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::scratch::sums;
use crate::engine::cuda::stream::{NULL, Stream, int, long, pointer};
use std::ops::Range;

/// `SQUARE_THREADS`, `DECIDE_THREADS` and `ADAMW_THREADS` of the source.
const THREADS: u32 = 256;
/// Elements that a thread has at a time.
const WIDE: usize = 4;

/// Parameters, gradients and moments, and where parameters go as operands.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Buffers {
    pub(in crate::engine::cuda) flat: [Address; 4],
    pub(in crate::engine::cuda) low: Option<Address>,
    /// Elements.
    pub(in crate::engine::cuda) len: usize,
}

fn blocks(len: usize) -> [usize; 3] {
    [len.div_ceil(WIDE * THREADS as usize), 1, 1]
}

/// Where the partial sums of squares are.
pub(in crate::engine::cuda) fn partials(totals: Address) -> Address {
    totals.offset(sums::PARTIALS * size_of::<f64>())
}

/// Partial sums of the squares of the gradients.
pub(in crate::engine::cuda) fn squares<D: Device>(
    stream: &mut Stream<D>,
    gradients: Address,
    len: usize,
    totals: Address,
) {
    let args = [pointer(gradients), pointer(partials(totals)), long(len)];
    stream.launch("sum_of_squares", [sums::PARTIAL_COUNT, 1, 1], THREADS, &args);
}

/// Finds the norm from the partial sums, and decides; see `decide_update` in the source.
pub(in crate::engine::cuda) fn decide<D: Device>(stream: &mut Stream<D>, totals: Address, update: &Update) {
    let partials = pointer(partials(totals));
    let numbers = [update.loss_scale, update.clip_norm].map(Arg::Double);
    let args = [partials, int(sums::PARTIAL_COUNT), pointer(totals), numbers[0], numbers[1]];
    stream.launch("decide_update", [1, 1, 1], THREADS, &args);
}

/// AdamW on a range of elements; the constants are rounded once, as on the CPU.
pub(in crate::engine::cuda) fn adamw<D: Device>(
    stream: &mut Stream<D>,
    buffers: Buffers,
    totals: Address,
    range: Range<usize>,
    weight_decay: f64,
    update: &Update,
) {
    let [beta1, beta2] = update.betas;
    let correction = |beta: f64| 1.0 - beta.powf(update.t as f64);
    let constants = [
        1.0 - update.lr * weight_decay,
        1.0 - beta1,
        beta2,
        1.0 - beta2,
        update.lr / correction(beta1),
        1.0 / correction(beta2).sqrt(),
        update.eps,
    ];
    let pointers =
        buffers.flat.map(pointer).into_iter().chain([buffers.low.map_or(NULL, pointer), pointer(totals)]);
    let range_args = [long(range.start), long(range.end)];
    let args: Vec<Arg> = pointers.chain(range_args).chain(constants.map(|x| Arg::Float(x as f32))).collect();
    stream.launch("adamw", blocks(range.len()), THREADS, &args);
}

/// Parameters as operands of matrix products.
pub(in crate::engine::cuda) fn round<D: Device>(stream: &mut Stream<D>, buffers: Buffers) {
    if let Some(low) = buffers.low {
        let args = [pointer(buffers.flat[0]), pointer(low), long(buffers.len)];
        stream.launch("round_parameters", blocks(buffers.len), THREADS, &args);
    }
}
