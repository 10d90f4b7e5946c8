//! Operands rearranged so that the innermost loop reads them in order.

use super::Matrix;
use crate::engine::cpu::simd::{Level, level};

/// Rows and columns of the blocks that are transposed in registers.
const BLOCK: usize = 8;

/// Cuts a matrix into groups of `W` rows, each stored column after column: element `(r, k)` goes to
/// `r / W · (W · cols) + k · W + r mod W`. Rows that lack in the last group are zero.
///
/// A product's first operand is packed so as it is, its second one transposed, where the groups are panels of columns.
pub(super) fn pack<const W: usize>(from: Matrix, to: &mut [f32]) {
    let (whole, size, stride) = (from.rows / W, W * from.cols, from.col_stride);
    if from.row_stride == 1 {
        // some columns of all groups at a time: memory is read in long runs, and written in not too short ones
        for first in (0..from.cols).step_by(BLOCK) {
            let count = BLOCK.min(from.cols - first);
            for (group, to) in to.chunks_exact_mut(size).take(whole).enumerate() {
                let from = &from.data[first * from.col_stride + group * W..];
                for (k, to) in to[first * W..][..count * W].chunks_exact_mut(W).enumerate() {
                    // short runs far apart are not foreseen by the processor
                    prefetch(from, (k + BLOCK) * stride);
                    to.copy_from_slice(&from[k * stride..][..W]);
                }
            }
        }
    } else {
        assert!(from.col_stride == 1, "neither rows nor columns are contiguous");
        for (group, to) in to.chunks_exact_mut(size).take(whole).enumerate() {
            for r in (0..W).step_by(BLOCK) {
                let rows = &from.data[(group * W + r) * from.row_stride..];
                transpose::<W>(rows, from.row_stride, from.cols, &mut to[r..]);
            }
        }
    }
    if whole * W < from.rows {
        let to = &mut to[whole * size..][..size];
        to.fill(0.0);
        for r in 0..from.rows - whole * W {
            for k in 0..from.cols {
                to[k * W + r] = from.data[(whole * W + r) * from.row_stride + k * from.col_stride];
            }
        }
    }
}

/// Asks for the cache line of an element, which need not exist.
#[inline(always)]
pub(super) fn prefetch(from: &[f32], index: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint that reads nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(from.as_ptr().wrapping_add(index).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, index);
}

/// Writes element `(r, k)` of [`BLOCK`] rows, `stride` apart, to `k · W + r`.
fn transpose<const W: usize>(from: &[f32], stride: usize, cols: usize, to: &mut [f32]) {
    let whole = if level() >= Level::Avx2 { cols / BLOCK * BLOCK } else { 0 };
    #[cfg(target_arch = "x86_64")]
    if whole > 0 {
        assert!((BLOCK - 1) * stride + whole <= from.len() && (whole - 1) * W + BLOCK <= to.len());
        for k in (0..whole).step_by(BLOCK) {
            // SAFETY: the level says that the processor has AVX; the rows' and the result's ends were checked.
            unsafe { x86::transpose(from.as_ptr().add(k), stride, to.as_mut_ptr().add(k * W), W) };
        }
    }
    for k in whole..cols {
        for r in 0..BLOCK {
            to[k * W + r] = from[r * stride + k];
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use super::BLOCK;
    use std::arch::x86_64::*;

    /// The columns of 8 x 8 numbers: pairs of rows are interleaved, then pairs of pairs, then the halves exchanged.
    ///
    /// # Safety
    /// The processor has AVX; 8 rows of 8 numbers, `stride` apart, can be read.
    #[inline]
    #[target_feature(enable = "avx")]
    pub(in crate::engine::cpu::matmul) unsafe fn transposed(
        from: *const f32,
        stride: usize,
    ) -> [__m256; BLOCK] {
        // SAFETY: the caller's promise covers each row.
        let row = |r: usize| unsafe { _mm256_loadu_ps(from.add(r * stride)) };
        let rows: [__m256; BLOCK] = std::array::from_fn(row);
        let mut quads = [rows[0]; BLOCK];
        for half in 0..2 {
            let [a, b, c, d] = [rows[4 * half], rows[4 * half + 1], rows[4 * half + 2], rows[4 * half + 3]];
            let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            quads[4 * half] = _mm256_shuffle_ps::<0x44>(ab_low, cd_low);
            quads[4 * half + 1] = _mm256_shuffle_ps::<0xee>(ab_low, cd_low);
            quads[4 * half + 2] = _mm256_shuffle_ps::<0x44>(ab_high, cd_high);
            quads[4 * half + 3] = _mm256_shuffle_ps::<0xee>(ab_high, cd_high);
        }
        let mut columns = quads;
        for k in 0..4 {
            let (low, high) = (quads[k], quads[k + 4]);
            columns[k] = _mm256_permute2f128_ps::<0x20>(low, high);
            columns[k + 4] = _mm256_permute2f128_ps::<0x31>(low, high);
        }
        columns
    }

    /// Transposes 8 x 8 numbers.
    ///
    /// # Safety
    /// The processor has AVX; 8 rows of 8 numbers, `stride` apart, can be read and 8 rows, `width` apart, written.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, width: usize) {
        // SAFETY: the caller's promise about the rows read.
        let columns = unsafe { transposed(from, stride) };
        for (k, column) in columns.into_iter().enumerate() {
            // SAFETY: the caller's promise about the rows written.
            unsafe { _mm256_storeu_ps(to.add(k * width), column) };
        }
    }
}
