//! Which parts of the flat layout a rank updates and keeps the optimizer's states for.

use super::MemoryPlan;
use crate::engine::optimizer::adamw::Group;
use crate::engine::optimizer::{OptimizerKind, OptimizerState};
use crate::model::ParamLayout;
use std::ops::Range;
use std::sync::Arc;

/// The share of the optimizer's states that a rank keeps (Rajbhandari et al., 2020, ZeRO, stage 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptimizerShard {
    /// Which share, from 0.
    pub index: usize,
    /// Of how many; 1 is the whole.
    pub count: usize,
}

impl OptimizerShard {
    /// Every state whole.
    pub const WHOLE: Self = Self { index: 0, count: 1 };
}

/// The share of a rank.
#[derive(Debug)]
pub(super) struct Kept {
    /// The elements that it updates.
    pub(super) owned: Range<usize>,
    /// By state of the optimizer: the parts of them that the state covers, which its buffer holds one after the other.
    pub(super) parts: Vec<Vec<Range<usize>>>,
}

impl Kept {
    pub(super) fn new(layout: &ParamLayout, optimizer: Option<OptimizerKind>, shard: OptimizerShard) -> Self {
        let whole = 0..layout.len;
        let owned = match optimizer.filter(|_| shard.count > 1) {
            Some(kind) => kind.shares(layout, shard.count).swap_remove(shard.index),
            None => whole,
        };
        let states = optimizer.map_or(&[][..], OptimizerKind::states);
        let parts = states.iter().map(|state| covered(layout, state, &owned)).collect();
        Self { owned, parts }
    }
}

/// The parts of these elements of the flat layout that a state covers.
fn covered(layout: &ParamLayout, state: &OptimizerState, elements: &Range<usize>) -> Vec<Range<usize>> {
    let within = |part: Range<usize>| part.start.max(elements.start)..part.end.min(elements.end);
    layout.parts(state.covers).into_iter().map(within).filter(|part| !part.is_empty()).collect()
}

impl MemoryPlan {
    /// Keeps a share of the optimizer's states instead of all of them.
    pub fn sharded(self, shard: OptimizerShard) -> Self {
        let kept = Arc::new(Kept::new(&self.layout, self.optimizer(), shard));
        Self { shard, kept, ..self }
    }

    /// [`sharded`](Self::sharded) as the rank of `count` that keeps the most of the states, the first of them. Where a
    /// rule works on whole matrices or keeps more for some tensors than for others, shares differ.
    pub fn largest_share(self, count: usize) -> Self {
        let Some(kind) = self.optimizer().filter(|_| count > 1) else { return self };
        let parts: Vec<_> = self.states().iter().flat_map(|state| self.layout.parts(state.covers)).collect();
        let kept = |owned: &Range<usize>| -> usize {
            let common =
                |part: &Range<usize>| part.end.min(owned.end).saturating_sub(part.start.max(owned.start));
            parts.iter().map(common).sum()
        };
        let shares = kind.shares(&self.layout, count);
        let most = shares.iter().map(kept).max().unwrap_or_default();
        let index = shares.iter().position(|owned| kept(owned) == most).unwrap_or_default();
        self.sharded(OptimizerShard { index, count })
    }

    /// Whether each rank keeps a share of the optimizer's states only, and updates that share of the parameters.
    pub fn is_sharded(&self) -> bool {
        self.shard.count > 1
    }

    /// The elements of the flat layout that this rank updates, and whose optimizer states it keeps.
    pub fn owned(&self) -> Range<usize> {
        self.kept.owned.clone()
    }

    /// The elements that each rank updates, by rank; `None` where each rank updates all of them.
    pub fn owners(&self) -> Option<Vec<Range<usize>>> {
        let kind = self.optimizer().filter(|_| self.is_sharded())?;
        Some(kind.shares(&self.layout, self.shard.count))
    }

    /// The parts of the flat layout that the buffer of a state holds one after the other, by the state's place in the
    /// rule's list: those that this rank updates and the state covers.
    pub fn parts(&self, state: usize) -> &[Range<usize>] {
        &self.kept.parts[state]
    }

    /// [`parts`](Self::parts) of the rank that updates these elements.
    pub fn parts_of(&self, state: usize, owned: &Range<usize>) -> Vec<Range<usize>> {
        covered(&self.layout, &self.states()[state], owned)
    }

    /// This rank's elements under AdamW by group, in the order of the layout; empty where the rank has none.
    pub fn adamw_parts(&self) -> [(Range<usize>, Group); 3] {
        let (own, layout) = (self.owned(), &self.layout);
        let within = |part: Range<usize>| part.start.max(own.start)..part.end.min(own.end).max(own.start);
        let hidden = layout.hidden.start;
        let matrices = match self.optimizer() {
            Some(OptimizerKind::Muon) => hidden..hidden,
            _ => hidden..layout.decayed,
        };
        [
            (within(0..hidden), Group::Embeddings),
            (within(matrices), Group::Matrices),
            (within(layout.decayed..layout.len), Group::Vectors),
        ]
    }
}
