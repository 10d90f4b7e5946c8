//! One field of a JSON object: the others are passed over, which is most of the work that is saved.

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// What a line has in a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Text(String),
    /// Something else, in words.
    Other(&'static str),
    /// The line lacks the field; the names of its first fields.
    Missing(Vec<String>),
}

/// Names that a message has room for, and characters of each.
const NAMES: usize = 20;
const CHARACTERS: usize = 80;

/// Takes one field of an object and leaves the others unread.
pub(super) struct Field<'a>(pub(super) &'a str);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Found;

    fn deserialize<D: serde::Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut others) = (None, Vec::new());
        while let Some(other) = map.next_key_seed(Name { field: self.0, is_kept: others.len() < NAMES })? {
            if let Some(other) = other {
                map.next_value::<IgnoredAny>()?;
                others.extend(Some(other).filter(|name| !name.is_empty()));
            } else if found.replace(map.next_value_seed(Text)?).is_some() {
                return Err(A::Error::custom(format!("the field `{}` is there twice", self.0)));
            }
        }
        Ok(found.unwrap_or(Found::Missing(others)))
    }
}

/// `None` for the field's name, else the beginning of another name, or nothing where names are not kept.
struct Name<'a> {
    field: &'a str,
    is_kept: bool,
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = Option<String>;

    fn deserialize<D: serde::Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        let kept = if self.is_kept { CHARACTERS } else { 0 };
        Ok((name != self.field).then(|| name.chars().take(kept).collect()))
    }
}

/// A text; of anything else only what it is, which takes no memory.
struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Found;

    fn deserialize<D: serde::Deserializer<'de>>(self, input: D) -> Result<Found, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Found, E> {
        Ok(Found::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Found, E> {
        Ok(Found::Text(text))
    }

    fn visit_unit<E>(self) -> Result<Found, E> {
        Ok(Found::Other("null"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Found, E> {
        Ok(Found::Other("a truth value"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Found, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::Other("a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Found::Other("an object"))
    }
}
