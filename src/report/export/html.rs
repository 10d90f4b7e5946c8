//! A table of a page: people's texts, with the values beside them for sorting.

use super::{Export, Table};
use crate::wording::tame;

/// The format.
#[derive(Debug)]
pub struct Html;

impl Export for Html {
    fn export(&self, table: &Table) -> String {
        let class = |i: usize| if table.columns[i].is_numeric { " class=\"n\"" } else { "" };
        let head = |(i, column): (usize, &super::Column)| {
            format!("<th{}><button type=\"button\">{}</button></th>", class(i), escaped(&column.title))
        };
        let cell = |(i, cell): (usize, &super::Cell)| {
            let value = match &cell.value {
                serde_json::Value::Number(number) => format!(" data-v=\"{number}\""),
                _ => String::new(),
            };
            format!("<td{}{value}>{}</td>", class(i), escaped(&cell.shown))
        };
        let heads: String = table.columns.iter().enumerate().map(head).collect();
        let row = |row: &Vec<super::Cell>| {
            format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>())
        };
        let rows: String = table.rows.iter().map(row).collect();
        format!("<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n")
    }
}

/// Text that is no markup, and in which no character turns the direction of what follows.
#[must_use]
pub fn escaped(text: &str) -> String {
    tame(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_no_markup() {
        let mut table = super::super::example();
        table.rows[0][0] = super::super::Cell::text("<script>\"");
        let text = Html.export(&table);
        assert!(
            text.contains("<td>&lt;script&gt;&quot;</td><td class=\"n\" data-v=\"0.0006\">6e-4</td>"),
            "{text}"
        );
    }
}
