//! What makes two experiments the same.

use super::effect::is_off;
use super::keys::{Identity, KEYS, Key};
use super::leaves::values;
use super::overrides::Overrides;
use super::resolved::load;
use super::schema::Recipe;
use serde::Serialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;

/// Digests of the contents that a recipe names by path, each under the last part of its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DataDigests {
    /// Of the training data.
    pub train: String,
    /// Of the validation data.
    pub val: String,
    /// Of the weights of `model.init_from`, if the recipe has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_from: Option<String>,
}

impl DataDigests {
    /// The digests of a run's record, where [`by_name`](Self::by_name) put them.
    #[must_use]
    pub fn from_names(digests: &BTreeMap<String, String>) -> Self {
        let of = |name: &str| digests.get(name).cloned();
        Self {
            train: of("train").unwrap_or_default(),
            val: of("val").unwrap_or_default(),
            init_from: of("init_from"),
        }
    }

    /// The digests under the last part of their keys, as a run's record has them.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<String, String> {
        let digests = serde_json::to_value(self).and_then(serde_json::from_value);
        digests.expect("digests are plain data")
    }
}

/// The identity of the experiment that a resolved recipe's file describes, where what it names has these digests by
/// name. `None` if the file cannot be loaded.
#[must_use]
pub fn identity_of_file(path: &Path, digests: &BTreeMap<String, String>) -> Option<String> {
    let resolved = load(path, &Overrides::default()).ok()?;
    Some(identity(&resolved.recipe, &DataDigests::from_names(digests)))
}

/// The identity of an experiment: a blake3 digest, 64 hexadecimal digits.
///
/// What is hashed is the line `runner recipe 1` and then one line `key=value` for every key of the resolved recipe,
/// sorted by the bytes of the key. The key's row says whether it has a line, and what its value is there:
///
/// - [`Identity::Always`]: the value. A key without one (`schedule.decay_steps` of a cosine, say) has no line;
/// - [`Identity::Contents`]: the digest of what the key names;
/// - [`Identity::UnlessDefault`]: the value, but no line where it is the default;
/// - [`Identity::While`]: the value, but no line while the switch is off;
/// - [`Identity::Never`]: no line.
///
/// A value is JSON without spaces, except that a float is its 64 bits in hexadecimal (minus zero as zero), so that no
/// platform's printing matters. What is expected to change a result by rounding only, such as `batch.micro_batch`,
/// enters like everything else.
#[must_use]
pub fn identity(recipe: &Recipe, digests: &DataDigests) -> String {
    let (values, digests) = (values(recipe), digests.by_name());
    let value = |key: &Key| values.iter().find(|(known, _)| known.path == key.path).map(|(_, value)| value);
    let line = |key: &Key| match key.identity {
        Identity::Always => value(key).map(canonical),
        Identity::Contents => digests.get(key.leaf()).map(|digest| canonical(&Json::from(digest.as_str()))),
        Identity::UnlessDefault => {
            value(key).filter(|value| Some(*value) != key.default_json()).map(canonical)
        }
        Identity::While(switch) => value(key).filter(|_| !is_off(switch, &values)).map(canonical),
        Identity::Never => None,
    };
    let lines: BTreeMap<&str, String> = KEYS.iter().filter_map(|key| Some((key.path, line(key)?))).collect();
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"runner recipe 1\n");
    for (key, value) in lines {
        hasher.update(format!("{key}={value}\n").as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

fn canonical(value: &Json) -> String {
    match value {
        Json::Number(number) if number.is_f64() => {
            format!("{:016x}", (number.as_f64().unwrap_or_default() + 0.0).to_bits())
        }
        Json::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_that_enters_with_contents_has_a_digest_and_nothing_else_does() {
        let digest = || "d".to_owned();
        let all = DataDigests { train: digest(), val: digest(), init_from: Some(digest()) }.by_name();
        let contents = KEYS.iter().filter(|key| matches!(key.identity, Identity::Contents));
        let mut leaves: Vec<&str> = contents.map(Key::leaf).collect();
        leaves.sort_unstable();
        assert_eq!(leaves, all.keys().collect::<Vec<_>>());
        assert_eq!(DataDigests::from_names(&all).by_name(), all);
    }
}
