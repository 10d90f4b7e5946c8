//! `runner explain`: every value with its origin, and nothing that a mutated recipe could do to it.

use crate::recipe_support;

use recipe_support::{REQUIRED, Recipes, printed, refused, runner};
use runner::recipe::keys::{KEYS, TABLES};
use serde_json::Value as Json;

/// A recipe in which every layer speaks.
fn layered() -> Recipes {
    let recipes = Recipes::new();
    recipes.write(
        "base/b.toml",
        "[model]\npreset = \"gpt3-small\"\n[optimizer]\nlr = 3e-4\n[data]\nval = \"../d/v-*.bin\"\n",
    );
    recipes.write("r/a.toml", format!("extends = \"../base/b.toml\"\n{REQUIRED}[optimizer]\nlr = 4e-4\n"));
    recipes
}

#[test]
fn every_value_stands_with_its_origin_in_the_order_of_the_tables() {
    let recipes = layered();
    let text = printed(recipes.dir(), "explain r/a.toml --set model.n_layer=3");
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!("explain_all", text) });
    let shown: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let keys: Vec<&str> = KEYS.iter().map(|key| key.path).filter(|key| shown.contains(key)).collect();
    assert_eq!(shown, keys);
}

#[test]
fn a_key_shows_every_layer_and_the_winner_last() {
    let recipes = layered();
    let output = runner(recipes.dir())
        .args(["explain", "r/a.toml", "optimizer.lr", "--set", "optimizer.lr=7e-4"])
        .env("RUNNER_OPTIMIZER__LR", "5e-4")
        .output()
        .expect("it runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!("explain_key", text) });
}

#[test]
fn paths_are_those_of_the_current_directory() {
    let recipes = layered();
    for (dir, recipe, data, origin) in [
        (".", "r/a.toml", "\"d/v-*.bin\"", "base/b.toml:6:7"),
        ("r", "a.toml", "\"../d/v-*.bin\"", "../base/b.toml:6:7"),
        ("base", "../r/a.toml", "\"../d/v-*.bin\"", "b.toml:6:7"),
    ] {
        let text = printed(&recipes.path(dir), &format!("explain {recipe} data.val"));
        assert!(text.contains(&format!("[{data}]")) && text.contains(origin), "{dir}: {text}");
    }
    // named from elsewhere by its absolute path, the recipe is still shown from here
    let absolute = recipes.path("r/a.toml");
    let text = printed(recipes.dir(), &format!("explain {} optimizer.lr", absolute.display()));
    assert!(text.contains("\n  r/a.toml:7:6"), "{text}");
}

#[test]
fn json_holds_the_same() {
    let recipes = layered();
    let all: Json =
        serde_json::from_str(&printed(recipes.dir(), "explain r/a.toml --format json")).expect("JSON");
    assert_eq!(all["model.n_embd"]["origin"], serde_json::json!({ "kind": "preset", "name": "gpt3-small" }));
    assert_eq!(all["data.val"]["value"], serde_json::json!(["d/v-*.bin"]));
    assert_eq!(all["optimizer.betas"]["value"], serde_json::json!([0.9, 0.95]));
    assert_eq!(all["optimizer.lr"]["origin"]["line"], 7);
    assert_eq!(all["sample.prompt"]["no_effect"], "sample.every = 0");
    let one = printed(recipes.dir(), "explain r/a.toml optimizer.lr --format json");
    let one: Json = serde_json::from_str(&one).expect("JSON");
    assert_eq!((&one["value"], one["layers"].as_array().map(Vec::len)), (&serde_json::json!(4e-4), Some(4)));
    let absent = printed(recipes.dir(), "explain r/a.toml model.init_from --format json");
    let absent: Json = serde_json::from_str(&absent).expect("JSON");
    assert_eq!((&absent["value"], &absent["layers"]), (&Json::Null, &serde_json::json!([])));
}

#[test]
fn a_table_shows_its_keys_and_a_key_without_value_says_why() {
    let recipes = layered();
    for table in TABLES.iter().map(|table| table.name) {
        let text = printed(recipes.dir(), &format!("explain r/a.toml {table}"));
        assert!(text.lines().count() > 0 && text.lines().all(|line| line.starts_with(&format!("{table}."))));
    }
    let decay = |more: &str| printed(recipes.dir(), &format!("explain r/a.toml schedule.decay_steps {more}"));
    let text = decay("--set schedule.kind=constant");
    assert!(text.contains("it has no value with schedule.kind = \"constant\", only with"), "{text}");
    assert!(decay("").contains("no layer sets it"), "{}", decay(""));
    let text = decay("--set schedule.decay_tokens=1e9");
    assert!(text.contains("schedule.decay_tokens says it instead"), "{text}");
    assert!(printed(recipes.dir(), "explain r/a.toml model.init_from").contains("no layer sets it"));
    assert!(printed(recipes.dir(), "explain r/a.toml extends").contains("base/b.toml, r/a.toml"));
    assert!(
        printed(recipes.dir(), "explain r/a.toml sample.tokens")
            .contains("it has no effect with sample.every = 0")
    );
}

#[test]
fn unknown_keys_and_wrong_recipes_are_refused() {
    let recipes = layered();
    let (code, message) = refused(recipes.dir(), "explain r/a.toml optimiser.lr");
    assert_eq!(code, Some(2));
    assert!(
        message.contains("unknown key `optimiser.lr`") && message.contains("did you mean `optimizer.lr`?"),
        "{message}"
    );
    let (code, message) = refused(recipes.dir(), "explain r/a.toml wobble");
    assert_eq!((code, message.contains("the tables are model, compute")), (Some(2), true), "{message}");
    let (code, message) = refused(recipes.dir(), "explain r/a.toml --set model.n_layer=0");
    assert_eq!((code, message.contains("out of range")), (Some(2), true), "{message}");
    assert_eq!(refused(recipes.dir(), "explain r/b.toml").0, Some(2));
}
