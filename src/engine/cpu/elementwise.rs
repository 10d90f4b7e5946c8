//! Biases, GELU, products, and how sums over rows are cut.

use super::pool::{piece, pieces};
use super::round;
use super::simd::{gelu, multiversion};
use super::team::Team;
use crate::engine::cpu::scratch::PARTIALS;
use crate::recipe::Precision;

multiversion! {
    fn add(x: &mut [f32], bias: &[f32]) {
        for (x, b) in x.iter_mut().zip(bias) {
            *x += b;
        }
    }
}

multiversion! {
    fn gelu_slice(x: &[f32], out: &mut [f32]) {
        for (x, out) in x.iter().zip(out) {
            *out = gelu::<FMA>(*x).0;
        }
    }
}

multiversion! {
    fn gelu_and_slope(x: &mut [f32], out: &mut [f32]) {
        for (x, out) in x.iter_mut().zip(out) {
            (*out, *x) = gelu::<FMA>(*x);
        }
    }
}

multiversion! {
    /// `x *= factor`
    pub(super) fn multiply(x: &mut [f32], factor: &[f32]) {
        for (x, f) in x.iter_mut().zip(factor) {
            *x *= f;
        }
    }
}

/// `x += bias`, rounded, for a part of a row.
pub(super) fn add_bias(precision: Precision, x: &mut [f32], bias: &[f32]) {
    add(x, bias);
    round::slice(precision, x);
}

/// `x += bias`, rounded where the precision stores it in 2 bytes (as autocast does); `out = gelu(x)` rounded; for a
/// part of a row.
pub(super) fn bias_gelu(precision: Precision, x: &mut [f32], bias: &[f32], out: &mut [f32]) {
    add(x, bias);
    if matches!(precision, Precision::Bf16 | Precision::Fp16) {
        round::slice(precision, x);
    }
    gelu_slice(x, out);
    round::slice(precision, out);
}

/// `out = gelu(x)` rounded, `x = gelu'(x)`.
pub(super) fn gelu_again(team: &Team, precision: Precision, x: &mut [f32], out: &mut [f32]) {
    let piece = piece(1);
    pieces(team, [], [(x, piece), (out, piece)], |_, [], [x, out]| {
        gelu_and_slope(x, out);
        round::slice(precision, out);
    });
}

/// Rows that each of at most [`PARTIALS`] partial sums covers.
pub(super) fn partial_rows(rows: usize) -> usize {
    rows.div_ceil(PARTIALS).max(8)
}

/// `out[i] += ` the sum over rows of column `first + i` of a matrix `width` wide.
pub(super) fn add_columns(x: &[f32], width: usize, first: usize, out: &mut [f32]) {
    for row in x.chunks_exact(width) {
        for (out, x) in out.iter_mut().zip(&row[first..]) {
            *out += x;
        }
    }
}
