//! From a recipe to the parts of an experiment, and what this build cannot do.

use super::device;
use super::exit::UsageError;
use super::ranks;
use super::terminal::Passes;
use crate::comm::{Comm, Solo};
use crate::cuda::Libraries;
use crate::data::{DataError, Dataset, Format, OpenOptions, ShardInfo, Stream, Tokenizer};
use crate::engine::memory::MemoryPlan;
use crate::engine::optimizer::OptimizerKind;
use crate::engine::{Engine, EngineError, cpu, cuda, dfdx, pooled::Pooled};
use crate::model::{Dims, ParamLayout};
use crate::plan::lints::{Shard, Shards};
use crate::plan::{DataSize, Plan};
use crate::recipe::{Attention, DataDigests, Diagnostics, EngineKind, MicroBatch, Recipe, Resolved};
use crate::run::import;
use crate::train::Rows;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Refuses what a recipe may say but this build cannot do, at the line that says it.
pub(super) fn check_supported(resolved: &Resolved) -> Result<(), Diagnostics> {
    let recipe = &resolved.recipe;
    let mut problems = Diagnostics::default();
    let mut refuse = |key, message: &str, help: &str| problems.append(resolved.complain(key, message, help));
    match device::hardware(recipe) {
        Err(error) => refuse(error.key, &error.message, &error.help),
        Ok(hardware) if hardware.cuda.is_some() => {
            let (attention, size) = (recipe.compute.attention, Dims::new(&recipe.model).head_size());
            if attention == Attention::Flash && size > cuda::kernels::flash_attention::LARGEST_HEAD {
                let message = format!(
                    "flash attention on CUDA has heads of at most {}, the model's have {size}",
                    cuda::kernels::flash_attention::LARGEST_HEAD
                );
                refuse("compute.attention", &message, "use more heads (model.n_head), or \"naive\"");
            }
        }
        Ok(_) => {}
    }
    let ranks = recipe.batch.world_size;
    match ranks::place() {
        Err(problem) => refuse("batch.world_size", &problem.to_string(), "start the ranks with one launcher"),
        Ok(Some(place)) if place.size != ranks => {
            let message =
                format!("batch.world_size is {ranks}, but {} started {} ranks", place.launcher, place.size);
            let help = format!("set batch.world_size = {}, or start {ranks} ranks", place.size);
            refuse("batch.world_size", &message, &help);
        }
        Ok(_) if ranks > 1 && recipe.compute.engine == EngineKind::Dfdx => refuse(
            "batch.world_size",
            "the dfdx engine is a reference and trains on one rank",
            "use batch.world_size = 1, or compute.engine = \"fused\"",
        ),
        Ok(_) => {}
    }
    if recipe.compute.engine == EngineKind::Dfdx
        && let Err(error) = dfdx::check_precision(recipe.compute.precision)
    {
        refuse("compute.precision", &error.to_string(), "");
    }
    if recipe.sample.every > 0
        && let Err(problem) = prompt(&recipe.sample.prompt, recipe.model.vocab_size)
    {
        refuse(
            "sample.prompt",
            &problem.to_string(),
            "choose another prompt, or turn sampling off with sample.every = 0",
        );
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// A prompt's tokens. An empty one becomes GPT-2's end-of-text token, with which documents begin.
pub(super) fn prompt(text: &str, vocab_size: usize) -> Result<Vec<u32>, UsageError> {
    const END_OF_TEXT: u32 = 50256;
    let mut tokens = Tokenizer::gpt2().encode_ordinary(text);
    if tokens.is_empty() {
        tokens.push(END_OF_TEXT);
    }
    match tokens.iter().find(|&&token| token as usize >= vocab_size) {
        Some(token) => Err(UsageError(format!(
            "the prompt {text:?} has token {token}, which a vocabulary of {vocab_size} does not have"
        ))),
        None => Ok(tokens),
    }
}

/// Training and validation data of a recipe.
pub(super) struct Data {
    /// What is trained on.
    pub(super) train: Dataset,
    /// What is validated on, if anything.
    pub(super) val: Option<Dataset>,
    /// Digests of both, and of the initial weights.
    pub(super) digests: DataDigests,
}

impl Data {
    /// Opens and checks everything that a recipe reads. `runs_dir/.cache` keeps encoded texts.
    ///
    /// What the data itself lacks is a problem of the recipe's key that names it.
    pub(super) fn open(resolved: &Resolved, runs_dir: &Path) -> anyhow::Result<Self> {
        let mut data = Self::open_sets(resolved, runs_dir)?;
        let model = &resolved.recipe.model;
        if let Some(path) = &model.init_from {
            data.digests.init_from = Some(import::content_digest(path)?);
            let dims = Dims::new(model);
            import::check(path, &dims, &ParamLayout::new(&dims))?;
        }
        Ok(data)
    }

    /// As [`open`](Self::open), but leaves the initial weights alone, which another run may yet have to make.
    pub(super) fn open_sets(resolved: &Resolved, runs_dir: &Path) -> anyhow::Result<Self> {
        let blame = |key| {
            move |error: DataError| match error {
                DataError::Write { .. } => anyhow::Error::from(error),
                _ => resolved.complain(key, &format!("{key}: {error}"), "").into(),
            }
        };
        let recipe = &resolved.recipe;
        let cache_dir = runs_dir.join(".cache");
        let progress = Passes::default();
        let (block_size, vocab_size) = (recipe.model.block_size, recipe.model.vocab_size);
        let options = OpenOptions { block_size, vocab_size, cache_dir: &cache_dir, progress: &progress };
        let train = Dataset::open(&recipe.data.train, options).map_err(blame("data.train"))?;
        let val = match recipe.data.val.as_slice() {
            [] => None,
            named => Some(Dataset::open(named, options).map_err(blame("data.val"))?),
        };
        let digests = DataDigests {
            train: train.digest(),
            val: val.as_ref().map(Dataset::digest).unwrap_or_default(),
            init_from: None,
        };
        Ok(Self { train, val, digests })
    }

    /// What the plan needs to know.
    pub(super) fn size(&self) -> DataSize {
        DataSize {
            train_tokens: self.train.tokens(),
            train_rows: self.train.rows(),
            val_rows: self.val.as_ref().map_or(0, Dataset::rows),
        }
    }

    /// What lints compare.
    pub(super) fn shards(&self) -> Shards {
        let shard = |info: &ShardInfo| {
            // generated texts of one seed begin alike, whatever their length
            let content = match info.format {
                Format::Builtin => info.name.split(",words").next().unwrap_or(&info.name).to_owned(),
                _ => info.digest.to_string(),
            };
            Shard { name: super::relative(&info.name), content }
        };
        let shards = |set: &Dataset| set.shards().map(shard).collect();
        Shards { train: shards(&self.train), val: self.val.as_ref().map(shards).unwrap_or_default() }
    }
}

impl Rows for Stream<'_> {
    fn fill(&self, first: u64, rows: usize, inputs: &mut [u32], targets: &mut [u32]) {
        Stream::fill(self, first, rows, inputs, targets);
    }

    fn locate(&self, row: u64) -> Option<String> {
        let (shard, token) = Stream::locate(self, row);
        Some(format!("{} from token {token} on", super::relative(shard)))
    }
}

/// The engine that a recipe asks for, with the plan's memory. Parameters are zero.
pub(super) fn engine(
    recipe: &Recipe,
    plan: &Plan,
    comm: &Arc<dyn Comm>,
) -> Result<Box<dyn Engine>, EngineError> {
    match recipe.compute.engine {
        EngineKind::Fused => fused(plan.memory_plan(), plan.cuda, comm),
        EngineKind::Dfdx => {
            Ok(Box::new(reference(plan.memory.dims, OptimizerKind::new(&recipe.optimizer), plan.threads)?))
        }
    }
}

/// Who adds up gradients on CUDA devices: NCCL for several ranks, and for one that a launcher started, so that NCCL can be
/// tried with one device.
fn on_devices(comm: &Arc<dyn Comm>) -> Option<Arc<dyn Comm>> {
    let launched = ranks::place().is_ok_and(|place| place.is_some());
    (comm.size() > 1 || launched).then(|| comm.clone())
}

/// The fused engine on a CUDA device with the time of every phase on record.
pub(super) fn timed_cuda(
    plan: MemoryPlan,
    index: usize,
    comm: &Arc<dyn Comm>,
) -> Result<cuda::TimedEngine, EngineError> {
    cuda::timed_engine(Libraries::get(), index, plan, device::cache_dir().as_deref(), on_devices(comm))
}

/// The fused engine on the CPU, or on a CUDA device by its index, as one of the ranks that `comm` connects.
pub(super) fn fused(
    plan: MemoryPlan,
    cuda: Option<usize>,
    comm: &Arc<dyn Comm>,
) -> Result<Box<dyn Engine>, EngineError> {
    Ok(match cuda {
        None => Box::new(cpu::ranked_engine(plan, comm.clone())?),
        Some(index) => {
            let (libraries, cache) = (Libraries::get(), device::cache_dir());
            match on_devices(comm) {
                None => Box::new(cuda::engine(libraries, index, plan, cache.as_deref())?),
                Some(comm) => Box::new(cuda::ranked_engine(libraries, index, plan, cache.as_deref(), comm)?),
            }
        }
    })
}

/// One rank.
pub(super) fn solo() -> Arc<dyn Comm> {
    Arc::new(Solo)
}

/// The dfdx engine on the CPU.
pub(super) fn reference(
    dims: Dims,
    optimizer: OptimizerKind,
    threads: usize,
) -> Result<Pooled<dfdx::CpuEngine>, EngineError> {
    Pooled::new(threads, || dfdx::CpuEngine::new(dims, optimizer))
}

/// `micro_batch` as a run that began with `"auto"` must keep it.
pub(super) fn kept_micro_batch(recipe: &Recipe, began_with: usize) -> Option<usize> {
    (recipe.batch.micro_batch == MicroBatch::Auto).then_some(began_with)
}

/// A path made absolute without touching the disk.
pub(super) fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    Ok(std::path::absolute(path)?)
}
