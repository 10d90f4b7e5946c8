//! Reading back the resolved recipe of a run, whichever build of this program wrote it.
//!
//! [`load`](super::load) refuses keys that this build does not know, as it must before training. A report only shows a
//! run of another version, so this module keeps every key, known or not. It resolves nothing: the file is complete.

use super::keys::{self, KEYS, Key, Kind};
use super::leaves;
use serde_json::Value as Json;

/// More keys than the recipe of any version has.
const MOST_KEYS: usize = 256;

/// Every `key = value` of a resolved recipe's text, known keys in the order of the table of keys, others behind them.
///
/// # Errors
/// The text is not TOML, or has more keys than any recipe; the message has one line.
pub fn written(text: &str) -> Result<Vec<(String, Json)>, String> {
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| error.message().replace('\n', " "))?;
    let mut found = Vec::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(members) => {
                found
                    .extend(members.into_iter().map(|(leaf, value)| (format!("{name}.{leaf}"), json(value))));
            }
            other => found.push((name, json(other))),
        }
    }
    if found.len() > MOST_KEYS {
        return Err(format!("it has {} keys, and no recipe has more than {MOST_KEYS}", found.len()));
    }
    found.sort_by_cached_key(|(key, _)| (rank(key), key.clone()));
    Ok(found)
}

/// The blake3 digest of what a resolved recipe's text says, however it is written, without where its files are. `None`
/// for a text that is not TOML.
#[must_use]
pub fn digest_of_values(text: &str) -> Option<String> {
    let is_value = |path: &str| keys::find(path).is_none_or(|key| !key.is_path());
    let values = written(text).ok()?.into_iter().filter(|(path, _)| is_value(path));
    let lines: String = values.map(|(path, value)| format!("{path}={value}\n")).collect();
    Some(blake3::hash(lines.as_bytes()).to_hex().to_string())
}

/// Whether resolving these values reads directories: a layer below or a pattern of files may name a whole file system.
#[must_use]
pub fn asks_the_disk(values: &[(String, Json)]) -> bool {
    let is_pattern = |value: &Json| value.to_string().contains(['*', '?']);
    values.iter().any(|(path, value)| {
        keys::find(path).is_some_and(|key| key.kind == Kind::Extends || key.is_path() && is_pattern(value))
    })
}

/// The position of a key in a written recipe; unknown keys come last.
#[must_use]
pub fn rank(key: &str) -> usize {
    KEYS.iter().position(|known| known.path == key).unwrap_or(KEYS.len())
}

/// Whether a key has this value where no layer sets it.
#[must_use]
pub fn is_default(key: &str, value: &Json) -> bool {
    keys::find(key).and_then(Key::default_json) == Some(value)
}

/// A value as TOML on one line.
#[must_use]
pub fn spelled(value: &Json) -> String {
    leaves::toml(value)
}

fn json(value: toml::Value) -> Json {
    serde_json::to_value(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_other_versions_are_kept_behind_the_known_ones() {
        let text =
            "novelty = 1\nseed = 7\n[model]\nwarp = true\nn_layer = 2\n[optimizer]\nbetas = [0.9, 0.95]\n";
        let found = written(text).expect("TOML");
        let keys: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["seed", "model.n_layer", "optimizer.betas", "model.warp", "novelty"]);
        assert_eq!(spelled(&found[2].1), "[0.9, 0.95]");
        assert!(is_default("optimizer.betas", &found[2].1) && is_default("optimizer.lr", &0.0006.into()));
        assert!(!is_default("model.n_layer", &found[1].1) && !is_default("schedule.max_steps", &1.into()));
        assert!(!asks_the_disk(&found));
        for (text, asks) in [
            ("extends = \"base.toml\"", true),
            ("data.train = [\"/*/*\"]", true),
            ("data.train = [\"a.npy\"]", false),
            ("name = \"what?\"", false),
        ] {
            assert_eq!(asks_the_disk(&written(text).expect("TOML")), asks, "{text}");
        }
        let digest = |text: &str| digest_of_values(text).expect("TOML");
        let text = "[data]\ntrain = \"a.bin\"\n[checkpoint]\nkeep = 0\n";
        assert_eq!(digest(text), digest("checkpoint = { keep = 0 } # all\ndata.train = \"../a.bin\""));
        assert_ne!(digest(text), digest(&text.replace('0', "1")));
        let many = |keys: usize| (0..keys).map(|key| format!("[k{key}.b]\n")).collect::<String>();
        assert!(
            written(&many(256)).is_ok() && written(&many(257)).is_err_and(|error| error.contains("257 keys"))
        );
        assert!(written("a = [").is_err_and(|error| !error.contains('\n')));
    }
}
