//! A table for a terminal: columns in line, numbers at the right.

use super::{Export, Table};

/// The format.
#[derive(Debug)]
pub struct Text;

/// Between two columns.
const GAP: &str = "  ";

impl Export for Text {
    fn export(&self, table: &Table) -> String {
        let titles: Vec<String> = table.columns.iter().map(|column| column.title.clone()).collect();
        let rows = table.rows.iter().map(|row| row.iter().map(|cell| tame(&cell.shown)).collect());
        let lines: Vec<Vec<String>> = std::iter::once(titles).chain(rows).collect();
        let width = |i: usize| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
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

/// A name is whatever a recipe says: what could move the cursor is shown instead of obeyed.
fn tame(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
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
