//! What a shell may offer at a place of the command line: runs, recipes, keys and their values, names of data.

use crate::cli::Cli;
use crate::data::fetch::CATALOGUE;
use crate::recipe::keys::{KEYS, Key, Kind, find};
use crate::recipe::shipped::{SHIPPED, Shipped};
use crate::run::find;
use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// What a function offers for the beginning of a word.
type Offer = fn(&OsStr) -> Vec<CompletionCandidate>;

/// The command line, its arguments with what may stand for them.
pub(super) fn command() -> Command {
    with_offers(Cli::command())
}

fn with_offers(command: Command) -> Command {
    let name = command.get_name().to_owned();
    command
        .mut_args(|arg| match offer(&name, &arg) {
            Some(offer) => arg.add(ArgValueCompleter::new(offer)),
            None => arg,
        })
        .mut_subcommands(with_offers)
}

/// What may stand for an argument of a command. `None` for what its definition says already.
fn offer(command: &str, arg: &Arg) -> Option<Offer> {
    let value = arg.get_value_names().and_then(<[_]>::first).map(|name| name.as_str())?;
    match (command, value) {
        ("explain", "RECIPE [KEY]") => Some(recipes_and_keys),
        (_, "RECIPE|KEY=VALUE") => Some(recipes_and_changes),
        (_, "KEY=VALUE") => Some(changes),
        (_, "KEY") => Some(keys),
        (_, "RUN" | "RUN|CHECKPOINT") => Some(runs),
        ("init", "NAME") => Some(carried),
        ("fetch", _) if arg.get_id() == "what" => Some(catalogue),
        _ => None,
    }
}

/// Words that begin as `current` does, each with a text about it.
fn beginning<'a>(
    current: &OsStr,
    words: impl IntoIterator<Item = (String, &'a str)>,
) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let words = words.into_iter().filter(|(word, _)| word.starts_with(current));
    words.map(|(word, about)| CompletionCandidate::new(word).help(Some(about.to_owned().into()))).collect()
}

/// Recipe files, and directories that may hold some.
fn files(current: &OsStr) -> Vec<CompletionCandidate> {
    let is_recipe = |path: &Path| path.extension().is_some_and(|extension| extension == "toml");
    PathCompleter::any().filter(move |path| path.is_dir() || is_recipe(path)).complete(current)
}

fn recipes_and_changes(current: &OsStr) -> Vec<CompletionCandidate> {
    recipes_and(changes, current)
}

fn recipes_and_keys(current: &OsStr) -> Vec<CompletionCandidate> {
    recipes_and(keys, current)
}

fn recipes_and(more: Offer, current: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = files(current);
    // more than anyone reads, unless something is typed
    if !current.is_empty() {
        all.extend(shipped(current, |shipped| shipped.path().display().to_string()));
        all.extend(more(current));
    }
    all
}

fn carried(current: &OsStr) -> Vec<CompletionCandidate> {
    shipped(current, |shipped| shipped.name.to_owned())
}

/// The recipes that the program carries, called so.
fn shipped(current: &OsStr, called: fn(&Shipped) -> String) -> Vec<CompletionCandidate> {
    let about: Vec<(String, String)> =
        SHIPPED.iter().map(|shipped| (called(shipped), shipped.about())).collect();
    beginning(current, about.iter().map(|(name, about)| (name.clone(), about.as_str())))
}

fn catalogue(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning(current, CATALOGUE.iter().map(|known| (known.name.to_owned(), known.about)))
}

/// The keys that a change may name.
fn changeable() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| key.kind != Kind::Extends)
}

fn keys(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning(current, changeable().map(|key| (key.path.to_owned(), key.doc)))
}

/// Keys with `=` behind them, or the values of the key before the `=`.
fn changes(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some((path, value)) = current.to_str().and_then(|current| current.split_once('=')) else {
        return beginning(current, changeable().map(|key| (format!("{}=", key.path), key.doc)));
    };
    let Some(key) = find(path) else { return Vec::new() };
    if key.is_path() {
        let mut paths = PathCompleter::any().complete(OsStr::new(value));
        for candidate in &mut paths {
            let mut whole = OsString::from(format!("{path}="));
            whole.push(candidate.get_value());
            *candidate = CompletionCandidate::new(whole);
        }
        return paths;
    }
    beginning(current, key.words().into_iter().map(|word| (format!("{path}={word}"), "")))
}

/// The runs below the directory of runs that the command line names, and directories.
fn runs(current: &OsStr) -> Vec<CompletionCandidate> {
    let ids = find::list(&runs_dir()).unwrap_or_default();
    let ids = ids.iter().filter_map(|run| Some((run.file_name()?.to_str()?.to_owned(), "")));
    let mut all = beginning(current, ids);
    all.extend(PathCompleter::dir().complete(current));
    all
}

/// What follows `--runs-dir` on the line that is completed.
fn runs_dir() -> PathBuf {
    let mut words = env::args_os().skip_while(|word| word != "--runs-dir").skip(1);
    words.next().map_or_else(|| PathBuf::from(find::RUNS_DIR), PathBuf::from)
}
