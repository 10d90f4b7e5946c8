//! Tables and texts that fit a terminal: which columns to leave out, and how names become shorter.
//!
//! First go columns that say nothing about the rows, then those that repeat another one, then the least wanted.

use super::export::{Cell, Table, Text};
use super::shorten::{Keep, shorten};

/// Names and values are made no shorter than this before a further column is left out, and never shorter than the
/// second.
const SHORT: usize = 24;
const SHORTEST: usize = 12;

/// A table that fits, and what it lacks.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The table.
    pub table: Table,
    /// What was left out, for people; `None` if nothing was.
    pub hidden: Option<String>,
}

/// The names of columns that may go.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Leaving {
    /// The least wanted first.
    pub first: Vec<String>,
    /// Where names and values are as short as they can be: the last of these first.
    pub at_last: Vec<String>,
}

/// Makes a table fit into `width` characters as far as it can be. The first column names the rows.
#[must_use]
pub fn fit(table: &Table, width: usize, leaving: &Leaving) -> Fitted {
    let mut table = table.clone();
    let (mut same, mut repeated, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let fits = |table: &Table| Text::width(table) <= width;
    for name in &leaving.first {
        let Some(at) = place(&table, name).filter(|_| !fits(&table)) else { continue };
        let texts = texts(&table, at);
        if texts.len() > 1 && texts.iter().all(|text| *text == texts[0] && !text.is_empty()) {
            same.push(format!("{} {}", table.columns[at].title, texts[0]));
            table.remove_column(at);
        }
    }
    for name in &leaving.first {
        let Some(at) = place(&table, name).filter(|_| !fits(&table)) else { continue };
        let twin = (0..table.columns.len()).find(|&i| i != at && texts(&table, i) == texts(&table, at));
        if let Some(twin) = twin.filter(|_| table.rows.len() > 1) {
            repeated.push(format!("{} (as {})", table.columns[at].title, table.columns[twin].title));
            table.remove_column(at);
        }
    }
    shrink(&mut table, 0, width, SHORT);
    for name in &leaving.first {
        let Some(at) = place(&table, name).filter(|_| !fits(&table)) else { continue };
        out.push(table.columns[at].title.clone());
        table.remove_column(at);
    }
    for i in (1..table.columns.len()).chain([0]) {
        if !table.columns[i].is_numeric {
            shrink(&mut table, i, width, SHORTEST);
        }
    }
    for name in leaving.at_last.iter().rev() {
        let Some(at) = place(&table, name).filter(|_| !fits(&table)) else { continue };
        out.push(table.columns[at].title.clone());
        table.remove_column(at);
    }
    let mut parts = Vec::new();
    if !same.is_empty() {
        parts.push(format!("{} in every row", same.join(", ")));
    }
    parts.extend(repeated);
    parts.extend(out);
    let hidden = (!parts.is_empty()).then(|| format!("not shown: {}", parts.join(", ")));
    Fitted { table, hidden }
}

fn place(table: &Table, name: &str) -> Option<usize> {
    table.columns.iter().position(|column| column.name == name)
}

fn texts(table: &Table, column: usize) -> Vec<&str> {
    table.rows.iter().map(|row| row[column].shown.as_str()).collect()
}

/// Makes the texts of a column shorter, as far as the table needs, but no shorter than `least`.
fn shrink(table: &mut Table, column: usize, width: usize, least: usize) {
    let too_wide = Text::width(table).saturating_sub(width);
    let own = texts(table, column).iter().map(|text| text.chars().count()).max().unwrap_or(0);
    let most = own.saturating_sub(too_wide).max(least);
    if too_wide == 0 || most >= own {
        return;
    }
    let all: Vec<String> = texts(table, column).into_iter().map(str::to_owned).collect();
    let keep = if column == 0 { Keep::Ends } else { Keep::Start };
    for (row, shown) in table.rows.iter_mut().zip(shorten(&all, most, keep)) {
        row[column] = Cell { shown, value: row[column].value.take() };
    }
}

/// A text in lines of at most `width` characters, broken at spaces where it has them.
#[must_use]
pub fn wrapped(text: &str, width: usize) -> String {
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let mut current = String::new();
        for word in line.split(' ') {
            let length = current.chars().count() + 1 + word.chars().count();
            if !current.is_empty() && length > width {
                lines.push(std::mem::take(&mut current));
            } else if !current.is_empty() {
                current.push(' ');
            }
            current += word;
        }
        lines.push(current);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::export::{Column, Export};
    use super::*;

    fn table() -> Table {
        let columns = ["run", "kind", "steps", "loss", "best", "speed", "memory"];
        let columns: Vec<Column> = columns.iter().map(|name| Column::words(name, name)).collect();
        let row = |run: &str, loss: &str, speed: &str, memory: &str| {
            [run, "a kind", "300", loss, loss, speed, memory].map(Cell::text).to_vec()
        };
        let rows = vec![
            row("a-long-name-of-a-sweep-00000001", "1.5", "700", "80 MiB"),
            row("a-long-name-of-a-sweep-00000002", "1.6", "710", "81 MiB"),
        ];
        Table { columns, rows }
    }

    #[test]
    fn what_says_least_goes_first() {
        let first = ["memory", "speed", "steps", "best", "loss"].map(str::to_owned).to_vec();
        let leaving = Leaving { first, at_last: vec!["kind".to_owned()] };
        let whole = fit(&table(), 200, &leaving);
        assert_eq!((whole.table, whole.hidden), (table(), None));
        let hidden = |width| fit(&table(), width, &leaving).hidden.unwrap_or_default();
        let full = Text::width(&table());
        assert_eq!(hidden(full - 1), "not shown: steps 300 in every row");
        assert_eq!(hidden(full - 8), "not shown: steps 300 in every row, best (as loss)");
        let narrow = fit(&table(), 40, &leaving);
        let text = Text.export(&narrow.table);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.contains("loss") && text.contains("00000001") && text.contains('…'), "{text}");
        assert_eq!(
            narrow.hidden.as_deref(),
            Some("not shown: steps 300 in every row, best (as loss), memory, speed")
        );
    }

    #[test]
    fn prose_is_broken_at_spaces() {
        assert_eq!(wrapped("one two three\nfour", 8), "one two\nthree\nfour");
        assert_eq!(wrapped("unbreakable word", 4), "unbreakable\nword");
        assert_eq!(wrapped("", 4), "");
    }
}
