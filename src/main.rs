//! Parse, dispatch, exit code; nothing else.

use clap::Parser;
use runner::commands::completions;
use std::process::ExitCode;

fn main() -> ExitCode {
    runner::commands::outlive_early();
    let answered = completions::answer();
    let called = || match runner::cli::Cli::try_parse() {
        Ok(cli) => runner::commands::dispatch(cli),
        Err(answer) => runner::commands::say_of_usage(answer),
    };
    answered.unwrap_or_else(called).into()
}
