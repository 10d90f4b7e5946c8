//! Run-time dispatch to the widest vectors present, and the few transcendental functions that kernels need.
//!
//! Kernels are plain loops that the compiler vectorizes; [`multiversion!`] compiles each for AVX-512, AVX2 and the
//! baseline of the target (SSE2, NEON, …) and picks one at run time, so no `target-cpu` is needed. Sums run in
//! [`LANES`] fixed lanes, and products are added in one rounding only where [`multiply_add`] says so and the version
//! has such instructions, so all versions that have them give the same bits.

use std::f32::consts::{LN_2, LOG2_E};
use std::sync::OnceLock;

/// The environment variable that forces a level: the word of one that the processor has.
pub const VARIABLE: &str = "RUNNER_SIMD";

/// Partial sums of a vectorized reduction: the number of lanes is part of the result, not of the hardware.
pub(super) const LANES: usize = 16;

/// Vector instructions for which kernels were compiled, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What every processor of the architecture has.
    Baseline,
    /// AVX2 with fused multiply-adds.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Level {
    const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Baseline];

    /// The word for it in [`VARIABLE`] and in files.
    pub fn word(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Baseline => "baseline",
        }
    }

    /// The name for it in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "AVX-512",
            Self::Avx2 => "AVX2",
            Self::Baseline => "baseline",
        }
    }

    /// Whether its kernels have fused multiply-adds, which round once where others round twice.
    pub fn is_fused(self) -> bool {
        self > Self::Baseline || cfg!(target_arch = "aarch64")
    }

    /// The level that a word stands for.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.word() == word)
    }
}

/// The level of this process's kernels, settled once: the processor's, or the one that [`VARIABLE`] forces. A word that
/// [`chosen`] refuses forces nothing here, for no engine is made then.
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| chosen().unwrap_or_else(|_| best()))
}

/// The level that [`VARIABLE`] forces, [`best`] if it is not set.
///
/// # Errors
/// A word that stands for no level, or for one that the processor lacks: what it has.
pub fn chosen() -> Result<Level, String> {
    match std::env::var_os(VARIABLE).filter(|word| !word.is_empty()) {
        Some(word) => among(&word.to_string_lossy(), best()),
        None => Ok(best()),
    }
}

/// The level that a word stands for, if it is at most `best`.
fn among(word: &str, best: Level) -> Result<Level, String> {
    let had: Vec<&str> = Level::ALL.into_iter().filter(|level| *level <= best).map(Level::word).collect();
    let had = had.join(", ");
    match Level::of_word(word) {
        Some(level) if level <= best => Ok(level),
        Some(level) => {
            Err(format!("{VARIABLE}={word}: this processor has no {}; it has {had}", level.name()))
        }
        None => {
            Err(format!("{VARIABLE}={}: no such vector level; this processor has {had}", word.escape_debug()))
        }
    }
}

/// The processor's highest level.
pub fn best() -> Level {
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

/// Defines a function that is compiled once for each [`Level`] and dispatched at run time. Its body knows as `FMA`
/// whether the version at hand has fused multiply-adds, for [`multiply_add`] and what is made of it.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<const FMA: bool>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($arg: $ty),*) $(-> $ret)? { body::<true>($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { body::<true>($($arg),*) }
                match $crate::engine::cpu::simd::level() {
                    // SAFETY: `level` has detected these features on this processor.
                    $crate::engine::cpu::simd::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: `level` has detected AVX2 and FMA on this processor.
                    $crate::engine::cpu::simd::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::engine::cpu::simd::Level::Baseline => {}
                }
            }
            body::<{ cfg!(target_arch = "aarch64") }>($($arg),*)
        }
    };
}
pub(super) use multiversion;

/// `a · b + c`, rounded once if `FMA`, else twice.
#[inline(always)]
pub(super) fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Adding and subtracting 1.5·2²³ rounds to the nearest integer and leaves it in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;

/// 2^x to within 2 units in the last place: the integer part makes the exponent; of the rest the polynomial of degree
/// 6 with the smallest largest relative error (2·10⁻⁹), found by iterated least squares. 0 below -126.5 (where 2^x
/// leaves the normal numbers), infinity above 127.5, NaN for NaN.
#[inline(always)]
pub(super) fn exp2<const FMA: bool>(x: f32) -> f32 {
    let x = if x < -127.0 { -127.0 } else { x };
    let x = if x > 128.0 { 128.0 } else { x };
    let shifted = x + ROUND;
    let r = x - (shifted - ROUND);
    let mut p = 1.535_336_2e-4;
    for coefficient in [1.339_887_4e-3, 9.618_438e-3, 5.550_332_5e-2, 0.240_226_48, LN_2, 1.0] {
        p = multiply_add::<FMA>(p, r, coefficient);
    }
    let exponent = (shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits());
    p * f32::from_bits(exponent)
}

/// e^x by way of 2^x: what is lost in rounding log₂e and `x·log₂e` comes on top, so the error is up to 2 +
/// 1.5·|x| units in the last place. To a softmax or a sigmoid, where it is added to 1, that is less than one.
#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f32) -> f32 {
    exp2::<FMA>(x * LOG2_E)
}

/// GELU in its tanh form (Hendrycks and Gimpel, 2016; `torch.nn.functional.gelu(approximate="tanh")`) and its
/// derivative: `½x(1 + tanh u) = x·σ(2u)` with `u = √(2/π)(x + 0.044715x³)`.
#[inline(always)]
pub(super) fn gelu<const FMA: bool>(x: f32) -> (f32, f32) {
    const A: f32 = 2.0 * 0.797_884_6;
    const B: f32 = 0.044_715;
    let square = x * x;
    let sigmoid = 1.0 / (1.0 + exp2::<FMA>(-A * LOG2_E * x * multiply_add::<FMA>(B, square, 1.0)));
    let slope = multiply_add::<FMA>(3.0 * A * B, square, A);
    // where the sigmoid is 0 or 1, x·(1-σ)·slope may overflow although the product is 0
    let curve = if sigmoid == 0.0 || sigmoid == 1.0 { 0.0 } else { x * (1.0 - sigmoid) * slope };
    (x * sigmoid, multiply_add::<FMA>(sigmoid, curve, sigmoid))
}

/// Adds the lanes of a reduction in a fixed tree.
#[inline(always)]
pub(super) fn reduce(lanes: [f32; LANES]) -> f32 {
    // spelled out, for a loop over the widths goes through memory
    let eight: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
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

/// `x = 2^(factor · (x - highest))`; returns the sum of that in [`LANES`] lanes: a softmax but for the division. The
/// factor is [`LOG2_E`], or 1 where that is in `x`.
#[inline(always)]
pub(super) fn exp_and_sum<const FMA: bool>(x: &mut [f32], highest: f32, factor: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let mut chunks = x.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *x = exp2::<FMA>((*x - highest) * factor);
            *lane += *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(chunks.into_remainder()) {
        *x = exp2::<FMA>((*x - highest) * factor);
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
    let mut highest = start;
    // one after the other: a tree here makes the compiler split the lanes above into a tree's leaves
    for lane in lanes {
        highest = if lane > highest { lane } else { highest };
    }
    highest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_forced_by_its_word_if_the_processor_has_it() {
        for best in Level::ALL {
            for level in Level::ALL {
                let forced = among(level.word(), best);
                assert_eq!(forced.is_ok(), level <= best, "{forced:?}");
            }
        }
        let lacking = among("avx512", Level::Avx2).expect_err("not there");
        assert_eq!(lacking, "RUNNER_SIMD=avx512: this processor has no AVX-512; it has avx2, baseline");
        for word in ["AVX2", "sse9", "auto", "avx2 "] {
            let unknown = among(word, Level::Avx512).expect_err(word);
            assert!(unknown.ends_with("no such vector level; this processor has avx512, avx2, baseline"));
        }
    }

    /// The largest error in units in the last place of the exact result, less what is allowed at each `x`.
    fn worst(from: f32, to: f32, f: fn(f32) -> f32, exact: fn(f64) -> f64, allowed: fn(f64) -> f64) -> f64 {
        let (mut worst, mut x) = (f64::NEG_INFINITY, from);
        while x < to {
            let want = exact(f64::from(x));
            let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1) - want as f32);
            worst = worst.max((f64::from(f(x)) - want).abs() / ulp - allowed(f64::from(x)));
            x += 0.000_7 + x.abs() * 1e-5;
        }
        worst
    }

    #[test]
    fn powers_are_as_exact_as_stated() {
        for (exp2, exp) in
            [(exp2::<false> as fn(f32) -> f32, exp::<false> as fn(f32) -> f32), (exp2::<true>, exp::<true>)]
        {
            let of_two = worst(-125.9, 127.4, exp2, f64::exp2, |_| 2.0);
            assert!(of_two < 0.0, "{of_two} ulp too many");
            let of_e = worst(-87.2, 88.3, exp, f64::exp, |x| 2.0 + 1.5 * x.abs());
            assert!(of_e < 0.0, "{of_e} ulp too many");
        }
    }

    #[test]
    fn powers_at_the_edges() {
        for f in [exp::<false> as fn(f32) -> f32, exp::<true>, exp2::<false>, exp2::<true>] {
            assert_eq!(f(0.0), 1.0);
            assert_eq!((f(-200.0), f(f32::NEG_INFINITY)), (0.0, 0.0));
            assert_eq!((f(200.0), f(f32::INFINITY)), (f32::INFINITY, f32::INFINITY));
            assert!(f(f32::NAN).is_nan() && f(f32::from_bits(0x7fc0_01ff)).is_nan());
        }
    }

    #[test]
    fn gelu_and_its_derivative_match_the_definition() {
        let exact = |x: f64| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + libm::tanh(u))
        };
        for i in -4000..=4000 {
            let x = f64::from(i) * 0.01;
            let slope = (exact(x + 1e-5) - exact(x - 1e-5)) / 2e-5;
            let (y, dy) = gelu::<true>(x as f32);
            assert!((f64::from(y) - exact(x)).abs() < 1e-6 * (1.0 + x.abs()), "gelu({x}) = {y}");
            assert!((f64::from(dy) - slope).abs() < 2e-6, "gelu'({x}) = {dy}, not {slope}");
        }
        let (y, dy) = gelu::<false>(-1e20);
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
