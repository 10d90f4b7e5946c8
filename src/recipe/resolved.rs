//! Loading a recipe: merging its layers, with the history of every value.

use super::diagnostics::{Diagnostics, Problem};
use super::layers::{self, Layer, Stack};
use super::origin::{Origin, SaidBy};
use super::overrides::Overrides;
use super::schema::Recipe;
use super::source::{Place, Source};
use super::value::Value;
use super::{check, effect, paths, stated, vocabulary};
use figment::value::{Dict, Map, Value as Figment};
use figment::{Error, Metadata, Profile, Provider};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The value that one layer gives to a key.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Where it comes from.
    pub origin: Origin,
    /// The value as TOML on one line, its paths absolute.
    pub value: String,
    /// The parsed value, for other ways of writing it.
    parsed: Value,
    is_path: bool,
    place: Place,
}

impl Setting {
    fn texts(&self) -> Vec<&str> {
        match &self.parsed {
            Value::Text(text) => vec![text],
            Value::Texts(texts) => texts.iter().map(String::as_str).collect(),
            Value::Sets(sets) => sets.values().flatten().map(String::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// The value as JSON. Its paths are relative to `dir` (absolute) where they share more than the root with it.
    #[must_use]
    pub fn json_seen_from(&self, dir: &Path) -> serde_json::Value {
        let dir = paths::settled(dir);
        let seen = |text: &str| if self.is_path { paths::relative(&dir, text) } else { text.to_owned() };
        match &self.parsed {
            Value::Integer(integer) => (*integer).into(),
            Value::Number(number) => (*number).into(),
            Value::Flag(flag) => (*flag).into(),
            Value::Text(text) => seen(text).into(),
            Value::Texts(texts) => texts.iter().map(|text| seen(text)).collect(),
            Value::Numbers(numbers) => numbers.clone().into(),
            Value::Sets(sets) => {
                let seen = |(name, paths): (&String, &Vec<String>)| {
                    (name.clone(), paths.iter().map(|path| seen(path)).collect())
                };
                serde_json::Value::Object(sets.iter().map(seen).collect())
            }
            Value::Mixture(parts) => {
                let part = |(path, weight): &(String, f64)| serde_json::json!({ "path": seen(path), "weight": weight });
                parts.iter().map(part).collect()
            }
            Value::Branch { run, step, optimizer } => {
                let mut members = serde_json::Map::from_iter([("run".to_owned(), seen(run).into())]);
                members.extend(step.map(|step| ("step".to_owned(), step.into())));
                members.insert("optimizer".to_owned(), (*optimizer).into());
                members.into()
            }
        }
    }

    /// The value as TOML on one line, its paths as in [`json_seen_from`](Self::json_seen_from).
    #[must_use]
    pub fn value_seen_from(&self, dir: &Path) -> String {
        super::leaves::toml(&self.json_seen_from(dir))
    }
}

/// A recipe with the history of its values.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The recipe, complete and checked.
    pub recipe: Recipe,
    /// The recipe files that were read, weakest first: the bases, then the recipe. One that the program carries is
    /// `builtin:NAME`.
    pub files: Vec<PathBuf>,
    settings: Vec<(&'static str, Vec<Setting>)>,
    source: Arc<Source>,
}

impl Resolved {
    /// Every key that has a value, in the order of a written recipe, with each layer that set it, weakest first.
    ///
    /// `model.preset` is included where it is set. Entries that `--unset` or a changed `schedule.kind` removed are not.
    pub fn origins(&self) -> impl Iterator<Item = (&'static str, &[Setting])> {
        self.settings.iter().map(|(key, settings)| (*key, settings.as_slice()))
    }

    /// The layer that won for `key`; `None` if the key does not exist or has no value here.
    #[must_use]
    pub fn origin(&self, key: &str) -> Option<&Setting> {
        self.settings.iter().find(|(name, _)| *name == key)?.1.last()
    }

    /// The paths that a recipe which the program carries has set: nobody has said where they lie.
    pub fn carried_paths(&self) -> impl Iterator<Item = &str> {
        self.paths_of(Origin::is_carried)
    }

    /// The paths that a recipe's file has set.
    pub fn filed_paths(&self) -> impl Iterator<Item = &str> {
        self.paths_of(|origin| matches!(origin, Origin::File { .. }))
    }

    /// The paths that are in force and come from one of these origins.
    fn paths_of(&self, is_one: impl Fn(&Origin) -> bool) -> impl Iterator<Item = &str> {
        let set = self.settings.iter().filter_map(|(_, settings)| settings.last());
        set.filter(move |setting| setting.is_path && is_one(&setting.origin)).flat_map(Setting::texts)
    }

    /// A problem that only the caller can find, shown where `key` is set.
    ///
    /// A default or a value of a preset has no line; the message then names the recipe file alone.
    #[must_use]
    pub fn complain(&self, key: &str, message: &str, help: &str) -> Diagnostics {
        self.complain_at_length(key, message, (!help.is_empty()).then(|| help.to_owned()))
    }

    /// As [`complain`](Self::complain), with any number of things to know or to do.
    #[must_use]
    pub fn complain_at_length(
        &self,
        key: &str,
        message: &str,
        help: impl IntoIterator<Item = String>,
    ) -> Diagnostics {
        let place = match self.origin(key) {
            Some(Setting {
                origin: Origin::File { .. } | Origin::Env(_) | Origin::Set(_), place, ..
            }) => place.clone(),
            _ => Place::whole(&self.source),
        };
        let problem = help.into_iter().fold(Problem::new(message, place), Problem::help);
        let mut diagnostics = Diagnostics::default();
        diagnostics.push(problem);
        diagnostics
    }
}

/// Reads the recipe at `path` under `overrides` and resolves it.
///
/// # Errors
/// Returns all problems of all sources, in file order.
pub fn load(path: &Path, overrides: &Overrides) -> Result<Resolved, Diagnostics> {
    load_from(path, overrides, None)
}

/// As [`load`], for a recipe whose run would lie in `runs_dir`: where what `model.init_from` names is gone, its
/// dimensions are those of the runs there that began from it.
///
/// # Errors
/// Returns all problems of all sources, in file order.
pub fn load_among(path: &Path, overrides: &Overrides, runs_dir: &Path) -> Result<Resolved, Diagnostics> {
    load_from(path, overrides, Some(runs_dir))
}

fn load_from(path: &Path, overrides: &Overrides, runs_dir: Option<&Path>) -> Result<Resolved, Diagnostics> {
    let mut diagnostics = Diagnostics::default();
    let resolved = layers::gather(path, overrides, &mut diagnostics)
        .and_then(|stack| resolve(stack, runs_dir, &mut diagnostics))
        .filter(|_| diagnostics.is_empty());
    resolved.ok_or_else(|| {
        diagnostics.sort();
        diagnostics
    })
}

fn resolve(mut stack: Stack, runs_dir: Option<&Path>, diagnostics: &mut Diagnostics) -> Option<Resolved> {
    stack.insert_preset();
    check::links(&mut stack, diagnostics);
    // before a kind drops the stronger one of two forms, and the weaker one would come back
    effect::settle_forms(&mut stack);
    let kind = check::schedule_kind(&mut stack, diagnostics);
    let known = diagnostics.len();
    // before a key that depends on a stated one counts as said in vain
    let stated = stated::insert(&mut stack, runs_dir, diagnostics);
    let is_unreadable = diagnostics.len() > known;
    effect::apply(&mut stack, diagnostics);
    effect::settle_forms(&mut stack);
    check::required(&stack, diagnostics);
    let weights_state_it = stated.as_ref().is_some_and(|stated| stated.states("model.vocab_size"));
    vocabulary::insert(&mut stack, weights_state_it, diagnostics);
    stack.insert_defaults(&kind);
    check::name(&stack, diagnostics);
    // A key that is missing or broken must not hide problems of the others.
    let recipe = match merge(&stack.layers) {
        Ok(recipe) => recipe,
        Err(error) => {
            if diagnostics.is_empty() {
                let title = format!("the layers do not make a recipe: {error}");
                diagnostics.push(Problem::new(title, Place::whole(&stack.recipe)));
            }
            return None;
        }
    };
    let before = diagnostics.len();
    check::relations(&stack, &recipe, diagnostics);
    match stated {
        Some(stated) => stated::check(&stack, &recipe, &stated, diagnostics),
        // the numbers may be wrong only because the dimensions could not be read
        None if diagnostics.len() > before && !is_unreadable => {
            stated::missing(&stack, runs_dir, diagnostics)
        }
        None => {}
    }
    Some(Resolved { settings: settings(&stack.layers), source: stack.recipe, files: stack.files, recipe })
}

fn settings(layers: &[Layer]) -> Vec<(&'static str, Vec<Setting>)> {
    let of = |path: &str| -> Vec<Setting> {
        let entries =
            layers.iter().flat_map(|layer| layer.entries.iter().map(|entry| (&layer.said_by, entry)));
        entries
            .filter(|(_, entry)| entry.key.path == path)
            .map(|(said_by, entry)| Setting {
                origin: said_by.origin(entry),
                value: entry.value.to_string(),
                parsed: entry.value.clone(),
                is_path: entry.key.is_path(),
                place: entry.place.clone(),
            })
            .collect()
    };
    let all = super::keys::KEYS.iter().map(|key| (key.path, of(key.path)));
    all.filter(|(_, settings)| !settings.is_empty()).collect()
}

/// Merges the layers with figment: dictionaries key by key, any other value as a whole.
fn merge(layers: &[Layer]) -> Result<Recipe, Box<Error>> {
    let figment = layers.iter().fold(figment::Figment::new(), |figment, layer| figment.merge(layer));
    figment.extract().map_err(Box::new)
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(match &self.said_by {
            SaidBy::Defaults => "the defaults".into(),
            SaidBy::InitFrom(path) => format!("model of {}", path.display()),
            SaidBy::Data(path) => format!("tokens of {}", path.display()),
            SaidBy::Preset(name) => format!("preset {name}"),
            SaidBy::File(index) => format!("recipe file {index}"),
            SaidBy::Env(name) => format!("environment variable {name}"),
            SaidBy::Set(argument) => format!("--set {argument}"),
        })
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let mut root = Dict::new();
        for entry in self.entries.iter().filter(|entry| entry.key.is_resolved()) {
            let leaf = entry.key.leaf().to_string();
            let value = Figment::from(entry.value.clone());
            match entry.key.table() {
                "" => root.insert(leaf, value),
                table => {
                    let members = root.entry(table.into()).or_insert_with(|| Dict::new().into());
                    match members {
                        Figment::Dict(_, members) => members.insert(leaf, value),
                        _ => None,
                    }
                }
            };
        }
        Ok(Map::from([(Profile::Default, root)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figment_agrees_about_who_won() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("recipe.toml");
        let text =
            "schedule.max_steps = 9\n[model]\npreset = \"gpt3-small\"\nn_layer = 2\n[data]\ntrain = \"x\"\n";
        std::fs::write(&path, text).expect("a file");
        let overrides = Overrides {
            set: vec!["optimizer.lr=1e-3".into(), "seed=2".into()],
            env: vec![("RUNNER__SEED".into(), "1".into()), ("RUNNER_EVAL__EVERY".into(), "3".into())],
            ..Overrides::default()
        };
        let mut diagnostics = Diagnostics::default();
        let mut stack = layers::gather(&path, &overrides, &mut diagnostics).expect("readable");
        stack.insert_preset();
        let kind = check::schedule_kind(&mut stack, &mut diagnostics);
        stack.insert_defaults(&kind);
        let merged = stack.layers.iter().fold(figment::Figment::new(), |figment, layer| figment.merge(layer));
        let mut winners = std::collections::BTreeSet::new();
        let is_resolved = |path: &str| super::super::keys::find(path).is_some_and(|key| key.is_resolved());
        for (key, _) in settings(&stack.layers).iter().filter(|(key, _)| is_resolved(key)) {
            let holds = |layer: &&Layer| layer.entries.iter().any(|entry| entry.key.path == *key);
            let ours = stack.layers.iter().rfind(holds).expect("a layer").metadata().name;
            let value = merged.find_value(key).expect("merged");
            let theirs = merged.get_metadata(value.tag()).map(|metadata| metadata.name.clone());
            assert_eq!(theirs.as_ref(), Some(&ours), "{key}");
            winners.insert(ours);
        }
        assert_eq!(winners.len(), 6, "{winners:?}");
    }
}
