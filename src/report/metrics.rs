//! What is measured of a run: the table of metrics, and how they are gathered in one pass over the logs.
//!
//! The names of the options, the columns of every format and the JSON Schema are read from [`METRICS`].

use super::axis::{Axis, Cut};
use super::columns::{last_of, scan};
use super::numbers;
use crate::run::{RunError, dir};
use std::path::Path;

/// What a metric counts, which decides how it is written for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Nats per token.
    Loss,
    /// A count.
    Count,
    /// Tokens per second.
    Rate,
    /// Milliseconds.
    Milliseconds,
    /// A part of 1, written in percent.
    Fraction,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// A quotient of two rates.
    Ratio,
}

impl Unit {
    /// A value for people.
    #[must_use]
    pub fn shown(self, value: f64) -> String {
        match self {
            _ if !value.is_finite() => format!("{value}"),
            Self::Loss => format!("{value:.4}"),
            Self::Count => numbers::si(value),
            Self::Rate if value < 10.0 => format!("{value:.1}"),
            Self::Rate => numbers::thousands(value.round() as u64),
            Self::Milliseconds => format!("{value:.1} ms"),
            Self::Fraction => format!("{:.1} %", value * 100.0),
            Self::Bytes => numbers::bytes(value),
            Self::Seconds => numbers::seconds(value),
            Self::Ratio => format!("{value:.2}x"),
        }
    }
}

/// Which end of a metric is the good one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Less.
    Lower,
    /// More.
    Higher,
}

/// One metric of a run.
#[derive(Debug)]
pub struct Metric {
    /// In options, CSV and JSON.
    pub name: &'static str,
    /// At the head of a column.
    pub title: &'static str,
    /// What it is, in one sentence without a full stop.
    pub doc: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Which end is good.
    pub better: Better,
    /// Its value, where known.
    pub of: fn(&Results) -> Option<f64>,
}

const fn metric(
    name: &'static str,
    title: &'static str,
    unit: Unit,
    better: Better,
    of: fn(&Results) -> Option<f64>,
    doc: &'static str,
) -> Metric {
    Metric { name, title, doc, unit, better, of }
}

use Better::{Higher, Lower};

/// Every metric that a run has by itself, in the order of the columns.
pub const METRICS: &[Metric] = &[
    metric("steps", "steps", Unit::Count, Higher, |r| r.steps, "optimizer steps taken"),
    metric("tokens", "tokens", Unit::Count, Higher, |r| r.tokens, "tokens trained on"),
    metric("loss", "loss", Unit::Loss, Lower, |r| r.loss, "training loss of the last step"),
    metric("best_loss", "best", Unit::Loss, Lower, |r| r.best_loss, "lowest training loss of a step"),
    metric(
        "val_loss",
        "val loss",
        Unit::Loss,
        Lower,
        |r| r.val_loss,
        "validation loss of the last evaluation",
    ),
    metric("best_val_loss", "best val", Unit::Loss, Lower, |r| r.best_val_loss, "lowest validation loss"),
    metric(
        "tokens_per_s",
        "tokens/s",
        Unit::Rate,
        Higher,
        |r| r.tokens_per_s,
        "median tokens per second of the steps",
    ),
    metric(
        "step_ms",
        "step",
        Unit::Milliseconds,
        Lower,
        |r| r.step_ms,
        "median wall time of a step in milliseconds",
    ),
    metric(
        "mfu",
        "MFU",
        Unit::Fraction,
        Higher,
        |r| r.mfu,
        "median fraction of the peak rate that was reached",
    ),
    metric("memory_bytes", "memory", Unit::Bytes, Lower, |r| r.memory_bytes, "peak memory in bytes"),
    metric("elapsed_s", "time", Unit::Seconds, Lower, |r| r.elapsed_s, "seconds trained, over all sessions"),
];

/// The metric of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// What a run's logs say; `None` for what they do not.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(missing_docs, reason = "the table of metrics says what each is")]
pub struct Results {
    pub steps: Option<f64>,
    pub tokens: Option<f64>,
    pub loss: Option<f64>,
    pub best_loss: Option<f64>,
    pub val_loss: Option<f64>,
    pub best_val_loss: Option<f64>,
    pub tokens_per_s: Option<f64>,
    pub step_ms: Option<f64>,
    pub mfu: Option<f64>,
    pub memory_bytes: Option<f64>,
    pub elapsed_s: Option<f64>,
}

/// Memory that is reused from run to run.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) bytes: Vec<u8>,
    rates: Vec<f64>,
    times: Vec<f64>,
    mfus: Vec<f64>,
}

/// The columns of `train.csv` of which every row counts.
const EACH: [&str; 5] = ["loss", "tokens_per_s", "step_ms", "mfu", "memory_bytes"];
/// Those of which only the last row counts, unless the log is cut.
const LAST: [&str; 3] = ["step", "tokens", "elapsed_s"];

/// What a pass over a run's logs gives.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gathered {
    /// The results up to the cut.
    pub results: Results,
    /// Malformed rows that were left out.
    pub malformed: u64,
    /// Whether the run came as far as the cut; false without one.
    pub reached: bool,
}

/// Gathers the results of the run in `run`, up to `cut`.
///
/// Errors: [`RunError::Io`].
pub fn gather(run: &Path, cut: Option<Cut>, scratch: &mut Scratch) -> Result<Gathered, RunError> {
    let mut results = Results::default();
    let mut reached = false;
    let Scratch { bytes, rates, times, mfus } = scratch;
    for values in [&mut *rates, times, mfus] {
        values.clear();
    }
    // evaluations have no clock of their own: they are as old as the step before them
    let mut until_step = f64::INFINITY;
    let mut last = None;
    let mut columns = EACH.to_vec();
    columns.extend(cut.iter().flat_map(|_| LAST));
    let axis = cut.map_or("", |cut| cut.axis.column());
    let axis = columns.iter().position(|column| *column == axis);
    let trained = scan(&run.join(dir::TRAIN_CSV), &columns, bytes, |row| {
        if let (Some(cut), Some(axis)) = (cut, axis) {
            let at = cut.axis.reached(row[axis]);
            reached |= at >= cut.at;
            if at > cut.at {
                until_step = until_step.min(row[EACH.len()]);
                return;
            }
            last = Some([row[EACH.len()], row[EACH.len() + 1], row[EACH.len() + 2]]);
        }
        let (loss, memory) = (row[0], row[4]);
        // a loss that is not a number is a result; one that the file does not have is none
        results.loss = Some(loss);
        lower(&mut results.best_loss, loss);
        for (values, value) in [(&mut *rates, row[1]), (times, row[2]), (mfus, row[3])] {
            if !value.is_nan() {
                values.push(value);
            }
        }
        if memory > results.memory_bytes.unwrap_or(0.0) {
            results.memory_bytes = Some(memory);
        }
    })?;
    if cut.is_none() {
        last = last_of(bytes, &LAST).map(|row| [row[0], row[1], row[2]]);
    }
    if let Some([step, tokens, elapsed]) = last {
        (results.steps, results.tokens, results.elapsed_s) = (some(step + 1.0), some(tokens), some(elapsed));
    }
    if !trained.header.iter().any(|name| name == "loss") {
        results.loss = None;
    }
    [results.tokens_per_s, results.step_ms, results.mfu] = [rates, times, mfus].map(|values| median(values));
    let validated = scan(&run.join(dir::VAL_CSV), &["step", "tokens", "val_loss"], bytes, |row| {
        let &[step, tokens, loss] = row else { return };
        let beyond = match cut {
            Some(Cut { axis: Axis::Step, at }) => step > at,
            Some(Cut { axis: Axis::Tokens, at }) => tokens > at,
            Some(Cut { axis: Axis::Time, .. }) => step > until_step,
            None => false,
        };
        if !beyond {
            results.val_loss = Some(loss);
            lower(&mut results.best_val_loss, loss);
        }
    })?;
    Ok(Gathered { results, malformed: trained.malformed + validated.malformed, reached })
}

fn some(value: f64) -> Option<f64> {
    (!value.is_nan()).then_some(value)
}

fn lower(best: &mut Option<f64>, value: f64) {
    if value < best.unwrap_or(f64::INFINITY) {
        *best = Some(value);
    }
}

/// The middle value, the upper one of two; reorders.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    (!values.is_empty()).then(|| *values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(train: &str, val: &str) -> tempfile::TempDir {
        let run = tempfile::tempdir().expect("tempdir");
        std::fs::write(run.path().join("train.csv"), train).expect("write");
        std::fs::write(run.path().join("val.csv"), val).expect("write");
        run
    }

    const TRAIN: &str = "step,tokens,loss,mfu,tokens_per_s,elapsed_s,memory_bytes\n\
                         0,8,5,,10,1.5,100\n1,16,3,,30,2.5,300\n2,24,4,,20,3.5,200\n";
    const VAL: &str = "step,tokens,val_loss\n0,0,6\n2,16,4.5\n3,24,5.5\n";

    fn results(run: &tempfile::TempDir, cut: Option<(Axis, f64)>) -> Results {
        let cut = cut.map(|(axis, at)| Cut { axis, at });
        gather(run.path(), cut, &mut Scratch::default()).expect("readable").results
    }

    #[test]
    fn the_last_the_best_and_the_middle() {
        let found = results(&run(TRAIN, VAL), None);
        let expected = Results {
            steps: Some(3.0),
            tokens: Some(24.0),
            loss: Some(4.0),
            best_loss: Some(3.0),
            val_loss: Some(5.5),
            best_val_loss: Some(4.5),
            tokens_per_s: Some(20.0),
            step_ms: None,
            mfu: None,
            memory_bytes: Some(300.0),
            elapsed_s: Some(3.5),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_lies_beyond_the_cut_does_not_count() {
        let run = run(TRAIN, VAL);
        for (axis, at) in [(Axis::Step, 2.0), (Axis::Tokens, 16.0), (Axis::Time, 3.0)] {
            let found = results(&run, Some((axis, at)));
            assert_eq!((found.steps, found.loss, found.memory_bytes), (Some(2.0), Some(3.0), Some(300.0)));
            assert_eq!(found.val_loss, Some(4.5), "{axis:?}");
        }
        let before = Results { val_loss: Some(6.0), best_val_loss: Some(6.0), ..Results::default() };
        assert_eq!(results(&run, Some((Axis::Step, 0.0))), before);
    }

    #[test]
    fn a_loss_that_is_not_a_number_is_told_from_one_that_is_not_there() {
        let found = results(&run("step,loss\n0,2\n1,NaN\n", ""), None);
        assert!(found.loss.is_some_and(f64::is_nan));
        assert_eq!(found.best_loss, Some(2.0));
        assert_eq!(results(&run("step,tokens\n0,2\n", ""), None).loss, None);
    }
}
