//! The command line: definitions only.

mod data;
mod eval;
pub mod manual;
mod recipes;
mod report;

pub use data::{Data, DataArgs, FetchArgs, InspectArgs, PrepareArgs, ValidationArgs};
pub use eval::EvalArgs;
pub use recipes::{InitArgs, RecipeArgs, RecipesArgs, Word};
pub use report::{
    AxisName, CompareArgs, ExportArgs, ListArgs, LogAxis, PlotArgs, SchemaArgs, SchemaOf, TableFormat,
    ThemeName, WatchArgs, WidthArgs,
};

use crate::session::model::Precision;
use crate::session::{RUNS_DIR, SAMPLE_TEMPERATURE, SAMPLE_TOP_K, at_home};
use clap::builder::{PathBufValueParser, PossibleValue, RangedU64ValueParser, TypedValueParser};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use recipes::{PLAIN, one};
use std::path::{Path, PathBuf};

/// Train GPT-2 models from TOML recipes.
///
/// Prints the run's directory on stdout, one line per recipe; everything else goes to stderr. A recipe whose run is
/// finished is skipped, one that was interrupted is resumed.
///
/// Exit codes: 0 finished, 1 failure, 2 usage or recipe, 3 run locked by a live process, 4 diverged,
/// 129/130/143 interrupted by SIGHUP/SIGINT/SIGTERM, after a checkpoint if the run trained. SIGUSR1 asks for a
/// checkpoint now.
#[derive(Debug, Parser)]
#[command(name = "runner", version, args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do instead of training.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Training.
    #[command(flatten)]
    pub train: TrainArgs,
}

impl Cli {
    /// Reads the command line of this process.
    ///
    /// # Errors
    /// What is wrong with it, or the help that it asks for.
    pub fn of_process() -> Result<Self, clap::Error> {
        let matches = with_negative_numbers(Self::command()).try_get_matches()?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut Self::command()))
    }

    /// The directory of runs of a command that opens what is in it.
    #[must_use]
    pub fn runs_dir(&self) -> Option<&Path> {
        let runs = match &self.command {
            None => &self.train.runs,
            Some(Command::Sample(args)) => &args.runs,
            Some(Command::Eval(args)) => &args.runs,
            Some(Command::Plan(args)) => &args.runs,
            Some(Command::Explain(args)) => &args.runs,
            Some(Command::Verify(args)) => &args.runs,
            Some(Command::Bench(args)) => &args.runs,
            Some(Command::Compare(args)) => &args.dir,
            Some(Command::List(args)) => &args.dir,
            Some(Command::Watch(args)) => &args.dir,
            Some(Command::Export(args)) => &args.dir,
            Some(_) => return None,
        };
        Some(&runs.runs_dir)
    }
}

/// Takes `-1` behind an option for its value. The value's own check can then refuse it, in words that fit.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let is_option = |arg: &clap::Arg| !arg.is_positional() && arg.get_action().takes_values();
    command
        .mut_args(|arg| if is_option(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(with_negative_numbers)
}

/// Arguments of training.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Recipes to train, in order, and changes of all of them.
    #[command(flatten)]
    pub recipes: RecipeArgs,
    /// Where runs are kept.
    #[command(flatten)]
    pub runs: RunsArgs,
    /// Discard the recipe's existing run and start over
    #[arg(long, conflicts_with = "resume")]
    pub fresh: bool,
    /// Check everything up to the first step and say what would be done; train nothing, write nothing but caches
    #[arg(long)]
    pub dry_run: bool,
    /// Continue this run (a directory or an id) from its own recipe; --set may change only what does not change the
    /// mathematics
    #[arg(long, value_name = "RUN")]
    pub resume: Option<PathBuf>,
    /// Begin every line on stderr with the run's id and show no bar: for runs that share a terminal or a log
    #[arg(long)]
    pub named: bool,
    /// Say only what is wrong
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Say every step, and every checkpoint once it is on the disk
    #[arg(short, long)]
    pub verbose: bool,
    /// What stderr gets: text, or one JSON object per line, which `runner schema events` describes
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// What a training writes to stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs: one event per line.
    Json,
}

/// The value of an option that names a place to write to.
fn place() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(at_home)
}

/// Where runs are kept.
#[derive(Debug, Clone, Args)]
pub struct RunsArgs {
    /// Directory of all runs
    #[arg(long, value_name = "DIR", default_value = RUNS_DIR, value_parser = place())]
    pub runs_dir: PathBuf,
}

/// How a command prints its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a prompt with a run's newest checkpoint, or any Hugging Face GPT-2 directory
    Sample(SampleArgs),
    /// Measure the loss of runs, checkpoints or other GPT-2 weights on data, and their scores in HellaSwag and other
    /// tasks
    Eval(EvalArgs),
    /// Write a commented recipe to start from
    Init(InitArgs),
    /// List the recipes that the program carries
    Recipes(RecipesArgs),
    /// Show everything that follows from a recipe on this machine, before running it
    #[command(mut_arg(PLAIN, |plain| one(plain, "The recipe")))]
    Plan(PlanArgs),
    /// Show every value of a recipe and where it comes from; with KEY, every layer that sets it, the winner last
    #[command(mut_arg(PLAIN, |plain| {
        one(plain, "The recipe, then a key such as optimizer.lr or a table").value_name("RECIPE [KEY]")
    }))]
    Explain(ExplainArgs),
    /// Print the JSON Schema of recipes, for editors, or that of comparisons or of events, or a page of all keys
    Schema(SchemaArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Write manual pages, one for each command
    Man(ManArgs),
    /// Compare this recipe's engine with the dfdx reference: loss, every gradient, the parameters after some updates
    #[command(mut_arg(PLAIN, |plain| one(plain, "The recipe whose engine, precision and attention are verified")))]
    Verify(VerifyArgs),
    /// Measure this recipe's throughput and where its time goes; writes no run
    #[command(mut_arg(PLAIN, |plain| one(plain, "The recipe whose training step is measured, on random tokens")))]
    Bench(BenchArgs),
    /// Show the processor, the CUDA libraries and devices found, their peak rates, and what is missing
    Doctor(DoctorArgs),
    /// Put runs side by side: what differs between their recipes, what came of it, and whether that is more than noise
    Compare(CompareArgs),
    /// List the runs there are, or remove some
    List(ListArgs),
    /// Follow runs while they train: a live chart on a terminal, lines without one, or a page for browsers
    Watch(WatchArgs),
    /// Write the logs, samples and recipes of runs for TensorBoard, and go on while they train
    Export(ExportArgs),
    /// Download data, make shards of tokens from text, or look at data
    Data(DataArgs),
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The recipe and changes of it.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Steps that are counted, after two that are not
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub steps: u32,
    /// Measure generating text instead: so many tokens, one at a time, with random weights
    #[arg(long, value_name = "TOKENS", num_args = 0..=1, require_equals = true, default_missing_value = "200",
        conflicts_with = "steps", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub sample: Option<u32>,
    /// Print a table or JSON
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Where runs are kept.
    #[command(flatten)]
    pub runs: RunsArgs,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Try every call, kernel and matrix product of a training step on the first CUDA device, one line each
    #[arg(long)]
    pub selftest: bool,
    /// Measure rates of arithmetic and of copies too; takes a few seconds and uses the devices
    #[arg(long)]
    pub measure: bool,
    /// Print text or JSON
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// As many threads as a recipe may ask for.
fn threads() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=4096)
}

/// The words of `compute.precision`.
impl ValueEnum for Precision {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Fp32, Self::Tf32, Self::Bf16, Self::Fp16]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.as_str()))
    }
}

/// How a model that is only used is computed.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// auto, cpu, cuda or cuda:N; auto takes a CUDA device where there is one
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// What the operands of matrix products are rounded to; on a CPU, anything but fp32 is emulated
    #[arg(long, value_enum, default_value_t = Precision::Fp32)]
    pub precision: Precision,
    /// CPU threads, 0 for all
    #[arg(long, default_value_t = 0, value_parser = threads())]
    pub threads: usize,
}

/// Arguments of `sample`.
#[derive(Debug, Args)]
pub struct SampleArgs {
    /// A run (directory or id), one of its checkpoints (RUN@best, RUN@1000 or a directory), Hugging Face GPT-2 weights
    /// (a directory, or a .safetensors file with its config.json beside it), nanoGPT's ckpt.pt or llm.c's model file
    #[arg(value_name = "RUN|CHECKPOINT")]
    pub model: PathBuf,
    /// What the text starts with, once for each text; without it, the prompt of the run's recipe, or nothing for other
    /// weights
    #[arg(long)]
    pub prompt: Vec<String>,
    /// Texts for each prompt; the seed of each is one higher than that of the one before
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub num_samples: u32,
    /// Tokens to generate
    #[arg(long, default_value_t = 100)]
    pub tokens: usize,
    /// Logits are divided by this; 0 takes the most likely token always
    #[arg(long, default_value_t = SAMPLE_TEMPERATURE)]
    pub temperature: f64,
    /// Draw only from the most likely this many tokens; 0 draws from all
    #[arg(long, default_value_t = SAMPLE_TOP_K)]
    pub top_k: usize,
    /// Of these, draw only from the most likely whose probabilities together reach this; 1 draws from all
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f64,
    /// End a text before this string, which is not printed; may be given several times
    #[arg(long, value_name = "STRING")]
    pub stop: Vec<String>,
    /// Seeds the draws
    #[arg(long, default_value_t = 1337)]
    pub seed: u64,
    /// Print the text as it is made, or JSON at the end
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// What computes it.
    #[command(flatten)]
    pub compute: ModelArgs,
    /// Where runs are kept.
    #[command(flatten)]
    pub runs: RunsArgs,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The recipe and changes of it.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Print text or JSON
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// How fast each of several ranks sends, in GB/s; measured here if they are to be threads of this machine
    #[arg(long, value_name = "GB/S")]
    pub link: Option<f64>,
    /// How many of the ranks are to share this machine, for its memory and the time of a step; all, if not given and no
    /// launcher says otherwise
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks_here: Option<u32>,
    /// Time a small step now and forget the predictions that runs and earlier timings have left for this recipe
    #[arg(long)]
    pub measure: bool,
    /// Also model a step on a CUDA device, kernel by kernel, at assumed rates: a data sheet's, or the device at hand
    #[arg(long, value_enum, value_name = "DEVICE")]
    pub roofline: Option<RooflineDevice>,
    /// Where runs and their cache are kept.
    #[command(flatten)]
    pub runs: RunsArgs,
}

/// A CUDA device whose time is modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RooflineDevice {
    /// H100 SXM
    H100,
    /// H200 SXM
    H200,
    /// A100 SXM 80 GB
    A100,
    /// GeForce RTX 4090
    Rtx4090,
    /// The device that the recipe would train on here
    Here,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The recipe and changes of it.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Print text or JSON
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Where runs are kept.
    #[command(flatten)]
    pub runs: RunsArgs,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Where the pages go; a directory `man1` in one that MANPATH names is where `man` looks
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The recipe and changes of it.
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Optimizer steps after which the parameters are compared
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Print a table or JSON
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Where runs and their cache are kept.
    #[command(flatten)]
    pub runs: RunsArgs,
}
