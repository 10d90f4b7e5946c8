//! Attention by tiles with an online softmax (Dao, 2023, FlashAttention-2, algorithms 1 and 2): memory linear in T.
//!
//! The tiles are matrix products by the same kernel as everywhere else, of operands that are packed once per head; of
//! the T x T scores only one tile exists at a time and the backward pass computes them again from the kept
//! log-sum-exp of each row. A few queries at a time go through all steps, so that their scores stay in the
//! first-level cache and no key is multiplied that none of them sees. Scores and their log-sum-exp are to the base 2:
//! 2^x takes fewer instructions than e^x.

use super::Head;
use crate::engine::cpu::dropout::{drop_backward, drop_keys};
use crate::engine::cpu::matmul::{ADD, Matrix, Panels, SET, Scaled, multiply};
use crate::engine::cpu::round;
use crate::engine::cpu::scratch::{KEY_STRIP, PANEL_COLS, SCORE_STRIDE, SCORE_TILE, TILE_ROWS};
use crate::engine::cpu::simd::{self, exp_and_sum, exp2, multiversion};
use crate::engine::dropout::Draw;
use std::f32::consts::LOG2_E;

/// Some queries and some keys; the first query sees at least one key.
#[derive(Clone, Copy)]
pub(super) struct Strip {
    pub(super) first_query: usize,
    pub(super) queries: usize,
    pub(super) first_key: usize,
    pub(super) keys: usize,
}

impl Strip {
    /// How many keys query `r` of this strip sees.
    #[inline(always)]
    fn visible(&self, r: usize) -> usize {
        (self.first_query + r + 1 - self.first_key).min(self.keys)
    }

    /// How many keys the last query sees.
    #[inline(always)]
    fn depth(&self) -> usize {
        self.visible(self.queries - 1)
    }

    /// The keys that the last query sees, rounded up to whole panels and cut at the last key.
    fn width(&self) -> usize {
        self.depth().next_multiple_of(PANEL_COLS).min(self.keys)
    }
}

/// The tiles along one axis: first index and length.
pub(super) fn tiles(length: usize, size: usize) -> impl DoubleEndedIterator<Item = (usize, usize)> {
    (0..length.div_ceil(size)).map(move |i| (i * size, size.min(length - i * size)))
}

multiversion! {
    // Turns scores, in rows `stride` apart, into 2^(score - running maximum), updates maximum and sum of each row,
    // and scales the rows of `out`, if any, to the new maximum.
    pub(super) fn online_softmax(
        strip: Strip, scores: &mut [f32], stride: usize, max: &mut [f32], total: &mut [f32], out: &mut [f32],
    ) {
        let size = out.len() / strip.queries;
        for r in 0..strip.queries {
            let (seen, unseen) = scores[r * stride..][..strip.depth()].split_at_mut(strip.visible(r));
            unseen.fill(0.0);
            let highest = simd::max(seen, max[r]);
            let strip_total = exp_and_sum::<FMA>(seen, highest, 1.0);
            if max[r] == highest {
                total[r] += strip_total;
            } else {
                let correction = exp2::<FMA>(max[r] - highest);
                total[r] = total[r] * correction + strip_total;
                max[r] = highest;
                for x in &mut out[r * size..][..size] {
                    *x *= correction;
                }
            }
        }
    }
}

multiversion! {
    pub(super) fn divide_rows(out: &mut [f32], total: &[f32]) {
        let size = out.len() / total.len();
        for (row, total) in out.chunks_exact_mut(size).zip(total) {
            for x in row {
                *x /= total;
            }
        }
    }
}

multiversion! {
    // p = 2^(score - lse) in place of the scores; dp becomes dscores = p · (dp - row_dot) · scale. Rows are `stride`
    // apart.
    fn scores_backward(
        strip: Strip, scores: &mut [f32], dp: &mut [f32], stride: usize, lse: &[f32], row_dots: &[f32], scale: f32,
    ) {
        for r in 0..strip.queries {
            let (visible, lse, dot) = (strip.visible(r), lse[r], row_dots[r]);
            let (row, dp) = (&mut scores[r * stride..][..strip.depth()], &mut dp[r * stride..][..strip.depth()]);
            for (x, dp) in row[..visible].iter_mut().zip(&mut dp[..visible]) {
                *x = exp2::<FMA>(*x - lse);
                *dp = *x * (*dp - dot) * scale;
            }
            row[visible..].fill(0.0);
            dp[visible..].fill(0.0);
        }
    }
}

/// [`scores_backward`] through dropout: p is left times its factor, as it is multiplied.
fn dropped_backward(
    strip: Strip,
    draw: &Draw,
    scores: &mut [f32],
    dp: &mut [f32],
    (lse, row_dots): (&[f32], &[f32]),
    scale: f32,
) {
    let Strip { first_query, queries, first_key, .. } = strip;
    let rows = scores.chunks_exact_mut(SCORE_STRIDE).zip(dp.chunks_exact_mut(SCORE_STRIDE));
    for (r, (scores, dp)) in rows.enumerate().take(queries) {
        let (seen, unseen) = scores[..strip.depth()].split_at_mut(strip.visible(r));
        let (dseen, dunseen) = dp[..strip.depth()].split_at_mut(strip.visible(r));
        let at = (first_query + r, first_key);
        drop_backward(draw, at, seen, dseen, lse[r], row_dots[r], scale);
        unseen.fill(0.0);
        dunseen.fill(0.0);
    }
}

/// Returns the head's output, `[T, size]`, in scratch; `lse` gets the log-sum-exp of each row of scores.
pub(super) fn forward<'s>(head: &Head, lse: &mut [f32], scratch: &'s mut [f32]) -> &'s mut [f32] {
    let Head { precision, cols, size, qkv: [q, k, v], scale, draw } = *head;
    let (out, scratch) = scratch.split_at_mut(cols * size);
    let (keys_panels, scratch) = Panels::pack(k.transposed(), scratch);
    let (values, scratch) = Panels::pack(v, scratch);
    let (scores, scratch) = scratch.split_at_mut(TILE_ROWS * KEY_STRIP);
    let (total, spare) = scratch.split_at_mut(cols);
    let max = lse;
    max.fill(f32::NEG_INFINITY);
    total.fill(0.0);
    // many queries for each part of the keys while that is in a cache
    for (first_tile, tile) in tiles(cols, SCORE_TILE) {
        for (first_key, keys) in tiles(first_tile + tile, KEY_STRIP) {
            for (first, queries) in tiles(tile, TILE_ROWS) {
                let first_query = first_tile + first;
                let strip = Strip { first_query, queries, first_key, keys };
                let rows = first_query..first_query + queries;
                let (depth, width) = (strip.depth(), strip.width());
                let q = q.rows(first_query, queries);
                let scaled = Scaled { scale: scale * LOG2_E, accumulate: false };
                multiply(scores, width, q, keys_panels, 0..size, first_key..first_key + width, scaled, spare);
                let before =
                    if first_key > 0 { &mut out[rows.start * size..rows.end * size] } else { &mut [] };
                online_softmax(
                    strip,
                    scores,
                    width,
                    &mut max[rows.clone()],
                    &mut total[rows.clone()],
                    before,
                );
                if let Some(draw) = &draw {
                    for (r, p) in scores[..queries * width].chunks_exact_mut(width).enumerate() {
                        drop_keys(draw, first_query + r, first_key, &mut p[..strip.visible(r)]);
                    }
                }
                round::slice(precision, &mut scores[..queries * width]);
                let p = Matrix::new(scores, queries, depth, width);
                let (out, seen) =
                    (&mut out[rows.start * size..rows.end * size], first_key..first_key + depth);
                let how = if first_key > 0 { ADD } else { SET };
                multiply(out, size, p, values, seen, 0..size, how, spare);
            }
        }
    }
    divide_rows(out, total);
    max.iter_mut().zip(total).for_each(|(max, total)| *max += libm::log2f(*total));
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
    let Head { precision, cols, size, qkv: [q, k, v], scale, draw } = *head;
    gradients.fill(0.0);
    let (dq, rest) = gradients.split_at_mut(cols * size);
    let (dk, dv) = rest.split_at_mut(cols * size);
    let (keys_across, scratch) = Panels::pack(k.transposed(), scratch);
    let (values_across, scratch) = Panels::pack(v.transposed(), scratch);
    let (keys_down, scratch) = Panels::pack(k, scratch);
    let (queries_down, scratch) = Panels::pack(q, scratch);
    let (dout_down, scratch) = Panels::pack(dout, scratch);
    let (scores, scratch) = scratch.split_at_mut(SCORE_TILE * SCORE_STRIDE);
    let (dscores, spare) = scratch.split_at_mut(SCORE_TILE * SCORE_STRIDE);
    for (first_tile, tile) in tiles(cols, SCORE_TILE) {
        for (first_key, keys) in tiles(first_tile + tile, SCORE_TILE) {
            for (first, queries) in tiles(tile, TILE_ROWS) {
                let first_query = first_tile + first;
                let strip = Strip { first_query, queries, first_key, keys };
                let (depth, width) = (strip.depth(), strip.width());
                let (p, ds) = (&mut scores[first * SCORE_STRIDE..], &mut dscores[first * SCORE_STRIDE..]);
                let (p, ds) = (&mut p[..queries * SCORE_STRIDE], &mut ds[..queries * SCORE_STRIDE]);
                let (q, dout) = (q.rows(first_query, queries), dout.rows(first_query, queries));
                let across = first_key..first_key + width;
                let scaled = Scaled { scale: scale * LOG2_E, accumulate: false };
                multiply(p, SCORE_STRIDE, q, keys_across, 0..size, across.clone(), scaled, spare);
                multiply(ds, SCORE_STRIDE, dout, values_across, 0..size, across, SET, spare);
                let (lse, dots) = (&lse[first_query..], &row_dots[first_query..]);
                match &draw {
                    None => scores_backward(strip, p, ds, SCORE_STRIDE, lse, dots, scale),
                    Some(draw) => dropped_backward(strip, draw, p, ds, (lse, dots), scale),
                }
                round::slice(precision, p);
                round::slice(precision, ds);
                let ds = Matrix::new(ds, queries, depth, SCORE_STRIDE);
                let dq = &mut dq[first_query * size..][..queries * size];
                multiply(dq, size, ds, keys_down, first_key..first_key + depth, 0..size, ADD, spare);
            }
            let [p, ds] = [&*scores, &*dscores].map(|x| Matrix::new(x, tile, keys, SCORE_STRIDE));
            for (first, keys) in tiles(keys, TILE_ROWS) {
                // queries before these keys do not see them
                let unseeing = (first_key + first).saturating_sub(first_tile);
                let [p, ds] =
                    [p, ds].map(|x| x.rows(unseeing, tile - unseeing).cols(first, keys).transposed());
                let seen_by = first_tile + unseeing..first_tile + tile;
                let at = (first_key + first) * size..(first_key + first + keys) * size;
                multiply(&mut dv[at.clone()], size, p, dout_down, seen_by.clone(), 0..size, ADD, spare);
                multiply(&mut dk[at], size, ds, queries_down, seen_by, 0..size, ADD, spare);
            }
        }
    }
}
