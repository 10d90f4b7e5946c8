//! The layers above a recipe's files: environment variables, `--set` and `--unset`.

use super::diagnostics::{Diagnostics, Problem};
use super::keys::{KEYS, Key, Kind, SEED, find};
use super::parse::{self, Parsed};
use super::source::{Medium, Place, Source};
use std::collections::BTreeSet;
use std::sync::Arc;

const PREFIX: &str = "RUNNER_";

/// The layers above a recipe's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `key.path=value`, in order; later ones win. The value is TOML; a bare word is a string.
    pub set: Vec<String>,
    /// The places in `set` of those that the command line gives without `--set`; messages show them so.
    pub bare: BTreeSet<usize>,
    /// Key paths whose values from files and the environment are dropped.
    pub unset: Vec<String>,
    /// Environment variables: `RUNNER_MODEL__N_LAYER` sets `model.n_layer`, `RUNNER__NAME` and `RUNNER__SEED` the keys
    /// of no table. One that names a table, or `seed`, with a single underscore is a mistake; all others are ignored.
    pub env: Vec<(String, String)>,
}

impl Overrides {
    /// Overrides by the `RUNNER_` variables of this process, in alphabetic order, and nothing else.
    ///
    /// Bytes that are not UTF-8 are replaced; every key but the prompt refuses the replacement character.
    #[must_use]
    pub fn from_process_env() -> Self {
        let mut env: Vec<(String, String)> = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .filter(|(name, _)| path_of(name).is_some() || meant_for(name).is_some())
            .collect();
        env.sort();
        Self { env, ..Self::default() }
    }
}

/// The key path that an environment variable names; `None` for a variable that is not about recipes.
fn path_of(variable: &str) -> Option<String> {
    let rest = variable.strip_prefix(PREFIX)?;
    // A single underscore would break up `n_layer`.
    let path = match rest.strip_prefix('_') {
        Some(leaf) if !leaf.contains("__") => leaf.to_owned(),
        _ if rest.contains("__") => rest.replace("__", "."),
        _ => return None,
    };
    Some(path.to_lowercase())
}

/// How to write a variable that was meant for a recipe and lacks the double underscore. (Other programs have variables
/// that begin like ours: machines of GitHub Actions have a `RUNNER_NAME`.)
fn meant_for(variable: &str) -> Option<String> {
    let rest = variable.strip_prefix(PREFIX)?;
    if rest.eq_ignore_ascii_case(SEED) {
        return Some(format!("{PREFIX}_{rest}"));
    }
    let lower = rest.to_lowercase();
    let tables: BTreeSet<&str> =
        KEYS.iter().map(|key| key.table()).filter(|table| !table.is_empty()).collect();
    let is_begun = |table: &&str| lower.strip_prefix(*table).is_some_and(|leaf| leaf.starts_with('_'));
    let table = tables.into_iter().find(is_begun)?;
    Some(format!("{PREFIX}{}__{}", table.to_uppercase(), &rest[table.len() + 1..]))
}

/// Reads an environment variable; `None` if it is not about recipes.
pub(super) fn env(name: &str, value: &str, rank: usize, diagnostics: &mut Diagnostics) -> Option<Parsed> {
    let (path, meant) = (path_of(name), meant_for(name));
    if path.is_none() && meant.is_none() {
        return None;
    }
    // what is not for a recipe may be a secret whose variable has another name
    let value = if path.as_deref().is_none_or(is_about_keys) { value } else { "..." };
    let source = Arc::new(Source { medium: Medium::Env(name.into()), text: format!("{name}={value}"), rank });
    let mut refuse = |title: String, help: String| {
        diagnostics.push(Problem::new(title, Place::at(&source, 0..name.len())).help(help));
        None
    };
    match (path, meant) {
        (None, meant) => refuse(
            format!("the variable `{name}` sets no key: two underscores come before a key, after its table"),
            format!("write {}", meant.unwrap_or_default()),
        ),
        (Some(path), _) if is_extends(&path) => refuse(
            "`extends` cannot be set by a variable".into(),
            "write a recipe that extends both files".into(),
        ),
        (Some(path), _) => {
            Some(parse::assignment(&source, &path, 0..name.len(), name.len() + 1, diagnostics))
        }
    }
}

/// Whether a path begins with a table, or is a key of none.
fn is_about_keys(path: &str) -> bool {
    let first = |path: &str| path.split('.').next().map(str::to_owned);
    KEYS.iter().any(|key| first(key.path) == first(path))
}

fn flag(name: &str, argument: &str, rank: usize) -> (Arc<Source>, usize) {
    let source = Source { medium: Medium::Flag, text: format!("{name} {argument}"), rank };
    (Arc::new(source), name.len() + 1)
}

/// Reads the argument of a `--set`, or one that stands without that (`is_bare`).
pub(super) fn set(argument: &str, is_bare: bool, rank: usize, diagnostics: &mut Diagnostics) -> Parsed {
    let (source, start) = match is_bare {
        true => (Arc::new(Source { medium: Medium::Flag, text: argument.to_owned(), rank }), 0),
        false => flag("--set", argument, rank),
    };
    let Some((name, _)) = argument.split_once('=').filter(|(name, _)| !name.trim().is_empty()) else {
        let problem = Problem::new(
            format!("`--set` needs a key and a value, not `{}`", super::value::shown(argument)),
            Place::at(&source, start..source.text.len()),
        );
        diagnostics.push(problem.help("write it as --set key.path=value, such as --set optimizer.lr=3e-4"));
        return Parsed::default();
    };
    let value = start + name.len() + 1;
    let blank = name.len() - name.trim_start().len();
    let at = start + blank..start + blank + name.trim().len();
    if is_extends(name.trim()) {
        let problem = Problem::new("`extends` cannot be set on the command line", Place::at(&source, at));
        diagnostics.push(problem.help("write a recipe that extends both files"));
        return Parsed::default();
    }
    // Spaces around the equals sign are TOML's.
    let padding = source.text[value..].len() - source.text[value..].trim_start_matches(' ').len();
    parse::assignment(&source, name.trim(), at, value + padding, diagnostics)
}

/// Whether this is the key that names bases: files are read before the command line applies.
fn is_extends(path: &str) -> bool {
    find(path).is_some_and(|key| key.kind == Kind::Extends)
}

/// An `--unset`: its place and the keys that it names.
pub(super) struct Unset {
    pub(super) place: Place,
    pub(super) path: String,
    pub(super) keys: Vec<&'static Key>,
}

/// Reads the argument of an `--unset`: a key or a whole table.
pub(super) fn unset(argument: &str, rank: usize, diagnostics: &mut Diagnostics) -> Option<Unset> {
    let (source, start) = flag("--unset", argument, rank);
    let place = Place::at(&source, start..source.text.len());
    let path = argument.trim();
    if is_extends(path) {
        let problem = Problem::new("`extends` cannot be unset", place);
        diagnostics.push(problem.help("unset the keys that the base sets"));
        return None;
    }
    let keys: Vec<&Key> = KEYS.iter().filter(|key| key.path == path || key.table() == path).collect();
    if path.is_empty() {
        diagnostics.push(Problem::new("`--unset` names no key", place).help("write it as --unset key.path"));
        return None;
    }
    if keys.is_empty() {
        diagnostics.push(parse::unknown(path, place, false));
        return None;
    }
    Some(Unset { place, path: path.to_string(), keys })
}
