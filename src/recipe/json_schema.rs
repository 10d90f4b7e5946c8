//! The JSON Schema of recipes: completion, descriptions and first checks in editors.
//!
//! Written from the table of keys, so it cannot disagree with what the loader accepts. What no schema can say, such as
//! divisibility between keys, is left to the loader.

use super::keys::{Fallback, Interval, KEYS, Key, Kind, TABLES};
use super::presets;
use serde_json::{Map, Value as Json, json};

/// What each table is about.
const ABOUT: &[(&str, &str)] = &[
    ("model", "the network: a GPT-2"),
    ("compute", "where and how it is computed"),
    ("data", "what it is trained and validated on"),
    ("batch", "how much data one optimizer step reads"),
    ("optimizer", "AdamW and gradient clipping"),
    ("schedule", "the learning rate over the steps"),
    ("eval", "validation during training"),
    ("checkpoint", "what is saved, and how often"),
    ("distributed", "how the ranks of one run work together"),
    ("watchdog", "steps whose loss or gradient norm stands out"),
    ("sample", "text generated during training"),
    ("lints", "remarks about the plan"),
];

/// The schema as a JSON document (draft 2020-12), without a final newline.
///
/// No key is required: what a file lacks may stand in one that extends it.
#[must_use]
pub fn json_schema() -> String {
    let mut properties = members("");
    for table in TABLES {
        let about = ABOUT.iter().find(|(name, _)| name == table).map_or("", |(_, about)| about);
        let schema = json!({
            "type": "object",
            "description": about,
            "properties": members(table),
            "additionalProperties": false,
        });
        properties.insert((*table).into(), schema);
    }
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A recipe of runner",
        "description": "declares one experiment: a GPT-2, its data, and how it is trained",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    format!("{schema:#}")
}

fn members(table: &str) -> Map<String, Json> {
    KEYS.iter().filter(|key| key.table() == table).map(|key| (key.leaf().to_owned(), property(key))).collect()
}

fn property(key: &Key) -> Json {
    let mut schema = json!({ "description": description(key) });
    if let (Some(schema), Json::Object(kind)) = (schema.as_object_mut(), kind(key.kind)) {
        schema.extend(kind);
        if let Some(default) = default(key) {
            schema.insert("default".into(), default);
        }
    }
    schema
}

fn description(key: &Key) -> String {
    let mut text = key.doc.to_owned();
    match key.default {
        Fallback::Required => text.push_str(" (no default)"),
        Fallback::FileStem => text.push_str(" (default: the stem of the file's name)"),
        Fallback::FifthOfMaxSteps => text.push_str(" (default: a fifth of max_steps)"),
        Fallback::Is(_) | Fallback::Absent => {}
    }
    if !key.schedules.is_empty() {
        text.push_str(&format!("; only with schedule.kind = {}", key.schedules.join(", ")));
    }
    text
}

fn default(key: &Key) -> Option<Json> {
    let Fallback::Is(text) = key.default else { return None };
    let document: toml::Table = format!("value = {text}").parse().ok()?;
    serde_json::to_value(document.get("value")?).ok()
}

fn kind(kind: Kind) -> Json {
    let text = || json!({ "type": "string", "minLength": 1 });
    let list = |item: Json, min: usize| {
        let array = json!({ "type": "array", "items": item.clone(), "minItems": min });
        json!({ "anyOf": [item, array] })
    };
    match kind {
        Kind::Integer { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::MicroBatch { max } => {
            json!({ "anyOf": [{ "type": "integer", "minimum": 1, "maximum": max }, { "const": "auto" }] })
        }
        Kind::Number(Interval::Positive) => json!({ "type": "number", "exclusiveMinimum": 0 }),
        Kind::Number(Interval::NonNegative) => json!({ "type": "number", "minimum": 0 }),
        Kind::Number(Interval::Unit) => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        Kind::Betas => json!({
            "type": "array",
            "items": { "type": "number", "minimum": 0, "exclusiveMaximum": 1 },
            "minItems": 2,
            "maxItems": 2,
        }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Text | Kind::File => text(),
        Kind::Name => {
            json!({ "type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]*$", "maxLength": 100 })
        }
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Choices(words) => list(json!({ "enum": words }), 0),
        Kind::Device => json!({ "type": "string", "pattern": "^(auto|cpu|cuda(:[0-9]+)?)$" }),
        Kind::Files { min } => list(text(), min),
        Kind::Preset => json!({ "enum": presets::names().collect::<Vec<_>>() }),
        Kind::Extends => list(text(), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_described_and_every_default_is_json() {
        assert!(TABLES.iter().all(|table| ABOUT.iter().any(|(name, _)| name == table)));
        for key in KEYS {
            assert_eq!(default(key).is_some(), matches!(key.default, Fallback::Is(_)), "{}", key.path);
        }
    }
}
