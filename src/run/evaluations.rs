//! `eval.csv`: evaluations of a run's checkpoints, made after the fact.
//!
//! The trainer neither reads nor writes it, so a run that trains at the moment may be evaluated too, and the run's lock
//! is not taken: writers take turns by a lock on the file itself. Rows are in the order of their steps. A column is
//! made when it is first needed.

use super::error::Context;
use super::{RunError, dir, files};
use crate::regular::{self, OFlags, OpenDir};
use crate::wording::{no_formula, shortened};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The columns that every row has, with their meanings; those of the measured numbers follow.
pub const COLUMNS: &[(&str, &str)] = &[
    ("step", "Optimizer steps after which the checkpoint was saved."),
    ("tokens", "Tokens trained on until then."),
    ("evaluated", "When, RFC 3339 in UTC."),
    ("precision", "What the operands of matrix products were rounded to."),
    ("data", "Files that the loss is of, separated by semicolons; empty without a loss."),
    ("data_tokens", "Tokens that the loss is the mean of."),
];

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
    /// Measured numbers by their names.
    pub values: Vec<(String, f64)>,
}

/// Adds a row to the `eval.csv` of the run in `run`.
///
/// # Errors
/// [`RunError::Io`]; [`RunError::Malformed`] for a file that has no column `step`, which is left as it is.
pub fn append(run: &Path, evaluation: &Evaluation) -> Result<(), RunError> {
    let path = run.join(dir::EVAL_CSV);
    let run = OpenDir::open(run).context("open", run)?;
    let mut held = locked(&run)?;
    let mut text = String::new();
    held.by_ref().take(regular::LOG).read_to_string(&mut text).context("read", &path)?;
    let text = with_row(&text, evaluation).map_err(|problem| RunError::malformed(&path, problem))?;
    files::write_in(&run, dir::EVAL_CSV, text.as_bytes(), "eval_csv")
}

/// The file, made if it is not there, locked, and still the one that has the name.
fn locked(run: &OpenDir) -> Result<File, RunError> {
    let path = run.join(dir::EVAL_CSV);
    loop {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let file = run.open_file(dir::EVAL_CSV, flags).context("open", &path)?;
        file.lock().context("lock", &path)?;
        // the writer before may have put another file in its place
        if run.is_named(dir::EVAL_CSV, &file).context("read", &path)? {
            return Ok(file);
        }
    }
}

/// The file's text with a further row in its place.
fn with_row(text: &str, evaluation: &Evaluation) -> Result<String, String> {
    let mut lines = files::whole_lines(text.as_bytes()).split(|&byte| byte == b'\n');
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
    let Evaluation { step, tokens, evaluated, precision, data, data_tokens, values } = evaluation;
    // no cell needs quotes, so that a line can be taken apart at its commas
    let plain = |text: &str| text.replace([',', '"', '\n', '\r', ';'], "_");
    let data: Vec<String> = data.iter().map(|name| plain(name)).collect();
    let mut cells = vec![
        ("step", step.to_string()),
        ("tokens", tokens.to_string()),
        ("evaluated", plain(evaluated)),
        ("precision", plain(precision)),
        ("data", no_formula(data.join(";"))),
        ("data_tokens", data_tokens.map(|tokens| tokens.to_string()).unwrap_or_default()),
    ];
    cells.extend(values.iter().map(|(name, value)| (name.as_str(), value.to_string())));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluation(step: u64, values: &[(&str, f64)]) -> Evaluation {
        Evaluation {
            step,
            tokens: 10 * step,
            evaluated: "2024-01-01T00:00:00Z".into(),
            precision: "fp32".into(),
            data: vec!["a,b.bin".into(), "c.bin".into()],
            data_tokens: Some(64),
            values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
    }

    #[test]
    fn rows_are_in_the_order_of_steps_and_columns_are_made_when_needed() {
        let dir = tempfile::tempdir().expect("tempdir");
        append(dir.path(), &evaluation(20, &[("val_loss", 3.5)])).expect("a row");
        append(dir.path(), &evaluation(10, &[("poems_acc", 0.25)])).expect("a row");
        append(dir.path(), &evaluation(20, &[("val_loss", 3.25), ("poems_acc", 0.5)])).expect("a row");
        let text = std::fs::read_to_string(dir.path().join("eval.csv")).expect("the file");
        let row = |step: u64, end: &str| {
            format!("{step},{},2024-01-01T00:00:00Z,fp32,a_b.bin;c.bin,64,{end}\n", 10 * step)
        };
        let header = "step,tokens,evaluated,precision,data,data_tokens,val_loss,poems_acc\n";
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
                        append(run, &evaluation(row, &[(&name, 0.5)])).expect("a row");
                    }
                });
            }
        });
        let text = std::fs::read_to_string(dir.path().join("eval.csv")).expect("the file");
        assert_eq!(text.lines().count(), 21, "{text}");
        assert_eq!(text.matches(",0.5").count(), 20, "{text}");
    }

    #[test]
    fn a_foreign_file_is_left_as_it_is() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("eval.csv");
        std::fs::write(&path, "a,b\n1,2\n").expect("write");
        let error = append(dir.path(), &evaluation(1, &[])).expect_err("no step").to_string();
        assert!(error.contains("eval.csv") && error.contains("`step`"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), "a,b\n1,2\n");
    }
}
