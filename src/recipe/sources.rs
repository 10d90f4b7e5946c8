//! `data.train`: files, or a mixture of several sources with weights.

use super::value::{Fault, Value, found, path, shown, wrong_type};
use serde::{Deserialize, Serialize};
use std::ops::Deref;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Training data: files, globs or `builtin:` names in order, or a mixture of them with a weight for each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Sources {
    paths: Vec<String>,
    /// One for each path; empty if the data are no mixture.
    weights: Vec<f64>,
}

/// As recipes have it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Files(Vec<String>),
    Mixture(Vec<Part>),
}

/// A source of a mixture.
#[derive(Clone, Serialize, Deserialize)]
struct Part {
    path: String,
    weight: f64,
}

impl Sources {
    /// The sources of a mixture with their weights; `None` if the data are no mixture.
    #[must_use]
    pub fn mixture(&self) -> Option<Vec<(String, f64)>> {
        let parts = || self.paths.iter().cloned().zip(self.weights.iter().copied()).collect();
        (!self.weights.is_empty()).then(parts)
    }
}

impl From<Vec<String>> for Sources {
    fn from(paths: Vec<String>) -> Self {
        Self { paths, weights: Vec::new() }
    }
}

/// A mixture of sources with weights.
impl From<Vec<(String, f64)>> for Sources {
    fn from(parts: Vec<(String, f64)>) -> Self {
        let (paths, weights) = parts.into_iter().unzip();
        Self { paths, weights }
    }
}

impl From<Written> for Sources {
    fn from(written: Written) -> Self {
        match written {
            Written::Files(paths) => paths.into(),
            Written::Mixture(parts) => {
                parts.into_iter().map(|part| (part.path, part.weight)).collect::<Vec<_>>().into()
            }
        }
    }
}

impl From<Sources> for Written {
    fn from(sources: Sources) -> Self {
        match sources.mixture() {
            None => Self::Files(sources.paths),
            Some(parts) => {
                Self::Mixture(parts.into_iter().map(|(path, weight)| Part { path, weight }).collect())
            }
        }
    }
}

/// The paths, globs and names, in order.
impl Deref for Sources {
    type Target = Vec<String>;

    fn deref(&self) -> &Vec<String> {
        &self.paths
    }
}

/// Files of these names, without weights.
impl<T, const N: usize> PartialEq<[T; N]> for Sources
where
    String: PartialEq<T>,
{
    fn eq(&self, other: &[T; N]) -> bool {
        self.weights.is_empty() && self.paths == *other
    }
}

/// The members of a source of a mixture.
const MEMBERS: [&str; 2] = ["path", "weight"];
/// The largest weight. It is a ratio that counts, so no weight has to be larger.
pub(super) const MOST: f64 = 1e9;
const EXAMPLE: &str =
    "a mixture is written [{ path = \"a-*.bin\", weight = 0.7 }, { path = \"b-*.bin\", weight = 0.3 }]";

/// Checks a list of files, globs and names: an array with at least so many, or a single string.
pub(super) fn files(value: &Spanned<DeValue>, min: usize) -> Result<Value, Fault> {
    let paths = match value.get_ref() {
        DeValue::String(_) => vec![path(value)?],
        DeValue::Array(items) => items.iter().map(path).collect::<Result<_, _>>()?,
        _ => return Err(wrong_type(value, "a string or an array of strings")),
    };
    if paths.len() < min {
        return Err(Fault {
            what: "is empty".into(),
            label: "expected at least one file".into(),
            help: Some("name a file or a glob, or \"builtin:lipsum\" for generated text".into()),
            span: value.span(),
        });
    }
    Ok(Value::Texts(paths))
}

/// Whether a value is meant as a mixture: an array that holds a table, or a table in place of the array.
fn is_mixture(value: &DeValue) -> bool {
    match value {
        DeValue::Array(items) => items.iter().any(|item| item.get_ref().is_table()),
        other => other.is_table(),
    }
}

/// Checks the value of the key: files, or a mixture.
pub(super) fn check(value: &Spanned<DeValue>) -> Result<Value, Fault> {
    if !is_mixture(value.get_ref()) {
        return files(value, 1);
    }
    let DeValue::Array(items) = value.get_ref() else {
        return Err(fault(value, "must be a list of its sources", "one table stands for one source"));
    };
    let part = |item| {
        let DeValue::Table(table) = Spanned::get_ref(item) else {
            let label = format!("expected a table with a weight, found {}", found(item.get_ref()));
            return Err(fault(item, "mixes sources with and without weights", &label));
        };
        source(item, table)
    };
    items.iter().map(part).collect::<Result<_, _>>().map(Value::Mixture)
}

fn source(item: &Spanned<DeValue>, table: &DeTable) -> Result<(String, f64), Fault> {
    if let Some((name, _)) = table.iter().find(|(name, _)| !MEMBERS.contains(&name.get_ref().as_ref())) {
        let label = format!("its members are {}", MEMBERS.join(" and "));
        let what = format!("has no member `{}`", shown(name.get_ref()));
        return Err(Fault { what, label, help: Some(EXAMPLE.into()), span: name.span() });
    }
    let member = |name: &str| {
        table.get(name).ok_or_else(|| fault(item, &format!("has a source without `{name}`"), ""))
    };
    let (named, weight) = (member("path")?, member("weight")?);
    let number = match weight.get_ref() {
        DeValue::Float(float) => float.as_str().replace('_', "").parse().ok(),
        DeValue::Integer(digits) => {
            i64::from_str_radix(digits.as_str(), digits.radix()).ok().map(|number| number as f64)
        }
        _ => return Err(wrong_type(weight, "a number")),
    };
    match number.filter(|number: &f64| *number > 0.0 && *number <= MOST) {
        Some(number) => Ok((path(named)?, number)),
        None => Err(fault(weight, "has a weight that is none", "must be greater than 0 and at most 1e9")),
    }
}

fn fault(value: &Spanned<DeValue>, what: &str, label: &str) -> Fault {
    Fault { what: what.into(), label: label.into(), help: Some(EXAMPLE.into()), span: value.span() }
}
