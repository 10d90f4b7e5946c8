//! `runner plan`: figures that hold, with and without data, and remarks that a recipe can silence.

use crate::recipe_support;

use recipe_support::{Recipes, printed, refused, runner};
use runner::recipe::LintCode;
use serde_json::{Value as Json, json};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A model of pleasant numbers.
const NICE: &str = "\
[model]
n_layer = 2
n_head = 2
n_embd = 64
block_size = 64
vocab_size = 1000
vocab_multiple = 128
[data]
train = \"train.bin\"
val = \"val.bin\"
[batch]
total_tokens = 512
micro_batch = 4
[optimizer]
lr = 1e-3
[schedule]
max_steps = 20
warmup_steps = 2
";

/// A directory with the recipe and its data: shards of pseudo-random tokens, and one that is too short.
fn nice() -> Recipes {
    let recipes = Recipes::with(NICE);
    for (name, tokens, seed) in
        [("train", 40_000, 1), ("val", 2_000, 2), ("short", 200, 3), ("brief", 100, 4)]
    {
        let token = |i: u32| (i * i + seed).wrapping_mul(2_654_435_761) % 1000;
        let tokens = (0..tokens).map(|i| token(i) as u16);
        runner::data::write_llmc(&recipes.path(&format!("{name}.bin")), tokens).expect("a shard");
    }
    std::fs::copy(recipes.path("train.bin"), recipes.path("copy.bin")).expect("a copy");
    let unwritten = std::fs::File::create(recipes.path("unwritten.bin")).expect("a file");
    unwritten.write_all_at(&[1; 4000], 1 << 20).expect("written");
    let long = format!(r#"{{"context": "{}", "endings": ["a", "b"], "label": 0}}"#, "word ".repeat(2000));
    recipes.write("long.jsonl", long);
    recipes
}

fn unwritten_is_seen(recipes: &Recipes) -> bool {
    let file = std::fs::File::open(recipes.path("unwritten.bin")).expect("a file");
    runner::regular::has_hole_before(&file, 1 << 20)
}

fn plan(recipes: &Recipes, arguments: &str) -> Json {
    let text = printed(recipes.dir(), &format!("plan recipe.toml --format json {arguments}"));
    serde_json::from_str(&text).expect("JSON")
}

fn codes(plan: &Json) -> Vec<String> {
    let lints = plan["lints"].as_array().expect("a list");
    lints.iter().map(|lint| lint["code"].as_str().expect("a code").to_owned()).collect()
}

#[test]
fn every_derived_number_is_right() {
    let recipes = nice();
    let plan = plan(&recipes, "--set compute.threads=2");
    let (c, v, t, l) = (64_u64, 1000_u64, 64_u64, 2_u64);
    let matrices = v * c + t * c + l * 12 * c * c;
    let vectors = l * 13 * c + 2 * c;
    assert_eq!(plan["decayed"], json!({ "elements": matrices, "tensors": 2 + 4 * l }));
    assert_eq!(plan["not_decayed"], json!({ "elements": vectors, "tensors": 8 * l + 2 }));
    assert_eq!((&plan["parameters"], &plan["padded_vocab"]), (&json!(matrices + vectors), &json!(1024)));
    assert_eq!((&plan["rows_per_step"], &plan["micro_steps"]), (&json!(8), &json!(2)));
    assert_eq!(plan["tokens"], json!(512 * 20));
    assert_eq!(plan["flops_per_token"], json!(6 * (matrices + vectors) + 6 * l * c * t));
    let rows = plan["data"]["train_rows"].as_u64().expect("a number");
    assert_eq!(plan["epochs"].as_f64(), Some(160.0 / rows as f64));
    let bytes = plan["bytes"].as_object().expect("kinds");
    let sum: u64 = bytes.values().filter_map(Json::as_u64).sum();
    assert_eq!(plan["total_bytes"], json!(sum));
    assert_eq!(bytes["moments"].as_u64(), bytes["gradients"].as_u64().map(|bytes| 2 * bytes));
    assert_eq!((&plan["refusal"], &plan["data_error"]), (&Json::Null, &Json::Null));
    assert!(plan["predicted"]["total_s"].as_f64().is_some_and(|seconds| seconds > 0.0));
    assert_eq!(codes(&plan), [""; 0]);
}

#[test]
fn missing_data_cost_only_the_lines_that_depend_on_them() {
    let recipes = nice();
    let whole = plan(&recipes, "");
    let without = plan(&recipes, "--set data.train=missing/*.bin");
    for key in ["data", "epochs", "eval_rows"] {
        assert_eq!(without[key], Json::Null, "{key}");
        assert_ne!(whole[key], Json::Null, "{key}");
    }
    let why = without["data_error"].as_str().expect("a reason");
    assert!(why.contains("`missing/*.bin` matches no file"), "{why}");
    assert_eq!((&without["total_bytes"], &without["flops"]), (&whole["total_bytes"], &whole["flops"]));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let runs = recipes.dir().display();
    let absent = "--set data.train=missing/*.bin --set data.val=missing/*.bin";
    let text = printed(root, &format!("plan recipes/gpt3-small.toml --runs-dir {runs} {absent}"));
    assert!(text.contains("could not be opened, so epochs are unknown"), "{text}");
    assert!(
        text.contains("125,226,240 parameters")
            && text.contains("  activations         12,205,686,784 bytes")
    );
}

#[test]
fn what_cannot_fit_is_planned_but_not_started() {
    let recipes = nice();
    let huge = "--set model.n_layer=100 --set model.n_embd=16384 --set model.n_head=128";
    let plan = plan(&recipes, huge);
    let refusal = plan["refusal"].as_str().expect("a reason");
    assert!(
        refusal.contains("needs")
            && refusal.contains("moments")
            && refusal.contains("not even a micro_batch of 1"),
        "{refusal}"
    );
    let (code, message) = refused(recipes.dir(), &format!("recipe.toml {huge}"));
    assert_eq!(code, Some(2));
    assert!(message.contains("not even a micro_batch of 1 fits") && message.contains("moments"), "{message}");
    let absurd =
        "--set batch.total_tokens=68719476736 --set batch.micro_batch=1048576 --set model.block_size=65536";
    let (code, message) = refused(recipes.dir(), &format!("plan recipe.toml {huge} {absurd}"));
    assert_eq!((code, message.contains("more than a PiB")), (Some(2), true), "{message}");
    let long = "--set schedule.max_steps=1099511627776 --set batch.total_tokens=68719476736";
    let (code, message) = refused(recipes.dir(), &format!("plan recipe.toml {long}"));
    assert_eq!((code, message.contains("more tokens than can be counted")), (Some(2), true), "{message}");
}

/// One way to provoke each lint.
const PROVOKED: &[(&str, &str)] = &[
    ("ugly-vocab", "--set model.vocab_multiple=1"),
    ("ugly-width", "--set model.n_embd=96"),
    ("ugly-heads", "--set model.n_head=8"),
    ("ugly-batch", "--set batch.total_tokens=832 --set batch.micro_batch=1"),
    ("schedule-horizon", "--set schedule.warmup_steps=20"),
    ("unusual-lr", "--set optimizer.lr=1e-1"),
    (
        "unusual-batch",
        "--set model.n_layer=16 --set model.n_embd=768 --set model.n_head=12 --set optimizer.lr=6e-4",
    ),
    (
        "unused-decay",
        "--set optimizer.kind=muon --set optimizer.weight_decay=0.2 --set optimizer.weight_decay_embeddings=0.0",
    ),
    ("val-overlap", "--set data.val=copy.bin"),
    ("many-epochs", "--set schedule.max_steps=2000"),
    ("small-data", "--set data.train=short.bin"),
    ("unread-tokens", "--set data.train=[\"brief.bin\",\"short.bin\"]"),
    ("repeated-data", "--set data.train=[\"train.bin\",\"tr*.bin\"]"),
    ("unwritten-data", "--set data.val=[\"val.bin\",\"unwritten.bin\"]"),
    ("unused-vocab", "--set model.vocab_size=2000"),
    ("small-val", "--set data.val=[] --set data.val_fraction=0.01"),
    ("missing-task", "--set eval.hellaswag=none.jsonl --set eval.missing=skip"),
    ("cut-task", "--set eval.tasks=long.jsonl --set model.vocab_size=50257"),
    ("emulated-precision", "--set compute.precision=bf16"),
    ("long-run", "--set schedule.max_steps=100000000000"),
];

#[test]
fn a_weight_decay_is_used_unless_muon_and_the_embeddings_have_others() {
    let recipes = nice();
    let [muon, decay, embeddings] =
        ["optimizer.kind=muon", "optimizer.weight_decay=0.2", "optimizer.weight_decay_embeddings=0.0"];
    let is_unused = |sets: &[&str]| {
        let sets: String = sets.iter().map(|set| format!(" --set {set}")).collect();
        codes(&plan(&recipes, &sets)).contains(&"unused-decay".to_owned())
    };
    assert!(is_unused(&[muon, decay, embeddings]));
    // the embeddings' under Muon, the matrices' under AdamW, and a default that says nothing
    for sets in [&[muon, decay][..], &[decay, embeddings], &[muon, embeddings]] {
        assert!(!is_unused(sets), "{sets:?}");
    }
}

#[test]
fn every_lint_can_be_provoked_and_silenced() {
    let recipes = nice();
    for code in LintCode::ALL.iter().map(|code| code.as_str()) {
        let Some((_, arguments)) = PROVOKED.iter().find(|(name, _)| *name == code) else {
            // depends on the machine's memory: a unit test of the plan has it
            assert_eq!(code, "tight-memory");
            continue;
        };
        // a file system that does not tell of holes
        if code == "unwritten-data" && !unwritten_is_seen(&recipes) {
            continue;
        }
        let loud = plan(&recipes, arguments);
        assert!(codes(&loud).contains(&code.to_owned()), "{code}: {:?}", codes(&loud));
        let lint = loud["lints"].as_array().and_then(|lints| lints.iter().find(|lint| lint["code"] == code));
        let lint = lint.expect("just found");
        let said = |key: &str| lint[key].as_str().is_some_and(|text| !text.is_empty());
        assert!(said("message") && said("help") && said("key"), "{lint}");
        let quiet = plan(&recipes, &format!("{arguments} --set lints.allow={code}"));
        let rest: Vec<String> = codes(&loud).into_iter().filter(|other| other != code).collect();
        assert_eq!(codes(&quiet), rest, "{code}");
    }
}

#[test]
fn lints_speak_when_training_starts() {
    let recipes = nice();
    let start = |extra: &[&str]| {
        let set =
            ["--set", "schedule.max_steps=1", "--set", "schedule.warmup_steps=0", "--set", "eval.every=0"];
        let output = runner(recipes.dir()).arg("recipe.toml").args(set).args(extra).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (
            String::from_utf8_lossy(&output.stderr).into_owned(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (loud, run) = start(&["--set", "model.vocab_multiple=1"]);
    assert!(loud.contains("lint ugly-vocab: the embedding has 1000 rows"), "{loud}");
    let (quiet, same) =
        start(&["--fresh", "--set", "model.vocab_multiple=1", "--set", "lints.allow=ugly-vocab"]);
    assert!(!quiet.contains("lint "), "{quiet}");
    assert_eq!(run, same, "silence is no other experiment");
}

#[test]
fn remedies_are_right() {
    let recipes = nice();
    let help = |arguments: &str, code: &str| {
        let plan = plan(&recipes, arguments);
        let lints = plan["lints"].as_array().expect("a list").clone();
        let lint = lints.iter().find(|lint| lint["code"] == code).unwrap_or_else(|| panic!("{code}"));
        lint["help"].as_str().expect("help").to_owned()
    };
    // 24 rows of 64
    assert!(help("--set model.vocab_multiple=1", "ugly-vocab").contains("1024 rows: 1536 parameters more"));
    assert!(help("--set model.n_embd=100", "ugly-width").contains("is 128: "));
    assert!(
        help("--set model.n_embd=1600 --set model.n_head=25", "ugly-heads").contains("model.n_head = 20")
    );
    assert!(
        help("--set batch.total_tokens=832 --set batch.micro_batch=1", "ugly-batch")
            .contains("batch.total_tokens = 1024")
    );
    // what the remedies say is itself without remark
    for remedy in [
        "--set model.n_embd=128",
        "--set model.n_embd=1600 --set model.n_head=20",
        "--set batch.total_tokens=1024",
    ] {
        let codes = codes(&plan(&recipes, remedy));
        assert!(!codes.iter().any(|code| code.starts_with("ugly")), "{remedy}: {codes:?}");
    }
}

#[test]
fn generated_texts_of_one_seed_overlap() {
    let recipes = nice();
    let text = "--set model.vocab_size=50257 --set data.train=builtin:lipsum:words=3000 --set data.val=builtin:lipsum";
    assert!(codes(&plan(&recipes, &format!("{text}:words=2000"))).contains(&"val-overlap".to_owned()));
    assert!(
        !codes(&plan(&recipes, &format!("{text}:seed=2,words=2000"))).contains(&"val-overlap".to_owned())
    );
    // without the files, what is named twice is known all the same
    let twice = "--set data.train=gone.bin --set data.val=gone.bin";
    assert!(codes(&plan(&recipes, twice)).contains(&"val-overlap".to_owned()));
}
