//! How far a pass is: what the passes tell of themselves between two kernels.

use super::backend::Backend;
use super::{Fused, Shape};
use crate::engine::Watch;
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
    /// is three times the work.
    pub(super) fn pace<'a>(&self, s: Shape, training: bool, watch: &'a Watch<'a>) -> Pace<'a> {
        if !self.backend.is_immediate() {
            return Pace::unwatched();
        }
        let layout = &self.plan.layout;
        let blocks = layout.blocks.iter().map(|block| {
            let linears =
                [&block.c_attn_weight, &block.attn_proj_weight, &block.c_fc_weight, &block.mlp_proj_weight];
            linears.iter().map(|weight| weight.len()).sum::<usize>() + s.attention_work()
        });
        let forward = blocks.sum::<usize>() + layout.wte.len();
        Pace { watch: Some(watch), done: 0.0, total: (if training { 3 } else { 1 } * forward) as f64 }
    }
}

impl Shape {
    /// Multiplications per token of causal attention: scores and weighted sums, each over half the sequence.
    pub(super) fn attention_work(self) -> usize {
        self.cols * self.c
    }
}
