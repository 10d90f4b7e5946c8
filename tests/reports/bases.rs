//! `runner compare` where runs have several sets of validation data, several targets, or scores that not all have: what
//! each figure was measured on decides which runs it can be compared between.

use crate::report_support;
use crate::support;

use report_support::{Fake, compared as json, printed as text, prose};
use serde_json::{Value, json};
use std::fs;
use support::Lab;

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

/// An `eval.csv` of a run: a row for each of these steps, with the cells of `measured`, `perplexity` and
/// `bits_per_byte`.
fn evaluated(lab: &Lab, id: &str, rows: &[(u64, &str, f64, f64)]) {
    let mut text =
        "step,tokens,evaluated,precision,data,data_tokens,measured,perplexity,bits_per_byte\n".to_owned();
    for (step, measured, perplexity, bits) in rows {
        text += &format!("{step},{},now,fp32,v.txt,64,{measured},{perplexity},{bits}\n", step * 256);
    }
    fs::write(lab.path("runs").join(id).join("eval.csv"), text).expect("a file");
}

#[test]
fn bits_per_byte_are_compared_across_tokenizers_on_all_of_a_text() {
    let lab = Lab::new();
    let extents = |i: usize, extent: [&str; 2]| {
        for seed in 1..=2 {
            let id = format!("fake-{i}{seed}");
            let run = Fake::new(&id, seed, 1e-3 * (i + 1) as f64, 3.0).write(&lab.path("runs"));
            let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
            let tokenizer = ["char", "gpt2"][i];
            let recipe = recipe.replace("[data]\n", &format!("[data]\ntokenizer = \"{tokenizer}\"\n"));
            fs::write(run.join("recipe.toml"), recipe).expect("a recipe");
            let on = format!("val_loss=aa:{};bits_per_byte=aa:{}", [1000, 250][i], extent[i]);
            evaluated(&lab, &id, &[(4, &on, 30.0 + i as f64, 2.0 + i as f64 + seed as f64 / 100.0)]);
        }
    };
    let args = ["--metrics", "bits_per_byte,perplexity", "--by", "bits_per_byte"];
    let tests = |lab: &Lab| json(lab, &args)["tests"].as_array().map(Vec::len);
    (0..2).for_each(|i| extents(i, ["whole", "whole"]));
    assert_eq!(tests(&lab), Some(1));
    let said = text(&lab, &args);
    assert!(
        said.contains("perplexity was measured on different data") && !said.contains("bits_per_byte was"),
        "{said}"
    );
    // beginnings of a text are of as many bytes
    (0..2).for_each(|i| extents(i, ["999", "998"]));
    assert_eq!(tests(&lab), Some(0));
    assert!(text(&lab, &args).contains("bits_per_byte was measured on different data (evaluated bytes)"));
    (0..2).for_each(|i| extents(i, ["999", "999"]));
    assert_eq!(tests(&lab), Some(1));
}

#[test]
fn a_perplexity_of_other_data_than_the_loss_beside_it_says_so() {
    let lab = Lab::new();
    let extra = json!({"digests": {"val": "aa00aa00aa00aa00".repeat(4)}});
    for seed in 1..=2 {
        Fake { extra: extra.clone(), ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0) }
            .write(&lab.path("runs"));
    }
    let row = |digest: &str| {
        let on = format!("val_loss={digest}:64;bits_per_byte={digest}:whole");
        (1..=2).for_each(|seed| evaluated(&lab, &format!("fake-{seed}"), &[(4, &on, 30.0, 2.0)]));
    };
    let args = ["--metrics", "val_loss,perplexity,bits_per_byte"];
    row("bb00bb00bb00bb00");
    assert!(!text(&lab, &args).contains("other data than data.val"), "val.csv has the loss");
    for name in ["perplexity", "bits_per_byte"] {
        let note = format!("{name} of fake-1 and fake-2 is of other data than val_loss");
        assert!(text(&lab, &args).contains(&note), "{}", text(&lab, &args));
    }
    assert!(!text(&lab, &["--metrics", "perplexity"]).contains("other data"));
    row("aa00aa00aa00aa00");
    assert!(!text(&lab, &args).contains("other data"));
}

/// A run that was never evaluated may have been measured on anything afterwards.
#[test]
fn a_loss_of_other_data_than_those_of_the_recipe_says_so() {
    let lab = Lab::new();
    let extra = json!({"digests": {"val": "aa00aa00aa00aa00".repeat(4)}});
    let fake = Fake { extra, val: Vec::new(), ..Fake::new("fake-1", 1, 1e-3, 3.0) };
    let run = fake.write(&lab.path("runs"));
    let note = "of other data than data.val: of those of the last evaluation in eval.csv";
    for (digest, is_said) in [("bb00bb00bb00bb00", true), ("aa00aa00aa00aa00", false)] {
        let row = format!("4,1024,now,fp32,v.txt,64,val_loss={digest}:64,3.5");
        let header = "step,tokens,evaluated,precision,data,data_tokens,measured,val_loss";
        fs::write(run.join("eval.csv"), format!("{header}\n{row}\n")).expect("a log");
        for args in [&[][..], &["--target", "val_loss=9", "--metrics", "loss"], &["--format", "csv"]] {
            let said = text(&lab, args);
            assert_eq!(said.contains(note), is_said, "{said}");
        }
    }
}

#[test]
fn what_was_measured_before_the_end_is_no_result_of_the_end() {
    let lab = Lab::new();
    let on = "val_loss=aa:64;bits_per_byte=aa:whole";
    let write = |steps: [u64; 2]| {
        for (i, step) in steps.into_iter().enumerate() {
            for seed in 1..=2 {
                let id = format!("fake-{i}{seed}");
                Fake::new(&id, seed, 1e-3 * (i + 1) as f64, 3.0).write(&lab.path("runs"));
                evaluated(&lab, &id, &[(1, on, 90.0, 9.0), (step, on, 30.0 + (i as u64 + seed) as f64, 3.0)]);
            }
        }
    };
    let args = ["--metrics", "perplexity", "--by", "perplexity"];
    let tests = |lab: &Lab| json(lab, &args)["tests"].as_array().map(Vec::len);
    write([4, 4]);
    assert_eq!(tests(&lab), Some(1));
    assert!(!text(&lab, &args).contains("measured"));
    write([4, 2]);
    assert_eq!(tests(&lab), Some(0));
    let said = text(&lab, &args);
    assert!(said.contains("perplexity was measured at different steps: 2 sets of runs"), "{said}");
    assert!(said.contains("perplexity was last measured before the end of fake-1"), "{said}");
    assert!(said.contains("fake-11 (step 2)") && said.contains("fake-12 (step 2)"), "{said}");
    // the same step of all can be compared, and is named
    write([2, 2]);
    assert_eq!(tests(&lab), Some(1));
    assert!(text(&lab, &args).contains("was last measured before the end of"));
    // so can the best ones
    write([2, 3]);
    assert_eq!(tests(&lab), Some(0));
    for (i, step) in [(0, 2), (1, 3)] {
        for seed in 1..=2 {
            let id = format!("fake-{i}{seed}");
            let best = json!({"step": step, "val_loss": 3.0, "path": "checkpoints/x"});
            let extra = json!({"best_checkpoint": best});
            Fake { extra, ..Fake::new(&id, seed, 1e-3 * (i + 1) as f64, 3.0) }.write(&lab.path("runs"));
        }
    }
    assert_eq!(tests(&lab), Some(1));
    assert!(text(&lab, &args).contains("was last measured before the end of"));
    write([2, 2]);
    // a column of val.csv that was given up on the way
    let run = lab.path("runs/fake-01");
    fs::write(run.join("val.csv"), "step,tokens,val_loss,poems_acc\n0,0,9,0.1\n2,512,5,0.2\n4,1024,3.5,\n")
        .expect("a log");
    let said = text(&lab, &["--metrics", "val_loss,poems_acc"]);
    assert!(said.contains("poems_acc was last measured before the end of fake-01 (step 2)"), "{said}");
    // that runs still train is no reason to tell them apart
    for id in ["fake-01", "fake-02", "fake-11", "fake-12"] {
        let record = lab.path("runs").join(id).join("run.json");
        let text = fs::read_to_string(&record).expect("a record").replace("finished", "interrupted");
        fs::write(&record, text).expect("a record");
    }
    assert!(!text(&lab, &args).contains("measured"));
}

#[test]
fn the_best_checkpoints_of_two_runs_are_compared_though_one_is_the_last() {
    let lab = Lab::new();
    for (i, best) in [(0, [2, 4]), (1, [4, 2])] {
        for seed in 1..=2usize {
            let step = best[seed - 1];
            let extra = json!({"best_checkpoint": {"step": step, "val_loss": 3.0, "path": "checkpoints/x"}});
            let id = format!("fake-{i}{seed}");
            let fake = Fake { extra, ..Fake::new(&id, seed as u64, 1e-3 * f64::from(i + 1), 3.0) };
            let run = fake.write(&lab.path("runs"));
            let row = format!("{step},512,now,fp32,x.bin,64,val_loss=aa:64,{}.{seed}\n", i + 4);
            fs::write(run.join("eval.csv"), format!("{ASKED},perplexity\n{row}")).expect("a log");
        }
    }
    let args = ["--by", "perplexity", "--metrics", "perplexity"];
    // the best of one is that one
    let of_one = ["--by", "best_perplexity", "--metrics", "best_perplexity"];
    for args in [args, of_one] {
        assert_eq!(json(&lab, &args)["tests"].as_array().map(Vec::len), Some(1));
        assert!(!text(&lab, &args).contains("measured at"));
    }
    // a run that trains still has no part in it
    let open = Fake { status: "interrupted", ..Fake::new("fake-21", 1, 9e-3, 3.0) }.write(&lab.path("runs"));
    fs::copy(lab.path("runs/fake-01/eval.csv"), open.join("eval.csv")).expect("copied");
    assert_eq!(json(&lab, &args)["tests"].as_array().map(Vec::len), Some(1));
    // one that was measured at its end, which is not its best
    let run = lab.path("runs/fake-01");
    fs::write(
        run.join("eval.csv"),
        format!("{ASKED},perplexity\n4,512,now,fp32,x.bin,64,val_loss=aa:64,4.1\n"),
    )
    .expect("a log");
    for args in [args, of_one] {
        assert!(text(&lab, &args).contains("measured at different steps"), "{}", text(&lab, &args));
    }
}

/// The columns of `eval.csv`.
const ASKED: &str = "step,tokens,evaluated,precision,data,data_tokens,measured";

#[test]
fn what_was_measured_later_than_the_rows_of_val_csv_is_shown_beside_them() {
    let lab = Lab::new();
    let facts = json!({"digests": {"task_poems": "0123456789abcdef".repeat(4)}});
    for seed in 1..=3 {
        let fake = Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0);
        let run = Fake { extra: facts.clone(), ..fake }.write(&lab.path("runs"));
        // with it to the end, given up on the way, and never
        let rows = ["0,0,9,0.1\n4,1024,3,0.25\n", "0,0,9,0.1\n4,1024,3,\n", ""][seed as usize - 1];
        let header =
            if rows.is_empty() { "step,tokens,val_loss\n" } else { "step,tokens,val_loss,poems_acc\n" };
        fs::write(run.join("val.csv"), format!("{header}{rows}")).expect("a log");
        if seed > 1 {
            let row = format!("4,1024,now,fp32,,,poems=0123456789abcdef,0.{}\n", seed + 1);
            fs::write(run.join("eval.csv"), format!("{ASKED},poems_acc\n{row}")).expect("a log");
        }
    }
    let args = ["--metrics", "poems_acc", "--target", "poems_acc=0.29"];
    let found = json(&lab, &args);
    let of = |id: &str| {
        let runs = found["runs"].as_array().expect("runs").iter();
        runs.clone().find(|run| run["id"] == id).expect("there")["metrics"]["poems_acc"].clone()
    };
    assert_eq!(["fake-1", "fake-2", "fake-3"].map(of), [json!(0.25), json!(0.3), json!(0.4)], "{found:#}");
    let said = text(&lab, &args);
    assert!(said.contains("poems_acc >= 0.29 is not reached by fake-1 (best 25.0 %)\n"), "{said}");
    assert!(!said.contains("different data"), "{said}");
    assert!(!said.contains("last measured before"), "{said}");
    // what was measured on other data takes no value's place
    let other =
        fs::read_to_string(lab.path("runs/fake-2/eval.csv")).expect("a log").replace("=0123", "=3210");
    let own = fs::read_to_string(lab.path("runs/fake-2/eval.csv")).expect("a log");
    fs::write(lab.path("runs/fake-2/eval.csv"), &other).expect("a log");
    let other_rows = other;
    let found = json(&lab, &args);
    let runs = found["runs"].as_array().expect("runs");
    let of_two = runs.iter().find(|run| run["id"] == "fake-2").expect("there");
    assert_eq!(of_two["metrics"]["poems_acc"], json!(0.1));
    let said = text(&lab, &args);
    let note = "fake-2 (best 10.0 % in val.csv; eval.csv has it at step 4, perhaps on other data)";
    assert!(said.contains(note), "{said}");
    // and hides none that was measured on the run's own before it
    let row = other_rows.lines().last().expect("a row").replace(",0.3", ",0.9");
    fs::write(lab.path("runs/fake-2/eval.csv"), format!("{own}{row}\n")).expect("a log");
    let found = json(&lab, &args);
    let runs = found["runs"].as_array().expect("runs");
    let of_two = runs.iter().find(|run| run["id"] == "fake-2").expect("there");
    assert_eq!(of_two["metrics"]["poems_acc"], json!(0.3));
    assert!(!text(&lab, &args).contains("perhaps on other data"));
    fs::write(lab.path("runs/fake-2/eval.csv"), own).expect("a log");
    // examples of another task of that name
    let other =
        fs::read_to_string(lab.path("runs/fake-3/eval.csv")).expect("a log").replace("=0123", "=3210");
    fs::write(lab.path("runs/fake-3/eval.csv"), other).expect("a log");
    assert!(text(&lab, &args[..2]).contains("different data (the task's examples as tokens)"));
}

#[test]
fn rows_of_the_runs_own_length_are_of_the_data_of_val_csv() {
    let lab = Lab::new();
    for seed in 1..=2 {
        let extra = json!({"digests": {"val": "0123456789abcdef".repeat(4)}, "plan": {"eval_rows": 2}});
        let run =
            Fake { extra, ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0) }.write(&lab.path("runs"));
        let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        fs::write(run.join("recipe.toml"), recipe + "\n[model]\nblock_size = 32\n").expect("a recipe");
    }
    // the first has no evaluation of its own
    let run = lab.path("runs/fake-1");
    fs::write(run.join("val.csv"), "step,tokens,val_loss\n").expect("a log");
    for (length, is_own) in [(32, true), (16, false)] {
        let row = format!("4,1024,now,fp32,v.txt,64,val_loss=0123456789abcdef:64/{length},3.25\n");
        fs::write(run.join("eval.csv"), format!("{ASKED},val_loss\n{row}")).expect("a log");
        assert_eq!(!text(&lab, &[]).contains("evaluated tokens"), is_own, "{length}");
    }
}

#[test]
fn a_set_is_the_same_set_among_others() {
    let lab = Lab::new();
    let digest = |digit: &str| digit.repeat(64);
    let sets = "val = { a = \"a.bin\", b = \"b.bin\" }\nval_main = \"a\"\n";
    let write = |id: &str, seed, val: &str, digests: Value| {
        let run = Fake { extra: json!({ "digests": digests }), ..Fake::new(id, seed, 1e-3, 3.0) }
            .write(&lab.path("runs"));
        let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        fs::write(run.join("recipe.toml"), recipe.replace("[data]\n", &format!("[data]\n{val}")))
            .expect("a recipe");
    };
    let of_sets = json!({"val": digest("c"), "set_a": digest("a"), "set_b": digest("b")});
    write("fake-1", 1, "val = [\"a.bin\"]\n", json!({"val": digest("a")}));
    write("fake-2", 2, sets, of_sets.clone());
    assert!(!text(&lab, &[]).contains("different data"));
    // the other one decides
    write("fake-3", 3, &sets.replace("\"a\"", "\"b\""), of_sets);
    assert!(text(&lab, &[]).contains("val_loss was measured on different data (data.val)"));
    // runs of an earlier version say less, and as much is asked of later ones
    fs::remove_dir_all(lab.path("runs/fake-3")).expect("removed");
    fs::remove_dir_all(lab.path("runs/fake-1")).expect("removed");
    write("fake-4", 4, sets, json!({"val": digest("c")}));
    assert!(!text(&lab, &[]).contains("different data"));
    write("fake-5", 5, "val = [\"a.bin\"]\n", json!({"val": digest("a")}));
    write("fake-4", 4, &sets.replace("b.bin", "c.bin"), json!({"val": digest("e")}));
    let sets_of = |id: &str| {
        let found = json(&lab, &[]);
        let runs = found["runs"].as_array().expect("runs").iter();
        runs.clone().find(|run| run["id"] == id).expect("there")["set"].clone()
    };
    assert_eq!(
        sets_of("fake-2"),
        sets_of("fake-5"),
        "an unrelated run of an earlier version changes nothing"
    );
    fs::remove_dir_all(lab.path("runs/fake-5")).expect("removed");
    write("fake-4", 4, sets, json!({"val": digest("d")}));
    assert!(text(&lab, &[]).contains("different data (data.val"));
}

#[test]
fn the_evaluation_that_a_run_goes_on_from_counts_until_it_is_made_again() {
    let lab = Lab::new();
    let extra = json!({"evaluated_before": {"step": 4, "cells": ["4", "1024", "2.5"]}});
    let fake = Fake::new("fake-1", 1, 1e-3, 3.0);
    Fake { status: "interrupted", extra, val: vec![(0, 10.5)], ..fake }.write(&lab.path("runs"));
    let said = text(&lab, &["--target", "val_loss=4", "--metrics", "val_loss"]);
    assert!(said.contains("2.5000") && !said.contains("not reached"), "{said}");
    let listed = lab.run(["list", "runs", "--format", "csv"]).expect(0).stdout.clone();
    assert!(listed.contains(",2.5,"), "{listed}");
}

#[test]
fn a_seed_that_does_not_count_takes_no_test_away() {
    let lab = Lab::new();
    for (i, lr) in [1e-3, 2e-3].into_iter().enumerate() {
        for seed in 1..=3u64 {
            let is_apart = i == 0 && seed == 3;
            let status = if is_apart { "interrupted" } else { "finished" };
            let digest = if is_apart { "w" } else { "v" };
            let extra = json!({"digests": {"val": digest}});
            let last = 3.0 + i as f64 + 0.01 * seed as f64;
            Fake { status, extra, ..Fake::new(&format!("fake-{i}{seed}"), seed, lr, last) }
                .write(&lab.path("runs"));
        }
    }
    assert_eq!(json(&lab, &[])["tests"].as_array().map(Vec::len), Some(1));
    let run = lab.path("runs/fake-03/run.json");
    let text_of = fs::read_to_string(&run).expect("a record");
    fs::write(&run, text_of.replace("interrupted", "diverged")).expect("a record");
    let said = text(&lab, &[]);
    let caveat = "1 run that diverged is left out of means and tests: its recipe looks better than it is";
    assert!(said.contains(caveat) && !said.contains("not finished"), "{said}");
}

#[test]
fn evaluations_that_were_rounded_otherwise_and_losses_under_unequal_dropout_say_so() {
    let lab = Lab::new();
    let write = |second: &str, dropout: [&str; 2]| {
        for seed in 1..=2u64 {
            let id = format!("fake-{seed}");
            let fake = Fake { val: Vec::new(), ..Fake::new(&id, seed, 1e-3, 3.0) };
            let recipe = fake.write(&lab.path("runs")).join("recipe.toml");
            let model = format!("[model]\ndropout = {}\n\n[data]\n", dropout[seed as usize - 1]);
            let own = fs::read_to_string(&recipe).expect("a recipe").replace("[data]\n", &model);
            fs::write(recipe, own).expect("a recipe");
            evaluated(&lab, &id, &[(4, "val_loss=aa00:64", 30.0, 2.0)]);
        }
        let rows = lab.path("runs/fake-2/eval.csv");
        let text = fs::read_to_string(&rows).expect("rows").replace(",fp32,", &format!(",{second},"));
        fs::write(rows, text).expect("rows");
    };
    let (by_name, of_training) = (["--metrics", "perplexity"], ["--metrics", "loss"]);
    write("bf16", ["0.0", "0.1"]);
    let said = text(&lab, &by_name);
    let note = "perplexity was evaluated in bf16 of fake-2 and in fp32 of fake-1, whose rounding differs";
    assert!(said.contains(note), "{said}");
    let said = text(&lab, &of_training);
    assert!(said.contains("loss is measured while activations are dropped"), "{said}");
    write("fp32", ["0.1", "0.1"]);
    assert!(!text(&lab, &by_name).contains("was evaluated in"), "{}", text(&lab, &by_name));
    assert!(!text(&lab, &of_training).contains("activations"), "{}", text(&lab, &of_training));
}

/// Two learning rates with two seeds each, and what `run.json` says of each learning rate.
fn rates(lab: &Lab, of_rate: impl Fn(usize) -> Value) {
    for i in 0..2 {
        for seed in 1..=2u64 {
            let fake = Fake::new(&format!("fake-{i}{seed}"), seed, 1e-3 * (i + 1) as f64, 3.0);
            let tokens_per_s = 1000.0 + 10.0 * seed as f64;
            Fake { extra: of_rate(i), tokens_per_s, ..fake }.write(&lab.path("runs"));
        }
    }
}

#[test]
fn shares_of_peak_rates_that_differ_are_not_compared() {
    let by = ["--by", "mfu", "--metrics", "mfu"];
    for (second, is_apart) in [(232e9, true), (116.5e9, false)] {
        let lab = Lab::new();
        rates(&lab, |i| json!({"device": "cpu", "peak": {"flops": ([116e9, second][i])}}));
        let found = json(&lab, &by);
        assert_eq!(found["tests"].as_array().map(Vec::len), Some(usize::from(!is_apart)), "{found:#}");
        let said = text(&lab, &by);
        assert_eq!(said.contains("mfu was measured against peak rates that differ"), is_apart, "{said}");
        assert!(!text(&lab, &["--by", "tokens_per_s"]).contains("against peak rates that differ: "));
    }
    let lab = Lab::new();
    let run = Fake::new("fake-1", 1, 1e-3, 3.0).write(&lab.path("runs"));
    assert!(!text(&lab, &[]).contains("peak rate"));
    let log = fs::read_to_string(run.join("train.csv")).expect("a log").replace(",0.25,", ",2.75,");
    fs::write(run.join("train.csv"), log).expect("a log");
    assert!(text(&lab, &[]).contains("fake-1: the MFU is above 100 %"), "{}", text(&lab, &[]));
}

#[test]
fn what_runs_have_come_to_by_a_time_is_of_their_machine_and_their_own_steps() {
    let tests = |lab: &Lab, args: &[&str]| json(lab, args)["tests"].as_array().map(Vec::len);
    let (by_time, by_step) = (["--align", "time", "--by", "loss"], ["--align", "step", "--by", "loss"]);
    let lab = Lab::new();
    rates(&lab, |i| json!({"device": "cpu", "simd": (["baseline", "avx512"][i])}));
    assert_eq!([tests(&lab, &by_time), tests(&lab, &by_step)], [Some(0), Some(1)]);
    assert!(text(&lab, &by_time).contains("loss was measured on machines that differ"));
    // an engine that does not say which instructions it uses
    let lab = Lab::new();
    rates(
        &lab,
        |i| if i == 0 { json!({"device": "cpu"}) } else { json!({"device": "cpu", "simd": "avx512"}) },
    );
    assert_eq!(tests(&lab, &by_time), Some(1));
    for args in [&[][..], &["--by", "tokens_per_s"], &["--by", "step_ms", "--metrics", "speedup,step_ms"]] {
        assert!(!text(&lab, args).contains("machines that differ"), "{}", text(&lab, args));
    }
    // the seconds of a branch are its own
    let lab = Lab::new();
    rates(&lab, |i| match i {
        0 => json!({}),
        _ => json!({"parent": {"run": "trunk", "step": 8, "optimizer": true}}),
    });
    let by_seconds = ["--by", "elapsed_s", "--metrics", "elapsed_s"];
    assert_eq!(
        [tests(&lab, &by_time), tests(&lab, &by_seconds), tests(&lab, &by_step)],
        [Some(0), Some(0), Some(1)]
    );
    let said = text(&lab, &by_seconds);
    assert!(said.contains("elapsed_s was measured from different steps on"), "{said}");
}

#[test]
fn every_row_of_the_csv_says_what_else_there_is_to_know() {
    let csv = |lab: &Lab, args: &[&str]| {
        let said = lab.run([&["compare", "runs", "--format", "csv"][..], args].concat());
        let lines: Vec<String> = said.expect(0).stdout.lines().map(str::to_owned).collect();
        lines
    };
    let all_say = |lab: &Lab, args: &[&str], note: &str| {
        let lines = csv(lab, args);
        assert!(lines[1..].iter().all(|line| line.contains(note)), "{note}: {lines:#?}");
    };
    // one path, two texts
    let lab = Lab::new();
    let usual = || Fake::new("", 1, 1e-3, 3.0);
    for seed in 1..=4u64 {
        let digest = if seed < 3 { "a" } else { "b" }.repeat(64);
        let extra = json!({"digests": {"train": digest}});
        Fake { extra, id: format!("fake-{seed}"), seed, ..usual() }.write(&lab.path("runs"));
    }
    all_say(
        &lab,
        &["--metrics", "val_loss"],
        "data.train names the same path as that of others and other contents",
    );
    let lines = csv(&lab, &[]);
    assert!(lines[1].contains("(aaaaaaaaaaaa)") && lines[4].contains("(bbbbbbbbbbbb)"), "{lines:#?}");
    // evaluations and checkpoints take time, and some settings memory
    let lab = Lab::new();
    for seed in 1..=2u64 {
        let run = Fake { id: format!("fake-{seed}"), seed, ..usual() }.write(&lab.path("runs"));
        let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        let compute = ["[compute]\n", "[compute]\nrecompute = \"block\"\n"][seed as usize - 1];
        let more = format!("{}\n[checkpoint]\nevery = {seed}\n", recipe.replace("[compute]\n", compute));
        fs::write(run.join("recipe.toml"), more).expect("a recipe");
    }
    for note in ["runs differ in checkpoint.every", "runs differ in compute.recompute"] {
        all_say(&lab, &[], note);
        assert!(text(&lab, &[]).contains(note), "{}", text(&lab, &[]));
    }
    assert!(!text(&lab, &["--metrics", "val_loss"]).contains("checkpoint.every,"));
}

#[test]
fn an_edited_run_counts_nowhere_and_hides_no_other() {
    let lab = Lab::new();
    let [usual, high] = ["optimizer.lr=1e-3", "optimizer.lr=1e-2"];
    let mut runs = Vec::new();
    for (lr, seed) in [(usual, "seed=1"), (usual, "seed=2"), (high, "seed=1"), (high, "seed=2")] {
        runs.push(lab.train(&[lr, seed]));
    }
    let of_usual = || {
        let found = json(&lab, &[]);
        let groups = found["groups"].as_array().expect("groups").clone();
        let of = |group: &&Value| group["label"].as_str().is_some_and(|label| label.contains("1e-3"));
        groups.iter().find(of).unwrap_or_else(|| panic!("{groups:#?}"))["metrics"]["val_loss"].clone()
    };
    let before = of_usual();
    assert_eq!(before["n"], 2, "{before}");
    let recipe = runs[2].join("recipe.toml");
    let own = fs::read_to_string(&recipe).expect("a recipe");
    fs::write(&recipe, own.replace("lr = 0.01\n", "lr = 0.001\n")).expect("edited");
    assert_eq!(of_usual(), before);
    let said = text(&lab, &["--target", "val_loss=100"]);
    assert!(said.contains("and is not what it was trained by: it is left out of means and tests"), "{said}");
}

#[test]
fn an_edited_run_is_told_of_wherever_its_figures_go_and_is_no_further_seed() {
    let lab = Lab::new();
    let runs: Vec<_> = ["1", "2"].map(|seed| lab.train(&[&format!("seed={seed}")])).into();
    let formats = |note: &str, is_said: bool| {
        for format in ["table", "csv", "markdown", "json"] {
            let said = lab.run(["compare", "runs", "--format", format]).expect(0).stdout.clone();
            assert_eq!(said.contains(note), is_said, "{format}: {said}");
        }
        let page = lab.path("page.html").display().to_string();
        lab.run(["compare", "runs", "--plot", &page]).expect(0);
        assert_eq!(fs::read_to_string(&page).expect("a page").contains(note), is_said);
    };
    let (of_log, of_recipe) = ("a log of it was changed", "its recipe.toml was edited");
    formats(of_log, false);
    let val = runs[0].join("val.csv");
    let own = fs::read_to_string(&val).expect("a log");
    let changed = own.replacen(".", ".1", 1);
    fs::write(&val, &changed).expect("a log");
    formats(of_log, true);
    let [edited, other] = [0, 1].map(|run: usize| runs[run].display().to_string());
    let ended = lab.run(["compare", &edited, &other, "--assert-equal"]);
    ended.says(&["warning: ", "val.csv", "differs first"]);
    assert_eq!(ended.stderr.matches("warning: ").count(), 1, "{}", ended.stderr);
    // of two copies the one with its own logs counts
    let copy = lab.path("runs/a-copy");
    fs::create_dir(&copy).expect("a directory");
    for name in ["run.json", "recipe.toml", "train.csv", "val.csv"] {
        fs::copy(runs[0].join(name), copy.join(name)).expect("copied");
    }
    fs::write(copy.join("val.csv"), &own).expect("a log");
    for (log, not_counted) in [(&changed, edited.as_str()), (&own, "a-copy")] {
        fs::write(&val, log).expect("a log");
        let group = json(&lab, &[])["groups"][0]["copies"].to_string();
        assert!(not_counted.ends_with(group.trim_matches(['[', ']', '"'])) && group.len() > 4, "{group}");
    }
    fs::remove_dir_all(&copy).expect("removed");
    formats(of_recipe, false);
    // a copy under another seed
    let copy = lab.path("runs/copy");
    fs::create_dir(&copy).expect("a directory");
    for name in ["run.json", "train.csv", "val.csv"] {
        fs::copy(runs[1].join(name), copy.join(name)).expect("copied");
    }
    let recipe = fs::read_to_string(runs[1].join("recipe.toml")).expect("a recipe");
    fs::write(copy.join("recipe.toml"), recipe.replace("seed = 2", "seed = 3")).expect("a recipe");
    formats(of_recipe, true);
    let groups = json(&lab, &[])["groups"].clone();
    assert_eq!(groups[0]["copies"].as_array().map(Vec::len), Some(1), "{groups:#}");
    fs::remove_dir_all(&copy).expect("removed");
    // one that was interrupted is held against its newest checkpoint
    let run = lab.crash("others", &[], "csv.before_row:11");
    let others = |is_said: bool| {
        let record = support::record(&run);
        let record = json!({"status": "failed", "error": "killed"}).as_object().map(|more| {
            let mut record = record.as_object().expect("a record").clone();
            record.extend(more.clone());
            record
        });
        fs::write(run.join("run.json"), Value::from(record.expect("a record")).to_string()).expect("written");
        let said = lab.run(["compare", "others"]).expect(0).stdout.clone();
        assert_eq!(said.contains(of_log), is_said, "{said}");
    };
    others(false);
    let log = run.join("train.csv");
    let own = fs::read_to_string(&log).expect("a log");
    fs::write(&log, own.replacen(".", ".1", 1)).expect("a log");
    others(true);
}

/// All seeds of a recipe read the same rows last, and those of a longer one others.
#[test]
fn last_losses_of_data_that_are_read_in_order_are_tested_where_their_rows_are_the_same() {
    let lab = Lab::new();
    let write = |shuffle: bool, batches: [&str; 2], lengths: [usize; 2], speeds: [f64; 2]| {
        for (i, (batch, steps)) in batches.into_iter().zip(lengths).enumerate() {
            for seed in 1..=3u64 {
                let fake = Fake::new(&format!("fake-{i}{seed}"), seed, 1e-3 * (i + 1) as f64, 3.0);
                let losses = (0..steps).map(|_| 3.0 + i as f64 + 0.01 * seed as f64).collect();
                let fake = Fake { losses, val: Vec::new(), tokens_per_s: speeds[i], ..fake };
                let run = fake.write(&lab.path("runs"));
                let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
                let data = format!("[batch]\n{batch}\n\n[data]\nshuffle = {shuffle}\n");
                let mut recipe = recipe.replace("[data]\n", &data);
                if !batch.contains("block_size") {
                    recipe += "\n[model]\nblock_size = 32\n";
                }
                fs::write(run.join("recipe.toml"), recipe).expect("a recipe");
            }
        }
    };
    let said = |args: &[&str]| text(&lab, &[&["--by", "loss", "--metrics", "loss"], args].concat());
    let apart = "loss was measured on different data (the rows of the last batch)";
    let tested = |args: &[&str]| {
        let said = said(args);
        assert!(said.contains("Welch's t") && !said.contains(apart), "{said}");
    };
    let untested = |args: &[&str]| {
        let said = said(args);
        assert!(!said.contains("Welch's t") && said.contains(apart), "{said}");
    };
    let [one, two] = ["total_tokens = 256", "total_tokens = 512"];
    // four steps of each of these have read 1024 tokens, the logs say
    let ramp = "total_tokens = 384\nramp_start = 128\nramp_increment = 128\nramp_tokens = ";
    let [short, long] = ["256", "10000"].map(|tokens| format!("{ramp}{tokens}"));
    let silent = format!("{one}\nramp_start = 0\nramp_tokens = 256");
    let ended = "total_tokens = 384";
    let like = [1000.0; 2];
    for (shuffle, batches, lengths) in [
        (true, [one, one], [4, 5]),
        (true, [one, two], [4, 4]),
        (false, [one, one], [4, 4]),
        // a batch that has grown reads as many
        (false, [ended, &short], [4, 4]),
        (false, [one, &silent], [4, 4]),
    ] {
        write(shuffle, batches, lengths, like);
        tested(&[]);
    }
    // rows of another length begin elsewhere in all shards but the first
    let rows = format!("{one}\n\n[model]\nblock_size = 64");
    for (batches, lengths) in
        [([one, one], [4, 5]), ([one, two], [4, 4]), ([ended, &long], [4, 4]), ([one, &rows], [4, 4])]
    {
        write(false, batches, lengths, like);
        untested(&[]);
    }
    // at one point of them, all have read the same
    write(false, [one, one], [4, 5], like);
    tested(&["--align", "step"]);
    // one that was stopped later has, too
    let record = lab.path("runs/fake-11/run.json");
    let interrupted = fs::read_to_string(&record).expect("a record").replace("finished", "interrupted");
    fs::write(record, interrupted).expect("a record");
    tested(&["--align", "step"]);
    tested(&["--align", "time"]);
    // by one time, the faster ones have come to others
    write(false, [one, one], [4, 8], [1000.0, 1600.0]);
    untested(&["--align", "time"]);
}

/// A run near its end has a lower learning rate than one that has just begun.
#[test]
fn runs_that_are_aligned_at_unequal_learning_rates_are_told_of() {
    let lab = Lab::new();
    // the rate of each step, of the peak of 1e-3
    let write = |id: &str, rates: &[&str]| {
        let losses = vec![9.0; rates.len()];
        let run = Fake { losses, ..Fake::new(id, 1, 1e-3, 3.0) }.write(&lab.path("runs"));
        let log = fs::read_to_string(run.join("train.csv")).expect("a log");
        let rated = log.lines().skip(1).zip(rates).map(|(row, rate)| {
            let cells: Vec<&str> = row.split(',').collect();
            [&cells[..3], &[*rate], &cells[4..]].concat().join(",")
        });
        let rows: Vec<String> = log.lines().take(1).map(str::to_owned).chain(rated).collect();
        fs::write(run.join("train.csv"), rows.join("\n") + "\n").expect("written");
    };
    let told = |args: &[&str]| text(&lab, args).contains("learning rates are not the same part");
    write("fake-1", &["1e-3", "1e-3", "5e-4", "1e-4"]);
    write("fake-2", &["1e-3"; 8]);
    let said = text(&lab, &["--align", "step"]);
    assert!(said.contains("part of their peaks: 10 % of fake-1 and 100 % of fake-2;"), "{said}");
    // where nothing has decayed yet, and where each is at its own end
    assert!(!told(&["--align", "step", "--at", "2"]) && !told(&[]));
    write("fake-2", &["1e-3", "1e-3", "1e-3", "1e-3"]);
    assert!(!told(&["--align", "step"]));
    // a rate that has not come to its peak has not decayed
    let warmed = |id: &str, rates: &[&str]| {
        write(id, rates);
        let recipe = lab.path(format!("runs/{id}/recipe.toml"));
        let text = fs::read_to_string(&recipe).expect("a recipe") + "warmup_steps = 5\n";
        fs::write(recipe, text).expect("written");
    };
    warmed("fake-1", &["2e-4", "4e-4", "6e-4", "8e-4", "1e-3", "1e-3"]);
    assert!(!told(&["--align", "step", "--at", "2"]));
    write("fake-2", &["1e-3", "5e-4", "1e-4", "1e-5"]);
    let said = text(&lab, &["--align", "step", "--at", "2"]);
    assert!(said.contains("50 % of fake-2 and that of a warm-up of fake-1;"), "{said}");
}

/// Of runs of several lengths, an evaluation at one step is at the end of some and on the way of others.
#[test]
fn values_of_a_step_before_the_end_are_told_of_where_schedules_differ() {
    let lab = Lab::new();
    for (i, steps) in [4, 8].into_iter().enumerate() {
        let id = format!("fake-{i}");
        Fake { losses: vec![9.0; steps], ..Fake::new(&id, 1, 1e-3, 3.0) }.write(&lab.path("runs"));
        evaluated(&lab, &id, &[(3, "bits_per_byte=aa:whole", 30.0, 2.0)]);
    }
    let note = "runs differ in schedule.max_steps: at a step before their ends";
    let said = text(&lab, &["--metrics", "bits_per_byte", "--by", "bits_per_byte"]);
    assert!(said.contains(note), "{said}");
    assert!(!text(&lab, &["--metrics", "loss", "--by", "loss"]).contains(note));
}

#[test]
fn an_emulated_precision_is_said_where_others_are_not_and_figures_of_time_are_shown() {
    let lab = Lab::new();
    for (seed, emulated) in [(1, true), (2, false)] {
        let extra = json!({ "emulated": emulated });
        let fake = Fake { extra, ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0) };
        fake.write(&lab.path("runs"));
    }
    let note = "the precision of fake-1 was emulated by rounding";
    assert!(text(&lab, &[]).contains(note));
    assert!(!text(&lab, &["--metrics", "val_loss"]).contains(note));
}

#[test]
fn seconds_to_a_target_of_other_machines_are_told_apart_where_tokens_decide() {
    let lab = Lab::new();
    for (seed, processor) in [(1, "AMD"), (2, "AMD"), (3, "Xeon"), (4, "Xeon")] {
        let extra =
            json!({"device": "cpu", "peak": {"processor": processor, "flops": 1e11, "how": "measured"}});
        let lr = if seed < 3 { 1e-3 } else { 3e-3 };
        let fake = Fake { extra, ..Fake::new(&format!("fake-{seed}"), seed, lr, 3.0) };
        fake.write(&lab.path("runs"));
    }
    let note = "seconds_to_val_loss=9 was measured on machines that differ";
    let args = ["--target", "val_loss=9", "--metrics", "val_loss"];
    assert!(text(&lab, &args).contains(note), "{}", text(&lab, &args));
    assert!(json(&lab, &args)["notes"].to_string().contains(note));
    assert!(!text(&lab, &args).contains("tokens_to_val_loss=9 was measured"));
}

#[test]
fn hosts_whose_processors_have_one_name_and_unequal_peak_rates_are_other_machines() {
    let lab = Lab::new();
    let write = |rates: [f64; 4]| {
        for (i, rate) in rates.into_iter().enumerate() {
            let lr = if i < 2 { 1e-3 } else { 3e-3 };
            let host = format!("node-{i}");
            let peak = json!({"processor": "AMD EPYC", "threads": 1, "simd": "avx512", "flops": rate});
            let extra = json!({"device": "cpu", "host": host, "threads": 1, "simd": "avx512", "peak": peak});
            let speed = 1000.0 + i as f64;
            let fake = Fake::new(&format!("fake-{i}"), i as u64 % 2, lr, 3.0);
            Fake { tokens_per_s: speed, extra, ..fake }.write(&lab.path("runs"));
        }
        text(&lab, &["--by", "tokens_per_s"])
    };
    let apart = "tokens_per_s was measured on machines that differ (processor, its peak rate";
    let said = write([116e9, 112e9, 56e9, 58e9]);
    assert!(said.contains(apart) && !said.contains("in tokens_per_s"), "{said}");
    // rates waver with what else a machine does
    let said = write([116e9, 112e9, 95e9, 118e9]);
    assert!(!said.contains(apart) && said.contains("in tokens_per_s"), "{said}");
    // 60 is within a quarter of 80, but not of 100, beside which 80 counts as fast
    let said = write([80e9, 60e9, 90e9, 100e9]);
    let no_mean = "lr 1e-3: tokens_per_s, memory_bytes and elapsed_s of its seeds were measured on machines";
    assert!(said.contains(no_mean) && !said.contains("in tokens_per_s"), "{said}");
    // nor has the curve a mean, and a group without one comes last
    lab.run(["compare", "runs", "--plot", "a.svg", "--y", "tokens_per_s"]).expect(0);
    let drawn = prose(&fs::read_to_string(lab.path("a.svg")).expect("drawn"));
    assert!(drawn.contains("no mean of tokens_per_s where seeds were measured on machines"), "{drawn}");
    let peak = json!({"processor": "AMD EPYC", "threads": 1, "simd": "avx512", "flops": 100e9});
    let extra = json!({"device": "cpu", "host": "node-9", "threads": 1, "simd": "avx512", "peak": peak});
    Fake { tokens_per_s: 900.0, extra, ..Fake::new("fake-9", 1, 5e-3, 3.0) }.write(&lab.path("runs"));
    let found = json(&lab, &["--by", "tokens_per_s"]);
    let labels: Vec<&Value> =
        found["groups"].as_array().expect("groups").iter().map(|group| &group["label"]).collect();
    assert_eq!(labels, ["lr 3e-3", "lr 5e-3", "lr 1e-3"]);
}

/// What differs between groups is none of what differs within one.
#[test]
fn a_note_on_seeds_names_what_differs_among_them() {
    let lab = Lab::new();
    let write = |i: u64, lr: f64, rows: u64, more: &str, last: f64| {
        let extra = json!({"digests": {"train": "t", "val": "v"}, "plan": {"eval_rows": rows}});
        let val = vec![(0, 9.0), (4, last)];
        let run =
            Fake { extra, val, ..Fake::new(&format!("fake-{i}"), i % 2, lr, 3.0) }.write(&lab.path("runs"));
        let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        let more = format!("[model]\nblock_size = 64\n[data]\nval = [\"y.bin\"]{more}");
        fs::write(run.join("recipe.toml"), recipe.replace("[data]", &more)).expect("written");
    };
    let bytes = "\ntokenizer = \"bytes\"";
    for (i, lr, rows, more) in
        [(0, 1e-3, 10, ""), (1, 1e-3, 20, ""), (2, 3e-3, 10, bytes), (3, 3e-3, 10, bytes)]
    {
        write(i, lr, rows, more, 3.5);
    }
    let said = text(&lab, &[]);
    let note =
        "best_val_loss of its seeds were measured on different data (evaluated tokens), so there is no mean";
    assert!(said.contains(note), "{said}");
    // a seed that has no value of a metric keeps no other one from having it
    write(1, 1e-3, 20, "", 8.0);
    let found = json(&lab, &["--target", "val_loss=4"]);
    let groups = found["groups"].as_array().expect("groups").iter();
    let counts: Vec<&Value> = groups.map(|group| &group["metrics"]["steps_to_val_loss=4"]["n"]).collect();
    assert!(counts.contains(&&json!(1)) && counts.contains(&&json!(2)), "{counts:?}");
}

/// A test over seeds says nothing of other examples than those that the task has.
#[test]
fn differences_of_scores_that_few_examples_leave_open_are_told_of() {
    let lab = Lab::new();
    let said = |examples: u64| {
        let extra = json!({ "plan": { "data": { "tasks": [{ "name": "poems", "examples": examples }] } } });
        let log = |i: usize| {
            [
                "step,tokens,val_loss,poems_acc\n4,1024,3,0.40{}\n",
                "step,tokens,val_loss,poems_acc\n4,1024,3,0.45{}\n",
            ][i]
        };
        runs(&lab, |i| (extra.clone(), log(i)));
        text(&lab, &["--by", "poems_acc", "--metrics", "poems_acc"])
    };
    // sqrt(0.452 * 0.548 / 59)
    let note = "a difference in poems_acc may be that of the examples at hand, which no test over seeds shows: over \
                them, its standard error is up to 6.5 percentage points";
    assert!(said(60).contains(note), "{}", said(60));
    let way = "the first evaluation with poems_acc >= 0.4 may owe it to the 60 examples at hand: over them, the standard \
               error of such a score is 6.4 percentage points";
    assert!(text(&lab, &["--target", "poems_acc=0.4"]).contains(way));
    assert!(!text(&lab, &["--target", "poems_acc=1"]).contains("at hand"), "nobody has reached that");
    assert!(!said(10_000).contains("standard error"), "{}", said(10_000));
    // those that `runner eval` has measured stand beside the score
    runs(&lab, |_| (json!({}), "step,tokens,val_loss\n4,1024,3.{}\n"));
    for (i, acc) in [0.40, 0.45].into_iter().enumerate() {
        for seed in 1..=2 {
            let rows = format!(
                "step,tokens,evaluated,precision,measured,poems_acc,poems_acc_stderr\n4,1024,now,fp32,poems=aa,{},0.064\n",
                acc + f64::from(seed) / 1000.0
            );
            fs::write(lab.path(format!("runs/fake-{i}{seed}/eval.csv")), rows).expect("a file");
        }
    }
    let said = text(&lab, &["--by", "poems_acc", "--metrics", "poems_acc"]);
    assert!(said.contains(&note.replace("6.5", "6.4")), "{said}");
}

/// What came later may have been better.
#[test]
fn the_best_of_a_run_that_was_last_measured_before_its_end_is_held_against_no_other() {
    let lab = Lab::new();
    let log = |is_short: bool, seed: u64| {
        let end = if is_short { String::new() } else { format!("4,1024,3.0{seed}\n") };
        format!("step,tokens,val_loss\n0,0,9.0{seed}\n2,512,5.0{seed}\n{end}")
    };
    for (i, seed) in [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)] {
        let fake = Fake::new(&format!("fake-{i}{seed}"), seed, 1e-3 * (i + 1) as f64, 3.0);
        let run = fake.write(&lab.path("runs"));
        fs::write(run.join("val.csv"), log((i, seed) == (1, 3), seed)).expect("a log");
    }
    let args = ["--by", "best_val_loss", "--metrics", "best_val_loss"];
    let said = text(&lab, &args);
    assert!(said.contains("best_val_loss was last measured before the end of fake-13 (step 2)"), "{said}");
    assert!(said.contains("best_val_loss was measured at different steps"), "{said}");
    // nor are several evaluations that somebody asked for
    for (i, seed) in [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)] {
        let on = "val_loss=aa:1000;bits_per_byte=aa:whole";
        let end = if (i, seed) == (1, 3) { 3 } else { 4 };
        let rows = [(1, on, 40.0, 4.0), (2, on, 30.0, 3.0), (end, on, 20.0, 2.0)];
        evaluated(&lab, &format!("fake-{i}{seed}"), &rows);
    }
    let said = text(&lab, &["--by", "best_bits_per_byte", "--metrics", "best_bits_per_byte"]);
    assert!(
        said.contains("best_bits_per_byte was last measured before the end of fake-13 (step 3)"),
        "{said}"
    );
    assert!(said.contains("best_bits_per_byte was measured at different steps"), "{said}");
}
