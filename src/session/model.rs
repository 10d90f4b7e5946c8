//! Opening a model for use: from a run, a checkpoint or weights from elsewhere to an engine that has them.

use super::audience::{Audience, Event, of_damage};
use super::ending::UsageError;
use super::engines;
use super::inputs::of_init_from;
use super::machine::{self, Choice};
use crate::cuda::CudaMissing;
use crate::data::Tokenizer;
use crate::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use crate::engine::{Engine, State, cuda::kernels::flash_attention};
use crate::model::Dims;
use crate::model::init::initialize;
use crate::plan::gib;
use crate::plan::hardware::Hardware;
pub use crate::recipe::Precision;
use crate::recipe::{self, Attention, Device};
use crate::regular;
use crate::run::checkpoint;
use crate::run::named::{checkpoint_of, latest, own};
use crate::run::{RunError, find, import};
use crate::weights::{self, Unreadable};
use std::path::{Component, Path, PathBuf};

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
    /// What its token ids mean.
    pub tokenizer: Tokenizer,
    /// Where its weights come from.
    pub source: Source,
}

/// Where a model's weights come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The newest intact checkpoint of a run.
    Run {
        /// The run's directory.
        run: PathBuf,
        /// The checkpoint's directory.
        checkpoint: PathBuf,
    },
    /// A checkpoint's directory.
    Checkpoint(PathBuf),
    /// A model from elsewhere: Hugging Face's, as a directory or a `.safetensors` file with its `config.json`
    /// beside it, or a file of nanoGPT or llm.c.
    Weights(PathBuf),
}

impl Source {
    /// The weights that a path, or the beginning of a run's name in `runs_dir`, stands for. `@best`, `@latest` or
    /// `@STEP` after a run names one of its checkpoints.
    ///
    /// # Errors
    /// [`RunError`] where the name leads to no run, or to a run without such or without an intact checkpoint, or to
    /// another run's checkpoint, or to a checkpoint that is not what was saved; [`UsageError`] for weights without a
    /// configuration.
    pub fn find(named: &Path, runs_dir: &Path, audience: &dyn Audience) -> anyhow::Result<Self> {
        let found = Self::look_up(named, runs_dir, audience)?;
        if !matches!(found, Self::Run { .. }) {
            checkpoint::verify_model(found.weights())?;
        }
        Ok(found)
    }

    fn look_up(named: &Path, runs_dir: &Path, audience: &dyn Audience) -> anyhow::Result<Self> {
        let passed_over = of_damage(audience);
        if named.join("config.json").is_file() {
            if !checkpoint::is_checkpoint(named) {
                return Ok(Self::Weights(named.to_owned()));
            }
            let named = with_its_run(named);
            own(&named)?;
            return Ok(Self::Checkpoint(named));
        }
        // a file that comes with its dimensions, or a directory with such a file; a run has none
        if !crate::run::dir::is_run(named) && matches!(weights::stated(named), Ok(Some(_))) {
            return Ok(Self::Weights(named.to_owned()));
        }
        let run = match find::one(runs_dir, named) {
            Err(RunError::NamesCheckpoint { run, checkpoint, .. }) => {
                return Ok(Self::Checkpoint(checkpoint_of(&run, &checkpoint, passed_over)?));
            }
            found => found.map_err(|error| problem_of(named).unwrap_or_else(|| error.into()))?,
        };
        let checkpoint = latest(&run, passed_over)?;
        Ok(Self::Run { run, checkpoint })
    }

    /// The directory or file that holds the weights.
    pub fn weights(&self) -> &Path {
        match self {
            Self::Run { checkpoint: path, .. } | Self::Checkpoint(path) | Self::Weights(path) => path,
        }
    }

    /// The run that the weights are of; `None` for weights from elsewhere.
    #[must_use]
    pub fn run(&self) -> Option<&Path> {
        match self {
            Self::Run { run, .. } => Some(run),
            Self::Checkpoint(checkpoint) => {
                checkpoint.parent()?.parent().filter(|above| crate::run::dir::is_run(above))
            }
            Self::Weights(_) => None,
        }
    }

    /// The prompt that the recipe of its run has; `None` for weights from elsewhere.
    #[must_use]
    pub fn prompt(&self) -> Option<String> {
        let values = recipe::values_of(self.run()?).unwrap_or_default();
        let value = |of: &str| values.iter().find(|(known, _)| known == of).map(|(_, value)| value);
        value("sample.prompt")?.as_str().map(str::to_owned)
    }

    /// What its token ids stand for: as the `tokenizer.json` beside the weights says if that is one of characters or
    /// bytes, or nanoGPT's `meta.pkl`, else GPT-2's.
    ///
    /// # Errors
    /// [`UsageError`] for a list of characters that is damaged.
    pub fn tokenizer(&self) -> Result<Tokenizer, UsageError> {
        Tokenizer::of_model(dir_of(self.weights())).map_err(UsageError)
    }

    /// The dimensions that the configuration states.
    ///
    /// # Errors
    /// [`RunError::Io`], or [`RunError::Malformed`] naming what is missing from a checkpoint; [`UsageError`] saying so
    /// of weights that come from elsewhere.
    pub fn dims(&self) -> anyhow::Result<Dims> {
        import::dims(self.weights()).map_err(|error| match (self, error) {
            // of a checkpoint it is damage, here it is what was asked for
            (Self::Weights(_), error @ RunError::Malformed { .. }) => UsageError(error.to_string()).into(),
            (_, error) => error.into(),
        })
    }
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
    open_source(Source::find(named, runs_dir, audience)?, options, audience)
}

/// Opens the model of a source that is known already.
///
/// # Errors
/// Where the weights do not fit their configuration, or the device, the memory or the build is not there for them.
pub fn open_source(source: Source, options: &Options, audience: &dyn Audience) -> anyhow::Result<Model> {
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
    Weights::At(source.weights().to_owned()).load(engine.as_mut(), &dims)?;
    let tokenizer = source.tokenizer()?;
    Ok(Model { engine, dims, tokenizer, source })
}

/// A checkpoint's path with its run's above it, which a path from within the run does not show.
fn with_its_run(checkpoint: &Path) -> PathBuf {
    let is_name = |part: &Component| matches!(part, Component::Normal(_));
    match checkpoint.components().rev().take(3).filter(is_name).count() {
        3 => checkpoint.to_owned(),
        _ => checkpoint.canonicalize().unwrap_or_else(|_| checkpoint.to_owned()),
    }
}

/// That the tokens of the weights stand for something else than those of the data, if they do.
pub(super) fn other_tokens(weights: &Path, vocab_size: usize, ours: &Tokenizer) -> Option<String> {
    let theirs = match Tokenizer::stated_by_model(dir_of(weights)) {
        Ok(Some(theirs)) => theirs,
        // as `runner sample` takes them
        Ok(None) if vocab_size == Tokenizer::gpt2().vocab_size() => Tokenizer::gpt2().clone(),
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

/// The directory of weights, where what describes them lies.
fn dir_of(weights: &Path) -> &Path {
    if weights.is_dir() { weights } else { weights.parent().unwrap_or(weights) }
}

/// Why weights that have the name of no run cannot be used; `None` for what is none.
fn problem_of(named: &Path) -> Option<anyhow::Error> {
    let malformed = |problem| Some(RunError::Malformed { path: named.to_owned(), problem }.into());
    let config = weights::config_of(named);
    if named.is_dir() {
        if config.symlink_metadata().is_ok() {
            let error = regular::open(&config).err()?;
            return Some(UsageError(format!("could not read `{}`: {error}", config.display())).into());
        }
        // of another directory, that it holds no weights says less than that it is no run
        weights::files(named).ok()?;
    } else {
        let mut file = regular::open(named).ok()?;
        let is_called_so = named.extension().is_some_and(|extension| extension == "safetensors");
        match weights::contents(named, &mut file) {
            Err(problem) => return malformed(problem),
            Ok(None) if is_called_so => return malformed(weights::NONE.to_owned()),
            Ok(None) => return None,
            Ok(Some(_)) => {}
        }
    }
    match weights::stated(named) {
        Err(Unreadable { file, problem }) => {
            Some(UsageError(format!("`{}` cannot be used: {problem}", file.display())).into())
        }
        Ok(None) => {
            let named = named.display();
            let message = format!("`{named}` has no config.json beside it, which says what model it is");
            Some(UsageError(message).into())
        }
        Ok(Some(_)) => None,
    }
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
    /// Those of a directory or file.
    At(PathBuf),
    /// Those of the directory or file that a recipe names.
    InitFrom(PathBuf),
    /// Those of a checkpoint, with the optimizer's states.
    Checkpoint(Box<checkpoint::Reader>),
    /// Those of a checkpoint of another run, with the optimizer's states.
    Branch(Box<checkpoint::Reader>),
}

impl Weights {
    /// Writes them to an engine of that size. Errors where they do not fit, or cannot be read.
    pub(super) fn load(&mut self, engine: &mut dyn Engine, dims: &Dims) -> anyhow::Result<()> {
        let layout = engine.layout().clone();
        let mut buffer = vec![0.0; State::Parameters.len_in(&layout)];
        match self {
            Self::Random { seed } => initialize(dims, &layout, *seed, &mut buffer),
            Self::At(path) => import::import(path, dims, &layout, &mut buffer)?,
            Self::InitFrom(path) => import::import(path, dims, &layout, &mut buffer).map_err(of_init_from)?,
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
