//! The CSV logs of a run: one row per optimizer step, one per evaluation.
//!
//! People compare these files across runs byte by byte, so a number has one spelling (the shortest that reads back),
//! a row is one write at the end of the file, and a resumed run first cuts the log back to its checkpoint.
//! A log keeps the columns that it began with, whatever version goes on with it. Reading is in
//! [`records`](super::records).

use super::appended::Appended;
use super::columns::{TrainRow, ValRow};
use super::digest::FileDigest;
use super::error::Context;
use super::row::Row;
use super::{RunError, fault, files};
use crate::regular::{self, OpenDir};
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::sync::Arc;

/// A log open for appending.
#[derive(Debug)]
pub struct Log<R> {
    file: Appended,
    /// Where the file's columns lie among those of a row and the further ones, if they are not all of them in order;
    /// `None` for one that stays empty.
    places: Option<Vec<Option<usize>>>,
    /// A row that was cut from the file, until it is made again.
    earlier: Option<EarlierRow>,
    /// The row being written, kept for its memory.
    line: String,
    rows: PhantomData<R>,
}

/// `train.csv` open for appending.
pub type TrainLog = Log<TrainRow>;
/// `val.csv` open for appending.
pub type ValLog = Log<ValRow>;

impl<R: Row> Log<R> {
    /// Opens a log of a run for appending and writes the header if there is none. A log that an earlier version began
    /// keeps its own columns. The caller must hold the run's lock and must have called
    /// [`cut_back`](super::cut::cut_back).
    ///
    /// Errors: [`RunError::Malformed`] if the file has a column that this version lacks, or none that a log must have,
    /// or ends in a torn line.
    pub fn open(run: &Arc<OpenDir>) -> Result<Self, RunError> {
        Self::begin(run, &[], |name| {
            Err(format!("it has a column `{name}`, which this version does not write"))
        })
    }

    fn begin(
        run: &Arc<OpenDir>,
        further: &[String],
        unknown: impl Fn(&str) -> Result<Option<usize>, String>,
    ) -> Result<Self, RunError> {
        let path = &run.join(R::FILE);
        let mut line = String::new();
        R::write_header(&mut line);
        further.iter().for_each(|name| line.insert_str(line.len() - 1, &format!(",{name}")));
        let mut found = run.read(R::FILE, regular::LOG).context("read", path)?;
        let mut places = None;
        if found.is_empty() {
            files::write_in(run, R::FILE, line.as_bytes(), "csv_header")?;
            found = line.clone().into_bytes();
        } else if !found.ends_with(b"\n") {
            return Err(RunError::malformed(path, "its last line is torn"));
        } else if !found.starts_with(line.as_bytes()) {
            let header = found.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let known = places_of::<R>(&String::from_utf8_lossy(header), further, unknown);
            places = Some(known.map_err(|problem| RunError::malformed(path, problem))?);
        }
        Ok(Self {
            file: Appended::open(run, R::FILE, &found)?,
            places,
            earlier: None,
            line,
            rows: PhantomData,
        })
    }

    /// Appends one row with one write. If the write fails, the file is cut to its length before it.
    ///
    /// Fault points: `csv.before_row`, `csv.mid_row`.
    pub fn append(&mut self, row: &R) -> Result<(), RunError> {
        self.append_with(row, &[])
    }

    /// Appends a row as [`append`](Self::append) does, with the cells of the further columns.
    pub fn append_with(&mut self, row: &R, further: &[String]) -> Result<(), RunError> {
        self.line.clear();
        row.write(&mut self.line);
        further.iter().for_each(|cell| self.line.insert_str(self.line.len() - 1, &format!(",{cell}")));
        if let Some(places) = &self.places {
            // no cell has a comma in it
            let cells: Vec<&str> = self.line.trim_end().split(',').collect();
            let earlier = self.earlier.as_ref().filter(|earlier| earlier.step == row.step());
            let kept = |column: usize| {
                earlier.and_then(|earlier| earlier.cells.get(column)).map_or("", String::as_str)
            };
            let places = places.iter().enumerate();
            let cells: Vec<&str> = places
                .map(|(column, place)| place.map_or_else(|| kept(column), |place| cells[place]))
                .collect();
            self.line = cells.join(",") + "\n";
        }
        fault::point("csv", "before_row").context("append to", self.file.path())?;
        self.file.append(row.step(), self.line.as_bytes(), ("csv", "mid_row"))?;
        self.earlier = None;
        Ok(())
    }

    /// Appends the earlier row of the step that the run went on from, where it was not made again.
    pub fn put_back(&mut self) -> Result<(), RunError> {
        let Some(EarlierRow { step, cells }) = self.earlier.take() else { return Ok(()) };
        self.file.append(step, (cells.join(",") + "\n").as_bytes(), ("csv", "mid_row"))
    }

    /// The digest of the rows before `step`, which a run that goes on from there keeps.
    pub fn digest_before(&self, step: u64) -> FileDigest {
        self.file.digest_before(step)
    }

    /// The digest of the whole log.
    pub fn digest(&self) -> FileDigest {
        self.file.digest()
    }

    /// Checks that the file at the path is the one that rows are appended to. One that was removed, or replaced by an
    /// earlier part of itself, is written again; returns whether it had to be.
    ///
    /// Errors: [`RunError::Log`] if something else is there.
    pub fn check(&mut self) -> Result<bool, RunError> {
        self.file.check()
    }

    /// Checks that the file holds what was written, by reading it.
    ///
    /// Errors: [`RunError::Log`] if it does not.
    pub fn check_contents(&self) -> Result<(), RunError> {
        self.file.check_contents()
    }

    /// Makes the rows durable. Call it before a checkpoint is published: after a power cut, the checkpoint needs the
    /// rows that led to it.
    pub fn sync(&self) -> Result<(), RunError> {
        self.file.sync()
    }
}

/// A row of `val.csv` that is made again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierRow {
    /// Its step.
    pub step: u64,
    /// Its cells, in the order of the log's columns.
    pub cells: Vec<String>,
}

impl ValLog {
    /// Opens a log as [`open`](Self::open) does, with columns behind those that every log has. Columns that a file
    /// lacks are added to it, empty in the rows that are there. Further ones that a file has stay, and stay empty from
    /// now on, but for a row that is made again, where they have the cells of the `earlier` one of its step.
    pub fn open_with(
        run: &Arc<OpenDir>,
        further: &[String],
        mut earlier: Option<EarlierRow>,
    ) -> Result<Self, RunError> {
        let log = ValRow::FILE;
        let found = run.read(log, regular::LOG).context("read", &run.join(log))?;
        let mut lines = found.split(|byte| *byte == b'\n').map(String::from_utf8_lossy);
        let header = lines.next().unwrap_or_default();
        let is_new = |name: &&String| !header.split(',').any(|column| column == name.as_str());
        let new: Vec<&str> = further.iter().filter(is_new).map(String::as_str).collect();
        if !new.is_empty() && found.ends_with(b"\n") {
            let mut wider = format!("{header},{}\n", new.join(","));
            for line in lines.filter(|line| !line.is_empty()) {
                wider.push_str(&line);
                wider.extend(new.iter().map(|_| ','));
                wider.push('\n');
            }
            files::write_in(run, log, wider.as_bytes(), "csv_wider")?;
        }
        // columns are added behind those that it has
        let columns = header.split(',').count() + new.len();
        match &mut earlier {
            // a row for a log that is gone
            Some(row) if found.is_empty() || row.cells.len() > columns => earlier = None,
            Some(row) => row.cells.resize(columns, String::new()),
            None => {}
        }
        Ok(Self { earlier, ..Self::begin(run, further, |_| Ok(None))? })
    }
}

/// Where the columns of a header lie among those of `R` and the further ones; `unknown` says what becomes of others.
///
/// Errors: a phrase that names a column that is unknown, twice there, or missing although every row has it.
fn places_of<R: Row>(
    header: &str,
    further: &[String],
    unknown: impl Fn(&str) -> Result<Option<usize>, String>,
) -> Result<Vec<Option<usize>>, String> {
    let own = || R::COLUMNS.iter().map(|column| column.name);
    let mut places = Vec::new();
    for name in header.split(',') {
        match own().chain(further.iter().map(String::as_str)).position(|column| column == name) {
            Some(place) if places.contains(&Some(place)) => {
                return Err(format!("it has two columns `{name}`"));
            }
            Some(place) => places.push(Some(place)),
            None => places.push(unknown(name)?),
        }
    }
    let mut required = R::COLUMNS.iter().enumerate().filter(|(_, column)| column.is_required);
    match required.find(|(place, _)| !places.contains(&Some(*place))) {
        Some((_, column)) => Err(format!("it has no column `{}`", column.name)),
        None => Ok(places),
    }
}

#[cfg(test)]
mod tests;
