//! Launches of the elementwise kernels and column sums of linear layers.

use super::{Slices, add_partials};
use crate::engine::cuda::device::{Address, Arg, Device, Product};
use crate::engine::cuda::stream::{Stream, int, pointer};

/// `LINEAR_THREADS` and `COLUMN_WARPS * WARP` of the source.
const THREADS: u32 = 256;

/// A kernel whose threads each process four neighbouring elements of a row.
pub(in crate::engine::cuda) struct Elementwise {
    kernel: &'static str,
    grid: [usize; 3],
    args: Vec<Arg>,
}

impl Elementwise {
    /// The kernel on `rows` rows of `width` elements; its parameters are `pointers`, then the width.
    pub(in crate::engine::cuda) fn new(
        kernel: &'static str,
        pointers: &[Address],
        rows: usize,
        width: usize,
    ) -> Self {
        let args = pointers.iter().copied().map(pointer).chain([int(width)]).collect();
        Self { kernel, grid: [rows, width.div_ceil(4 * THREADS as usize), 1], args }
    }

    pub(in crate::engine::cuda) fn launch<D: Device>(&self, stream: &mut Stream<D>) {
        stream.launch(self.kernel, self.grid, THREADS, &self.args);
    }

    /// Starts a product with what follows it: as `whole`, which has it fused, where that is right and not slower, and
    /// otherwise as `alone` and then this kernel.
    pub(in crate::engine::cuda) fn after<D: Device>(
        &self,
        stream: &mut Stream<D>,
        whole: &Product,
        alone: &Product,
    ) {
        if stream.fuses(whole, alone, self.kernel, self.grid, THREADS, &self.args) {
            stream.product(whole);
        } else {
            stream.product(alone);
            self.launch(stream);
        }
    }
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
