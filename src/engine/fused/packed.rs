//! The tokens of a batch that the losses at some positions depend on, each computed once.
//!
//! A causal model's activations at a position depend on the tokens up to it only. So rows that begin alike share their
//! beginning, which is computed once, and what lies behind a row's last position of interest is not computed at all.
//! Attention alone needs whole rows: its input is spread over them, and its output collected again.

use super::backend::Backend;
use super::pace::Pace;
use super::{Fused, Shape, Tokens};
use crate::engine::{Batch, EngineError, Next, TokenLosses, is_greedy};
use std::collections::HashMap;

/// Which token of a batch is computed where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packed {
    /// The tokens that are computed, with their positions.
    pub computed: Vec<Next>,
    /// For each place of the batch, `[rows, cols]`, which of them it shows; the first one where none is needed.
    pub places: Vec<u32>,
    /// For each token that is computed, a place that shows it.
    pub shown: Vec<u32>,
    /// For each position of interest, in their order, the token that is computed there.
    pub asked: Vec<u32>,
    /// The target of each position of interest.
    pub targets: Vec<u32>,
    /// Tokens among `computed` that are no filling.
    pub needed: usize,
}

/// Which rows of packed tokens are gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gather {
    /// From tokens that are computed to the places of the batch.
    Places,
    /// From places of the batch to tokens that are computed.
    Computed,
    /// From tokens that are computed to positions of interest.
    Asked,
}

impl Packed {
    /// The rows to take.
    pub fn rows(&self, of: Gather) -> &[u32] {
        match of {
            Gather::Places => &self.places,
            Gather::Computed => &self.shown,
            Gather::Asked => &self.asked,
        }
    }

    /// What the ascending positions `at` of the batch need; tokens and positions of interest are filled up to multiples
    /// of `step`, while they are no more than `most`.
    ///
    /// # Panics
    /// Where `at` is empty, does not ascend or leaves the batch.
    pub(in crate::engine) fn new(batch: &Batch, at: &[usize], step: usize, most: usize) -> Self {
        let Batch { inputs, targets, rows, cols, .. } = *batch;
        assert!(
            at.is_sorted() && at.last().is_some_and(|&last| last < rows * cols),
            "{at:?} in {rows} x {cols}"
        );
        let mut packed = Self {
            computed: Vec::new(),
            places: vec![0; rows * cols],
            shown: Vec::new(),
            asked: Vec::with_capacity(at.len()),
            targets: Vec::with_capacity(at.len()),
            needed: 0,
        };
        // by the token and what it comes after
        let mut known: HashMap<(Option<u32>, u32), u32> = HashMap::new();
        let mut left = at;
        for row in 0..rows {
            let (own, others) = left.split_at(left.partition_point(|&at| at < (row + 1) * cols));
            left = others;
            let Some(&last) = own.last() else { continue };
            let mut before = None;
            for (place, &token) in inputs.iter().enumerate().take(last + 1).skip(row * cols) {
                let number = *known.entry((before, token)).or_insert_with(|| {
                    packed.computed.push(Next { sequence: 0, position: place % cols, token });
                    packed.shown.push(place as u32);
                    packed.shown.len() as u32 - 1
                });
                packed.places[place] = number;
                before = Some(number);
            }
            packed.asked.extend(own.iter().map(|&place| packed.places[place]));
            packed.targets.extend(own.iter().map(|&place| targets[place]));
        }
        packed.needed = packed.computed.len();
        let filled = |len: usize| len.next_multiple_of(step).min(most).max(len);
        let (tokens, asked) = (filled(packed.computed.len()), filled(packed.asked.len()));
        packed.computed.resize(tokens, packed.computed[0]);
        packed.shown.resize(tokens, packed.shown[0]);
        packed.asked.resize(asked, packed.asked[0]);
        packed.targets.resize(asked, packed.targets[0]);
        packed
    }
}

impl<B: Backend> Fused<B> {
    /// See [`losses_at`](crate::engine::Engine::losses_at).
    pub(super) fn packed_losses(
        &mut self,
        batch: &Batch,
        at: &[usize],
        greedy: bool,
    ) -> Result<TokenLosses, EngineError> {
        let shape = self.check_tokens(batch);
        let mut found = TokenLosses::default();
        if at.is_empty() {
            return Ok(found);
        }
        let packed = Packed::new(batch, at, self.backend.row_step(), self.plan.config.tokens());
        let shape = Shape { tokens: Tokens::Packed, n: packed.computed.len(), ..shape };
        found.computed = packed.needed;
        self.backend.upload_packed(&packed);
        let _ = self.forward(shape, &mut Pace::unwatched());
        let (arena, dims, c) = (self.plan.arena.clone(), self.plan.config.dims, shape.c);
        let rows = packed.asked.len();
        let input = arena.delta.head(rows * c);
        self.backend.gather(Gather::Asked, arena.ln.head(shape.n * c), input, c);
        for first in (0..rows).step_by(arena.chunk) {
            let chunk = self.chunk_of_head(input, first, false);
            // a chunk may hold nothing but filling
            let own = first.min(at.len())..at.len().min(first + chunk.losses.len);
            for (row, &target) in packed.targets[own].iter().enumerate().filter(|_| greedy) {
                let logits = chunk.logits.slice(row * dims.padded_vocab, dims.vocab_size);
                found.is_greedy.push(is_greedy(&self.backend.download(logits)?, target));
            }
        }
        found.losses = self.backend.download(arena.losses.head(at.len()))?.into_owned();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(inputs: &[u32], cols: usize) -> Batch<'_> {
        Batch { inputs, targets: inputs, rows: inputs.len() / cols, cols, first_row: 0 }
    }

    #[test]
    fn rows_that_begin_alike_share_their_beginning() {
        let inputs = [7, 8, 9, 5, 7, 8, 6, 0, 8, 9, 0, 0];
        let packed = Packed::new(&batch(&inputs, 4), &[1, 3, 5, 6, 9], 1, 12);
        let tokens: Vec<_> = packed.computed.iter().map(|one| (one.token, one.position)).collect();
        assert_eq!(tokens, [(7, 0), (8, 1), (9, 2), (5, 3), (6, 2), (8, 0), (9, 1)]);
        assert_eq!(packed.places, [0, 1, 2, 3, 0, 1, 4, 0, 5, 6, 0, 0]);
        assert_eq!(packed.shown, [0, 1, 2, 3, 6, 8, 9]);
        assert_eq!(packed.asked, [1, 3, 1, 4, 6]);
        assert_eq!(packed.targets, [8, 5, 8, 6, 9]);
    }

    #[test]
    fn what_nothing_is_asked_about_is_left_out_and_the_rest_filled_up() {
        let inputs = [1, 2, 3, 1, 2, 3];
        let packed = Packed::new(&batch(&inputs, 3), &[4], 4, 6);
        assert_eq!((packed.needed, packed.computed.len(), packed.asked.len()), (2, 4, 4));
        assert_eq!(packed.places, [0, 0, 0, 0, 1, 0]);
        assert_eq!((packed.shown, packed.asked), (vec![3, 4, 3, 3], vec![1; 4]));
        let packed = Packed::new(&batch(&inputs, 3), &[2, 5], 4, 3);
        assert_eq!((packed.computed.len(), packed.asked.len()), (3, 3), "no more than there is room for");
    }

    #[test]
    #[should_panic(expected = "in 1 x 3")]
    fn positions_outside_the_batch_are_refused() {
        Packed::new(&batch(&[1, 2, 3], 3), &[3], 1, 3);
    }
}
