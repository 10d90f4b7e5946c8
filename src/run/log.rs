//! The CSV logs of a run: one row per optimizer step, one per evaluation.
//!
//! People compare these files across runs byte by byte, so a number has one spelling (the shortest that reads back),
//! a row is one write at the end of the file, and a resumed run first cuts the log back to its checkpoint.
//! Readers find columns by name and pass over a torn last line, which a killed writer may leave.

use super::columns::{TrainRow, ValRow};
use super::error::Context;
use super::row::{Cells, Row};
use super::{RunError, fault, files};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Cursor, ErrorKind, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

/// A log open for appending.
#[derive(Debug)]
pub struct Log<R> {
    path: PathBuf,
    file: File,
    /// Length of the file up to its last whole row.
    len: u64,
    /// The row being written, kept for its memory.
    line: String,
    rows: PhantomData<R>,
}

/// `train.csv` open for appending.
pub type TrainLog = Log<TrainRow>;
/// `val.csv` open for appending.
pub type ValLog = Log<ValRow>;

impl<R: Row> Log<R> {
    /// Opens a log for appending and writes the header if there is none. The caller must hold the run's lock and must
    /// have called [`cut_back`].
    ///
    /// Errors: [`RunError::Malformed`] if the file has other columns or ends in a torn line.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        let mut header = String::new();
        R::write_header(&mut header);
        let found = read_or_empty(path)?;
        if found.is_empty() {
            files::write_atomic(path, header.as_bytes(), "csv_header")?;
        } else if !found.starts_with(header.as_bytes()) {
            return Err(RunError::malformed(path, format!("its columns are not `{}`", header.trim_end())));
        } else if !found.ends_with(b"\n") {
            return Err(RunError::malformed(path, "its last line is torn"));
        }
        let file = OpenOptions::new().append(true).open(path).context("open", path)?;
        let len = file.metadata().context("read", path)?.len();
        Ok(Self { path: path.to_owned(), file, len, line: header, rows: PhantomData })
    }

    /// Appends one row with one write. If the write fails, the file is cut to its length before it.
    ///
    /// Fault points: `csv.before_row`, `csv.mid_row`.
    pub fn append(&mut self, row: &R) -> Result<(), RunError> {
        self.line.clear();
        row.write(&mut self.line);
        let bytes = self.line.as_bytes();
        let written = fault::point("csv", "before_row").and_then(|()| match fault::due("csv", "mid_row") {
            // Only a test has a reason to write a row in two parts.
            Some(due) => {
                let (head, tail) = bytes.split_at(bytes.len() / 2);
                self.file.write_all(head).and_then(|()| due.strike()).and_then(|()| self.file.write_all(tail))
            }
            None => self.file.write_all(bytes),
        });
        if written.is_err() {
            // If this fails too, the torn line is cut off when the run resumes.
            let _ = self.file.set_len(self.len);
        }
        written.context("append to", &self.path)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Makes the rows durable. Call it before a checkpoint is published: after a power cut, the checkpoint needs the
    /// rows that led to it.
    pub fn sync(&self) -> Result<(), RunError> {
        self.file.sync_data().context("sync", &self.path)
    }
}

/// What [`cut_back`] kept of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Kept {
    /// Number of rows.
    pub rows: u64,
    /// `step` of the last row.
    pub last_step: Option<u64>,
    /// `elapsed_s` of the last row; 0 without rows or without the column.
    pub elapsed_s: f64,
}

/// Removes the rows whose step is `first_step_to_drop` or later, and a torn last line. The file is replaced atomically,
/// and not touched if it is as it should be. A missing file has no rows.
///
/// Errors: [`RunError::Malformed`] for a malformed row, unless the rows before it reach up to `first_step_to_drop`.
pub fn cut_back(path: &Path, first_step_to_drop: u64) -> Result<Kept, RunError> {
    let bytes = read_or_empty(path)?;
    let (kept, output) = cut(path, &bytes, first_step_to_drop)?;
    if output != bytes {
        files::write_atomic(path, &output, "csv_cut")?;
    }
    Ok(kept)
}

/// The part of [`cut_back`] that touches no file: the rows kept of a log with the contents `bytes`, and the new
/// contents. `path` is used in messages.
///
/// Errors: [`RunError::Malformed`] for a malformed row, unless the rows before it reach up to `first_step_to_drop`.
pub fn cut(path: &Path, bytes: &[u8], first_step_to_drop: u64) -> Result<(Kept, Vec<u8>), RunError> {
    let whole = files::whole_lines(bytes);
    let mut table = Table::new(path, whole)?;
    let mut kept = Kept::default();
    let mut output = whole[..table.offset()].to_vec();
    loop {
        let start = table.offset();
        let row = table.next_record().and_then(|record| {
            let Some(record) = record else { return Ok(None) };
            let step: u64 = table.parse(&record, |cells| cells.required("step"))?;
            Ok(Some((step, table.parse(&record, |cells| cells.get("elapsed_s"))?)))
        });
        match row {
            Ok(None) => break,
            Ok(Some((step, _))) if step >= first_step_to_drop => {}
            Ok(Some((step, elapsed_s))) => {
                let (rows, elapsed_s) = (kept.rows + 1, elapsed_s.unwrap_or(0.0));
                kept = Kept { rows, last_step: Some(step), elapsed_s };
                output.extend_from_slice(&whole[start..table.offset()]);
            }
            // A power cut may leave anything in what was not synced; here it would be dropped in any case.
            Err(_) if kept.last_step.map_or(0, |step| step + 1) >= first_step_to_drop => break,
            Err(error) => return Err(error),
        }
    }
    Ok((kept, output))
}

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
struct Table<S> {
    path: PathBuf,
    columns: HashMap<String, usize>,
    reader: csv::Reader<S>,
}

impl<S: std::io::Read> Table<S> {
    fn new(path: &Path, source: S) -> Result<Self, RunError> {
        // A line is a record, as it was written: a stray quote or carriage return in a damaged log must not make it
        // end elsewhere.
        let mut builder = csv::ReaderBuilder::new();
        let mut reader = builder.terminator(csv::Terminator::Any(b'\n')).quoting(false).from_reader(source);
        let header = reader.headers().map_err(|error| RunError::malformed(path, error))?;
        let columns = header.iter().enumerate().map(|(i, name)| (name.trim().to_owned(), i)).collect();
        Ok(Self { path: path.to_owned(), columns, reader })
    }

    /// Bytes read so far: where the next record starts.
    fn offset(&self) -> usize {
        self.reader.position().byte() as usize
    }

    fn next_record(&mut self) -> Result<Option<csv::StringRecord>, RunError> {
        let mut record = csv::StringRecord::new();
        match self.reader.read_record(&mut record) {
            Ok(more) => Ok(more.then_some(record)),
            Err(error) => Err(RunError::malformed(&self.path, error)),
        }
    }

    fn parse<T>(
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

fn read_or_empty(path: &Path) -> Result<Vec<u8>, RunError> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        result => result.context("read", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[expect(clippy::needless_update, reason = "a further column changes nothing here")]
    fn row(step: u64) -> TrainRow {
        TrainRow {
            step,
            tokens: (step + 1) * 512,
            loss: 10.825 / (step + 1) as f32,
            lr: 6e-4 / 3.0,
            grad_norm: 1.0 / 3.0,
            epoch: 1e-9,
            loss_scale: 65536.0,
            skipped: step % 2 == 1,
            step_ms: 12.5,
            tokens_per_s: 40960.0,
            mfu: (step > 0).then_some(0.375),
            memory_bytes: 1 << 33,
            elapsed_s: step as f64 * 0.0125,
            ..TrainRow::UNKNOWN
        }
    }

    fn written(path: &Path, steps: std::ops::Range<u64>) {
        let mut log = TrainLog::open(path).expect("open");
        steps.for_each(|step| log.append(&row(step)).expect("append"));
        log.sync().expect("sync");
    }

    fn rows(path: &Path) -> Vec<TrainRow> {
        read_train(path).expect("read").collect::<Result<_, _>>().expect("every row")
    }

    #[test]
    fn the_file_is_the_contract_byte_for_byte() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        written(&path, 0..2);
        assert_eq!(
            fs::read_to_string(&path).expect("read"),
            "step,tokens,loss,lr,grad_norm,epoch,loss_scale,skipped,step_ms,tokens_per_s,mfu,memory_bytes,elapsed_s\n\
             0,512,10.825,0.00019999999999999998,0.3333333333333333,0.000000001,65536,0,12.5,40960,,8589934592,0\n\
             1,1024,5.4125,0.00019999999999999998,0.3333333333333333,0.000000001,65536,1,12.5,40960,0.375,8589934592,\
             0.0125\n"
        );
        assert_eq!(rows(&path), [row(0), row(1)]);
        let path = dir.path().join("val.csv");
        let val = ValRow { step: 250, tokens: 1000, val_loss: 3.2914627 };
        ValLog::open(&path).expect("open").append(&val).expect("append");
        assert_eq!(fs::read_to_string(&path).expect("read"), "step,tokens,val_loss\n250,1000,3.2914627\n");
        assert_eq!(read_val(&path).expect("read").next().expect("a row").expect("whole"), val);
    }

    #[test]
    fn cutting_back_leaves_the_bytes_of_the_steps_before() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (path, short) = (dir.path().join("train.csv"), dir.path().join("short.csv"));
        written(&path, 0..5);
        written(&short, 0..3);
        fs::OpenOptions::new().append(true).open(&path).expect("open").write_all(b"5,30").expect("tear");
        assert_eq!(rows(&path).len(), 5, "a torn line is passed over");
        assert!(TrainLog::open(&path).expect_err("torn").to_string().contains("torn"));
        let kept = cut_back(&path, 3).expect("cut");
        assert_eq!(kept, Kept { rows: 3, last_step: Some(2), elapsed_s: 0.025 });
        assert_eq!(fs::read(&path).expect("read"), fs::read(&short).expect("read"));
        let modified = || fs::metadata(&path).expect("stat").modified().expect("mtime");
        let before = modified();
        assert_eq!(cut_back(&path, 3).expect("again"), kept);
        assert_eq!(modified(), before, "nothing to cut, nothing written");
        written(&path, 3..4);
        assert_eq!(rows(&path).last(), Some(&row(3)));
        assert_eq!(cut_back(&path, 0).expect("cut"), Kept::default());
        assert_eq!(rows(&path), []);
        assert_eq!(cut_back(&dir.path().join("none.csv"), 7).expect("no file"), Kept::default());
    }

    #[test]
    fn a_torn_header_is_cut_to_nothing_and_written_anew() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        fs::write(&path, "step,tok").expect("write");
        assert_eq!(rows(&path), []);
        assert_eq!(cut_back(&path, 9).expect("cut"), Kept::default());
        written(&path, 0..1);
        assert_eq!(rows(&path), [row(0)]);
    }

    #[test]
    fn garbage_is_cut_off_behind_the_checkpoint_and_refused_before_it() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        written(&path, 0..3);
        let whole = fs::read(&path).expect("read");
        fs::write(&path, [&whole, &b"\0\0\xff\n3,4\n"[..]].concat()).expect("write");
        assert!(cut_back(&path, 4).expect_err("row 3 is lost").to_string().contains("train.csv"));
        assert_eq!(cut_back(&path, 3).expect("cut").rows, 3);
        assert_eq!(fs::read(&path).expect("read"), whole);
    }

    #[test]
    fn a_stray_sign_in_a_line_does_not_end_it_elsewhere() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        written(&path, 0..4);
        let whole = fs::read(&path).expect("read");
        let third = whole.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(2).expect("a line").0 + 1;
        for stray in [b'\r', b'"'] {
            let mut bytes = whole.clone();
            // in the row of step 2, behind its step
            bytes[third + 4] = stray;
            fs::write(&path, &bytes).expect("write");
            for first_step_to_drop in [2, 3, 4] {
                if let Ok((_, left)) = cut(&path, &bytes, first_step_to_drop) {
                    assert!(
                        left.ends_with(b"\n") && bytes.starts_with(&left),
                        "{stray}, {first_step_to_drop}"
                    );
                }
            }
            assert_eq!(cut_back(&path, 2).expect("cut").rows, 2);
            written(&path, 2..3);
            assert_eq!(rows(&path).len(), 3);
        }
    }

    #[test]
    fn columns_are_found_by_name_and_bad_cells_by_line() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        fs::write(&path, "note,loss,step\nx,2.5,7\ny,NaN,8\n").expect("write");
        let read = rows(&path);
        assert_eq!((read[0].step, read[0].loss, read[0].mfu), (7, 2.5, None));
        assert!(read[1].loss.is_nan() && read[1].lr.is_nan());
        assert!(TrainLog::open(&path).is_err(), "rows of another shape are not appended");
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
                step, loss, lr, grad_norm, epoch, loss_scale, skipped, step_ms, elapsed_s, ..row(1)
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
