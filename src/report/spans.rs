//! When and where the processes of a run trained, and what other runs of its directory did meanwhile.

use super::axis::{Axis, Cut};
use super::basis::is_of_time;
use super::metrics::Metric;
use super::runs::Run;
use super::scan::last_row;
use crate::regular::is_hidden;
use crate::run::facts::unix_seconds;
use crate::run::record::Session;
use crate::run::{RunRecord, RunStatus, dir, lock, status_and_record};
use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Seconds for which a process that was killed may have trained after it had written its last row.
const AFTER_LAST: u64 = 3600;

/// When and where a process trained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The machine with its processor, and the device, as far as they are on record.
    pub place: Option<[String; 2]>,
    /// Seconds since 1970, from and to.
    pub seconds: [u64; 2],
    /// When its process began, seconds since 1970.
    pub began: u64,
    /// Until when it is known to have trained: a process that was killed has ended at some time between this and the
    /// end of `seconds`.
    pub until: u64,
    /// Whether all of that is on record.
    pub is_certain: bool,
    /// Whether a step of it is left: a later process has not trained all of them again.
    pub is_left: bool,
}

impl Span {
    /// Those of the sessions of the run at `path`.
    pub(super) fn of_run(record: &RunRecord, path: &Path, status: RunStatus) -> Vec<Self> {
        let mut spans = Self::of_each(&record.sessions);
        match status {
            RunStatus::Running => Self::go_on(&mut spans),
            RunStatus::Created => {}
            _ => Self::bound_last(&mut spans, path, status == RunStatus::Finished),
        }
        spans
    }

    /// A session without an end has ended when the next one began.
    fn of_each(sessions: &[Session]) -> Vec<Self> {
        let next = sessions.iter().skip(1).map(Some).chain([None]);
        let span = |((session, next), left): ((&Session, Option<&Session>), Option<_>)| {
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
                is_left: left.is_some(),
                place: place.map(|(host, device)| [host, device]),
                began: started.unwrap_or(0),
                seconds: [started.unwrap_or(0), ended.unwrap_or_else(at_most)],
            }
        };
        sessions.iter().zip(next).zip(left(sessions)).map(span).collect()
    }

    /// Those of a run that trains now are known until now.
    fn go_on(spans: &mut [Self]) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if let Some(span) = spans.last_mut().filter(|span| span.seconds[1] == u64::MAX) {
            span.is_certain = span.place.is_some() && span.seconds[0] > 0;
            // the clock of another machine may be behind
            let now = now.max(span.seconds[0]);
            (span.seconds[1], span.until) = (now, now);
        }
    }

    /// Whether it has no length.
    pub(super) fn is_empty(&self) -> bool {
        self.seconds[0] >= self.seconds[1]
    }

    /// Whether some of it was at the same time as these seconds, from and to.
    pub(super) fn overlaps(&self, seconds: [u64; 2]) -> bool {
        self.seconds[0] < seconds[1] && seconds[0] < self.seconds[1]
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
    fn bound_last(spans: &mut [Self], run: &Path, is_finished: bool) {
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

/// Of each session the steps that are left of it, from and to; `None` where a later one has trained them all again. The
/// last one that has not said its end goes on without one.
pub(super) fn left(sessions: &[Session]) -> Vec<Option<[u64; 2]>> {
    let mut end = u64::MAX;
    let steps = |session: &Session| {
        let (from, to) = (session.from_step, session.to_step.unwrap_or(u64::MAX).min(end));
        end = end.min(from);
        (from < to).then_some([from, to])
    };
    let mut all: Vec<_> = sessions.iter().rev().map(steps).collect();
    all.reverse();
    all
}

/// The sessions of runs that lie in the same directories as these, each with the hash of its run, where figures of time
/// are shown. What cannot be read there is passed over: nobody has named it.
pub(super) fn beside(runs: &[Run], shown: &[Metric], cut: Option<Cut>) -> Vec<(String, Span)> {
    if !shown.iter().any(is_of_time) && cut.is_none_or(|cut| cut.axis != Axis::Time) {
        return Vec::new();
    }
    let whole = |path: &Path| path.canonicalize().ok();
    let named: BTreeSet<PathBuf> = runs.iter().filter_map(|run| whole(&run.path)).collect();
    let dirs: BTreeSet<&Path> = named.iter().filter_map(|run| run.parent()).collect();
    let entries = dirs.iter().filter_map(|dir| dir.read_dir().ok()).flatten().flatten();
    let may_be_run = |entry: &DirEntry| {
        !is_hidden(entry.file_name()) && entry.file_type().is_ok_and(|kind| !kind.is_file())
    };
    let others = entries.filter(may_be_run).map(|entry| entry.path());
    let others = others.filter(|path| !named.contains(path));
    let found = others.filter_map(|path| {
        let (status, record) = status_and_record(&path).ok()?;
        Some((status, record?, path))
    });
    let sessions = |(status, record, path): (RunStatus, RunRecord, PathBuf)| {
        // who may not ask whether it trains still has only the word of its record
        let is_held = || lock::is_held(&path.join(lock::FILE)).is_ok_and(|is_held| is_held);
        let is_said = status == RunStatus::Running && !is_held();
        let status = if is_said { RunStatus::Interrupted } else { status };
        // of one that nobody named, what is not known is passed over
        let spans = Span::of_run(&record, &path, status).into_iter();
        let known = spans.filter(|span| span.place.is_some() && span.seconds[1] < u64::MAX);
        known.map(move |span| (record.hash.clone(), span)).collect::<Vec<_>>()
    };
    found.take(MOST_BESIDE).flat_map(sessions).collect()
}

/// Other runs in a directory than these are not looked at.
const MOST_BESIDE: usize = 10_000;
