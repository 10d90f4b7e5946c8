//! What `watch` draws, along which axis: lines of `train.csv`, marks of `val.csv`.

use super::{TRAIN, VAL, Watched};
use crate::report::axis::Axis;
use crate::report::braille::Curve;
use crate::report::plot::further;
use crate::run::column::{Column, Unit};
use crate::run::columns::{LOGS, outside_the_table};
use crate::run::dir;
use crate::session::UsageError;
use std::path::PathBuf;

/// A column as a chart shows it.
pub(super) struct View {
    axis: Axis,
    /// The column, its unit, and the log that has it.
    column: String,
    unit: Unit,
    log: &'static str,
    /// The column of `val.csv` that is marked.
    marks: Option<String>,
}

impl View {
    /// The view of a column of some run's logs.
    pub(super) fn new(name: &str, axis: Axis, runs: &[PathBuf]) -> anyhow::Result<Self> {
        let of_table = |(log, columns): (&'static str, &'static [Column])| {
            columns.iter().find(|column| column.name == name).map(|column| (log, column))
        };
        let column = name.to_owned();
        if let Some((log, known)) = LOGS.into_iter().find_map(of_table) {
            let beside = known.curve.and_then(|curve| curve.marks);
            let marks = if log == dir::VAL_CSV { Some(name) } else { beside };
            return Ok(Self { axis, column, unit: known.unit, log, marks: marks.map(str::to_owned) });
        }
        if further(runs, name).is_some() {
            let unit = outside_the_table(name).0;
            return Ok(Self { axis, marks: Some(column.clone()), column, unit, log: dir::VAL_CSV });
        }
        let mut names: Vec<&str> =
            LOGS.iter().flat_map(|(_, columns)| columns.iter().map(|c| c.name)).collect();
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        Err(UsageError(format!("`{name}` is no column of the logs; there are {}", names.join(", "))).into())
    }

    /// The columns that are followed in a log.
    pub(super) fn columns(&self, log: &str) -> Vec<&str> {
        let (mut columns, own) = match log {
            dir::TRAIN_CSV => (TRAIN.to_vec(), (self.log == log).then_some(self.column.as_str())),
            _ => (VAL.to_vec(), self.marks.as_deref()),
        };
        if let Some(own) = own.filter(|own| !columns.contains(own)) {
            columns.push(own);
        }
        columns
    }

    fn place(&self, log: &str, column: &str) -> usize {
        self.columns(log).iter().position(|name| *name == column).unwrap_or(0)
    }

    /// The curve of a run.
    pub(super) fn curve(&self, run: &Watched) -> Curve {
        let train = run.train.rows();
        let along = self.place(dir::TRAIN_CSV, self.axis.column());
        // evaluations have no clock of their own: each is as old as the step before it
        let elapsed = |steps: f64| match train.partition_point(|row| row[0] < steps) {
            0 => 0.0,
            after => train[after - 1][along],
        };
        let mut curve = Curve::default();
        if let Some(marks) = &self.marks {
            let at = self.place(dir::VAL_CSV, marks);
            let x = |row: &Vec<f64>| match self.axis {
                Axis::Step => row[0],
                Axis::Tokens => row[1],
                Axis::Time => elapsed(row[0]),
            };
            curve.marks = run.val.rows().iter().map(|row| (x(row), row[at])).unzip();
        }
        curve.line = match self.log == dir::TRAIN_CSV {
            true => {
                let at = self.place(dir::TRAIN_CSV, &self.column);
                train.iter().map(|row| (row[along], row[at])).unzip()
            }
            false => curve.marks.clone(),
        };
        curve
    }

    /// The latest value, where the line of a run does not say it anyway.
    pub(super) fn latest(&self, run: &Watched) -> Option<String> {
        let said = ["step", "loss", "lr", "grad_norm", "tokens_per_s", "mfu", "val_loss"];
        if said.contains(&self.column.as_str()) {
            return None;
        }
        let rows = if self.log == dir::TRAIN_CSV { run.train.rows() } else { run.val.rows() };
        let value = rows.last()?[self.place(self.log, &self.column)];
        (!value.is_nan()).then(|| format!("{} {}", self.column, self.unit.shown(value)))
    }

    /// What stands below the chart.
    pub(super) fn caption(&self) -> String {
        let marks = match &self.marks {
            Some(marks) => format!(", {} {marks}", crate::report::braille::MARK),
            None => String::new(),
        };
        let along = if self.axis == Axis::Time { "training time in seconds" } else { self.axis.title() };
        format!("{} by {along}{marks}", self.column)
    }
}
