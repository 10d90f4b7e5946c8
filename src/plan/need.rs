//! What a rank needs of memory, and what fits into it.

use crate::engine::dfdx;
use crate::engine::memory::{Activations, MemoryConfig, MemoryPlan, OptimizerShard};
use crate::recipe::EngineKind;

/// The memory of one rank, the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Bytes by kind.
    pub kinds: Vec<(&'static str, usize)>,
    /// Whether they are what will be allocated (the fused engine) or an estimate (dfdx, which allocates as it goes).
    pub exact: bool,
    /// Bytes in all.
    pub total: usize,
    /// Bytes of the copy that a checkpoint is written from while training goes on; 0 if the recipe wants none. Not in
    /// `total`: it is made only while they are free, and without it training waits for the disk.
    pub snapshot: usize,
}

impl MemoryNeed {
    /// What an engine allocates; `None` if it is beyond reason.
    pub(super) fn new(engine: EngineKind, config: MemoryConfig, shard: OptimizerShard) -> Option<Self> {
        let plan = MemoryPlan::checked(config)?.sharded(shard);
        let kinds = match engine {
            EngineKind::Fused => plan.bytes(),
            EngineKind::Dfdx => dfdx::memory::bytes(&config.dims, config.micro_batch, plan.states().len()),
        };
        let total = kinds.iter().map(|(_, bytes)| bytes).sum();
        Some(Self { kinds, exact: engine == EngineKind::Fused, total, snapshot: 0 })
    }
}

/// The configuration that keeps what the backward pass would compute again, if a CUDA device has `bytes` of memory for
/// that.
pub(super) fn keeping_outputs(
    engine: EngineKind,
    config: MemoryConfig,
    shard: OptimizerShard,
    bytes: usize,
) -> MemoryConfig {
    let kept = MemoryConfig { activations: Activations { kept: true, ..config.activations }, ..config };
    let fits = || MemoryNeed::new(engine, kept, shard).is_some_and(|need| need.total <= bytes);
    if engine == EngineKind::Fused && kept.keeps_outputs() && fits() { kept } else { config }
}

/// The largest micro-batch that is a power of two, divides `rows`, and fits if the backward pass computes again what it
/// can.
pub(super) fn largest_micro_batch(
    engine: EngineKind,
    rows: usize,
    config: MemoryConfig,
    shard: OptimizerShard,
    bytes: usize,
) -> Option<usize> {
    let config = MemoryConfig { activations: Activations { kept: false, ..config.activations }, ..config };
    let fits = |micro_batch: &usize| {
        let need = MemoryNeed::new(engine, MemoryConfig { micro_batch: *micro_batch, ..config }, shard);
        need.is_some_and(|need| need.total <= bytes)
    };
    (0..=rows.trailing_zeros()).rev().map(|power| 1 << power).find(fits)
}
