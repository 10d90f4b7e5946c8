//! What the backward pass computes again: the choice that a recipe leaves to the plan, and what each choice costs.

use super::Plan;
use super::need::MemoryNeed;
use crate::engine::memory::{MemoryConfig, OptimizerShard, Recompute};
use crate::model::Dims;
use crate::recipe::{EngineKind, Recipe, RecomputeName};
use serde::Serialize;

/// One value of `compute.recompute` for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RecomputeOption {
    /// The value.
    pub recompute: Recompute,
    /// Bytes of a rank in all.
    pub total_bytes: usize,
    /// Operations of what is computed again, for each token that is trained on.
    pub extra_flops_per_token: u64,
}

/// What a value of the key stands for; `None` for the one that leaves it to the plan.
pub fn fixed(name: RecomputeName) -> Option<Recompute> {
    match name {
        RecomputeName::None => Some(Recompute::None),
        RecomputeName::Mlp => Some(Recompute::Mlp),
        RecomputeName::Block => Some(Recompute::Block),
        RecomputeName::Auto => None,
    }
}

/// What a recipe leaves to choose from, the quickest first; never empty.
pub(super) fn choices(recipe: &Recipe) -> Vec<Recompute> {
    fixed(recipe.compute.recompute).map_or_else(|| Recompute::ALL.to_vec(), |one| vec![one])
}

/// Everything that computes no more again than some of these choices, the quickest first.
pub(super) fn up_to(choices: &[Recompute]) -> impl Iterator<Item = Recompute> {
    let most = choices.iter().max().copied().unwrap_or_default();
    Recompute::ALL.into_iter().filter(move |&recompute| recompute <= most)
}

/// The configuration under the first choice that needs at most `bytes`, or else under the last one.
pub(super) fn least(
    engine: EngineKind,
    config: MemoryConfig,
    choices: &[Recompute],
    shard: OptimizerShard,
    bytes: usize,
) -> MemoryConfig {
    let fits = |config: &MemoryConfig| {
        MemoryNeed::new(engine, *config, shard).is_some_and(|need| need.total <= bytes)
    };
    let mut configs = choices.iter().map(|&recompute| config.recomputing(recompute));
    let last = config.recomputing(choices.last().copied().unwrap_or_default());
    configs.find(fits).unwrap_or(last)
}

/// Operations of what is computed again for one token, for all blocks but the last one: two per weight of the products,
/// and those of attention's forward pass as [`flops_per_token`](super::flops_per_token) counts them.
pub fn flops_per_token(dims: &Dims, recompute: Recompute) -> u64 {
    let (c, t) = (dims.n_embd, dims.block_size);
    let block = match recompute {
        Recompute::None => 0,
        // c_fc
        Recompute::Mlp => 2 * 4 * c * c,
        // c_attn, attn_proj and c_fc
        Recompute::Block => 2 * (3 + 1 + 4) * c * c + 2 * c * t,
    };
    (dims.n_layer.saturating_sub(1) * block) as u64
}

impl Plan {
    /// What the run would need and compute again under each value of `compute.recompute`, its micro-batch as it is;
    /// nothing for the reference engine.
    pub fn recompute_options(&self) -> Vec<RecomputeOption> {
        if self.engine == EngineKind::Dfdx {
            return Vec::new();
        }
        let option = |recompute| {
            let need = MemoryNeed::new(self.engine, self.memory.recomputing(recompute), self.shard)?;
            let extra_flops_per_token = flops_per_token(&self.memory.dims, recompute);
            Some(RecomputeOption { recompute, total_bytes: need.total, extra_flops_per_token })
        };
        Recompute::ALL.into_iter().filter_map(option).collect()
    }
}
