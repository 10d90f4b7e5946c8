//! Launches of the loss kernels.

use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::stream::{Stream, int, pointer};
use crate::engine::memory::Element;

/// `LOSS_THREADS` of the source.
const THREADS: u32 = 512;
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
    let (kept, sizes) = (width * operand.bytes(), [vocab_size, width].map(int));
    if gradient && kept + SCRATCH <= stream.device().shared_per_block() as usize {
        let args = [&pointers[..], &sizes].concat();
        stream.launch_shared("cross_entropy_kept", [rows, 1, 1], THREADS, kept as u32, &args);
    } else {
        let args = [&pointers[..], &[Arg::Int(i32::from(gradient))], &sizes].concat();
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
    stream.launch("add_loss", [1, 1, 1], THREADS, &[pointer(losses), pointer(sum), int(n)]);
}

/// Writes a number that changes between two plays of a recording.
pub(in crate::engine::cuda) fn set<D: Device>(stream: &mut Stream<D>, to: Address, value: f32) {
    stream.launch("set_float", [1, 1, 1], 32, &[pointer(to), Arg::Float(value)]);
}
