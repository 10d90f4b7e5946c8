//! The JSON Schema of recipes: completion, descriptions and first checks in editors.
//!
//! It is generated from the table of keys, so it cannot disagree with the loader. Relations between keys, such as
//! divisibility, are beyond a schema and left to the loader.

use super::keys::{Fallback, Interval, KEYS, Key, Kind, TABLES};
use super::{init_from, presets, sources};
use serde_json::{Map, Value as Json, json};

/// The schema as a JSON document (draft 2020-12), without a final newline.
///
/// No key is required: a file that extends this one may set what it lacks.
#[must_use]
pub fn json_schema() -> String {
    let mut properties = members("");
    for table in TABLES {
        let schema = json!({
            "type": "object",
            "description": table.doc,
            "properties": members(table.name),
            "additionalProperties": false,
        });
        properties.insert(table.name.into(), schema);
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
        if let Some(default) = key.default_json() {
            schema.insert("default".into(), default.clone());
        }
    }
    schema
}

fn description(key: &Key) -> String {
    let mut text = key.doc.to_owned();
    match key.default {
        Fallback::Required => text.push_str(" (no default)"),
        Fallback::FileStem => text.push_str(" (default: the stem of the file's name)"),
        Fallback::FifthOf(path) => {
            let of = super::keys::known(path).leaf();
            let with = key.special_in.map_or_else(String::new, |kind| format!(" with {kind}"));
            text.push_str(&format!(" (default{with}: a fifth of {of})"));
        }
        Fallback::SameAs(path) => {
            text.push_str(&format!(" (default: {})", super::keys::known(path).leaf()));
        }
        Fallback::Is(_) | Fallback::Absent => {}
    }
    if !key.schedules.is_empty() {
        text.push_str(&format!("; only with schedule.kind = {}", key.schedules.join(", ")));
    }
    text
}

fn kind(kind: Kind) -> Json {
    let text = || json!({ "type": "string", "minLength": 1 });
    let list = |item: Json, min: usize| {
        let array = json!({ "type": "array", "items": item.clone(), "minItems": min });
        json!({ "anyOf": [item, array] })
    };
    match kind {
        Kind::Integer { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        // a float without a fraction is an integer to JSON Schema
        Kind::Tokens { max } => json!({ "type": "integer", "minimum": 1, "maximum": max }),
        Kind::MicroBatch { max } => {
            json!({ "anyOf": [{ "type": "integer", "minimum": 1, "maximum": max }, { "const": "auto" }] })
        }
        Kind::Number(Interval::Positive) => json!({ "type": "number", "exclusiveMinimum": 0 }),
        Kind::Number(Interval::Fraction) => {
            json!({ "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 })
        }
        Kind::Number(Interval::BelowOne) => {
            json!({ "type": "number", "minimum": 0, "exclusiveMaximum": 1 })
        }
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
        Kind::Start => json!({ "anyOf": [text(), {
            "type": "object",
            "properties": {
                "run": text(),
                "step": { "type": "integer", "minimum": 0, "maximum": init_from::STEPS },
                "optimizer": { "type": "boolean", "default": true },
            },
            "required": ["run"],
            "additionalProperties": false,
        }] }),
        Kind::Name => {
            json!({ "type": "string", "pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]*$", "maxLength": 100 })
        }
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Choices(words) => list(json!({ "enum": words }), 0),
        Kind::Device => json!({ "type": "string", "pattern": "^(auto|cpu|cuda(:[0-9]+)?)$" }),
        Kind::Files { min } => list(text(), min),
        Kind::Sources => {
            let part = json!({
                "type": "object",
                "properties": {
                    "path": text(),
                    "weight": { "type": "number", "exclusiveMinimum": 0, "maximum": sources::MOST },
                },
                "required": ["path", "weight"],
                "additionalProperties": false,
            });
            let mixture = json!({ "type": "array", "items": part, "minItems": 1 });
            let files = json!({ "type": "array", "items": text(), "minItems": 1 });
            json!({ "anyOf": [text(), files, mixture] })
        }
        Kind::Sets => {
            let sets = json!({ "type": "object", "additionalProperties": list(text(), 1) });
            json!({ "anyOf": [text(), { "type": "array", "items": text(), "minItems": 0 }, sets] })
        }
        Kind::Preset => json!({ "enum": presets::names().collect::<Vec<_>>() }),
        Kind::Extends => list(text(), 0),
    }
}
