//! The dimensions that come with what `model.init_from` names: a layer above the defaults, and the keys that must agree
//! with it.
//!
//! Weights state their dimensions themselves or in the `config.json` beside them, or show them in their tensors, and a
//! run states them in its recipe. What cannot
//! be read is an error where the recipe lacks a dimension. A recipe that has all of them, as a run's has, stays
//! readable without its weights. Once these are gone, the runs that began from them have all dimensions in recipes of
//! their own, so that the same command finds its run again.

use super::check::Relation;
use super::diagnostics::{Diagnostics, Problem};
use super::init_from::{Branch, InitFrom};
use super::keys::{self, INIT_FROM, Key, Kind, find};
use super::layers::{Layer, Stack};
use super::leaves::values;
use super::origin::SaidBy;
use super::parse::Entry;
use super::runs::{self, RunsRecipe};
use super::schema::{ModelConfig, Recipe};
use super::source::{Medium, Place, Source};
use super::value::Value;
use crate::weights::{self, Unreadable};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The dimension that no tensor shows.
const N_HEAD: &str = "model.n_head";

/// What a file states.
pub(super) struct Stated {
    file: PathBuf,
    /// Keys with their values.
    numbers: Vec<(&'static Key, i64)>,
    /// Whether all of it must be as it is, because the moments of a run are taken as well.
    is_exact: bool,
}

/// Inserts what is stated as a layer below all others; the defaults come below it later. What is there, cannot be read
/// and would have been needed is reported. Where it is gone, the runs in `runs_dir` that began from it state it.
pub(super) fn insert(
    stack: &mut Stack,
    runs_dir: Option<&Path>,
    diagnostics: &mut Diagnostics,
) -> Option<Stated> {
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
            let is_there = matches!(&entry.value, Value::Text(path) if Path::new(path).exists());
            if is_there || file.exists() {
                if dimensions().any(|path| stack.winner(&path).is_none()) {
                    let title =
                        format!("`{INIT_FROM}`: `{}` cannot be read: {problem}", seen(&file).display());
                    diagnostics.push(Problem::new(title, entry.place.clone()).help(HELP));
                }
                return None;
            }
            // what no run knows either is said with everything else that is missing
            remembered(stack, begun_from(&entry.value, runs_dir))?
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
pub(super) fn missing(stack: &Stack, runs_dir: Option<&Path>, diagnostics: &mut Diagnostics) {
    let Some(entry) = stack.winner(INIT_FROM) else { return };
    let Some(named) = InitFrom::of(&entry.value) else { return };
    let is_there = named.path().exists();
    let (shown, what) =
        (seen(named.path()), if is_there { "states no dimensions" } else { "does not exist" });
    let title = format!("`{INIT_FROM}`: `{}` {what}, so the dimensions are the defaults", shown.display());
    let mut problem = Problem::new(title, entry.place.clone()).help(HELP);
    if !is_there && !begun_from(&entry.value, runs_dir).is_empty() {
        problem = problem.help("a run that has begun from it goes on without it: runner --resume RUN");
    }
    diagnostics.push(problem);
}

const HELP: &str = "name a checkpoint's directory, a file of weights, or a run as { run = \"runs/NAME-01234567\" }; or \
                    write the dimensions out";

/// The keys of the numbers that weights may state.
fn dimensions() -> impl Iterator<Item = String> {
    weights::Stated::default().numbers().into_iter().map(|(leaf, _)| format!("model.{leaf}"))
}

fn read(value: &Value) -> Result<Option<Stated>, Unreadable> {
    let is_exact = is_exact(value);
    let run = match value {
        Value::Text(path) => match weights::checkpoint_name(Path::new(path)) {
            Some((run, _)) => run,
            None => {
                let path = Path::new(path);
                let Some(stated) = weights::stated(path)?.or_else(|| weights::shown(path)) else {
                    return Ok(None);
                };
                let numbers = stated
                    .numbers()
                    .into_iter()
                    .filter_map(|(leaf, number)| Some((format!("model.{leaf}"), number?.try_into().ok()?)));
                return Ok(Some(Stated::new(stated.file.clone(), numbers, is_exact)));
            }
        },
        Value::Branch { run, .. } => {
            let run = Path::new(run);
            weights::checkpoint_name(run).map_or(run, |(run, _)| run)
        }
        _ => return Ok(None),
    };
    RunsRecipe::read(run).map(|recipe| Some(Stated::new(recipe.file.clone(), recipe.numbers(), is_exact)))
}

/// Whether all that is stated must be as it is.
fn is_exact(value: &Value) -> bool {
    matches!(value, Value::Branch { optimizer: true, .. })
}

/// What `model.init_from` would state of what it names, as the recipes of runs in a directory have it that began from
/// the same: once for each.
fn begun_from(value: &Value, runs_dir: Option<&Path>) -> Vec<Stated> {
    let Some((named, runs_dir)) = InitFrom::of(value).zip(runs_dir) else { return Vec::new() };
    let is_of_run = matches!(named, InitFrom::Run(_)) || weights::checkpoint_name(named.path()).is_some();
    // weights state no more than their dimensions
    let is_meant = |(path, _): &(String, i64)| is_of_run || dimensions().any(|dimension| dimension == *path);
    let stated = |recipe: RunsRecipe| {
        let numbers = recipe.numbers().filter(is_meant);
        Stated::new(recipe.file.clone(), numbers, is_exact(value))
    };
    // what people have written in the place of a run's recipe may leave some out
    let is_whole = |stated: &Stated| dimensions().all(|path| stated.states(&path));
    runs::begun_from(&named, runs_dir).into_iter().map(stated).filter(is_whole).collect()
}

/// What runs that began from something say of it, if they agree. One that contradicts the layers is another recipe's.
fn remembered(stack: &Stack, begun: Vec<Stated>) -> Option<Stated> {
    let mut begun = begun.into_iter().filter(|stated| !stated.contradicts(stack));
    let first = begun.next()?;
    begun.all(|other| other.agrees_with(&first)).then_some(first)
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
    /// What is stated, so far as the keys of a recipe can be it.
    fn new(file: PathBuf, numbers: impl Iterator<Item = (String, i64)>, is_exact: bool) -> Self {
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
        Self { file, numbers: numbers.filter_map(usable).collect(), is_exact }
    }

    /// Whether another says the same.
    fn agrees_with(&self, other: &Self) -> bool {
        let numbers = |stated: &Self| -> Vec<_> {
            stated.numbers.iter().map(|(key, number)| (key.path, *number)).collect()
        };
        numbers(self) == numbers(other)
    }

    /// Whether the layers give another number to a key.
    fn contradicts(&self, stack: &Stack) -> bool {
        let differs = |(key, number): &(&Key, i64)| {
            stack.winner(key.path).is_some_and(|entry| entry.value != Value::Integer(*number))
        };
        self.numbers.iter().any(differs)
    }

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
