//! What parts of a run were trained with that its recipe and its record do not say: a run may be continued under other
//! values of some keys, and on another device, of which its recipe and record tell one.

use super::chosen::RECOMPUTE;
use super::notes::listed;
use super::scan::last_row;
use crate::recipe::keys::{KEYS, Key, OnResume, Slows, find_table};
use crate::recipe::{rank, spelled};
use crate::run::facts::unix_seconds;
use crate::run::record::Session;
use crate::run::{RunRecord, dir};
use crate::wording::task_name;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;
use std::time::SystemTime;

/// The keys of tasks, of which a session has the names on record.
const TASKS: &str = "eval.tasks";
const HELLASWAG: &str = "eval.hellaswag";
/// The key that does not tell the device, which is on record.
const DEVICE: &str = "compute.device";

/// Seconds for which a process that was killed may have trained after it had written its last row.
const AFTER_LAST: u64 = 3600;

/// When and where a process trained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The machine with its processor, and the device, as far as they are on record.
    pub place: Option<[String; 2]>,
    /// Seconds since 1970, from and to.
    pub seconds: [u64; 2],
    /// Until when it is known to have trained: a process that was killed has ended at some time between this and the
    /// end of `seconds`.
    pub until: u64,
    /// Whether all of that is on record.
    pub is_certain: bool,
}

impl Span {
    /// Those of the sessions of a run. One without an end has ended when the next one began.
    pub(super) fn of_each(sessions: &[Session]) -> Vec<Self> {
        let next = sessions.iter().skip(1).map(Some).chain([None]);
        let span = |(session, next): (&Session, Option<&Session>)| {
            // containers of several machines may have one name
            let processor = session.processor.as_deref().unwrap_or_default();
            let host = session.host.as_ref().map(|host| format!("{host}\n{processor}"));
            let place = host.zip(session.device.clone());
            let started = unix_seconds(&session.started);
            let ended = session.ended.as_deref().and_then(unix_seconds);
            let written = session.last_written.as_deref().and_then(unix_seconds);
            let at_most = || next.and_then(|next| unix_seconds(&next.started)).unwrap_or(u64::MAX);
            Self {
                until: ended.or(written).or(started).unwrap_or(0),
                is_certain: place.is_some() && started.is_some() && ended.is_some(),
                place: place.map(|(host, device)| [host, device]),
                seconds: [started.unwrap_or(0), ended.unwrap_or_else(at_most)],
            }
        };
        sessions.iter().zip(next).map(span).collect()
    }

    /// Those of a run that trains now are known until now.
    pub(super) fn go_on(spans: &mut [Self]) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if let Some(span) = spans.last_mut().filter(|span| span.seconds[1] == u64::MAX) {
            span.is_certain = span.place.is_some() && span.seconds[0] > 0;
            // the clock of another machine may be behind
            let now = now.max(span.seconds[0]);
            (span.seconds[1], span.until) = (now, now);
        }
    }

    /// The host that it was on.
    pub(super) fn host(&self) -> Option<&str> {
        self.place.as_ref()?[0].lines().next()
    }

    /// Whether some of it is on record.
    pub(super) fn is_traced(&self) -> bool {
        self.place.is_some() && self.until > self.seconds[0] && self.seconds[0] > 0
    }

    /// It as far as it is known to have trained, and what it may have trained besides.
    pub(super) fn halves(&self) -> [Self; 2] {
        let [from, to] = self.seconds;
        // clocks may have been set back
        let until = self.until.max(from).min(to);
        let half = |seconds, is_certain| Self { seconds, is_certain, ..self.clone() };
        let is_placed = self.place.is_some() && from > 0;
        [half([from, until], self.is_certain || is_placed), half([until, to], self.is_certain)]
    }

    /// Bounds the end of the last session of a run that is not trained any more by when its logs were written last.
    /// One that has finished has said so, and so has not the process that this is about.
    pub(super) fn bound_last(spans: &mut [Self], run: &Path, is_finished: bool) {
        let Some(span) = spans.last_mut().filter(|span| span.seconds[1] == u64::MAX) else { return };
        let written = |log: &&str| run.join(log).metadata().and_then(|found| found.modified()).ok();
        let last = [dir::TRAIN_CSV, dir::VAL_CSV, dir::SAMPLES].iter().filter_map(written).max();
        let last = last.and_then(|last| last.duration_since(SystemTime::UNIX_EPOCH).ok());
        // one that began later has written none
        if let Some(last) = last.map(|last| last.as_secs()).filter(|last| *last >= span.seconds[0]) {
            span.seconds[1] = last.saturating_add(AFTER_LAST);
            // the log of a copy is younger than the seconds in it
            let trained = last_row(&run.join(dir::TRAIN_CSV), &["elapsed_s"]).ok().flatten();
            let trained = trained.map_or(0, |row| row[0] as u64);
            let until = last.min(span.seconds[0].saturating_add(trained));
            span.until = if is_finished { span.until } else { until };
        }
    }
}

/// What parts of a run were trained with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts {
    /// What its recipe and record do not say, as `key=value` or `no key`.
    pub otherwise: Vec<String>,
    /// Those of them that decide how fast a step is, each with whether most steps were trained so: what is said of
    /// speeds is a median.
    pub of_speed: Vec<String>,
    /// Those of them that decide how many seconds a run takes, each with what part of the steps was trained so.
    pub of_seconds: Vec<String>,
    /// Whether a process trained some of it that had turned to other recipes before, which leave memory in use.
    pub is_after_others: bool,
    /// Whether a process has read a checkpoint to go on from it, or the weights that the run began with.
    pub has_read: bool,
}

impl Parts {
    /// Holds the sessions that have trained steps against the recipe and the record of their run. Where the recipe
    /// cannot be read, nothing is known.
    pub(super) fn new(record: &RunRecord, recipe: &[(String, Json)]) -> Self {
        if recipe.is_empty() {
            return Self::default();
        }
        let mut found: BTreeMap<(usize, Slows, String), u64> = BTreeMap::new();
        let mut all: u64 = 0;
        for (session, steps) in with_steps(record) {
            all = all.saturating_add(steps);
            let mut found = |place, slows, said| {
                let of: &mut u64 = found.entry((place, slows, said)).or_default();
                *of = of.saturating_add(steps);
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
            let is_auto =
                recipe.iter().any(|(key, value)| key == RECOMPUTE && value.as_str() == Some("auto"));
            let is_other = |then: &&str| is_auto && last.is_some_and(|last| last != *then);
            if let Some(then) = session.recompute.as_deref().filter(is_other) {
                found(rank(RECOMPUTE), Slows::Steps, format!("{RECOMPUTE}={then}"));
            }
            // machines of one kind have different names, and device and processor tell their kind
            let threads = |threads: usize| (threads > 0).then(|| threads.to_string());
            let processor = record.peak.as_ref().map(|peak| peak.processor.as_str());
            // those that were asked for are a setting
            let is_automatic =
                session.settings.as_ref().is_none_or(|set| !set.contains_key("compute.threads"));
            let of_session = session.threads.filter(|_| is_automatic).and_then(threads);
            let of_record = threads(record.threads);
            let last_ranks = record.sessions.last().and_then(|last| last.ranks.as_deref());
            for (name, then, last) in [
                ("run.device", &session.device, Some(record.device.as_str())),
                ("run.processor", &session.processor, processor),
                ("run.simd", &session.simd, record.simd.as_deref()),
                ("run.threads", &of_session, of_record.as_deref()),
                ("run.ranks", &session.ranks, last_ranks),
            ] {
                let other = then.as_deref().filter(|then| last.is_some_and(|last| kind(then) != kind(last)));
                if let Some(other) = other {
                    found(KEYS.len(), Slows::Steps, format!("{name}={other}"));
                }
            }
        }
        // runs that moved at nearly the same step are alike
        let slowing = |least: Slows, parts: u64| {
            let some = found.iter().filter(|((_, slows, _), _)| *slows >= least);
            let share = |steps: u64| (steps as f64 / all.max(1) as f64 * parts as f64).round();
            some.map(|((.., said), steps)| format!("{said} for {} of {parts} parts", share(*steps))).collect()
        };
        let (of_speed, of_seconds) = (slowing(Slows::Steps, 1), slowing(Slows::Run, EIGHTHS));
        let is_after_others = with_steps(record).any(|(session, _)| session.recipes_before > 0);
        let otherwise = found.into_keys().map(|(.., said)| said).collect();
        let has_begun = record.digests.contains_key("init_from");
        let has_read = has_begun || with_steps(record).nth(1).is_some();
        Self { otherwise, of_speed, of_seconds, is_after_others, has_read }
    }

    /// What a reader of a comparison should know, as a phrase.
    pub(super) fn note(&self) -> Option<String> {
        let is_any = !self.otherwise.is_empty();
        is_any.then(|| format!("part of it was trained with {}", listed(self.otherwise.clone())))
    }
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

/// Parts of a run that make a difference to its seconds.
const EIGHTHS: u64 = 8;

/// The sessions of which steps are left, with how many these are: a later one has not trained all of them again.
fn with_steps(record: &RunRecord) -> impl Iterator<Item = (&Session, u64)> {
    let mut end = u64::MAX;
    let mut kept: Vec<(&Session, u64)> = Vec::new();
    for session in record.sessions.iter().rev() {
        let to = session.to_step.unwrap_or(u64::MAX).min(end);
        if session.from_step < to {
            // one that trains still has come as far as the run
            let to = to.min(record.steps_done.max(session.from_step + 1));
            kept.push((session, to - session.from_step));
        }
        end = end.min(session.from_step);
    }
    kept.into_iter()
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
