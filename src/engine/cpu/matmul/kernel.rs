//! The innermost product: a tile of the result in registers, its operands streaming past.
//!
//! The second operand comes in panels of [`COLS`] columns that lie one row after the other; the first may have any
//! strides, for its elements are broadcast. What holds vectors of numbers is a [`Vector`]; the tile is cut to as many
//! registers as there are.

use super::Scaled;
use crate::engine::cpu::scratch::{PANEL_COLS, TILE_ROWS};

/// Rows of a tile.
pub(super) const ROWS: usize = TILE_ROWS;
/// Columns of a tile, and of a panel.
pub(super) const COLS: usize = PANEL_COLS;

/// The first operand of a tile: element `(r, k)` lies at `start + r · row + k · step`.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) start: *const f32,
    pub(super) row: usize,
    pub(super) step: usize,
}

/// Where a tile's result goes, rows `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Out {
    pub(super) start: *mut f32,
    pub(super) stride: usize,
    pub(super) how: Scaled,
}

/// As many numbers as one instruction handles.
trait Vector: Copy {
    const LANES: usize;
    /// # Safety
    /// The processor has this vector's instructions, as for all that follow.
    unsafe fn splat(x: f32) -> Self;
    /// # Safety
    /// `LANES` numbers can be read at `from`.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `LANES` numbers can be written at `to`.
    unsafe fn store(self, to: *mut f32);
    /// Asks for the cache line at an address, which need not be there.
    fn prefetch(at: *const f32);
    /// `self + a · b`
    ///
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    macro_rules! vector {
        ($vector:ty, $lanes:literal, $splat:ident, $load:ident, $store:ident, $fma:ident) => {
            impl Vector for $vector {
                const LANES: usize = $lanes;
                #[inline(always)]
                unsafe fn splat(x: f32) -> Self {
                    // SAFETY: the caller knows the processor.
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: the caller knows the processor, and that the numbers are there.
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    // SAFETY: the caller knows the processor, and that there is room.
                    unsafe { $store(to, self) }
                }
                #[inline(always)]
                fn prefetch(at: *const f32) {
                    // SAFETY: a hint that reads nothing.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
                }
                #[inline(always)]
                unsafe fn add_product(self, a: Self, b: Self) -> Self {
                    // SAFETY: the caller knows the processor.
                    unsafe { $fma(a, b, self) }
                }
            }
        };
    }

    vector!(__m512, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps);
    vector!(__m256, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps);
}

/// What every processor has; the compiler finds the instructions.
#[derive(Clone, Copy)]
struct Portable([f32; 4]);

impl Vector for Portable {
    const LANES: usize = 4;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise; an array of numbers is aligned like one of them.
        Self(unsafe { from.cast::<[f32; 4]>().read() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise; an array of numbers is aligned like one of them.
        unsafe { to.cast::<[f32; 4]>().write(self.0) }
    }
    #[inline(always)]
    fn prefetch(_: *const f32) {}
    #[inline(always)]
    unsafe fn add_product(self, a: Self, b: Self) -> Self {
        let lane = |i: usize| match cfg!(target_arch = "aarch64") {
            true => a.0[i].mul_add(b.0[i], self.0[i]),
            false => a.0[i] * b.0[i] + self.0[i],
        };
        Self([lane(0), lane(1), lane(2), lane(3)])
    }
}

/// `R` rows and `W` vectors of a tile.
///
/// # Safety
/// As [`product`]; the processor has `V`'s instructions.
#[inline(always)]
unsafe fn part<V: Vector, const R: usize, const W: usize>(k: usize, left: Left, panel: *const f32, out: Out) {
    // SAFETY: `product`'s contract covers every address: `R` rows of the first operand, `k` rows of a panel, of which
    // `W` vectors lie inside its `COLS` columns, and the same `R` rows and `W` vectors of the result.
    unsafe {
        let mut sums = [[V::splat(0.0); W]; R];
        let (mut a, mut b) = (left.start, panel);
        // the result's rows are far apart: by the end of the loop they will have come
        for r in 0..R {
            for line in (0..W * V::LANES).step_by(16) {
                V::prefetch(out.start.wrapping_add(r * out.stride + line));
            }
        }
        let mut step = |a: *const f32, b: *const f32| {
            let mut right = [V::splat(0.0); W];
            for (w, right) in right.iter_mut().enumerate() {
                *right = V::load(b.add(w * V::LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = V::splat(*a.add(r * left.row));
                for (sum, right) in sums.iter_mut().zip(right) {
                    *sum = sum.add_product(x, right);
                }
            }
        };
        for _ in 0..k {
            step(a, b);
            a = a.wrapping_add(left.step);
            b = b.wrapping_add(COLS);
        }
        let scale = V::splat(out.how.scale);
        for (r, sums) in sums.into_iter().enumerate() {
            for (w, sum) in sums.into_iter().enumerate() {
                let to = out.start.add(r * out.stride + w * V::LANES);
                let before = if out.how.accumulate { V::load(to) } else { V::splat(0.0) };
                before.add_product(sum, scale).store(to);
            }
        }
    }
}

/// A whole tile, `R` rows and `W` vectors at a time.
///
/// # Safety
/// As [`part`].
#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const W: usize>(k: usize, left: Left, panel: *const f32, out: Out) {
    for first in (0..ROWS).step_by(R) {
        for column in (0..COLS).step_by(W * V::LANES) {
            let left = Left { start: left.start.wrapping_add(first * left.row), ..left };
            let out = Out { start: out.start.wrapping_add(first * out.stride + column), ..out };
            // SAFETY: a part of the tile that the caller answers for.
            unsafe { part::<V, R, W>(k, left, panel.wrapping_add(column), out) };
        }
    }
}

/// [`tile`] with the first operand's rows next to each other known to the compiler, where they are.
///
/// # Safety
/// As [`part`].
#[inline(always)]
unsafe fn either<V: Vector, const R: usize, const W: usize>(
    k: usize,
    left: Left,
    panel: *const f32,
    out: Out,
) {
    // SAFETY: the same promise.
    unsafe {
        match left {
            Left { row: 1, step: ROWS, .. } => {
                tile::<V, R, W>(k, Left { row: 1, step: ROWS, ..left }, panel, out)
            }
            Left { row: 1, .. } => tile::<V, R, W>(k, Left { row: 1, ..left }, panel, out),
            _ => tile::<V, R, W>(k, Left { step: 1, ..left }, panel, out),
        }
    }
}

/// The first `rows` x `cols` of a tile over `k` products each.
///
/// # Safety
/// `k` steps of [`ROWS`] rows of `left`, `k ·` [`COLS`] numbers at `panel`, and `rows` rows of `cols` numbers at
/// `out` must be there, and nothing else may use those of `out` meanwhile. Of `left`, `row` or `step` is 1.
#[inline]
pub(super) unsafe fn product(
    k: usize,
    left: Left,
    panel: *const f32,
    out: Out,
    (rows, cols): (usize, usize),
) {
    debug_assert!(left.row == 1 || left.step == 1);
    if (rows, cols) == (ROWS, COLS) {
        // SAFETY: the caller's promise.
        return unsafe { whole(k, left, panel, out) };
    }
    let mut buffer = [0.0; ROWS * COLS];
    let padded =
        Out { start: buffer.as_mut_ptr(), stride: COLS, how: Scaled { accumulate: false, ..out.how } };
    // SAFETY: the caller's promise, and the buffer holds a whole tile.
    unsafe { whole(k, left, panel, padded) };
    for (r, from) in buffer.chunks_exact(COLS).take(rows).enumerate() {
        // SAFETY: `cols` numbers of row `r`, which the caller lends.
        let to = unsafe { std::slice::from_raw_parts_mut(out.start.add(r * out.stride), cols) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = if out.how.accumulate { *to + from } else { *from };
        }
    }
}

/// A whole tile.
///
/// # Safety
/// As [`product`].
#[inline(always)]
unsafe fn whole(k: usize, left: Left, panel: *const f32, out: Out) {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::engine::cpu::simd::{Level, level};
        use std::arch::x86_64::{__m256, __m512};
        #[target_feature(enable = "avx512f")]
        unsafe fn avx512(k: usize, left: Left, panel: *const f32, out: Out) {
            // SAFETY: the caller's promise, and these are the features.
            unsafe { either::<__m512, 8, 2>(k, left, panel, out) }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2(k: usize, left: Left, panel: *const f32, out: Out) {
            // SAFETY: the caller's promise, and these are the features.
            unsafe { either::<__m256, 4, 2>(k, left, panel, out) }
        }
        match level() {
            // SAFETY: the caller's promise, and the processor has the features.
            Level::Avx512 => return unsafe { avx512(k, left, panel, out) },
            // SAFETY: the caller's promise, and the processor has the features.
            Level::Avx2 => return unsafe { avx2(k, left, panel, out) },
            Level::Baseline => {}
        }
    }
    // as many sums as registers hold
    const HEIGHT: usize = if cfg!(target_arch = "aarch64") { 8 } else { 4 };
    // SAFETY: the caller's promise; every processor can do this.
    unsafe { either::<Portable, HEIGHT, 2>(k, left, panel, out) }
}
