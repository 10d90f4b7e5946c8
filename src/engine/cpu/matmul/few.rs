//! Products of a few rows: what generating text needs, one row per sequence.
//!
//! Such a product reads the second operand once and computes little with it, so memory bounds it: nothing is packed,
//! each thread streams its columns from where they are. Every sum is made as the tiles make it (products in the order
//! of k, one rounding each where there are fused multiply-adds, cut at multiples of [`DEPTH`]), so a row has the same
//! bits however many rows are multiplied with it. `tests.rs` holds both ways against each other.

use super::pack::prefetch;
use super::{Matrix, Packing, cuts};
use crate::engine::cpu::pool::{Columns, with_scratch};
use crate::engine::cpu::scratch::{DEPTH, TILE_ROWS};
#[cfg(target_arch = "x86_64")]
use crate::engine::cpu::simd::{Level, level};
use crate::engine::cpu::simd::{multiply_add, multiversion};

/// Rows of the second operand that are read side by side.
const GROUP: usize = 8;
/// Columns that several rows of the first operand meet while they are in the first-level cache.
const NEAR: usize = 512;
/// Columns of a task at most.
const COLUMNS: usize = 1024;
/// Elements of a cache line.
const LINE: usize = 16;

/// Whether [`multiply`] can do it in this scratch, and does it faster than tiles.
pub(super) fn suits(a: Matrix, b: Matrix, scratch: &Packing) -> bool {
    (1..=TILE_ROWS).contains(&a.rows)
        && a.cols > 0
        && a.col_stride == 1
        && (b.col_stride == 1 || b.row_stride == 1)
        && scratch.worker >= a.rows * LINE
}

/// `out = a · b` for a few rows; `finish` as in [`matmul`](super::matmul).
pub(super) fn multiply(
    out: &mut [f32],
    stride: usize,
    a: Matrix,
    b: Matrix,
    scratch: &mut Packing,
    finish: impl Fn(usize, usize, &mut [f32]) + Sync,
) {
    let (m, n, k, team) = (a.rows, b.cols, a.cols, scratch.team);
    let out = Columns::new(out, stride);
    let room = COLUMNS.min(scratch.worker / m / LINE * LINE);
    let share = n.div_ceil(2 * team.threads()).next_multiple_of(LINE).min(room);
    with_scratch(team, scratch.workers, scratch.worker, n.div_ceil(share), |task, sums| {
        let first = task * share;
        let width = share.min(n - first);
        let sums = &mut sums[..m * width];
        for depth in cuts(0..k, DEPTH) {
            let (a, b) = (a.cols(depth.start, depth.len()), b.rows(depth.start, depth.len()));
            let b = b.cols(first, width);
            if b.col_stride == 1 {
                across(a, b, sums);
            } else {
                for row in 0..m {
                    let x = &a.data[row * a.row_stride..][..depth.len()];
                    dots(x, b.data, b.col_stride, &mut sums[row * width..][..width]);
                }
            }
            for (row, sums) in sums.chunks_exact(width).enumerate() {
                // SAFETY: these columns are this task's alone.
                let out = unsafe { out.row(row, first, width) };
                add(out, sums, depth.start > 0);
                if depth.end == k {
                    finish(row, first, out);
                }
            }
        }
    });
}

/// The sums of all rows of `a`, where the rows of `b` are contiguous.
fn across(a: Matrix, b: Matrix, sums: &mut [f32]) {
    let width = b.cols;
    sums.fill(0.0);
    let near = if a.rows > 1 { NEAR } else { width };
    for depth in cuts(0..a.cols, GROUP) {
        let rows = &b.data[depth.start * b.row_stride..];
        for cols in cuts(0..width, near) {
            for (row, sums) in sums.chunks_exact_mut(width).enumerate() {
                let x = &a.data[row * a.row_stride..][depth.clone()];
                add_rows(x, &rows[cols.start..], b.row_stride, &mut sums[cols.clone()]);
            }
        }
    }
}

multiversion! {
    // The first part of a sum that is cut, or a further one.
    fn add(out: &mut [f32], sums: &[f32], more: bool) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = if more { *out + sum } else { 0.0 + sum };
        }
    }
}

multiversion! {
    /// `sums[j] += Σ_i x[i] · rows[i · stride + j]`, in the order of i. The rows that come next are asked for line by
    /// line: runs of a narrow matrix are too short for the processor to foresee what follows them.
    pub(in crate::engine::cpu) fn add_rows(x: &[f32], rows: &[f32], stride: usize, sums: &mut [f32]) {
        let width = sums.len();
        let (groups, rest) = x.as_chunks::<GROUP>();
        for (i, x) in groups.iter().enumerate() {
            let start = i * GROUP * stride;
            let (lines, rest) = sums.as_chunks_mut::<LINE>();
            let group: [(&[[f32; LINE]], &[f32]); GROUP] =
                std::array::from_fn(|r| rows[start + r * stride..][..width].as_chunks());
            for (line, sums) in lines.iter_mut().enumerate() {
                let mut totals = *sums;
                for r in 0..GROUP {
                    prefetch(rows, start + (GROUP + r) * stride + line * LINE);
                    for (total, w) in totals.iter_mut().zip(&group[r].0[line]) {
                        *total = multiply_add::<FMA>(x[r], *w, *total);
                    }
                }
                *sums = totals;
            }
            for (j, sum) in rest.iter_mut().enumerate() {
                for r in 0..GROUP {
                    *sum = multiply_add::<FMA>(x[r], group[r].1[j], *sum);
                }
            }
        }
        for (i, x) in rest.iter().enumerate() {
            let row = &rows[(groups.len() * GROUP + i) * stride..][..width];
            for (sum, w) in sums.iter_mut().zip(row) {
                *sum = multiply_add::<FMA>(*x, *w, *sum);
            }
        }
    }
}

/// `sums[i] = Σ_k x[k] · rows[i · stride + k]`, in the order of k: rows that are multiplied with one row.
pub(in crate::engine::cpu) fn dots(x: &[f32], rows: &[f32], stride: usize, sums: &mut [f32]) {
    let count = sums.len();
    assert!(count == 0 || (count - 1) * stride + x.len() <= rows.len(), "rows exceed their slice");
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    #[cfg(target_arch = "x86_64")]
    let done = if level() < Level::Avx2 {
        0
    } else {
        /// Groups of rows that are read side by side: their sums do not wait for each other.
        const SIDE: usize = 2;
        let mut done = 0;
        while done + SIDE * x86::ROWS <= count {
            let (rows, sums) = (&rows[done * stride..], &mut sums[done..][..SIDE * x86::ROWS]);
            // SAFETY: the level says that the processor has AVX2 and FMA; the rows were checked above.
            unsafe { x86::dots::<SIDE>(x, rows.as_ptr(), stride, sums) };
            done += SIDE * x86::ROWS;
        }
        while done + x86::ROWS <= count {
            let (rows, sums) = (&rows[done * stride..], &mut sums[done..][..x86::ROWS]);
            // SAFETY: the same.
            unsafe { x86::dots::<1>(x, rows.as_ptr(), stride, sums) };
            done += x86::ROWS;
        }
        done
    };
    some_dots(x, &rows[(done * stride).min(rows.len())..], stride, &mut sums[done..]);
}

multiversion! {
    // [`dots`] with sums that do not wait for each other, and no vectors.
    fn some_dots(x: &[f32], rows: &[f32], stride: usize, sums: &mut [f32]) {
        for (i, sums) in sums.chunks_mut(GROUP).enumerate() {
            sums.fill(0.0);
            for (k, x) in x.iter().enumerate() {
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = multiply_add::<FMA>(*x, rows[(i * GROUP + r) * stride + k], *sum);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::engine::cpu::matmul::pack::x86::transposed;
    use std::arch::x86_64::*;

    /// Rows whose sums are in one register.
    pub(super) const ROWS: usize = 8;

    /// The sums of `G` groups of [`ROWS`] rows: blocks of them are transposed in registers, which takes less time than
    /// memory needs to bring them.
    ///
    /// # Safety
    /// The processor has AVX2 and FMA; `G ·` [`ROWS`] rows as long as `x`, `stride` apart, can be read.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn dots<const G: usize>(x: &[f32], rows: *const f32, stride: usize, sums: &mut [f32]) {
        let mut totals = [_mm256_setzero_ps(); G];
        let (blocks, rest) = x.as_chunks::<ROWS>();
        for (block, x) in blocks.iter().enumerate() {
            for (group, total) in totals.iter_mut().enumerate() {
                let from = rows.wrapping_add(group * ROWS * stride + block * ROWS);
                if block % 2 == 0 {
                    // the rows after these: they are far apart, and would not be foreseen
                    for r in 0..ROWS {
                        let ahead = from.wrapping_add((G * ROWS + r) * stride);
                        _mm_prefetch::<_MM_HINT_T1>(ahead.cast());
                    }
                }
                // SAFETY: the caller's promise covers 8 rows of 8 numbers.
                let columns = unsafe { transposed(from, stride) };
                for (column, x) in columns.into_iter().zip(x) {
                    *total = _mm256_fmadd_ps(_mm256_set1_ps(*x), column, *total);
                }
            }
        }
        for (i, x) in rest.iter().enumerate() {
            for (group, total) in totals.iter_mut().enumerate() {
                let k = blocks.len() * ROWS + i;
                // SAFETY: the caller's promise covers element `k` of each row.
                let column: [f32; ROWS] =
                    std::array::from_fn(|r| unsafe { *rows.add((group * ROWS + r) * stride + k) });
                // SAFETY: an array of eight numbers.
                let column = unsafe { _mm256_loadu_ps(column.as_ptr()) };
                *total = _mm256_fmadd_ps(_mm256_set1_ps(*x), column, *total);
            }
        }
        for (total, sums) in totals.into_iter().zip(sums.as_chunks_mut::<ROWS>().0) {
            // SAFETY: an array of eight numbers.
            unsafe { _mm256_storeu_ps(sums.as_mut_ptr(), total) };
        }
    }
}
