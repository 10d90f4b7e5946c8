//! Computing the losses of a task's endings.

use super::rows::{Padded, passes_of};
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
    /// Tokens that were computed: what several rows begin with counts once, if the engine computes it once.
    pub computed: u64,
}

/// Computes the losses of the examples that are in `share`, as many tokens at a time as `micro_batch` rows of the
/// model's context have. The numbers depend on neither but for their last digits. `before` is asked before each pass;
/// when it breaks, the result is `None`.
///
/// # Errors
/// [`EngineError`] as `E`, or what `before` returns.
///
/// # Panics
/// Where `micro_batch` is 0, or the engine takes fewer rows or shorter ones than the context that the task was encoded
/// for.
pub fn score<E: From<EngineError>>(
    engine: &mut dyn Engine,
    task: &Task,
    micro_batch: usize,
    share: Share,
    mut before: impl FnMut(Passes) -> Result<ControlFlow<()>, E>,
) -> Result<Option<Scored>, E> {
    assert!(micro_batch > 0, "micro_batch must be positive");
    let passes = passes_of(task, micro_batch, share);
    let mut scored = Scored::default();
    let own = (share.rank..task.examples.len()).step_by(share.ranks);
    scored.answers.extend(own.map(|example| Answer {
        example,
        sums: vec![0.0; task.examples[example].candidates.len()],
        is_greedy: task.kind == Kind::LastWord,
    }));
    let (mut padded, mut asked) = (Padded::default(), Vec::new());
    let total = passes.len();
    for (done, rows) in passes.iter().enumerate() {
        if before(Passes { done, total })?.is_break() {
            return Ok(None);
        }
        padded.fill(task, rows);
        let cols = padded.cols;
        // the positions whose targets are the ending's tokens
        let ending = |place: usize| {
            let end = place * cols + rows[place].len(task);
            end - rows[place].of(task).1.scored()..end
        };
        asked.clear();
        asked.extend((0..rows.len()).flat_map(ending));
        let batch =
            Batch { inputs: &padded.inputs, targets: &padded.targets, rows: rows.len(), cols, first_row: 0 };
        let found = engine.losses_at(batch, &asked, task.kind == Kind::LastWord)?;
        let (mut losses, mut greedy) = (found.losses.as_slice(), found.is_greedy.as_slice());
        for row in rows {
            let (answer, tokens) = (
                &mut scored.answers[(row.example as usize - share.rank) / share.ranks],
                row.of(task).1.scored(),
            );
            let own;
            (own, losses) = losses.split_at(tokens);
            answer.sums[row.candidate as usize] = own.iter().map(|&loss| f64::from(loss)).sum();
            if task.kind == Kind::LastWord {
                let own;
                (own, greedy) = greedy.split_at(tokens);
                answer.is_greedy = own.iter().all(|&one| one);
            }
        }
        scored.tokens += padded.tokens as u64;
        scored.computed += found.computed as u64;
    }
    Ok(Some(scored))
}
