//! The command line of `runner data`.

use super::{Format, RunsArgs};
use clap::{Args, Subcommand};
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
    /// Download a data set by its name, or files of any data set on the Hugging Face hub
    Fetch(FetchArgs),
    /// Show what data files hold: format, tokens, documents, first words, entropy and digest
    Inspect(InspectArgs),
}

/// Arguments of `data fetch`.
#[derive(Debug, Args)]
pub struct FetchArgs {
    /// A name that --list shows, or hf://datasets/OWNER/REPO[@REVISION][/PATTERN]; HF_ENDPOINT names another hub,
    /// HF_TOKEN gives access to data that are not public, HTTPS_PROXY names a proxy
    #[arg(required_unless_present = "list", value_name = "NAME|hf://…")]
    pub what: Option<String>,
    /// Show the names, with sizes, licences and where they come from
    #[arg(long, conflicts_with = "what")]
    pub list: bool,
    /// Directory for the files; if not given, where shipped recipes look for them, below datasets
    #[arg(long, value_name = "DIR")]
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
    /// Seconds without a byte after which a connection is given up
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
