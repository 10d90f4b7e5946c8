//! Launches of the loss kernels.

use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::stream::{Stream, int, pointer};
use crate::engine::memory::Element;
use crate::engine::traffic::{F32, F64, Traffic};

/// Threads of a block.
const THREADS: u32 = 512;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] = &[("LOSS_THREADS", THREADS)];
/// Bytes of shared memory that the kernels declare.
const SCRATCH: usize = 128;

/// `rows` rows of logits with `width` columns, of which the first `vocab_size` count.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Shape {
    pub(in crate::engine::cuda) rows: usize,
    pub(in crate::engine::cuda) width: usize,
    pub(in crate::engine::cuda) vocab_size: usize,
    /// How logits are stored.
    pub(in crate::engine::cuda) operand: Element,
}

/// Computes the loss of each row and, if a `gradient` is asked for, puts that of the logits in their place. Rows that
/// fit into a block's shared memory are read once.
pub(in crate::engine::cuda) fn cross_entropy<D: Device>(
    stream: &mut Stream<D>,
    pointers: [Address; 4],
    gradient: bool,
    Shape { rows, width, vocab_size, operand }: Shape,
) {
    let pointers = pointers.map(pointer);
    let (stored, sizes) = (operand.bytes(), [vocab_size, width].map(int));
    let kept = width * stored;
    // logits are read 16 bytes at a time; a target and, for the gradient, the weight
    let seen = rows * vocab_size.next_multiple_of(16 / stored).min(width);
    let traffic = Traffic::of_kernel().reads(seen, stored).reads(rows, F32).writes(rows, F32);
    let traffic = traffic.computes(if gradient { 8 } else { 4 } * rows * width);
    let with_gradient = traffic.reads(1, F32).writes(rows * width, stored);
    if gradient && kept + SCRATCH <= stream.device().shared_per_block() as usize {
        let args = [&pointers[..], &sizes].concat();
        let stream = stream.stating(with_gradient);
        stream.launch_shared("cross_entropy_kept", [rows, 1, 1], THREADS, kept as u32, &args);
    } else {
        let args = [&pointers[..], &[Arg::Int(i32::from(gradient))], &sizes].concat();
        // rows in flight exceed the caches, so the second look at a row reads it from memory again
        let twice = with_gradient.reads_again(seen, stored);
        let stream = stream.stating(if gradient { twice } else { traffic });
        stream.launch("cross_entropy", [rows, 1, 1], THREADS, &args);
    }
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
