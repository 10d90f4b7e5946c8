//! How a row of a log is written and read, whatever its columns are.

use super::column::Column;
use std::collections::HashMap;
use std::fmt::Write;

/// A row of a log. The macro `rows!` implements it from a table of columns.
pub trait Row: Sized {
    /// The name of the log in a run's directory.
    const FILE: &'static str;
    /// The columns, in the order of the file.
    const COLUMNS: &'static [Column];
    /// A row of which nothing is known: the values that stand for columns that a file lacks.
    const UNKNOWN: Self;

    /// The step that the row belongs to: that of the update, or the number of updates before an evaluation.
    fn step(&self) -> u64;

    /// Appends the row to `line` as CSV, ended by a newline.
    fn write(&self, line: &mut String);

    /// Reads a row; a column that the file lacks and an empty cell give the value in [`UNKNOWN`](Self::UNKNOWN).
    ///
    /// Errors: a phrase that names a cell with the wrong kind of number, or a required column without a value.
    fn parse(cells: &Cells) -> Result<Self, String>;

    /// Appends the names of the columns to `line` as CSV, ended by a newline.
    fn write_header(line: &mut String) {
        for column in Self::COLUMNS {
            line.push_str(column.name);
            line.push(',');
        }
        end_line(line);
    }
}

/// Replaces the last comma of a line by a newline.
pub(super) fn end_line(line: &mut String) {
    line.pop();
    line.push('\n');
}

/// A type that a column of numbers may have. It never needs quotes in CSV.
pub trait Value: Sized {
    /// Appends the shortest text that reads back as this value.
    fn write(&self, line: &mut String);

    /// The value of a text that is not empty; `None` if the text is something else.
    fn read(text: &str) -> Option<Self>;
}

macro_rules! plain_values {
    ($($type:ty)+) => {$(
        impl Value for $type {
            fn write(&self, line: &mut String) {
                // writing to memory does not fail
                let _ = write!(line, "{self}");
            }

            fn read(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )+};
}

plain_values!(u8 u64 f32 f64);

/// Written as 0 or 1.
impl Value for bool {
    fn write(&self, line: &mut String) {
        u8::from(*self).write(line);
    }

    fn read(text: &str) -> Option<Self> {
        u8::read(text).map(|number| number != 0)
    }
}

/// Written as an empty cell where there is none.
impl<T: Value> Value for Option<T> {
    fn write(&self, line: &mut String) {
        if let Some(value) = self {
            value.write(line);
        }
    }

    fn read(text: &str) -> Option<Self> {
        T::read(text).map(Some)
    }
}

/// The cells of one record, by column name.
#[derive(Debug)]
pub struct Cells<'a> {
    columns: &'a HashMap<String, usize>,
    record: &'a csv::StringRecord,
}

impl<'a> Cells<'a> {
    pub(super) fn new(columns: &'a HashMap<String, usize>, record: &'a csv::StringRecord) -> Self {
        Self { columns, record }
    }

    /// The value in a column; `None` if the file lacks the column or the cell is empty.
    ///
    /// Errors: a phrase that names a text that is no value of this type.
    pub fn get<T: Value>(&self, column: &str) -> Result<Option<T>, String> {
        match self.columns.get(column).and_then(|&i| self.record.get(i)).map(str::trim) {
            None | Some("") => Ok(None),
            Some(text) => match T::read(text) {
                Some(value) => Ok(Some(value)),
                None => Err(format!("`{text}` in column `{column}` is not a number of its kind")),
            },
        }
    }

    /// The value in a column that every row has.
    ///
    /// Errors: as for [`get`](Self::get), and a phrase that names the column if there is no value.
    pub fn required<T: Value>(&self, column: &str) -> Result<T, String> {
        self.get(column)?.ok_or_else(|| format!("it has no `{column}`"))
    }

    /// The value in `column`, or `unknown` if it has none and is not required.
    pub(super) fn value<T: Value>(&self, column: &Column, unknown: T) -> Result<T, String> {
        if column.is_required {
            self.required(column.name)
        } else {
            Ok(self.get(column.name)?.unwrap_or(unknown))
        }
    }
}

/// Makes a row type from a table of its columns, one column per entry:
///
/// ```text
/// /// Meaning, for rustdoc and for the documents.
/// name: type = value where a file lacks it => Column { .. };
/// ```
macro_rules! rows {
    ($(#[$attribute:meta])* $row:ident in $file:path {$(
        $(#[doc = $meaning:literal])+
        $name:ident: $type:ty = $unknown:expr => $column:expr;
    )+}) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $row {$(
            $(#[doc = $meaning])+
            pub $name: $type,
        )+}

        impl Row for $row {
            const FILE: &'static str = $file;
            const COLUMNS: &'static [Column] = &[$(
                Column { name: stringify!($name), meaning: concat!($($meaning),+).trim_ascii(), ..$column },
            )+];

            const UNKNOWN: Self = Self { $($name: $unknown),+ };

            fn step(&self) -> u64 {
                self.step
            }

            fn write(&self, line: &mut String) {
                $(
                    Value::write(&self.$name, line);
                    line.push(',');
                )+
                end_line(line);
            }

            fn parse(cells: &Cells) -> Result<Self, String> {
                let mut columns = Self::COLUMNS.iter();
                let mut row = Self::UNKNOWN;
                $(
                    let column = columns.next().expect("one for each field");
                    row.$name = cells.value(column, row.$name)?;
                )+
                Ok(row)
            }
        }
    };
}

pub(super) use rows;
