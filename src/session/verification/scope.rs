//! How much of a recipe's model the reference can check in a minute or two.
//!
//! dfdx computes everything but matrix products on one thread and keeps the gradient of every intermediate tensor, so
//! a large model has to be cut down first. What is cut matters: layers are alike and rows are alike, so there are
//! fewer of them; the width, the heads and the vocabulary decide which kernels run, so they stay.

use crate::engine::dfdx::memory;
use crate::engine::dropout::Dropout;
use crate::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Recompute, Target};
use crate::engine::optimizer::OptimizerKind;
use crate::model::{Dims, ParamLayout};
use crate::plan::flops_per_token;
use crate::recipe::{Attention, MicroBatch, Precision, Recipe, Residual};
use serde::Serialize;

/// Seconds that a verification may take on two idle cores, by the estimate below.
const SECONDS: f64 = 40.0;
/// Bytes that both engines together may need.
const BYTES: usize = 12_000_000_000;
/// A context that still takes several tiles of flash attention, the last one ragged.
const TILES: usize = 161;

/// What is verified: the recipe's model, or as much of it as the reference can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Scope {
    /// Transformer blocks.
    pub n_layer: usize,
    /// Tokens per sequence.
    pub block_size: usize,
    /// Sequences per forward pass.
    pub micro_batch: usize,
    /// Forward passes per optimizer step.
    pub micro_steps: usize,
}

/// What cannot be cut down.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    /// The model as declared.
    pub(super) dims: Dims,
    /// Precision of the engine under test.
    pub(super) precision: Precision,
    /// Its attention backend.
    pub(super) attention: Attention,
    /// How it stores the residual stream.
    pub(super) residual: Residual,
    /// What it computes again in the backward pass.
    pub(super) recompute: Recompute,
    /// What both engines leave out.
    pub(super) dropout: Option<Dropout>,
    /// The optimizer of both engines.
    pub(super) optimizer: OptimizerKind,
    /// Threads of both engines.
    pub(super) threads: usize,
    /// Whether the engine under test is on a CUDA device.
    pub(super) cuda: bool,
    /// Optimizer steps.
    pub(super) steps: usize,
}

impl Scope {
    /// What a recipe declares. An automatic micro-batch counts as at most 4 rows.
    pub(super) fn declared(recipe: &Recipe) -> Self {
        let block_size = recipe.model.block_size;
        let rows = (recipe.batch.total_tokens / block_size).max(1);
        let micro_batch = match recipe.batch.micro_batch {
            MicroBatch::Rows(rows) => rows,
            MicroBatch::Auto => rows.min(4),
        };
        let micro_steps = (rows / micro_batch).max(1);
        Self { n_layer: recipe.model.n_layer, block_size, micro_batch, micro_steps }
    }

    /// At most 4 rows and 2 micro-steps of this, then fewer layers, then less context, fewer rows and micro-steps,
    /// until time and memory suffice; `free` is the memory that there is, in bytes.
    pub(super) fn shrunk(self, setting: &Setting, free: usize) -> Self {
        let mut scope =
            Self { micro_batch: self.micro_batch.min(4), micro_steps: self.micro_steps.min(2), ..self };
        let smaller: [fn(&mut Self) -> bool; 6] = [
            |s| halve(&mut s.n_layer, 2),
            |s| halve(&mut s.block_size, TILES),
            |s| halve(&mut s.micro_batch, 1),
            |s| halve(&mut s.micro_steps, 1),
            |s| halve(&mut s.n_layer, 1),
            |s| halve(&mut s.block_size, 32),
        ];
        let bytes = BYTES.min(free / 10 * 9);
        for step in smaller {
            while (scope.seconds(setting) > SECONDS || scope.bytes(setting) > bytes) && step(&mut scope) {}
        }
        scope
    }

    /// The model that is verified.
    pub(super) fn dims(&self, setting: &Setting) -> Dims {
        Dims { n_layer: self.n_layer, block_size: self.block_size, ..setting.dims }
    }

    /// What the engine under test allocates.
    pub(super) fn memory(&self, setting: &Setting) -> MemoryConfig {
        let Setting { precision, attention, residual, recompute, dropout, optimizer, threads, cuda, .. } =
            *setting;
        let (dims, micro_batch, mode) = (self.dims(setting), self.micro_batch, Mode::Train(optimizer));
        let target = if cuda { Target::Cuda } else { Target::Cpu { threads } };
        // as training does where there is memory
        let activations = Activations { kept: true, residual, recompute, dropout };
        MemoryConfig { dims, micro_batch, precision, attention, target, mode, activations }
    }

    /// Bytes of both engines and the initial parameters.
    pub(super) fn bytes(&self, setting: &Setting) -> usize {
        let dims = self.dims(setting);
        let reference: usize = memory::bytes(
            &dims,
            self.micro_batch,
            setting.optimizer.states().len(),
            setting.dropout.is_some(),
        )
        .iter()
        .map(|(_, b)| b)
        .sum();
        let initial = ParamLayout::new(&dims).len * size_of::<f32>();
        MemoryPlan::new(self.memory(setting)).total_bytes() + reference + initial
    }

    /// A rough time for everything, measured on two AVX-512 cores: 100 GFLOP/s in the reference's matrix products
    /// and twice that in the engine's, 10 ns for each element that the reference's tape or optimizer touches.
    fn seconds(&self, setting: &Setting) -> f64 {
        let dims = self.dims(setting);
        let parameters = ParamLayout::new(&dims).len;
        let tokens = self.block_size * self.micro_batch;
        let flops = flops_per_token(&dims, parameters) as f64 * tokens as f64;
        let touched =
            memory::tape_elements(&dims, self.micro_batch, setting.dropout.is_some()) + 2 * parameters;
        let micro_step = 1.5e-11 * flops + 1e-8 * touched as f64;
        // 56 n_embd³ operations per layer and iteration, of which there are five unless a recipe says otherwise
        let muon = match setting.optimizer {
            OptimizerKind::AdamW => 0.0,
            OptimizerKind::Muon => 5.0 * 56.0 * self.n_layer as f64 * (dims.n_embd as f64).powi(3) * 1.5e-11,
        };
        setting.steps as f64 * (self.micro_steps as f64 * micro_step + muon)
    }
}

/// Halves a number, but not below `least`; false if it was there already.
fn halve(number: &mut usize, least: usize) -> bool {
    let before = *number;
    *number = (before / 2).max(least).min(before);
    *number < before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(n_layer: usize, n_head: usize, n_embd: usize) -> Setting {
        let dims = Dims { n_layer, n_head, n_embd, block_size: 2048, vocab_size: 50257, padded_vocab: 50304 };
        let (precision, attention) = (Precision::Bf16, Attention::Naive);
        let optimizer = OptimizerKind::AdamW;
        let (residual, recompute) = (Residual::Fp32, Recompute::None);
        Setting {
            dims,
            precision,
            attention,
            residual,
            recompute,
            dropout: None,
            optimizer,
            threads: 2,
            cuda: false,
            steps: 5,
        }
    }

    fn declared(setting: &Setting) -> Scope {
        let Dims { n_layer, block_size, .. } = setting.dims;
        Scope { n_layer, block_size, micro_batch: 16, micro_steps: 16 }
    }

    #[test]
    fn the_largest_models_fit_with_several_tiles_of_attention() {
        for setting in [setting(12, 12, 768), setting(48, 25, 1600), setting(24, 16, 2048)] {
            let scope = declared(&setting).shrunk(&setting, usize::MAX);
            assert!(scope.bytes(&setting) <= BYTES, "{scope:?}: {}", scope.bytes(&setting));
            assert!(scope.seconds(&setting) <= SECONDS, "{scope:?}: {}", scope.seconds(&setting));
            assert!(scope.block_size >= TILES, "{scope:?}");
        }
    }

    #[test]
    fn a_small_model_is_left_as_it_is() {
        let mut small = setting(3, 2, 32);
        small.dims.block_size = 64;
        let declared = Scope { n_layer: 3, block_size: 64, micro_batch: 4, micro_steps: 2 };
        assert_eq!(declared.shrunk(&small, usize::MAX), declared);
        let tight = declared.shrunk(&small, declared.bytes(&small));
        assert!(tight != declared && tight.n_layer < 3, "{tight:?}");
    }
}
