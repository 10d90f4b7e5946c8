//! Attention with each head's probabilities materialized: the textbook form, memory quadratic in T.

use super::Head;
use crate::engine::cpu::dropout::drop_keys;
use crate::engine::cpu::matmul::{Matrix, Packing, SET, Scaled, matmul};
use crate::engine::cpu::round;
use crate::engine::cpu::scratch::panel_elements;
use crate::engine::cpu::simd::{exp_and_sum, max, multiversion};
use crate::engine::cpu::team::Team;
use crate::engine::dropout::Draw;
use crate::recipe::Precision;
use std::f32::consts::LOG2_E;

#[inline(always)]
fn softmax_row<const FMA: bool>(seen: &mut [f32]) {
    let highest = max(seen, f32::NEG_INFINITY);
    let total = exp_and_sum::<FMA>(seen, highest, LOG2_E);
    for x in seen.iter_mut() {
        *x /= total;
    }
}

multiversion! {
    // Softmax of one row.
    pub(super) fn softmax(seen: &mut [f32]) {
        softmax_row::<FMA>(seen);
    }
}

multiversion! {
    // Softmax over the first `t + 1` entries of row t, zero after them.
    fn causal_softmax(scores: &mut [f32], cols: usize) {
        for (t, row) in scores.chunks_exact_mut(cols).enumerate() {
            let (seen, unseen) = row.split_at_mut(t + 1);
            unseen.fill(0.0);
            softmax_row::<FMA>(seen);
        }
    }
}

multiversion! {
    // Through the softmax: dscores = p · (dp - Σ p·dp) · scale, in place of dp.
    fn softmax_backward(probabilities: &[f32], dp: &mut [f32], row_dots: &[f32], scale: f32) {
        let cols = row_dots.len();
        let rows = probabilities.chunks_exact(cols).zip(dp.chunks_exact_mut(cols));
        for (t, ((p, dp), &dot)) in rows.zip(row_dots).enumerate() {
            let (seen, unseen) = dp.split_at_mut(t + 1);
            for (p, dp) in p.iter().zip(seen) {
                *dp = *p * (*dp - dot) * scale;
            }
            unseen.fill(0.0);
        }
    }
}

/// Multiplies the probabilities that each query sees, or their gradients, by their factors.
fn drop_seen(draw: &Draw, square: &mut [f32], cols: usize) {
    for (t, row) in square.chunks_exact_mut(cols).enumerate() {
        drop_keys(draw, t, 0, &mut row[..=t]);
    }
}

/// What products on one thread need.
fn own<'a>(team: &'a Team, scratch: &'a mut [f32], cols: usize, size: usize) -> Packing<'a> {
    let (panels, workers) = scratch.split_at_mut(panel_elements(size, cols).max(panel_elements(cols, size)));
    let worker = workers.len();
    Packing { panels, workers, worker, team }
}

/// Returns the head's output, `[T, size]`, in scratch; leaves the probabilities in `kept` if they fit there.
pub(super) fn forward<'s>(head: &Head, kept: &mut [f32], scratch: &'s mut [f32]) -> &'s mut [f32] {
    let Head { precision, cols, size, qkv: [q, k, v], scale, draw } = *head;
    let (out, scratch) = scratch.split_at_mut(cols * size);
    let (scores, scratch) = scratch.split_at_mut(cols * cols);
    let team = Team::solo();
    let mut scratch = own(&team, scratch, cols, size);
    let scaled = Scaled { scale, accumulate: false };
    matmul(scores, cols, q, k.transposed(), scaled, &mut scratch, |_, _, _| {});
    causal_softmax(scores, cols);
    if kept.len() == scores.len() {
        kept.copy_from_slice(scores);
    }
    if let Some(draw) = &draw {
        drop_seen(draw, scores, cols);
    }
    round::slice(precision, scores);
    matmul(out, size, Matrix::new(scores, cols, cols, cols), v, SET, &mut scratch, |_, _, _| {});
    out
}

/// Writes the gradients of queries, keys and values, `[3, T, size]`.
pub(super) fn backward(
    head: &Head,
    probabilities: &[f32],
    dout: Matrix,
    row_dots: &[f32],
    gradients: &mut [f32],
    scratch: &mut [f32],
) {
    let Head { precision, cols, size, qkv: [q, k, v], scale, draw } = *head;
    let (dq, rest) = gradients.split_at_mut(cols * size);
    let (dk, dv) = rest.split_at_mut(cols * size);
    let (square, scratch) = scratch.split_at_mut(cols * cols);
    let team = Team::solo();
    let mut scratch = own(&team, scratch, cols, size);
    let mut product = |out: &mut [f32], width: usize, a: Matrix, b: Matrix| {
        matmul(out, width, a, b, SET, &mut scratch, |_, _, _| {});
    };
    if precision == Precision::Fp32 && draw.is_none() {
        product(dv, size, Matrix::new(probabilities, cols, cols, cols).transposed(), dout);
    } else {
        square.copy_from_slice(probabilities);
        if let Some(draw) = &draw {
            drop_seen(draw, square, cols);
        }
        round::slice(precision, square);
        product(dv, size, Matrix::new(square, cols, cols, cols).transposed(), dout);
    }
    product(square, cols, dout, v.transposed());
    if let Some(draw) = &draw {
        drop_seen(draw, square, cols);
    }
    softmax_backward(probabilities, square, row_dots, scale);
    round::slice(precision, square);
    let dscores = Matrix::new(square, cols, cols, cols);
    product(dq, size, dscores, k);
    product(dk, size, dscores.transposed(), q);
}
