//! What differs between runs: the keys of their recipes, the data behind the paths, and the machines.

use super::metrics::metrics;
use super::runs::Run;
use crate::recipe::keys::{Identity, KEYS, Key, SEED, find};
use crate::recipe::{is_default, rank, spelled};
use crate::wording::count;
use serde_json::Value as Json;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write;

/// A fact of a run.
type Fact = fn(&Run) -> &str;

/// Facts about where a run was trained that are shown when they differ.
const FACTS: &[(&str, Fact)] = &[
    ("run.device", |run| &run.facts.device),
    ("run.host", |run| &run.facts.host),
    ("run.processor", |run| &run.facts.processor),
    ("run.simd", |run| &run.facts.simd),
    ("run.version", |run| &run.facts.version),
];

/// How the recipes of some runs are related.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Differences {
    /// Keys with the same value in every run, with it.
    pub shared: Vec<(String, Json)>,
    /// Keys whose values differ, or that some run does not have; in the order of a written recipe.
    pub differing: Vec<String>,
    /// How many keys that this version does not know are not compared, because there are too many.
    pub left_out: usize,
}

impl Differences {
    /// That some keys are not compared, if so.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        let keys = count(self.left_out, "further key");
        let are = if self.left_out == 1 { "is" } else { "are" };
        (self.left_out > 0)
            .then(|| format!("{keys} of recipes that this version does not know {are} not compared"))
    }
}

/// As many keys that this version does not know are compared: the first ones by their names.
const MOST_UNKNOWN: usize = 64;

/// Compares the recipes of runs. One whose recipe cannot be read differs in no key that is known.
#[must_use]
pub fn differences<R: Borrow<Run>>(runs: &[R]) -> Differences {
    let runs = runs.iter().map(Borrow::borrow).filter(|run: &&Run| !run.recipe.is_empty());
    let runs: Vec<&Run> = runs.collect();
    // which stand behind the known ones
    let unknown =
        runs.iter().flat_map(|run| run.recipe.iter().rev().take_while(|(key, _)| find(key).is_none()));
    let unknown: BTreeSet<&str> = unknown.map(|(key, _)| key.as_str()).collect();
    let left_out: HashSet<&str> = unknown.into_iter().skip(MOST_UNKNOWN).collect();
    let mut values: BTreeMap<(usize, &str), Vec<Option<&Json>>> = BTreeMap::new();
    for (i, run) in runs.iter().enumerate() {
        let is_compared = |key: &str| match find(key) {
            Some(key) => key.is_compared,
            None => !left_out.contains(key),
        };
        for (key, value) in run.recipe.iter().filter(|(key, _)| is_compared(key)) {
            values.entry((rank(key), key)).or_insert_with(|| vec![None; runs.len()])[i] = Some(value);
        }
    }
    let mut found = Differences { left_out: left_out.len(), ..Differences::default() };
    for ((_, key), values) in values {
        let Some(known) = values.iter().flatten().next() else { continue };
        let is_same = |value: &Option<&Json>| match value {
            Some(value) => value == known,
            None => goes_without(key, known),
        };
        match same_contents(&runs, key).unwrap_or_else(|| values.iter().all(is_same)) {
            true => found.shared.push((key.to_owned(), (*known).clone())),
            false => found.differing.push(key.to_owned()),
        }
    }
    for (name, fact) in FACTS {
        let known: BTreeSet<&str> =
            runs.iter().map(|run| fact(run)).filter(|fact| !fact.is_empty()).collect();
        if known.len() > 1 {
            found.differing.push((*name).to_owned());
        }
    }
    found
}

/// Whether a recipe that lacks a key says the same as one with this value: one of a version before the key came to be.
fn goes_without(key: &str, value: &Json) -> bool {
    find(key).is_some_and(|key| matches!(key.identity, Identity::UnlessDefault)) && is_default(key, value)
}

/// Whether a path leads to the same contents in all runs; `None` where that is not on record, or the key is no path.
fn same_contents(runs: &[&Run], key: &str) -> Option<bool> {
    // no path: what is on record then, such as a part that was split off, follows from another key
    let is_empty =
        |run: &&Run| run.value(key).is_some_and(|value| value.as_array().is_some_and(Vec::is_empty));
    if runs.iter().all(is_empty) {
        return None;
    }
    let digests: Option<Vec<_>> = runs.iter().map(|run| digest(run, key)).collect();
    let digests = digests?;
    Some(digests.iter().all(|digest| digest == &digests[0]))
}

/// The digest of what a key names, if it enters the identity by its contents and the digest is on record.
pub(super) fn digest<'a>(run: &'a Run, key: &str) -> Option<&'a String> {
    let key = find(key).filter(|key| matches!(key.identity, Identity::Contents))?;
    run.facts.digests.get(key.leaf())
}

/// The value of a key or fact of a run as a report shows it; `None` where the run has none.
#[must_use]
pub fn value(run: &Run, key: &str) -> Option<Json> {
    match FACTS.iter().find(|(name, _)| *name == key) {
        Some((_, fact)) => Some(fact(run)).filter(|fact| !fact.is_empty()).map(Json::from),
        None => run.value(key).cloned(),
    }
}

/// A value for people: strings without quotes, numbers in the fewest digits.
#[must_use]
pub fn shown(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Number(number) if number.is_f64() => {
            super::numbers::compact(number.as_f64().unwrap_or(f64::NAN))
        }
        Json::Object(branch) => branched(branch).unwrap_or_else(|| spelled(value)),
        other => spelled(other),
    }
}

/// What a run branched off, such as `wsd-01234567@300`; `None` for a table that says something else.
fn branched(branch: &serde_json::Map<String, Json>) -> Option<String> {
    let run = branch.get("run")?.as_str()?;
    let run = run.trim_end_matches('/').rsplit('/').next().unwrap_or(run);
    let step = branch.get("step").map_or_else(String::new, |step| format!("@{step}"));
    let alone = if branch.get("optimizer") == Some(&Json::Bool(false)) { " (weights)" } else { "" };
    Some(format!("{run}{step}{alone}"))
}

/// The order of two values: numbers by size, then words by the alphabet, then nothing.
#[must_use]
pub fn order(a: Option<Json>, b: Option<Json>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            (a, b) if a.is_some() || b.is_some() => b.is_some().cmp(&a.is_some()),
            _ => shown(&a).cmp(&shown(&b)),
        },
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

/// The shortest name of a key among some: its last part if no other ends so and no figure is called that.
#[must_use]
pub fn short<'a>(key: &'a str, among: &[String]) -> &'a str {
    let leaf = key.rsplit('.').next().unwrap_or(key);
    let alike = among.iter().filter(|other| other.rsplit('.').next() == Some(leaf)).count();
    let is_figure = metrics().iter().any(|metric| metric.name == leaf || metric.title == leaf);
    if alike > 1 || is_figure { key } else { leaf }
}

/// What tells a run from the others, for a legend: `lr 6e-4, precision bf16`; its id if nothing does.
#[must_use]
pub fn label(run: &Run, keys: &[String]) -> String {
    let part = |key: &String| {
        let text = value(run, key).map_or_else(|| "none".to_owned(), |value| shown(&value));
        format!("{} {text}", short(key, keys))
    };
    match keys.is_empty() {
        true => run.id.clone(),
        false => keys.iter().map(part).collect::<Vec<_>>().join(", "),
    }
}

/// Whether a key decides only what is kept and shown. A key that only another version knows is judged by its table.
fn is_shown_only(path: &str) -> bool {
    let never = |key: &Key| matches!(key.identity, Identity::Never);
    match (find(path), path.split_once('.')) {
        (Some(key), _) => never(key),
        (None, Some((table, _))) => {
            let mut keys = KEYS.iter().filter(|key| key.table() == table).peekable();
            keys.peek().is_some() && keys.all(never)
        }
        (None, None) => false,
    }
}

/// What a key of a run says for a comparison: the digest of what it names where that is on record, else the value.
pub(super) fn meant(run: &Run, key: &str) -> Option<String> {
    digest(run, key).cloned().or_else(|| Some(value(run, key)?.to_string()))
}

/// What all replicas of a run have in common: its recipe without the seed, without the keys that are not part of a
/// run's identity, and with the data by digest where that is known.
#[must_use]
pub fn replica_key(run: &Run) -> String {
    if run.recipe.is_empty() {
        // nothing is known about it, so it is like no other
        return run.path.display().to_string();
    }
    let computes = |path: &str| path != SEED && !is_shown_only(path);
    let counts = |(key, value): &&(String, Json)| computes(key) && !goes_without(key, value);
    let mut common = String::new();
    for (key, value) in run.recipe.iter().filter(counts) {
        let _ = match digest(run, key) {
            Some(digest) => writeln!(common, "{key}={digest}"),
            None => writeln!(common, "{key}={value}"),
        };
    }
    common
}
