//! `runner compare` where runs have several sets of validation data, several targets, or scores that not all have: what
//! each figure was measured on decides which runs it can be compared between.

use crate::report_support;
use crate::support;

use report_support::Fake;
use serde_json::{Value, json};
use std::fs;
use support::Lab;

fn json(lab: &Lab, args: &[&str]) -> Value {
    let ended = lab.run([&["compare", "runs"], args, &["--format", "json"]].concat());
    ended.expect(0);
    serde_json::from_str(&ended.stdout).expect("JSON")
}

fn text(lab: &Lab, args: &[&str]) -> String {
    lab.run([&["compare", "runs"], args].concat()).expect(0).stdout.clone()
}

/// Two learning rates with two seeds each. `extra` is what `run.json` says of a learning rate, `val` its validation
/// log, of which `{}` stands for a seed's digit.
fn runs(lab: &Lab, of_rate: impl Fn(usize) -> (Value, &'static str)) {
    for i in 0..2 {
        for seed in 1..=2 {
            let (extra, val) = of_rate(i);
            let fake = Fake::new(&format!("fake-{i}{seed}"), seed, 1e-3 * (i + 1) as f64, 3.0);
            let run = Fake { extra, ..fake }.write(&lab.path("runs"));
            fs::write(run.join("val.csv"), val.replace("{}", &seed.to_string())).expect("a log");
            let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
            let sets = "[data]\nval = { a = \"a.bin\", b = \"b.bin\" }\nval_main = \"a\"\n";
            let sets = format!("[model]\nblock_size = 32\n\n{sets}");
            fs::write(run.join("recipe.toml"), recipe.replace("[data]\n", &sets)).expect("a recipe");
        }
    }
}

const SETS: [&str; 2] = [
    "step,tokens,val_loss,val_loss_a,val_loss_b\n0,0,9,9,9\n4,1024,3.{},3.{},3.{}\n",
    "step,tokens,val_loss,val_loss_a,val_loss_b\n0,0,9,9,9\n4,1024,3.7{},3.7{},3.7{}\n",
];

#[test]
fn a_named_set_is_compared_by_its_own_number_of_tokens() {
    let plan = |others: u64| {
        json!({
            "digests": {"train": "t", "val": "v"},
            "plan": {"eval_rows": 13, "eval_others": [others], "data": {"val_sets": [{"name": "b", "rows": 900}]}},
        })
    };
    let by = |metric: &'static str| ["--by", metric, "--metrics", metric];
    let tests = |lab: &Lab, metric| json(lab, &by(metric))["tests"].as_array().map(Vec::len);
    let alike = Lab::new();
    runs(&alike, |i| (plan(128), SETS[i]));
    assert_eq!(["val_loss_a", "val_loss_b"].map(|metric| tests(&alike, metric)), [Some(1); 2]);
    // the main set is smaller than what either evaluates, the other one is not
    let lab = Lab::new();
    runs(&lab, |i| (plan([128, 16][i]), SETS[i]));
    assert_eq!(["val_loss_a", "val_loss_b"].map(|metric| tests(&lab, metric)), [Some(1), Some(0)]);
    let said = text(&lab, &by("val_loss_b"));
    assert!(said.contains("val_loss_b was measured on different data (evaluated tokens)"), "{said}");
    assert!(!text(&lab, &by("val_loss_a")).contains("different data"));
}

const SCORES: [&str; 2] = [
    "step,tokens,val_loss,poems_acc\n0,0,9,0.1\n4,1024,3.{},0.3{}\n",
    "step,tokens,val_loss,poems_acc\n0,0,9,0.1\n4,1024,3.7{},0.4{}\n",
];

#[test]
fn each_of_several_targets_is_judged_by_what_it_was_measured_on() {
    let lab = Lab::new();
    // losses of different texts, and the same examples
    let facts = |i: usize| json!({"digests": {"train": "t", "val": (["v", "w"][i]), "task_poems": "p"}});
    runs(&lab, |i| (facts(i), SCORES[i]));
    let targets = [["val_loss=5", "poems_acc=0.2"], ["poems_acc=0.2", "val_loss=5"]];
    for [first, second] in targets {
        let args = ["--target", first, "--target", second];
        let found = json(&lab, &args);
        assert_eq!(found["tests"].as_array().map(Vec::len), Some(1), "{found:#}");
        let said = text(&lab, &args);
        assert!(said.lines().any(|line| line.contains("lr 1e-3") && line.contains("lr 2e-3")), "{said}");
        assert!(said.contains("val_loss was measured on different data (data.val)"), "{said}");
    }
}

#[test]
fn what_was_asked_for_by_name_says_where_it_is_of_different_data() {
    let lab = Lab::new();
    let facts = |i: usize| json!({"digests": {"train": "t", "val": (["v", "w"][i]), "task_poems": "p"}});
    runs(&lab, |i| (facts(i), SCORES[i]));
    let note = "val_loss was measured on different data (data.val)";
    // once, whatever names the column
    let args = ["--by", "poems_acc", "--metrics", "poems_acc,val_loss,best_val_loss"];
    let said = text(&lab, &args);
    assert_eq!(said.matches("was measured on different data").count(), 1, "{said}");
    assert!(said.contains(note), "{said}");
    let found = json(&lab, &args);
    let sets = |id: &str| {
        let runs = found["runs"].as_array().expect("runs").iter();
        runs.clone().find(|run| run["id"] == id).expect("there")["sets"]["val_loss"].clone()
    };
    assert!(sets("fake-11").is_u64() && sets("fake-11") == sets("fake-12"), "{found:#}");
    assert_ne!(sets("fake-11"), sets("fake-01"));
    let sorted = text(&lab, &["--by", "poems_acc", "--sort", "val_loss", "--metrics", "poems_acc"]);
    assert!(sorted.contains(note), "{sorted}");
    assert!(!text(&lab, &["--by", "poems_acc", "--metrics", "poems_acc"]).contains("different data"));
}

#[test]
fn seeds_without_a_score_are_no_part_of_its_curve() {
    let lab = Lab::new();
    runs(&lab, |i| (json!({"digests": {"train": "t", "val": "v", "task_poems": "p"}}), SCORES[i]));
    let unscored = lab.path("runs/fake-02");
    fs::write(unscored.join("val.csv"), "step,tokens,val_loss\n0,0,9\n4,1024,3.2\n").expect("a log");
    let record = fs::read_to_string(unscored.join("run.json")).expect("a record");
    let unknown = record.replace(",\"task_poems\":\"p\"", "");
    assert_ne!(unknown, record);
    fs::write(unscored.join("run.json"), unknown).expect("a record");
    lab.run(["compare", "runs", "--plot", "a.svg", "--y", "poems_acc"]).expect(0);
    let drawn = fs::read_to_string(lab.path("a.svg")).expect("drawn");
    assert!(!drawn.contains("no mean of") && !drawn.contains("nothing to show"), "{drawn}");
    let lines = drawn.matches("<polyline").count().max(drawn.matches("<path").count());
    assert!(lines >= 2, "{drawn}");
}
