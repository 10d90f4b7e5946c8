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
    /// Show what data files hold: format, tokens, documents, first words, entropy and digest
    Inspect(InspectArgs),
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
