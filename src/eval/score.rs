//! Computing the losses of a task's endings.

use super::rows::{Packed, rows_of};
use super::{Kind, Passes, Share, Task};
use crate::engine::{Batch, Engine, EngineError};
use std::ops::ControlFlow;

/// What a model makes of one example.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The example's number in its file, from 0.
    pub example: usize,
    /// The sum of the losses of each ending's tokens, in nats.
    pub sums: Vec<f64>,
    /// Of a last word: whether a greedy choice gives each of its tokens.
    pub is_greedy: bool,
}

/// The answers of a share of the examples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scored {
    /// In the order of the file.
    pub answers: Vec<Answer>,
    /// Tokens that were read.
    pub tokens: u64,
    /// Tokens that were computed, with those that fill up rows.
    pub computed: u64,
}

/// Computes the losses of the examples that are in `share`, `micro_batch` rows at a time. The numbers depend on neither
/// but for their last digits. `before` is asked before each pass; when it breaks, the result is `None`.
///
/// # Errors
/// [`EngineError`] as `E`, or what `before` returns.
///
/// # Panics
/// Where `micro_batch` is 0, or the engine takes fewer rows or shorter ones than the task was encoded for.
pub fn score<E: From<EngineError>>(
    engine: &mut dyn Engine,
    task: &Task,
    micro_batch: usize,
    share: Share,
    mut before: impl FnMut(Passes) -> Result<ControlFlow<()>, E>,
) -> Result<Option<Scored>, E> {
    assert!(micro_batch > 0, "micro_batch must be positive");
    let rows = rows_of(task, share);
    let mut scored = Scored::default();
    let own = (share.rank..task.examples.len()).step_by(share.ranks);
    scored.answers.extend(own.map(|example| Answer {
        example,
        sums: vec![0.0; task.examples[example].candidates.len()],
        is_greedy: task.kind == Kind::LastWord,
    }));
    let (mut packed, mut asked) = (Packed::default(), Vec::new());
    let total = rows.len().div_ceil(micro_batch);
    for (done, rows) in rows.chunks(micro_batch).enumerate() {
        if before(Passes { done, total })?.is_break() {
            return Ok(None);
        }
        packed.fill(task, rows);
        let cols = packed.cols;
        // the positions whose targets are the ending's tokens
        let ending = |place: usize| {
            let candidate = rows[place].of(task);
            let end = place * cols + candidate.tokens.len() - 1;
            end - candidate.scored..end
        };
        asked.clear();
        if task.kind == Kind::LastWord {
            asked.extend((0..rows.len()).flat_map(ending));
        }
        let batch = Batch { inputs: &packed.inputs, targets: &packed.targets, rows: rows.len(), cols };
        let found = engine.token_losses(batch, &asked)?;
        let mut greedy = found.is_greedy.as_slice();
        for (place, row) in rows.iter().enumerate() {
            let answer = &mut scored.answers[(row.example - share.rank) / share.ranks];
            let losses = &found.losses[ending(place)];
            answer.sums[row.candidate] = losses.iter().map(|&loss| f64::from(loss)).sum();
            if task.kind == Kind::LastWord {
                let (own, others) = greedy.split_at(losses.len());
                answer.is_greedy = own.iter().all(|&one| one);
                greedy = others;
            }
        }
        scored.tokens += packed.tokens as u64;
        scored.computed += (rows.len() * cols) as u64;
    }
    Ok(Some(scored))
}
