//! Cross-entropy over the vocabulary, forward and backward in one visit of each row.

use super::round;
use super::simd::{LANES, exp, multiversion, sum};
use crate::recipe::Precision;
use rayon::prelude::*;

multiversion! {
    // -log softmax(row)[target]; with a weight the row becomes weight · (softmax(row) - onehot(target)).
    fn row(row: &mut [f32], target: usize, weight: Option<f32>) -> f32 {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for chunk in row.chunks(LANES) {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = if x > *lane { x } else { *lane };
            }
        }
        let max = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let score = row[target] - max;
        let Some(weight) = weight else {
            return sum(row.len(), |i| exp(row[i] - max)).ln() - score;
        };
        for x in row.iter_mut() {
            *x = exp(*x - max);
        }
        let total = sum(row.len(), |i| row[i]);
        let factor = weight / total;
        for x in row.iter_mut() {
            *x *= factor;
        }
        row[target] -= weight;
        total.ln() - score
    }
}

/// Losses of all rows of `logits` (`width` wide, of which `vocab_size` columns count).
pub(super) fn cross_entropy(
    precision: Precision,
    logits: &mut [f32],
    width: usize,
    targets: &[u32],
    losses: &mut [f32],
    vocab_size: usize,
    weight: Option<f32>,
) {
    logits.par_chunks_mut(width).zip(losses).zip(targets).for_each(|((logits, loss), &target)| {
        let (real, padding) = logits.split_at_mut(vocab_size);
        *loss = row(real, target as usize, weight);
        if weight.is_some() {
            round::slice(precision, real);
            padding.fill(0.0);
        }
    });
}
