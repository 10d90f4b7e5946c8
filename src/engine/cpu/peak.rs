//! What the processor can do at most, measured: its peak rate, of which MFU is a fraction, and beside it the rates of a
//! large matrix product and of copies.

use super::matmul::{Matrix, Packing, SET, matmul};
use super::simd::{LANES, multiversion, sum};
use super::team::Team;
use crate::engine::cpu::scratch::{DEPTH, TASK_ROWS};
use std::hint::black_box;
use std::time::Instant;

/// Independent accumulators: enough to cover the latency of a fused multiply-add on every port.
const CHAINS: usize = 12;
const ROUNDS: usize = 3_000_000;

/// Single-precision operations per second that `threads` threads reach together in a loop of multiply-adds on
/// registers, fused where there are such instructions (2 operations each): the best of so many tries, which take some
/// 12 ms each. `threads` beyond those of the processor only wait for each other.
pub fn measure(threads: usize, tries: usize) -> f64 {
    (0..tries).map(|_| all_threads(threads)).fold(0.0, f64::max)
}

/// Operations per second of the product of two fp32 matrices of 1536 rows and columns, the best of three.
pub fn matmul_rate(threads: usize) -> f64 {
    const SIZE: usize = 1536;
    let factor: Vec<f32> = (0..SIZE * SIZE).map(|i| (i % 7) as f32 - 3.0).collect();
    let mut out = vec![0.0; SIZE * SIZE];
    let matrix = Matrix::new(&factor, SIZE, SIZE, SIZE);
    // without threads to be had, what there is
    let team = Team::new(threads).unwrap_or_else(|_| Team::solo());
    let worker = TASK_ROWS * DEPTH;
    let (mut panels, mut workers) = (vec![0.0; SIZE * DEPTH], vec![0.0; threads * worker]);
    let mut once = || {
        let start = Instant::now();
        let mut scratch = Packing { panels: &mut panels, workers: &mut workers, worker, team: &team };
        matmul(&mut out, SIZE, matrix, matrix.transposed(), SET, &mut scratch, |_, _, _| {});
        black_box(&mut out);
        start.elapsed().as_secs_f64()
    };
    once();
    2.0 * (SIZE as f64).powi(3) / (0..3).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// Bytes per second that `threads` threads copy together in memory, each byte read and written once; the best of three.
pub fn copy_bandwidth(threads: usize) -> f64 {
    const BYTES: usize = 256 << 20;
    let share = BYTES / threads.max(1);
    let from = vec![1u8; BYTES];
    let mut to = vec![0u8; BYTES];
    let mut once = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for (from, to) in from.chunks(share).zip(to.chunks_mut(share)) {
                scope.spawn(|| to.copy_from_slice(from));
            }
        });
        black_box(&mut to);
        start.elapsed().as_secs_f64()
    };
    once();
    BYTES as f64 / (0..3).map(|_| once()).fold(f64::INFINITY, f64::min)
}

multiversion! {
    fn add_up(x: &[f32]) -> f32 {
        sum(x, |x| x)
    }
}

/// Bytes per second that `threads` threads read together from memory, the best of five.
pub fn read_bandwidth(threads: usize) -> f64 {
    const NUMBERS: usize = 64 << 20;
    let share = NUMBERS.div_ceil(threads.max(1));
    let from = vec![1.0f32; NUMBERS];
    let once = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for from in from.chunks(share) {
                scope.spawn(|| black_box(add_up(black_box(from))));
            }
        });
        start.elapsed().as_secs_f64()
    };
    once();
    (NUMBERS * size_of::<f32>()) as f64 / (0..5).map(|_| once()).fold(f64::INFINITY, f64::min)
}

fn all_threads(threads: usize) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| black_box(run(black_box(0.5), black_box(0.25))));
        }
    });
    (threads * ROUNDS * CHAINS * LANES * 2) as f64 / start.elapsed().as_secs_f64()
}

fn run(a: f32, b: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    {
        use super::simd::{Level, level};
        use std::arch::x86_64::*;
        // Spelled out, for accumulators in an array may end up in memory.
        macro_rules! chains {
            ($fma:ident, $zero:expr, $a:ident, $b:ident, $rounds:expr; $($sum:ident)*) => {{
                // chains that start alike could be merged into one
                $(let mut $sum = black_box($zero);)*
                for _ in 0..$rounds {
                    $($sum = $fma($sum, $a, $b);)*
                }
                [$($sum),*]
            }};
        }
        #[target_feature(enable = "avx512f")]
        fn avx512(a: f32, b: f32) -> f32 {
            let (a, b) = (_mm512_set1_ps(a), _mm512_set1_ps(b));
            let sums: [__m512; CHAINS] =
                chains!(_mm512_fmadd_ps, _mm512_setzero_ps(), a, b, ROUNDS; c d e f g h i j k l m n);
            sums.iter().map(|&sum| _mm512_cvtss_f32(sum)).sum()
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(a: f32, b: f32) -> f32 {
            let (a, b) = (_mm256_set1_ps(a), _mm256_set1_ps(b));
            // half as wide, so twice the rounds for the same number of operations
            let sums: [__m256; CHAINS] =
                chains!(_mm256_fmadd_ps, _mm256_setzero_ps(), a, b, 2 * ROUNDS; c d e f g h i j k l m n);
            sums.iter().map(|&sum| _mm256_cvtss_f32(sum)).sum()
        }
        #[target_feature(enable = "sse2")]
        fn baseline(a: f32, b: f32) -> f32 {
            let (a, b) = (_mm_set1_ps(a), _mm_set1_ps(b));
            let multiply_add = |sum, a, b| _mm_add_ps(_mm_mul_ps(sum, a), b);
            let sums: [__m128; CHAINS] =
                chains!(multiply_add, _mm_setzero_ps(), a, b, 4 * ROUNDS; c d e f g h i j k l m n);
            sums.iter().map(|&sum| _mm_cvtss_f32(sum)).sum()
        }
        match level() {
            // SAFETY: the level was detected on this processor; every AVX-512 one has this feature.
            Level::Avx512 => unsafe { avx512(a, b) },
            // SAFETY: the level was detected on this processor, with both features.
            Level::Avx2 => unsafe { avx2(a, b) },
            // SAFETY: every processor of the architecture has SSE2.
            Level::Baseline => unsafe { baseline(a, b) },
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut sums = [[0.0f32; LANES]; 4];
        for _ in 0..ROUNDS * CHAINS / 4 {
            for lane in sums.iter_mut().flatten() {
                *lane = if cfg!(target_arch = "aarch64") { lane.mul_add(a, b) } else { *lane * a + b };
            }
        }
        sums.iter().flatten().sum()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_processor_does_more_than_a_billion_operations() {
        let flops = super::measure(1, 4);
        assert!(flops > 1e9 && flops < 1e13, "{flops}");
    }

    #[test]
    fn rates_are_those_of_a_computer() {
        assert!((1e8..1e14).contains(&super::matmul_rate(1)));
        assert!((1e7..1e13).contains(&super::copy_bandwidth(2)));
        assert!((1e7..1e13).contains(&super::read_bandwidth(2)));
    }
}
