//! Whether runs logged the same numbers: a regression check for the columns that are a function of the recipe.

use crate::regular;
use crate::run::column::Column;
use crate::run::columns::LOGS;
use crate::run::files::whole_lines;
use crate::run::{RunError, dir};
use crate::wording::count;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The first difference between a run's logs and those of the reference.
#[derive(Debug, Clone, PartialEq)]
pub enum Unequal {
    /// A value.
    Value {
        /// The log.
        file: &'static str,
        /// `step` of the row.
        step: String,
        /// The column.
        column: String,
        /// As the reference spells it.
        left: String,
        /// As the run spells it.
        right: String,
    },
    /// The logs have different numbers of rows.
    Rows {
        /// The log.
        file: &'static str,
        /// Rows of the reference.
        left: usize,
        /// Rows of the run.
        right: usize,
    },
    /// A column that only one of the logs has.
    Column {
        /// The log.
        file: &'static str,
        /// The column.
        column: String,
        /// Whether it is the reference that has it.
        left_has_it: bool,
    },
    /// Neither training log has a row, so there is nothing to compare.
    Nothing,
}

impl fmt::Display for Unequal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Value { file, step, column, left, right } => {
                write!(f, "{file} differs first at step {step}, column {column}: {left} and {right}")
            }
            Self::Rows { file, left, right } => {
                write!(f, "{file} has {} in one and {right} in the other", count(*left, "row"))
            }
            Self::Column { file, column, left_has_it } => {
                let which = if *left_has_it { "first" } else { "second" };
                write!(f, "{file} has the column {column} only in the {which}")
            }
            Self::Nothing => f.write_str("neither has logged a step, so there is nothing to compare"),
        }
    }
}

/// Compares the logs of two runs: numbers may differ by `rtol` times the larger magnitude, 0 wants the same number. Two
/// that are not numbers are equal.
///
/// Errors: [`RunError`] for logs that cannot be read.
pub fn first_difference(left: &Path, right: &Path, rtol: f64) -> Result<Option<Unequal>, RunError> {
    let mut compared = 0;
    for (file, columns) in LOGS {
        let (left, right) = (Log::read(&left.join(file))?, Log::read(&right.join(file))?);
        if file == dir::TRAIN_CSV {
            compared = left.count.max(right.count);
        }
        if let Some(found) = compare(file, columns, &left, &right, rtol) {
            return Ok(Some(found));
        }
    }
    Ok((compared == 0).then_some(Unequal::Nothing))
}

fn compare(file: &'static str, columns: &[Column], left: &Log, right: &Log, rtol: f64) -> Option<Unequal> {
    let mut places = Vec::new();
    let are_there = left.count > 0 && right.count > 0;
    let of_table = columns.iter().filter(|column| column.is_deterministic).map(|column| column.name);
    // those of named sets and of tasks are as deterministic as the loss
    let is_further = |name: &&str| file == dir::VAL_CSV && columns.iter().all(|column| column.name != *name);
    let further = left.header.iter().chain(&right.header).filter(is_further);
    for column in of_table.chain(further).filter(|_| are_there) {
        match (left.place(column), right.place(column)) {
            (Some(left), Some(right)) => places.push((column, left, right)),
            (None, None) => {}
            (has, _) => {
                let column = column.to_owned();
                return Some(Unequal::Column { file, column, left_has_it: has.is_some() });
            }
        }
    }
    for (l, r) in left.rows().zip(right.rows()) {
        for &(column, at_left, at_right) in &places {
            let (a, b) = (l.get(at_left).unwrap_or_default(), r.get(at_right).unwrap_or_default());
            if !equal(a, b, rtol) {
                let step = left.place("step").and_then(|at| l.get(at)).unwrap_or_default().to_owned();
                let (left, right) = (a.to_owned(), b.to_owned());
                return Some(Unequal::Value { file, step, column: column.to_owned(), left, right });
            }
        }
    }
    let (left, right) = (left.count, right.count);
    (left != right).then_some(Unequal::Rows { file, left, right })
}

fn equal(left: &str, right: &str, rtol: f64) -> bool {
    match (left.parse::<f64>(), right.parse::<f64>()) {
        // one infinity is no more than any multiple of it away from the other, so it needs the first test alone
        (Ok(a), Ok(b)) => {
            a == b
                || (a.is_nan() && b.is_nan())
                || (a - b).is_finite() && (a - b).abs() <= rtol * a.abs().max(b.abs())
        }
        _ => left == right,
    }
}

fn reader(log: &[u8]) -> csv::Reader<&[u8]> {
    csv::Reader::from_reader(whole_lines(log))
}

/// A log as its texts, so that a message shows what the file says.
struct Log {
    header: csv::StringRecord,
    /// The whole file: a row that is kept takes a hundred times the memory of a short one.
    bytes: Vec<u8>,
    count: usize,
}

impl Log {
    fn read(path: &Path) -> Result<Self, RunError> {
        let mut bytes = Vec::new();
        match regular::read_without_holes(path, &mut bytes) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            read => read.map_err(|error| RunError::Io { action: "read", path: path.to_owned(), error })?,
        }
        let mut reader = reader(&bytes);
        let malformed =
            |error: csv::Error| RunError::Malformed { path: PathBuf::from(path), problem: error.to_string() };
        let header = reader.headers().map_err(malformed)?.clone();
        let (mut row, mut count) = (csv::StringRecord::new(), 0);
        while reader.read_record(&mut row).map_err(malformed)? {
            count += 1;
        }
        drop(reader);
        Ok(Self { header, bytes, count })
    }

    /// The rows; all of them could be read before.
    fn rows(&self) -> impl Iterator<Item = csv::StringRecord> {
        reader(&self.bytes).into_records().map_while(Result::ok)
    }

    fn place(&self, column: &str) -> Option<usize> {
        self.header.iter().position(|name| name == column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn run(train: &str, val: &str) -> tempfile::TempDir {
        let run = tempfile::tempdir().expect("tempdir");
        fs::write(run.path().join("train.csv"), train).expect("write");
        fs::write(run.path().join("val.csv"), val).expect("write");
        run
    }

    fn message(left: (&str, &str), right: (&str, &str), rtol: f64) -> Option<String> {
        let (left, right) = (run(left.0, left.1), run(right.0, right.1));
        first_difference(left.path(), right.path(), rtol).expect("readable").map(|found| found.to_string())
    }

    const TRAIN: &str = "step,tokens,loss,step_ms\n0,8,5,1\n1,16,4,1\n";
    const VAL: &str = "step,tokens,val_loss\n2,16,4\n";

    #[test]
    fn the_first_difference_is_named() {
        let other = TRAIN.replace("16,4,1", "16,4.0004,9");
        let said = message((TRAIN, VAL), (&other, VAL), 0.0).expect("a difference");
        assert_eq!(said, "train.csv differs first at step 1, column loss: 4 and 4.0004");
        assert_eq!(message((TRAIN, VAL), (&other, VAL), 1e-3), None);
        let said =
            message((TRAIN, VAL), (TRAIN, "step,tokens,val_loss\n2,16,NaN\n"), 0.5).expect("a difference");
        assert_eq!(said, "val.csv differs first at step 2, column val_loss: 4 and NaN");
    }

    #[test]
    fn named_sets_and_tasks_count_as_the_loss_does() {
        let val = |acc: &str| format!("step,tokens,val_loss,val_loss_poems,poems_acc\n2,16,4,5,{acc}\n");
        let said = message((TRAIN, &val("0.5")), (TRAIN, &val("0.25")), 0.0).expect("a difference");
        assert_eq!(said, "val.csv differs first at step 2, column poems_acc: 0.5 and 0.25");
        assert_eq!(message((TRAIN, &val("0.5")), (TRAIN, &val("0.50")), 0.0), None);
        assert_eq!(message((TRAIN, &val("")), (TRAIN, &val("")), 0.0), None);
        for (left, right, which) in
            [(val("1"), VAL.to_owned(), "first"), (VAL.to_owned(), val("1"), "second")]
        {
            let said = message((TRAIN, &left), (TRAIN, &right), 0.0).expect("a difference");
            assert_eq!(said, format!("val.csv has the column val_loss_poems only in the {which}"));
        }
    }

    #[test]
    fn times_spelling_and_torn_lines_do_not_count() {
        let other = "step,loss,tokens,step_ms\n0,5.0,8,7\n1,4e0,16,7\n2,3,2";
        assert_eq!(message((TRAIN, VAL), (other, VAL), 0.0), None);
        let both = "step,loss\n0,NaN\n1,inf\n";
        assert_eq!(message((both, ""), (both, ""), 0.0), None);
        assert!(message((both, ""), ("step,loss\n0,NaN\n1,-inf\n", ""), 0.9).is_some());
    }

    #[test]
    fn fewer_rows_missing_columns_and_nothing_at_all_are_no_equality() {
        let shorter = "step,tokens,loss\n0,8,5\n";
        let said = message((TRAIN, VAL), (shorter, VAL), 0.0).expect("a difference");
        assert_eq!(said, "train.csv has 2 rows in one and 1 in the other");
        let said = message(("step,loss\n0,5\n", ""), (shorter, ""), 0.0).expect("a difference");
        assert_eq!(said, "train.csv has the column tokens only in the second");
        let said = message(("", ""), ("step,loss\n", ""), 0.0).expect("nothing");
        assert!(said.contains("nothing to compare"), "{said}");
        let said = message((TRAIN, VAL), ("", ""), 0.0).expect("a difference");
        assert_eq!(said, "train.csv has 2 rows in one and 0 in the other");
    }
}
