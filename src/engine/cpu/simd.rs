//! Run-time dispatch to the widest vectors present, and the few transcendental functions that kernels need.
//!
//! Kernels are plain loops that the compiler vectorizes; [`multiversion!`] compiles each for AVX-512, AVX2 and the
//! baseline of the target (SSE2, NEON, …) and picks one at run time, so no `target-cpu` is needed. Products and sums are
//! written separately and never contracted, and sums run in [`LANES`] fixed lanes, so all versions give the same bits.

use std::sync::OnceLock;

/// Partial sums of a vectorized reduction: the number of lanes is part of the result, not of the hardware.
pub(super) const LANES: usize = 16;

/// What the processor can do, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Baseline,
    Avx2,
    Avx512,
}

/// The processor's level, detected once.
pub(super) fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        {
            if ["avx512f", "avx512bw", "avx512dq", "avx512vl"].iter().all(|&f| detected(f)) {
                return Level::Avx512;
            }
            if ["avx2", "fma"].iter().all(|&f| detected(f)) {
                return Level::Avx2;
            }
        }
        Level::Baseline
    })
}

#[cfg(target_arch = "x86_64")]
fn detected(feature: &str) -> bool {
    match feature {
        "fma" => is_x86_feature_detected!("fma"),
        "avx2" => is_x86_feature_detected!("avx2"),
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512bw" => is_x86_feature_detected!("avx512bw"),
        "avx512dq" => is_x86_feature_detected!("avx512dq"),
        "avx512vl" => is_x86_feature_detected!("avx512vl"),
        _ => false,
    }
}

/// Defines a function that is compiled once for each [`Level`] and dispatched at run time.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                match $crate::engine::cpu::simd::level() {
                    // SAFETY: `level` has detected these features on this processor.
                    $crate::engine::cpu::simd::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: likewise.
                    $crate::engine::cpu::simd::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::engine::cpu::simd::Level::Baseline => {}
                }
            }
            body($($arg),*)
        }
    };
}
pub(super) use multiversion;

/// Adding and subtracting 1.5·2²³ rounds to the nearest integer and leaves it in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// e^x to within 2 units in the last place for normal results: range reduction by ln 2 in two parts (Cody and Waite,
/// 1980) and the Taylor polynomial of degree 7. 0 below -86.6 (close to where e^x leaves the normal numbers), infinity above
/// 88.7, NaN for NaN.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LOW: f32 = -86.6;
    const HIGH: f32 = 88.7;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    // n is in -125..=128 here; 2^128 does not exist, so scale by 2^(n-1) and then by 2
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32).wrapping_add(126);
    let scaled = p * f32::from_bits((exponent.wrapping_shl(23)) as u32) * 2.0;
    let scaled = if x < LOW { 0.0 } else { scaled };
    let scaled = if x > HIGH { f32::INFINITY } else { scaled };
    if x.is_nan() { x } else { scaled }
}

/// GELU in its tanh form (Hendrycks and Gimpel, 2016; `torch.nn.functional.gelu(approximate="tanh")`) and its
/// derivative: `½x(1 + tanh u) = x·σ(2u)` with `u = √(2/π)(x + 0.044715x³)`.
#[inline(always)]
pub(super) fn gelu(x: f32) -> (f32, f32) {
    const A: f32 = 2.0 * 0.797_884_6;
    const B: f32 = 0.044_715;
    let square = x * x;
    let sigmoid = 1.0 / (1.0 + exp(-A * x * (1.0 + B * square)));
    let slope = A * (1.0 + 3.0 * B * square);
    // where the sigmoid is 0 or 1, x·(1-σ)·slope may overflow although the product is 0
    let curve = if sigmoid == 0.0 || sigmoid == 1.0 { 0.0 } else { x * (1.0 - sigmoid) * slope };
    (x * sigmoid, sigmoid * (1.0 + curve))
}

/// Adds the lanes of a reduction in a fixed tree.
#[inline(always)]
pub(super) fn reduce(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Sum of `f(x)` over a slice in [`LANES`] lanes.
#[inline(always)]
pub(super) fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // whole chunks of a known length keep the lanes in one register
    let mut chunks = x.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += f(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane += f(x);
    }
    reduce(lanes)
}

/// `x = e^(x - highest)`; returns the sum of that in [`LANES`] lanes: a softmax but for the division.
#[inline(always)]
pub(super) fn exp_and_sum(x: &mut [f32], highest: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let mut chunks = x.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *x = exp(*x - highest);
            *lane += *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(chunks.into_remainder()) {
        *x = exp(*x - highest);
        *lane += *x;
    }
    reduce(lanes)
}

multiversion! {
    /// Σ a·b in [`LANES`] lanes.
    pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
        let mut lanes = [0.0; LANES];
        let (mut x, mut y) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
        for (a, b) in (&mut x).zip(&mut y) {
            for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
                *lane += a * b;
            }
        }
        for ((lane, a), b) in lanes.iter_mut().zip(x.remainder()).zip(y.remainder()) {
            *lane += a * b;
        }
        reduce(lanes)
    }
}

/// The largest of `start` and a slice; numbers that are not (NaN) are passed over.
#[inline(always)]
pub(super) fn max(x: &[f32], start: f32) -> f32 {
    let mut lanes = [start; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = if x > *lane { x } else { *lane };
    }
    lanes.into_iter().fold(start, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp() {
        let mut worst = 0.0f64;
        let mut x = -86.59f32;
        while x < 88.69 {
            let exact = f64::from(x).exp();
            let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1) - exact as f32);
            worst = worst.max((f64::from(exp(x)) - exact).abs() / ulp);
            x += 0.000_7 + x.abs() * 1e-5;
        }
        assert!(worst < 2.0, "{worst} ulp");
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(100.0), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn gelu_and_its_derivative_match_the_definition() {
        let exact = |x: f64| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + u.tanh())
        };
        for i in -4000..=4000 {
            let x = f64::from(i) * 0.01;
            let slope = (exact(x + 1e-5) - exact(x - 1e-5)) / 2e-5;
            let (y, dy) = gelu(x as f32);
            assert!((f64::from(y) - exact(x)).abs() < 1e-6 * (1.0 + x.abs()), "gelu({x}) = {y}");
            assert!((f64::from(dy) - slope).abs() < 2e-6, "gelu'({x}) = {dy}, not {slope}");
        }
        let (y, dy) = gelu(-1e20);
        assert!(y == 0.0 && dy == 0.0, "{y} {dy}");
    }

    #[test]
    fn reductions_cover_ragged_ends() {
        for len in [0, 1, 15, 16, 17, 100] {
            let x: Vec<f32> = (0..len).map(|i| i as f32).collect();
            assert_eq!(sum(&x, |x| 2.0 * x), (0..len).sum::<u16>() as f32 * 2.0);
            assert_eq!(max(&x, -1.0), f32::from(len) - 1.0);
        }
        assert_eq!(max(&[f32::NAN, 2.0, f32::NAN], 1.0), 2.0);
    }
}
