//! Keys that turn others off: nobody reads a prompt where no text is generated.
//!
//! Whoever sets such a key in vain is told. But the layer that turns something off may do so without tidying up the
//! layers below: what those say is dropped, as with a changed `schedule.kind`, so the resolved recipe holds the default
//! and a written one can leave the key out.

use super::diagnostics::{Diagnostics, Problem};
use super::keys::{Fallback, known};
use super::layers::Stack;
use super::leaves::{toml, values};
use super::parse::Entry;
use super::schema::Recipe;

/// A key of which some values leave other keys without effect.
struct Switch {
    key: &'static str,
    /// Another key that must be off as well.
    and: Option<&'static str>,
    /// Whether this value, as TOML, does.
    is_off: fn(&str) -> bool,
    keys: &'static [&'static str],
    /// The one value of `keys` that has no effect, if the others have.
    only: Option<&'static str>,
    /// What to do, besides removing the key.
    remedy: &'static str,
}

const SWITCHES: &[Switch] = &[
    Switch {
        key: "data.val",
        and: None,
        is_off: |value| value == "[]",
        keys: &["eval.every", "eval.batches"],
        only: None,
        remedy: "name validation data: data.val = \"builtin:lipsum:seed=2\", for example",
    },
    Switch {
        key: "sample.every",
        and: None,
        is_off: |value| value == "0",
        keys: &["sample.prompt", "sample.tokens"],
        only: None,
        remedy: "have text generated: sample.every = 250, for example",
    },
    Switch {
        key: "batch.world_size",
        and: None,
        is_off: |value| value == "1",
        keys: &["distributed.shard_optimizer", "distributed.timeout_s"],
        only: None,
        remedy: "train on several ranks: batch.world_size = 2, for example",
    },
    Switch {
        key: "watchdog.max_loss_zscore",
        and: Some("watchdog.max_grad_zscore"),
        is_off: is_zero,
        keys: &["watchdog.window", "watchdog.action"],
        only: None,
        remedy: "have something watched: watchdog.max_loss_zscore = 6, for example",
    },
    Switch {
        key: "compute.device",
        and: None,
        is_off: |value| value.starts_with("\"cuda"),
        keys: &["compute.threads"],
        only: None,
        remedy: "choose compute.device = \"cpu\"",
    },
    Switch {
        key: "compute.engine",
        and: None,
        is_off: |value| value == "\"dfdx\"",
        keys: &["compute.attention"],
        only: Some("\"flash\""),
        remedy: "write \"naive\": the dfdx engine always materializes the attention matrix",
    },
];

fn is_zero(value: &str) -> bool {
    value.parse() == Ok(0.0)
}

impl Switch {
    fn silences(&self, key: &str, value: &str) -> bool {
        self.keys.contains(&key) && self.only.is_none_or(|only| only == value)
    }

    fn silences_entry(&self, entry: &Entry) -> bool {
        self.keys.contains(&entry.key.path) && self.silences(entry.key.path, &entry.value.to_string())
    }

    /// The keys that must all be off.
    fn deciding(&self) -> impl Iterator<Item = &'static str> {
        [self.key].into_iter().chain(self.and)
    }

    /// The weakest layer that is one with the layer that decides; 0 if none does.
    fn first_layer(&self, stack: &Stack) -> usize {
        let layers = &stack.layers;
        let decides = |path: &str| self.deciding().any(|key| key == path);
        let sets = |index: &usize| layers[*index].entries.iter().any(|entry| decides(entry.key.path));
        match (0..layers.len()).rev().find(sets) {
            Some(last) => (0..=last)
                .rev()
                .take_while(|index| layers[*index].said_by.is_one_with(&layers[last].said_by))
                .last()
                .unwrap_or(last),
            None if self.deciding().any(|key| stack.unset.contains(&key)) => layers.len(),
            None => 0,
        }
    }
}

/// The value that the layers give to a key, as TOML.
fn value_of(stack: &Stack, key: &'static str) -> String {
    match (stack.winner(key), known(key).default) {
        (Some(entry), _) => entry.value.to_string(),
        (None, Fallback::Is(text)) => text.to_owned(),
        (None, _) => String::new(),
    }
}

/// Drops what is without effect below the layer that made it so, and reports the rest.
pub(super) fn apply(stack: &mut Stack, diagnostics: &mut Diagnostics) {
    for switch in SWITCHES {
        let is_off = |key| !stack.is_broken(key) && (switch.is_off)(&value_of(stack, key));
        if stack.is_partial || !switch.deciding().all(is_off) {
            continue;
        }
        let value = value_of(stack, switch.key);
        let first = switch.first_layer(stack);
        for layer in &mut stack.layers[..first] {
            layer.entries.retain(|entry| !switch.silences_entry(entry));
        }
        let set = stack.winner(switch.key).map(|entry| entry.place.clone());
        let entries = stack.layers[first..].iter().flat_map(|layer| &layer.entries);
        for entry in entries.filter(|entry| switch.silences_entry(entry)) {
            let shown = match switch.only {
                Some(only) => format!("`{} = {only}`", entry.key.path),
                None => format!("`{}`", entry.key.path),
            };
            let and = switch.and.map_or_else(String::new, |key| format!(" and {key} = {value}"));
            let title = format!("{shown} has no effect with {} = {value}{and}", switch.key);
            let mut problem = Problem::new(title, entry.place.clone());
            match &set {
                Some(place) => problem = problem.context(place.clone(), "that is set here"),
                None => problem = problem.help(format!("nothing sets `{}`: that is its default", switch.key)),
            }
            diagnostics.push(problem.help(format!("remove it, or {}", switch.remedy)));
        }
    }
}

/// Why a key of a resolved recipe has no effect: the key that turns it off with its value, such as `sample.every = 0`.
/// `None` for a key that has one.
#[must_use]
pub fn silenced_by(recipe: &Recipe, key: &str) -> Option<String> {
    let leaves: Vec<_> = values(recipe).into_iter().map(|(key, value)| (key, toml(&value))).collect();
    let value = |key: &str| leaves.iter().find(|(name, _)| *name == key).map_or("", |(_, value)| value);
    let off = |switch: &&Switch| {
        switch.silences(key, value(key)) && switch.deciding().all(|key| (switch.is_off)(value(key)))
    };
    SWITCHES.iter().find(off).map(|switch| format!("{} = {}", switch.key, value(switch.key)))
}
