//! The CSV logs of a run: one row per optimizer step, one per evaluation.
//!
//! People compare these files across runs byte by byte, so a number has one spelling (the shortest that reads back),
//! a row is one write at the end of the file, and a resumed run first cuts the log back to its checkpoint.
//! A log keeps the columns that it began with, whatever version goes on with it. Reading is in
//! [`records`](super::records).

use super::columns::{TrainRow, ValRow};
use super::digest::FileDigest;
use super::error::Context;
use super::records::{Table, read_or_empty};
use super::row::Row;
use super::seal::{self, Growing};
use super::{RunError, fault, files};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::marker::PhantomData;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A log open for appending.
#[derive(Debug)]
pub struct Log<R> {
    path: PathBuf,
    file: File,
    /// The file up to its last whole row.
    whole: Growing,
    /// The step of the last row that was appended, and the file before its first row.
    before: Option<(u64, Growing)>,
    /// Where the file's columns lie among those of a row, if they are not all of them in order.
    places: Option<Vec<usize>>,
    /// The row being written, kept for its memory.
    line: String,
    rows: PhantomData<R>,
}

/// `train.csv` open for appending.
pub type TrainLog = Log<TrainRow>;
/// `val.csv` open for appending.
pub type ValLog = Log<ValRow>;

impl<R: Row> Log<R> {
    /// Opens a log for appending and writes the header if there is none. A log that an earlier version began keeps its
    /// own columns. The caller must hold the run's lock and must have called [`cut_back`].
    ///
    /// Errors: [`RunError::Malformed`] if the file has a column that this version lacks, or none that a log must have,
    /// or ends in a torn line.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        let mut line = String::new();
        R::write_header(&mut line);
        let mut found = read_or_empty(path)?;
        let mut places = None;
        if found.is_empty() {
            files::write_atomic(path, line.as_bytes(), "csv_header")?;
            found = line.clone().into_bytes();
        } else if !found.ends_with(b"\n") {
            return Err(RunError::malformed(path, "its last line is torn"));
        } else if !found.starts_with(line.as_bytes()) {
            let header = found.split(|byte| *byte == b'\n').next().unwrap_or_default();
            let known = places_of::<R>(&String::from_utf8_lossy(header));
            places = Some(known.map_err(|problem| RunError::malformed(path, problem))?);
        }
        let (file, whole) = (reopen(path)?, Growing::new(&found));
        Ok(Self { path: path.to_owned(), file, whole, before: None, places, line, rows: PhantomData })
    }

    /// Appends one row with one write. If the write fails, the file is cut to its length before it.
    ///
    /// Fault points: `csv.before_row`, `csv.mid_row`.
    pub fn append(&mut self, row: &R) -> Result<(), RunError> {
        self.line.clear();
        row.write(&mut self.line);
        if let Some(places) = &self.places {
            // no cell has a comma in it
            let cells: Vec<&str> = self.line.trim_end().split(',').collect();
            let cells: Vec<&str> = places.iter().map(|&place| cells[place]).collect();
            self.line = cells.join(",") + "\n";
        }
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
            let _ = self.file.set_len(self.whole.bytes());
        }
        written.context("append to", &self.path)?;
        if self.before.as_ref().is_none_or(|(step, _)| *step < row.step()) {
            self.before = Some((row.step(), self.whole.clone()));
        }
        self.whole.push(bytes);
        Ok(())
    }

    /// The digest of the rows before `step`, which a run that goes on from there keeps.
    pub fn digest_before(&self, step: u64) -> FileDigest {
        match &self.before {
            Some((last, before)) if *last >= step => before.digest(),
            _ => self.whole.digest(),
        }
    }

    /// The digest of the whole log.
    pub fn digest(&self) -> FileDigest {
        self.whole.digest()
    }

    /// Checks that the file at the path is the one that rows are appended to. One that was removed, or replaced by an
    /// earlier part of itself, is written again; returns whether it had to be.
    ///
    /// Errors: [`RunError::Log`] if something else is there.
    pub fn check(&mut self) -> Result<bool, RunError> {
        let ours = self.file.metadata().context("read", &self.path)?;
        let is_ours = |found: std::fs::Metadata| (found.dev(), found.ino()) == (ours.dev(), ours.ino());
        if std::fs::metadata(&self.path).is_ok_and(is_ours) {
            if ours.len() == self.whole.bytes() {
                return Ok(false);
            }
            return Err(self.changed(&ours.len()));
        }
        let mut written = Vec::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_end(&mut written));
        read.context("read", &self.path)?;
        let found = read_or_empty(&self.path)?;
        if Growing::new(&written).digest() != self.digest() || !written.starts_with(&found) {
            return Err(self.changed(&found.len()));
        }
        files::write_atomic(&self.path, &written, "csv_again")?;
        self.file = reopen(&self.path)?;
        Ok(true)
    }

    /// Checks that the file holds what was written, by reading it.
    ///
    /// Errors: [`RunError::Log`] if it does not.
    pub fn check_contents(&self) -> Result<(), RunError> {
        seal::verify_whole(&self.path, &self.digest())
    }

    fn changed(&self, found: &dyn std::fmt::Display) -> RunError {
        let problem = format!(
            "another program has changed it: {found} bytes are there, {} were written",
            self.whole.bytes()
        );
        RunError::Log { path: self.path.clone(), problem }
    }

    /// Makes the rows durable. Call it before a checkpoint is published: after a power cut, the checkpoint needs the
    /// rows that led to it.
    pub fn sync(&self) -> Result<(), RunError> {
        self.file.sync_data().context("sync", &self.path)
    }
}

/// A log that exists, for appending; what was written can be read again, whatever becomes of its name.
fn reopen(path: &Path) -> Result<File, RunError> {
    OpenOptions::new().read(true).append(true).open(path).context("open", path)
}

/// Where the columns of a header lie among those of `R`.
///
/// Errors: a phrase that names a column that is unknown, twice there, or missing although every row has it.
fn places_of<R: Row>(header: &str) -> Result<Vec<usize>, String> {
    let mut places = Vec::new();
    for name in header.split(',') {
        match R::COLUMNS.iter().position(|column| column.name == name) {
            Some(place) if places.contains(&place) => return Err(format!("it has two columns `{name}`")),
            Some(place) => places.push(place),
            None => return Err(format!("it has a column `{name}`, which this version does not write")),
        }
    }
    let mut required = R::COLUMNS.iter().enumerate().filter(|(_, column)| column.is_required);
    match required.find(|(place, _)| !places.contains(place)) {
        Some((_, column)) => Err(format!("it has no column `{}`", column.name)),
        None => Ok(places),
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

#[cfg(test)]
mod tests {
    use super::super::records::{read_train, read_val};
    use super::*;
    use std::fs;

    #[allow(clippy::needless_update, reason = "needed once the table has a further column")]
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
        #[allow(clippy::needless_update, reason = "needed once the table has a further column")]
        let val = ValRow { step: 250, tokens: 1000, val_loss: 3.2914627, ..ValRow::UNKNOWN };
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
    fn a_log_of_an_earlier_version_keeps_its_columns() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        let before = "step,loss,skipped,elapsed_s,mfu\n0,2.5,0,1.5,\n";
        fs::write(&path, before).expect("write");
        let mut log = TrainLog::open(&path).expect("open");
        log.append(&row(1)).expect("append");
        log.append(&TrainRow { mfu: None, ..row(2) }).expect("append");
        let after = format!("{before}1,5.4125,1,0.0125,0.375\n2,{},0,0.025,\n", row(2).loss);
        assert_eq!(fs::read_to_string(&path).expect("read"), after);
        cut_back(&path, 1).expect("cut");
        assert_eq!(fs::read_to_string(&path).expect("read"), before);
    }

    #[test]
    fn a_log_with_columns_that_cannot_be_written_is_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        for (header, what) in [
            ("loss,lr", "no column `step`"),
            ("step,note,loss", "a column `note`"),
            ("step,loss,step", "two columns `step`"),
        ] {
            fs::write(&path, format!("{header}\n")).expect("write");
            let error = TrainLog::open(&path).expect_err("refused").to_string();
            assert!(error.contains(what) && error.contains("train.csv"), "{error}");
        }
    }
}
