//! The command line of `runner data`.

use super::{Format, RunsArgs, place};
use crate::data::TokenizerKind;
use crate::data::prepare::Separator;
use clap::builder::{PossibleValue, RangedU64ValueParser};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Arguments of `data`.
#[derive(Debug, Args)]
pub struct DataArgs {
    /// What is done with data.
    #[command(subcommand)]
    pub command: Data,
}

/// What `runner data` does.
#[derive(Debug, Subcommand)]
pub enum Data {
    /// Make shards of tokens from text: .txt, .jsonl (both also .gz or .zst) and .parquet
    ///
    /// Prints the directory on stdout. Killed and started again with the same options, it goes on where it was and ends
    /// with the same bytes; finished and started again, it does nothing.
    Prepare(PrepareArgs),
    /// Download a data set by its name, or files of any data set on the Hugging Face hub
    Fetch(FetchArgs),
    /// Show what data files hold: format, tokens, documents, first words, entropy and digest
    Inspect(InspectArgs),
}

/// Arguments of `data fetch`.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// A name, or files of the hub.
    #[arg(
        required_unless_present = "list",
        value_name = "NAME|hf://…",
        help = "A name that --list shows, or hf://datasets/OWNER/REPO[@REVISION][/PATTERN]; HF_ENDPOINT names another \
                hub, HF_TOKEN gives access to data that are not public, HTTPS_PROXY names a proxy"
    )]
    pub what: Option<String>,
    /// Show the names, with sizes, licences and where they come from
    #[arg(long, conflicts_with = "what")]
    pub list: bool,
    /// Directory for the files; if not given, where shipped recipes look for them, below datasets
    #[arg(long, value_name = "DIR", value_parser = place())]
    pub out: Option<PathBuf>,
    /// Take only the first N files, and those for validation
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub shards: Option<u32>,
    /// Another address of a name that stands for a single file
    #[arg(long, value_name = "URL")]
    pub from: Option<String>,
    /// Files that are downloaded at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub jobs: u32,
    /// How often a download is tried again without a further byte before it is given up
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub retries: u32,
    /// Seconds without a byte after which a connection is given up; a hub's list has ten times as long in all, waits
    /// that it asks for aside
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
}

/// Arguments of `data inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Data files, or directories of which every .bin, .npy and .txt file is taken
    #[arg(required = true, value_name = "FILE|DIR")]
    pub paths: Vec<PathBuf>,
    /// Print text or JSON
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Where encoded texts are kept.
    #[command(flatten)]
    pub runs: RunsArgs,
}

/// Arguments of `data prepare`.
#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// Files, globs, and directories with everything below them
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<String>,
    /// Directory of the shards and their dataset.json
    #[arg(long, value_name = "DIR", value_parser = place())]
    pub out: PathBuf,
    /// What makes tokens of the text
    #[arg(long, value_enum, default_value_t = TokenizerKind::Gpt2)]
    pub tokenizer: TokenizerKind,
    /// The field of a JSON object, or the column of a table, that has the text
    #[arg(long, default_value = "text")]
    pub field: String,
    /// Documents of a .txt are what lies between these texts, in which \n is the end of a line, \r a carriage return,
    /// \t a tab and \\ a backslash; without it, a file is one document
    #[arg(long, value_name = "STRING")]
    pub split_on: Option<String>,
    /// Tokens of a shard
    #[arg(long, value_name = "N", default_value_t = 100_000_000)]
    pub shard_tokens: u64,
    /// How to set validation data aside.
    #[command(flatten)]
    pub validation: ValidationArgs,
    /// Where the token that separates documents stands; by default before each document with gpt2, and nowhere with the
    /// tokenizers that have none
    #[arg(long, value_enum)]
    pub separator: Option<Separator>,
    /// Put the documents into an order that this number draws
    #[arg(long, value_name = "N")]
    pub shuffle_seed: Option<u64>,
    /// Threads that encode, all if not given; they change nothing but the time
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=1024))]
    pub threads: Option<u32>,
    /// Read no more than this many tokens
    #[arg(long, value_name = "N")]
    pub limit_tokens: Option<u64>,
}

/// How `data prepare` sets validation data aside: in at most one way.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct ValidationArgs {
    /// Validate on the first N tokens
    #[arg(long, value_name = "N")]
    pub val_tokens: Option<u64>,
    /// Validate on the last tokens, this fraction of all
    #[arg(long, value_name = "F")]
    pub val_fraction: Option<f64>,
    /// Validate on the first shard
    #[arg(long)]
    pub val_first_shard: bool,
}

impl ValueEnum for TokenizerKind {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.word()))
    }
}

impl ValueEnum for Separator {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Prepend, Self::Append, Self::None]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.word()))
    }
}
