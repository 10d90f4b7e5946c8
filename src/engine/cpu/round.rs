//! Rounding to a lower precision while staying in fp32: how tf32, bf16 and fp16 are emulated.
//!
//! All round to nearest, ties to even, as tensor cores' inputs are converted (tf32: `cvt.rna` differs in ties only).

use super::pool::pieces;
use super::simd::multiversion;
use super::team::Team;
use crate::recipe::Precision;

/// Elements that one task rounds.
const GRAIN: usize = 16 * 1024;

/// Keeps the upper bits of the mantissa. NaN and infinity stay.
#[inline(always)]
fn keep(x: f32, dropped: u32) -> f32 {
    let bits = x.to_bits();
    let half = (1u32 << (dropped - 1)) - 1;
    let rounded = bits.wrapping_add(half + ((bits >> dropped) & 1)) & !((1u32 << dropped) - 1);
    if x.is_finite() { f32::from_bits(rounded) } else { x }
}

/// To 10 mantissa bits.
#[inline(always)]
fn tf32(x: f32) -> f32 {
    keep(x, 13)
}

/// To 7 mantissa bits.
#[inline(always)]
fn bf16(x: f32) -> f32 {
    keep(x, 16)
}

/// To IEEE half precision: 10 mantissa bits, overflow above 65504 to infinity, subnormals in steps of 2⁻²⁴.
#[inline(always)]
fn fp16(x: f32) -> f32 {
    const SMALLEST_NORMAL: f32 = 6.103_515_6e-5;
    const OVERFLOW: f32 = 65520.0;
    // 0.75 has its last mantissa bit at 2⁻²⁴
    let subnormal = if x < 0.0 { (x - 0.75) + 0.75 } else { (x + 0.75) - 0.75 };
    let normal = keep(x, 13);
    let rounded = if x.abs() < SMALLEST_NORMAL { subnormal } else { normal };
    let infinite = if x < 0.0 { f32::NEG_INFINITY } else { f32::INFINITY };
    if x.abs() >= OVERFLOW { infinite } else { rounded }
}

multiversion! {
    fn tf32_slice(x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x = tf32(*x));
    }
}
multiversion! {
    fn bf16_slice(x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x = bf16(*x));
    }
}
multiversion! {
    fn fp16_slice(x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x = fp16(*x));
    }
}

/// Rounds a slice in place, on this thread; fp32 does nothing. Kernels call it on what they have just written.
#[inline]
pub(super) fn slice(precision: Precision, x: &mut [f32]) {
    match precision {
        Precision::Fp32 => {}
        Precision::Tf32 => tf32_slice(x),
        Precision::Bf16 => bf16_slice(x),
        Precision::Fp16 => fp16_slice(x),
    }
}

/// Copies a slice rounded, on all threads.
pub(super) fn copy(team: &Team, precision: Precision, from: &[f32], to: &mut [f32]) {
    pieces(team, [(from, GRAIN)], [(to, GRAIN)], |_, [from], [to]| {
        to.copy_from_slice(from);
        slice(precision, to);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<f32> {
        let mut bits = 1u32;
        let spread = (0..200_000).map(move |_| {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(bits)
        });
        let near = (0..40_000).map(|i| f32::from_bits(0x3300_0000 + i * 4099));
        let edges = [0.0, -0.0, 65504.0, 65519.9, 65520.0, -70000.0, f32::INFINITY, f32::NAN, 5.96e-8];
        spread.chain(near).chain(edges).collect()
    }

    fn same(a: f32, b: f32) -> bool {
        a == b || (a.is_nan() && b.is_nan())
    }

    #[test]
    fn half_precisions_agree_with_the_half_crate() {
        let mut as_bf16 = samples();
        let mut as_fp16 = samples();
        slice(Precision::Bf16, &mut as_bf16);
        slice(Precision::Fp16, &mut as_fp16);
        for ((x, b), h) in samples().into_iter().zip(as_bf16).zip(as_fp16) {
            assert!(same(b, half::bf16::from_f32(x).to_f32()), "bf16({x:e}) = {b:e}");
            assert!(same(h, half::f16::from_f32(x).to_f32()), "fp16({x:e}) = {h:e}");
        }
    }

    #[test]
    fn tf32_keeps_ten_bits_and_is_idempotent() {
        for x in samples().into_iter().filter(|x| x.is_normal() && x.abs() < 1e38) {
            let y = tf32(x);
            assert_eq!(y.to_bits() & 0x1fff, 0);
            assert!((f64::from(y) - f64::from(x)).abs() <= f64::from(x.abs()) * 2f64.powi(-11));
            assert_eq!(tf32(y), y);
        }
    }
}
