//! The numbers that define a GPT-2.

use crate::recipe::ModelConfig;
use crate::recipe::keys::{Kind, find};
use std::ops::RangeInclusive;

/// The dimensions of a GPT-2 (Radford et al., 2019), in the field's usual names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Transformer blocks, L.
    pub n_layer: usize,
    /// Attention heads per block.
    pub n_head: usize,
    /// Width of the residual stream, C.
    pub n_embd: usize,
    /// Context length, T.
    pub block_size: usize,
    /// Token ids, V: only these take part in the softmax.
    pub vocab_size: usize,
    /// Rows of the token embedding, V rounded up to the recipe's `vocab_multiple`.
    pub padded_vocab: usize,
}

impl Dims {
    /// The dimensions that a resolved `[model]` table declares.
    pub fn new(model: &ModelConfig) -> Self {
        Self {
            n_layer: model.n_layer,
            n_head: model.n_head,
            n_embd: model.n_embd,
            block_size: model.block_size,
            vocab_size: model.vocab_size,
            padded_vocab: model.vocab_size.next_multiple_of(model.vocab_multiple.max(1)),
        }
    }

    /// The values that a dimension may have, by its name in `[model]`: as many for a file as for a recipe.
    pub fn range(name: &str) -> RangeInclusive<u64> {
        match find(&format!("model.{name}")).map(|key| &key.kind) {
            Some(&Kind::Integer { min, max }) => min.max(1) as u64..=max.max(1) as u64,
            _ => 1..=u64::from(u32::MAX),
        }
    }

    /// Width of one attention head, C / n_head.
    pub fn head_size(&self) -> usize {
        self.n_embd / self.n_head
    }
}
