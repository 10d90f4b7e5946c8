//! `runner completions SHELL`: what a shell needs to complete this command line.

use super::exit::Exit;
use crate::cli::{Cli, CompletionsArgs};
use clap::CommandFactory;

/// Prints the script.
pub(super) fn run(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    // written to memory first: the generator panics when its writer fails
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "runner", &mut script);
    super::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Finished)
}
