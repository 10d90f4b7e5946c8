//! Which keys make another experiment, and that each key of the table reaches the recipe.

mod recipe_support;

use recipe_support::{REQUIRED, Recipes, set};
use runner::recipe::keys::{KEYS, Kind};
use runner::recipe::{DataDigests, Overrides, Recipe, changes_mathematics, diff, identity, leaves};

/// A value of each resolved key that is not its default, with what else it needs.
const CHANGES: &[(&str, &[&str])] = &[
    ("name", &["name=other"]),
    ("seed", &["seed=1"]),
    ("model.init_from", &["model.init_from=weights"]),
    ("model.block_size", &["model.block_size=512"]),
    ("model.vocab_size", &["model.vocab_size=50000"]),
    ("model.vocab_multiple", &["model.vocab_multiple=128"]),
    ("model.n_layer", &["model.n_layer=2"]),
    ("model.n_head", &["model.n_head=8"]),
    ("model.n_embd", &["model.n_embd=1536"]),
    ("compute.device", &["compute.device=cpu"]),
    ("compute.engine", &["compute.engine=dfdx"]),
    ("compute.precision", &["compute.precision=bf16"]),
    ("compute.attention", &["compute.attention=naive"]),
    ("compute.threads", &["compute.threads=1"]),
    ("data.train", &["data.train=other"]),
    ("data.val", &["data.val=other"]),
    ("data.shuffle", &["data.shuffle=false"]),
    ("batch.total_tokens", &["batch.total_tokens=1024"]),
    ("batch.micro_batch", &["batch.micro_batch=4"]),
    ("batch.world_size", &["batch.world_size=2"]),
    ("distributed.shard_optimizer", &["batch.world_size=2", "distributed.shard_optimizer=true"]),
    ("distributed.timeout_s", &["batch.world_size=2", "distributed.timeout_s=7"]),
    ("optimizer.lr", &["optimizer.lr=1e-3"]),
    ("optimizer.betas", &["optimizer.betas=[0.9, 0.99]"]),
    ("optimizer.eps", &["optimizer.eps=1e-6"]),
    ("optimizer.weight_decay", &["optimizer.weight_decay=0"]),
    ("optimizer.clip_norm", &["optimizer.clip_norm=0"]),
    ("schedule.kind", &["schedule.kind=linear"]),
    ("schedule.max_steps", &["schedule.max_steps=101"]),
    ("schedule.warmup_steps", &["schedule.warmup_steps=1"]),
    ("schedule.min_lr_ratio", &["schedule.min_lr_ratio=0"]),
    ("schedule.decay_steps", &["schedule.kind=wsd", "schedule.decay_steps=3"]),
    ("eval.every", &["data.val=v", "eval.every=1"]),
    ("eval.batches", &["data.val=v", "eval.batches=1"]),
    ("checkpoint.every", &["checkpoint.every=1"]),
    ("checkpoint.keep", &["checkpoint.keep=1"]),
    ("checkpoint.background", &["checkpoint.background=false"]),
    ("watchdog.max_loss_zscore", &["watchdog.max_loss_zscore=6"]),
    ("watchdog.max_grad_zscore", &["watchdog.max_grad_zscore=6"]),
    ("watchdog.window", &["watchdog.max_loss_zscore=6", "watchdog.window=64"]),
    ("watchdog.action", &["watchdog.max_loss_zscore=6", "watchdog.action=skip"]),
    ("sample.every", &["sample.every=1"]),
    ("sample.prompt", &["sample.every=1", "sample.prompt=O"]),
    ("sample.tokens", &["sample.every=1", "sample.tokens=1"]),
    ("lints.allow", &["lints.allow=ugly-vocab"]),
];

/// Keys that may change without another experiment, in the sense of the identity.
const LEFT_OUT: &[&str] = &[
    "name",
    "distributed.timeout_s",
    "eval.every",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.background",
    "sample.every",
    "sample.prompt",
    "sample.tokens",
    "lints.allow",
    // Their contents are digested instead.
    "data.train",
    "data.val",
    "model.init_from",
];

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

fn resolve(arguments: &[&str]) -> Recipe {
    Recipes::with(REQUIRED).good(&set(arguments)).recipe
}

fn digests() -> DataDigests {
    DataDigests { train: "t".into(), val: "v".into(), init_from: None }
}

#[test]
fn every_key_reaches_the_recipe_and_nothing_else_does() {
    let base = resolve(&[]);
    for key in KEYS.iter().filter(|key| key.is_resolved()) {
        let (_, change) =
            CHANGES.iter().find(|(path, _)| *path == key.path).unwrap_or_else(|| panic!("{}", key.path));
        let changed: Vec<_> =
            diff(&base, &resolve(change)).into_iter().map(|difference| difference.key).collect();
        assert!(changed.contains(&key.path), "{} changes {changed:?}", key.path);
        assert!(
            changed.len() == change.len() || key.path == "schedule.decay_steps",
            "{} changes {changed:?}",
            key.path
        );
    }
    // A wsd schedule has all keys but `init_from`.
    let whole = resolve(&["schedule.kind=wsd", "model.init_from=x"]);
    let fields = serde_json::to_value(&whole).expect("plain data");
    let count = |value: &serde_json::Value| value.as_object().map_or(1, serde_json::Map::len);
    let fields: usize = fields.as_object().expect("a table").values().map(count).sum();
    assert_eq!(
        fields,
        KEYS.iter().filter(|key| key.is_resolved()).count(),
        "a field without a key in the table"
    );
    assert_eq!(leaves(&whole).len(), fields);
}

#[test]
fn the_identity_changes_with_what_is_computed_only() {
    let base = identity(&resolve(&[]), &digests());
    for (key, change) in CHANGES {
        // what the key needs besides itself stands first
        let needs = change.iter().filter(|set| !set.starts_with(key)).copied().collect::<Vec<_>>();
        let before = if needs.is_empty() { base.clone() } else { identity(&resolve(&needs), &digests()) };
        let changed = identity(&resolve(change), &digests()) != before;
        assert_eq!(changed, !LEFT_OUT.contains(key), "{key}");
    }
    for other in [
        DataDigests { train: "u".into(), ..digests() },
        DataDigests { val: "u".into(), ..digests() },
        DataDigests { init_from: Some("w".into()), ..digests() },
        DataDigests { train: "t\"\ndata.val=\"v".into(), ..digests() },
    ] {
        assert_ne!(identity(&resolve(&[]), &other), base, "{other:?}");
    }
}

#[test]
fn the_identity_is_the_same_on_every_machine_and_in_every_release() {
    // Changing this text makes every existing run directory a stranger: its first line must then change too.
    assert_eq!(identity(&resolve(&[]), &digests()), blake3::hash(CANONICAL.as_bytes()).to_hex().to_string());
}

#[test]
fn the_identity_does_not_depend_on_how_a_value_is_written() {
    let spellings = [
        ["optimizer.lr=6e-4", "optimizer.weight_decay=0", "seed=255"],
        ["optimizer.lr=0.000_6", "optimizer.weight_decay=-0.0", "seed=0xff"],
    ];
    let [first, second] = spellings.map(|spelling| identity(&resolve(&spelling), &digests()));
    assert_eq!(first, second);
    let explicit = ["schedule.kind=cosine", "compute.device=auto", "checkpoint.keep=3", "data.val=[]"];
    assert_eq!(identity(&resolve(&explicit), &digests()), identity(&resolve(&[]), &digests()));
}

#[test]
fn only_keys_without_mathematics_may_change_on_resume() {
    let free: Vec<_> = KEYS.iter().map(|key| key.path).filter(|key| !changes_mathematics(key)).collect();
    assert_eq!(
        free,
        [
            "name",
            "model.init_from",
            "compute.device",
            "compute.threads",
            "data.train",
            "data.val",
            "batch.micro_batch",
            "batch.world_size",
            "distributed.shard_optimizer",
            "distributed.timeout_s",
            "eval.every",
            "eval.batches",
            "checkpoint.every",
            "checkpoint.keep",
            "checkpoint.background",
            "watchdog.max_loss_zscore",
            "watchdog.max_grad_zscore",
            "watchdog.window",
            "watchdog.action",
            "sample.every",
            "sample.prompt",
            "sample.tokens",
            "lints.allow",
        ]
    );
}

#[test]
fn a_difference_shows_both_values() {
    let differences = diff(&resolve(&["schedule.kind=constant"]), &resolve(&["optimizer.lr=3e-4"]));
    let lines: Vec<String> = differences
        .iter()
        .map(|difference| {
            let side = |side: &Option<String>| side.clone().unwrap_or("-".into());
            format!("{}: {} {}", difference.key, side(&difference.left), side(&difference.right))
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
            let kind = if key.schedules.len() == 1 { "wsd" } else { "cosine" };
            let set = [format!("{}={value}", key.path), format!("schedule.kind={kind}")];
            // without these, some keys have no effect
            let also = [("eval.", "data.val=v"), ("sample.tokens", "sample.every=1")];
            let also =
                also.iter().filter(|(keys, _)| key.path.starts_with(keys)).map(|(_, set)| set.to_string());
            let arguments: Vec<String> = set.into_iter().chain(also).collect();
            let loaded = recipes.load("recipe.toml", &Overrides { set: arguments, ..Overrides::default() });
            let in_range =
                loaded.err().is_none_or(|error| !error.titles().any(|title| title.ends_with("out of range")));
            assert_eq!(in_range, fits, "{} = {value}", key.path);
        }
    }
}
