//! One file per subcommand, and what they share. Only this module prints.

mod bench;
mod build;
pub mod exit;
mod sample;
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
    let run = || match &cli.command {
        None => train::run(&cli.train),
        Some(Command::Sample(args)) => sample::run(args),
        Some(Command::Verify(args)) => verify::run(args),
        Some(Command::Bench(args)) => bench::run(args),
    };
    // a panic has said where it happened; what is left is an exit code that is documented
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(Ok(exit)) => exit,
        Ok(Err(error)) => {
            terminal::report(&error);
            Exit::of(&error)
        }
        Err(_) => Exit::Failure,
    }
}

/// Writes to stdout; whether anyone still listens. A closed pipe is no failure: whoever listened has heard enough.
fn print(text: &str) -> anyhow::Result<bool> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => Ok(other.map(|()| true)?),
    }
}

/// The layers above a recipe's files.
fn overrides(args: &OverrideArgs) -> Overrides {
    Overrides { set: args.set.clone(), unset: args.unset.clone(), ..Overrides::from_process_env() }
}

/// The directory of a run that is named by its path, its id or the beginning of its id.
fn find_run(runs_dir: &Path, named: &Path) -> anyhow::Result<PathBuf> {
    let missing = || RunError::NotARun { path: named.to_owned() };
    if crate::run::dir::is_run(named) {
        return Ok(named.to_owned());
    }
    let id = named.to_str().filter(|id| !id.is_empty()).ok_or_else(missing)?;
    let starts = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(id));
    let found: Vec<PathBuf> = crate::run::dir::list(runs_dir)?.into_iter().filter(starts).collect();
    match found.as_slice() {
        [] => Err(missing().into()),
        [run] => Ok(run.clone()),
        several => {
            let several: Vec<_> = several.iter().map(|run| run.display().to_string()).collect();
            let message = format!("`{id}` could be any of {}: write more of it", several.join(", "));
            Err(exit::UsageError(message).into())
        }
    }
}
