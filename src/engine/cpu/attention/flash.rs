//! Attention by tiles with an online softmax (Dao, 2023, FlashAttention-2, algorithms 1 and 2): memory linear in T.
//!
//! The tiles are matrix products by the same kernel as everywhere else, of operands that are packed once per head; of the
//! T x T scores only one tile exists at a time and the backward pass computes them again from the kept log-sum-exp of each row.

use super::Head;
use crate::engine::cpu::matmul::{ADD, Matrix, Panels, SET, Scaled, multiply};
use crate::engine::cpu::round;
use crate::engine::cpu::simd::{self, exp, exp_and_sum, multiversion};
use crate::plan::memory::{KEY_TILE, QUERY_TILE};

/// Where a tile lies in the matrix of scores.
#[derive(Clone, Copy)]
struct Tile {
    first_query: usize,
    queries: usize,
    first_key: usize,
    keys: usize,
}

impl Tile {
    /// How many keys of this tile query row `r` may see.
    #[inline(always)]
    fn visible(&self, r: usize) -> usize {
        (self.first_query + r + 1).saturating_sub(self.first_key).min(self.keys)
    }
}

/// The tiles along one axis: first index and length.
fn tiles(length: usize, size: usize) -> impl DoubleEndedIterator<Item = (usize, usize)> {
    (0..length.div_ceil(size)).map(move |i| (i * size, size.min(length - i * size)))
}

multiversion! {
    // Turns scores into exp(score - running maximum), updates maximum and sum of each row, and scales the rows of
    // `out` to the new maximum.
    fn online_softmax(tile: Tile, scores: &mut [f32], max: &mut [f32], total: &mut [f32], out: &mut [f32]) {
        let size = out.len() / tile.queries;
        let rows = scores.chunks_exact_mut(tile.keys).zip(out.chunks_exact_mut(size));
        for (r, (row, out)) in rows.enumerate() {
            let (seen, unseen) = row.split_at_mut(tile.visible(r));
            unseen.fill(0.0);
            let highest = simd::max(seen, max[r]);
            let tile_total = exp_and_sum(seen, highest);
            // the first tile of a row always shows it a key, so `highest` is a number from then on
            let correction = if max[r] == highest { 1.0 } else { exp(max[r] - highest) };
            total[r] = total[r] * correction + tile_total;
            max[r] = highest;
            if correction != 1.0 {
                for x in out {
                    *x *= correction;
                }
            }
        }
    }
}

multiversion! {
    fn divide_rows(out: &mut [f32], total: &[f32]) {
        let size = out.len() / total.len();
        for (row, total) in out.chunks_exact_mut(size).zip(total) {
            for x in row {
                *x /= total;
            }
        }
    }
}

multiversion! {
    // p = exp(score - lse) in place of the scores; dp becomes dscores = p · (dp - row_dot) · scale.
    fn scores_backward(tile: Tile, scores: &mut [f32], dp: &mut [f32], lse: &[f32], row_dots: &[f32], scale: f32) {
        let rows = scores.chunks_exact_mut(tile.keys).zip(dp.chunks_exact_mut(tile.keys));
        for (r, (row, dp)) in rows.enumerate() {
            let (visible, lse, dot) = (tile.visible(r), lse[r], row_dots[r]);
            for (x, dp) in row[..visible].iter_mut().zip(&mut dp[..visible]) {
                *x = exp(*x - lse);
                *dp = *x * (*dp - dot) * scale;
            }
            row[visible..].fill(0.0);
            dp[visible..].fill(0.0);
        }
    }
}

/// Returns the head's output, `[T, size]`, in scratch; `lse` gets the log-sum-exp of each row of scores.
pub(super) fn forward<'s>(head: &Head, lse: &mut [f32], scratch: &'s mut [f32]) -> &'s mut [f32] {
    let Head { precision, cols, size, qkv: [q, k, v], scale } = *head;
    let (out, scratch) = scratch.split_at_mut(cols * size);
    let (keys_panels, scratch) = Panels::pack(k.transposed(), scratch);
    let (values, scratch) = Panels::pack(v, scratch);
    let (scores, scratch) = scratch.split_at_mut(QUERY_TILE * KEY_TILE);
    let (max, scratch) = scratch.split_at_mut(QUERY_TILE);
    let (total, spare) = scratch.split_at_mut(QUERY_TILE);
    for (first_query, queries) in tiles(cols, QUERY_TILE) {
        let out = &mut out[first_query * size..][..queries * size];
        let (max, total) = (&mut max[..queries], &mut total[..queries]);
        max.fill(f32::NEG_INFINITY);
        total.fill(0.0);
        out.fill(0.0);
        // keys after the last query of this tile are seen by none of its rows
        for (first_key, keys) in tiles(first_query + queries, KEY_TILE) {
            let tile = Tile { first_query, queries, first_key, keys };
            let scores = &mut scores[..queries * keys];
            let (q, range) = (q.rows(first_query, queries), first_key..first_key + keys);
            let scaled = Scaled { scale, accumulate: false };
            multiply(scores, keys, q, keys_panels, 0..size, range.clone(), scaled, spare);
            online_softmax(tile, scores, max, total, out);
            round::slice(precision, scores);
            let p = Matrix::new(scores, queries, keys, keys);
            multiply(out, size, p, values, range, 0..size, ADD, spare);
        }
        divide_rows(out, total);
        let rows = lse[first_query..].iter_mut().zip(max.iter().zip(total.iter()));
        rows.for_each(|(lse, (max, total))| *lse = max + total.ln());
    }
    out
}

/// Writes the gradients of queries, keys and values, `[3, T, size]`.
pub(super) fn backward(
    head: &Head,
    lse: &[f32],
    dout: Matrix,
    row_dots: &[f32],
    gradients: &mut [f32],
    scratch: &mut [f32],
) {
    let Head { precision, cols, size, qkv: [q, k, v], scale } = *head;
    gradients.fill(0.0);
    let (dq, rest) = gradients.split_at_mut(cols * size);
    let (dk, dv) = rest.split_at_mut(cols * size);
    let (keys_across, scratch) = Panels::pack(k.transposed(), scratch);
    let (values_across, scratch) = Panels::pack(v.transposed(), scratch);
    let (keys_down, scratch) = Panels::pack(k, scratch);
    let (queries_down, scratch) = Panels::pack(q, scratch);
    let (dout_down, scratch) = Panels::pack(dout, scratch);
    let (scores, scratch) = scratch.split_at_mut(QUERY_TILE * KEY_TILE);
    let (dscores, spare) = scratch.split_at_mut(QUERY_TILE * KEY_TILE);
    for (first_query, queries) in tiles(cols, QUERY_TILE) {
        let (q, dout) = (q.rows(first_query, queries), dout.rows(first_query, queries));
        let seen_by = first_query..first_query + queries;
        let dq = &mut dq[first_query * size..][..queries * size];
        for (first_key, keys) in tiles(first_query + queries, KEY_TILE) {
            let tile = Tile { first_query, queries, first_key, keys };
            let (scores, dscores) = (&mut scores[..queries * keys], &mut dscores[..queries * keys]);
            let range = first_key..first_key + keys;
            let dk = &mut dk[first_key * size..][..keys * size];
            let dv = &mut dv[first_key * size..][..keys * size];
            let scaled = Scaled { scale, accumulate: false };
            multiply(scores, keys, q, keys_across, 0..size, range.clone(), scaled, spare);
            multiply(dscores, keys, dout, values_across, 0..size, range.clone(), SET, spare);
            scores_backward(tile, scores, dscores, &lse[first_query..], &row_dots[first_query..], scale);
            round::slice(precision, scores);
            round::slice(precision, dscores);
            let p = Matrix::new(scores, queries, keys, keys);
            let ds = Matrix::new(dscores, queries, keys, keys);
            multiply(dv, size, p.transposed(), dout_down, seen_by.clone(), 0..size, ADD, spare);
            multiply(dk, size, ds.transposed(), queries_down, seen_by.clone(), 0..size, ADD, spare);
            multiply(dq, size, ds, keys_down, range, 0..size, ADD, spare);
        }
    }
}
