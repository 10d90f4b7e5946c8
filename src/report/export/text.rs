//! A table for a terminal: columns in line, numbers at the right.

use super::{Export, Table};
use crate::wording::tame_line;

/// The format.
#[derive(Debug)]
pub struct Text;

/// Between two columns.
const GAP: &str = "  ";

impl Text {
    /// Characters of the longest line of the table.
    #[must_use]
    pub fn width(table: &Table) -> usize {
        let widths = widths(table);
        widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
    }
}

/// Characters of each column.
fn widths(table: &Table) -> Vec<usize> {
    let of = |i: usize| {
        let cells = table.rows.iter().map(|row| row[i].shown.chars().count());
        cells.chain([table.columns[i].title.chars().count()]).max().unwrap_or(0)
    };
    (0..table.columns.len()).map(of).collect()
}

impl Export for Text {
    fn export(&self, table: &Table) -> String {
        let titles: Vec<String> = table.columns.iter().map(|column| tame_line(&column.title)).collect();
        let rows = table.rows.iter().map(|row| row.iter().map(|cell| tame_line(&cell.shown)).collect());
        let lines: Vec<Vec<String>> = std::iter::once(titles).chain(rows).collect();
        let widths = widths(table);
        let mut out = String::new();
        for line in &lines {
            let cells = line.iter().zip(&table.columns).zip(&widths).map(|((cell, column), &width)| {
                match column.is_numeric {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                }
            });
            out += cells.collect::<Vec<_>>().join(GAP).trim_end();
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_in_line() {
        let text = Text.export(&super::super::example());
        assert_eq!(
            text,
            "RUN          LR  NOTE\na-1        6e-4\nlong|name     1  x, \"y\"\u{fffd}µ\n            NaN\n"
        );
    }
}
