//! Parse, dispatch, exit code; nothing else.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    runner::commands::dispatch(runner::cli::Cli::parse()).into()
}
