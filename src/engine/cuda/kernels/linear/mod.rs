//! Launches of the elementwise kernels and column sums of linear layers.

use super::{Slices, add_partials};
use crate::engine::cuda::device::{Address, Arg, Device, Product};
use crate::engine::cuda::stream::{Stream, int, pointer};
use crate::engine::traffic::{F32, Traffic};

/// Threads of a block.
const THREADS: u32 = 256;
/// Warps of a block that sums columns.
const COLUMN_WARPS: u32 = 8;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] = &[("LINEAR_THREADS", THREADS), ("COLUMN_WARPS", COLUMN_WARPS)];

/// A kernel whose threads each process four neighbouring elements of a row.
pub(in crate::engine::cuda) struct Elementwise {
    kernel: &'static str,
    grid: [usize; 3],
    args: Vec<Arg>,
    /// Elements in all, and how many of them belong to one row.
    size: (usize, usize),
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
        let grid = [rows, width.div_ceil(4 * THREADS as usize), 1];
        Self { kernel, grid, args, size: (rows * width, width) }
    }

    /// What the kernel moves: matrices of operands, and perhaps a bias. GELU takes some 15 operations.
    fn traffic(&self, operand: usize) -> Traffic {
        let (n, width) = self.size;
        let traffic = Traffic::of_kernel().reads(n, operand).writes(n, operand);
        match self.kernel {
            "add_bias" => traffic.reads(width, F32).computes(n),
            "bias_gelu" => traffic.reads(width, F32).writes(n, operand).computes(16 * n),
            "gelu_slope" => traffic.reads(n, operand).computes(20 * n),
            _ => traffic.computes(15 * n),
        }
    }

    pub(in crate::engine::cuda) fn launch<D: Device>(&self, stream: &mut Stream<D>) {
        let traffic = self.traffic(stream.operand());
        stream.stating(traffic).launch(self.kernel, self.grid, THREADS, &self.args);
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
    let traffic = Traffic::of_kernel()
        .reads(rows * width, stream.operand())
        .writes(slices.count * width, F32)
        .computes(rows * width);
    let grid = [width.div_ceil(32), slices.count, 1];
    stream.stating(traffic).launch("column_sums", grid, COLUMN_WARPS * 32, &args);
    add_partials(stream, partials, out, slices.count, width, width);
}
