//! One file per subcommand, and what they share. Only this module prints.

mod bench;
mod build;
mod calibration;
mod compare;
mod completions;
mod device;
mod doctor;
pub mod exit;
mod explain;
mod list;
mod plan;
mod ranks;
mod sample;
mod schema;
mod select;
mod signals;
mod terminal;
mod train;
mod verify;
mod watch;

use crate::cli::{Cli, Command, OverrideArgs};
use crate::recipe::Overrides;
use exit::{Exit, UsageError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Runs what the command line asks for and reports errors on stderr.
pub fn dispatch(cli: Cli) -> Exit {
    let run = || match &cli.command {
        None => train::run(&cli.train),
        Some(Command::Plan(args)) => plan::run(args),
        Some(Command::Explain(args)) => explain::run(args),
        Some(Command::Schema(args)) => schema::run(args),
        Some(Command::Completions(args)) => completions::run(args),
        Some(Command::Sample(args)) => sample::run(args),
        Some(Command::Verify(args)) => verify::run(args),
        Some(Command::Bench(args)) => bench::run(args),
        Some(Command::Doctor(args)) => doctor::run(args),
        Some(Command::Compare(args)) => compare::run(args),
        Some(Command::List(args)) => list::run(args),
        Some(Command::Watch(args)) => watch::run(args),
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

/// The directory of a run that is named by its path, its id or the beginning of its id, if no other begins so.
fn find_run(runs_dir: &Path, named: &Path) -> anyhow::Result<PathBuf> {
    let whole = [named.to_owned(), runs_dir.join(named)];
    if let Some(run) = whole.into_iter().find(|path| crate::run::dir::is_run(path)) {
        return Ok(run);
    }
    let id = named.to_str().unwrap_or_default();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut found = crate::run::dir::list(runs_dir)?;
    found.retain(|path| !id.is_empty() && name(path).starts_with(id));
    let problem = match found.as_slice() {
        [run] => return Ok(run.clone()),
        [] => format!(
            "is not a run: it is neither a run's directory nor the beginning of a run's name in `{}`; name another \
             directory of runs with --runs-dir",
            runs_dir.display()
        ),
        several => {
            let names: Vec<String> = several.iter().map(|path| name(path)).collect();
            format!("is the beginning of several runs' names: {}; write more of it", names.join(", "))
        }
    };
    Err(UsageError(format!("`{}` {problem}", named.display())).into())
}
