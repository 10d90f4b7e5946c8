//! The layers of a recipe, weakest first, before they are merged.
//!
//! Every layer keeps its entries with their places, so that a merged value can be traced to its line, and so that
//! `--unset` or a changed `schedule.kind` can take an entry away again.

use super::diagnostics::{Diagnostics, Problem};
use super::keys::{Fallback, KEYS, Key, Kind, PRESET, SCHEDULE_KIND};
use super::origin::SaidBy;
use super::overrides::{self, Overrides};
use super::parse::{self, Entry, Parsed};
use super::source::{Medium, Place, Source};
use super::value::{self, Value};
use super::{files, paths, presets};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::DeValue;

/// The entries of one source.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) said_by: SaidBy,
    pub(super) entries: Vec<Entry>,
}

/// All layers above the defaults and the preset, with the facts about their sources that checks need.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) layers: Vec<Layer>,
    /// The recipe file itself.
    pub(super) recipe: Arc<Source>,
    /// Table headers of the recipe file.
    pub(super) headers: BTreeMap<&'static str, Range<usize>>,
    /// Keys that an `--unset` names.
    pub(super) unset: Vec<&'static str>,
    /// The kinds of schedule that an `--unset` took from layers.
    pub(super) unset_kinds: Vec<(SaidBy, Value)>,
    /// Keys that some source sets to a value that they do not accept.
    pub(super) broken: Vec<&'static Key>,
    /// Paths that lead elsewhere for the system: where they are written, and what to say if none replaces them.
    pub(super) linked: Vec<(Place, Problem)>,
    /// True if some source could not be read to its end: a key that seems missing may not be.
    pub(super) is_partial: bool,
    /// The files read, weakest first.
    pub(super) files: Vec<PathBuf>,
}

/// Reads all sources. `None` if the recipe file itself cannot be read.
pub(super) fn gather(path: &Path, overrides: &Overrides, diagnostics: &mut Diagnostics) -> Option<Stack> {
    let (files, is_partial) = files::load(path, diagnostics);
    let recipe = files.last()?;
    let mut stack = Stack {
        layers: Vec::new(),
        recipe: Arc::clone(&recipe.source),
        headers: recipe.parsed.headers.clone(),
        unset: Vec::new(),
        unset_kinds: Vec::new(),
        broken: Vec::new(),
        linked: Vec::new(),
        is_partial,
        files: files.iter().map(|file| file.path.clone()).collect(),
    };
    let here = match std::env::current_dir() {
        Ok(here) => here,
        Err(error) => {
            let title = format!("cannot tell the current directory: {error}");
            let help = "change to a directory that exists";
            diagnostics.push(Problem::new(title, Place::whole(&stack.recipe)).help(help));
            return None;
        }
    };
    let mut rank = files.len();
    let mut next = || {
        rank += 1;
        rank
    };
    for (index, file) in files.into_iter().enumerate() {
        let dir = paths::settled(&here.join(&file.dir));
        if file.is_written_by_hand() {
            stack.note_links(&file.parsed, &dir);
        }
        stack.push(SaidBy::File(index), file.parsed, &dir, diagnostics);
    }
    for (name, value) in &overrides.env {
        if let Some(parsed) = overrides::env(name, value, next(), diagnostics) {
            stack.note_links(&parsed, &here);
            stack.push(SaidBy::Env(name.clone()), parsed, &here, diagnostics);
        }
    }
    for (place, argument) in overrides.set.iter().enumerate() {
        let parsed = overrides::set(argument, overrides.bare.contains(&place), next(), diagnostics);
        stack.note_links(&parsed, &here);
        stack.push(SaidBy::Set(argument.clone()), parsed, &here, diagnostics);
    }
    for argument in &overrides.unset {
        stack.unset(argument, next(), diagnostics);
    }
    Some(stack)
}

impl Stack {
    fn push(&mut self, said_by: SaidBy, parsed: Parsed, dir: &Path, diagnostics: &mut Diagnostics) {
        self.is_partial |= parsed.is_partial;
        self.broken.extend(parsed.broken);
        let mut entries = parsed.entries;
        for entry in &mut entries {
            if let Err(fault) = resolve_paths(entry, dir) {
                diagnostics.push(fault.complain(entry.key.path, &entry.place));
            }
        }
        self.layers.push(Layer { said_by, entries });
    }

    /// Takes note of paths that a person has written and the system would take for other files.
    fn note_links(&mut self, parsed: &Parsed, dir: &Path) {
        for entry in &parsed.entries {
            let mut value = entry.value.clone();
            for path in paths_of(&mut value, entry.key) {
                // what else may be wrong with it is said where it is resolved
                if let Err(fault @ paths::Fault::Linked { .. }) = paths::unambiguous(dir, path) {
                    let problem = fault.complain(entry.key.path, &entry.place);
                    self.linked.push((entry.place.clone(), problem));
                }
            }
        }
    }

    /// Removes the entries of files and the environment for the keys that an `--unset` names.
    fn unset(&mut self, argument: &str, rank: usize, diagnostics: &mut Diagnostics) {
        let Some(unset) = overrides::unset(argument, rank, diagnostics) else {
            return;
        };
        let is_meant = |entry: &Entry| unset.keys.iter().any(|key| key.path == entry.key.path);
        let (flags, others): (Vec<_>, Vec<_>) =
            self.layers.iter_mut().partition(|layer| matches!(layer.said_by, SaidBy::Set(_)));
        if let ([key], Some(entry)) =
            (&unset.keys[..], flags.iter().flat_map(|layer| &layer.entries).find(|entry| is_meant(entry)))
        {
            let problem = Problem::new(format!("`{}` is both set and unset", key.path), unset.place)
                .context(entry.place.clone(), "set here")
                .help("--unset drops what files and the environment say, --set replaces it: keep one of the two");
            return diagnostics.push(problem);
        }
        let mut found = self.broken.iter().any(|broken| unset.keys.iter().any(|key| key.path == broken.path));
        for layer in others {
            let before = layer.entries.len();
            let dropped = layer.entries.extract_if(.., |entry| is_meant(entry));
            let kinds = dropped.filter(|entry| entry.key.path == SCHEDULE_KIND);
            self.unset_kinds.extend(kinds.map(|entry| (layer.said_by.clone(), entry.value)));
            found |= layer.entries.len() < before;
        }
        self.unset.extend(unset.keys.iter().map(|key| key.path));
        if !found && !self.is_partial {
            let title = format!("`{}` is not set by any file or variable", unset.path);
            let help = "drop the --unset: the default or preset applies already";
            diagnostics.push(Problem::new(title, unset.place).help(help));
        }
    }

    /// The place of the weakest `--set`, which an `--unset` leaves alone; behind all layers if there is none.
    pub(super) fn first_flag(&self) -> usize {
        let is_flag = |layer: &Layer| matches!(layer.said_by, SaidBy::Set(_));
        self.layers.iter().position(is_flag).unwrap_or(self.layers.len())
    }

    /// The entry that wins for a key, among the layers above the preset.
    pub(super) fn winner(&self, path: &str) -> Option<&Entry> {
        self.layers
            .iter()
            .rev()
            .flat_map(|layer| layer.entries.iter().rev())
            .find(|entry| entry.key.path == path)
    }

    /// True if some source sets the key to a value that it does not accept.
    pub(super) fn is_broken(&self, path: &str) -> bool {
        self.broken.iter().any(|key| key.path == path)
    }

    /// Inserts the preset that the layers name below all of them.
    pub(super) fn insert_preset(&mut self) {
        let Some(Value::Text(name)) = self.winner(PRESET).map(|entry| &entry.value) else {
            return;
        };
        let preset = presets::find(name).expect("the value of `model.preset` was checked");
        let source = Arc::new(Source { medium: Medium::BuiltIn, text: preset.text.into(), rank: 0 });
        let entries = parse::document(&source, &mut Diagnostics::default()).entries;
        self.layers.insert(0, Layer { said_by: SaidBy::Preset(preset.name), entries });
    }

    /// Inserts the defaults below everything else; those of the schedule depend on its `kind`.
    pub(super) fn insert_defaults(&mut self, kind: &str) {
        let source = Arc::new(Source { medium: Medium::BuiltIn, text: String::new(), rank: 0 });
        let entries = KEYS
            .iter()
            .filter(|key| key.is_used_by(kind))
            .filter(|key| key.instead_of.is_none_or(|other| self.winner(other).is_none()))
            .filter_map(|key| {
                Some(Entry { key, value: self.default_of(key, kind)?, place: Place::whole(&source) })
            })
            .collect();
        self.layers.insert(0, Layer { said_by: SaidBy::Defaults, entries });
    }

    fn default_of(&self, key: &Key, kind: &str) -> Option<Value> {
        match key.default {
            Fallback::Absent => None,
            Fallback::Required => {
                if self.winner(key.path).is_some() {
                    None
                } else {
                    Some(placeholder(key))
                }
            }
            Fallback::Is(text) => Some(default_value(key, text)),
            Fallback::FileStem => match &self.recipe.medium {
                Medium::File(path) => Some(Value::Text(path.file_stem()?.to_string_lossy().into_owned())),
                Medium::Shipped(shipped) => Some(Value::Text(shipped.stem().to_owned())),
                _ => None,
            },
            Fallback::FifthOf(_) | Fallback::SameAs(_)
                if key.special_in.is_some_and(|special| special != kind) =>
            {
                None
            }
            // a fifth of steps that grow is no length
            Fallback::FifthOf(_) if self.ramps() => None,
            Fallback::FifthOf(path) => Some(Value::Integer((self.integer(path)? + 4) / 5)),
            Fallback::SameAs(path) => self.integer(path).filter(|value| *value != 0).map(Value::Integer),
        }
    }
}

impl Stack {
    /// The integer that wins for a key, among the layers above the defaults.
    fn integer(&self, path: &str) -> Option<i64> {
        match self.winner(path)?.value {
            Value::Integer(integer) => Some(integer),
            _ => None,
        }
    }

    /// Whether the batch grows.
    fn ramps(&self) -> bool {
        self.integer("batch.ramp_start").is_some_and(|start| start > 0)
    }
}

/// A stand-in for a required key that is missing, so that the checks of all other keys can run. No caller ever sees
/// it, because the missing key is an error.
fn placeholder(key: &Key) -> Value {
    match key.kind {
        Kind::Files { .. } | Kind::Sources => Value::Texts(vec!["builtin:missing".into()]),
        _ => Value::Integer(1),
    }
}

/// A default from the table of keys.
fn default_value(key: &Key, text: &str) -> Value {
    let value = DeValue::parse(text).expect("defaults are TOML");
    value::check(key, &value).expect("defaults are values of their keys")
}

/// Makes the paths of an entry absolute.
fn resolve_paths(entry: &mut Entry, dir: &Path) -> Result<(), paths::Fault> {
    let is_one_file = matches!(entry.key.kind, Kind::File | Kind::Start);
    for path in paths_of(&mut entry.value, entry.key) {
        *path = if is_one_file {
            let joined = paths::join(dir, path)?;
            joined.to_str().ok_or_else(|| paths::Fault::NotUtf8(dir.to_owned()))?.to_owned()
        } else {
            paths::absolute(dir, path)?
        };
    }
    Ok(())
}

/// The paths in a value of a key.
fn paths_of<'a>(value: &'a mut Value, key: &Key) -> Vec<&'a mut String> {
    match (key.kind, value) {
        (Kind::File | Kind::Start, Value::Text(path) | Value::Branch { run: path, .. }) => vec![path],
        (Kind::Sources, Value::Mixture(parts)) => parts.iter_mut().map(|(path, _)| path).collect(),
        (Kind::Sets, Value::Sets(sets)) => sets.values_mut().flatten().collect(),
        (Kind::Files { .. } | Kind::Sources | Kind::Sets, Value::Texts(entries)) => {
            entries.iter_mut().collect()
        }
        _ => Vec::new(),
    }
}
