//! Parse, dispatch, exit code; nothing else.

use runner::commands::completions;
use std::process::ExitCode;

fn main() -> ExitCode {
    runner::commands::outlive_early();
    let answered = completions::answer();
    let called = || match runner::cli::Cli::of_process() {
        Ok(cli) => runner::commands::dispatch(cli),
        Err(answer) => runner::commands::say_of_usage(answer),
    };
    answered.unwrap_or_else(called).into()
}
