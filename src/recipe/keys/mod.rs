//! The one table of recipe keys. A key's row says everything that the program knows about the key itself.
//!
//! Parsing, checks, defaults, layers, the written recipe, the JSON Schema, the identity of a run, `--resume`,
//! `runner explain` and `runner compare` read the rows; no other list of keys exists. `CONTRIBUTING.md` says what a new
//! key needs besides its row.

mod experiment;
mod kind;
mod muon;
mod switch;
mod table;
mod tables;
mod training;
mod upkeep;

pub use kind::{Fallback, Interval, Kind};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::sync::LazyLock;
pub use switch::Switch;
pub use table::{INIT_FROM, KEYS, PRECISION, PRESET, SCHEDULE_KIND, SEED};
pub(super) use tables::table_names;
pub use tables::{Slows, TABLES, Table, find_table};

/// One key of the recipe language.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Dotted path, such as `model.n_layer`.
    pub path: &'static str,
    /// What its value must be.
    pub kind: Kind,
    /// What holds when no layer sets it.
    pub default: Fallback,
    /// What it means, in one sentence without a full stop.
    pub doc: &'static str,
    /// The `schedule.kind`s that use it; empty for a key that all of them leave alone.
    pub schedules: &'static [&'static str],
    /// The one of these kinds in which it means something else than in the others. A layer that changes from or to that
    /// kind drops what weaker layers said; a default that follows from another key is the default of that kind only.
    pub special_in: Option<&'static str>,
    /// Whether such a layer leaves what was said where no layer had said a kind: the key had a meaning in that one kind
    /// only when recipes were written that leave the kind to the one that extends them.
    pub stays_without_kind: bool,
    /// The setting that leaves it without effect.
    pub silenced_by: Option<&'static Switch>,
    /// The key that says the same in other terms: without a default where that one is set, and an error beside it.
    pub instead_of: Option<&'static str>,
    /// How it enters the identity of a run.
    pub identity: Identity,
    /// Whether `--resume` may change it.
    pub on_resume: OnResume,
    /// Whether `runner compare` shows where runs differ in it.
    pub is_compared: bool,
    /// Whether it decides what a run does between its steps, in the seconds that it takes.
    pub is_between_steps: bool,
    /// How its value is bound to what `model.init_from` names; `None` for a key of which that says nothing.
    pub stated: Option<Stated>,
    /// What other trainers call it.
    pub also_called: &'static [&'static str],
    /// A TOML value that is not its default; a recipe that has only the required keys may set it, together with what
    /// `schedules` and `silenced_by` ask for.
    pub example: &'static str,
}

/// How a key enters the identity of a run; see [`identity`](super::identity()).
#[derive(Debug, Clone, Copy)]
pub enum Identity {
    /// With its value.
    Always,
    /// With the digest of what it names, so that paths may change.
    Contents,
    /// With its value where that is not the default: runs from before the key existed keep their ids.
    UnlessDefault,
    /// With its value while the switch is on.
    While(&'static Switch),
    /// Not at all: it decides what is kept and shown, or in which way the same is computed.
    Never,
}

/// How a key is bound to the file that states it, where a run begins from weights or from another run. The state of a
/// run, moments included, binds all of them but [`Any`](Self::Any) to the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stated {
    /// The same value.
    Same,
    /// That value or a smaller one: the first rows are taken.
    AtMost,
    /// The same value, or one that the model pads to it.
    Padded,
    /// Any value; the other run's is the default.
    Any,
    /// Only by the state of a run: its step is a position in the data as long as this stays.
    Position,
}

/// Whether a run may go on under another value of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnResume {
    /// No: that would be another experiment, or another directory.
    Kept,
    /// Yes: it decides where, how fast or how often something happens, or what it names is compared by digest.
    Free,
}

impl Key {
    /// The words that stand for a value of it; none for a value that is no word.
    #[must_use]
    pub fn words(&self) -> Vec<&'static str> {
        match self.kind {
            Kind::Flag => vec!["true", "false"],
            Kind::Choice(words) | Kind::Choices(words) => words.to_vec(),
            Kind::MicroBatch { .. } => vec!["auto"],
            Kind::Device => vec!["auto", "cpu", "cuda"],
            Kind::Preset => super::presets::names().collect(),
            _ => Vec::new(),
        }
    }

    /// A key that always has an effect, enters the identity with its value and stays as it is when a run is resumed.
    const fn new(path: &'static str, kind: Kind, default: Fallback, doc: &'static str) -> Self {
        Self {
            path,
            kind,
            default,
            doc,
            schedules: &[],
            special_in: None,
            stays_without_kind: false,
            silenced_by: None,
            instead_of: None,
            identity: Identity::Always,
            on_resume: OnResume::Kept,
            is_compared: true,
            is_between_steps: false,
            stated: None,
            also_called: &[],
            example: "",
        }
    }

    const fn only_with(self, schedules: &'static [&'static str]) -> Self {
        Self { schedules, ..self }
    }

    const fn special_in(self, kind: &'static str) -> Self {
        Self { special_in: Some(kind), ..self }
    }

    const fn stays_without_kind(self) -> Self {
        Self { stays_without_kind: true, ..self }
    }

    const fn silenced_by(self, switch: &'static Switch) -> Self {
        Self { silenced_by: Some(switch), ..self }
    }

    const fn instead_of(self, other: &'static str) -> Self {
        Self { instead_of: Some(other), ..self }
    }

    const fn identity(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    const fn on_resume(self, on_resume: OnResume) -> Self {
        Self { on_resume, ..self }
    }

    /// A key that decides only what is kept and shown: no part of the identity, free to change when a run is resumed.
    const fn free(self) -> Self {
        self.identity(Identity::Never).on_resume(OnResume::Free)
    }

    const fn not_compared(self) -> Self {
        Self { is_compared: false, ..self }
    }

    /// A key that decides what a run does between its steps.
    const fn between_steps(self) -> Self {
        Self { is_between_steps: true, ..self }
    }

    const fn stated(self, stated: Stated) -> Self {
        Self { stated: Some(stated), ..self }
    }

    const fn also_called(self, also_called: &'static [&'static str]) -> Self {
        Self { also_called, ..self }
    }

    const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    /// The part after the last dot: how the key is written inside its table.
    #[must_use]
    pub fn leaf(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    /// The table that holds the key; empty at the top level.
    #[must_use]
    pub fn table(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// False for the keys that resolution consumes: `extends` and `model.preset`.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        !matches!(self.kind, Kind::Extends | Kind::Preset)
    }

    /// Whether its value names files, so that it is absolute in a resolved recipe and relative in a written one.
    #[must_use]
    pub fn is_path(&self) -> bool {
        matches!(self.kind, Kind::File | Kind::Start | Kind::Files { .. } | Kind::Sources | Kind::Sets)
    }

    /// Whether a schedule of this kind uses it.
    #[must_use]
    pub fn is_used_by(&self, schedule: &str) -> bool {
        self.schedules.is_empty() || self.schedules.contains(&schedule)
    }

    /// Whether what was said of it under one kind of schedule says the same under another. `is_said` is false where the
    /// old kind is the default, which no layer had said.
    #[must_use]
    pub fn survives(&self, old: &str, is_said: bool, new: &str) -> bool {
        let stays = self.stays_without_kind && !is_said;
        let is_alike = |kind| (kind == old) == (kind == new) || stays;
        self.is_used_by(new) && self.special_in.is_none_or(is_alike)
    }

    /// Its default as JSON, where that is one value for all recipes.
    #[must_use]
    pub fn default_json(&self) -> Option<&'static Json> {
        DEFAULTS.get(self.path)
    }
}

/// The defaults that are one value for all recipes, by their keys' paths: parsed once, for a comparison asks for them
/// again with every run.
static DEFAULTS: LazyLock<HashMap<&str, Json>> = LazyLock::new(|| {
    let default = |key: &Key| {
        let Fallback::Is(text) = key.default else { return None };
        let mut document: toml::Table = format!("value = {text}").parse().ok()?;
        serde_json::to_value(document.remove("value")?).ok()
    };
    KEYS.iter().filter_map(|key| Some((key.path, default(key)?))).collect()
});

/// The key with this dotted path.
#[must_use]
pub fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The key with this dotted path, which the caller spells out in the source.
///
/// # Panics
/// If there is none; `tests/recipes/keys.rs` holds every path in the source against the table.
pub(super) fn known(path: &'static str) -> &'static Key {
    find(path).expect("a key written in this crate is in the table")
}

/// A table's keys with their defaults, as JSON; keys whose default is not one value for all recipes are left out.
pub(super) fn defaults(table: &'static str) -> Json {
    let keys = KEYS.iter().filter(|key| key.table() == table);
    keys.filter_map(|key| Some((key.leaf().to_owned(), key.default_json()?.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_named_once_and_lives_in_a_known_table() {
        for (i, key) in KEYS.iter().enumerate() {
            assert!(KEYS[..i].iter().all(|other| other.path != key.path), "{} is there twice", key.path);
            assert!(key.table().is_empty() || find_table(key.table()).is_some(), "{}", key.path);
            assert!(!key.doc.is_empty() && !key.doc.ends_with('.'), "{}", key.path);
            assert_eq!(key.default_json().is_some(), matches!(key.default, Fallback::Is(_)), "{}", key.path);
        }
        assert!(TABLES.iter().all(|table| !table.doc.is_empty()));
    }

    #[test]
    fn rows_agree_with_themselves_and_with_one_another() {
        for key in KEYS {
            let by_digest = matches!(key.identity, Identity::Contents);
            let by_nothing = matches!(key.identity, Identity::Never);
            assert_eq!(
                by_digest || by_nothing && key.is_path(),
                key.is_path(),
                "{}: contents are what paths name",
                key.path
            );
            assert!(
                !key.is_path() || key.on_resume == OnResume::Free,
                "{}: a moved tree is resumed",
                key.path
            );
            assert_eq!(key.example.is_empty(), !key.is_resolved(), "{}: an example", key.path);
            let switches = key.silenced_by.into_iter().chain(match key.identity {
                Identity::While(switch) => Some(switch),
                _ => None,
            });
            for path in switches.flat_map(|switch| switch.keys) {
                let deciding = find(path).unwrap_or_else(|| panic!("{}: there is no {path}", key.path));
                assert!(deciding.silenced_by.is_none(), "{path} is silenced and silences {}", key.path);
            }
            if let Fallback::FifthOf(other) | Fallback::SameAs(other) = key.default {
                assert!(
                    find(other).is_some_and(|other| matches!(other.kind, Kind::Integer { .. })),
                    "{other}"
                );
            }
            if let Some(other) = key.instead_of {
                assert!(find(other).is_some_and(|other| other.default == Fallback::Absent), "{other}");
            }
            assert!(key.special_in.is_none_or(|kind| key.schedules.contains(&kind)), "{}", key.path);
            let Some(Kind::Choice(schedules)) = find(SCHEDULE_KIND).map(|key| key.kind) else {
                panic!("{SCHEDULE_KIND}")
            };
            assert!(key.schedules.iter().all(|kind| schedules.contains(kind)), "{}", key.path);
        }
    }

    #[test]
    fn no_name_of_another_trainer_leads_to_two_keys() {
        let names: Vec<&str> = KEYS.iter().flat_map(|key| key.also_called).copied().collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name} is there twice");
            assert!(KEYS.iter().all(|key| key.leaf() != *name), "{name} is a key itself");
        }
    }
}
