//! What a panel shows: the curves of the table of columns, and further columns of `val.csv` by name.

use crate::report::metrics::{self, Metric, has_column, metrics};
use crate::run::column::{Column, Curve};
use crate::run::{columns, dir};
use std::path::PathBuf;
use std::sync::LazyLock;

/// A column that a panel shows along the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantity {
    /// The column, which is also its name in options.
    pub name: String,
    /// Over the panel.
    pub title: String,
    /// Whether it is a column of `val.csv`, which has points where `train.csv` has a line.
    pub is_evaluated: bool,
    /// Whether a moving average is drawn unless the user chooses otherwise.
    pub is_smoothed: bool,
    /// The column of `val.csv` that is marked beside a line.
    marks_beside: Option<&'static str>,
}

impl Quantity {
    fn new(log: &str, column: &Column, curve: Curve) -> Self {
        Self {
            name: column.name.to_owned(),
            title: curve.title.to_owned(),
            is_evaluated: log == dir::VAL_CSV,
            is_smoothed: curve.is_smoothed,
            marks_beside: curve.marks,
        }
    }

    /// The quantity of this name: one of the table of columns, or a further column of the `val.csv` of one of these
    /// runs.
    #[must_use]
    pub fn named(name: &str, runs: &[PathBuf]) -> Option<Self> {
        let known = quantities().iter().find(|quantity| quantity.name == name).cloned();
        known.or_else(|| further(runs, name))
    }

    /// A column of `val.csv` that the table of columns lacks.
    #[must_use]
    pub fn evaluated(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            title: name.replace('_', " "),
            is_evaluated: true,
            is_smoothed: false,
            marks_beside: None,
        }
    }

    /// The metric that says what its values were measured on: of the table of columns, or of a further column of the
    /// `val.csv` of one of these runs.
    #[must_use]
    pub fn metric(&self, runs: &[PathBuf]) -> Option<Metric> {
        let log = if self.is_evaluated { dir::VAL_CSV } else { dir::TRAIN_CSV };
        let known = metrics().iter().find(|metric| metric.is_of(log, &self.name)).cloned();
        let further = || metrics::further(runs, &self.name).filter(|metric| metric.is_of(log, &self.name));
        known.or_else(|| self.is_evaluated.then(further).flatten())
    }

    /// The column of `val.csv` that is drawn as marks, if any.
    #[must_use]
    pub fn marks(&self) -> Option<&str> {
        if self.is_evaluated { Some(&self.name) } else { self.marks_beside }
    }
}

/// The quantities of the table of columns, in the order of a list of them.
#[must_use]
pub fn quantities() -> &'static [Quantity] {
    static QUANTITIES: LazyLock<Vec<Quantity>> = LazyLock::new(|| {
        let of_log = |(log, columns): (&'static str, &'static [Column])| {
            columns
                .iter()
                .filter_map(move |c| c.curve.map(|curve| (curve.place, Quantity::new(log, c, curve))))
        };
        let mut quantities: Vec<(u32, Quantity)> = columns::LOGS.into_iter().flat_map(of_log).collect();
        quantities.sort_by_key(|(place, _)| *place);
        quantities.into_iter().map(|(_, quantity)| quantity).collect()
    });
    &QUANTITIES
}

/// The column `name` of `val.csv`, if the table of columns lacks it and some run in `runs` has it.
#[must_use]
pub fn further(runs: &[PathBuf], name: &str) -> Option<Quantity> {
    has_column(runs, name).then(|| Quantity::evaluated(name))
}
