//! Launches of the elementwise kernels and column sums of linear layers.

use super::{Slices, add_partials};
use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::stream::{Stream, int, pointer};

/// `LINEAR_THREADS` and `COLUMN_WARPS * WARP` of the source.
const THREADS: u32 = 256;

/// Launches a kernel whose threads each process four neighbouring elements of a row; its parameters are
/// `pointers`, then the width.
pub(in crate::engine::cuda) fn elementwise<D: Device>(
    stream: &mut Stream<D>,
    kernel: &'static str,
    pointers: &[Address],
    rows: usize,
    width: usize,
) {
    let args: Vec<Arg> = pointers.iter().copied().map(pointer).chain([int(width)]).collect();
    stream.launch(kernel, [rows, width.div_ceil(4 * THREADS as usize), 1], THREADS, &args);
}

/// `out +=` the column sums of `x [rows, width]`.
pub(in crate::engine::cuda) fn column_sums<D: Device>(
    stream: &mut Stream<D>,
    x: Address,
    out: Address,
    partials: Address,
    rows: usize,
    width: usize,
) {
    let slices = Slices::of(rows);
    let args = [pointer(x), pointer(partials), int(rows), int(width), int(slices.rows)];
    stream.launch("column_sums", [width.div_ceil(32), slices.count, 1], THREADS, &args);
    add_partials(stream, partials, out, slices.count, width, width);
}
