//! Biases, GELU, products, and the sums over rows that give the gradients of biases.

use super::pool::piece;
use super::round;
use super::simd::{gelu, multiversion};
use crate::plan::memory::PARTIALS;
use crate::recipe::Precision;
use rayon::prelude::*;

multiversion! {
    fn add_bias_rows(x: &mut [f32], bias: &[f32]) {
        for row in x.chunks_exact_mut(bias.len()) {
            for (x, b) in row.iter_mut().zip(bias) {
                *x += b;
            }
        }
    }
}

multiversion! {
    fn gelu_slice(x: &[f32], out: &mut [f32]) {
        for (x, out) in x.iter().zip(out) {
            *out = gelu(*x).0;
        }
    }
}

multiversion! {
    fn gelu_and_slope(x: &mut [f32], out: &mut [f32]) {
        for (x, out) in x.iter_mut().zip(out) {
            (*out, *x) = gelu(*x);
        }
    }
}

multiversion! {
    fn multiply(x: &mut [f32], factor: &[f32]) {
        for (x, f) in x.iter_mut().zip(factor) {
            *x *= f;
        }
    }
}

multiversion! {
    fn add_rows(x: &[f32], total: &mut [f32]) {
        for row in x.chunks_exact(total.len()) {
            for (total, x) in total.iter_mut().zip(row) {
                *total += x;
            }
        }
    }
}

/// `x += bias` in every row, rounded.
pub(super) fn add_bias(precision: Precision, x: &mut [f32], bias: &[f32]) {
    x.par_chunks_mut(piece(bias.len())).for_each(|x| {
        add_bias_rows(x, bias);
        round::slice(precision, x);
    });
}

/// `x += bias` in every row, rounded where the precision stores it in 2 bytes (as autocast does); `out = gelu(x)` rounded.
pub(super) fn bias_gelu(precision: Precision, x: &mut [f32], bias: &[f32], out: &mut [f32]) {
    let piece = piece(bias.len());
    x.par_chunks_mut(piece).zip(out.par_chunks_mut(piece)).for_each(|(x, out)| {
        add_bias_rows(x, bias);
        if matches!(precision, Precision::Bf16 | Precision::Fp16) {
            round::slice(precision, x);
        }
        gelu_slice(x, out);
        round::slice(precision, out);
    });
}

/// `out = gelu(x)` rounded, `x = gelu'(x)`.
pub(super) fn gelu_again(precision: Precision, x: &mut [f32], out: &mut [f32]) {
    let piece = piece(1);
    x.par_chunks_mut(piece).zip(out.par_chunks_mut(piece)).for_each(|(x, out)| {
        gelu_and_slope(x, out);
        round::slice(precision, out);
    });
}

/// `x *= factor` where given, then rounded.
pub(super) fn scale_round(precision: Precision, x: &mut [f32], factor: Option<&[f32]>) {
    let piece = piece(1);
    match factor {
        Some(factor) => x.par_chunks_mut(piece).zip(factor.par_chunks(piece)).for_each(|(x, factor)| {
            multiply(x, factor);
            round::slice(precision, x);
        }),
        None if precision == Precision::Fp32 => {}
        None => x.par_chunks_mut(piece).for_each(|x| round::slice(precision, x)),
    }
}

/// Rows that each of at most [`PARTIALS`] partial sums covers.
pub(super) fn partial_rows(rows: usize) -> usize {
    rows.div_ceil(PARTIALS).max(8)
}

/// `out += ` the sums of `x`'s columns; `partials` is scratch.
pub(super) fn column_sums(x: &[f32], out: &mut [f32], partials: &mut [f32]) {
    let width = out.len();
    let rows = partial_rows(x.len() / width);
    let partials = &mut partials[..(x.len() / width).div_ceil(rows) * width];
    x.par_chunks(rows * width).zip(partials.par_chunks_mut(width)).for_each(|(x, partial)| {
        partial.fill(0.0);
        add_rows(x, partial);
    });
    add_columns(partials, width, 0, out);
}

/// `out[i] += ` the sum over rows of column `first + i` of a matrix `width` wide.
pub(super) fn add_columns(x: &[f32], width: usize, first: usize, out: &mut [f32]) {
    for row in x.chunks_exact(width) {
        for (out, x) in out.iter_mut().zip(&row[first..]) {
            *out += x;
        }
    }
}
