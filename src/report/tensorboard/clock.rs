//! When a step was taken, from what the logs and the record of a run say.
//!
//! A row has the seconds trained so far, and the record says when each session began. So the times in an event file are
//! a function of the run's files, and a second export finds them as they are.

use crate::run::facts::unix_seconds;
use crate::run::record::RunRecord;

/// The sessions of a run, and its steps so far.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// The first step of each session, and when it began, in seconds since 1970.
    sessions: Vec<(u64, f64)>,
    /// Each step, and when it ended.
    steps: Vec<(u64, f64)>,
    /// The session of the last step, the seconds trained before it and up to the last step.
    session: usize,
    before: f64,
    elapsed: f64,
}

impl Clock {
    /// The clock of a run with this record.
    pub(super) fn new(record: Option<&RunRecord>) -> Self {
        let seconds = |text: &str| unix_seconds(text).map(|seconds| seconds as f64);
        let sessions = record.map(|record| record.sessions.as_slice()).unwrap_or_default();
        let mut sessions: Vec<(u64, f64)> = sessions
            .iter()
            .filter_map(|session| Some((session.from_step, seconds(&session.started)?)))
            .collect();
        if sessions.is_empty() {
            sessions.push((0, record.and_then(|record| seconds(&record.created)).unwrap_or(0.0)));
        }
        Self { sessions, ..Self::default() }
    }

    /// Whether another clock has the same sessions.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        self.sessions == other.sessions
    }

    /// Whether a step has been taken.
    pub(super) fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// When the run began.
    pub(super) fn began(&self) -> f64 {
        self.sessions[0].1
    }

    fn session_of(&self, step: u64) -> usize {
        self.sessions.iter().rposition(|(from, _)| *from <= step).unwrap_or(0)
    }

    /// Takes the next step, with the seconds trained after it if its row has them. Returns when it ended.
    pub(super) fn take(&mut self, step: u64, elapsed: Option<f64>) -> f64 {
        let session = self.session_of(step);
        if session != self.session {
            (self.session, self.before) = (session, self.elapsed);
        }
        self.elapsed = elapsed.filter(|seconds| seconds.is_finite()).unwrap_or(self.elapsed);
        let at = self.sessions[session].1 + self.elapsed - self.before;
        self.steps.push((step, at));
        at
    }

    /// When so many steps had been taken: what happens between two steps is as old as the one before it.
    pub(super) fn after(&self, steps: u64) -> f64 {
        match self.steps.partition_point(|(step, _)| *step < steps) {
            0 => self.sessions[self.session_of(steps)].1,
            taken => self.steps[taken - 1].1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::record::Session;

    #[test]
    fn each_session_goes_on_from_when_it_began() {
        let session = |from_step, started: &str| Session {
            from_step,
            started: started.to_owned(),
            ..Session::default()
        };
        let sessions = vec![session(0, "2026-01-01T00:00:00Z"), session(2, "2026-01-01T01:00:00Z")];
        let record = RunRecord { sessions, ..RunRecord::new("r", "r", "0") };
        let mut clock = Clock::new(Some(&record));
        let began = 1_767_225_600.0;
        assert_eq!((clock.began(), clock.after(0)), (began, began));
        assert_eq!(clock.take(0, Some(1.5)), began + 1.5);
        assert_eq!(clock.take(1, Some(2.5)), began + 2.5);
        // ten seconds of loading are no training
        assert_eq!(clock.take(2, Some(3.5)), began + 3601.0);
        assert_eq!(clock.take(3, None), began + 3601.0);
        assert_eq!([clock.after(0), clock.after(2), clock.after(9)], [0.0, 2.5, 3601.0].map(|s| began + s));
        assert!(clock.agrees(&Clock::new(Some(&record))) && !clock.agrees(&Clock::new(None)));
    }

    #[test]
    fn without_a_record_time_begins_with_the_run() {
        let mut clock = Clock::new(None);
        assert_eq!((clock.take(7, Some(2.0)), clock.after(7), clock.after(8)), (2.0, 0.0, 2.0));
    }
}
