//! Dropout's kernels: factors are drawn where they are used, so no mask is kept.

use super::pool::{piece, pieces};
use super::round;
use super::simd::{exp2, multiversion};
use super::team::Team;
use crate::engine::dropout::{Draw, Dropout, Site};
use crate::recipe::Precision;

/// What is drawn for the rows of a batch at a site.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drawn {
    pub(super) dropout: Dropout,
    pub(super) site: Site,
    /// The training row that the batch begins with.
    pub(super) first_row: u64,
    /// Tokens of a row.
    pub(super) cols: usize,
}

impl Drawn {
    /// For a row of the batch and a head of attention.
    pub(super) fn of_head(&self, row: usize, head: usize) -> Draw {
        self.dropout.draw(self.first_row + row as u64, self.site, head)
    }

    /// For a token of the batch, with its position.
    fn of_token(&self, n: usize) -> (Draw, usize) {
        (self.of_head(n / self.cols, 0), n % self.cols)
    }
}

multiversion! {
    // Multiplies the channels at a position by their factors.
    fn drop_channels(draw: &Draw, position: usize, x: &mut [f32]) {
        for (i, x) in x.chunks_mut(64).enumerate() {
            let factors = draw.channels(position, i * 64);
            for (x, factor) in x.iter_mut().zip(factors) {
                *x *= factor;
            }
        }
    }
}

multiversion! {
    // Multiplies the probabilities of keys from `first_key` on, a multiple of 16, for a query by their factors.
    pub(super) fn drop_keys(draw: &Draw, query: usize, first_key: usize, p: &mut [f32]) {
        for (i, p) in p.chunks_mut(32).enumerate() {
            let factors = draw.keys(query, first_key + i * 32);
            for (p, factor) in p.iter_mut().zip(factors) {
                *p *= factor;
            }
        }
    }
}

multiversion! {
    // The scores of a query for the keys from the first one on, a multiple of 16, become p = 2^(score - lse) times its
    // factor; dp, the gradient of that, becomes the scores', p · (factor · dp - row_dot) · scale.
    pub(super) fn drop_backward(
        draw: &Draw, query_and_first_key: (usize, usize), scores: &mut [f32], dp: &mut [f32], lse: f32, row_dot: f32,
        scale: f32,
    ) {
        let (query, first_key) = query_and_first_key;
        for (i, (scores, dp)) in scores.chunks_mut(32).zip(dp.chunks_mut(32)).enumerate() {
            let factors = draw.keys(query, first_key + i * 32);
            for ((score, dp), factor) in scores.iter_mut().zip(dp).zip(factors) {
                let p = exp2::<FMA>(*score - lse);
                *dp = p * (*dp * factor - row_dot) * scale;
                *score = p * factor;
            }
        }
    }
}

/// Rows of tokens `[_, C]`, the first of which is token `first` of the batch, times their factors.
pub(super) fn rows(drawn: &Drawn, first: usize, x: &mut [f32], c: usize) {
    for (n, row) in x.chunks_exact_mut(c).enumerate() {
        let (draw, position) = drawn.of_token(first + n);
        drop_channels(&draw, position, row);
    }
}

/// `x [N, C]` times its factors, on all threads.
pub(super) fn in_place(team: &Team, drawn: &Drawn, x: &mut [f32], c: usize) {
    let piece = piece(c);
    pieces(team, [], [(x, piece)], |i, [], [x]| rows(drawn, i * piece / c, x, c));
}

/// `to = from [N, C]` times its factors, rounded, on all threads.
pub(super) fn copy(team: &Team, precision: Precision, drawn: &Drawn, from: &[f32], to: &mut [f32], c: usize) {
    let piece = piece(c);
    pieces(team, [(from, piece)], [(to, piece)], |i, [from], [to]| {
        to.copy_from_slice(from);
        rows(drawn, i * piece / c, to, c);
        round::slice(precision, to);
    });
}
