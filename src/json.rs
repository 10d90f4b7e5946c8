//! JSON from elsewhere, in bounded memory.
//!
//! A value takes up to a hundred bytes in memory, and two in a file: a list of zeros would take fifty times the memory
//! of its text. Documents of this program and of its neighbours have a few thousand values, so more than [`MOST`] are
//! refused.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::cell::Cell;
use std::fmt;

/// Values of a document at most: those of a checkpoint's state with the longest window of the watchdog, twice.
pub const MOST: u32 = 1 << 18;

/// The value that a text states.
///
/// # Errors
/// What is wrong with the text; more than [`MOST`] values are an error too.
pub fn value(text: &[u8]) -> serde_json::Result<Value> {
    let mut input = serde_json::Deserializer::from_slice(text);
    let value = bounded(&mut input)?;
    input.end()?;
    Ok(value)
}

/// As [`value`], of a part of a document, for serde's `deserialize_with`.
///
/// # Errors
/// As those of [`value`].
pub fn bounded<'de, D: Deserializer<'de>>(input: D) -> Result<Value, D::Error> {
    let left = Cell::new(MOST);
    Bounded { left: &left }.deserialize(input)
}

/// Builds a value while there is room for more of them.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    left: &'a Cell<u32>,
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        let left = self.left.get().checked_sub(1);
        self.left.set(left.ok_or_else(|| D::Error::custom(format!("there are more than {MOST} values")))?);
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            fields.insert(name, map.next_value_seed(self)?);
        }
        Ok(Value::Object(fields))
    }
}

/// A document as one line in which no character acts on a terminal: what JSON leaves as it is and a terminal takes for
/// an order is spelled by its number, which is the same text to every reader of JSON.
#[must_use]
pub fn shown(document: &Value) -> String {
    let mut out = String::new();
    for c in document.to_string().chars() {
        if crate::wording::is_tame(c) {
            out.push(c);
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out += &format!("\\u{unit:04x}"));
        }
    }
    out
}

/// A text without the mark of the byte order that some programs write before UTF-8.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_text_is_what_serde_json_reads() {
        for text in [
            "null",
            " {\"a\": [1, -2, 1.5e300, -0, 18446744073709551615], \"b\": {\"c\": \"\\u00e9\\n\"}, \"a\": true} ",
            "[1, 2",
            "1 2",
            "nan",
            "{\"a\": 1e999}",
            "\"\\ud800\"",
        ] {
            let (ours, theirs) = (value(text.as_bytes()), serde_json::from_str::<Value>(text));
            assert_eq!(ours.map_err(|e| e.to_string()), theirs.map_err(|e| e.to_string()), "{text}");
        }
        assert!(value(&[b'"', 0xff, b'"']).is_err());
        assert!(value("[".repeat(100_000).as_bytes()).expect_err("deep").to_string().contains("recursion"));
    }

    #[test]
    fn a_document_of_too_many_values_is_refused() {
        let list = |count: u32| format!("[{}]", vec!["0"; count as usize].join(","));
        assert!(value(list(MOST - 1).as_bytes()).is_ok());
        for text in
            [list(MOST), format!("{{\"a\": {}", list(MOST)), format!("[{}", "{},".repeat(MOST as usize))]
        {
            let error = value(text.as_bytes()).expect_err("too many").to_string();
            assert!(error.contains("more than 262144 values"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_the_same_and_is_tame(text in "\\PC{0,20}[\u{0}-\u{ff}\u{2020}-\u{2070}🦀]{0,20}") {
            let document = json!({ text.clone(): [text, 1.5] });
            let shown = shown(&document);
            prop_assert!(shown.chars().all(crate::wording::is_tame), "{shown:?}");
            prop_assert_eq!(serde_json::from_str::<Value>(&shown).expect("JSON"), document);
        }
    }
}
