//! Launches of the elementwise kernels and column sums of linear layers.

use super::PartialSums;
use super::ready::Ready;
use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::stream::{NULL, Stream, int, pointer};
use crate::engine::memory::Element;
use crate::engine::traffic::{F32, Traffic};

/// Threads of a block.
const THREADS: u32 = 128;
/// Warps of a block that sums columns.
const COLUMN_WARPS: u32 = 8;
const WARP: u32 = 32;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] = &[("LINEAR_THREADS", THREADS), ("COLUMN_WARPS", COLUMN_WARPS)];

/// Operands in 16 bytes: `PACK` of the source.
fn pack(operand: Element) -> usize {
    16 / operand.bytes()
}

/// Kernels after a matrix product, whose threads each process the operands in 16 bytes of a row.
impl Ready {
    /// The kernel on `rows` rows of `width` operands, element by element; its parameters are `pointers`, then the
    /// width.
    pub(in crate::engine::cuda) fn elementwise(
        kernel: &'static str,
        pointers: &[Address],
        [rows, width]: [usize; 2],
        operand: Element,
    ) -> Self {
        let args = pointers.iter().copied().map(pointer).chain([int(width)]).collect();
        let grid = [rows, width.div_ceil(pack(operand) * THREADS as usize), 1];
        let (n, size) = (rows * width, operand.bytes());
        let traffic = Traffic::of_kernel().reads(n, size).writes(n, size);
        let traffic = match kernel {
            "add_bias" => traffic.reads(width, F32).computes(n),
            "bias_gelu" => traffic.reads(width, F32).writes(n, size).computes(16 * n),
            _ => traffic.computes(15 * n),
        };
        Self { kernel, grid, threads: THREADS, args, traffic }
    }

    /// The kernel on `rows` rows of `width` operands, which sums their columns; its parameters are `pointers`, then the
    /// partial sums and the sizes.
    fn columns(
        kernel: &'static str,
        pointers: &[Address],
        sums: PartialSums,
        [rows, width]: [usize; 2],
        operand: Element,
    ) -> Self {
        let sizes = [rows, width, sums.slices.rows, sums.stride].map(int);
        let args = pointers.iter().copied().chain([sums.at]).map(pointer).chain(sizes).collect();
        let grid = [width.div_ceil(pack(operand) * WARP as usize), sums.slices.count, 1];
        let n = rows * width;
        let traffic = Traffic::of_kernel().reads(pointers.len() * n, operand.bytes());
        let traffic = traffic.writes(sums.slices.count * width, F32).computes(n);
        Self { kernel, grid, threads: COLUMN_WARPS * WARP, args, traffic }
    }

    /// Multiplies `dx [rows, width]` by GELU's slope at `fc`, and sums its columns.
    pub(in crate::engine::cuda) fn gelu_slope(
        [dx, fc]: [Address; 2],
        sums: PartialSums,
        shape: [usize; 2],
        operand: Element,
    ) -> Self {
        let sums = Self::columns("gelu_slope_sums", &[dx, fc], sums, shape, operand);
        let n = shape[0] * shape[1];
        Self { traffic: sums.traffic.writes(n, operand.bytes()).computes(20 * n), ..sums }
    }
}

/// Partial sums of the columns of `x [rows, width]`.
pub(in crate::engine::cuda) fn column_sums<D: Device>(
    stream: &mut Stream<D>,
    x: Address,
    sums: PartialSums,
    shape: [usize; 2],
    operand: Element,
) {
    Ready::columns("column_sums", &[x], sums, shape, operand).launch(stream);
}

/// Sums of columns that a matrix product has left as operands.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Summed {
    pub(in crate::engine::cuda) at: Address,
    /// The place of the first of these columns among all.
    pub(in crate::engine::cuda) first: usize,
    /// Number of columns.
    pub(in crate::engine::cuda) len: usize,
}

/// Partial sums of columns that lie elsewhere: in attention's scratch, as many to a row as there are columns.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Elsewhere {
    pub(in crate::engine::cuda) sums: PartialSums,
    /// The place of the first of these columns among all.
    pub(in crate::engine::cuda) first: usize,
}

/// `out[0..width] +=` the partial sums from `sums` on, or what is summed already, or the partial sums elsewhere.
pub(in crate::engine::cuda) fn add_partials<D: Device>(
    stream: &mut Stream<D>,
    sums: PartialSums,
    out: Address,
    width: usize,
    summed: Option<Summed>,
    elsewhere: Option<Elsewhere>,
) {
    let (at, first, len) =
        summed.map_or((NULL, 0, 0), |summed| (pointer(summed.at), summed.first, summed.len));
    let sizes = [sums.slices.count, sums.stride, width].map(int);
    let (others, [other_first, other_count, others_len]) = elsewhere.map_or((NULL, [0; 3]), |other| {
        (pointer(other.sums.at), [other.first, other.sums.slices.count, other.sums.stride])
    });
    let args: Vec<Arg> = [pointer(sums.at), pointer(out)]
        .into_iter()
        .chain(sizes)
        .chain([at, int(first), int(len), others])
        .chain([other_first, other_count, others_len].map(int))
        .collect();
    let (count, added) = (sums.slices.count, width - len - others_len);
    let read = count * added + other_count * others_len + width;
    let stated = Traffic::of_kernel().reads(read, F32).reads(len, stream.operand());
    let stream = stream.stating(stated.writes(width, F32).computes(count * width));
    stream.launch("add_partials", [width.div_ceil(WARP as usize), 1, 1], COLUMN_WARPS * WARP, &args);
}
