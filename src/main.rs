//! Parse, dispatch, exit code; nothing else.

use clap::Parser;
use runner::commands::completions;
use std::process::ExitCode;

fn main() -> ExitCode {
    let answered = completions::answer();
    answered.unwrap_or_else(|| runner::commands::dispatch(runner::cli::Cli::parse())).into()
}
