//! From a recipe and the hardware to every derived number, before anything is allocated.
//!
//! [`Plan`] has what engines and the training loop go by, [`document::PlanDocument`] what is printed and kept of it.

mod batch;
mod before;
mod begun;
mod control_group;
pub mod document;
pub mod hardware;
pub mod lints;
mod need;
pub mod predict;
pub mod recompute;
pub mod roofline;
pub mod scaling;

pub use batch::BatchPlan;
pub use before::Before;
pub use begun::Begun;
pub use need::MemoryNeed;
use need::{bytes, keeping_outputs, largest_micro_batch, powers_of_two};
pub use recompute::fixed;

use crate::engine::dropout::Dropout;
use crate::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, OptimizerShard, Target};
use crate::engine::optimizer::OptimizerKind;
use crate::engine::optimizer::muon::most_iteration_flops;
use crate::model::{Dims, ParamLayout};
use crate::recipe::{EngineKind, OptimizerName, Precision, Recipe, StepSizes};
use hardware::Hardware;
use serde::Serialize;

/// How much data there is, in the terms of the plan; all 0 where it is not known.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DataSize {
    /// Tokens of training data.
    pub train_tokens: u64,
    /// Training rows of T tokens, R.
    pub train_rows: u64,
    /// Validation rows of T tokens, of the set that decides what is best.
    pub val_rows: u64,
    /// The other sets of validation data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub val_sets: Vec<SetSize>,
    /// The tasks that each evaluation scores.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskSize>,
    /// The sources of training data that are a mixture.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceSize>,
}

/// How much data a further set of validation data has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SetSize {
    /// Its name.
    pub name: String,
    /// Its rows of T tokens.
    pub rows: u64,
}

/// How much there is of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskSize {
    /// Its name.
    pub name: String,
    /// Its examples.
    pub examples: u64,
    /// Tokens of all its rows, one for each ending of an example.
    pub tokens: u64,
}

/// How much data a source of a mixture has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceSize {
    /// As the recipe names it.
    pub name: String,
    /// The fraction of the rows of a run that come from it.
    pub share: f64,
    /// Its tokens.
    pub tokens: u64,
    /// Its rows of T tokens.
    pub rows: u64,
}

impl SourceSize {
    /// Times that a run which reads so many rows goes through the source.
    pub fn epochs(&self, rows: u64) -> f64 {
        rows as f64 * self.share / self.rows as f64
    }
}

/// Number of elements and of tensors of one group of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Elements.
    pub elements: usize,
    /// Tensors.
    pub tensors: usize,
}

/// The model's parameters, padding left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterPlan {
    /// Under weight decay.
    pub decayed: Group,
    /// Without weight decay.
    pub not_decayed: Group,
    /// All of them.
    pub total: usize,
}

impl ParameterPlan {
    fn new(dims: &Dims) -> Self {
        let unpadded = ParamLayout::new(&Dims { padded_vocab: dims.vocab_size, ..*dims });
        let group = |decayed| {
            let (elements, tensors) = unpadded.count(decayed);
            Group { elements, tensors }
        };
        let (decayed, not_decayed) = (group(true), group(false));
        Self { decayed, not_decayed, total: decayed.elements + not_decayed.elements }
    }
}

/// The ranks of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankPlan {
    /// Data-parallel ranks in all.
    pub world_size: usize,
    /// How many of them share this machine.
    pub here: usize,
    /// Seconds after which a rank that does not answer counts as hung.
    pub timeout_s: u64,
}

/// Everything that follows from a recipe on a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The device: `cpu`, or `cuda:0` with the product's name.
    pub device: String,
    /// The index of the CUDA device.
    pub cuda: Option<usize>,
    /// CPU threads of a rank.
    pub threads: usize,
    /// How many times slower a rank computes than alone, because the ranks here have more threads than the machine; 1
    /// where there are enough threads, and for one rank.
    pub crowding: f64,
    /// Whether the precision is emulated by rounding.
    pub emulated: bool,
    /// The engine that the bytes are of.
    pub engine: EngineKind,
    /// Who takes part.
    pub ranks: RankPlan,
    /// The share of the optimizer's states that the rank at hand keeps.
    pub shard: OptimizerShard,
    /// How many parameters there are.
    pub parameters: ParameterPlan,
    /// How a step divides into ranks and micro-batches.
    pub batch: BatchPlan,
    /// How many rows each step takes.
    pub sizes: StepSizes,
    /// Optimizer steps, those before a branch included.
    pub steps: u64,
    /// What another run has done of them.
    pub before: Before,
    /// Tokens of all steps.
    pub tokens: u64,
    /// The validation loss at which the run ends before its last step.
    pub target: Option<f64>,
    /// Times that the run goes through the training rows; for a mixture, through as many rows as all sources have.
    pub epochs: f64,
    /// Rows of one evaluation, of the set that decides what is best.
    pub eval_rows: usize,
    /// Rows of one evaluation of each other set, in the order of [`DataSize::val_sets`].
    pub eval_others: Vec<usize>,
    /// The data.
    pub data: DataSize,
    /// Floating-point operations of training on one token, see [`flops_per_token`].
    pub flops_per_token: u64,
    /// Floating-point operations of the steps that the run takes itself.
    pub flops: f64,
    /// Bytes that each rank sends per optimizer step, see [`scaling::wire_bytes`].
    pub wire_bytes_per_step: u64,
    /// Bytes of a rank.
    pub bytes: MemoryNeed,
    /// What the layout of the buffers follows from.
    pub memory: MemoryConfig,
    /// Floating-point operations that the optimizer's matrix products take per update, on the rank that has the most of
    /// them; 0 where the rule has none.
    pub update_flops: f64,
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

/// 6N + 6·L·C·T for N parameters: two operations per parameter forward and four backward (Kaplan et al., 2020,
/// §2.1), and attention's 12·L·C·T halved, for causal attention needs only the pairs that see each other.
pub fn flops_per_token(dims: &Dims, parameters: usize) -> u64 {
    (6 * parameters + 6 * dims.n_layer * dims.n_embd * dims.block_size) as u64
}

impl Plan {
    /// Derives the plan of a run that is to be started: one that does not fit in memory is an error.
    /// A run that goes on keeps what it has `begun` with, as far as the recipe leaves that to the plan.
    pub fn new(
        recipe: &Recipe,
        hardware: &Hardware,
        data: DataSize,
        begun: Option<Begun>,
    ) -> Result<Self, PlanError> {
        let plan = Self::derive(recipe, hardware, data, begun)?;
        plan.check_fit(hardware)?;
        Ok(plan)
    }

    /// Derives the plan, whether or not it fits in memory. `begun` as in [`new`](Self::new).
    pub fn derive(
        recipe: &Recipe,
        hardware: &Hardware,
        data: DataSize,
        begun: Option<Begun>,
    ) -> Result<Self, PlanError> {
        let engine = recipe.compute.engine;
        let (ranks, shard) = ranks(recipe, hardware);
        let rows = batch::Rows::new(recipe)?;
        let sizes = recipe.step_sizes();
        let (steps, tokens) = run_tokens(recipe, &sizes)?;
        let one_row = memory_config(recipe, hardware);
        let choices = recompute::choices(recipe);
        // rows are part of the result, so they are those that fit where the least is computed again
        let fits = |rows| {
            let largest = |config| {
                largest_micro_batch(engine, powers_of_two(rows), config, shard, hardware.memory_for_auto())
            };
            recompute::up_to(&choices).find_map(|recompute| largest(one_row.recomputing(recompute)))
        };
        let batch = rows.batch(recipe, begun.map(|begun| begun.micro_batch), fits)?;
        let memory = MemoryConfig { micro_batch: batch.micro_batch, ..one_row };
        let memory = match begun.and_then(|begun| begun.keeps_outputs(&batch)) {
            Some(kept) => MemoryConfig { activations: Activations { kept, ..memory.activations }, ..memory },
            None => keeping_outputs(engine, memory, shard, hardware.memory_for_auto().min(hardware.free())),
        };
        let memory = recompute::least(engine, memory, &choices, shard, hardware.free());
        let bytes = bytes(recipe, memory, shard)?;
        let parameters = ParameterPlan::new(&memory.dims);
        let flops_per_token = flops_per_token(&memory.dims, parameters.total);
        let eval_rows = recipe.eval_tokens() / recipe.model.block_size as u64;
        Ok(Self {
            device: hardware.device(),
            cuda: hardware.cuda.as_ref().map(|cuda| cuda.index),
            threads: threads(recipe, hardware),
            crowding: crowding(recipe, hardware),
            emulated: recipe.compute.precision != Precision::Fp32 && hardware.cuda.is_none(),
            engine,
            ranks,
            shard,
            parameters,
            batch,
            epochs: sizes.rows_before(steps) as f64 / data.train_rows as f64,
            sizes,
            steps,
            before: Before::default(),
            tokens,
            target: recipe.schedule.stop_at_val_loss,
            eval_rows: eval_rows.min(data.val_rows) as usize,
            eval_others: data.val_sets.iter().map(|set| eval_rows.min(set.rows) as usize).collect(),
            data,
            flops_per_token,
            flops: flops_per_token as f64 * tokens as f64,
            wire_bytes_per_step: scaling::wire_bytes(ParamLayout::new(&memory.dims).len, ranks.world_size),
            bytes,
            memory,
            update_flops: update_flops(recipe, &memory.dims, shard.count),
        })
    }

    /// Tokens that one evaluation reads: of the sets of validation data, and of the tasks.
    pub fn eval_tokens(&self) -> u64 {
        let rows = self.eval_rows + self.eval_others.iter().sum::<usize>();
        let of_tasks: u64 = self.data.tasks.iter().map(|task| task.tokens).sum();
        rows as u64 * self.memory.dims.block_size as u64 + of_tasks
    }

    /// The layout of every buffer.
    pub fn memory_plan(&self) -> MemoryPlan {
        MemoryPlan::new(self.memory).sharded(self.shard)
    }

    /// The plan of another rank of this process: it has its own share of the optimizer's states, and its own CUDA
    /// device.
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

/// Who takes part, and the share of the optimizer's states that the first rank keeps.
///
/// Muon's matrix products need not have the same last digit on two machines, so where there are ranks, one of them
/// updates a matrix and the others get it.
fn ranks(recipe: &Recipe, hardware: &Hardware) -> (RankPlan, OptimizerShard) {
    let world_size = recipe.batch.world_size;
    let is_shared = recipe.distributed.shard_optimizer || recipe.optimizer.kind == OptimizerName::Muon;
    let count = if is_shared { world_size } else { 1 };
    let ranks = RankPlan { world_size, here: hardware.ranks, timeout_s: recipe.distributed.timeout_s };
    (ranks, OptimizerShard { index: 0, count })
}

fn threads(recipe: &Recipe, hardware: &Hardware) -> usize {
    if recipe.compute.threads == 0 { hardware.threads_per_rank() } else { recipe.compute.threads }
}

/// See [`Plan::crowding`]. Ranks on CUDA devices have one each.
fn crowding(recipe: &Recipe, hardware: &Hardware) -> f64 {
    let wanted = threads(recipe, hardware) as f64;
    let there_are = hardware.threads as f64;
    let share = |wanted: f64| (wanted / there_are).max(1.0);
    if hardware.cuda.is_some() { 1.0 } else { share(wanted * hardware.ranks as f64) / share(wanted) }
}

/// The number of steps and the tokens of all of them.
fn run_tokens(recipe: &Recipe, sizes: &StepSizes) -> Result<(u64, u64), PlanError> {
    let (steps, per_step) = (recipe.schedule.steps(sizes), recipe.batch.total_tokens as u64);
    let tokens = sizes.checked_tokens_before(steps).ok_or_else(|| {
        PlanError::new(
            "schedule.max_steps",
            format!("{steps} steps of {per_step} tokens are more tokens than can be counted"),
            format!("use {} steps at most", u64::MAX / per_step),
        )
    })?;
    Ok((steps, tokens))
}

/// See [`Plan::update_flops`]: those of Newton and Schulz's iterations under Muon, where `count` ranks share them.
fn update_flops(recipe: &Recipe, dims: &Dims, count: usize) -> f64 {
    match recipe.optimizer.kind {
        OptimizerName::Adamw => 0.0,
        OptimizerName::Muon => {
            f64::from(recipe.optimizer.muon_ns_steps) * most_iteration_flops(&ParamLayout::new(dims), count)
        }
    }
}

/// What the memory of a micro-batch of one row follows from.
fn memory_config(recipe: &Recipe, hardware: &Hardware) -> MemoryConfig {
    let target = match &hardware.cuda {
        Some(_) => Target::Cuda,
        None => Target::Cpu { threads: threads(recipe, hardware) },
    };
    MemoryConfig {
        dims: Dims::new(&recipe.model),
        micro_batch: 1,
        precision: recipe.compute.precision,
        attention: recipe.compute.attention,
        target,
        mode: Mode::Train(OptimizerKind::new(&recipe.optimizer)),
        activations: Activations {
            residual: recipe.compute.residual,
            dropout: Dropout::new(recipe.model.dropout, recipe.seed),
            ..Activations::default()
        },
    }
}

/// About what a process takes besides the bytes of a plan: the program's code, the tokenizer's tables, the
/// stacks of its threads, buffers for files. Pages of mapped data, which the system takes back when it needs
/// them, are not counted.
pub const PROGRAM_BYTES: usize = 32 << 20;

/// Bytes in the unit that suits them, for people.
pub fn gib(bytes: usize) -> String {
    let mib = bytes as f64 / (1 << 20) as f64;
    if mib >= 1024.0 { format!("{:.2} GiB", mib / 1024.0) } else { format!("{mib:.1} MiB") }
}
