//! Comma-separated values, RFC 4180 with a header: full precision, names for programs.
//!
//! A spreadsheet takes a cell that begins with an equals sign for a formula, and runs it. Such texts get an apostrophe
//! before them, as OWASP advises ("CSV Injection"). Numbers stay numbers, also negative ones, and the ids that runs get
//! by themselves begin with a letter, so a program reads what it expects.

use super::{Cell, Export, Table};
use crate::wording::no_formula;
use serde_json::Value;

/// The format.
#[derive(Debug)]
pub struct Csv;

impl Export for Csv {
    fn export(&self, table: &Table) -> String {
        // the standard's line break
        let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
        let header = table.columns.iter().map(|column| no_formula(column.name.clone()));
        let mut rows = table.rows.iter().map(|row| row.iter().map(plain).collect::<Vec<_>>());
        let written =
            writer.write_record(header).and_then(|()| rows.try_for_each(|row| writer.write_record(row)));
        written.expect("every row has a cell for each column, and memory takes every write");
        let bytes = writer.into_inner().expect("memory takes every write");
        String::from_utf8(bytes).expect("made of texts")
    }
}

fn plain(cell: &Cell) -> String {
    match &cell.value {
        Value::Null => String::new(),
        Value::String(text) => no_formula(text.clone()),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, Column, Table};
    use super::*;

    #[test]
    fn a_text_is_no_formula_and_a_number_stays_one() {
        let column = |name| Column::words(name, name);
        let row = |run: &str, value| vec![Cell::text(run), Cell { value, shown: String::new() }];
        let table = Table {
            columns: vec![column("run"), column("@SUM(A1)")],
            rows: vec![
                row("=HYPERLINK(\"http://x\")", Value::from(-1.5)),
                row("-2+cmd|' /C calc'!A0", "-inf".into()),
                row("\t=1", "-5".into()),
                row("a-1=2", "'=1".into()),
                row("x;=1;-5; @SUM(1)", "x\n=1".into()),
                row("\u{feff}=1", "＝1".into()),
            ],
        };
        let expected = "run,'@SUM(A1)\r\n\"'=HYPERLINK(\"\"http://x\"\")\",-1.5\r\n'-2+cmd|' /C calc'!A0,-inf\r\n\
            '\t'=1,-5\r\na-1=2,'=1\r\nx;'=1;-5;' @SUM(1),\"x\n'=1\"\r\n'\u{feff}=1,'＝1\r\n";
        assert_eq!(Csv.export(&table), expected);
    }

    #[test]
    fn texts_are_quoted_where_they_must_be() {
        let expected = "run,lr,note\r\na-1,0.0006,\r\nlong|name,1,\"x, \"\"y\"\"\nµ\"\r\n,NaN,\r\n";
        assert_eq!(Csv.export(&super::super::example()), expected);
    }
}
