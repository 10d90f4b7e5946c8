//! Launches of the loss kernels.

use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::stream::{NULL, Stream, int, pointer};
use crate::engine::traffic::{F32, F64, Traffic};

/// Threads of a block.
const THREADS: u32 = 512;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] = &[("LOSS_THREADS", THREADS)];

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
    let Shape { rows, width, vocab_size } = shape;
    // four logits at a time
    let seen = rows * vocab_size.next_multiple_of(4).min(width);
    let traffic = match dlogits {
        None => Traffic::of_kernel().reads(seen, F32),
        // rows in flight exceed the caches, so the second look at a row reads it from memory again
        Some(_) => Traffic::of_kernel()
            .reads(rows * width + 1, F32)
            .reads_again(seen, F32)
            .writes(rows * width, stream.operand()),
    };
    let traffic = traffic.reads(rows, F32).writes(rows, F32).computes(8 * rows * width);
    let dlogits = dlogits.map_or(NULL, pointer);
    let args = [logits, targets, weight, losses, dlogits, int(vocab_size), int(width)];
    stream.stating(traffic).launch("cross_entropy", [rows, 1, 1], THREADS, &args);
}

/// `*sum +=` the mean of `n` losses.
pub(in crate::engine::cuda) fn add<D: Device>(
    stream: &mut Stream<D>,
    losses: Address,
    sum: Address,
    n: usize,
) {
    let traffic = Traffic::of_kernel().reads(n, F32).reads(1, F64).writes(1, F64).computes(n);
    stream.stating(traffic).launch("add_loss", [1, 1, 1], THREADS, &[pointer(losses), pointer(sum), int(n)]);
}

/// Writes a number that changes between two plays of a recording.
pub(in crate::engine::cuda) fn set<D: Device>(stream: &mut Stream<D>, to: Address, value: f32) {
    let traffic = Traffic::of_kernel().writes(1, F32);
    stream.stating(traffic).launch("set_float", [1, 1, 1], 32, &[pointer(to), Arg::Float(value)]);
}
