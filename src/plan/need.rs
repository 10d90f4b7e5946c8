//! What a rank needs of memory, and what fits into it.

use super::hardware::Hardware;
use super::{Plan, PlanError, gib};
use crate::engine::dfdx;
use crate::engine::memory::{Activations, MemoryConfig, MemoryPlan, OptimizerShard, Recompute};
use crate::recipe::{EngineKind, Recipe};

/// The memory of one rank, the one that needs the most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Bytes by kind.
    pub kinds: Vec<(&'static str, usize)>,
    /// Whether they are what will be allocated (the fused engine) or an estimate (dfdx, which allocates as it goes).
    pub exact: bool,
    /// Bytes in all.
    pub total: usize,
    /// Bytes of the buffers that a checkpoint holds, of all ranks together.
    pub saved: usize,
    /// Bytes of the copy that a checkpoint is written from while training goes on; 0 if the recipe wants none. Not in
    /// `total`: it is made only while they are free, and without it training waits for the disk.
    pub snapshot: usize,
    /// Bytes that rank 0 gathers from the others while a checkpoint is written without such a copy.
    pub gathered: usize,
}

impl MemoryNeed {
    /// What an engine allocates at most, whichever of the shares its rank has; `None` if it is beyond reason.
    pub(super) fn new(engine: EngineKind, config: MemoryConfig, shard: OptimizerShard) -> Option<Self> {
        let plan = MemoryPlan::checked(config)?.largest_share(shard.count);
        let kinds = match engine {
            EngineKind::Fused => plan.bytes(),
            EngineKind::Dfdx => {
                let (states, dropout) = (plan.states().len(), config.dropout().is_some());
                dfdx::memory::bytes(&config.dims, config.micro_batch, states, dropout)
            }
        };
        let total = kinds.iter().map(|(_, bytes)| bytes).sum();
        Some(Self {
            kinds,
            exact: engine == EngineKind::Fused,
            total,
            saved: plan.saved_bytes(),
            snapshot: 0,
            gathered: plan.gathered_bytes(),
        })
    }
}

/// The bytes of a rank, with those of a checkpoint's copy.
pub(super) fn bytes(
    recipe: &Recipe,
    memory: MemoryConfig,
    shard: OptimizerShard,
) -> Result<MemoryNeed, PlanError> {
    let need = MemoryNeed::new(recipe.compute.engine, memory, shard).ok_or_else(|| {
        let micro_batch = memory.micro_batch;
        PlanError::new(
            "batch.micro_batch",
            format!("a micro_batch of {micro_batch} needs more than a PiB of memory"),
            "choose a smaller micro_batch, model or block_size",
        )
    })?;
    let snapshot = if recipe.checkpoint.background { need.saved } else { 0 };
    Ok(MemoryNeed { snapshot, ..need })
}

/// The configuration that keeps the outputs of LayerNorm and GELU for the backward pass, if a CUDA device has `bytes`
/// of memory for that where nothing else is computed again: the choice is part of the result, on which
/// `compute.recompute` has no influence.
pub(super) fn keeping_outputs(
    engine: EngineKind,
    config: MemoryConfig,
    shard: OptimizerShard,
    bytes: usize,
) -> MemoryConfig {
    let kept = MemoryConfig { activations: Activations { kept: true, ..config.activations }, ..config };
    let whole = kept.recomputing(Recompute::None);
    let fits = || MemoryNeed::new(engine, whole, shard).is_some_and(|need| need.total <= bytes);
    if engine == EngineKind::Fused && kept.keeps_outputs() && fits() { kept } else { config }
}

/// The first of `micro_batches` that fits if the backward pass computes again what it can.
pub(super) fn largest_micro_batch(
    engine: EngineKind,
    mut micro_batches: impl Iterator<Item = usize>,
    config: MemoryConfig,
    shard: OptimizerShard,
    bytes: usize,
) -> Option<usize> {
    let config = MemoryConfig { activations: Activations { kept: false, ..config.activations }, ..config };
    let fits = |micro_batch: &usize| {
        let need = MemoryNeed::new(engine, MemoryConfig { micro_batch: *micro_batch, ..config }, shard);
        need.is_some_and(|need| need.total <= bytes)
    };
    micro_batches.find(fits)
}

/// The powers of two that divide `rows`, the largest first.
pub(super) fn powers_of_two(rows: usize) -> impl Iterator<Item = usize> {
    (0..=rows.trailing_zeros()).rev().map(|power| 1 << power)
}

/// What divides `rows`, the largest first.
fn divisors(rows: usize) -> impl Iterator<Item = usize> {
    let small: Vec<usize> = (1..=rows.isqrt()).filter(|small| rows.is_multiple_of(*small)).collect();
    let large: Vec<usize> = small.iter().map(|small| rows / small).collect();
    large.into_iter().chain(small.into_iter().rev())
}

impl Plan {
    /// Whether there is memory for the run: what it needs, by kind, and what would fit instead.
    pub fn check_fit(&self, hardware: &Hardware) -> Result<(), PlanError> {
        if self.bytes.total <= hardware.free() {
            return Ok(());
        }
        let help = self.what_fits(hardware.free());
        let kinds: Vec<String> = (self.bytes.kinds.iter().filter(|(_, bytes)| *bytes > 0))
            .map(|(kind, bytes)| format!("{} {}", kind.replace('_', " "), gib(*bytes)))
            .collect();
        // where a plan may choose, it keeps them only if they fit
        let kept = match self.memory.keeps_outputs() {
            true => ", with the outputs of LayerNorm and GELU, which this run has kept since it began",
            false => "",
        };
        let message = format!(
            "a micro_batch of {} needs {} of memory{}{kept}, but only {} are free: {}",
            self.batch.micro_batch,
            gib(self.bytes.total),
            match (&hardware.cuda, hardware.ranks) {
                (Some(_), _) => " on the device".to_owned(),
                (None, 1) => String::new(),
                (None, ranks) => format!(" for each of {ranks} ranks on this machine"),
            },
            gib(hardware.free()),
            kinds.join(", ")
        );
        Err(PlanError::new("batch.micro_batch", message, help))
    }

    /// What to change so that the run needs at most `bytes`.
    fn what_fits(&self, bytes: usize) -> String {
        let smaller = |recompute| {
            // under another micro-batch than it began with, a run chooses anew what it keeps
            let rows = divisors(self.batch.rows_unit).filter(|rows| *rows < self.batch.micro_batch);
            largest_micro_batch(self.engine, rows, self.memory.recomputing(recompute), self.shard, bytes)
        };
        let options = self.recompute_options();
        let saves = |recompute| recompute > self.memory.recompute();
        let fits = options.iter().find(|option| saves(option.recompute) && option.total_bytes <= bytes);
        let again = fits.map(|option| {
            format!("compute.recompute = \"{}\" makes this one fit", option.recompute.as_str())
        });
        match (smaller(self.memory.recompute()), again) {
            (Some(rows), None) => format!("the largest micro_batch that fits is {rows}"),
            (Some(rows), Some(again)) => format!("the largest micro_batch that fits is {rows}, or {again}"),
            (None, Some(again)) => again,
            (None, None) => {
                let mut stronger =
                    options.iter().map(|option| option.recompute).filter(|&recompute| saves(recompute));
                match stronger.find_map(|recompute| Some((recompute, smaller(recompute)?))) {
                    Some((recompute, rows)) => format!(
                        "compute.recompute = \"{}\" with a micro_batch of {rows} fits",
                        recompute.as_str()
                    ),
                    None if self.memory.keeps_outputs() => {
                        "free memory on the device, or start over with --fresh".to_owned()
                    }
                    None => {
                        "not even a micro_batch of 1 fits: choose a smaller model or block_size".to_owned()
                    }
                }
            }
        }
    }

    /// The largest micro-batch that divides a rank's rows of every step and needs at most `bytes` of memory.
    pub fn largest_micro_batch(&self, bytes: usize) -> Option<usize> {
        largest_micro_batch(self.engine, divisors(self.batch.rows_unit), self.memory, self.shard, bytes)
    }
}
