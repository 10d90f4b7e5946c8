//! Checks over several keys: keys that contradict each other, are missing, or have no effect.

use super::diagnostics::{Diagnostics, Problem};
use super::keys::{Fallback, KEYS, Kind, PRESET, SCHEDULE_KIND, known};
use super::layers::{Layer, Stack};
use super::lengths;
use super::origin::SaidBy;
use super::parse::Entry;
use super::run_name;
use super::schema::Recipe;
use super::source::{Medium, Place};
use super::value::{self, Value};
use std::mem;
use std::sync::Arc;

/// The kind of schedule on which the layers settle. Drops the keys of weaker layers that it does not use.
///
/// The layer that changes `kind` drops what weaker layers set for the old kind; merged key by key, the old values
/// would live on. An `--unset` of the kind changes it to the default, above all layers but the flags. A key that the
/// kind does not use is a mistake in the layer that sets the kind and above it.
pub(super) fn schedule_kind(stack: &mut Stack, diagnostics: &mut Diagnostics) -> String {
    let Fallback::Is(text) = known(SCHEDULE_KIND).default else { unreachable!("the kind has a default") };
    let default = text.trim_matches('"');
    let mut kind = default.to_string();
    let mut is_said = false;
    let mut start = 0;
    let flags = stack.first_flag();
    loop {
        if start == flags && !stack.unset_kinds.is_empty() {
            change_kind(&mut stack.layers[..start], &mut kind, is_said, default);
        }
        let Some(Layer { said_by, .. }) = stack.layers.get(start) else { break };
        let length =
            stack.layers[start..].iter().take_while(|layer| layer.said_by.is_one_with(said_by)).count();
        let new = stack.layers[start..start + length].iter().rev().find_map(|layer| kind_of(layer, stack));
        let says = new.is_some();
        if let Some(Value::Text(new)) = new.cloned() {
            change_kind(&mut stack.layers[..start], &mut kind, is_said, &new);
        }
        is_said |= says;
        start += length;
    }
    if !stack.is_partial && !stack.is_broken(SCHEDULE_KIND) {
        let kind_set = stack.winner(SCHEDULE_KIND).map(|entry| entry.place.clone());
        let entries = stack.layers.iter().flat_map(|layer| &layer.entries);
        for entry in entries.filter(|entry| !entry.key.is_used_by(&kind)) {
            diagnostics.push(without_effect(entry, &kind, kind_set.as_ref()));
        }
    }
    kind
}

/// The kind that a layer says, or that it said before an `--unset`.
fn kind_of<'a>(layer: &'a Layer, stack: &'a Stack) -> Option<&'a Value> {
    let said = layer.entries.iter().rfind(|entry| entry.key.path == SCHEDULE_KIND).map(|entry| &entry.value);
    let unset = || stack.unset_kinds.iter().find(|(said_by, _)| *said_by == layer.said_by);
    said.or_else(|| unset().map(|(_, value)| value))
}

/// Drops what the layers below a change of kind say for the old one.
fn change_kind(weaker: &mut [Layer], kind: &mut String, is_said: bool, new: &str) {
    if new != kind {
        for layer in weaker {
            layer.entries.retain(|entry| entry.key.survives(kind, is_said, new));
        }
        new.clone_into(kind);
    }
}

fn without_effect(entry: &Entry, kind: &str, kind_set: Option<&Place>) -> Problem {
    let title = format!("`{}` has no effect with schedule.kind = \"{kind}\"", entry.key.path);
    let users = value::comma(entry.key.schedules.iter().map(|kind| format!("\"{kind}\"")));
    let help = format!("remove it, or choose a kind that uses it: {users}");
    let problem = Problem::new(title, entry.place.clone()).help(help);
    match kind_set {
        Some(place) => problem.context(place.clone(), "the kind is set here"),
        None => problem,
    }
}

/// Reports the paths that lead elsewhere for the system, unless a stronger layer has another value in their place.
pub(super) fn links(stack: &mut Stack, diagnostics: &mut Diagnostics) {
    for (place, problem) in mem::take(&mut stack.linked) {
        if KEYS.iter().filter_map(|key| stack.winner(key.path)).any(|winner| winner.place.is(&place)) {
            diagnostics.push(problem);
        }
    }
}

/// Reports the keys that have no default and that no layer sets.
pub(super) fn required(stack: &Stack, diagnostics: &mut Diagnostics) {
    for key in KEYS.iter().filter(|key| key.default == Fallback::Required) {
        let is_said = |path| stack.is_broken(path) || stack.winner(path).is_some();
        if stack.is_partial || is_said(key.path) || key.instead_of.is_some_and(is_said) {
            continue;
        }
        let place = match stack.headers.get(key.table()) {
            Some(header) => Place::at(&stack.recipe, header.clone()),
            None => Place::whole(&stack.recipe),
        };
        let problem = Problem::new(format!("missing key `{}`", key.path), place)
            .help(format!(
                "it has no default; under [{}] write, for example, {} = {}",
                key.table(),
                key.leaf(),
                key.example
            ))
            .help(format!("`{}`: {}", key.path, key.doc));
        diagnostics.push(problem);
    }
}

/// Checks the name where it is the file's stem; the parser has checked a written one.
pub(super) fn name(stack: &Stack, diagnostics: &mut Diagnostics) {
    let Some(Entry { value: Value::Text(name), place, .. }) = stack.winner("name") else {
        return;
    };
    if place.source.medium != Medium::BuiltIn || stack.is_broken("name") {
        return;
    }
    if let Err(reason) = run_name::check_name(name) {
        let title = format!("the file's name `{}` cannot name a run: it {reason}", value::shown(name));
        let help = format!("rename the file, or write name = \"{}\" in it", run_name::suggest_name(name));
        diagnostics.push(Problem::new(title, Place::whole(&stack.recipe)).help(help));
    }
}

/// Checks the relations between values.
pub(super) fn relations(stack: &Stack, recipe: &Recipe, diagnostics: &mut Diagnostics) {
    let problems = [heads(recipe), validation(recipe), mixture(recipe)].into_iter().chain([
        best(recipe),
        target(recipe),
        evaluated(recipe),
        main_set(recipe),
    ]);
    for relation in problems.flatten().chain(lengths::relations(recipe)) {
        if let Some(problem) = relation.blame(stack) {
            diagnostics.push(problem);
        }
    }
}

/// A relation that does not hold.
pub(super) struct Relation {
    /// The keys in it, first the one to be changed.
    keys: Vec<&'static str>,
    title: String,
    help: Vec<String>,
}

impl Relation {
    /// A relation that `first` would best be changed to restore.
    pub(super) fn broken_by(first: &'static str, title: String) -> Self {
        Self { keys: vec![first], title, help: Vec::new() }
    }

    /// Adds a key on which it depends as well.
    pub(super) fn and(mut self, key: &'static str) -> Self {
        self.keys.push(key);
        self
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// Blames the key of the strongest layer, which broke the relation among the others. `None` if one of the keys
    /// has a problem of its own.
    pub(super) fn blame(self, stack: &Stack) -> Option<Problem> {
        let is_unknown = |&key: &&'static str| {
            let placeholder = known(key).default == Fallback::Required
                && stack.winner(key).is_none_or(|entry| is_built_in(&entry.place));
            stack.is_broken(key) || placeholder
        };
        if stack.is_partial || self.keys.iter().any(is_unknown) {
            return None;
        }
        // The key with its place and how strong its layer is.
        let mut places: Vec<(&str, Place, (usize, bool))> = Vec::new();
        for &key in &self.keys {
            // A value of a preset has no line; the line that chose the preset stands for it.
            let own = stack.winner(key).filter(|entry| !is_built_in(&entry.place));
            let preset = || stack.winner(PRESET).filter(|_| is_from_preset(stack, key));
            if let Some(entry) = own.or_else(preset) {
                let layer = stack.layers.iter().position(|layer| holds(layer, &entry.place)).unwrap_or(0);
                places.push((key, entry.place.clone(), (layer, own.is_some())));
            }
        }
        let primary = (0..places.len()).rev().max_by_key(|&index| places[index].2);
        let Some((_, place, _)) = primary.map(|index| places.remove(index)) else {
            return Some(self.problem(Place::whole(&stack.recipe)));
        };
        let mut problem = self.problem(place.clone());
        for (key, other, _) in places {
            if other.span != place.span || !Arc::ptr_eq(&other.source, &place.source) {
                problem = problem.context(other, format!("`{key}`"));
            }
        }
        let first = self.keys[0];
        if stack.winner(first).is_some_and(|entry| is_built_in(&entry.place)) && !is_from_preset(stack, first)
        {
            problem = problem.help(format!("nothing sets `{first}`: that is its default"));
        }
        Some(problem)
    }

    fn problem(&self, place: Place) -> Problem {
        let mut problem = Problem::new(self.title.clone(), place);
        problem.help.clone_from(&self.help);
        problem
    }
}

fn is_built_in(place: &Place) -> bool {
    place.source.medium == Medium::BuiltIn
}

fn is_from_preset(stack: &Stack, key: &str) -> bool {
    let preset = stack.layers.iter().find(|layer| matches!(layer.said_by, SaidBy::Preset(_)));
    preset.is_some_and(|layer| layer.entries.iter().any(|entry| entry.key.path == key))
}

fn holds(layer: &Layer, place: &Place) -> bool {
    layer.entries.iter().any(|entry| Arc::ptr_eq(&entry.place.source, &place.source))
}

/// The nearest multiples of `unit` around `value` that the integer key accepts, for people; `None` if there is none.
pub(super) fn multiples(key: &'static str, value: usize, unit: usize) -> Option<String> {
    let Kind::Integer { max, .. } = known(key).kind else { unreachable!("{key} is an integer") };
    let below = value / unit * unit;
    let fitting = [below, below + unit].into_iter();
    let fitting: Vec<String> = fitting
        .filter(|&fit| fit > 0 && i64::try_from(fit).is_ok_and(|fit| fit <= max))
        .map(|fit| fit.to_string())
        .collect();
    (!fitting.is_empty()).then(|| fitting.join(" or "))
}

fn heads(recipe: &Recipe) -> Option<Relation> {
    let (width, heads) = (recipe.model.n_embd, recipe.model.n_head);
    if width.is_multiple_of(heads) {
        return None;
    }
    let fits = multiples("model.n_embd", width, heads);
    let fewer = (1..heads).rev().find(|heads| width.is_multiple_of(*heads)).unwrap_or(1);
    let title = format!("`model.n_embd` is {width}, not a multiple of `model.n_head` = {heads}");
    let relation = Relation::broken_by("model.n_embd", title)
        .and("model.n_head")
        .help("every head takes the same number of channels")
        .help(match fits {
            Some(fits) => format!("n_embd = {fits} would fit, or n_head = {fewer}"),
            None => format!("n_head = {fewer} would fit"),
        });
    Some(relation)
}

/// Validation data have one origin.
fn validation(recipe: &Recipe) -> Option<Relation> {
    let fraction = recipe.data.val_fraction.filter(|_| !recipe.data.val.is_empty())?;
    let title =
        format!("`data.val_fraction` is {fraction}, but `data.val` names validation data already: keep one");
    let relation = Relation::broken_by("data.val_fraction", title).and("data.val").help(
        "without data.val (--unset data.val, or data.val = []) the last tokens of data.train are taken",
    );
    Some(relation)
}

/// A mixture has no last part.
fn mixture(recipe: &Recipe) -> Option<Relation> {
    let fraction = recipe.data.val_fraction?;
    recipe.data.train.mixture().filter(|parts| parts.len() > 1)?;
    let title = format!(
        "`data.val_fraction` is {fraction}, but `data.train` is a mixture, of which no last part can be kept"
    );
    let relation = Relation::broken_by("data.val_fraction", title).and("data.train").help(
        "name files for validation in data.val, and leave data.val_fraction out (--unset data.val_fraction)",
    );
    Some(relation)
}

/// Where nothing is evaluated, nothing is best.
fn best(recipe: &Recipe) -> Option<Relation> {
    let asked = recipe.checkpoint.keep_best && recipe.eval.every == 0;
    let title =
        "`checkpoint.keep_best` is true, but `eval.every` is 0: nothing is evaluated, so nothing is best";
    let relation = || {
        Relation::broken_by("checkpoint.keep_best", title.to_owned())
            .and("eval.every")
            .help("have it evaluated, such as eval.every = 250, or leave keep_best out")
    };
    asked.then(relation)
}

/// Where nothing is evaluated, no target is reached.
fn target(recipe: &Recipe) -> Option<Relation> {
    let target = recipe.schedule.stop_at_val_loss.filter(|_| recipe.eval.every == 0)?;
    let title = format!(
        "`schedule.stop_at_val_loss` is {target}, but `eval.every` is 0: nothing is evaluated, so nothing reaches it"
    );
    let relation = Relation::broken_by("schedule.stop_at_val_loss", title)
        .and("eval.every")
        .help("have data.val evaluated, such as eval.every = 250, or leave stop_at_val_loss out");
    Some(relation)
}

/// How much is evaluated is said once.
fn evaluated(recipe: &Recipe) -> Option<Relation> {
    let (batches, tokens) = (recipe.eval.batches?, recipe.eval.tokens?);
    let title = format!("`eval.tokens` is {tokens}, but `eval.batches` is {batches}: keep one");
    let relation = Relation::broken_by("eval.tokens", title).and("eval.batches").help(
        "leave the other one out, or --unset it: batches count steps of batch.total_tokens, tokens depend on nothing",
    );
    Some(relation)
}

/// Of several sets of validation data one decides.
fn main_set(recipe: &Recipe) -> Option<Relation> {
    let (named, main) = (recipe.data.val.named().unwrap_or_default(), recipe.data.val_main.as_deref());
    let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
    let listed = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    match main {
        None if names.len() < 2 => None,
        None => {
            let title = format!(
                "`data.val` has {} sets, and nothing says which one decides what is best",
                names.len()
            );
            let help = format!("name it with data.val_main: {listed}");
            Some(Relation::broken_by("data.val", title).help(help))
        }
        Some(main) if names.contains(&main) => None,
        Some(main) => {
            let title = format!("`data.val_main` is \"{main}\", but `data.val` has no set of that name");
            let help = match names.len() {
                0 => "its files have no names: leave data.val_main out, or write val = { NAME = [FILES] }"
                    .to_owned(),
                _ => format!("its sets are {listed}"),
            };
            Some(Relation::broken_by("data.val_main", title).and("data.val").help(help))
        }
    }
}
