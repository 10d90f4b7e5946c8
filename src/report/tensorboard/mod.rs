//! Runs as TensorBoard's event files, written by ourselves: a few messages need no library for Protocol Buffers.
//!
//! An event file is a function of the files of its run: every number of the logs under a tag, texts, hyperparameters,
//! and times as the logs state them. So an export compares what is there with what ought to be there, appends the rest,
//! and a second one changes nothing. A run that went back to a checkpoint has rows that differ from those of the file.
//! Then a restart tells TensorBoard to forget the steps from there on, and they follow again. TensorBoard's quick
//! reader takes no notice of restarts, but it forgets the later steps of a tag when the tag goes back.

mod clock;
mod event;
mod file;
mod logs;
mod record;
mod tags;
mod wire;

use super::tail::{Grown, Tail};
use crate::recipe::keys::{self, Identity};
use crate::recipe::written;
use crate::regular::{self, OpenDir};
use crate::run::{RunError, RunRecord, RunStatus, dir, samples};
use clock::Clock;
use event::{At, Kind};
use file::EventFile;
use logs::{Log, put};
use serde_json::Value as Json;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Looks at a run that goes back again and again while it is read; the next update goes on.
const ATTEMPTS: u32 = 4;

/// The directory, unless another user has made it: they could read and change what is written there.
fn own(dir: OpenDir) -> io::Result<OpenDir> {
    match dir.of_another()? {
        Some(user) => Err(io::Error::new(ErrorKind::PermissionDenied, of_another(user))),
        None => Ok(dir),
    }
}

/// What to do about what another user has put where events are to be written.
fn of_another(user: u32) -> String {
    format!(
        "it belongs to user {user}, who could read and change what is written there: name another directory"
    )
}

/// A run, and the event file that is brought up to date with it.
#[derive(Debug)]
pub struct Export {
    run: PathBuf,
    dir: PathBuf,
    /// The directory of the event file, if this process holds it open.
    held: Option<Arc<OpenDir>>,
    file: Option<EventFile>,
    clock: Clock,
    logs: [Log; 2],
    samples: Samples,
    in_place_of_others: bool,
    problems: Problems,
}

/// What one pass could not read.
#[derive(Debug, Default)]
struct Problems {
    told: Vec<String>,
    /// Whether a whole file is among it.
    lacks_some: bool,
}

impl Problems {
    /// A log or the record cannot be read.
    fn lack(&mut self, error: &RunError) {
        self.told.push(error.to_string());
        self.lacks_some = true;
    }
}

/// What an update found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// Events that were appended.
    pub events: u64,
    /// Whether they are in place of events of which nothing could stay: those of an earlier start of the run, or of
    /// another run that was exported to the same directory.
    pub in_place_of_others: bool,
    /// What could not be read, one line each, naming the file. It is not in the event file.
    pub problems: Vec<String>,
    /// Whether a whole file could not be read.
    pub lacks_some: bool,
}

/// `samples.txt` as far as it has been read.
#[derive(Debug)]
struct Samples {
    tail: Tail,
    text: Vec<u8>,
}

impl Export {
    /// The export of a run into a directory, which must be there when it is [`update`](Self::update)d. It may be the
    /// run's own.
    #[must_use]
    pub fn new(run: &Path, dir: &Path) -> Self {
        Self {
            run: run.to_owned(),
            dir: dir.to_owned(),
            held: None,
            file: None,
            clock: Clock::default(),
            logs: [Log::new(run, dir::TRAIN_CSV, Kind::Train), Log::new(run, dir::VAL_CSV, Kind::Val)],
            samples: Samples { tail: Tail::new(&run.join(dir::SAMPLES)), text: Vec::new() },
            in_place_of_others: false,
            problems: Problems::default(),
        }
    }

    /// The export of a run into its own directory, which this process writes.
    #[must_use]
    pub fn within(run: &Arc<OpenDir>) -> Self {
        Self { held: Some(Arc::clone(run)), ..Self::new(run.path(), run.path()) }
    }

    /// Brings the event file up to date with the run.
    ///
    /// # Errors
    /// [`RunError::Io`] if the event file cannot be read or written; the next update begins with what is there.
    pub fn update(&mut self) -> Result<News, RunError> {
        let events = self.bring_up_to_date().inspect_err(|_| self.file = None)?;
        let in_place_of_others = std::mem::take(&mut self.in_place_of_others);
        let Problems { told, lacks_some } = std::mem::take(&mut self.problems);
        Ok(News { events, in_place_of_others, problems: told, lacks_some })
    }

    /// Closes the event file; the next update opens it again.
    pub fn close(&mut self) {
        self.file = None;
    }

    /// The directory of the event file.
    fn opened(&self) -> Result<Arc<OpenDir>, RunError> {
        let failed = |error| RunError::Io { action: "open", path: self.dir.clone(), error };
        if let Some(held) = &self.held {
            return Ok(Arc::clone(held));
        }
        let opened = match (self.dir.parent(), self.dir.file_name()) {
            // a run may have been moved, and a link be left in its place
            (Some(parent), Some(name)) if self.dir != self.run => {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                OpenDir::open(parent).and_then(|parent| parent.inside(name)).and_then(own)
            }
            (parent, _) => regular::open_followed(&self.dir, parent.unwrap_or(Path::new(""))),
        };
        opened.map(Arc::new).map_err(failed)
    }

    fn forget(&mut self) {
        self.clock = Clock::default();
        self.logs.iter_mut().for_each(Log::forget);
        self.samples.tail.forget();
    }

    fn bring_up_to_date(&mut self) -> Result<u64, RunError> {
        if self.file.is_none() {
            self.forget();
            self.file = EventFile::open(&self.opened()?)?;
        }
        for _ in 0..ATTEMPTS {
            match self.pass()? {
                None => break,
                Some(step) => {
                    let began = self.clock.began();
                    let at = At { step, wall_time: self.clock.after(step) };
                    if let Some(file) = &mut self.file
                        && !file.rewind(at)
                    {
                        file.replace(began as u64)?;
                        self.in_place_of_others = true;
                    }
                    self.forget();
                }
            }
        }
        let Some(file) = &mut self.file else { return Ok(0) };
        file.settle()?;
        Ok(file.take_added())
    }

    /// Appends what is new. Returns the first step in which the file is not what the run asks for, if there is one.
    fn pass(&mut self) -> Result<Option<u64>, RunError> {
        // A run writes a row before it evaluates, and its record before the first row of a session. Read the other way
        // around, everything that is needed for what was read before is there.
        self.problems = Problems::default();
        let sampled = self.samples.read();
        let [train, val] = &mut self.logs;
        let evaluated = val.read();
        let trained = train.read();
        let is_of_other_steps = train.is_at_the_beginning() && self.clock.has_steps();
        let is_first = train.is_at_the_beginning() && val.is_at_the_beginning();
        let has_nothing = train.is_at_the_beginning() && trained.as_ref().is_ok_and(Vec::is_empty);
        let record = match RunRecord::read(&self.run) {
            Ok(None) if has_nothing => {
                // nothing is known of a run that has not begun, or that is being started over
                self.forget();
                return Ok(None);
            }
            Ok(record) => record,
            Err(error) => {
                self.problems.lack(&error);
                None
            }
        };
        // a file that is there has the times that record and log state
        if self.file.is_some() && (self.problems.lacks_some || trained.is_err()) {
            trained.err().iter().for_each(|error| self.problems.lack(error));
            self.forget();
            return Ok(None);
        }
        let clock = Clock::new(record.as_ref());
        if is_of_other_steps || !is_first && !self.clock.agrees(&clock) {
            // what was taken before is of another log, or of other sessions
            self.forget();
            return self.pass();
        }
        if is_first {
            self.clock = clock;
        }
        if is_first && !self.begin()? {
            return Ok(Some(0));
        }
        let Some(file) = &mut self.file else { return Ok(None) };
        let mut differs: Option<u64> = None;
        let mut note = |step: Option<u64>| differs = differs.into_iter().chain(step).min();
        for (log, lines) in self.logs.iter_mut().zip([trained, evaluated]) {
            match lines {
                Ok(lines) => note(log.take(&lines, &mut self.clock, file)?),
                Err(error) => self.problems.lack(&error),
            }
            if log.malformed > 0 {
                let (count, run) = (log.malformed, self.run.display());
                self.problems
                    .told
                    .push(format!("{count} malformed rows in the logs of `{run}` are left out"));
            }
        }
        match sampled {
            Ok(()) => note(self.samples.take(&self.clock, file)?),
            Err(error) => self.problems.lack(&error),
        }
        let finished = record.filter(|record| record.status == RunStatus::Finished);
        if let (None, Some(record)) = (differs, finished) {
            let at = At { step: record.steps_done, wall_time: self.clock.after(record.steps_done) };
            let end = event::end(at, record.results.get("final_val_loss").and_then(Json::as_f64));
            // a run that has finished may be given a longer way
            let noted = file.count(Kind::End);
            if noted == 0 || !file.holds(Kind::End, noted - 1, at.step, &end) {
                file.push(Kind::End, at.step, &end)?;
            }
        }
        Ok(differs)
    }

    /// Makes sure that there is a file that begins as it must; false if it begins otherwise.
    fn begin(&mut self) -> Result<bool, RunError> {
        let at = At { step: 0, wall_time: self.clock.began() };
        let mut head = vec![event::version(at), event::start(at)];
        let path = self.run.join(dir::RECIPE);
        match regular::read_unlinked_text(&path, regular::RECIPE) {
            Ok(text) => {
                let values = written(&text).unwrap_or_else(|problem| {
                    self.problems.told.push(format!("`{}` cannot be read: {problem}", path.display()));
                    Vec::new()
                });
                head.push(event::hyperparameters(at, &hyperparameters(values)));
                head.push(event::text(at, tags::RECIPE, &text));
            }
            Err(error) => {
                self.problems.told.push(RunError::Io { action: "read", path, error }.to_string());
                if self.file.as_ref().is_some_and(|file| file.count(Kind::Head) > 0) {
                    return Ok(true);
                }
            }
        }
        let file = match self.file.take() {
            Some(file) => file,
            None => EventFile::create(&self.opened()?, at.wall_time as u64)?,
        };
        let file = self.file.insert(file);
        for (place, event) in head.iter().enumerate() {
            if put(file, Kind::Head, place, 0, event)?.is_some() {
                return Ok(false);
            }
        }
        Ok(file.count(Kind::Head) == head.len())
    }
}

/// What decides about the results of a run.
fn hyperparameters(written: Vec<(String, Json)>) -> Vec<(String, Json)> {
    let decides = |name: &str| {
        keys::find(name).is_some_and(|key| key.is_compared && !matches!(key.identity, Identity::Never))
    };
    written.into_iter().filter(|(name, _)| decides(name)).collect()
}

impl Samples {
    /// Reads what is new.
    fn read(&mut self) -> Result<(), RunError> {
        let Grown { lines, is_other } = self.tail.read()?;
        if is_other {
            self.text.clear();
        }
        self.text.extend(lines);
        Ok(())
    }

    /// As [`Log::take`], of all texts.
    fn take(&self, clock: &Clock, file: &mut EventFile) -> Result<Option<u64>, RunError> {
        let text = String::from_utf8_lossy(&self.text);
        let (mut place, mut last) = (0, None);
        for (step, text) in samples::sections(&text) {
            if last.is_some_and(|last| last >= step) || step > i64::MAX as u64 {
                continue;
            }
            last = Some(step);
            let event = event::text(At { step, wall_time: clock.after(step) }, tags::SAMPLES, text);
            if let Some(step) = put(file, Kind::Sample, place, step, &event)? {
                return Ok(Some(step));
            }
            place += 1;
        }
        Ok(file.step_of(Kind::Sample, place))
    }
}
