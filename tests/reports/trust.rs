//! `runner compare` where figures look comparable and are not: other points, other data, copies of a run.

use crate::report_support;
use crate::support;

use report_support::{Fake, compared as json, printed as text, prose, rfc4180};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use support::Lab;

fn run<'a>(found: &'a Value, id: &str) -> &'a Value {
    found["runs"].as_array().expect("runs").iter().find(|run| run["id"] == id).expect("there")
}

fn csv(lab: &Lab, args: &[&str], id: &str, column: &str) -> Option<String> {
    let ended = lab.run([&["compare", "runs", "--format", "csv"], args].concat());
    let rows = rfc4180(&ended.expect(0).stdout);
    let at = rows[0].iter().position(|name| name == column)?;
    rows.iter().find(|row| row[0] == id).map(|row| row[at].clone())
}

/// Three runs of eight steps: evaluated every four, every eight and only before the first.
fn of_different_cadence(lab: &Lab) {
    let val = [vec![(0, 10.0), (4, 6.0), (8, 5.0)], vec![(0, 9.0), (8, 5.0)], vec![(0, 1.0)]];
    for (i, val) in val.into_iter().enumerate() {
        let losses = (0..8).map(|step| 10.0 - f64::from(step)).collect();
        let fake = Fake::new(&format!("fake-{i}"), 1, 1e-3 * (i + 1) as f64, 3.0);
        Fake { losses, val, ..fake }.write(&lab.path("runs"));
    }
}

#[test]
fn an_evaluation_of_another_step_is_no_result_of_this_one() {
    let lab = Lab::new();
    of_different_cadence(&lab);
    for (axis, at) in [("step", "2"), ("tokens", "512"), ("time", "0.512")] {
        let args = ["--align", axis, "--at", at];
        let found = json(&lab, &args);
        let ids: Vec<&Value> = found["runs"].as_array().expect("runs").iter().map(|run| &run["id"]).collect();
        assert_eq!(ids, ["fake-0", "fake-1", "fake-2"], "{axis}: what has no value comes last");
        let of = |id: &str| (&run(&found, id)["metrics"]["val_loss"], &run(&found, id)["interpolated"]);
        let both = json!(["val_loss", "best_val_loss"]);
        assert_eq!((of("fake-0"), of("fake-1")), ((&json!(8), &both), (&json!(8), &both)), "{axis}");
        assert_eq!(of("fake-2"), (&Value::Null, &json!([])), "{axis}: its only evaluation is of step 0");
        assert_eq!(run(&found, "fake-2")["metrics"]["best_val_loss"], Value::Null);
        let said = text(&lab, &args);
        assert!(said.contains("~8.0000") && !said.contains("1.0000"), "{said}");
        assert!(said.contains("~ interpolated linearly between the evaluations before and after"), "{said}");
        assert!(said.contains("fake-2: no evaluation at the point of comparison"), "{said}");
        assert!(said.contains("so there is no val_loss\n"), "{said}");
        assert!(text(&lab, &[&args[..], &["--format", "markdown"]].concat()).contains("- ~ interpolated"));
        assert_eq!(csv(&lab, &args, "fake-0", "val_loss").as_deref(), Some("8"));
        assert_eq!(csv(&lab, &args, "fake-0", "interpolated").as_deref(), Some("val_loss best_val_loss"));
        assert_eq!(csv(&lab, &args, "fake-2", "val_loss").as_deref(), Some(""));
    }
    // a run that has no row yet hides no other
    Fake { losses: Vec::new(), val: Vec::new(), status: "created", ..Fake::new("fake-3", 1, 1e-2, 3.0) }
        .write(&lab.path("runs"));
    let found = json(&lab, &["--align", "step"]);
    assert_eq!(
        (&found["cut"]["at"], run(&found, "fake-3")["status"].as_str()),
        (&json!(8), Some("interrupted"))
    );
    fs::remove_dir_all(lab.path("runs/fake-3")).expect("removed");
    // at an evaluation nothing is interpolated, and without --align there is no such column
    let found = json(&lab, &["--align", "step", "--at", "8"]);
    assert_eq!(
        (&run(&found, "fake-0")["metrics"]["val_loss"], &run(&found, "fake-0")["interpolated"]),
        (&json!(5), &json!([]))
    );
    assert_eq!(csv(&lab, &[], "fake-0", "interpolated"), None);
    let beyond = text(&lab, &["--align", "step", "--at", "9"]);
    assert!(
        beyond.contains("fake-0, fake-1 and fake-2: it ended before the point of comparison"),
        "{beyond}"
    );
}

/// Replaces a line of a run's recipe.
fn edit(run: &Path, from: &str, to: &str) {
    let file = run.join("recipe.toml");
    let text = fs::read_to_string(&file).expect("a recipe");
    assert!(text.contains(from), "{text}");
    fs::write(file, text.replace(from, to)).expect("writable");
}

#[test]
fn runs_that_were_evaluated_on_other_data_are_not_ranked_against_each_other() {
    let lab = Lab::new();
    for (i, (val, last)) in
        [("a.bin", 3.0), ("a.bin", 3.5), ("b.bin", 1.0), ("b.bin", 1.5)].into_iter().enumerate()
    {
        for seed in 1..=3 {
            let noise = seed as f64 / 100.0;
            let fake = Fake::new(&format!("fake-{i}{seed}"), seed, 1e-3 * (i + 1) as f64, last + noise);
            let run = fake.write(&lab.path("runs"));
            edit(&run, "train = [\"x.bin\"]", &format!("train = [\"x.bin\"]\nval = [\"{val}\"]"));
        }
    }
    let found = json(&lab, &[]);
    let tests = found["tests"].as_array().expect("tests");
    let label = |at: &Value| {
        found["groups"][at.as_u64().expect("a place") as usize]["label"].as_str().expect("a label")
    };
    let mut pairs: Vec<(&str, &str)> =
        tests.iter().map(|test| (label(&test["better"]), label(&test["other"]))).collect();
    pairs.sort_unstable();
    let pair = |val: &str, better: &str, other: &str| {
        (format!("val [\"{val}\"], lr {better}"), format!("val [\"{val}\"], lr {other}"))
    };
    let expected = [pair("a.bin", "1e-3", "2e-3"), pair("b.bin", "3e-3", "4e-3")];
    assert_eq!(pairs, expected.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>());
    // on the way to a target, other data are told of once, for tokens and seconds together
    let told =
        json(&lab, &["--target", "val_loss=9", "--metrics", "tokens_to_val_loss=9,seconds_to_val_loss=9"]);
    let notes: Vec<&str> =
        told["notes"].as_array().expect("notes").iter().filter_map(Value::as_str).collect();
    let of_data = notes.iter().filter(|note| note.contains("measured on different data"));
    assert_eq!(of_data.count(), 1, "{notes:?}");
    // set by set, the best of each first
    let sets: Vec<&Value> = found["runs"].as_array().expect("runs").iter().map(|run| &run["set"]).collect();
    assert_eq!(sets, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
    let sorted = json(&lab, &["--sort", "val_loss", "--reverse"]);
    let sets: Vec<u64> =
        sorted["runs"].as_array().expect("runs").iter().filter_map(|run| run["set"].as_u64()).collect();
    assert!(sets.len() == 12 && sets.is_sorted(), "{sets:?}");
    assert!(found["notes"][0].as_str().is_some_and(|note| note.contains("data.val")), "{found:#}");
    let said = text(&lab, &[]);
    assert!(said.contains("val_loss was measured on different data (data.val)"), "{said}");
    assert!(said.lines().any(|line| line.starts_with("run ") && line.contains(" set ")), "{said}");
    assert_eq!(csv(&lab, &[], "fake-31", "set").as_deref(), Some("2"));
    // speed has nothing to do with it
    let speed = json(&lab, &["--by", "tokens_per_s"]);
    assert!(speed["runs"].as_array().expect("runs").iter().all(|run| run["set"] == 0), "{speed:#}");
    // but the losses beside it are no more alike for that
    let beside =
        "val_loss was measured on different data (data.val), so it says nothing about which is better";
    let notes = speed["notes"].as_array().expect("notes");
    assert!(notes.len() == 1 && notes[0].as_str().is_some_and(|note| note.starts_with(beside)), "{notes:#?}");
    assert_eq!(json(&lab, &["--by", "tokens_per_s", "--metrics", "tokens_per_s"])["notes"], json!([]));
}

#[test]
fn other_bytes_under_the_same_name_and_other_lengths_of_evaluations_count_as_other_data() {
    let lab = Lab::new();
    let write = |i: u64, extra: Value| {
        let fake = Fake { extra, ..Fake::new(&format!("fake-{i}"), i, 1e-3, 3.0) };
        let run = fake.write(&lab.path("runs"));
        edit(
            &run,
            "train = [\"x.bin\"]",
            "train = [\"x.bin\"]\nval = [\"v.bin\"]\n\n[model]\nblock_size = 32",
        );
    };
    write(1, json!({"digests": {"train": "t", "val": "one"}}));
    write(2, json!({"digests": {"train": "t", "val": "two"}}));
    let said = text(&lab, &[]);
    assert!(said.contains("different data (data.val)") && !said.contains("replicas"), "{said}");
    write(2, json!({"digests": {"train": "t", "val": "one"}, "plan": {"eval_rows": 20}}));
    write(1, json!({"digests": {"train": "t", "val": "one"}, "plan": {"eval_rows": 10}}));
    let said = text(&lab, &[]);
    assert!(said.contains("different data (evaluated tokens)"), "{said}");
    // the training loss depends on the training data alone
    let said = text(&lab, &["--by", "loss"]);
    assert!(!said.contains("\nloss was measured on different data"), "{said}");
    // but these two seeds have no mean of the other one
    let note = "val_loss and best_val_loss of its seeds were measured on different data (evaluated tokens)";
    assert!(said.contains(note), "{said}");
    write(1, json!({"digests": {"train": "t", "val": "one"}, "plan": {"eval_rows": 20}}));
    assert!(!text(&lab, &[]).contains("different data"));
}

#[test]
fn losses_per_token_of_different_tokenizers_are_not_ranked_against_each_other() {
    let lab = Lab::new();
    for i in 1..=6 {
        let (lr, last) = if i <= 3 { (1e-3, 3.0) } else { (2e-3, 1.0) };
        let extra = json!({"digests": {"train": "t", "val": "v"}});
        let fake = Fake { extra, ..Fake::new(&format!("fake-{i}"), i, lr, last + 0.01 * i as f64) };
        let run = fake.write(&lab.path("runs"));
        if i > 3 {
            edit(&run, "train = [\"x.bin\"]", "train = [\"x.bin\"]\ntokenizer = \"char\"");
        }
    }
    for metric in ["val_loss", "loss"] {
        let found = json(&lab, &["--by", metric]);
        assert_eq!(found["tests"], json!([]), "{metric}");
        let said = text(&lab, &["--by", metric]);
        assert!(said.contains("loss was measured on different data (data.tokenizer)"), "{said}");
    }
    // nor is a way in tokens the same
    let note = "runs differ in data.tokenizer: as many tokens are other amounts of text";
    let only = ["--metrics", "val_loss"];
    assert!(!text(&lab, &only).contains(note));
    for args in [["--metrics", "tokens_per_s"], ["--target", "loss=5"]] {
        assert!(text(&lab, &args).contains(note), "{args:?}");
    }
    for (axis, is_said) in [("tokens", true), ("step", false)] {
        text(&lab, &[&only[..], &["--y", "val_loss", "--x", axis, "--plot", "a.svg"]].concat());
        assert_eq!(
            report_support::prose(&fs::read_to_string(lab.path("a.svg")).expect("drawn")).contains(note),
            is_said
        );
    }
}

#[test]
fn a_copy_of_a_run_is_no_further_seed() {
    let lab = Lab::new();
    let runs = lab.path("runs");
    for (i, lasts) in [[3.0, 3.4], [3.1, 3.5]].into_iter().enumerate() {
        for (seed, last) in (1..).zip(lasts) {
            Fake::new(&format!("fake-{i}{seed}"), seed, 1e-3 * (i + 1) as f64, last).write(&runs);
        }
    }
    let before = json(&lab, &[]);
    for copy in 2..=6 {
        let of = |id: &str| json!({"id": id});
        Fake { extra: of("fake-01"), ..Fake::new(&format!("copy-0{copy}"), 1, 1e-3, 3.0) }.write(&runs);
        Fake { extra: of("fake-12"), ..Fake::new(&format!("copy-1{copy}"), 2, 2e-3, 3.5) }.write(&runs);
    }
    // where it ran, and with how many seconds of patience, makes no other seed of it either
    let other =
        Fake { extra: json!({"host": "elsewhere"}), ..Fake::new("timeout-07", 1, 1e-3, 3.0) }.write(&runs);
    edit(&other, "[compute]", "[distributed]\ntimeout_s = 5\n\n[compute]");
    let found = json(&lab, &[]);
    assert_eq!(found["tests"], before["tests"], "the same seeds, the same statistics");
    let groups = found["groups"].as_array().expect("groups");
    let n: Vec<&Value> = groups.iter().map(|group| &group["metrics"]["val_loss"]["n"]).collect();
    assert_eq!(n, [2, 2]);
    let mut copies: Vec<usize> =
        groups.iter().map(|group| group["copies"].as_array().map_or(0, Vec::len)).collect();
    copies.sort_unstable();
    assert_eq!(copies, [5, 6]);
    let said = text(&lab, &[]);
    assert!(
        said.contains("have the recipe and the seed of fake-01: that is no further seed, and counts once"),
        "{said}"
    );
    assert!(said.contains("copy-02, copy-03, copy-04, copy-05, copy-06 and timeout-07 have"), "{said}");
    assert!(!said.contains("came to another"), "{said}");
    // nor does a version that computes otherwise, of which it is told
    Fake::new("zother", 1, 1e-3, 3.25).write(&runs);
    let said = text(&lab, &[]);
    assert!(said.contains("counts once, though zother came to another "), "{said}");
    assert!(said.contains(" (3.2500 instead of 3.0000): another processor, device"), "{said}");
    // copies alone are no replicas
    let alone = Lab::new();
    for id in ["a", "b", "c"] {
        Fake::new(id, 1, 1e-3, 3.0).write(&alone.path("runs"));
    }
    let said = text(&alone, &[]);
    assert!(
        !said.contains("replicas") && said.contains("b and c have the recipe and the seed of a"),
        "{said}"
    );
    alone.run(["compare", "runs", "--plot", "a.svg"]).expect(0);
    let drawn = fs::read_to_string(alone.path("a.svg")).expect("drawn");
    assert!(!drawn.contains("n = 3") && !drawn.contains("bands"), "{drawn}");
}

#[test]
fn of_two_runs_of_one_seed_the_one_that_was_evaluated_counts() {
    let lab = Lab::new();
    for (id, seed) in [("a-1", 1), ("b-1", 1), ("a-2", 2)] {
        let run = Fake::new(id, seed, 1e-3, 3.0).write(&lab.path("runs"));
        if id != "a-1" {
            let row = format!("4,1024,now,fp32,,,poems=cc,0.{}", seed + 1);
            fs::write(
                run.join("eval.csv"),
                format!("step,tokens,evaluated,precision,data,data_tokens,measured,poems_acc\n{row}\n"),
            )
            .expect("a log");
        }
    }
    for more in [&[][..], &["--align", "step", "--at", "4"]] {
        let found = json(&lab, &[&["--metrics", "poems_acc", "--by", "poems_acc"], more].concat());
        let group = &found["groups"][0];
        assert_eq!(group["metrics"]["poems_acc"]["n"], 2, "{group:#}");
        assert_eq!(group["copies"], json!(["a-1"]), "{group:#}");
    }
}

/// Two learning rates with two seeds each, and an `eval.csv` of each run with this cell of `measured`.
fn asked(lab: &Lab, measured: [&str; 4]) {
    for (i, measured) in measured.into_iter().enumerate() {
        let seed = i as u64 % 2 + 1;
        let lr = 1e-3 * (i / 2 + 1) as f64;
        let run = Fake::new(&format!("fake-{i}"), seed, lr, 3.0).write(&lab.path("runs"));
        let (header, cell) = match measured {
            "" => ("step,tokens,evaluated,precision,data,data_tokens", String::new()),
            on => ("step,tokens,evaluated,precision,data,data_tokens,measured", format!(",{on}")),
        };
        let name = if i == 3 { "b.bin" } else { "a.bin" };
        let text = format!(
            "{header},perplexity,poems_acc\n4,1024,now,fp32,{name},64{cell},{},0.{}\n",
            30 + i + i % 2,
            5 + i
        );
        fs::write(run.join("eval.csv"), text).expect("a file");
    }
}

#[test]
fn what_eval_measured_on_other_data_is_neither_ranked_nor_averaged_nor_tested_together() {
    let by = |metric: &'static str| ["--metrics", "perplexity,poems_acc", "--by", metric];
    let lab = Lab::new();
    let on = |data: &str, poems: &str| format!("val_loss={data}:64;poems={poems}");
    let [a, b, c] = [on("aa", "cc"), on("bb", "cc"), on("aa", "dd")];
    // all alike
    asked(&lab, [&a, &a, &a, &a]);
    let found = json(&lab, &by("perplexity"));
    assert_eq!((found["notes"].clone(), found["tests"].as_array().map(Vec::len)), (json!([]), Some(1)));
    // each group by itself
    asked(&lab, [&a, &a, &b, &b]);
    let found = json(&lab, &by("perplexity"));
    assert_eq!(found["tests"], json!([]), "{found:#}");
    assert_eq!(["fake-0", "fake-2"].map(|id| run(&found, id)["set"].clone()), [json!(0), json!(1)]);
    assert_eq!(run(&found, "fake-2")["sets"], json!({"perplexity": 1}));
    assert!(found["groups"][1]["metrics"]["perplexity"]["mean"].is_number(), "{found:#}");
    assert_eq!(csv(&lab, &by("perplexity"), "fake-2", "set").as_deref(), Some("2"));
    let said = text(&lab, &by("perplexity"));
    assert!(said.contains("perplexity was measured on different data (data): 2 sets of runs"), "{said}");
    let said = text(&lab, &by("poems_acc"));
    assert!(
        said.contains("perplexity was measured on different data (data)")
            && said.contains("between (fake-1 and fake-0) and (fake-3 and fake-2)")
            || said.contains("between (fake-3 and fake-2) and (fake-1 and fake-0)"),
        "{said}"
    );
    // seeds of one recipe
    asked(&lab, [&a, &c, &a, &a]);
    let found = json(&lab, &by("poems_acc"));
    assert_eq!(found["tests"], json!([]), "{found:#}");
    let group = |id: &str| {
        let groups = found["groups"].as_array().expect("groups").iter();
        groups.clone().find(|group| group["runs"].to_string().contains(id)).expect("there")["metrics"].clone()
    };
    assert!(group("fake-0")["poems_acc"].is_null() && group("fake-0")["perplexity"]["n"] == 2, "{found:#}");
    assert_eq!(group("fake-2")["poems_acc"]["n"], 2);
    let said = text(&lab, &by("poems_acc"));
    let note = "lr 1e-3: poems_acc of its seeds was measured on different data (the task's examples as tokens), so \
                there is no mean and no test";
    assert!(said.contains(note), "{said}");
}

#[test]
fn what_an_earlier_version_evaluated_is_told_apart_by_the_names_of_its_data() {
    let lab = Lab::new();
    asked(&lab, ["", "", "", ""]);
    let args = ["--metrics", "perplexity,poems_acc", "--by", "perplexity"];
    let found = json(&lab, &args);
    let sets = ["fake-0", "fake-1", "fake-2", "fake-3"].map(|id| run(&found, id)["set"].clone());
    assert!(sets[..3].iter().all(|set| *set == sets[0]) && sets[3] != sets[0], "{sets:?}");
    let said = text(&lab, &args);
    for part in [
        "an earlier version wrote perplexity to eval.csv without a digest",
        "the names of the data and the number of tokens tell them apart",
        "an earlier version wrote poems_acc",
        "lr 2e-3: perplexity of its seeds was measured on different data (data)",
    ] {
        assert!(said.contains(part), "`{part}` is missing:\n{said}");
    }
}

#[test]
fn labels_of_groups_name_what_tells_them_apart() {
    let lab = Lab::new();
    let labels = || -> Vec<String> {
        let found = json(&lab, &["--sort", "given"]);
        let groups = found["groups"].as_array().expect("groups");
        groups.iter().map(|group| group["label"].as_str().expect("a label").to_owned()).collect()
    };
    let write = |i: u64, seed: u64, lr: f64, train: &str| {
        let extra = json!({"digests": {"train": train}});
        Fake { extra, ..Fake::new(&format!("fake-{i}"), seed, lr, 3.0) }.write(&lab.path("runs"))
    };
    // how often one seed was validated tells no group from another
    let run = write(1, 1, 1e-3, "t");
    edit(&run, "[compute]", "[eval]\nevery = 10\n\n[compute]");
    let run = write(2, 2, 1e-3, "t");
    edit(&run, "[compute]", "[eval]\nevery = 20\n\n[compute]");
    let run = write(3, 1, 2e-3, "t");
    edit(&run, "[compute]", "[eval]\nevery = 10\n\n[compute]");
    assert_eq!(labels(), ["lr 1e-3", "lr 2e-3"]);
    // a copy of the data elsewhere is the same, and other data are named
    edit(&lab.path("runs/fake-2"), "x.bin", "copy/x.bin");
    let run = write(3, 1, 1e-3, "u");
    edit(&run, "[compute]", "[eval]\nevery = 10\n\n[compute]");
    edit(&run, "x.bin", "y.bin");
    assert_eq!(labels(), ["train [\"x.bin\"]", "train [\"y.bin\"]"]);
    // even under the same name
    edit(&run, "y.bin", "x.bin");
    assert_eq!(labels(), ["train [\"x.bin\"] (fake-1)", "train [\"x.bin\"] (fake-3)"]);
}

#[test]
fn seeds_that_were_scored_on_other_examples_have_no_mean() {
    let lab = Lab::new();
    for (seed, digest) in [(1, "cc"), (2, "dd")] {
        let extra = json!({"digests": {"train": "t", "task_poems": digest}});
        let fake = Fake { extra, ..Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0) };
        let run = fake.write(&lab.path("runs"));
        let val = format!("step,tokens,val_loss,poems_acc\n0,0,9,0.1\n4,1024,3.5,0.{seed}\n");
        fs::write(run.join("val.csv"), val).expect("a file");
    }
    let found = json(&lab, &["--metrics", "val_loss,poems_acc"]);
    let metrics = &found["groups"][0]["metrics"];
    assert!(metrics["poems_acc"].is_null() && metrics["val_loss"]["n"] == 2, "{found:#}");
    assert_eq!(metrics["val_loss"]["sd"], 0);
    lab.run(["compare", "runs", "--plot", "a.svg", "--y", "poems_acc"]).expect(0);
    let drawn = prose(&fs::read_to_string(lab.path("a.svg")).expect("drawn"));
    assert!(drawn.contains("no mean of poems_acc where seeds were evaluated on different data"), "{drawn}");
}

#[test]
fn a_log_that_a_finished_run_did_not_write_is_named() {
    let lab = Lab::new();
    let [mine, other] = ["seed=1", "seed=2"].map(|seed| lab.train(&[seed]));
    let said = lab.run(["compare", "runs"]);
    assert!(!said.expect(0).stderr.contains("not as the run has written it"), "{}", said.stderr);
    for log in ["train.csv", "val.csv"] {
        let own = fs::read(mine.join(log)).expect("a log");
        fs::copy(other.join(log), mine.join(log)).expect("copied");
        for command in ["compare", "list"] {
            let said = lab.run([command].iter().chain((command == "compare").then_some(&"runs")));
            let file = format!("{}/{log}", mine.file_name().and_then(|id| id.to_str()).expect("an id"));
            said.expect(0).says(&[&file, "is not as the run has written it"]);
        }
        fs::write(mine.join(log), own).expect("written");
    }
    assert!(!lab.run(["compare", "runs"]).expect(0).stderr.contains("not as the run has written it"));
}

#[test]
fn a_run_whose_data_were_changed_counts_in_no_mean() {
    let lab = Lab::new();
    report_support::sweep(&lab.path("runs"));
    let changed = Fake::new("fake-13", 3, 3e-3, 0.001);
    let extra = json!({"data_changed": true, "error": "`x.bin` was changed while it is in use"});
    Fake { status: "failed", extra, ..changed }.write(&lab.path("runs"));
    for args in [&["--align", "step", "--at", "4"][..], &["--target", "val_loss=4"], &[]] {
        let found = json(&lab, args);
        let groups = found["groups"].as_array().expect("groups");
        let metric = if args.first() == Some(&"--target") { "steps_to_val_loss=4" } else { "loss" };
        let counted: Vec<_> =
            groups.iter().filter_map(|group| group["metrics"][metric]["n"].as_u64()).collect();
        assert!(
            counted.contains(&2) && counted.iter().all(|n| [2, 3].contains(n)),
            "{args:?}: {counted:?} {found:#}"
        );
        assert_eq!(run(&found, "fake-13")["complete"], false);
        let said = text(&lab, args);
        assert!(said.contains("fake-13: its data were changed while it was trained"), "{said}");
        assert!(!said.contains("did not come as far"), "{said}");
    }
}
