//! How the rows of a log become the metrics of a run.

use super::around::Around;
use super::metrics::{Metric, metrics};
use super::results::Results;
use super::stats::median;
use crate::run::column::{Aggregate, Unit};
use crate::run::dir;
use std::collections::HashSet;

/// A metric while the rows of its log go by.
pub(super) struct Fold<'a> {
    pub(super) metric: &'a Metric,
    /// Where its column lies in a row.
    pub(super) place: usize,
    value: Option<f64>,
    /// The step of the row that it was taken from; NaN in a log of training.
    step: f64,
    /// The steps of the evaluations of which it is the best: those with a value.
    pub(super) evaluated: Vec<f64>,
    /// Every value, for a median.
    values: Vec<f64>,
    /// Whether an empty cell cannot occur, so that NaN is a loss that diverged.
    is_always_there: bool,
    /// The evaluations on both sides of a cut.
    around: Around,
}

impl<'a> Fold<'a> {
    /// The metrics of a log: those that need every row, and those of columns of which only the last row counts.
    pub(super) fn of_log(
        log: &str,
        further: &'a [Metric],
        scratch: &mut Vec<Vec<f64>>,
    ) -> (Vec<Fold<'a>>, Vec<Fold<'a>>) {
        let own = || all(further).filter(|metric| metric.log == log);
        let is_last = |metric: &Metric| matches!(metric.aggregate, Aggregate::Last | Aggregate::LastPlusOne);
        let of_each_row = own().filter(|metric| !is_last(metric));
        let each_row: Vec<&str> = of_each_row.map(|metric| metric.column.as_str()).collect();
        own()
            .map(|metric| {
                let values = match metric.aggregate {
                    Aggregate::Median => scratch.pop().unwrap_or_default(),
                    _ => Vec::new(),
                };
                Self { values, is_always_there: is_always_there(metric), ..Self::new(metric) }
            })
            .partition(|fold| each_row.contains(&fold.metric.column.as_str()))
    }

    /// The metrics of the columns of `val.csv` that its rows do not tell, or of an earlier step than the run's end:
    /// `eval.csv` may.
    pub(super) fn elsewhere(further: &'a [Metric], results: &Results) -> Vec<Self> {
        let is_missing = |metric: &&Metric| {
            let is_unknown = results.unknown().contains(&metric.name);
            let is_known = results.get(&metric.name).is_some() || is_unknown;
            !is_known || results.behind.contains(&metric.column)
        };
        let missing = all(further).filter(|metric| metric.log == dir::VAL_CSV).filter(is_missing);
        missing.map(Self::new).collect()
    }

    fn new(metric: &'a Metric) -> Self {
        let (values, around) = (Vec::new(), Around::default());
        let is_always_there = false;
        Self {
            metric,
            place: 0,
            value: None,
            step: f64::NAN,
            evaluated: Vec::new(),
            values,
            is_always_there,
            around,
        }
    }

    pub(super) fn take(&mut self, row: &[f64]) {
        let value = row[self.place];
        match self.metric.aggregate {
            Aggregate::Last if self.is_value(value) => self.value = Some(value),
            Aggregate::LastPlusOne if !value.is_nan() => self.value = Some(value + 1.0),
            Aggregate::Min if value < self.value.unwrap_or(f64::INFINITY) => self.value = Some(value),
            Aggregate::Max if value > self.value.unwrap_or(f64::NEG_INFINITY) => self.value = Some(value),
            Aggregate::Median if !value.is_nan() => self.values.push(value),
            Aggregate::Sum if !value.is_nan() => self.value = Some(self.value.unwrap_or(0.0) + value),
            _ => {}
        }
    }

    /// Takes an evaluation of a step.
    pub(super) fn take_of(&mut self, row: &[f64], step: f64) {
        if self.is_value(row[self.place]) {
            self.step = step;
            self.count(step);
        }
        self.take(row);
    }

    fn count(&mut self, step: f64) {
        if matches!(self.metric.aggregate, Aggregate::Min | Aggregate::Max) {
            self.evaluated.push(step);
        }
    }

    /// Whether a cell says something: of anything but a loss that is always there, NaN is a cell without a value.
    fn is_value(&self, cell: f64) -> bool {
        !cell.is_nan() || self.is_always_there
    }

    /// Takes an evaluation that lies at `at` along the axis of a cut.
    pub(super) fn take_around(&mut self, row: &[f64], step: f64, at: f64, cut: f64) {
        let value = row[self.place];
        if at <= cut {
            if self.is_value(value) {
                self.count(step);
            }
            self.take(row);
        }
        if self.is_value(value) {
            self.around.take(at, value, cut);
        }
    }

    /// The step of the last value of an evaluation, with the metric's name, where it is before the end of a run of so
    /// many steps: of what came later, the best is not known. NaN is no step.
    pub(super) fn earlier(&self, steps: f64) -> Option<(String, u64)> {
        self.is_behind(steps).then(|| (self.metric.name.clone(), self.step as u64))
    }

    /// Whether the last value of an evaluation is of an earlier step than the end of a run of so many steps.
    pub(super) fn is_behind(&self, steps: f64) -> bool {
        self.step < steps
    }

    /// Whether there is a value of the end of a run of so many steps.
    pub(super) fn comes_to(&self, steps: f64) -> bool {
        self.step >= steps
    }

    /// Of how many evaluations it is the best, with the metric's name; `None` for another one.
    pub(super) fn best_of(&self) -> Option<(String, u64)> {
        (!self.evaluated.is_empty() && self.value.is_some())
            .then(|| (self.metric.name.clone(), self.evaluated.len() as u64))
    }

    /// Counts the evaluations of another log of which it is the best, too: those of steps that its own lacks.
    pub(super) fn count_also(&mut self, steps: &[f64]) {
        let known: HashSet<u64> = self.evaluated.iter().map(|step| step.to_bits()).collect();
        self.evaluated.extend(steps.iter().filter(|step| !known.contains(&step.to_bits())));
    }

    /// Whether it has a value that takes the place of the known one: a later or a better one, where `is_own` says that
    /// both are of the same data.
    pub(super) fn supersedes(&self, results: &Results, is_own: impl Fn(&Self) -> bool) -> bool {
        let Some(value) = self.value else { return false };
        let Some(known) = results.get(&self.metric.name) else { return true };
        let is_later = || results.earlier(&self.metric.name).is_some_and(|step| self.step > step as f64);
        let takes_its_place = match self.metric.aggregate {
            Aggregate::Min => value < known,
            Aggregate::Max => value > known,
            _ => is_later(),
        };
        takes_its_place && is_own(self)
    }

    /// Between which values that at a cut lies, the lower first, given those of the evaluations before and after it.
    /// The best so far stays that or becomes the later one.
    fn range(&self, [before, after]: [f64; 2]) -> [f64; 2] {
        let before = match self.metric.aggregate {
            Aggregate::Min | Aggregate::Max => self.value.unwrap_or(before),
            _ => before,
        };
        match self.metric.aggregate {
            Aggregate::Min => [before.min(after), before],
            Aggregate::Max => [before, before.max(after)],
            _ => [before.min(after), before.max(after)],
        }
    }

    /// Settles the value at a cut, once all evaluations have been taken.
    pub(super) fn cut(&mut self, cut: f64, header: &[String], results: &mut Results) {
        let (value, name) = (self.around.value(cut), || self.metric.name.clone());
        let range = self.around.sides(cut).filter(|_| value.is_some()).map(|sides| self.range(sides));
        results.ranges.extend(range.map(|range| (name(), range)));
        match (value, self.metric.aggregate) {
            (None, _) => {
                let was_evaluated = header.contains(&self.metric.column) && self.around.is_known();
                results.unknown.extend(was_evaluated.then(name));
                self.value = None;
            }
            (Some((value, is_between)), Aggregate::Last) => {
                results.interpolated.extend(is_between.then(name));
                self.value = Some(value);
            }
            (Some((value, true)), Aggregate::Min) if value < self.value.unwrap_or(f64::INFINITY) => {
                results.interpolated.push(name());
                self.value = Some(value);
            }
            (Some((value, true)), Aggregate::Max) if value > self.value.unwrap_or(f64::NEG_INFINITY) => {
                results.interpolated.push(name());
                self.value = Some(value);
            }
            _ => {}
        }
    }
}

/// The metrics of the table of columns, and the further ones.
fn all(further: &[Metric]) -> impl Iterator<Item = &Metric> {
    metrics().iter().chain(further)
}

/// Whether every row of its log has a value of a metric.
fn is_always_there(metric: &Metric) -> bool {
    metric.unit == Unit::Loss && metrics().contains(metric)
}

/// Gives each fold the place of its column in a row, and says which columns a row has.
pub(super) fn place<'a>(folds: &mut [Fold<'a>]) -> Vec<&'a str> {
    let mut wanted = Vec::new();
    for fold in folds {
        fold.place = column_of(&mut wanted, &fold.metric.column);
    }
    wanted
}

/// Where a column lies in a row of these, which get it if they lack it.
pub(super) fn column_of<'a>(wanted: &mut Vec<&'a str>, column: &'a str) -> usize {
    wanted.iter().position(|name| *name == column).unwrap_or_else(|| {
        wanted.push(column);
        wanted.len() - 1
    })
}

/// Adds the results of the folds, for columns that the log has. The memory of medians goes back to `scratch`.
pub(super) fn finish(
    folds: Vec<Fold>,
    header: &[String],
    scratch: &mut Vec<Vec<f64>>,
    results: &mut Results,
) {
    for Fold { metric, value, mut values, .. } in folds {
        let value = if metric.aggregate == Aggregate::Median { median(&mut values) } else { value };
        if values.capacity() > 0 {
            values.clear();
            scratch.push(values);
        }
        let is_known = header.contains(&metric.column) && !(metric.unit == Unit::Bytes && value == Some(0.0));
        results.values.extend(value.filter(|_| is_known).map(|value| (metric.name.clone(), value)));
    }
}
