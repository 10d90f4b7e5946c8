//! The dimensions that come with what `model.init_from` names: a layer above the defaults, and the keys that must agree
//! with it.
//!
//! Weights state their dimensions themselves or in the `config.json` beside them, and a run in its recipe. What cannot
//! be read states nothing; opening it tells why.

use super::check::Relation;
use super::diagnostics::Diagnostics;
use super::init_from::{Branch, InitFrom};
use super::keys::{Kind, find};
use super::layers::{Layer, Stack};
use super::origin::SaidBy;
use super::parse::Entry;
use super::schema::{ModelConfig, Recipe};
use super::source::{Medium, Place, Source};
use super::value::Value;
use super::written::written;
use crate::weights;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The key whose value states dimensions.
const INIT_FROM: &str = "model.init_from";
/// The recipe in a run's directory.
const RUNS_RECIPE: &str = "recipe.toml";

/// What a file states.
pub(super) struct Stated {
    file: PathBuf,
    /// Keys of `[model]` with their values.
    numbers: Vec<(&'static str, i64)>,
    /// Whether all of it must be as it is, because the moments of a run are taken as well.
    is_exact: bool,
}

impl Stated {
    fn number(&self, key: &str) -> Option<i64> {
        self.numbers.iter().find(|(known, _)| *known == key).map(|(_, number)| *number)
    }
}

/// Inserts what is stated as a layer below all others; the defaults come below it later.
pub(super) fn insert(stack: &mut Stack) -> Option<Stated> {
    let stated = read(&stack.winner(INIT_FROM)?.value)?;
    let shown = Medium::File(seen(&stated.file));
    let source = Arc::new(Source { medium: shown, text: String::new(), rank: 0 });
    let entry = |(path, number): &(&'static str, i64)| {
        Some(Entry { key: find(path)?, value: Value::Integer(*number), place: Place::whole(&source) })
    };
    let entries = stated.numbers.iter().filter_map(entry).collect();
    stack.layers.insert(0, Layer { said_by: SaidBy::InitFrom(stated.file.clone()), entries });
    Some(stated)
}

fn read(value: &Value) -> Option<Stated> {
    let (file, numbers, is_exact) = match value {
        Value::Text(path) => {
            let stated = weights::stated(Path::new(path))?;
            let numbers = stated
                .numbers()
                .into_iter()
                .filter_map(|(leaf, number)| Some((leaf, number?.try_into().ok()?)));
            let numbers = numbers.map(|(leaf, number)| (format!("model.{leaf}"), number)).collect();
            (stated.file, numbers, false)
        }
        Value::Branch { run, optimizer, .. } => {
            let file = Path::new(run).join(RUNS_RECIPE);
            let keys = written(&std::fs::read_to_string(&file).ok()?).ok()?;
            let numbers = keys.into_iter().filter_map(|(key, value)| Some((key, value.as_i64()?))).collect();
            (file, numbers, *optimizer)
        }
        _ => return None,
    };
    let numbers: Vec<(String, i64)> = numbers;
    let usable = |(path, number): (String, i64)| {
        let key = find(&path).filter(|key| key.table() == "model")?;
        matches!(key.kind, Kind::Integer { min, max } if (min..=max).contains(&number))
            .then_some((key.path, number))
    };
    Some(Stated { file, numbers: numbers.into_iter().filter_map(usable).collect(), is_exact })
}

/// Reports the keys of a recipe that contradict what is stated.
pub(super) fn check(stack: &Stack, recipe: &Recipe, stated: &Stated, diagnostics: &mut Diagnostics) {
    let model = &recipe.model;
    let relations = [
        same(stated, "model.n_layer", model.n_layer),
        same(stated, "model.n_head", model.n_head),
        same(stated, "model.n_embd", model.n_embd),
        block_size(stated, model),
        vocab_size(stated, model),
    ];
    for relation in relations.into_iter().flatten() {
        if let Some(problem) = relation.and(INIT_FROM).blame(stack) {
            diagnostics.push(problem);
        }
    }
}

fn differs(stated: &Stated, key: &'static str, ours: usize, theirs: i64) -> Relation {
    let title = format!("`{key}` is {ours}, but `{}` says {theirs}", seen(&stated.file).display());
    Relation::broken_by(key, title)
}

fn same(stated: &Stated, key: &'static str, ours: usize) -> Option<Relation> {
    let theirs = stated.number(key).filter(|&theirs| theirs != ours as i64)?;
    let leaf = key.trim_start_matches("model.");
    Some(
        differs(stated, key, ours, theirs)
            .help(format!("leave {leaf} out: what `model.init_from` names decides it")),
    )
}

/// A shorter context is the first positions of a longer one.
fn block_size(stated: &Stated, model: &ModelConfig) -> Option<Relation> {
    const KEY: &str = "model.block_size";
    let theirs = stated.number(KEY)?;
    if stated.is_exact {
        return same(stated, KEY, model.block_size);
    }
    let relation = || {
        differs(stated, KEY, model.block_size, theirs).help(format!(
            "there are weights for {theirs} positions: block_size = {theirs} or less would fit"
        ))
    };
    (model.block_size as i64 > theirs).then(relation)
}

/// Rows with which the model pads its embedding may be tokens of the other.
fn vocab_size(stated: &Stated, model: &ModelConfig) -> Option<Relation> {
    const KEY: &str = "model.vocab_size";
    let (ours, theirs) = (model.vocab_size, stated.number(KEY)?);
    let padded = ours.next_multiple_of(model.vocab_multiple);
    if ours as i64 == theirs || (!stated.is_exact && padded as i64 == theirs) {
        return None;
    }
    let relation = differs(stated, KEY, ours, theirs)
        .help(format!("leave vocab_size out, or write {theirs}; vocab_multiple pads it"));
    if stated.is_exact || (ours as i64) > theirs {
        return Some(relation);
    }
    let multiple =
        [128, 64, 32, 16, 8].into_iter().find(|multiple| ours.next_multiple_of(*multiple) as i64 == theirs);
    Some(match multiple {
        Some(multiple) => {
            let beyond = theirs - ours as i64;
            let help =
                format!("if the last {beyond} rows are padding, vocab_multiple = {multiple} leaves them out");
            relation.and("model.vocab_multiple").help(help)
        }
        None => relation,
    })
}

/// A path relative to the current directory where it lies below it.
fn seen(path: &Path) -> PathBuf {
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
