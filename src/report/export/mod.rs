//! Tables in the formats that people and programs read: one trait, one small file per format.

mod csv;
mod html;
mod json;
mod markdown;
mod text;

pub use self::csv::Csv;
pub use html::{Html, escaped};
pub use json::Json;
pub use markdown::Markdown;
pub use text::Text;

use crate::wording::tame_line;

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// For programs.
    pub name: String,
    /// For people.
    pub title: String,
    /// Whether it holds numbers, which line up at the right.
    pub is_numeric: bool,
}

impl Column {
    /// A column of words.
    #[must_use]
    pub fn words(name: &str, title: &str) -> Self {
        Self { name: name.to_owned(), title: title.to_owned(), is_numeric: false }
    }

    /// A column of numbers.
    #[must_use]
    pub fn numbers(name: &str, title: &str) -> Self {
        Self { name: name.to_owned(), title: title.to_owned(), is_numeric: true }
    }
}

/// A cell: the value for programs, and how people read it.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// A JSON scalar or list; null where there is none. Infinite and undefined numbers are the words of the logs.
    pub value: serde_json::Value,
    /// The value as people read it.
    pub shown: String,
}

impl Cell {
    /// Nothing.
    #[must_use]
    pub fn empty() -> Self {
        Self { value: serde_json::Value::Null, shown: String::new() }
    }

    /// A word or a text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        let shown = text.into();
        Self { value: shown.clone().into(), shown }
    }

    /// A number and how it is shown; nothing for `None`.
    #[must_use]
    pub fn number(value: Option<f64>, shown: impl Fn(f64) -> String) -> Self {
        value.map_or_else(Self::empty, |value| Self { value: number(value), shown: shown(value) })
    }
}

/// A number as JSON: whole ones without a point, those that JSON does not have as the words that the logs use.
#[must_use]
pub fn number(value: f64) -> serde_json::Value {
    const EXACT: f64 = (1u64 << 53) as f64;
    match value {
        _ if !value.is_finite() => value.to_string().into(),
        _ if value.fract() == 0.0 && value.abs() < EXACT => (value as i64).into(),
        _ => value.into(),
    }
}

/// Rows under columns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// The columns, in order.
    pub columns: Vec<Column>,
    /// The rows, each with a cell for every column.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Takes away columns that have and show nothing in any row.
    pub fn drop_empty_columns(&mut self) {
        for i in (0..self.columns.len()).rev() {
            if self.rows.iter().all(|row| row[i].value.is_null() && row[i].shown.is_empty()) {
                self.remove_column(i);
            }
        }
    }

    /// Takes away the column at this place.
    pub fn remove_column(&mut self, at: usize) {
        self.columns.remove(at);
        self.rows.iter_mut().for_each(|row| drop(row.remove(at)));
    }
}

/// A way to write a table.
pub trait Export {
    /// The table as a text that ends with a newline.
    fn export(&self, table: &Table) -> String;

    /// A sentence beside the table, on one line, in which names from elsewhere are no markup.
    fn sentence(&self, text: &str) -> String {
        tame_line(text)
    }

    /// One of several such sentences.
    fn item(&self, text: &str) -> String {
        self.sentence(text)
    }
}

#[cfg(test)]
pub(super) fn example() -> Table {
    let column =
        |name: &str, is_numeric| Column { name: name.into(), title: name.to_uppercase(), is_numeric };
    Table {
        columns: vec![column("run", false), column("lr", true), column("note", false)],
        rows: vec![
            vec![Cell::text("a-1"), Cell::number(Some(6e-4), |_| "6e-4".into()), Cell::empty()],
            vec![Cell::text("long|name"), Cell::number(Some(1.0), |_| "1".into()), Cell::text("x, \"y\"\nµ")],
            vec![Cell::text(""), Cell::number(Some(f64::NAN), |x| x.to_string()), Cell::empty()],
        ],
    }
}
