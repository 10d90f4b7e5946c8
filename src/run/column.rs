//! What the table of columns says about each column.
//!
//! The rows of that table are in [`columns`](super::columns). Writing and reading use a column's name and order,
//! [`report`](crate::report) its unit, summaries and curve, and the documents its meaning.

/// A column of `train.csv` or `val.csv`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Column {
    /// The name in the header.
    pub name: &'static str,
    /// A sentence for people, with the unit; `runs/README.md` shows it.
    pub meaning: &'static str,
    /// What the numbers count.
    pub unit: Unit,
    /// Whether the same recipe on the same kind of hardware gives the same bytes.
    pub is_deterministic: bool,
    /// Whether a file without the column is malformed.
    pub is_required: bool,
    /// The figures that comparisons take from the column.
    pub summaries: &'static [Summary],
    /// How plots show the column; `None` if they do not.
    pub curve: Option<Curve>,
}

impl Column {
    /// A column that is a function of the recipe and the kind of hardware.
    pub const fn deterministic(unit: Unit) -> Self {
        let column = Self::measured(unit);
        Self { is_deterministic: true, ..column }
    }

    /// A column that depends on the clock or on the machine's memory.
    pub const fn measured(unit: Unit) -> Self {
        Self {
            name: "",
            meaning: "",
            unit,
            is_deterministic: false,
            is_required: false,
            summaries: &[],
            curve: None,
        }
    }
}

/// What a number counts. It decides how people read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Nats per token. Only here is a NaN a result: the loss diverged.
    Loss,
    /// A count.
    Count,
    /// Tokens per second.
    Rate,
    /// Milliseconds.
    Milliseconds,
    /// A part of 1, shown in percent.
    Fraction,
    /// Bytes; 0 if the system does not tell.
    Bytes,
    /// Seconds.
    Seconds,
    /// The quotient of two rates.
    Ratio,
    /// A number without a unit.
    Number,
}

/// A figure that stands for a whole run: one column, reduced to one number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The position among all summaries in a comparison, ascending.
    pub place: u32,
    /// The name in options, CSV and JSON.
    pub name: &'static str,
    /// The head of its column in a table for people.
    pub title: &'static str,
    /// What it is, as a phrase; the JSON Schema of comparisons shows it.
    pub meaning: &'static str,
    /// How the rows are reduced to one number.
    pub aggregate: Aggregate,
    /// Which end is the good one.
    pub better: Better,
    /// Whether tables for people show it unless they ask for other figures.
    pub for_people: bool,
    /// How soon a table that is too wide leaves it out: the lowest stays longest.
    pub leaves: u32,
}

impl Summary {
    /// The parts of a summary that its row in the table need not repeat.
    pub const fn of(aggregate: Aggregate, better: Better) -> Self {
        Self { place: 0, name: "", title: "", meaning: "", aggregate, better, for_people: true, leaves: 0 }
    }
}

/// How the rows of a column are reduced to one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregate {
    /// The last row's value.
    Last,
    /// One more than the last row's value, for a column that counts from 0.
    LastPlusOne,
    /// The lowest value.
    Min,
    /// The highest value.
    Max,
    /// The middle value, the upper of two.
    Median,
    /// All values together.
    Sum,
}

/// Which end of a figure is the good one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Less.
    Lower,
    /// More.
    Higher,
}

/// How plots show a column along a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Curve {
    /// The position among all curves in a list of them, ascending.
    pub place: u32,
    /// The label over the panel, with the unit.
    pub title: &'static str,
    /// Whether the rows are noisy, so that a moving average is drawn unless the user chooses otherwise.
    pub is_smoothed: bool,
    /// A column of `val.csv` that is marked in the same panel.
    pub marks: Option<&'static str>,
}

impl Curve {
    /// A curve with rows that are averaged.
    pub const fn noisy(place: u32, title: &'static str) -> Self {
        Self { place, title, is_smoothed: true, marks: None }
    }

    /// A curve that is drawn as it is.
    pub const fn exact(place: u32, title: &'static str) -> Self {
        Self { place, title, is_smoothed: false, marks: None }
    }
}
