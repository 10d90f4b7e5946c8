//! Cross-entropy over the vocabulary, forward and backward in one visit of each row.

use super::pool::{piece, pieces};
use super::round;
use super::simd::{exp, exp_and_sum, max, multiversion, sum};
use super::team::Team;
use crate::recipe::Precision;
use std::f32::consts::LOG2_E;

/// A row is cut into at most this many blocks, each of which stays in the first-level cache.
const BLOCKS: usize = 64;
/// Elements of a block at least.
const BLOCK: usize = 1024;

multiversion! {
    // -log softmax(row)[target]; with a weight the row becomes weight · (softmax(row) - onehot(target)). Each block
    // has a maximum of its own, so that the row is read twice and not three times.
    fn row(row: &mut [f32], target: usize, weight: Option<f32>) -> f32 {
        let block = row.len().div_ceil(BLOCKS).max(BLOCK);
        let score = row[target];
        let (mut highest, mut totals) = ([f32::NEG_INFINITY; BLOCKS], [0.0; BLOCKS]);
        for ((x, highest), total) in row.chunks_mut(block).zip(&mut highest).zip(&mut totals) {
            *highest = max(x, f32::NEG_INFINITY);
            *total = match weight {
                Some(_) => exp_and_sum::<FMA>(x, *highest, LOG2_E),
                None => sum(x, |x| exp::<FMA>(x - *highest)),
            };
        }
        let top = max(&highest, f32::NEG_INFINITY);
        let used = row.len().div_ceil(block);
        let mut total = 0.0;
        for (sum, highest) in totals.iter().zip(highest).take(used) {
            total += sum * exp::<FMA>(highest - top);
        }
        if let Some(weight) = weight {
            for (x, highest) in row.chunks_mut(block).zip(highest) {
                let factor = exp::<FMA>(highest - top) * weight / total;
                for x in x {
                    *x *= factor;
                }
            }
            row[target] -= weight;
        }
        libm::logf(total) - (score - top)
    }
}

/// The columns of the logits: `width` in all, of which the first `vocab_size` count.
#[derive(Clone, Copy)]
pub(super) struct LogitColumns {
    pub(super) width: usize,
    pub(super) vocab_size: usize,
}

/// Losses of all rows of `logits`, which become their gradient times `weight` where there is one.
pub(super) fn cross_entropy(
    team: &Team,
    precision: Precision,
    logits: &mut [f32],
    LogitColumns { width, vocab_size }: LogitColumns,
    targets: &[u32],
    losses: &mut [f32],
    weight: Option<f32>,
) {
    let rows = piece(width) / width;
    pieces(team, [], [(logits, rows * width), (losses, rows)], |i, [], [logits, losses]| {
        let targets = &targets[i * rows..];
        for ((logits, loss), &target) in logits.chunks_exact_mut(width).zip(losses).zip(targets) {
            let (real, padding) = logits.split_at_mut(vocab_size);
            *loss = row(real, target as usize, weight);
            if weight.is_some() {
                round::slice(precision, real);
                padding.fill(0.0);
            }
        }
    });
}
