//! The metrics of a run: one number each, which [`gather`](super::gather) takes from the logs.
//!
//! [`metrics`] lists those of the table of columns ([`crate::run::columns`]): the names of the options, the columns of
//! every format and the JSON Schema come from there. [`further`] finds columns of `val.csv` that the table lacks.

use super::numbers;
use super::scan::header;
use super::target::Target;
use crate::run::column::{Aggregate, Better, Column, Summary, Unit};
use crate::run::row::Row;
use crate::run::{ValRow, columns, dir, evaluations};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

impl Unit {
    /// A value for people.
    #[must_use]
    pub fn shown(self, value: f64) -> String {
        match self {
            _ if !value.is_finite() => format!("{value}"),
            Self::Loss => numbers::fixed(value, 4),
            Self::Count => numbers::si(value),
            Self::Rate if value < 10.0 => format!("{value:.1}"),
            Self::Rate => numbers::whole(value),
            Self::Milliseconds => format!("{} ms", numbers::fixed(value, 1)),
            Self::Fraction => format!("{} %", numbers::fixed(value * 100.0, 1)),
            Self::Bytes => numbers::bytes(value),
            Self::Seconds => numbers::seconds(value),
            Self::Ratio => format!("{}x", numbers::fixed(value, 2)),
            Self::Number => numbers::significant(value, 4),
        }
    }

    /// How far two values are apart, for people: fractions in percentage points, and a difference that rounds to none
    /// in two digits.
    #[must_use]
    pub fn apart(self, a: f64, b: f64) -> String {
        let difference = (a - b).abs();
        let (scale, word) = match self {
            Self::Fraction => (100.0, " percentage points"),
            Self::Milliseconds => (1.0, " ms"),
            Self::Seconds => (1.0, " s"),
            Self::Bytes => (1.0, " bytes"),
            Self::Ratio => (1.0, "x"),
            Self::Loss | Self::Count | Self::Rate | Self::Number => (1.0, ""),
        };
        let number = difference * scale;
        let rounded = match self {
            Self::Fraction => format!("{}{word}", numbers::fixed(number, 1)),
            _ => self.shown(difference),
        };
        let is_none = number > 0.0 && !rounded.contains(|c: char| ('1'..='9').contains(&c));
        if is_none { format!("{}{word}", numbers::significant(number, 2)) } else { rounded }
    }
}

/// One number that stands for a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// In options, CSV and JSON.
    pub name: String,
    /// At the head of a column for people.
    pub title: String,
    /// What it is, as a phrase.
    pub meaning: String,
    /// What it counts.
    pub unit: Unit,
    /// Which end is good.
    pub better: Better,
    /// Whether people see it without asking.
    pub for_people: bool,
    /// How soon a table that is too wide leaves it out: the lowest stays longest.
    pub leaves: u32,
    /// The log that it is read from.
    pub(super) log: &'static str,
    /// The column of that log.
    pub(super) column: String,
    /// How the rows become one number.
    pub(super) aggregate: Aggregate,
    /// The target to which it measures the way; `None` for a metric of the logs themselves.
    pub target: Option<Box<Target>>,
}

impl Metric {
    /// The metric of the logs that says what it was measured on: the best value of a target's column for the way to
    /// it, since a run that has not reached a target was measured all the same; otherwise the metric itself.
    #[must_use]
    pub fn measured(&self) -> &Self {
        self.target.as_ref().map_or(self, |target| &target.best)
    }

    /// Whether two metrics are of one column of one log.
    #[must_use]
    pub fn is_of_column(&self, other: &Self) -> bool {
        let column = |metric: &Self| (metric.log, metric.column.clone());
        column(self.measured()) == column(other.measured())
    }

    /// Whether it is the way to a target in seconds, which are those of a machine.
    pub(super) fn is_timed_way(&self) -> bool {
        self.target.is_some() && self.unit == Unit::Seconds
    }

    /// Whether it is of this column of this log.
    #[must_use]
    pub fn is_of(&self, log: &str, column: &str) -> bool {
        self.log == log && self.column == column
    }

    fn new(log: &'static str, column: &Column, summary: &Summary) -> Self {
        Self {
            name: summary.name.to_owned(),
            title: summary.title.to_owned(),
            meaning: summary.meaning.to_owned(),
            unit: column.unit,
            better: summary.better,
            for_people: summary.for_people,
            leaves: summary.leaves,
            log,
            column: column.name.to_owned(),
            aggregate: summary.aggregate,
            target: None,
        }
    }
}

/// The metrics of the table of columns, in the order of a comparison.
#[must_use]
pub fn metrics() -> &'static [Metric] {
    static METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
        let mut metrics: Vec<(u32, Metric)> = Vec::new();
        for (log, columns) in columns::LOGS {
            for column in columns {
                metrics.extend(column.summaries.iter().map(|s| (s.place, Metric::new(log, column, s))));
            }
        }
        metrics.sort_by_key(|(place, _)| *place);
        metrics.into_iter().map(|(_, metric)| metric).collect()
    });
    &METRICS
}

/// The metric of the table of columns with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Metric> {
    metrics().iter().find(|metric| metric.name == name)
}

/// A metric that the table of columns lacks: the last value of the column `name` of `val.csv`, else of `eval.csv`, or
/// the best one where the name is `best_` and a column. `None` if no run in `runs` has that column.
#[must_use]
pub fn further(runs: &[PathBuf], name: &str) -> Option<Metric> {
    let best = name.strip_prefix("best_");
    let mut wanted: Vec<(&str, bool)> = vec![(name, false)];
    wanted.extend(best.map(|column| (column, true)));
    for (column, is_best) in wanted {
        let Some(log) = log_with(runs, column) else { continue };
        let (unit, better) = columns::outside_the_table(column);
        let (aggregate, what) = match (is_best, better) {
            (false, _) => (Aggregate::Last, "last value"),
            (true, Better::Lower) => (Aggregate::Min, "lowest value"),
            (true, Better::Higher) => (Aggregate::Max, "highest value"),
        };
        return Some(Metric {
            name: name.to_owned(),
            title: name.replace('_', " "),
            meaning: format!("{what} of {column} in {log}"),
            unit,
            better,
            for_people: true,
            leaves: 0,
            log,
            column: column.to_owned(),
            aggregate,
            target: None,
        });
    }
    None
}

/// The first log, of those that evaluations are in, that has a column in some run which the table of columns lacks.
fn log_with(runs: &[PathBuf], column: &str) -> Option<&'static str> {
    if has_column(runs, column) {
        return Some(dir::VAL_CSV);
    }
    if ValRow::COLUMNS.iter().any(|known| known.name == column)
        || evaluations::COLUMNS.iter().any(|(known, _)| *known == column)
    {
        return None;
    }
    runs.iter().any(|run| has(&run.join(dir::EVAL_CSV), column)).then_some(dir::EVAL_CSV)
}

/// Whether the `val.csv` of some run has a column that the table of columns lacks.
pub(super) fn has_column(runs: &[PathBuf], column: &str) -> bool {
    let is_known = ValRow::COLUMNS.iter().any(|known| known.name == column);
    !is_known && runs.iter().any(|run| has(&run.join(dir::VAL_CSV), column))
}

fn has(log: &Path, column: &str) -> bool {
    header(log).iter().any(|name| name == column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_none_only_where_there_is_none() {
        for (unit, a, b, expected) in [
            (Unit::Fraction, 0.25, 0.375, "12.5 percentage points"),
            (Unit::Fraction, 0.25, 0.2501, "0.01 percentage points"),
            (Unit::Seconds, 12.0, 4.5, "7.5 s"),
            (Unit::Seconds, 1.0, 1.02, "0.02 s"),
            (Unit::Loss, 3.0, 3.25, "0.2500"),
            (Unit::Loss, 3.0, 3.00001, "1e-5"),
            (Unit::Milliseconds, 3.0, 3.03, "0.03 ms"),
            (Unit::Bytes, 1048576.0, 1052672.0, "4096 bytes"),
            (Unit::Rate, 1000.0, 1000.04, "0.04"),
            (Unit::Ratio, 1.0, 1.001, "0.001x"),
            (Unit::Loss, 3.0, 3.0, "0.0000"),
        ] {
            assert_eq!(unit.apart(a, b), expected);
        }
    }
}
