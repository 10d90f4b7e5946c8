//! Cross-entropy over the vocabulary, forward and backward in one visit of each row.

use super::round;
use super::simd::{exp, max, multiversion, sum};
use crate::recipe::Precision;
use rayon::prelude::*;

multiversion! {
    // -log softmax(row)[target]; with a weight the row becomes weight · (softmax(row) - onehot(target)).
    fn row(row: &mut [f32], target: usize, weight: Option<f32>) -> f32 {
        let highest = max(row, f32::NEG_INFINITY);
        let score = row[target] - highest;
        let Some(weight) = weight else {
            return sum(row, |x| exp(x - highest)).ln() - score;
        };
        for x in row.iter_mut() {
            *x = exp(*x - highest);
        }
        let total = sum(row, |x| x);
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
