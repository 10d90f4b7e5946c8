//! Looking for targets while the rows of a run's logs go by.

use super::axis::Cut;
use super::gather::Results;
use super::metrics::metrics;
use super::target::{Crossing, Point, Target, Way};
use crate::run::dir;

/// Looks for targets while the rows of a run's logs go by. It holds each number once, however many targets are of it.
pub(super) struct Search<'a> {
    targets: &'a [Target],
    logs: Vec<Log<'a>>,
    /// The columns whose later rows in `eval.csv` are of the same data.
    joined: Vec<&'a str>,
}

/// The rows of a log, as far as targets are of it.
struct Log<'a> {
    name: &'static str,
    /// The log that its columns are wanted of; it lacks them where that is another one.
    instead_of: &'static str,
    /// Steps, tokens and seconds until each row.
    at: Vec<[f64; 3]>,
    columns: Vec<Column<'a>>,
}

/// What rows of `eval.csv` are wanted for beside those of `val.csv`.
const BESIDE: &str = "beside val.csv";

struct Column<'a> {
    name: &'a str,
    /// Where it lies in a row at hand.
    place: usize,
    /// Its cells count from beyond this step.
    after: f64,
    /// Its cell in each row, NaN for an empty one.
    values: Vec<f64>,
}

impl<'a> Column<'a> {
    fn new(name: &'a str) -> Self {
        Self { name, place: 0, after: f64::NEG_INFINITY, values: Vec::new() }
    }

    /// Takes the cell of a row of this step.
    fn take(&mut self, row: &[f64], step: f64) {
        self.values.push(if step > self.after { row[self.place] } else { f64::NAN });
    }
}

impl<'a> Search<'a> {
    pub(super) fn new(targets: &'a [Target]) -> Self {
        let mut logs: Vec<Log> = Vec::new();
        for Target { column, best, .. } in targets {
            let known = logs.iter().position(|log| log.name == best.log).unwrap_or_else(|| {
                logs.push(Log { name: best.log, instead_of: best.log, at: Vec::new(), columns: Vec::new() });
                logs.len() - 1
            });
            let columns = &mut logs[known].columns;
            if columns.iter().all(|known| known.name != *column) {
                columns.push(Column::new(column));
            }
        }
        Self { targets, logs, joined: Vec::new() }
    }

    /// Whether any target is looked for.
    pub(super) fn is_on(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Asks for the columns of a log that it needs; `place` says where each lies in a row.
    pub(super) fn columns(&mut self, log: &str, mut place: impl FnMut(&'a str) -> usize) {
        for column in self.logs.iter_mut().filter(|of| of.name == log).flat_map(|log| &mut log.columns) {
            column.place = place(column.name);
        }
    }

    /// Takes a row of a log, with the steps, tokens and seconds until then.
    pub(super) fn take(&mut self, log: &str, row: &[f64], at: [f64; 3]) {
        for log in self.logs.iter_mut().filter(|of| of.name == log) {
            log.at.push(at);
            log.columns.iter_mut().for_each(|column| column.take(row, at[0]));
        }
    }

    /// Looks in `eval.csv` for what the rows of `val.csv` have not told. Where they have told of a column, later rows
    /// are looked at, too, but may be on other data.
    pub(super) fn go_elsewhere(&mut self) {
        let (mut missing, mut known) = (Vec::new(), Vec::new());
        for log in self.logs.iter_mut().filter(|log| log.name == dir::VAL_CSV) {
            let is_empty = |column: &mut Column| column.values.iter().all(|value| value.is_nan());
            missing.extend(log.columns.extract_if(.., is_empty).map(|column| Column::new(column.name)));
            let after = |column: &Column| {
                let valued = log.at.iter().zip(&column.values).filter(|(_, value)| !value.is_nan());
                valued.map(|(at, _)| at[0]).fold(f64::NEG_INFINITY, f64::max)
            };
            known.extend(
                log.columns.iter().map(|column| Column { after: after(column), ..Column::new(column.name) }),
            );
        }
        for (instead_of, columns) in [(dir::VAL_CSV, missing), (BESIDE, known)] {
            self.logs.push(Log { name: dir::EVAL_CSV, instead_of, at: Vec::new(), columns });
        }
    }

    /// Whether the rows of `val.csv` have told of a column that a target is of.
    pub(super) fn has_told(&self, column: &str) -> bool {
        let mut beside = self.logs.iter().filter(|log| log.instead_of == BESIDE);
        beside.any(|log| log.columns.iter().any(|known| known.name == column))
    }

    /// Lets later rows of `eval.csv` count where they are of what those of `val.csv` are.
    pub(super) fn join(&mut self, is_own: impl Fn(&str) -> bool) {
        let columns = self.targets.iter().filter(|target| target.best.log == dir::VAL_CSV);
        self.joined = columns.map(|target| target.column.as_str()).filter(|column| is_own(column)).collect();
    }

    /// Whether a log is to be read for some target.
    pub(super) fn reads(&self, log: &str) -> bool {
        self.logs.iter().any(|of| of.name == log && !of.columns.is_empty())
    }

    /// Adds what was found up to a cut to the results. Of a branch, the losses of steps before its own are in no row:
    /// one of these batches may have been as good.
    pub(super) fn finish(self, cut: Option<Cut>, is_branch: bool, results: &mut Results) {
        for target in self.targets {
            let within = |crossing: &Crossing| cut.is_none_or(|cut| crossing.at[cut.axis.place()] <= cut.at);
            let is_of_validation = target.best.log == dir::VAL_CSV;
            let beside = || self.points(target, BESIDE).filter(move |_| is_of_validation);
            let is_joined = self.joined.contains(&target.column.as_str());
            let joined = beside().filter(move |_| is_joined);
            let all = self.points(target, target.best.log).chain(joined);
            let Some(crossing) = target.crossing(all.clone()).filter(within) else {
                let last = all.map(|point| point.at[0]).fold(f64::NEG_INFINITY, f64::max);
                let end = results.get("steps").filter(|steps| last.is_finite() && last < *steps);
                let is_evaluated = target.best.log != dir::TRAIN_CSV && cut.is_none();
                results
                    .missed_until
                    .extend(end.filter(|_| is_evaluated).map(|_| (target.name(), last as u64)));
                let beside = target.crossing(beside()).filter(within);
                results.reached_elsewhere.extend(beside.map(|at| (target.name(), at.at[0] as u64)));
                continue;
            };
            for (i, way) in Way::ALL.into_iter().enumerate().filter(|(i, _)| crossing.at[*i].is_finite()) {
                let between = crossing.between.map(|[before, after]| [before[i], after[i]]);
                results.reached(target.metric(way), crossing.at[i], between);
                if crossing.is_first || is_branch && target.best.log == dir::TRAIN_CSV {
                    results.reached_by(target.metric(way), crossing.at[i]);
                }
            }
            if crossing.is_first {
                results.reached_before(target.name());
            }
        }
    }

    /// The values of a target's column. Of anything but a loss that is always there, not a number is a cell without a
    /// value.
    fn points(&self, target: &Target, log: &'static str) -> impl Iterator<Item = Point> + Clone {
        let log = self.logs.iter().filter(move |of| of.instead_of == log);
        let columns = log.flat_map(|log| log.columns.iter().map(move |column| (log, column)));
        columns.filter(|(_, column)| column.name == target.column).flat_map(move |(log, column)| {
            let is_always_there = log.name == target.best.log && metrics().contains(&target.best);
            let points = log.at.iter().zip(&column.values).map(|(&at, &value)| Point { at, value });
            points.filter(move |point| is_always_there || !point.value.is_nan())
        })
    }
}
