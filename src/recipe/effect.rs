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
        is_off: |value| value == "[]",
        keys: &["eval.every", "eval.batches"],
        only: None,
        remedy: "name validation data: data.val = \"builtin:lipsum:seed=2\", for example",
    },
    Switch {
        key: "sample.every",
        is_off: |value| value == "0",
        keys: &["sample.prompt", "sample.tokens"],
        only: None,
        remedy: "have text generated: sample.every = 250, for example",
    },
    Switch {
        key: "compute.device",
        is_off: |value| value.starts_with("\"cuda"),
        keys: &["compute.threads"],
        only: None,
        remedy: "choose compute.device = \"cpu\"",
    },
    Switch {
        key: "compute.engine",
        is_off: |value| value == "\"dfdx\"",
        keys: &["compute.attention"],
        only: Some("\"flash\""),
        remedy: "write \"naive\": the dfdx engine always materializes the attention matrix",
    },
];

impl Switch {
    fn silences(&self, key: &str, value: &str) -> bool {
        self.keys.contains(&key) && self.only.is_none_or(|only| only == value)
    }

    fn silences_entry(&self, entry: &Entry) -> bool {
        self.keys.contains(&entry.key.path) && self.silences(entry.key.path, &entry.value.to_string())
    }

    /// The value that the layers give to the key.
    fn value(&self, stack: &Stack) -> String {
        match (stack.winner(self.key), known(self.key).default) {
            (Some(entry), _) => entry.value.to_string(),
            (None, Fallback::Is(text)) => text.to_owned(),
            (None, _) => String::new(),
        }
    }

    /// The weakest layer that is one with the layer that decides; 0 if none does.
    fn first_layer(&self, stack: &Stack) -> usize {
        let layers = &stack.layers;
        let sets = |index: &usize| layers[*index].entries.iter().any(|entry| entry.key.path == self.key);
        match (0..layers.len()).rev().find(sets) {
            Some(last) => (0..=last)
                .rev()
                .take_while(|index| layers[*index].said_by.is_one_with(&layers[last].said_by))
                .last()
                .unwrap_or(last),
            None if stack.unset.contains(&self.key) => layers.len(),
            None => 0,
        }
    }
}

/// Drops what is without effect below the layer that made it so, and reports the rest.
pub(super) fn apply(stack: &mut Stack, diagnostics: &mut Diagnostics) {
    for switch in SWITCHES {
        let value = switch.value(stack);
        if stack.is_partial || stack.is_broken(switch.key) || !(switch.is_off)(&value) {
            continue;
        }
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
            let title = format!("{shown} has no effect with {} = {value}", switch.key);
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
    let off = |switch: &&Switch| switch.silences(key, value(key)) && (switch.is_off)(value(switch.key));
    SWITCHES.iter().find(off).map(|switch| format!("{} = {}", switch.key, value(switch.key)))
}
