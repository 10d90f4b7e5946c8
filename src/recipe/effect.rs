//! Finds and drops entries that a switch leaves without effect (`keys/switch.rs`): a prompt has none where no text is
//! generated.
//!
//! Setting a key that has no effect is an error. A layer that turns something off need not tidy up the weaker layers,
//! though: what they set is dropped, as it is under a changed `schedule.kind`. The resolved recipe then holds the
//! default, and a written one leaves the key out.

use super::diagnostics::{Diagnostics, Problem};
use super::keys::{Fallback, KEYS, Key, Switch, find, known};
use super::layers::Stack;
use super::leaves::{toml, values};
use super::parse::Entry;
use super::schema::Recipe;
use serde_json::Value as Json;
use std::ptr;

/// Every switch that some row names.
fn switches() -> impl Iterator<Item = &'static Switch> {
    let named = |key: &Key| key.silenced_by;
    let first = move |(i, switch): &(usize, &'static Switch)| {
        !KEYS.iter().filter_map(named).take(*i).any(|earlier| ptr::eq(earlier, *switch))
    };
    KEYS.iter().filter_map(named).enumerate().filter(first).map(|(_, switch)| switch)
}

/// Whether a switch that is off leaves an entry without effect.
fn silences(switch: &'static Switch, entry: &Entry) -> bool {
    entry.key.silenced_by.is_some_and(|by| ptr::eq(by, switch)) && switch.silences(&entry.value.to_string())
}

/// The weakest layer that counts as one with the strongest that sets one of these keys, or unsets one; 0 if no layer
/// does.
fn first_layer_of(keys: &[&str], stack: &Stack) -> usize {
    let layers = &stack.layers;
    let decides = |path: &str| keys.contains(&path);
    let sets = |index: &usize| layers[*index].entries.iter().any(|entry| decides(entry.key.path));
    match (0..layers.len()).rev().find(sets) {
        Some(last) => (0..=last)
            .rev()
            .take_while(|index| layers[*index].said_by.is_one_with(&layers[last].said_by))
            .last()
            .unwrap_or(last),
        None if stack.unset.iter().any(|path| decides(path)) => stack.first_flag(),
        None => 0,
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

/// Drops entries without effect from the layers below the one that turns them off, and reports the others.
pub(super) fn apply(stack: &mut Stack, diagnostics: &mut Diagnostics) {
    for switch in switches() {
        let is_broken = switch.keys.iter().any(|key| stack.is_broken(key));
        if stack.is_partial || is_broken || !switch.is_off(|key| value_of(stack, key)) {
            continue;
        }
        let first = first_layer_of(switch.keys, stack);
        for layer in &mut stack.layers[..first] {
            layer.entries.retain(|entry| !silences(switch, entry));
        }
        let entries = stack.layers[first..].iter().flat_map(|layer| &layer.entries);
        for entry in entries.filter(|entry| silences(switch, entry)) {
            diagnostics.push(without_effect(switch, entry, stack));
        }
    }
}

/// Of two keys that say the same in different terms, drops the one that weaker layers set. In one layer, or in several
/// that count as one, both stay, which is an error.
pub(super) fn settle_forms(stack: &mut Stack) {
    for key in KEYS {
        let Some(other) = key.instead_of else { continue };
        for (stronger, weaker) in [(key.path, other), (other, key.path)] {
            // a key that nothing sets any more, after an --unset, replaces none
            if stack.winner(stronger).is_none() {
                continue;
            }
            let first = first_layer_of(&[stronger], stack);
            if stack.layers[first..]
                .iter()
                .flat_map(|layer| &layer.entries)
                .all(|entry| entry.key.path != weaker)
            {
                for layer in &mut stack.layers[..first] {
                    layer.entries.retain(|entry| entry.key.path != weaker);
                }
            }
        }
    }
}

fn without_effect(switch: &Switch, entry: &Entry, stack: &Stack) -> Problem {
    let shown = match switch.only {
        Some(only) => format!("`{} = {only}`", entry.key.path),
        None => format!("`{}`", entry.key.path),
    };
    let values = switch.keys.iter().map(|key| (key, value_of(stack, key)));
    let off: Vec<String> = values
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| format!("{key} = {value}"))
        .collect();
    let title = format!("{shown} has no effect with {}", off.join(" and "));
    let problem = Problem::new(title, entry.place.clone());
    let cause = switch.keys[0];
    let problem = match stack.winner(cause) {
        Some(set) => problem.context(set.place.clone(), "that is set here"),
        None => problem.help(format!("nothing sets `{cause}`: that is its default")),
    };
    problem.help(format!("remove it, or {}: {cause} = {}, for example", switch.remedy, switch.on))
}

/// Whether a switch is off, given the values of a resolved recipe.
pub(super) fn is_off(switch: &Switch, values: &[(&'static Key, Json)]) -> bool {
    switch.is_off(|path| value_in(values, path))
}

/// The value of a key as TOML; empty if the recipe has none.
fn value_in(values: &[(&'static Key, Json)], path: &str) -> String {
    values.iter().find(|(key, _)| key.path == path).map_or_else(String::new, |(_, value)| toml(value))
}

/// Why a key of a resolved recipe has no effect: the key that turns it off with its value, such as `sample.every = 0`.
/// `None` for a key that has one.
#[must_use]
pub fn silenced_by(recipe: &Recipe, key: &str) -> Option<String> {
    let switch = find(key)?.silenced_by?;
    let values = values(recipe);
    let cause = switch.keys[0];
    (switch.silences(&value_in(&values, key)) && is_off(switch, &values))
        .then(|| format!("{cause} = {}", value_in(&values, cause)))
}
