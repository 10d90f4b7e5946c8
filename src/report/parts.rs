//! What parts of a run were trained with that its recipe and its record do not say: a run may be continued under other
//! values of some keys, and on another device, of which its recipe and record tell one.

use super::chosen::RECOMPUTE;
use super::notes::listed;
use super::scan::last_row;
use super::spans::left;
use crate::recipe::keys::{KEYS, Key, OnResume, Slows, find_table};
use crate::recipe::{rank, spelled};
use crate::run::record::Session;
use crate::run::{RunRecord, dir};
use crate::wording::{count, task_name};
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

/// The keys of tasks, of which a session has the names on record.
const TASKS: &str = "eval.tasks";
const HELLASWAG: &str = "eval.hellaswag";
/// The key that does not tell the device, which is on record.
const DEVICE: &str = "compute.device";

/// What parts of a run were trained with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts {
    /// What its recipe and record do not say, as `key=value` or `no key`.
    pub otherwise: Vec<String>,
    /// Those of them that decide how fast a step is, where most steps were trained with them: what is said of speeds is
    /// a median. Where none have most, each with its share.
    pub of_speed: Vec<String>,
    /// Those of them that decide how many seconds a run takes, each with its share of the steps.
    pub of_seconds: Vec<String>,
    /// Those of them that decide how much memory a step takes.
    pub of_memory: Vec<String>,
    /// Whether a process trained some of it that had turned to other recipes before, which leave memory in use.
    pub is_after_others: bool,
    /// Whether a process has read a checkpoint to go on from it, or the weights that the run began with.
    pub has_read: bool,
}

impl Parts {
    /// Holds the sessions that have trained steps against the recipe and the record of their run, which lies at `path`.
    /// Where the recipe cannot be read, nothing is known.
    pub(super) fn new(record: &RunRecord, recipe: &[(String, Json)], path: &Path) -> Self {
        if recipe.is_empty() {
            return Self::default();
        }
        let with_steps = with_steps(record, path);
        let found = with_steps.iter().map(|(session, steps)| (found(session, record, recipe), *steps));
        let found: Vec<(BTreeSet<Found>, u64)> = found.collect();
        let all: BTreeSet<Found> = found.iter().flat_map(|(found, _)| found.iter().cloned()).collect();
        let of_speed = Shares::of(&found, Slows::Steps);
        let has_begun = record.digests.contains_key("init_from");
        Self {
            of_speed: of_speed.of_most().unwrap_or_else(|| of_speed.of_each()),
            of_seconds: Shares::of(&found, Slows::Run).of_each(),
            of_memory: names(&slowing(&all, Slows::Steps)),
            otherwise: all.into_iter().map(|found| found.said).collect(),
            is_after_others: with_steps.iter().any(|(session, _)| session.recipes_before > 0),
            has_read: has_begun || with_steps.len() > 1,
        }
    }

    /// What a reader of a comparison should know, as a phrase.
    pub(super) fn note(&self) -> Option<String> {
        let is_any = !self.otherwise.is_empty();
        is_any.then(|| format!("part of it was trained with {}", listed(self.otherwise.clone())))
    }
}

/// Something that a session was trained with and that recipe and record do not say.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    /// Its place in the order of keys.
    place: usize,
    /// What it makes slower.
    slows: Slows,
    /// How it is said.
    said: String,
    /// Whether it may make a step so much slower that few steps are most of the time.
    is_of_machine: bool,
}

fn found(session: &Session, record: &RunRecord, recipe: &[(String, Json)]) -> BTreeSet<Found> {
    let mut all = BTreeSet::new();
    let mut found = |place, slows, said| {
        all.insert(Found { place, slows, said, is_of_machine: false });
    };
    for (key, usual) in CHANGEABLE.iter() {
        let own = recipe.iter().find(|(path, _)| path == key.path).map(|(_, value)| spelled(value));
        let Some(then) = value_then(session, key, &own) else { continue };
        let (own, then) = (own.or_else(|| usual.clone()), then.or_else(|| usual.clone()));
        if own != then {
            let said = match then {
                Some(then) => format!("{}={then}", key.path),
                None => format!("no {}", key.path),
            };
            found(rank(key.path), slowed(key), said);
        }
    }
    if let (Some(then), Some(own)) = (&session.tasks, tasks_of(recipe))
        && *then != own
    {
        let said = match then.is_empty() {
            true => format!("no {TASKS}"),
            false => format!("{TASKS} of {}", listed(then.clone())),
        };
        found(rank(TASKS), Slows::Run, said);
    }
    let last = record.plan.get("recompute").and_then(Json::as_str);
    let is_auto = recipe.iter().any(|(key, value)| key == RECOMPUTE && value.as_str() == Some("auto"));
    let is_other = |then: &&str| is_auto && last.is_some_and(|last| last != *then);
    if let Some(then) = session.recompute.as_deref().filter(is_other) {
        found(rank(RECOMPUTE), Slows::Steps, format!("{RECOMPUTE}={then}"));
    }
    // machines of one kind have different names, and device and processor tell their kind
    let threads = |threads: usize| (threads > 0).then(|| threads.to_string());
    let processor = record.peak.as_ref().map(|peak| peak.processor.as_str());
    // those that were asked for are a setting
    let is_automatic = session.settings.as_ref().is_none_or(|set| !set.contains_key("compute.threads"));
    let of_session = session.threads.filter(|_| is_automatic).and_then(threads);
    let of_record = threads(record.threads);
    let last_ranks = record.sessions.last().and_then(|last| last.ranks.as_deref());
    for (name, then, last, is_of_machine) in [
        ("run.device", &session.device, Some(record.device.as_str()), true),
        ("run.processor", &session.processor, processor, false),
        ("run.simd", &session.simd, record.simd.as_deref(), false),
        ("run.threads", &of_session, of_record.as_deref(), is_factor(session.threads, record.threads)),
        ("run.ranks", &session.ranks, last_ranks, true),
    ] {
        let other = then.as_deref().filter(|then| last.is_some_and(|last| kind(then) != kind(last)));
        if let Some(other) = other {
            let said = format!("{name}={other}");
            all.insert(Found { place: KEYS.len(), slows: Slows::Steps, said, is_of_machine });
        }
    }
    all
}

/// What another value of a key makes slower.
fn slowed(key: &Key) -> Slows {
    match find_table(key.table()) {
        Some(table) if key.path != DEVICE => table.slows,
        _ => Slows::Nothing,
    }
}

/// The names of the tasks that a recipe's evaluations score; `None` where a pattern leaves them open.
fn tasks_of(recipe: &[(String, Json)]) -> Option<Vec<String>> {
    let value = |key: &str| recipe.iter().find(|(path, _)| path == key).map(|(_, value)| value);
    if value("eval.every").and_then(Json::as_u64) == Some(0) {
        return Some(Vec::new());
    }
    let mut names: Vec<String> = value(HELLASWAG).map(|_| "hellaswag".to_owned()).into_iter().collect();
    for file in value(TASKS).and_then(Json::as_array).into_iter().flatten() {
        let file = file.as_str().filter(|file| !file.contains(['*', '?', '[']))?;
        names.push(task_name(Path::new(file)));
    }
    Some(names)
}

/// Whether one number of threads is that many times another that a few steps with it may be most of the time.
fn is_factor(one: Option<usize>, other: usize) -> bool {
    const FACTOR: usize = 4;
    one.is_some_and(|one| one.max(other) >= FACTOR * one.min(other))
}

/// What a device is called, without its number among those of one machine.
fn kind(device: &str) -> &str {
    device.split_once(" (").map_or(device, |(_, name)| name)
}

/// The keys that a comparison shows and a resumed run may change, with their defaults. Of what a path leads to the
/// contents count.
static CHANGEABLE: LazyLock<Vec<(&Key, Option<String>)>> = LazyLock::new(|| {
    let may_change = |key: &&Key| key.on_resume == OnResume::Free && key.is_compared && !key.is_path();
    let default = |key: &Key| key.default_json().map(spelled);
    KEYS.iter().filter(may_change).map(|key| (key, default(key))).collect()
});

/// What decides so much, of what a session was trained with.
fn slowing(found: &BTreeSet<Found>, least: Slows) -> Vec<Found> {
    found.iter().filter(|found| found.slows >= least).cloned().collect()
}

/// How these are said.
fn names(found: &[Found]) -> Vec<String> {
    found.iter().map(|found| found.said.clone()).collect()
}

/// How many steps of a run were trained with what.
struct Shares {
    of: BTreeMap<Vec<Found>, u64>,
    all: u64,
}

impl Shares {
    fn of(sessions: &[(BTreeSet<Found>, u64)], least: Slows) -> Self {
        let (mut of, mut all): (BTreeMap<_, u64>, u64) = Default::default();
        for (found, steps) in sessions {
            let sum = of.entry(slowing(found, least)).or_default();
            *sum = sum.saturating_add(*steps);
            all = all.saturating_add(*steps);
        }
        Self { of, all }
    }

    /// What most steps were trained with.
    fn of_most(&self) -> Option<Vec<String>> {
        let is_most = |(_, steps): &(&Vec<Found>, &u64)| **steps > self.all / 2;
        self.of.iter().find(is_most).map(|(found, _)| names(found))
    }

    /// What was trained with something else than the recipe and the record say, in eighths of all steps: runs that
    /// moved at about the same step are as long as each other. Of a machine on which a few steps may be most of the
    /// time, fewer are counted.
    fn of_each(&self) -> Vec<String> {
        let eighths = |steps: u64| (steps as f64 / self.all.max(1) as f64 * 8.0).round();
        let others = self.of.iter().filter(|(found, _)| !found.is_empty());
        let others = others.filter_map(|(found, steps)| {
            let is_of_machine = found.iter().any(|found| found.is_of_machine);
            match (names(found).join(" and "), eighths(*steps)) {
                (names, 0.0) => is_of_machine.then(|| format!("{names} for {}", count(*steps, "step"))),
                (names, share) => Some(format!("{names} for {share}/8")),
            }
        });
        others.collect()
    }
}

/// The sessions of which steps are left, with how many these are. One that has not said its end has come as far as the
/// log of the run at `path`.
fn with_steps<'a>(record: &'a RunRecord, path: &Path) -> Vec<(&'a Session, u64)> {
    let logged = || {
        let last = last_row(&path.join(dir::TRAIN_CSV), &["step"]).ok().flatten();
        last.map_or(0, |row| row[0] as u64 + 1)
    };
    let steps = |(session, left): (&'a Session, Option<[u64; 2]>)| {
        let [from, to] = left?;
        let to = if to == u64::MAX { logged().max(from.saturating_add(1)) } else { to };
        Some((session, to - from))
    };
    record.sessions.iter().zip(left(&record.sessions)).filter_map(steps).collect()
}

/// The value of a key in a session as TOML, `Some(None)` without one; `None` where that is not on record. Sessions of
/// earlier versions say only what `--set` changed in the recipe as it was then.
fn value_then(session: &Session, key: &Key, own: &Option<String>) -> Option<Option<String>> {
    if let Some(settings) = &session.settings {
        return Some(settings.get(key.path).map(spelled));
    }
    let value = |set: &String| Some(set.strip_prefix(key.path)?.strip_prefix('=')?.to_owned());
    match session.overrides.iter().find_map(value) {
        Some(value) => Some(Some(value).filter(|value| value != "unset")),
        None => Some(own.clone()),
    }
}
