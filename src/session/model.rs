//! Opening a model for use: from a run, a checkpoint or weights from elsewhere to an engine that has them.

use super::audience::{Audience, Event};
use super::ending::UsageError;
use super::engines;
use super::inputs::of_init_from;
use super::machine::{self, Choice};
pub use super::source::Source;
use super::source::may_be_gpt2;
use crate::cuda::CudaMissing;
use crate::data::Tokenizer;
use crate::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use crate::engine::{Engine, State, cuda::kernels::flash_attention};
use crate::model::init::initialize;
use crate::model::{Dims, ParamLayout, Tensor};
use crate::plan::gib;
use crate::plan::hardware::Hardware;
pub use crate::recipe::Precision;
use crate::recipe::{Attention, Device};
use crate::run::checkpoint::{self, CheckpointState};
use crate::run::{RunError, import};
use std::path::{Path, PathBuf};

/// What a model is opened for.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Where it computes.
    pub device: Device,
    /// CPU threads, 0 for all.
    pub threads: usize,
    /// What the operands of matrix products are rounded to.
    pub precision: Precision,
    /// Forward passes only, or training.
    pub mode: Mode,
    /// Sequences per forward pass.
    pub micro_batch: usize,
    /// Tokens per sequence, if fewer than the model takes.
    pub block_size: usize,
}

impl Default for Options {
    /// Forward passes over one sequence in fp32, on a CUDA device if there is one.
    fn default() -> Self {
        Self {
            device: Device::Auto,
            threads: 0,
            precision: Precision::Fp32,
            mode: Mode::Infer,
            micro_batch: 1,
            block_size: usize::MAX,
        }
    }
}

/// A model that is ready for use.
pub struct Model {
    /// It has the weights.
    pub engine: Box<dyn Engine>,
    /// Its dimensions; `block_size` is at most that of the [`Options`].
    pub dims: Dims,
    /// Where its weights come from.
    pub source: Source,
    /// What its checkpoint says of it; `None` for weights from elsewhere.
    pub state: Option<CheckpointState>,
}

/// Opens the model that a path or the beginning of a run's name in `runs_dir` stands for.
///
/// # Errors
/// Where nothing, or nothing intact, has the name; where the device, the memory or the build is not there for it.
pub fn open(
    named: &Path,
    runs_dir: &Path,
    options: &Options,
    audience: &dyn Audience,
) -> anyhow::Result<Model> {
    Source::with(named, runs_dir, audience, |source| open_source(source, options, audience))
}

/// Opens the model of a source that is known already.
///
/// # Errors
/// Where the weights do not fit their configuration, or the device, the memory or the build is not there for them.
pub fn open_source(source: Source, options: &Options, audience: &dyn Audience) -> anyhow::Result<Model> {
    let state = source.run().map(|_| CheckpointState::read(source.weights())).transpose()?;
    let stated = source.dims()?;
    let dims = Dims { block_size: stated.block_size.min(options.block_size), ..stated };
    let missing = |CudaMissing { message, help }| {
        UsageError(format!("device \"{}\": {message}; {help}", String::from(options.device)))
    };
    let cuda = machine::device(options.device, Choice::Any).map_err(missing)?;
    if cuda.is_none()
        && let Some(missing) = machine::passed_over(options.device, Choice::Any)
    {
        audience.tell(Event::CudaPassedOver(&missing));
    }
    let hardware = Hardware { cuda, ..Hardware::detect() };
    let cuda = hardware.cuda.as_ref().map(|cuda| cuda.index);
    let threads = if options.threads == 0 { hardware.threads } else { options.threads };
    let is_wide = cuda.is_some() && dims.head_size() > flash_attention::LARGEST_HEAD;
    let plan = MemoryPlan::checked(MemoryConfig {
        dims,
        micro_batch: options.micro_batch,
        precision: options.precision,
        attention: if is_wide { Attention::Naive } else { Attention::Flash },
        target: if cuda.is_some() { Target::Cuda } else { Target::Cpu { threads } },
        mode: options.mode,
        activations: Activations::default(),
    });
    let shown = source.weights().display();
    let plan = plan.ok_or_else(|| UsageError(format!("{shown} needs more than a PiB of memory")))?;
    check_fit(&source, &plan, &hardware)?;
    // a configuration may state any dimensions: memory is taken for those that the weights have
    import::check_tensors(source.weights(), &dims, &plan.layout)?;
    let mut engine = engines::fused(plan, cuda, &engines::solo())?;
    let digest = state.as_ref().map(CheckpointState::digest_of_model);
    Weights::At { path: source.weights().to_owned(), digest }.load(engine.as_mut(), &dims)?;
    Ok(Model { engine, dims, source, state })
}

/// That the tokens of the weights stand for something else than those of the data, if they do.
pub(super) fn other_tokens(weights: &Path, vocab_size: usize, ours: &Tokenizer) -> Option<String> {
    let theirs = match Tokenizer::stated_by_model(weights) {
        Ok(Some(theirs)) => theirs,
        // as `runner sample` takes them
        Ok(None) if may_be_gpt2(vocab_size) => Tokenizer::gpt2().clone(),
        Ok(None) => return None,
        Err(problem) => {
            return Some(format!("the tokens of the weights may not be those of the data: {problem}"));
        }
    };
    let (kind, of_ours) = (theirs.kind(), ours.kind());
    (theirs != *ours).then(|| {
        let theirs = if kind == of_ours { "other ones".to_owned() } else { kind.to_string() };
        format!(
            "the tokens of the data are taken for {of_ours}, and those of the weights are {theirs}: the model has \
             learned another meaning of the same numbers"
        )
    })
}

/// Refuses a model for which there is no memory, before any of it is taken.
fn check_fit(source: &Source, plan: &MemoryPlan, hardware: &Hardware) -> Result<(), UsageError> {
    // on the CPU, the weights pass through a buffer of their own
    let (passing, place) = match hardware.cuda {
        None => (plan.layout.len * size_of::<f32>(), ""),
        Some(_) => (0, " on the device"),
    };
    let (needed, free) = (plan.total_bytes() + passing, hardware.free());
    if needed <= free {
        return Ok(());
    }
    Err(UsageError(format!(
        "{} needs {} of memory{place}, but only {} are free",
        source.weights().display(),
        gib(needed),
        gib(free)
    )))
}

/// The weights that an engine is given.
#[derive(Debug)]
pub(super) enum Weights {
    /// Random ones.
    Random {
        /// Chooses them.
        seed: u64,
    },
    /// Those of a directory or file, with the digest that is on record of them.
    At { path: PathBuf, digest: Option<String> },
    /// Those of the directory or file that a recipe names, with the digest that they had when they were found.
    InitFrom { path: PathBuf, digest: String },
    /// Those of a checkpoint, with the optimizer's states.
    Checkpoint(Box<checkpoint::Reader>),
    /// Those of a checkpoint of another run, with the optimizer's states.
    Branch(Box<checkpoint::Reader>),
}

/// Checks that training can begin with weights.
fn check_finite(path: &Path, layout: &ParamLayout, weights: &[f32]) -> Result<(), RunError> {
    let is_damaged = |tensor: &&Tensor| weights[tensor.range()].iter().any(|weight| !weight.is_finite());
    match layout.tensors.iter().find(is_damaged) {
        Some(Tensor { name, .. }) => {
            let problem =
                format!("`{name}` is not finite: the weights are damaged, or what trained them diverged");
            Err(RunError::Weights { path: path.to_owned(), problems: vec![problem] })
        }
        None => Ok(()),
    }
}

impl Weights {
    /// Writes them to an engine of that size. Errors where they do not fit, or cannot be read.
    pub(super) fn load(&mut self, engine: &mut dyn Engine, dims: &Dims) -> anyhow::Result<()> {
        let layout = engine.layout().clone();
        let mut buffer = vec![0.0; State::Parameters.len_in(&layout)];
        match self {
            Self::Random { seed } => initialize(dims, &layout, *seed, &mut buffer),
            Self::At { path, digest } => {
                import::import(path, dims, &layout, digest.as_deref(), &mut buffer)?;
            }
            Self::InitFrom { path, digest } => {
                import::import(path, dims, &layout, Some(digest), &mut buffer).map_err(of_init_from)?;
                check_finite(path, &layout, &buffer).map_err(of_init_from)?;
            }
            Self::Checkpoint(reader) | Self::Branch(reader) => {
                for state in engine.saved_states() {
                    // a state may cover less than the one before
                    buffer.resize(state.len_in(&layout), 0.0);
                    buffer.shrink_to_fit();
                    reader.fill(state, dims, &layout, &mut buffer)?;
                    engine.write(state, &buffer)?;
                }
                return Ok(());
            }
        }
        engine.write(State::Parameters, &buffer)?;
        Ok(())
    }
}
