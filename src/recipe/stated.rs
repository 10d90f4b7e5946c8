//! The dimensions that come with what `model.init_from` names: a layer above the defaults, and the keys that must agree
//! with it.
//!
//! Weights state their dimensions themselves or in the `config.json` beside them, and a run in its recipe. What cannot
//! be read is an error where the recipe lacks a dimension. A recipe that has all of them, as a run's has, stays
//! readable without its weights.

use super::check::Relation;
use super::diagnostics::{Diagnostics, Problem};
use super::init_from::{Branch, InitFrom};
use super::keys::{self, Key, Kind, find};
use super::layers::{Layer, Stack};
use super::leaves::values;
use super::origin::SaidBy;
use super::parse::Entry;
use super::schema::{ModelConfig, Recipe};
use super::source::{Medium, Place, Source};
use super::value::Value;
use super::written::written;
use crate::regular;
use crate::weights::{self, Unreadable};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The key whose value states dimensions.
const INIT_FROM: &str = "model.init_from";
/// The dimension that no tensor shows.
const N_HEAD: &str = "model.n_head";
/// The recipe in a run's directory.
const RUNS_RECIPE: &str = "recipe.toml";

/// What a file states.
pub(super) struct Stated {
    file: PathBuf,
    /// Keys with their values.
    numbers: Vec<(&'static Key, i64)>,
    /// Whether all of it must be as it is, because the moments of a run are taken as well.
    is_exact: bool,
}

/// Inserts what is stated as a layer below all others; the defaults come below it later. What is there, cannot be read
/// and would have been needed is reported.
pub(super) fn insert(stack: &mut Stack, diagnostics: &mut Diagnostics) -> Option<Stated> {
    let entry = stack.winner(INIT_FROM)?;
    let stated = match read(&entry.value) {
        Ok(stated) => {
            let is_known = stated.as_ref().is_some_and(|stated| stated.states(N_HEAD));
            if !is_known && stack.winner(N_HEAD).is_none() {
                without_heads(entry).into_iter().for_each(|problem| diagnostics.push(problem));
            }
            stated?
        }
        Err(Unreadable { file, problem }) => {
            let is_needed = weights::Stated::default()
                .numbers()
                .iter()
                .any(|(leaf, _)| stack.winner(&format!("model.{leaf}")).is_none());
            // what is not there at all is said with everything else that is missing
            let is_there = matches!(&entry.value, Value::Text(path) if Path::new(path).exists());
            if is_needed && (is_there || file.exists()) {
                let title = format!("`{INIT_FROM}`: `{}` cannot be read: {problem}", seen(&file).display());
                diagnostics.push(Problem::new(title, entry.place.clone()).help(HELP));
            }
            return None;
        }
    };
    let shown = Medium::File(seen(&stated.file));
    let source = Arc::new(Source { medium: shown, text: String::new(), rank: 0 });
    let entry = |&(key, number): &(&'static Key, i64)| Entry {
        key,
        value: Value::Integer(number),
        place: Place::whole(&source),
    };
    let entries = stated.numbers.iter().map(entry).collect();
    stack.layers.insert(0, Layer { said_by: SaidBy::InitFrom(stated.file.clone()), entries });
    Some(stated)
}

/// That weights do not say how many heads they have. No tensor shows it, so with the default, or with any other number,
/// all of them may fit and the model compute something else.
fn without_heads(entry: &Entry) -> Option<Problem> {
    let Value::Text(path) = &entry.value else { return None };
    let path = Path::new(path);
    // what holds no weights is reported with everything else that is missing
    weights::files(path).ok().filter(|files| !files.is_empty())?;
    let title = format!(
        "`{INIT_FROM}`: `{}` does not say how many heads its model has, and no tensor shows it",
        seen(path).display()
    );
    let help = "set model.n_head to the number that it was trained with";
    Some(Problem::new(title, entry.place.clone()).help(help))
}

/// Reports that what `model.init_from` names is not there, or states nothing, where other problems may come from that.
pub(super) fn missing(stack: &Stack, diagnostics: &mut Diagnostics) {
    let Some(entry) = stack.winner(INIT_FROM) else { return };
    let path = match &entry.value {
        Value::Text(path) | Value::Branch { run: path, .. } => Path::new(path),
        _ => return,
    };
    let (shown, what) = (seen(path), if path.exists() { "states no dimensions" } else { "does not exist" });
    let title = format!("`{INIT_FROM}`: `{}` {what}, so the dimensions are the defaults", shown.display());
    diagnostics.push(Problem::new(title, entry.place.clone()).help(HELP));
}

const HELP: &str = "name a checkpoint's directory, a file of weights, or a run as { run = \"runs/NAME-01234567\" }; or \
                    write the dimensions out";

/// A file, the numbers that it has by their paths, and whether all of them bind.
type Written = (PathBuf, Vec<(String, i64)>, bool);

fn read(value: &Value) -> Result<Option<Stated>, Unreadable> {
    let (file, numbers, is_exact): Written = match value {
        Value::Text(path) => match weights::checkpoint_name(Path::new(path)) {
            Some((run, _)) => of_run(run, false)?,
            None => {
                let Some(stated) = weights::stated(Path::new(path))? else { return Ok(None) };
                let numbers = stated
                    .numbers()
                    .into_iter()
                    .filter_map(|(leaf, number)| Some((format!("model.{leaf}"), number?.try_into().ok()?)));
                let numbers = numbers.collect();
                (stated.file, numbers, false)
            }
        },
        Value::Branch { run, optimizer, .. } => {
            let run = Path::new(run);
            of_run(weights::checkpoint_name(run).map_or(run, |(run, _)| run), *optimizer)?
        }
        _ => return Ok(None),
    };
    let usable = |(path, number): (String, i64)| {
        let key = find(&path)?;
        let binds = |stated| is_exact || stated != keys::Stated::Position;
        let is_stated = key.stated.is_some_and(binds)
            && match key.kind {
                Kind::Integer { min, max } => (min..=max).contains(&number),
                Kind::Tokens { max } => (1..=max).contains(&number),
                _ => false,
            };
        is_stated.then_some((key, number))
    };
    Ok(Some(Stated { file, numbers: numbers.into_iter().filter_map(usable).collect(), is_exact }))
}

/// The numbers in the recipe of a run, with that file and whether all of them bind.
fn of_run(run: &Path, is_exact: bool) -> Result<Written, Unreadable> {
    let file = run.join(RUNS_RECIPE);
    let read = regular::read_text(&file, regular::RECIPE).map_err(|error| error.to_string());
    let keys = read.and_then(|text| written(&text).map_err(|error| error.to_string()));
    let keys = keys.map_err(|problem| Unreadable { file: file.clone(), problem })?;
    let numbers = keys.into_iter().filter_map(|(key, value)| Some((key, value.as_i64()?)));
    Ok((file, numbers.collect(), is_exact))
}

/// Reports the keys of a recipe that contradict what is stated.
pub(super) fn check(stack: &Stack, recipe: &Recipe, stated: &Stated, diagnostics: &mut Diagnostics) {
    let values = values(recipe);
    let ours = |key: &Key| values.iter().find(|(known, _)| known.path == key.path)?.1.as_i64();
    for &(key, theirs) in &stated.numbers {
        let Some(ours) = ours(key) else { continue };
        let relation =
            stated.broken(key, ours, theirs, &recipe.model).map(|relation| relation.and(INIT_FROM));
        if let Some(problem) = relation.and_then(|relation| relation.blame(stack)) {
            diagnostics.push(problem);
        }
    }
}

impl Stated {
    /// Whether it says anything about a key.
    pub(super) fn states(&self, path: &str) -> bool {
        self.numbers.iter().any(|(key, _)| key.path == path)
    }

    /// What is wrong with a value of a key, if anything is.
    fn broken(&self, key: &'static Key, ours: i64, theirs: i64, model: &ModelConfig) -> Option<Relation> {
        let how = key.stated.filter(|_| ours != theirs)?;
        let leaf = key.leaf();
        let title = format!("`{}` is {ours}, but `{}` says {theirs}", key.path, seen(&self.file).display());
        let relation = Relation::broken_by(key.path, title);
        let left_out = || format!("leave {leaf} out: what `model.init_from` names decides it");
        match how {
            keys::Stated::Any => None,
            keys::Stated::Position => Some(relation.help(
                "the step is the position in the data as long as this stays; optimizer = false takes the weights alone",
            )),
            keys::Stated::AtMost if !self.is_exact => {
                let help = format!("there are weights for {theirs}: {leaf} = {theirs} or less would fit");
                (ours > theirs).then(|| relation.help(help))
            }
            keys::Stated::Padded if !self.is_exact => padded(relation, ours, theirs, model),
            keys::Stated::Same | keys::Stated::AtMost | keys::Stated::Padded => Some(relation.help(left_out())),
        }
    }
}

/// Rows with which the model pads its embedding may be tokens of the other.
fn padded(relation: Relation, ours: i64, theirs: i64, model: &ModelConfig) -> Option<Relation> {
    let padded_to = |multiple: usize| model.vocab_size.next_multiple_of(multiple) as i64 == theirs;
    if padded_to(model.vocab_multiple) {
        return None;
    }
    let relation = relation.help(format!("leave vocab_size out, or write {theirs}; vocab_multiple pads it"));
    let multiple = [128, 64, 32, 16, 8].into_iter().find(|multiple| ours < theirs && padded_to(*multiple));
    Some(match multiple {
        Some(multiple) => relation.and("model.vocab_multiple").help(format!(
            "if the last {} rows are padding, vocab_multiple = {multiple} leaves them out",
            theirs - ours
        )),
        None => relation,
    })
}

/// A path relative to the current directory where it lies below it.
pub(super) fn seen(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).to_owned()
}

impl Recipe {
    /// The run that this one branches off, if it does.
    #[must_use]
    pub fn branch(&self) -> Option<&Branch> {
        match &self.model.init_from {
            Some(InitFrom::Run(branch)) => Some(branch),
            _ => None,
        }
    }
}
