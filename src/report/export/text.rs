//! A table for a terminal: columns in line, numbers at the right.

use super::super::shorten::{Keep, shorten};
use super::{Export, Table};
use crate::wording::tame_line;

/// The format.
#[derive(Debug)]
pub struct Text;

/// Between two columns.
const GAP: &str = "  ";
/// Characters of a cell, about. One text of a strange run must not push all others off every screen.
const MOST: usize = 1000;

impl Text {
    /// Characters of the longest line of the table.
    #[must_use]
    pub fn width(table: &Table) -> usize {
        let widths: Vec<usize> = columns(table).iter().map(|column| width(column)).collect();
        widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
    }
}

/// The texts of each column, its title first.
fn columns(table: &Table) -> Vec<Vec<String>> {
    let of = |i: usize| {
        let cells = table.rows.iter().map(|row| tame_line(&row[i].shown));
        let texts: Vec<String> = std::iter::once(tame_line(&table.columns[i].title)).chain(cells).collect();
        shorten(&texts, MOST, Keep::Start)
    };
    (0..table.columns.len()).map(of).collect()
}

/// Characters of a column.
fn width(texts: &[String]) -> usize {
    texts.iter().map(|text| text.chars().count()).max().unwrap_or(0)
}

impl Export for Text {
    fn export(&self, table: &Table) -> String {
        let columns = columns(table);
        let widths: Vec<usize> = columns.iter().map(|column| width(column)).collect();
        let mut out = String::new();
        for line in 0..=table.rows.len() {
            let cells = columns.iter().zip(&table.columns).zip(&widths).map(|((texts, column), &width)| {
                let cell = &texts[line];
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

    #[test]
    fn no_text_is_too_long() {
        let mut table = super::super::example();
        for (row, text) in ["x".repeat(70_000), "x".repeat(70_001)].into_iter().enumerate() {
            table.rows[row][0].shown = text;
        }
        let text = Text.export(&table);
        let names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(
            names[1].chars().count() <= MOST + 1 && names[1].contains('…') && names[1] != names[2],
            "{names:?}"
        );
        assert!(Text::width(&table) < MOST + 40);
    }
}
