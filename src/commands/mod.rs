//! One file per subcommand, and what the terminal needs: exit codes, signals, bars, a voice. Only this module prints.

mod amiss;
mod bench;
mod board;
mod compare;
mod complete;
pub mod completions;
mod data;
mod doctor;
mod eval;
mod events;
pub mod exit;
mod explain;
mod export;
mod init;
mod layout;
mod list;
mod man;
pub mod named;
mod plan;
mod recipes;
mod sample;
mod schema;
mod signals;
mod stderr;
mod terminal;
mod train;
mod verify;
mod voice;
mod watch;

use crate::cli::{AxisName, Cli, Command, ModelArgs, RunsArgs, TableFormat, WidthArgs};
use crate::engine::cpu;
use crate::recipe::Device;
use crate::recipe::keys::KEYS;
use crate::regular;
use crate::report::axis::Axis;
use crate::report::export::{Csv, Export, Json, Markdown, Text};
use crate::report::fit::wrapped;
use crate::report::plot::{Quantity, quantities};
use crate::run::find::RUNS_DIR;
use crate::run::{RunError, find};
use crate::session::UsageError;
use crate::session::model::Options;
use crate::wording::{tame, tame_line};
use anyhow::Context;
use clap::builder::StyledStr;
use clap::error::ErrorKind::UnknownArgument;
use clap::error::{ContextKind, ContextValue};
use exit::Exit;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Keeps signals that end no command from ending the process before it knows its command. What fails here fails again
/// in [`dispatch`], which says so.
pub fn outlive_early() {
    let _ = signals::outlive();
}

/// Runs what the command line asks for and reports errors on stderr.
pub fn dispatch(cli: Cli) -> Exit {
    explain_missing_threads();
    let run = || {
        check_vectors()?;
        signals::outlive()?;
        signals::end_process_1()?;
        cli.runs_dir().into_iter().try_for_each(check_runs_dir)?;
        cli.runs_dir().into_iter().for_each(regular::trust);
        signals::report_lost_files().and_then(|()| match &cli.command {
            None => train::run(&cli.train),
            Some(Command::Init(args)) => init::run(args),
            Some(Command::Recipes(args)) => recipes::run(args),
            Some(Command::Plan(args)) => plan::run(args),
            Some(Command::Explain(args)) => explain::run(args),
            Some(Command::Schema(args)) => schema::run(args),
            Some(Command::Completions(args)) => completions::run(args),
            Some(Command::Man(args)) => man::run(args),
            Some(Command::Sample(args)) => sample::run(args),
            Some(Command::Eval(args)) => eval::run(args),
            Some(Command::Verify(args)) => verify::run(args),
            Some(Command::Bench(args)) => bench::run(args),
            Some(Command::Doctor(args)) => doctor::run(args),
            Some(Command::Compare(args)) => compare::run(args),
            Some(Command::List(args)) => list::run(args),
            Some(Command::Watch(args)) => watch::run(args),
            Some(Command::Export(args)) => export::run(args),
            Some(Command::Data(args)) => data::run(args),
        })
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

/// Refuses a link of another user in the place of the directory of runs that is meant where none is named.
fn check_runs_dir(runs_dir: &Path) -> Result<(), UsageError> {
    let maker =
        regular::another_maker(runs_dir).filter(|_| runs_dir == Path::new(RUNS_DIR) && runs_dir.is_symlink());
    maker.map_or(Ok(()), |user| {
        Err(UsageError(format!(
            "`{RUNS_DIR}` is a link of user {user}: name what it leads to with --runs-dir, or ./{RUNS_DIR} if you mean \
             the link"
        )))
    })
}

/// Prints what a command line led to instead of a command: help and the version on stdout, what is wrong with it on
/// stderr.
pub fn say_of_usage(mut answer: clap::Error) -> Exit {
    tame_arguments(&mut answer);
    if let Some(tip) = key_instead(&answer) {
        answer.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    // what is in colours loses what looks like one where it is made plain
    let coloured = answer.render().ansi().to_string();
    let text = coloured.split("\x1b[").enumerate().map(|(i, part)| match part.split_once('m') {
        Some((colour, rest)) if i > 0 && colour.bytes().all(|byte| byte == b';' || byte.is_ascii_digit()) => {
            rest
        }
        _ => part,
    });
    let text: String = text.collect();
    if answer.use_stderr() && tame(&text) != text {
        terminal::say_lines(text.trim_end());
        return Exit::Usage;
    }
    let printed = answer.print().and_then(|()| std::io::stdout().flush());
    match printed {
        _ if answer.use_stderr() => Exit::Usage,
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            terminal::report(&anyhow::Error::new(error).context("could not write to stdout"));
            Exit::Failure
        }
        _ => Exit::Finished,
    }
}

/// Replaces control characters in the arguments that an answer repeats, also in those of its tips.
fn tame_arguments(answer: &mut clap::Error) {
    let parts: Vec<(ContextKind, ContextValue)> =
        answer.context().map(|(kind, part)| (kind, part.clone())).collect();
    let texts = parts.iter().filter_map(|(_, part)| match part {
        ContextValue::String(text) => Some((text.as_str(), tame_line(text))),
        _ => None,
    });
    let wild: Vec<(&str, String)> = texts.filter(|(text, tamed)| text != tamed).collect();
    // made plain, or colours could not be told from what an argument has
    let plain = |styled: &StyledStr| {
        let tamed =
            wild.iter().fold(styled.ansi().to_string(), |text, (wild, tamed)| text.replace(wild, tamed));
        StyledStr::from(tame_line(&StyledStr::from(tamed).to_string()))
    };
    for (kind, part) in &parts {
        let tamed = match part {
            ContextValue::String(text) => ContextValue::String(tame_line(text)),
            ContextValue::Strings(texts) => {
                ContextValue::Strings(texts.iter().map(|text| tame_line(text)).collect())
            }
            ContextValue::StyledStrs(styled) if !wild.is_empty() => {
                ContextValue::StyledStrs(styled.iter().map(plain).collect())
            }
            other => other.clone(),
        };
        answer.insert(*kind, tamed);
    }
}

/// How a key is set, for an option that there is not and that is called like one, as in `--lr 1e-3`.
fn key_instead(answer: &clap::Error) -> Option<String> {
    let unknown = answer.get(ContextKind::InvalidArg).filter(|_| answer.kind() == UnknownArgument)?;
    let ContextValue::String(option) = unknown else { return None };
    let name = option.strip_prefix("--")?.split('=').next()?.replace('-', "_");
    let is_meant = |path: &&str| *path == name || path.rsplit('.').next() == Some(name.as_str());
    let meant: Vec<String> =
        KEYS.iter().map(|key| key.path).filter(is_meant).map(|path| format!("'{path}=VALUE'")).collect();
    (!meant.is_empty()).then(|| format!("keys of a recipe are set behind it: {}", meant.join(" or ")))
}

/// Says in words what a panic means that comes of a thread which the system does not start: the standard library and
/// rayon leave no other way of asking for one in some places. Other panics are shown as they are.
fn explain_missing_threads() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(is_of_missing_thread) {
            terminal::say(
                "error: the system starts no more threads: raise its limit of processes (`ulimit -u`) or of memory \
                 (`ulimit -v`), end other processes, or let a container's seccomp profile allow `clone3`, then run the \
                 same command again",
            );
        } else if terminal::speaks_json() {
            terminal::say(&format!("error: {panic}"));
        } else {
            others(panic);
        }
    }));
}

/// Whether a panic's message is about a thread that was not started for want of resources, or that a container forbids.
fn is_of_missing_thread(message: &str) -> bool {
    let kinds = ["kind: WouldBlock", "kind: PermissionDenied", "kind: OutOfMemory"];
    message.contains("thread") && kinds.iter().any(|kind| message.contains(kind))
}

/// Refuses vector instructions that are asked for and not to be had.
fn check_vectors() -> Result<(), UsageError> {
    cpu::chosen_level().map(drop).map_err(UsageError)
}

/// Writes to stdout and returns whether it is still open. A closed pipe is no failure: its reader has read enough. On a
/// terminal, what could act on it is replaced; a program gets every byte.
fn print(text: &str) -> anyhow::Result<bool> {
    match std::io::stdout().is_terminal() {
        true => write_out(tame(&text.replace("\r\n", "\n")).as_bytes()),
        false => write_out(text.as_bytes()),
    }
}

fn write_out(bytes: &[u8]) -> anyhow::Result<bool> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => Ok(other.context("could not write to stdout").map(|()| true)?),
    }
}

/// Writes a path as a line to stdout, as [`print`] does: a program gets its bytes, a terminal what is harmless in one
/// line.
fn print_path(path: &Path) -> anyhow::Result<bool> {
    if std::io::stdout().is_terminal() {
        return print(&format!("{}\n", tame_line(&path.display().to_string())));
    }
    write_out(&[path.as_os_str().as_encoded_bytes(), b"\n"].concat())
}

/// How a model that is only used is computed, for sequences of any length that it was made for.
///
/// Errors: [`UsageError`] for a word that is no device.
fn options(args: &ModelArgs) -> Result<Options, UsageError> {
    let device = Device::try_from(args.device.clone());
    let device = device.map_err(|problem| UsageError(format!("--device: {problem}")))?;
    Ok(Options { device, threads: args.threads, precision: args.precision, ..Options::default() })
}

/// The runs that arguments name. A name of what neither is a run nor holds one is left out with a word.
fn find_runs(dir: &RunsArgs, named: &[PathBuf]) -> Result<Vec<PathBuf>, RunError> {
    find::all(&dir.runs_dir, named, |name| {
        let why =
            if name.exists() { "is not a run and holds none" } else { "is a link that leads to nothing" };
        terminal::say(&format!("`{}` {why}; left out", name.display()));
    })
}

/// The quantity of this name, which these runs are drawn by.
///
/// Errors: [`UsageError`] if there is none.
fn plotted(name: &str, runs: &[PathBuf]) -> Result<Quantity, UsageError> {
    Quantity::named(name, runs).ok_or_else(|| {
        let known: Vec<&str> = quantities().iter().map(|quantity| quantity.name.as_str()).collect();
        UsageError(format!("`{name}` cannot be plotted; there are {}", known.join(", ")))
    })
}

/// What a word of an option measures progress in.
fn axis(name: AxisName) -> Axis {
    match name {
        AxisName::Step => Axis::Step,
        AxisName::Tokens => Axis::Tokens,
        AxisName::Time => Axis::Time,
    }
}

/// How many characters a line of a table may have; `None` for any number. Only a table on a terminal has to fit, unless
/// a width is asked for.
fn room(args: &WidthArgs, format: TableFormat) -> Option<usize> {
    let terminal = || std::io::stdout().is_terminal().then(|| usize::from(console::Term::stdout().size().1));
    let is_table = format == TableFormat::Table && !args.wide;
    is_table.then(|| args.width.map(usize::from).or_else(terminal)).flatten()
}

/// A text as lines that fit where there is a width.
fn fitted(text: &str, room: Option<usize>) -> String {
    room.map_or_else(|| text.to_owned(), |room| wrapped(text, room)) + "\n"
}

/// The writer of a format.
fn exporter(format: TableFormat) -> &'static dyn Export {
    match format {
        TableFormat::Table => &Text,
        TableFormat::Csv => &Csv,
        TableFormat::Json => &Json,
        TableFormat::Markdown => &Markdown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_not_started_is_told_from_other_panics() {
        for refused in [libc::EAGAIN, libc::EPERM, libc::ENOMEM].map(std::io::Error::from_raw_os_error) {
            // as `std::thread::scope` panics
            assert!(is_of_missing_thread(&format!("failed to spawn thread: {refused:?}")));
        }
        for other in ["index out of bounds", "failed to spawn thread: no name", "a lock: kind: WouldBlock"] {
            assert!(!is_of_missing_thread(other), "{other}");
        }
    }
}
