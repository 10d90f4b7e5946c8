//! From a recipe and the hardware to every derived number, before anything is allocated.

pub mod hardware;
pub mod lints;
pub mod predict;
pub mod scaling;

use crate::engine::dfdx;
use crate::engine::memory::{MemoryConfig, MemoryPlan, Mode, OptimizerShard, Target};
use crate::engine::optimizer::OptimizerKind;
use crate::model::{Dims, ParamLayout};
use crate::recipe::{EngineKind, MicroBatch, Precision, Recipe};
use hardware::Hardware;
use serde::Serialize;

/// How much data there is, in the terms of the plan; all 0 where it is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DataSize {
    /// Tokens of training data.
    pub train_tokens: u64,
    /// Training rows of T tokens, R.
    pub train_rows: u64,
    /// Validation rows of T tokens.
    pub val_rows: u64,
}

/// Number of elements and of tensors of one group of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Elements.
    pub elements: usize,
    /// Tensors.
    pub tensors: usize,
}

/// Everything that follows from a recipe on a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The device: `cpu`, or `cuda:0` with the product's name.
    pub device: String,
    /// The index of the CUDA device.
    #[serde(skip)]
    pub cuda: Option<usize>,
    /// Data-parallel ranks.
    pub world_size: usize,
    /// How many of them share this machine.
    pub ranks_here: usize,
    /// Seconds after which a rank that does not answer counts as hung.
    pub timeout_s: u64,
    /// CPU threads of a rank.
    pub threads: usize,
    /// Whether the precision is emulated by rounding.
    pub emulated: bool,
    /// Embedding rows after padding.
    pub padded_vocab: usize,
    /// Parameters under weight decay, padding left out.
    pub decayed: Group,
    /// Parameters without weight decay.
    pub not_decayed: Group,
    /// All parameters, padding left out.
    pub parameters: usize,
    /// Tokens per optimizer step.
    pub tokens_per_step: usize,
    /// Sequences per optimizer step.
    pub rows_per_step: usize,
    /// Sequences per optimizer step on one rank.
    pub rows_per_rank: usize,
    /// Sequences per forward pass.
    pub micro_batch: usize,
    /// Forward passes per optimizer step on one rank.
    pub micro_steps: usize,
    /// Optimizer steps.
    pub steps: u64,
    /// Tokens of the whole run.
    pub tokens: u64,
    /// Times that the run goes through the training rows.
    pub epochs: f64,
    /// Rows of one evaluation.
    pub eval_rows: usize,
    /// The data.
    pub data: DataSize,
    /// Floating-point operations of training on one token, see [`flops_per_token`].
    pub flops_per_token: u64,
    /// The same for the whole run.
    pub flops: f64,
    /// Bytes that each rank sends per optimizer step, see [`scaling::wire_bytes`].
    pub wire_bytes_per_step: u64,
    /// Bytes of one rank, the first, by kind.
    pub bytes: Vec<(&'static str, usize)>,
    /// Whether the bytes are what will be allocated (the fused engine) or an estimate (dfdx, which allocates as it goes).
    pub bytes_exact: bool,
    /// Bytes in all, of one rank.
    pub total_bytes: usize,
    /// Bytes of the copy that a checkpoint is written from while training goes on; 0 if the recipe wants none. Not in
    /// `total_bytes`: it is made only while they are free, and without it training waits for the disk.
    pub snapshot_bytes: usize,
    /// How the buffers are laid out.
    #[serde(skip)]
    pub memory: MemoryConfig,
    /// The share of the optimizer's states that the rank at hand keeps.
    #[serde(skip)]
    pub shard: OptimizerShard,
    /// The engine that the bytes are of.
    #[serde(skip)]
    pub engine: EngineKind,
}

/// Why a recipe cannot be carried out on this machine. Names the key that is to blame.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct PlanError {
    /// The key of the recipe.
    pub key: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub help: String,
}

impl PlanError {
    fn new(key: &'static str, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { key, message: message.into(), help: help.into() }
    }
}

/// 6N + 6·L·C·T for N parameters: two operations per parameter forward and four backward (Kaplan et al., 2020, §2.1),
/// and attention's 12·L·C·T halved, for causal attention needs only the pairs that see each other.
pub fn flops_per_token(dims: &Dims, parameters: usize) -> u64 {
    (6 * parameters + 6 * dims.n_layer * dims.n_embd * dims.block_size) as u64
}

impl Plan {
    /// Derives the plan of a run that is to be started: one that does not fit in memory is an error.
    /// `micro_batch` overrides the recipe's `"auto"`: a resumed run keeps what it began with.
    pub fn new(
        recipe: &Recipe,
        hardware: &Hardware,
        data: DataSize,
        micro_batch: Option<usize>,
    ) -> Result<Self, PlanError> {
        let plan = Self::derive(recipe, hardware, data, micro_batch)?;
        plan.check_fit(hardware)?;
        Ok(plan)
    }

    /// Derives the plan, whether or not it fits in memory.
    pub fn derive(
        recipe: &Recipe,
        hardware: &Hardware,
        data: DataSize,
        micro_batch: Option<usize>,
    ) -> Result<Self, PlanError> {
        let (dims, engine) = (Dims::new(&recipe.model), recipe.compute.engine);
        let tokens_per_step = recipe.batch.total_tokens;
        let rows_per_step = tokens_per_step / dims.block_size;
        if rows_per_step * dims.block_size != tokens_per_step || rows_per_step == 0 {
            let lower = (tokens_per_step / dims.block_size).max(1) * dims.block_size;
            return Err(PlanError::new(
                "batch.total_tokens",
                format!("{tokens_per_step} tokens are not a multiple of block_size = {}", dims.block_size),
                format!("use {lower} or {}", lower + dims.block_size),
            ));
        }
        let world_size = recipe.batch.world_size;
        if !rows_per_step.is_multiple_of(world_size) {
            return Err(PlanError::new(
                "batch.world_size",
                format!("{rows_per_step} rows per step do not divide among {world_size} ranks"),
                format!("use a divisor of {rows_per_step}"),
            ));
        }
        let rows_per_rank = rows_per_step / world_size;
        let count = if recipe.distributed.shard_optimizer { world_size } else { 1 };
        let shard = OptimizerShard { index: 0, count };
        let steps = recipe.schedule.max_steps;
        let Some(tokens) = steps.checked_mul(tokens_per_step as u64) else {
            return Err(PlanError::new(
                "schedule.max_steps",
                format!("{steps} steps of {tokens_per_step} tokens are more tokens than can be counted"),
                format!("use {} steps at most", u64::MAX / tokens_per_step as u64),
            ));
        };
        let threads =
            if recipe.compute.threads == 0 { hardware.threads_per_rank() } else { recipe.compute.threads };
        let optimizer = OptimizerKind::new(&recipe.optimizer);
        let config = |micro_batch| MemoryConfig {
            dims,
            micro_batch,
            precision: recipe.compute.precision,
            attention: recipe.compute.attention,
            target: if hardware.cuda.is_some() { Target::Cuda } else { Target::Cpu { threads } },
            mode: Mode::Train(optimizer),
        };
        let micro_batch = match (recipe.batch.micro_batch, micro_batch) {
            (MicroBatch::Rows(rows), _) => rows,
            (MicroBatch::Auto, Some(kept)) => kept,
            (MicroBatch::Auto, None) => {
                let memory = hardware.memory_for_auto();
                largest_micro_batch(engine, rows_per_rank, config(1), shard, memory).unwrap_or(1)
            }
        };
        if !rows_per_rank.is_multiple_of(micro_batch) {
            let whose = if world_size > 1 { " of a rank" } else { "" };
            return Err(PlanError::new(
                "batch.micro_batch",
                format!(
                    "{rows_per_rank} rows per step{whose} do not divide into micro-batches of {micro_batch}"
                ),
                format!("use a divisor of {rows_per_rank}"),
            ));
        }
        let Some(bytes) = bytes_by_kind(engine, config(micro_batch), shard) else {
            return Err(PlanError::new(
                "batch.micro_batch",
                format!("a micro_batch of {micro_batch} needs more than a PiB of memory"),
                "choose a smaller micro_batch, model or block_size",
            ));
        };
        let unpadded = ParamLayout::new(&Dims { padded_vocab: dims.vocab_size, ..dims });
        let group = |decayed| {
            let (elements, tensors) = unpadded.count(decayed);
            Group { elements, tensors }
        };
        let (decayed, not_decayed) = (group(true), group(false));
        let parameters = decayed.elements + not_decayed.elements;
        let flops_per_token = flops_per_token(&dims, parameters);
        let eval_rows = (recipe.eval.batches as u64).saturating_mul(rows_per_step as u64);
        Ok(Self {
            device: hardware.device(),
            cuda: hardware.cuda.as_ref().map(|cuda| cuda.index),
            world_size,
            ranks_here: hardware.ranks,
            timeout_s: recipe.distributed.timeout_s,
            threads,
            emulated: recipe.compute.precision != Precision::Fp32 && hardware.cuda.is_none(),
            padded_vocab: dims.padded_vocab,
            decayed,
            not_decayed,
            parameters,
            tokens_per_step,
            rows_per_step,
            rows_per_rank,
            micro_batch,
            micro_steps: rows_per_rank / micro_batch,
            steps,
            tokens,
            epochs: (steps * rows_per_step as u64) as f64 / data.train_rows as f64,
            eval_rows: eval_rows.min(data.val_rows) as usize,
            data,
            flops_per_token,
            flops: flops_per_token as f64 * tokens as f64,
            wire_bytes_per_step: scaling::wire_bytes(ParamLayout::new(&dims).len, world_size),
            total_bytes: total(&bytes),
            bytes,
            bytes_exact: engine == EngineKind::Fused,
            snapshot_bytes: match recipe.checkpoint.background {
                // parameters and the optimizer's states
                true => (1 + optimizer.states().len()) * size_of::<f32>() * ParamLayout::new(&dims).len,
                false => 0,
            },
            memory: config(micro_batch),
            shard,
            engine,
        })
    }

    /// Whether there is memory for the run: what it needs, by kind, and what would fit instead.
    pub fn check_fit(&self, hardware: &Hardware) -> Result<(), PlanError> {
        if self.total_bytes <= hardware.free() {
            return Ok(());
        }
        let help = match self.largest_micro_batch(hardware.free()) {
            Some(rows) => format!("the largest micro_batch that fits is {rows}"),
            None => "not even a micro_batch of 1 fits: choose a smaller model or block_size".to_owned(),
        };
        let kinds: Vec<String> = (self.bytes.iter().filter(|(_, bytes)| *bytes > 0))
            .map(|(kind, bytes)| format!("{} {}", kind.replace('_', " "), gib(*bytes)))
            .collect();
        let message = format!(
            "a micro_batch of {} needs {} of memory{}, but only {} are free: {}",
            self.micro_batch,
            gib(self.total_bytes),
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

    /// The largest power of two that divides a rank's rows of a step and needs at most `bytes` of memory.
    pub fn largest_micro_batch(&self, bytes: usize) -> Option<usize> {
        largest_micro_batch(self.engine, self.rows_per_rank, self.memory, self.shard, bytes)
    }

    /// The layout of every buffer.
    pub fn memory_plan(&self) -> MemoryPlan {
        MemoryPlan::new(self.memory).sharded(self.shard)
    }

    /// The plan of another rank of this process: it has a part of the moments and a CUDA device of its own.
    pub fn of_rank(&self, rank: usize) -> Self {
        let index = if self.shard.count > 1 { rank } else { 0 };
        let cuda = self.cuda.map(|first| first + rank);
        Self { shard: OptimizerShard { index, ..self.shard }, cuda, ..self.clone() }
    }

    /// The plan of a rank that is a process of its own, with the device that its launcher gave it.
    pub fn of_launched_rank(&self, rank: usize) -> Self {
        Self { cuda: self.cuda, ..self.of_rank(rank) }
    }
}

fn largest_micro_batch(
    engine: EngineKind,
    rows_per_rank: usize,
    config: MemoryConfig,
    shard: OptimizerShard,
    bytes: usize,
) -> Option<usize> {
    let fits = |micro_batch: &usize| {
        let kinds = bytes_by_kind(engine, MemoryConfig { micro_batch: *micro_batch, ..config }, shard);
        kinds.is_some_and(|kinds| total(&kinds) <= bytes)
    };
    (0..=rows_per_rank.trailing_zeros()).rev().map(|power| 1 << power).find(fits)
}

/// What an engine allocates: exactly for the fused one, an estimate for dfdx. None if it is beyond reason.
fn bytes_by_kind(
    engine: EngineKind,
    config: MemoryConfig,
    shard: OptimizerShard,
) -> Option<Vec<(&'static str, usize)>> {
    let plan = MemoryPlan::checked(config)?.sharded(shard);
    let optimizer = config.mode.optimizer()?;
    Some(match engine {
        EngineKind::Fused => plan.bytes(),
        EngineKind::Dfdx => dfdx::memory::bytes(&config.dims, config.micro_batch, optimizer),
    })
}

fn total(kinds: &[(&str, usize)]) -> usize {
    kinds.iter().map(|(_, bytes)| bytes).sum()
}

/// Bytes in the unit that suits them, for people.
pub fn gib(bytes: usize) -> String {
    let mib = bytes as f64 / (1 << 20) as f64;
    if mib >= 1024.0 { format!("{:.2} GiB", mib / 1024.0) } else { format!("{mib:.1} MiB") }
}
