//! The arguments of `eval`.

use super::{ModelArgs, RunsArgs, TableFormat, WidthArgs};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use std::path::PathBuf;

/// Arguments of `eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Runs (directories or ids), checkpoint directories, Hugging Face GPT-2 weights, nanoGPT's ckpt.pt or llm.c's
    /// model file; several make one table. Of a run, the newest checkpoint is evaluated
    #[arg(value_name = "RUN|CHECKPOINT", required = true)]
    pub models: Vec<PathBuf>,
    /// Files or globs of tokens or text to compute the loss on; without it, the validation data of a run's own recipe,
    /// as many tokens of them as the run itself reads
    #[arg(long, value_name = "FILES", num_args = 1..)]
    pub data: Vec<String>,
    /// Compute the loss on the first N tokens only
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    pub tokens: Option<u64>,
    /// HellaSwag: its own JSONL, or llm.c's hellaswag_val.bin
    #[arg(long, value_name = "FILE")]
    pub hellaswag: Option<PathBuf>,
    /// LAMBADA: JSONL with a `text` whose last word is to be guessed
    #[arg(long, value_name = "FILE")]
    pub lambada: Option<PathBuf>,
    /// Any task: JSONL with `context`, `endings` and `label`, or of a form above; scores are called by the file's name
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub tasks: Vec<PathBuf>,
    /// Score multiple choice by lm-evaluation-harness's definition too
    #[arg(long)]
    pub lm_eval: bool,
    /// Evaluate every checkpoint of each run, oldest first
    #[arg(long)]
    pub all_checkpoints: bool,
    /// Append the results to the eval.csv of each run, where `runner compare --metrics` finds them
    #[arg(long)]
    pub save: bool,
    /// Sequences per forward pass
    #[arg(long, value_name = "B", default_value_t = 8,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_048_576))]
    pub micro_batch: usize,
    /// What computes it.
    #[command(flatten)]
    pub compute: ModelArgs,
    /// How the table is printed; JSON has every number with its standard error and definition
    #[arg(long, value_enum, default_value_t = TableFormat::Table)]
    pub format: TableFormat,
    /// How the table fits.
    #[command(flatten)]
    pub width: WidthArgs,
    /// Where runs are kept.
    #[command(flatten)]
    pub runs: RunsArgs,
}
