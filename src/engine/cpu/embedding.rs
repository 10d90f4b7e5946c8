//! Token and position embeddings.

use super::pool::{Columns, piece, pieces};
use super::team::Team;
use crate::engine::Next;

/// Columns that one task of the backward pass adds up, for all tokens in order: that keeps it deterministic although
/// tokens repeat.
const COLUMNS: usize = 64;

/// `out[n] = wte[tokens[n]] + wpe[n mod cols]`, rows `c` wide.
pub(super) fn forward(
    team: &Team,
    tokens: &[u32],
    cols: usize,
    wte: &[f32],
    wpe: &[f32],
    out: &mut [f32],
    c: usize,
) {
    let piece = piece(c);
    pieces(team, [], [(out, piece)], |i, [], [out]| {
        for ((n, &token), out) in tokens.iter().enumerate().skip(i * piece / c).zip(out.chunks_exact_mut(c)) {
            let (token, position) = (&wte[token as usize * c..][..c], &wpe[n % cols * c..][..c]);
            for ((out, a), b) in out.iter_mut().zip(token).zip(position) {
                *out = a + b;
            }
        }
    });
}

/// `out[r] = from[numbers[r]]`, rows of `width`.
pub(super) fn gather(team: &Team, numbers: &[u32], from: &[f32], out: &mut [f32], width: usize) {
    let piece = piece(width);
    pieces(team, [], [(out, piece)], |i, [], [out]| {
        for (&number, out) in numbers[i * piece / width..].iter().zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(&from[number as usize * width..][..width]);
        }
    });
}

/// `out[r] = wte[token] + wpe[position]` of the next tokens, rows `c` wide.
pub(super) fn next(next: &[Next], wte: &[f32], wpe: &[f32], out: &mut [f32], c: usize) {
    for (next, out) in next.iter().zip(out.chunks_exact_mut(c)) {
        let (token, position) = (&wte[next.token as usize * c..][..c], &wpe[next.position * c..][..c]);
        for ((out, a), b) in out.iter_mut().zip(token).zip(position) {
            *out = a + b;
        }
    }
}

/// Adds each row of `dx` to its token's and its position's gradient.
pub(super) fn backward(
    team: &Team,
    tokens: &[u32],
    cols: usize,
    dx: &[f32],
    dwte: &mut [f32],
    dwpe: &mut [f32],
    c: usize,
) {
    let dwte = Columns::new(dwte, c);
    team.tasks(c.div_ceil(COLUMNS), |task, _| {
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
    let piece = piece(c);
    pieces(team, [], [(&mut dwpe[..cols * c], piece)], |i, [], [gradients]| {
        for (position, gradient) in gradients.chunks_exact_mut(c).enumerate() {
            for row in dx.chunks_exact(c).skip(i * piece / c + position).step_by(cols) {
                for (gradient, x) in gradient.iter_mut().zip(row) {
                    *gradient += x;
                }
            }
        }
    });
}
