//! A table for a README or an issue.

use super::{Export, Table};
use crate::wording::tame_line;

/// The format.
#[derive(Debug)]
pub struct Markdown;

impl Export for Markdown {
    fn export(&self, table: &Table) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut out = line(table.columns.iter().map(|column| escaped(&column.title)).collect());
        out += &line(
            table.columns.iter().map(|c| if c.is_numeric { "---:" } else { "---" }.to_owned()).collect(),
        );
        for row in &table.rows {
            out += &line(row.iter().map(|cell| escaped(&cell.shown)).collect());
        }
        out
    }
}

/// A cell must stay on its line and within its bars, and is no markup.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;").replace('\n', "<br>");
    tame_line(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_do_not_break_the_table() {
        let text = Markdown.export(&super::super::example());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["| RUN | LR | NOTE |", "| --- | ---: | --- |"]);
        assert_eq!(lines[3], "| long\\|name | 1 | x, \"y\"<br>µ |");
        assert_eq!(lines.len(), 5);
    }
}
