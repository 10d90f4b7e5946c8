//! What is shipped beside the program: the schema and the recipes.

use crate::recipe_support;

use recipe_support::{Recipes, printed, set};
use runner::recipe::keys::{KEYS, Kind, TABLES};
use runner::recipe::{json_schema, key_reference, load};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

fn recipes_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes")
}

/// Every shipped recipe, and whether it lies in a directory of its own.
fn shipped() -> Vec<(PathBuf, bool)> {
    let toml = |dir: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(recipes_dir().join(dir)).expect("a directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
        paths.sort();
        paths
    };
    let whole = toml("").into_iter().map(|path| (path, false));
    let dirs = ["base", "data", "gpt3", "ladder", "muon", "sweeps"];
    whole.chain(dirs.iter().flat_map(|dir| toml(dir)).map(|path| (path, true))).collect()
}

#[test]
fn the_committed_schema_is_the_one_that_is_printed() {
    let committed = std::fs::read_to_string(recipes_dir().join("recipe.schema.json")).expect("committed");
    let printed = printed(&recipes_dir(), "schema");
    assert_eq!(printed, format!("{}\n", json_schema()));
    assert!(committed == printed, "refresh it: runner schema > recipes/recipe.schema.json");
}

#[test]
fn the_committed_page_of_keys_is_the_one_that_is_printed() {
    let committed = std::fs::read_to_string(recipes_dir().join("../docs/recipe-keys.md")).expect("committed");
    let printed = printed(&recipes_dir(), "schema keys");
    assert_eq!(printed, format!("{}\n", key_reference()));
    assert!(committed == printed, "refresh it: runner schema keys > docs/recipe-keys.md");
}

#[test]
fn the_page_of_keys_has_each_in_a_row_of_its_table() {
    let page = key_reference();
    for key in KEYS {
        let heading = if key.table().is_empty() { "Outside of the tables" } else { key.table() };
        let (_, section) = page.split_once(&format!("\n## {heading}\n")).expect("a section");
        let section = section.split("\n## ").next().expect("its rows");
        let row = section.lines().find(|line| line.starts_with(&format!("| `{}` |", key.leaf())));
        let row = row.unwrap_or_else(|| panic!("{} has no row", key.path));
        let cells = row.replace("\\|", "").matches('|').count();
        assert_eq!(cells, 6, "{row}");
        assert!(row.contains(&key.doc[1..]), "{row}");
        let default = key.default_json();
        assert!(default.is_none() || !row.contains("| none |") && !row.contains("| required |"), "{row}");
    }
    let rows = page.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, KEYS.len());
}

#[test]
fn the_schema_has_every_key_with_description_default_and_range() {
    let schema: Json = serde_json::from_str(&json_schema()).expect("JSON");
    assert_eq!(schema["additionalProperties"], false);
    let count = |table: &Json| table["properties"].as_object().expect("properties").len();
    let mut seen = count(&schema) - TABLES.len();
    for table in TABLES {
        let table = &schema["properties"][table.name];
        assert_eq!(
            (table["type"].as_str(), &table["additionalProperties"]),
            (Some("object"), &Json::Bool(false))
        );
        assert!(table["description"].is_string());
        seen += count(table);
    }
    assert_eq!(seen, KEYS.len());
    for key in KEYS {
        let tables = [&schema, &schema["properties"][key.table()]];
        let property = &tables[usize::from(!key.table().is_empty())]["properties"][key.leaf()];
        let description =
            property["description"].as_str().unwrap_or_else(|| panic!("{} is missing", key.path));
        assert!(description.starts_with(key.doc));
        if let Kind::Integer { min, max } = key.kind {
            assert_eq!((property["minimum"].as_i64(), property["maximum"].as_i64()), (Some(min), Some(max)));
        }
        if let Kind::Choice(words) = key.kind {
            assert_eq!(property["enum"], serde_json::json!(words));
        }
    }
    let default = |table: &str, leaf: &str| &schema["properties"][table]["properties"][leaf]["default"];
    assert_eq!(default("optimizer", "betas"), &serde_json::json!([0.9, 0.95]));
    assert_eq!(default("batch", "micro_batch"), "auto");
    assert_eq!(default("data", "train"), &Json::Null);
}

/// Whether a value is one that a property of the schema allows, as far as types, words and ranges go.
fn allows(property: &Json, value: &Json) -> bool {
    if let Some(any) = property["anyOf"].as_array() {
        return any.iter().any(|schema| allows(schema, value));
    }
    if let Some(words) = property["enum"].as_array() {
        return words.contains(value);
    }
    if !property["const"].is_null() {
        return property["const"] == *value;
    }
    let within = |number: f64| {
        property["minimum"].as_f64().is_none_or(|min| number >= min)
            && property["maximum"].as_f64().is_none_or(|max| number <= max)
            && property["exclusiveMinimum"].as_f64().is_none_or(|min| number > min)
            && property["exclusiveMaximum"].as_f64().is_none_or(|max| number < max)
    };
    match property["type"].as_str() {
        // a number without a fraction is one, as in 12e9
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0 && within(number)),
        Some("number") => value.as_f64().is_some_and(within),
        Some("boolean") => value.is_boolean(),
        Some("string") => value.is_string(),
        Some("array") => {
            value.as_array().is_some_and(|items| items.iter().all(|item| allows(&property["items"], item)))
        }
        other => panic!("a type that recipes do not have: {other:?}"),
    }
}

#[test]
fn every_shipped_recipe_names_the_schema_and_follows_it() {
    let schema: Json = serde_json::from_str(&json_schema()).expect("JSON");
    for (path, is_base) in shipped() {
        let text = std::fs::read_to_string(&path).expect("readable");
        let line = if is_base { "#:schema ../recipe.schema.json\n" } else { "#:schema recipe.schema.json\n" };
        assert!(text.starts_with(line), "{}", path.display());
        let recipe = serde_json::to_value(text.parse::<toml::Table>().expect("TOML")).expect("JSON");
        let mut members = Vec::new();
        for (name, value) in recipe.as_object().expect("a table") {
            let property = &schema["properties"][name];
            match value.as_object() {
                Some(table) => {
                    members.extend(
                        table.iter().map(|(leaf, value)| (&property["properties"][leaf], leaf, value)),
                    );
                }
                None => members.push((property, name, value)),
            }
        }
        for (property, name, value) in members {
            assert!(property.is_object(), "{}: the schema lacks {name}", path.display());
            assert!(allows(property, value), "{}: {name} = {value}", path.display());
        }
    }
}

#[test]
fn the_schema_refuses_what_the_loader_refuses() {
    let schema: Json = serde_json::from_str(&json_schema()).expect("JSON");
    let property = |table: &str, leaf: &str| &schema["properties"][table]["properties"][leaf];
    for (table, leaf, value) in [
        ("model", "n_layer", "0"),
        ("model", "n_layer", "\"12\""),
        ("optimizer", "lr", "0.0"),
        ("optimizer", "betas", "[0.9, 1.0]"),
        ("compute", "precision", "\"float32\""),
        ("batch", "micro_batch", "\"all\""),
        ("data", "train", "3"),
        ("data", "shuffle", "1"),
        ("lints", "allow", "[\"ugly\"]"),
        ("schedule", "min_lr_ratio", "1.5"),
    ] {
        let recipes = Recipes::with(recipe_support::REQUIRED);
        assert!(recipes.load("recipe.toml", &set(&[&format!("{table}.{leaf}={value}")])).is_err(), "{leaf}");
        let value: Json = serde_json::from_str(value).expect("JSON");
        assert!(!allows(property(table, leaf), &value), "{leaf} = {value}");
    }
}

#[test]
fn all_sizes_of_both_tables_are_there() {
    let parameters = |name: &str| {
        let path = recipes_dir().join("base").join(format!("{name}.toml"));
        let recipe =
            load(&path, &set(&["data.train=builtin:lipsum", "schedule.max_steps=10"])).expect("right").recipe;
        let mut dims = runner::model::Dims::new(&recipe.model);
        dims.padded_vocab = dims.vocab_size;
        let layout = runner::model::ParamLayout::new(&dims);
        (layout.count(true).0 + layout.count(false).0) as f64
    };
    // the published names; GPT-2's are those of the released weights, GPT-3's are rounded
    for (name, published) in [
        ("gpt2-124m", 124.4e6),
        ("gpt2-350m", 354.8e6),
        ("gpt2-774m", 774e6),
        ("gpt2-1558m", 1557.6e6),
        ("gpt3-small", 125e6),
        ("gpt3-medium", 350e6),
        ("gpt3-large", 760e6),
        ("gpt3-xl", 1.3e9),
        ("gpt3-2.7b", 2.7e9),
        ("gpt3-6.7b", 6.7e9),
        ("gpt3-13b", 13e9),
        ("gpt3-175b", 175e9),
    ] {
        let ratio = parameters(name) / published;
        assert!((0.98..1.03).contains(&ratio), "{name}: {ratio}");
    }
}
