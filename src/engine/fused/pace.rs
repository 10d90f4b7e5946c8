//! How far a pass is: what the passes tell of themselves between two kernels.

use super::backend::Backend;
use super::{Fused, Shape};
use crate::engine::Watch;
use crate::engine::memory::Recompute;
use std::ops::ControlFlow;

/// The work of a pass, in multiplications per token, and who looks on.
pub(super) struct Pace<'a> {
    watch: Option<&'a Watch<'a>>,
    done: f64,
    total: f64,
}

impl Pace<'_> {
    /// Of a pass that is not watched.
    pub(super) fn unwatched() -> Self {
        Self { watch: None, done: 0.0, total: 1.0 }
    }

    /// A kernel has done so much of the work. Breaks if the rest of the pass is to be left out.
    pub(super) fn did(&mut self, work: usize) -> ControlFlow<()> {
        let Some(watch) = self.watch else { return ControlFlow::Continue(()) };
        self.done += work as f64;
        watch(self.done / self.total)
    }
}

impl<B: Backend> Fused<B> {
    /// The pace of a forward pass over a batch of this shape or, when `training`, of a forward and backward pass, which
    /// is three times the work and what is computed again.
    pub(super) fn pace<'a>(&self, s: Shape, training: bool, watch: &'a Watch<'a>) -> Pace<'a> {
        if !self.backend.is_immediate() {
            return Pace::unwatched();
        }
        let layout = &self.plan.layout;
        let attention = s.attention_work();
        let blocks = layout.blocks.iter().map(|block| {
            let linears =
                [&block.c_attn_weight, &block.attn_proj_weight, &block.c_fc_weight, &block.mlp_proj_weight];
            linears.iter().map(|weight| weight.len()).sum::<usize>() + attention
        });
        let forward = blocks.sum::<usize>() + layout.wte.len();
        // of every block but the last
        let again = layout.blocks.iter().skip(1).map(|block| match self.plan.config.recompute() {
            Recompute::None => 0,
            Recompute::Mlp => block.c_fc_weight.len(),
            Recompute::Block => {
                let linears = [&block.c_attn_weight, &block.attn_proj_weight, &block.c_fc_weight];
                linears.iter().map(|weight| weight.len()).sum::<usize>() + attention
            }
        });
        let total = if training { 3 * forward + again.sum::<usize>() } else { forward };
        Pace { watch: Some(watch), done: 0.0, total: total as f64 }
    }
}

impl Shape {
    /// Multiplications per token of causal attention: scores and weighted sums, each over half the sequence.
    pub(super) fn attention_work(self) -> usize {
        self.cols * self.c
    }
}
