//! `data.val`: the files of one set of validation data, or several sets by name.

use super::run_name::check_name;
use super::sources::files;
use super::value::{Fault, Value, found, shown};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Deref;
use toml::Spanned;
use toml::de::DeValue;

/// Validation data: files, globs or `builtin:` names of one set, or of several sets by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Validation {
    /// Of all sets, in the order of the sets.
    paths: Vec<String>,
    /// The names of the sets in their order, and how many paths each has; empty where there is one set without a name.
    sets: Vec<(String, usize)>,
}

/// As recipes have it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Files(Vec<String>),
    /// As layers pass it on.
    Pairs(Vec<(String, Vec<String>)>),
    Sets(BTreeMap<String, Vec<String>>),
}

impl Validation {
    /// The sets with their names, in the order of the names; `None` where there is one set without a name.
    #[must_use]
    pub fn named(&self) -> Option<Vec<(&str, &[String])>> {
        let mut rest = self.paths.as_slice();
        let mut sets = Vec::with_capacity(self.sets.len());
        for (name, count) in &self.sets {
            let (own, others) = rest.split_at(*count);
            sets.push((name.as_str(), own));
            rest = others;
        }
        (!sets.is_empty()).then_some(sets)
    }
}

impl From<Vec<String>> for Validation {
    fn from(paths: Vec<String>) -> Self {
        Self { paths, sets: Vec::new() }
    }
}

/// Several sets by their names.
impl From<BTreeMap<String, Vec<String>>> for Validation {
    fn from(named: BTreeMap<String, Vec<String>>) -> Self {
        let sets = named.iter().map(|(name, paths)| (name.clone(), paths.len())).collect();
        Self { paths: named.into_values().flatten().collect(), sets }
    }
}

impl From<Written> for Validation {
    fn from(written: Written) -> Self {
        match written {
            Written::Files(paths) => paths.into(),
            Written::Pairs(sets) => sets.into_iter().collect::<BTreeMap<_, _>>().into(),
            Written::Sets(sets) => sets.into(),
        }
    }
}

impl From<Validation> for Written {
    fn from(validation: Validation) -> Self {
        match validation.named() {
            None => Self::Files(validation.paths),
            Some(sets) => {
                Self::Sets(sets.into_iter().map(|(name, paths)| (name.to_owned(), paths.to_vec())).collect())
            }
        }
    }
}

/// The paths, globs and names of all sets.
impl Deref for Validation {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.paths
    }
}

/// Files of these names, in one set without a name.
impl<T, const N: usize> PartialEq<[T; N]> for Validation
where
    String: PartialEq<T>,
{
    fn eq(&self, other: &[T; N]) -> bool {
        self.sets.is_empty() && self.paths == *other
    }
}

const EXAMPLE: &str = "several sets are written { web = [\"web-val-*.bin\"], books = [\"books-val.bin\"] }";

/// Checks the value of the key: files, or a table of files by name.
pub(super) fn check(value: &Spanned<DeValue>) -> Result<Value, Fault> {
    let DeValue::Table(table) = value.get_ref() else { return files(value, 0) };
    let mut sets = BTreeMap::new();
    for (name, entry) in table {
        let fault = |what: String, label: &str, span| Fault {
            what,
            label: label.to_owned(),
            help: Some(EXAMPLE.to_owned()),
            span,
        };
        // a column of val.csv has the name
        if let Err(reason) = check_name(name.get_ref()) {
            let what = format!("has a set called \"{}\"", shown(name.get_ref()));
            return Err(fault(what, reason, name.span()));
        }
        if !matches!(entry.get_ref(), DeValue::String(_) | DeValue::Array(_)) {
            let label = format!("expected a string or an array of strings, found {}", found(entry.get_ref()));
            let what = format!("has a set `{}` that names no files", shown(name.get_ref()));
            return Err(fault(what, &label, entry.span()));
        }
        let Value::Texts(paths) = files(entry, 1)? else { continue };
        sets.insert(name.get_ref().to_string(), paths);
    }
    if sets.is_empty() {
        return Ok(Value::Texts(Vec::new()));
    }
    Ok(Value::Sets(sets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_keep_their_files_in_every_form() {
        let json = r#"{"books":["b.bin","c.bin"],"web":["a-*.bin"]}"#;
        let sets: Validation = serde_json::from_str(json).expect("a table");
        let pairs = r#"[["web",["a-*.bin"]],["books",["b.bin","c.bin"]]]"#;
        assert_eq!(serde_json::from_str::<Validation>(pairs).expect("pairs"), sets);
        assert_eq!(serde_json::to_string(&sets).expect("plain data"), json);
        assert_eq!(sets.to_vec(), ["b.bin", "c.bin", "a-*.bin"]);
        let named = sets.named().expect("names");
        assert_eq!(named[0], ("books", &["b.bin".to_owned(), "c.bin".to_owned()][..]));
        let one: Validation = serde_json::from_str(r#"["a"]"#).expect("a list");
        assert!(one == ["a"] && one.named().is_none() && one != sets);
    }
}
