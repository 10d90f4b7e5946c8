//! The rows that are verified on: the recipe's own data where it can be had, else random tokens.

use super::scope::Scope;
use crate::data::{self, TokenStream};
use crate::engine::verify::MicroBatch;
use crate::model::init::random_bits;
use crate::recipe::{DataConfig, Recipe};
use crate::session::Data;
use crate::session::inputs::{Limits, cache};
use std::path::Path;

/// Where rows come from.
pub(super) enum Rows {
    /// The recipe's training data. Boxed: it is much larger than the alternative.
    Data(Box<Data>),
    /// Nothing: uniform random tokens.
    Random,
}

impl Rows {
    /// Opens the recipe's data for sequences of `block_size` tokens. Verification needs no particular tokens, so data
    /// that is not there yet is no reason to refuse.
    pub(super) fn open(
        recipe: &Recipe,
        block_size: usize,
        runs_dir: &Path,
        progress: &dyn data::Progress,
    ) -> Self {
        let config = DataConfig { val: Vec::new().into(), val_main: None, ..recipe.data.clone() };
        let cache = &cache(runs_dir);
        let limits = Limits { block_size, vocab_size: recipe.model.vocab_size };
        Data::open(&config, limits, cache, progress).map_or(Self::Random, |data| Self::Data(Box::new(data)))
    }

    /// What to call them.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Data(_) => "the recipe's data",
            Self::Random => "random tokens",
        }
    }

    /// The micro-batches of one step.
    pub(super) fn step(&self, recipe: &Recipe, scope: &Scope, step: usize) -> Vec<MicroBatch> {
        let (rows, cols) = (scope.micro_batch, scope.block_size);
        let micro_batch = |micro_step| {
            let index = (step * scope.micro_steps + micro_step) as u64;
            let first_row = index * rows as u64;
            let (mut inputs, mut targets) = (vec![0; rows * cols], vec![0; rows * cols]);
            match self {
                Self::Data(data) => {
                    let stream = TokenStream::new(&data.train, recipe.seed, recipe.data.shuffle);
                    stream.fill(first_row, rows, &mut inputs, &mut targets);
                }
                Self::Random => {
                    let key = random_bits(recipe.seed, index);
                    let token =
                        |i: usize| (random_bits(key, i as u64) % recipe.model.vocab_size as u64) as u32;
                    inputs.iter_mut().enumerate().for_each(|(i, t)| *t = token(i));
                    targets.iter_mut().enumerate().for_each(|(i, t)| *t = token(i + 1));
                }
            }
            MicroBatch { inputs, targets, rows, cols, first_row }
        };
        (0..scope.micro_steps).map(micro_batch).collect()
    }
}
