//! One file per subcommand, and what they share. Only this module prints.

mod build;
mod calibration;
mod completions;
pub mod exit;
mod explain;
mod plan;
mod sample;
mod schema;
mod signals;
mod terminal;
mod train;
mod verify;

use crate::cli::{Cli, Command, OverrideArgs};
use crate::recipe::Overrides;
use crate::run::RunError;
use exit::Exit;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Runs what the command line asks for and reports errors on stderr.
pub fn dispatch(cli: Cli) -> Exit {
    let result = match &cli.command {
        None => train::run(&cli.train),
        Some(Command::Plan(args)) => plan::run(args),
        Some(Command::Explain(args)) => explain::run(args),
        Some(Command::Schema) => schema::run(),
        Some(Command::Completions(args)) => completions::run(args),
        Some(Command::Sample(args)) => sample::run(args),
        Some(Command::Verify(args)) => verify::run(args),
    };
    result.unwrap_or_else(|error| {
        terminal::report(&error);
        Exit::of(&error)
    })
}

/// Writes to stdout. A closed pipe is no failure: whoever listened has heard enough.
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Text with the paths below the current directory relative to it.
fn relative(text: &str) -> String {
    match std::env::current_dir() {
        Ok(here) => text.replace(&format!("{}{}", here.display(), std::path::MAIN_SEPARATOR), ""),
        Err(_) => text.to_owned(),
    }
}

/// The layers above a recipe's files.
fn overrides(args: &OverrideArgs) -> Overrides {
    Overrides { set: args.set.clone(), unset: args.unset.clone(), ..Overrides::from_process_env() }
}

/// The directory of a run that is named by its path, its id or the beginning of its id.
fn find_run(runs_dir: &Path, named: &Path) -> Result<PathBuf, RunError> {
    let missing = || RunError::NotARun { path: named.to_owned() };
    if crate::run::dir::is_run(named) {
        return Ok(named.to_owned());
    }
    let id = named.to_str().filter(|id| !id.is_empty()).ok_or_else(missing)?;
    let starts = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(id));
    let mut found: Vec<PathBuf> = crate::run::dir::list(runs_dir)?.into_iter().filter(starts).collect();
    match (found.pop(), found.is_empty()) {
        (Some(run), true) => Ok(run),
        _ => Err(missing()),
    }
}
