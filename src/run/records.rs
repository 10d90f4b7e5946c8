//! Reading the CSV logs of a run: whole rows, by the names of the columns.
//!
//! Readers take no lock and pass over a torn last line, which a killed writer may leave. A line before it that is
//! malformed is an error: a log that was edited or damaged is not guessed at.

use super::columns::{TrainRow, ValRow};
use super::error::Context;
use super::row::{Cells, Row};
use super::{RunError, files};
use crate::regular;
use std::collections::HashMap;
use std::io::{Cursor, ErrorKind};
use std::path::{Path, PathBuf};

/// The names of all columns of a log take no more bytes.
pub const HEADER: usize = 1 << 16;

/// Reads a log's whole rows in order; a missing file has none. Takes no lock: a torn last line is not an error, a
/// malformed line before it is ([`RunError::Malformed`] naming it).
pub fn read<R: Row>(path: &Path) -> Result<impl Iterator<Item = Result<R, RunError>>, RunError> {
    parse(path, read_or_empty(path)?)
}

/// The whole rows of a log with the contents `bytes`, in order; `path` is used in messages. A malformed row is an
/// error.
pub fn parse<R: Row>(
    path: &Path,
    mut bytes: Vec<u8>,
) -> Result<impl Iterator<Item = Result<R, RunError>> + use<R>, RunError> {
    bytes.truncate(files::whole_lines(&bytes).len());
    let mut table = Table::new(path, Cursor::new(bytes))?;
    Ok(std::iter::from_fn(move || {
        table.next_record().transpose().map(|record| table.parse(&record?, |cells| R::parse(cells)))
    }))
}

/// Reads the whole rows of a `train.csv` in order, as [`read`] does.
pub fn read_train(path: &Path) -> Result<impl Iterator<Item = Result<TrainRow, RunError>>, RunError> {
    read(path)
}

/// Reads the whole rows of a `val.csv` in order, as [`read`] does.
pub fn read_val(path: &Path) -> Result<impl Iterator<Item = Result<ValRow, RunError>>, RunError> {
    read(path)
}

/// A CSV file being read, with its name for the messages.
pub(super) struct Table<S> {
    path: PathBuf,
    columns: HashMap<String, usize>,
    reader: csv::Reader<S>,
}

impl<S: std::io::Read> Table<S> {
    pub(super) fn new(path: &Path, source: S) -> Result<Self, RunError> {
        // A line is a record, as it was written: a stray quote or carriage return in a damaged log must not make it
        // end elsewhere.
        let mut builder = csv::ReaderBuilder::new();
        let mut reader = builder.terminator(csv::Terminator::Any(b'\n')).quoting(false).from_reader(source);
        let header = reader.headers().map_err(|error| RunError::malformed(path, error))?;
        if header.as_byte_record().as_slice().len() > HEADER || header.len() > HEADER {
            return Err(RunError::malformed(path, "its first line is too long for the names of columns"));
        }
        let columns = header.iter().enumerate().map(|(i, name)| (name.trim().to_owned(), i)).collect();
        Ok(Self { path: path.to_owned(), columns, reader })
    }

    /// Bytes read so far: where the next record starts.
    pub(super) fn offset(&self) -> usize {
        self.reader.position().byte() as usize
    }

    pub(super) fn next_record(&mut self) -> Result<Option<csv::StringRecord>, RunError> {
        let mut record = csv::StringRecord::new();
        match self.reader.read_record(&mut record) {
            Ok(more) => Ok(more.then_some(record)),
            Err(error) => Err(RunError::malformed(&self.path, error)),
        }
    }

    pub(super) fn parse<T>(
        &self,
        record: &csv::StringRecord,
        read: impl FnOnce(&Cells) -> Result<T, String>,
    ) -> Result<T, RunError> {
        read(&Cells::new(&self.columns, record)).map_err(|problem| {
            let line = record.position().map_or(0, csv::Position::line);
            RunError::malformed(&self.path, format!("line {line}: {problem}"))
        })
    }
}

/// The bytes of a file; none if it does not exist.
pub(super) fn read_or_empty(path: &Path) -> Result<Vec<u8>, RunError> {
    match regular::read_unlinked(path, regular::LOG) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        result => result.context("read", path),
    }
}

#[cfg(test)]
mod tests {
    use super::super::TrainLog;
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    #[test]
    fn columns_are_found_by_name_and_bad_cells_by_line() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        let run = std::sync::Arc::new(crate::regular::OpenDir::open(dir.path()).expect("open"));
        fs::write(&path, "note,loss,step\nx,2.5,7\ny,NaN,8\n").expect("write");
        let read: Vec<TrainRow> =
            read_train(&path).expect("read").collect::<Result<_, _>>().expect("every row");
        assert_eq!((read[0].step, read[0].loss, read[0].mfu), (7, 2.5, None));
        assert!(read[1].loss.is_nan() && read[1].lr.is_nan());
        assert!(TrainLog::open(&run).is_err(), "a note cannot be appended");
        for (text, what) in [
            ("step,loss\n1,2\n2,abc\n", "line 3"),
            ("step,loss\n1,2\n2,3,4\n", "line: 3"),
            ("loss\n1\n", "no `step`"),
        ] {
            fs::write(&path, text).expect("write");
            let error =
                read_train(&path).expect("read").find_map(Result::err).expect("malformed").to_string();
            assert!(error.contains(what) && error.contains("train.csv"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_number_reads_back_as_it_was(loss: f32, wide in any::<[f64; 6]>(), step: u64, skipped: bool) {
            let [lr, grad_norm, epoch, loss_scale, step_ms, elapsed_s] = wide;
            let written = TrainRow {
                step, loss, lr, grad_norm, epoch, loss_scale, skipped, step_ms, elapsed_s, ..TrainRow::UNKNOWN
            };
            let mut text = String::new();
            TrainRow::write_header(&mut text);
            written.write(&mut text);
            let table = Table::new(Path::new("t"), Cursor::new(text));
            let mut table = table.expect("header");
            let record = table.next_record().expect("whole").expect("a record");
            let read: TrainRow = table.parse(&record, TrainRow::parse).expect("parses");
            // Debug tells -0 from 0 and lets NaN equal NaN.
            prop_assert_eq!(format!("{read:?}"), format!("{written:?}"));
        }
    }
}
