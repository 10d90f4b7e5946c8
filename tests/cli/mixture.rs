//! Training on a mixture: what must not matter does not, what the plan says of it, and how a recipe may be wrong.

use crate::support;

use serde_json::Value;
use std::fs;
use std::path::Path;
use support::{Lab, column, essence, shard, tokens};

const MIXTURE: &str = r#"data.train=[{path="data/train.bin",weight=0.75},{path="more/*.bin",weight=0.25}]"#;

/// A lab with two more files for training, of 31 rows each.
fn lab() -> Lab {
    let lab = Lab::new();
    for seed in [8, 9] {
        lab.write(&format!("more/{seed}.bin"), shard(&tokens(1000, seed)));
    }
    lab
}

fn deterministic(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("train.csv")).expect("a log");
    text.lines().map(|line| line.split(',').take(8).collect::<Vec<_>>().join(",")).collect()
}

#[test]
fn micro_batches_ranks_and_interruptions_change_no_row() {
    let lab = lab();
    let whole = lab.train_in("whole", &[MIXTURE]);
    let losses = column(&whole, "loss");
    assert_ne!(losses, column(&lab.train_in("plain", &[]), "loss"));
    for set in ["batch.micro_batch=1", "batch.world_size=2"] {
        let other = column(&lab.train_in("other", &[MIXTURE, set]), "loss");
        let distance = losses.iter().zip(&other).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
        assert!(distance < 1e-5, "{set}: {distance}");
    }
    let crashed = lab.crash("crashed", &[MIXTURE], "csv.before_row:7");
    assert_eq!(lab.train_in("crashed", &[MIXTURE]), crashed);
    assert_eq!(deterministic(&crashed), deterministic(&whole));
    // the run's own recipe names the same experiment from where it lies
    let recipe = whole.join("recipe.toml");
    let text = fs::read_to_string(&recipe).expect("a recipe");
    for part in
        ["../../data/train.bin\", weight = 0.75 }, {", "{ path = \"../../more/*.bin\", weight = 0.25 }]"]
    {
        assert!(text.contains(part), "{text}");
    }
    let again = lab.run([recipe.to_str().expect("UTF-8"), "--runs-dir", "whole"]);
    again.expect(0).says(&["already finished"]);
    // equal ratios are the same run, other ones are not
    let equal = MIXTURE.replace("0.75", "3").replace("0.25", "1");
    let name = |run: &Path| run.file_name().expect("a name").to_owned();
    assert_eq!(name(&lab.train_in("equal", &[&equal])), name(&whole));
    assert_eq!(essence(&lab.path("equal").join(name(&whole)))["train.csv"], essence(&whole)["train.csv"]);
    let other = MIXTURE.replace("0.75", "0.5");
    assert_ne!(name(&lab.train_in("ratio", &[&other, "schedule.max_steps=4"])), name(&whole));
}

#[test]
fn the_plan_says_the_epochs_of_each_source() {
    let lab = lab();
    let plan = lab.run(["plan", "tiny.toml", MIXTURE]);
    // 96 rows: 72 of 124 and 24 of 62
    for line in [
        "75.0 % of the rows from data/train.bin: 0.58 epochs of its 124 rows\n",
        "25.0 % of the rows from more/*.bin: 0.39 epochs of its 62 rows\n",
    ] {
        assert!(plan.expect(0).stdout.contains(line), "{line} is not in\n{}", plan.stdout);
    }
    let plan = lab.run(["plan", "tiny.toml", MIXTURE, "--format", "json"]);
    let plan: Value = serde_json::from_str(&plan.expect(0).stdout).expect("JSON");
    let sources = serde_json::json!([
        { "name": "data/train.bin", "share": 0.75, "tokens": 4000, "rows": 124 },
        { "name": "more/*.bin", "share": 0.25, "tokens": 2000, "rows": 62 },
    ]);
    let found = plan.pointer("/data/sources").or_else(|| plan.pointer("/plan/data/sources"));
    assert_eq!(found, Some(&sources), "{plan:#}");
    // a small source that comes too often is remarked upon by its name
    let often = lab.run(["plan", "tiny.toml", MIXTURE, "schedule.max_steps=130"]);
    often.expect(0);
    assert!(often.stdout.contains("the run goes through data/train.bin 6.3 times"), "{}", often.stdout);
}

#[test]
fn a_mixture_replaces_what_a_base_names_and_is_explained() {
    let lab = lab();
    let base = "extends = \"tiny.toml\"\nname = \"mixed\"\n";
    let parts = "{ path = \"more/*.bin\", weight = 1 },\n    { path = \"data/train.bin\", weight = 2.5 },\n";
    lab.write("mixed.toml", format!("{base}[data]\ntrain = [\n    {parts}]\n"));
    lab.write("plain.toml", "extends = \"mixed.toml\"\n[data]\ntrain = [\"data/train.bin\"]\n");
    for (recipe, value) in [
        (
            "mixed.toml",
            r#"[{ path = "more/*.bin", weight = 1.0 }, { path = "data/train.bin", weight = 2.5 }]"#,
        ),
        ("plain.toml", r#"["data/train.bin"]"#),
    ] {
        let explained = lab.run(["explain", recipe, "data.train"]);
        assert!(explained.expect(0).stdout.contains(value), "{}", explained.stdout);
    }
    let mut command = lab.command(["explain", "tiny.toml", "data.train"]);
    command
        .env("RUNNER_DATA__TRAIN", r#"[{path="x.bin",weight=1},{path="~/y.bin",weight=1}]"#)
        .env("HOME", "/home/u");
    let explained = support::ended(command);
    assert!(explained.expect(0).stdout.contains("\"/home/u/y.bin\""), "{}", explained.stdout);
}

#[test]
fn wrong_mixtures_are_shown_at_their_place() {
    let lab = lab();
    for (value, says) in [
        (r#"[{path="a"}]"#, "has a source without `weight`"),
        (r#"[{weight=1}]"#, "has a source without `path`"),
        (r#"[{path="a",weigth=1}]"#, "has no member `weigth`"),
        (r#"[{path="a",weight=0}]"#, "has a weight that is none"),
        (r#"[{path="a",weight=-1.5}]"#, "has a weight that is none"),
        (r#"[{path="a",weight=nan}]"#, "has a weight that is none"),
        (r#"[{path="a",weight="b"}]"#, "must be a number"),
        (r#"[{path=1,weight=1}]"#, "must be a string"),
        (r#"[{path="a",weight=1},"b"]"#, "mixes sources with and without weights"),
        (r#"["b",{path="a",weight=1}]"#, "mixes sources with and without weights"),
        (r#"{path="a",weight=1}"#, "must be a list of its sources"),
        (r#"[]"#, "is empty"),
    ] {
        let set = format!("data.train={value}");
        lab.run(["tiny.toml", &set]).expect(2).says(&["`data.train` ", says, &format!(" | {set}")]);
    }
    let words = ["tiny.toml", MIXTURE, "data.val=[]", "data.val_fraction=0.1"];
    lab.run(words).expect(2).says(&["`data.train` is a mixture, of which no last part can be kept"]);
    let small = r#"data.train=[{path="data/train.bin",weight=1},{path="more/8.bin",weight=1e-4}]"#;
    lab.run(["tiny.toml", small]).expect(2).says(&["data.train: `", "comes to none of 1000 rows"]);
    let gone = r#"data.train=[{path="data/train.bin",weight=1},{path="gone.bin",weight=1}]"#;
    lab.run(["tiny.toml", gone]).expect(2).says(&["data.train: `", "gone.bin` does not exist"]);
}
