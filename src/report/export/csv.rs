//! Comma-separated values, RFC 4180 with a header: full precision, names for programs.

use super::{Cell, Export, Table};
use serde_json::Value;

/// The format.
#[derive(Debug)]
pub struct Csv;

impl Export for Csv {
    fn export(&self, table: &Table) -> String {
        // the standard's line break
        let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
        let header: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
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
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_where_they_must_be() {
        let expected = "run,lr,note\r\na-1,0.0006,\r\nlong|name,1,\"x, \"\"y\"\"\nµ\"\r\n,NaN,\r\n";
        assert_eq!(Csv.export(&super::super::example()), expected);
    }
}
