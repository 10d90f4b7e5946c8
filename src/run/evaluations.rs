//! `eval.csv`: evaluations of a run's checkpoints, made after the fact.
//!
//! The trainer neither reads nor writes it, so a run that trains at the moment may be evaluated too, and the run's lock
//! is not taken: writers take turns by a lock on the file itself. Rows are in the order of their steps. A column is
//! made when it is first needed.

use super::columns::task_of;
use super::error::Context;
use super::{RunError, dir, files};
use crate::regular::{self, OFlags, OpenDir};
use crate::wording::{no_formula, shortened};
use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The columns that every row has, with their meanings; those of the measured numbers follow.
pub const COLUMNS: &[(&str, &str)] = &[
    ("step", "Optimizer steps after which the checkpoint was saved."),
    ("tokens", "Tokens trained on until then."),
    ("evaluated", "When, RFC 3339 in UTC."),
    ("precision", "What the operands of matrix products were rounded to."),
    ("data", "Files that the loss is of, separated by semicolons; empty without a loss."),
    ("data_tokens", "Tokens that the loss is the mean of."),
    (
        MEASURED,
        "What the numbers are of, separated by semicolons: `val_loss=DIGEST:TOKENS`, so for a named set, \
         `bits_per_byte=DIGEST:whole` (or the number of bytes, where it is of a part, or more than one token in twenty \
         is in no row), and `TASK=DIGEST` of a task's examples; the first 16 digits of blake3 digests. `/` and the \
         tokens of a row follow where so many tokens of short files are in no row that its length decides which are.",
    ),
];

/// The column that says by digests what was measured.
const MEASURED: &str = "measured";
/// The column that means the same whatever a token is.
pub const BITS_PER_BYTE: &str = "bits_per_byte";
/// The extent of what is of nearly all of the data.
pub const WHOLE: &str = "whole";
/// Digits of a digest that are written: as many as tell apart what somebody did not mean to confuse.
pub const DIGITS: usize = 16;

/// One evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// Optimizer steps after which the checkpoint was saved.
    pub step: u64,
    /// Tokens trained on until then.
    pub tokens: u64,
    /// When, RFC 3339 in UTC.
    pub evaluated: String,
    /// What the operands of matrix products were rounded to.
    pub precision: String,
    /// What the loss is of.
    pub data: Vec<String>,
    /// Tokens that the loss is the mean of.
    pub data_tokens: Option<u64>,
    /// What the numbers are of: the name of a loss, or what the scores of a task begin with, and the digest of the data
    /// or examples; of a loss the extent, too: the number of tokens or bytes, or [`WHOLE`].
    pub measured: Vec<(String, String, Option<String>)>,
    /// Measured numbers by their names.
    pub values: Vec<(String, f64)>,
}

/// Adds a row to the `eval.csv` of the run in `run`. Links of other users are followed on the way to `trusted` alone.
///
/// # Errors
/// [`RunError::Io`], also where another process keeps a lock on the file for ten seconds; [`RunError::Malformed`] for a
/// file that has no column `step`, which is left as it is.
pub fn append(run: &Path, trusted: &Path, evaluation: &Evaluation) -> Result<(), RunError> {
    let path = run.join(dir::EVAL_CSV);
    let run = regular::open_followed(run, trusted).context("open", run)?;
    let mut held = locked(&run)?;
    let mut text = String::new();
    held.by_ref().take(regular::LOG).read_to_string(&mut text).context("read", &path)?;
    // who holds the lock is the only writer: what is left of others was killed
    files::remove_temporaries(&run, dir::EVAL_CSV);
    let text = with_row(&text, evaluation).map_err(|problem| RunError::malformed(&path, problem))?;
    files::write_in(&run, dir::EVAL_CSV, text.as_bytes(), "eval_csv")
}

/// The file, made if it is not there, locked, and still the one that has the name.
fn locked(run: &OpenDir) -> Result<File, RunError> {
    let path = run.join(dir::EVAL_CSV);
    loop {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let file = run.open_file(dir::EVAL_CSV, flags).context("open", &path)?;
        lock_in_time(&file).context("lock", &path)?;
        // the writer before may have put another file in its place
        if run.is_named(dir::EVAL_CSV, &file).context("read", &path)? {
            return Ok(file);
        }
    }
}

/// Writers take a moment each; who holds a lock longer is no writer.
const PATIENCE: Duration = Duration::from_secs(10);

fn lock_in_time(file: &File) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(20))
            }
            Err(TryLockError::WouldBlock) => {
                let problem = "another process has kept it for ten seconds and has not written the file; what was \
                               measured is not saved";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, problem));
            }
        }
    }
}

/// What a column was measured on, by the cell of the same row that says it; `None` where that says nothing of it.
#[must_use]
pub fn measured_on<'a>(cell: &'a str, column: &str) -> Option<&'a str> {
    let of = |name| measured_by_name(cell, name);
    match column {
        // rows of earlier versions have no entry of its own
        BITS_PER_BYTE => of(column).or_else(|| of("val_loss")),
        "perplexity" => of("val_loss"),
        column => of(task_of(column).unwrap_or(column)),
    }
}

/// The name of the entry that is there if the model was trained on some of what a loss of this name was measured on.
/// No task and no set has such a name.
#[must_use]
pub fn seen(name: &str) -> String {
    format!("{name}:seen")
}

/// Whether such a cell says that the model was trained on some of what a column was measured on.
#[must_use]
pub fn is_seen(cell: &str, column: &str) -> bool {
    let name = if [BITS_PER_BYTE, "perplexity"].contains(&column) { "val_loss" } else { column };
    measured_by_name(cell, &seen(name)).is_some()
}

/// The entry of this name in such a cell.
#[must_use]
pub fn measured_by_name<'a>(cell: &'a str, name: &str) -> Option<&'a str> {
    let mut entries = cell.split(';').filter_map(|entry| entry.split_once('='));
    entries.find(|(known, _)| *known == name).map(|(_, on)| on)
}

/// The file's text with a further row in its place.
fn with_row(text: &str, evaluation: &Evaluation) -> Result<String, String> {
    if !text.is_empty() && !text.ends_with('\n') {
        let last = text.rsplit('\n').next().unwrap_or_default();
        return Err(format!(
            "its last row, `{}`, has no end: complete it, with a line feed, or take it out",
            shortened(last, 80)
        ));
    }
    let mut lines = text.as_bytes().split(|&byte| byte == b'\n');
    let header = lines.next().and_then(|line| std::str::from_utf8(line).ok()).unwrap_or_default();
    let mut columns: Vec<&str> = header.split(',').filter(|name| !name.is_empty()).collect();
    if columns.is_empty() {
        columns.extend(COLUMNS.iter().map(|(name, _)| name));
    }
    let step_at = columns.iter().position(|name| *name == "step").ok_or("it has no column `step`")?;
    let written = columns.len();
    let mut rows: Vec<&str> = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let line = std::str::from_utf8(line).map_err(|_| "it is not UTF-8")?;
        // rows are not filled up: a file of two megabytes could ask for a terabyte of empty cells
        if line.bytes().filter(|&byte| byte == b',').count() + 1 != written {
            return Err(format!("the row `{}` has not {written} cells, as its header", shortened(line, 80)));
        }
        rows.push(line);
    }
    let mut own = vec![String::new(); columns.len()];
    for (name, value) in cells(evaluation) {
        match columns.iter().position(|column| *column == name) {
            Some(at) => own[at] = value,
            None => {
                columns.push(name);
                own.push(value);
            }
        }
    }
    let step = |row: &str| row.split(',').nth(step_at).and_then(|cell| cell.parse().ok()).unwrap_or(0u64);
    let at = rows.partition_point(|row| step(row) <= evaluation.step);
    let added = ",".repeat(columns.len() - written);
    let row = |row: &&str| format!("{row}{added}\n");
    let (before, after) = rows.split_at(at);
    let mut out = columns.join(",") + "\n";
    out.extend(before.iter().map(row));
    out += &(own.join(",") + "\n");
    out.extend(after.iter().map(row));
    Ok(out)
}

/// The cells of a row by their columns.
fn cells(evaluation: &Evaluation) -> Vec<(&str, String)> {
    let Evaluation { step, tokens, evaluated, precision, data, data_tokens, measured, values } = evaluation;
    // no cell needs quotes, so that a line can be taken apart at its commas
    let plain = |text: &str| text.replace([',', '"', '\n', '\r', ';'], "_");
    let data: Vec<String> = data.iter().map(|name| plain(name)).collect();
    let measured = measured.iter().map(|(name, digest, extent)| {
        let extent = extent.as_ref().map_or_else(String::new, |extent| format!(":{extent}"));
        format!("{}={}{extent}", plain(name), digest.get(..DIGITS).unwrap_or(digest))
    });
    let mut cells = vec![
        ("step", step.to_string()),
        ("tokens", tokens.to_string()),
        ("evaluated", plain(evaluated)),
        ("precision", plain(precision)),
        ("data", no_formula(data.join(";"))),
        ("data_tokens", data_tokens.map(|tokens| tokens.to_string()).unwrap_or_default()),
        (MEASURED, measured.collect::<Vec<_>>().join(";")),
    ];
    cells.extend(values.iter().map(|(name, value)| (name.as_str(), value.to_string())));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURES: &str = "val_loss=0123456789abcdef:64;poems=fedcba9876543210";

    #[test]
    fn a_column_is_of_what_its_row_says() {
        let on = |column| measured_on(MEASURES, column);
        for column in ["val_loss", "perplexity", "bits_per_byte"] {
            assert_eq!(on(column), Some("0123456789abcdef:64"), "{column}");
        }
        let with_bytes = format!("{MEASURES};bits_per_byte=0123456789abcdef:whole");
        assert_eq!(measured_on(&with_bytes, "bits_per_byte"), Some("0123456789abcdef:whole"));
        assert_eq!(measured_on(&with_bytes, "perplexity"), Some("0123456789abcdef:64"));
        for column in ["poems_acc", "poems_acc_norm", "poems_acc_norm_stderr", "poems_perplexity"] {
            assert_eq!(on(column), Some("fedcba9876543210"), "{column}");
        }
        for column in ["val_loss_poems", "poems_lm_eval_acc", "my_poems_acc", "poem_acc"] {
            assert_eq!(on(column), None, "{column}");
        }
    }

    fn evaluation(step: u64, values: &[(&str, f64)]) -> Evaluation {
        Evaluation {
            step,
            tokens: 10 * step,
            evaluated: "2024-01-01T00:00:00Z".into(),
            precision: "fp32".into(),
            data: vec!["a,b.bin".into(), "c.bin".into()],
            data_tokens: Some(64),
            measured: vec![
                ("val_loss".into(), "0123456789abcdef01234567".into(), Some("64".into())),
                ("poems".into(), "fedcba9876543210".into(), None),
            ],
            values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
    }

    #[test]
    fn rows_are_in_the_order_of_steps_and_columns_are_made_when_needed() {
        let dir = tempfile::tempdir().expect("tempdir");
        append(dir.path(), dir.path(), &evaluation(20, &[("val_loss", 3.5)])).expect("a row");
        append(dir.path(), dir.path(), &evaluation(10, &[("poems_acc", 0.25)])).expect("a row");
        append(dir.path(), dir.path(), &evaluation(20, &[("val_loss", 3.25), ("poems_acc", 0.5)]))
            .expect("a row");
        let text = std::fs::read_to_string(dir.path().join("eval.csv")).expect("the file");
        let row = |step: u64, end: &str| {
            format!("{step},{},2024-01-01T00:00:00Z,fp32,a_b.bin;c.bin,64,{MEASURES},{end}\n", 10 * step)
        };
        let header = "step,tokens,evaluated,precision,data,data_tokens,measured,val_loss,poems_acc\n";
        assert_eq!(text, header.to_owned() + &row(10, ",0.25") + &row(20, "3.5,") + &row(20, "3.25,0.5"));
    }

    #[test]
    fn writers_take_turns() {
        let dir = tempfile::tempdir().expect("tempdir");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let run = dir.path();
                scope.spawn(move || {
                    for row in 0..5 {
                        let name = format!("task{writer}_acc");
                        append(run, run, &evaluation(row, &[(&name, 0.5)])).expect("a row");
                    }
                });
            }
        });
        let text = std::fs::read_to_string(dir.path().join("eval.csv")).expect("the file");
        assert_eq!(text.lines().count(), 21, "{text}");
        assert_eq!(text.matches(",0.5").count(), 20, "{text}");
    }

    #[test]
    fn a_row_that_may_have_been_cut_is_neither_lost_nor_taken_for_whole() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("eval.csv");
        append(dir.path(), dir.path(), &evaluation(10, &[("val_loss", 3.5)])).expect("a row");
        let whole = std::fs::read_to_string(&path).expect("the file");
        for cut in [whole.trim_end(), &whole[..whole.rfind(',').expect("a comma")]] {
            std::fs::write(&path, cut).expect("write");
            let error =
                append(dir.path(), dir.path(), &evaluation(20, &[])).expect_err("a cut row").to_string();
            assert!(error.contains("eval.csv") && error.contains("has no end"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).expect("the file"), cut);
        }
        let narrow = whole.replace(",3.5", "");
        std::fs::write(&path, &narrow).expect("write");
        let error =
            append(dir.path(), dir.path(), &evaluation(20, &[])).expect_err("a cell less").to_string();
        assert!(error.contains("has not 8 cells"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), narrow);
    }

    #[test]
    fn a_foreign_file_is_left_as_it_is() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("eval.csv");
        std::fs::write(&path, "a,b\n1,2\n").expect("write");
        let error = append(dir.path(), dir.path(), &evaluation(1, &[])).expect_err("no step").to_string();
        assert!(error.contains("eval.csv") && error.contains("`step`"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), "a,b\n1,2\n");
    }
}
