//! Text from a model: one token after another from the softmax of its logits.
//!
//! Where the engine keeps keys and values, each further token takes a pass over one token per sequence instead of one
//! over the whole text. A text that has outgrown the context moves: every position in it changes, and with it every key
//! and value, so from then on each token takes a pass over the last `block_size` tokens.

use crate::engine::{Engine, EngineError, Next};
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
    /// Of these, only the most likely whose probabilities together reach this may be drawn (Holtzman et al., 2020); 1 =
    /// all.
    pub top_p: f64,
}

/// What a text begins with, and what seeds its draws.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beginning {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// Seeds the draws.
    pub seed: u64,
}

/// Continues texts, as many at a time as the engine keeps keys and values of; the model sees at most the last
/// `block_size` tokens of each. Returns prompts and continuations. Calls `each` with the number of a text and its new
/// token, and ends that text early when it breaks. What else is continued at the same time changes no text on the CPU.
///
/// # Errors
/// [`EngineError::NotFinite`] where logits are no numbers, and where the engine fails.
pub fn generate(
    engine: &mut dyn Engine,
    block_size: usize,
    beginnings: &[Beginning],
    sampling: &Sampling,
    mut each: impl FnMut(usize, u32) -> ControlFlow<()>,
) -> Result<Vec<Vec<u32>>, EngineError> {
    let mut texts: Vec<Vec<u32>> = beginnings.iter().map(|beginning| beginning.prompt.clone()).collect();
    let at_once = engine.sequences().max(1);
    for first in (0..texts.len()).step_by(at_once) {
        let mut open: Vec<usize> = (first..texts.len().min(first + at_once)).collect();
        for i in 0..sampling.tokens {
            let logits = next_logits(engine, block_size, first, &texts, &open, i == 0)?;
            if logits.iter().flatten().any(|logit| !logit.is_finite()) {
                return Err(EngineError::NotFinite);
            }
            let mut logits = logits.iter();
            open.retain(|&text| {
                let logits = logits.next().expect("logits for each open text");
                // 53 random bits as a number in [0, 1)
                let bits = random_bits(beginnings[text].seed, i as u64) >> 11;
                let next = draw(logits, sampling, bits as f64 / (1u64 << 53) as f64);
                texts[text].push(next);
                each(text, next).is_continue()
            });
            if open.is_empty() {
                break;
            }
        }
    }
    Ok(texts)
}

/// The logits after each of the open texts, the first of which is sequence 0 of the engine; `begin` if it has none of
/// them yet.
fn next_logits(
    engine: &mut dyn Engine,
    block_size: usize,
    first: usize,
    texts: &[Vec<u32>],
    open: &[usize],
    begin: bool,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let mut logits = vec![Vec::new(); open.len()];
    let (mut next, mut continued) = (Vec::new(), Vec::new());
    for (&text, logits) in open.iter().zip(&mut logits) {
        let (tokens, sequence) = (&texts[text], text - first);
        let seen = &tokens[tokens.len().saturating_sub(block_size)..];
        match tokens.split_last() {
            _ if engine.sequences() == 0 => *logits = engine.logits(seen, true)?,
            Some((&token, before)) if !begin && before.len() < block_size => {
                next.push(Next { sequence, position: before.len(), token });
                continued.push(logits);
            }
            _ => *logits = engine.begin_sequence(sequence, seen)?,
        }
    }
    if !next.is_empty() {
        let all = engine.continue_sequences(&next)?;
        for (row, logits) in all.chunks_exact(all.len() / next.len()).zip(continued) {
            *logits = row.to_vec();
        }
    }
    Ok(logits)
}

/// The token at the quantile `uniform` of the distribution over the logits, most likely first; equal logits in the
/// order of their ids.
fn draw(logits: &[f32], sampling: &Sampling, uniform: f64) -> u32 {
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if sampling.temperature <= 0.0 {
        return (0..logits.len() as u32).min_by(by_logit).expect("a vocabulary has tokens");
    }
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let keep = if sampling.top_k == 0 { ids.len() } else { sampling.top_k.min(ids.len()) };
    if keep < ids.len() {
        ids.select_nth_unstable_by(keep - 1, by_logit);
        ids.truncate(keep);
    }
    ids.sort_unstable_by(by_logit);
    if keep == 1 {
        return ids[0];
    }
    let highest = f64::from(logits[ids[0] as usize]);
    let weight = |id: u32| libm::exp((f64::from(logits[id as usize]) - highest) / sampling.temperature);
    let mut total = ids.iter().map(|&id| weight(id)).sum::<f64>();
    if sampling.top_p < 1.0 {
        let mut mass = 0.0;
        let reached = ids.iter().position(|&id| {
            mass += weight(id);
            mass >= sampling.top_p * total
        });
        ids.truncate(reached.map_or(ids.len(), |last| last + 1));
        total = ids.iter().map(|&id| weight(id)).sum();
    }
    let mut rest = uniform * total;
    for &id in &ids {
        rest -= weight(id);
        if rest < 0.0 {
            return id;
        }
    }
    ids[0]
}

#[cfg(test)]
mod tests;
