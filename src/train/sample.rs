//! Text from a model: one token after another from the softmax of its logits.

use crate::engine::{Engine, EngineError};
use crate::model::init::random_bits;
use std::ops::ControlFlow;

/// How tokens are drawn from the softmax of logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Tokens to generate.
    pub tokens: usize,
    /// Logits are divided by this; 0 takes the most likely token always.
    pub temperature: f64,
    /// Only the most likely this many tokens may be drawn; 0 = all.
    pub top_k: usize,
    /// Seeds the draws.
    pub seed: u64,
}

/// Continues a prompt; the model sees at most the last `block_size` tokens. Returns prompt and continuation. Calls
/// `each` with every new token and ends early when it breaks.
///
/// # Errors
/// Where the engine fails.
pub fn generate(
    engine: &mut dyn Engine,
    block_size: usize,
    prompt: &[u32],
    sampling: &Sampling,
    mut each: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Vec<u32>, EngineError> {
    let mut tokens = prompt.to_vec();
    for i in 0..sampling.tokens {
        let seen = &tokens[tokens.len().saturating_sub(block_size)..];
        let logits = engine.logits(seen, true)?;
        // 53 random bits as a number in [0, 1)
        let uniform = (random_bits(sampling.seed, i as u64) >> 11) as f64 / (1u64 << 53) as f64;
        let next = draw(&logits, sampling, uniform);
        tokens.push(next);
        if each(next).is_break() {
            break;
        }
    }
    Ok(tokens)
}

/// The token at the quantile `uniform` of the distribution over the logits, most likely first; equal logits in the
/// order of their ids.
fn draw(logits: &[f32], sampling: &Sampling, uniform: f64) -> u32 {
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let keep = match sampling.top_k {
        _ if sampling.temperature <= 0.0 => 1,
        0 => ids.len(),
        k => k.min(ids.len()),
    };
    if keep < ids.len() {
        ids.select_nth_unstable_by(keep - 1, by_logit);
        ids.truncate(keep);
    }
    ids.sort_unstable_by(by_logit);
    if keep == 1 {
        return ids[0];
    }
    let highest = f64::from(logits[ids[0] as usize]);
    let weight = |id: u32| ((f64::from(logits[id as usize]) - highest) / sampling.temperature).exp();
    let mut rest = uniform * ids.iter().map(|&id| weight(id)).sum::<f64>();
    for &id in &ids {
        rest -= weight(id);
        if rest < 0.0 {
            return id;
        }
    }
    ids[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f64, top_k: usize) -> Sampling {
        Sampling { tokens: 1, temperature, top_k, seed: 0 }
    }

    #[test]
    fn frequencies_are_the_softmax() {
        let logits = [1.0, 3.0, 2.0];
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let mut counts = [0; 3];
        for i in 0..10_000 {
            counts[draw(&logits, &sampling(1.0, 0), f64::from(i) / 10_000.0) as usize] += 1;
        }
        for (count, logit) in counts.iter().zip(logits) {
            assert!((f64::from(*count) / 10_000.0 - f64::from(logit).exp() / total).abs() < 1e-3);
        }
    }

    #[test]
    fn top_k_and_temperature_narrow_the_choice() {
        let logits = [1.0, 3.0, 2.0, 2.0];
        assert!((0..100).all(|i| draw(&logits, &sampling(0.0, 0), f64::from(i) / 100.0) == 1));
        assert!((0..100).all(|i| draw(&logits, &sampling(9.0, 1), f64::from(i) / 100.0) == 1));
        // of equal logits, the lower id
        assert!((0..100).all(|i| [1, 2].contains(&draw(&logits, &sampling(9.0, 2), f64::from(i) / 100.0))));
    }
}
