//! Which keys make another experiment, and that each key of the table reaches the recipe.

use crate::recipe_support;

use recipe_support::{REQUIRED, Recipes, set};
use runner::recipe::keys::{Fallback, Identity, KEYS, Key, Kind, OnResume, SCHEDULE_KIND, Switch, find};
use runner::recipe::{DataDigests, Overrides, Recipe, ScheduleConfig, diff, identity, leaves};
use std::collections::BTreeSet;

/// The setting of a key's example.
fn example(key: &Key) -> Vec<String> {
    // a batch that grows does so over some number of tokens
    let more = (key.path == "batch.ramp_start").then(|| "batch.ramp_tokens=10000".to_owned());
    [format!("{}={}", key.path, key.example)].into_iter().chain(more).collect()
}

/// The key that says the same in other terms, and has no value where this one is set.
fn replaced(key: &Key) -> Option<&'static Key> {
    KEYS.iter().find(|other| other.instead_of == Some(key.path))
}

/// The recipe with the required keys and an example of one more.
fn with_example(key: &Key) -> Recipe {
    let overrides = set(&[needs(key), example(key)].concat().iter().map(String::as_str).collect::<Vec<_>>());
    let written = replaced(key).filter(|other| other.default == Fallback::Required);
    let unset = written.map(|other| other.path.to_owned()).into_iter().collect();
    Recipes::with(REQUIRED).good(&Overrides { unset, ..overrides }).recipe
}

/// What a recipe with the required keys must also set for a key to have an effect.
fn needs(key: &Key) -> Vec<String> {
    let kind = key.schedules.first().filter(|_| !key.is_used_by("cosine"));
    let kind = kind.map(|kind| format!("{SCHEDULE_KIND}={kind}"));
    let is_off = |switch: &&&Switch| {
        switch.keys.iter().all(|path| {
            let key = find(path).expect("a key");
            // a key without a default has an empty value
            (switch.is_off)(&key.default_json().map_or_else(String::new, |default| default.to_string()))
        })
    };
    let switch = key.silenced_by.as_ref().filter(is_off);
    let switch = switch.map(|switch| format!("{}={}", switch.keys[0], switch.on));
    // the number of token ids follows the tokenizer where nothing sets it
    let ids = (key.path == "data.tokenizer").then(|| "model.vocab_size=50257".to_owned());
    // a name of a set needs sets with names
    let sets = (key.path == "data.val_main").then(|| "data.val={ web = \"v\", books = \"w\" }".to_owned());
    let main = sets.is_some().then(|| "data.val_main=books".to_owned());
    let ramp = key.silenced_by.is_some_and(|switch| switch.keys.contains(&"batch.ramp_start"));
    let ramp = ramp.then(|| "batch.ramp_tokens=20000".to_owned());
    kind.into_iter().chain(switch).chain(ids).chain(sets).chain(main).chain(ramp).collect()
}

/// Every key that a resolved recipe has.
fn resolved_keys() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| key.is_resolved())
}

/// What is hashed for the smallest recipe.
const CANONICAL: &str = r#"runner recipe 1
batch.micro_batch="auto"
batch.total_tokens=524288
batch.world_size=1
compute.attention="flash"
compute.device="auto"
compute.engine="fused"
compute.precision="fp32"
compute.threads=0
data.shuffle=true
data.train="t"
data.val="v"
eval.batches=20
model.block_size=1024
model.n_embd=768
model.n_head=12
model.n_layer=12
model.vocab_multiple=1
model.vocab_size=50257
optimizer.betas=[3feccccccccccccd,3fee666666666666]
optimizer.clip_norm=3ff0000000000000
optimizer.eps=3e45798ee2308c3a
optimizer.lr=3f43a92a30553261
optimizer.weight_decay=3fb999999999999a
schedule.kind="cosine"
schedule.max_steps=100
schedule.min_lr_ratio=3fb999999999999a
schedule.warmup_steps=0
seed=1337
"#;

fn resolve(arguments: &[impl AsRef<str>]) -> Recipe {
    let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
    Recipes::with(REQUIRED).good(&set(&arguments)).recipe
}

/// The recipe with the required keys only.
fn smallest() -> Recipe {
    resolve(&[""; 0])
}

fn digests() -> DataDigests {
    DataDigests { train: "t".into(), val: "v".into(), init_from: None }
}

#[test]
fn every_key_reaches_the_recipe_and_nothing_else_does() {
    for key in resolved_keys() {
        let needs = needs(key);
        let base = resolve(&needs);
        let changed = diff(&base, &with_example(key));
        let changed: Vec<_> = changed.into_iter().map(|difference| difference.key.path).collect();
        // what it replaces goes, and what it turns on comes
        let is_beside = |path: &&str| {
            replaced(key).is_none_or(|other| other.path != *path)
                && find(path)
                    .and_then(|other| other.silenced_by)
                    .is_none_or(|by| !by.keys.contains(&key.path))
        };
        assert!(changed.contains(&key.path));
        assert_eq!(changed.into_iter().filter(is_beside).collect::<Vec<_>>(), [key.path]);
    }
    // Three recipes have all keys between them: one counts steps, one tokens, and one has sets by name.
    let steps = resolve(&["schedule.kind=wsd", "model.init_from=x", "data.val_fraction=0.1"]);
    let mut tokens = steps.clone();
    tokens.batch.ramp_tokens = Some(1);
    tokens.batch.ramp_increment = Some(1);
    tokens.schedule = ScheduleConfig {
        max_steps: None,
        max_tokens: Some(1),
        warmup_steps: None,
        warmup_tokens: Some(1),
        decay_steps: None,
        decay_tokens: Some(1),
        stop_at_val_loss: Some(1.0),
        ..tokens.schedule
    };
    tokens.optimizer.weight_decay_embeddings = Some(1.0);
    let named = resolve(&[
        "data.val={ web = \"v\", books = \"w\" }",
        "data.val_main=web",
        "eval.tokens=64",
        "schedule.stop_at_val_loss=3.28",
        "eval.hellaswag=h",
    ]);
    let mut known = BTreeSet::new();
    for whole in [steps, tokens, named] {
        let fields = serde_json::to_value(&whole).expect("plain data");
        let count = |value: &serde_json::Value| value.as_object().map_or(1, serde_json::Map::len);
        let fields: usize = fields.as_object().expect("a table").values().map(count).sum();
        assert_eq!(leaves(&whole).len(), fields, "a field without a key in the table");
        known.extend(leaves(&whole).into_iter().map(|(key, _)| key.path));
    }
    assert_eq!(known, resolved_keys().map(|key| key.path).collect());
}

#[test]
fn the_identity_changes_with_what_is_computed_only() {
    for key in resolved_keys() {
        let needs = needs(key);
        let before = identity(&resolve(&needs), &digests());
        let after = identity(&with_example(key), &digests());
        let is_in = !matches!(key.identity, Identity::Never | Identity::Contents);
        assert_eq!(before != after, is_in, "{}", key.path);
    }
    let base = identity(&smallest(), &digests());
    for other in [
        DataDigests { train: "u".into(), ..digests() },
        DataDigests { val: "u".into(), ..digests() },
        DataDigests { init_from: Some("w".into()), ..digests() },
        DataDigests { train: "t\"\ndata.val=\"v".into(), ..digests() },
    ] {
        assert_ne!(identity(&smallest(), &other), base, "{other:?}");
    }
}

#[test]
fn the_identity_is_the_same_on_every_machine_and_in_every_release() {
    // Changing this text makes every existing run directory a stranger: its first line must then change too.
    assert_eq!(identity(&smallest(), &digests()), blake3::hash(CANONICAL.as_bytes()).to_hex().to_string());
}

#[test]
fn the_identity_does_not_depend_on_how_a_value_is_written() {
    let spellings = [
        ["optimizer.lr=6e-4", "optimizer.weight_decay=0", "seed=255"],
        ["optimizer.lr=0.000_6", "optimizer.weight_decay=-0.0", "seed=0xff"],
    ];
    let [first, second] = spellings.map(|spelling| identity(&resolve(&spelling), &digests()));
    assert_eq!(first, second);
    let spellings = ["schedule.warmup_tokens=12e6", "schedule.warmup_tokens=12_000_000"];
    let [first, second] = spellings.map(|spelling| identity(&resolve(&[spelling]), &digests()));
    assert_eq!(first, second);
    let explicit = ["schedule.kind=cosine", "compute.device=auto", "checkpoint.keep=3", "data.val=[]"];
    assert_eq!(identity(&resolve(&explicit), &digests()), identity(&smallest(), &digests()));
}

/// What a resumed run may change, and what not, is a promise about runs that exist: keys never move between the two.
#[test]
fn what_a_resumed_run_may_change_stays_so() {
    let free = "model.init_from compute.device compute.threads data.train data.val batch.micro_batch batch.world_size \
                distributed.shard_optimizer distributed.timeout_s eval.every \
                eval.hellaswag eval.tasks eval.missing schedule.stop_at_val_loss \
                checkpoint.every checkpoint.keep checkpoint.keep_best checkpoint.background watchdog.max_loss_zscore \
                watchdog.max_grad_zscore watchdog.window watchdog.action sample.every sample.prompt sample.tokens \
                log.tensorboard lints.allow";
    let kept = "name seed model.block_size model.vocab_size model.vocab_multiple model.n_layer model.n_head \
                model.n_embd model.dropout compute.engine compute.precision compute.attention \
                data.val_fraction data.tokenizer data.shuffle batch.total_tokens eval.batches eval.tokens \
                optimizer.lr optimizer.betas optimizer.eps optimizer.weight_decay optimizer.clip_norm \
                optimizer.embedding_lr_factor optimizer.weight_decay_embeddings \
                batch.ramp_start batch.ramp_tokens batch.ramp_increment schedule.max_tokens schedule.warmup_tokens \
                schedule.decay_tokens schedule.kind schedule.max_steps schedule.warmup_steps schedule.min_lr_ratio \
                schedule.decay_steps";
    for (paths, expected) in [(free, OnResume::Free), (kept, OnResume::Kept)] {
        for path in paths.split_whitespace() {
            assert_eq!(find(path).unwrap_or_else(|| panic!("{path}")).on_resume, expected, "{path}");
        }
    }
}

#[test]
fn a_difference_shows_both_values() {
    let differences = diff(&resolve(&["schedule.kind=constant"]), &resolve(&["optimizer.lr=3e-4"]));
    let lines: Vec<String> = differences
        .iter()
        .map(|difference| {
            let side = |side: &Option<String>| side.clone().unwrap_or("-".into());
            format!("{}: {} {}", difference.key.path, side(&difference.left), side(&difference.right))
        })
        .collect();
    assert_eq!(
        lines,
        [
            "optimizer.lr: 0.0006 0.0003",
            "schedule.kind: \"constant\" \"cosine\"",
            "schedule.warmup_steps: - 0",
            "schedule.min_lr_ratio: - 0.1",
        ]
    );
}

#[test]
fn ranges_accept_their_ends() {
    for key in KEYS {
        let Kind::Integer { min, max } = key.kind else { continue };
        for (value, fits) in
            [(Some(min), true), (Some(max), true), (min.checked_sub(1), false), (max.checked_add(1), false)]
        {
            let Some(value) = value else { continue };
            let recipes = Recipes::with(REQUIRED);
            let arguments = [needs(key), vec![format!("{}={value}", key.path)]].concat();
            let loaded =
                recipes.load("recipe.toml", &set(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
            let in_range =
                loaded.err().is_none_or(|error| !error.titles().any(|title| title.ends_with("out of range")));
            assert_eq!(in_range, fits, "{} = {value}", key.path);
        }
    }
}
