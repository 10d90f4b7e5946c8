//! The rows of a log as events, for as long as the log grows.

use super::super::bounds::{has_header, without_long_lines};
use super::super::tail::{Grown, Tail};
use super::clock::Clock;
use super::event::{At, Kind, scalars};
use super::file::EventFile;
use super::tags::{STEP, tags};
use crate::run::{RunError, dir};
use std::path::Path;

/// The column that says when a step ended.
const ELAPSED: &str = "elapsed_s";

/// A log, and how many of its rows have been taken.
#[derive(Debug)]
pub(super) struct Log {
    name: &'static str,
    pub(super) kind: Kind,
    tail: Tail,
    columns: Option<Columns>,
    /// Rows that are events of the file.
    pub(super) taken: usize,
    /// The step of the last row.
    last: Option<u64>,
    /// Rows since [`read`](Self::read) that are none.
    pub(super) malformed: u64,
}

/// Where a log has what.
#[derive(Debug, Default)]
struct Columns {
    step: Option<usize>,
    elapsed: Option<usize>,
    tags: Vec<(usize, String)>,
}

impl Log {
    /// The log of this name of a run.
    pub(super) fn new(run: &Path, name: &'static str, kind: Kind) -> Self {
        let tail = Tail::new(&run.join(name));
        Self { name, kind, tail, columns: None, taken: 0, last: None, malformed: 0 }
    }

    /// Begins with the first row.
    pub(super) fn forget(&mut self) {
        self.tail.forget();
        (self.columns, self.taken, self.last) = (None, 0, None);
    }

    /// Reads the lines that are new. A log that is missing has none.
    ///
    /// # Errors
    /// [`RunError::Io`].
    pub(super) fn read(&mut self) -> Result<Vec<u8>, RunError> {
        self.malformed = 0;
        let Grown { lines, is_other } = self.tail.read()?;
        if is_other {
            (self.columns, self.taken, self.last) = (None, 0, None);
        }
        Ok(lines)
    }

    /// Whether the lines that follow are the first ones.
    pub(super) fn is_at_the_beginning(&self) -> bool {
        self.columns.is_none()
    }

    /// Brings the events of a file up to date with the next lines. Returns the first step in which the file differs,
    /// which ends the taking.
    ///
    /// # Errors
    /// Those of [`EventFile::push`].
    pub(super) fn take(
        &mut self,
        lines: &[u8],
        clock: &mut Clock,
        file: &mut EventFile,
    ) -> Result<Option<u64>, RunError> {
        if self.columns.is_none() && !has_header(lines) {
            // no row can be told without the names of the columns
            self.columns = Some(Columns::default());
        }
        let (lines, malformed) = without_long_lines(lines);
        self.malformed += malformed;
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(&*lines);
        let mut record = csv::ByteRecord::new();
        while let Ok(true) = reader.read_byte_record(&mut record) {
            let Some(columns) = &self.columns else {
                self.columns = Some(Columns::of(self.name, &record));
                continue;
            };
            let step = columns.step.and_then(|place| cell(&record, place)?.parse::<u64>().ok());
            let is_next = |step: &u64| *step <= i64::MAX as u64 && self.last.is_none_or(|last| last < *step);
            let Some(step) = step.filter(is_next) else {
                self.malformed += 1;
                continue;
            };
            self.last = Some(step);
            let number = |place: usize| cell(&record, place)?.parse::<f64>().ok();
            let wall_time = match self.kind {
                Kind::Train => clock.take(step, columns.elapsed.and_then(number)),
                _ => clock.after(step),
            };
            let values = columns.tags.iter().filter_map(|(place, tag)| Some((tag.as_str(), number(*place)?)));
            let values: Vec<(&str, f64)> = values.collect();
            if values.is_empty() {
                continue;
            }
            let event = scalars(At { step, wall_time }, values);
            if let Some(step) = put(file, self.kind, self.taken, step, &event)? {
                return Ok(Some(step));
            }
            self.taken += 1;
        }
        Ok(file.step_of(self.kind, self.taken))
    }
}

/// Appends the event of a kind that belongs at a place among them, unless it is there. If another one is, returns the
/// step from which on the file differs.
///
/// # Errors
/// Those of [`EventFile::push`].
pub(super) fn put(
    file: &mut EventFile,
    kind: Kind,
    place: usize,
    step: u64,
    event: &[u8],
) -> Result<Option<u64>, RunError> {
    match file.step_of(kind, place) {
        None => file.push(kind, step, event).map(|()| None),
        Some(_) if file.holds(kind, place, step, event) => Ok(None),
        Some(there) => Ok(Some(there.min(step))),
    }
}

impl Columns {
    fn of(log: &str, record: &csv::ByteRecord) -> Self {
        let header: Vec<String> =
            record.iter().map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect();
        let place = |name: &str| header.iter().position(|column| column == name);
        let tags = tags(log, &header).into_iter().enumerate();
        Self {
            step: place(STEP),
            elapsed: place(ELAPSED).filter(|_| log == dir::TRAIN_CSV),
            tags: tags.filter_map(|(place, tag)| Some((place, tag?))).collect(),
        }
    }
}

/// A cell with something in it.
fn cell(record: &csv::ByteRecord, place: usize) -> Option<&str> {
    let text = std::str::from_utf8(record.get(place)?).ok()?.trim();
    (!text.is_empty()).then_some(text)
}
