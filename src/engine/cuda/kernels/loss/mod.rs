//! Launches of the loss kernels.

use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::stream::{NULL, Stream, int, pointer};

/// `LOSS_THREADS` of the source.
const THREADS: u32 = 512;

/// `rows` rows of logits with `width` columns, of which the first `vocab_size` count.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Shape {
    pub(in crate::engine::cuda) rows: usize,
    pub(in crate::engine::cuda) width: usize,
    pub(in crate::engine::cuda) vocab_size: usize,
}

/// Computes the loss of each row and, if asked for, the gradient of its logits.
pub(in crate::engine::cuda) fn cross_entropy<D: Device>(
    stream: &mut Stream<D>,
    [logits, targets, weight, losses]: [Address; 4],
    dlogits: Option<Address>,
    shape: Shape,
) {
    let [logits, targets, weight, losses] = [logits, targets, weight, losses].map(pointer);
    let dlogits = dlogits.map_or(NULL, pointer);
    let args = [logits, targets, weight, losses, dlogits, int(shape.vocab_size), int(shape.width)];
    stream.launch("cross_entropy", [shape.rows, 1, 1], THREADS, &args);
}

/// `*sum +=` the mean of `n` losses.
pub(in crate::engine::cuda) fn add<D: Device>(
    stream: &mut Stream<D>,
    losses: Address,
    sum: Address,
    n: usize,
) {
    stream.launch("add_loss", [1, 1, 1], THREADS, &[pointer(losses), pointer(sum), int(n)]);
}

/// Writes a number that changes between two plays of a recording.
pub(in crate::engine::cuda) fn set<D: Device>(stream: &mut Stream<D>, to: Address, value: f32) {
    stream.launch("set_float", [1, 1, 1], 32, &[pointer(to), Arg::Float(value)]);
}
