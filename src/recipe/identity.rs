//! What makes two experiments the same.

use super::leaves::values;
use super::schema::Recipe;
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Digests of the contents that a recipe names by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataDigests {
    /// Of the training data.
    pub train: String,
    /// Of the validation data.
    pub val: String,
    /// Of the weights of `model.init_from`, if the recipe has it.
    pub init_from: Option<String>,
}

/// The identity of an experiment: a blake3 digest, 64 hexadecimal digits.
///
/// What is hashed is the line `runner recipe 1` and then one line `key=value` for every key of the resolved recipe,
/// sorted by the bytes of the key, where
///
/// - `name`, `eval.every`, `distributed.timeout_s` and all of `checkpoint`, `sample` and `lints` are left out: they change what is kept and shown, not
///   what is computed;
/// - `data.train`, `data.val` and `model.init_from` stand with the digests of what they name, so that paths may change;
/// - a value is JSON without spaces, except that a float is its 64 bits in hexadecimal (minus zero as zero), so that
///   no platform's printing matters;
/// - `watchdog` is left out as long as it watches nothing, and enters whole otherwise;
/// - `distributed.shard_optimizer` has a line only where it is on; it changes results by rounding, as `batch.world_size` does;
/// - a key without a value (`schedule.decay_steps` of a cosine, say) has no line.
///
/// Everything else enters, also what is expected to change the result only by rounding, such as `batch.micro_batch`.
#[must_use]
pub fn identity(recipe: &Recipe, digests: &DataDigests) -> String {
    let mut lines: BTreeMap<&str, String> = values(recipe)
        .into_iter()
        .filter(|(key, _)| *key != "distributed.shard_optimizer" || recipe.distributed.shard_optimizer)
        .filter(|(key, _)| !is_left_out(key) && (recipe.watchdog.is_on() || !key.starts_with("watchdog.")))
        .map(|(key, value)| (key, canonical(&value)))
        .collect();
    lines.insert("data.train", canonical(&Json::from(digests.train.as_str())));
    lines.insert("data.val", canonical(&Json::from(digests.val.as_str())));
    match &digests.init_from {
        Some(digest) => lines.insert("model.init_from", canonical(&Json::from(digest.as_str()))),
        None => lines.remove("model.init_from"),
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"runner recipe 1\n");
    for (key, value) in lines {
        hasher.update(format!("{key}={value}\n").as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

fn is_left_out(key: &str) -> bool {
    const TABLES: &[&str] = &["checkpoint.", "sample.", "lints."];
    matches!(key, "name" | "eval.every" | "distributed.timeout_s")
        || TABLES.iter().any(|table| key.starts_with(table))
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
