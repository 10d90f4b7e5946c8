//! A list of JSON objects, one for each row.

use super::{Export, Table};
use serde_json::{Map, Value};

/// The format.
#[derive(Debug)]
pub struct Json;

impl Export for Json {
    fn export(&self, table: &Table) -> String {
        let names = || table.columns.iter().map(|column| column.name.clone());
        let object = |row: &Vec<super::Cell>| {
            Value::Object(names().zip(row.iter().map(|cell| cell.value.clone())).collect::<Map<_, _>>())
        };
        format!("{:#}\n", table.rows.iter().map(object).collect::<Value>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_numbers() {
        let text = Json.export(&super::super::example());
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value[0], serde_json::json!({"run": "a-1", "lr": 0.0006, "note": null}));
        assert_eq!(value[2]["lr"], "NaN");
        assert!(text.contains("\"lr\": 1,"));
    }
}
