//! Token and position embeddings.

use super::pool::Columns;
use rayon::prelude::*;

/// Columns that one task of the backward pass adds up, for all tokens in order: that keeps it deterministic although
/// tokens repeat.
const COLUMNS: usize = 64;

/// `out[n] = wte[tokens[n]] + wpe[n mod cols]`, rows `c` wide.
pub(super) fn forward(tokens: &[u32], cols: usize, wte: &[f32], wpe: &[f32], out: &mut [f32], c: usize) {
    out.par_chunks_mut(c).zip(tokens).enumerate().with_min_len(64).for_each(|(n, (out, &token))| {
        let (token, position) = (&wte[token as usize * c..][..c], &wpe[n % cols * c..][..c]);
        for ((out, a), b) in out.iter_mut().zip(token).zip(position) {
            *out = a + b;
        }
    });
}

/// Adds each row of `dx` to its token's and its position's gradient.
pub(super) fn backward(
    tokens: &[u32],
    cols: usize,
    dx: &[f32],
    dwte: &mut [f32],
    dwpe: &mut [f32],
    c: usize,
) {
    let dwte = Columns::new(dwte, c);
    (0..c.div_ceil(COLUMNS)).into_par_iter().for_each(|task| {
        let first = task * COLUMNS;
        let count = COLUMNS.min(c - first);
        for (row, &token) in dx.chunks_exact(c).zip(tokens) {
            // SAFETY: this task alone touches these columns, and one row at a time.
            let gradient = unsafe { dwte.row(token as usize, first, count) };
            for (gradient, x) in gradient.iter_mut().zip(&row[first..]) {
                *gradient += x;
            }
        }
    });
    dwpe.par_chunks_mut(c).take(cols).enumerate().with_min_len(16).for_each(|(position, gradient)| {
        for row in dx.chunks_exact(c).skip(position).step_by(cols) {
            for (gradient, x) in gradient.iter_mut().zip(row) {
                *gradient += x;
            }
        }
    });
}
