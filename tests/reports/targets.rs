//! `runner compare --target`: the steps, tokens and seconds to a loss or an accuracy, and runs that never got there.

use crate::report_support;
use crate::support;

use report_support::{Fake, rfc4180, violation};
use serde_json::{Value, json};
use std::path::Path;
use support::Lab;

/// Two recipes with three seeds each, evaluated at steps 0, 2 and 4. One run of the first never reaches a loss of 4,
/// and another one passes it between two evaluations; a step has 256 tokens and takes 0.256 s.
fn lab() -> Lab {
    let lab = Lab::new();
    let runs = lab.path("runs");
    for (id, seed, lr, losses) in [
        ("a-1", 1, 1e-3, [6.0, 3.0]),
        ("a-2", 2, 1e-3, [4.0, 3.0]),
        ("a-3", 3, 1e-3, [7.0, 5.0]),
        ("b-1", 1, 3e-3, [6.0, 4.0]),
        ("b-2", 2, 3e-3, [6.0, 3.9]),
        ("b-3", 3, 3e-3, [6.0, 3.5]),
    ] {
        let mut val = vec![(0, 10.0), (2, losses[0]), (4, losses[1])];
        if id.starts_with('b') {
            val.insert(2, (3, 5.0));
        }
        Fake { val, ..Fake::new(id, seed, lr, 3.0) }.write(&runs);
    }
    lab
}

fn text(lab: &Lab, args: &[&str]) -> String {
    lab.run([&["compare", "runs", "--target", "val_loss=4"], args].concat()).expect(0).stdout.clone()
}

fn document(lab: &Lab, args: &[&str]) -> Value {
    let printed = lab.run([&["compare", "runs", "--format", "json"], args].concat()).expect(0).stdout.clone();
    let found: Value = serde_json::from_str(&printed).expect("JSON");
    let schema =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/compare.schema.json"));
    let schema: Value = serde_json::from_str(&schema.expect("a schema")).expect("JSON");
    assert_eq!(violation(&schema, &found, "$"), None);
    found
}

fn run<'a>(found: &'a Value, id: &str) -> &'a Value {
    found["runs"].as_array().expect("runs").iter().find(|run| run["id"] == id).expect("the run")
}

fn ids(found: &Value) -> Vec<&str> {
    found["runs"].as_array().expect("runs").iter().map(|run| run["id"].as_str().expect("an id")).collect()
}

/// As where val.csv was copied without the large train.csv, or while the run went on.
#[test]
fn seconds_that_no_row_tells_are_not_known_and_enter_no_mean() {
    let lab = Lab::new();
    let losses = |steps: usize| vec![3.0; steps];
    for (i, lr) in [1e-3, 3e-3].into_iter().enumerate() {
        for seed in 1..=3u64 {
            let val = vec![(0, 10.0), (2, 6.0), (4, 3.0 + 0.01 * seed as f64)];
            let fake =
                Fake { val, losses: losses(4 - 2 * i), ..Fake::new(&format!("{i}-{seed}"), seed, lr, 3.0) };
            fake.write(&lab.path("runs"));
        }
    }
    let of = |ways: [&str; 2]| {
        let found = document(&lab, &["--target", "val_loss=4", "--by", "seconds_to_val_loss=4"]);
        assert_eq!(found["tests"], json!([]));
        for (id, expected) in ["0-1", "1-1"].into_iter().zip(ways) {
            let way = &run(&found, id)["targets"][0];
            let [steps, seconds] = ["steps", "seconds"].map(|of| way[of].is_number());
            assert_eq!((steps, seconds), (true, expected == "known"), "{id}: {way}");
        }
    };
    of(["known", "unknown"]);
    for seed in 1..=3 {
        std::fs::remove_file(lab.path(format!("runs/0-{seed}/train.csv"))).expect("removed");
    }
    of(["unknown", "unknown"]);
    assert!(!text(&lab, &[]).contains("0.0 s"));
}

#[test]
fn the_way_to_a_target_is_exact_or_interpolated_and_never_counts_for_a_run_that_did_not_get_there() {
    let lab = lab();
    let found = document(&lab, &["--target", "val_loss=4.0"]);
    let expected =
        json!([{ "name": "val_loss=4", "column": "val_loss", "value": 4, "reached_from": "above" }]);
    assert_eq!(found["targets"], expected);
    assert_eq!(found["judged_by"], "tokens_to_val_loss=4");
    // the fewest tokens first, and last what never reached it
    assert_eq!(ids(&found), ["a-2", "a-1", "b-3", "b-2", "b-1", "a-3"]);
    let way = |id: &str| run(&found, id)["targets"][0].clone();
    let exact = |steps: u64, best: u64| {
        json!({ "reached": true, "interpolated": false, "steps": steps, "tokens": steps * 256,
                "seconds": steps as f64 * 0.256, "best": best })
    };
    assert_eq!((way("a-2"), way("b-1")["steps"].clone()), (exact(2, 3), json!(4)));
    // from 6 to 3 over two steps: two thirds of the way
    let between = way("a-1");
    assert_eq!((&between["reached"], &between["interpolated"]), (&json!(true), &json!(true)));
    for (axis, expected) in [("steps", 10.0 / 3.0), ("tokens", 2560.0 / 3.0), ("seconds", 2.56 / 3.0)] {
        let at = between[axis].as_f64().expect("a number");
        assert!((at - expected).abs() < 1e-9, "{axis} {at}");
        let metric = format!("{axis}_to_val_loss=4");
        assert_eq!(run(&found, "a-1")["metrics"][&metric].as_f64(), Some(at));
        assert!(run(&found, "a-1")["interpolated"].as_array().expect("a list").contains(&json!(metric)));
        assert_eq!(run(&found, "a-3")["metrics"][&metric], Value::Null);
    }
    let missed = json!({ "reached": false, "interpolated": false, "steps": null, "tokens": null,
                         "seconds": null, "best": 5 });
    assert_eq!(way("a-3"), missed);
    let groups = found["groups"].as_array().expect("groups");
    let reached = |i: usize| groups[i]["targets"][0].clone();
    assert_eq!(
        (reached(0), reached(1)),
        (json!({"reached": 2, "of": 3, "open": 0}), json!({"reached": 3, "of": 3, "open": 0}))
    );
    let spread = &groups[0]["metrics"]["steps_to_val_loss=4"];
    assert_eq!(spread["n"], 2);
    assert!((spread["mean"].as_f64().expect("a mean") - 8.0 / 3.0).abs() < 1e-9, "{spread}");
    let test = &found["tests"][0];
    assert_eq!((&test["metric"], &test["better"]), (&json!("tokens_to_val_loss=4"), &json!(0)));
    assert!(test["p"].as_f64().is_some_and(|p| p > 0.0 && p < 1.0), "{test}");
    let missed = "val_loss <= 4 is not reached by a-3 (best 5.0000)";
    assert!(found["notes"].as_array().expect("notes").contains(&json!(missed)), "{}", found["notes"]);
}

#[test]
fn people_read_what_was_reached_where_and_by_how_many() {
    let lab = lab();
    let table = text(&lab, &[]);
    assert!(table.contains("target val_loss <= 4: the way to the first evaluation as good"), "{table}");
    let cells = |line: &str| {
        line.split("  ").map(str::trim).filter(|c| !c.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let row = |id: &str| cells(table.lines().find(|line| line.starts_with(id)).expect("a row"));
    let head = cells(table.lines().find(|line| line.starts_with("run ")).expect("a head"));
    let expected = ["run", "seed", "lr", "steps to 4", "tokens to 4", "time to 4", "best val", "tokens/s"];
    assert_eq!(head, expected);
    assert_eq!(row("a-1"), ["a-1", "1", "1e-3", "~3.333", "~853", "~0.9 s", "3.0000", "1,000"]);
    assert_eq!(row("a-2"), ["a-2", "2", "1e-3", "2", "512", "0.5 s", "3.0000", "1,000"]);
    assert_eq!(row("a-3")[3..], ["not reached", "not reached", "not reached", "5.0000", "1,000"]);
    for part in [
        "~ interpolated linearly between the evaluations before and after the target",
        "val_loss <= 4 is not reached by a-3 (best 5.0000)",
        "(2 of 3 reached)",
        "not distinguishable in tokens_to_val_loss=4",
        "1 run that did not reach val_loss <= 4 is left out of means and tests of the way there",
    ] {
        assert!(table.contains(part), "`{part}` is not in\n{table}");
    }
    // a narrow table keeps what it is sorted by
    let narrow = text(&lab, &["--width", "48"]);
    assert!(
        narrow.contains("tokens to 4") && narrow.lines().all(|line| line.chars().count() <= 48),
        "{narrow}"
    );
    let markdown = text(&lab, &["--format", "markdown"]);
    assert!(
        markdown.contains("| a-3 | 3 | 1e-3 | not reached | not reached | not reached | 5.0000 |"),
        "{markdown}"
    );
    assert!(markdown.contains("- val_loss <= 4 is not reached by a-3"), "{markdown}");
    // what else is asked for stands behind
    let asked = text(&lab, &["--metrics", "val_loss,steps"]);
    let head = cells(asked.lines().find(|line| line.starts_with("run ")).expect("a head"));
    assert_eq!(head[3..], ["steps to 4", "tokens to 4", "time to 4", "val loss", "steps"]);
}

#[test]
fn programs_find_the_way_in_columns_of_csv() {
    let lab = lab();
    let ended = lab.run(["compare", "runs", "--format", "csv", "--target", "val_loss=4"]);
    ended.expect(0).says(&["note: val_loss <= 4 is not reached by a-3 (best 5.0000)"]);
    let rows = rfc4180(&ended.stdout);
    let place =
        |name: &str| rows[0].iter().position(|column| column == name).unwrap_or_else(|| panic!("{name}"));
    let cell =
        |id: &str, name: &str| rows.iter().find(|row| row[0] == id).expect("a row")[place(name)].clone();
    assert_eq!(cell("a-2", "steps_to_val_loss=4"), "2");
    assert_eq!(cell("a-2", "seconds_to_val_loss=4"), "0.512");
    assert_eq!(
        (cell("a-3", "tokens_to_val_loss=4"), cell("a-3", "best_val_loss")),
        (String::new(), "5".into())
    );
    assert!(cell("a-1", "interpolated").contains("tokens_to_val_loss=4"));
    assert_eq!(cell("a-2", "interpolated"), "");
    // what was there before is there still, and in its place
    let before = rfc4180(&lab.run(["compare", "runs", "--format", "csv"]).expect(0).stdout);
    let measures = before[0].iter().position(|column| column == "elapsed_s").expect("a column");
    assert_eq!(rows[0][..=measures], before[0][..=measures]);
}

#[test]
fn several_targets_have_columns_and_tests_of_their_own() {
    let lab = lab();
    let found = document(&lab, &["--target", "val_loss=6.5,val_loss=4", "--target", "val_loss=4.0"]);
    let names: Vec<&Value> =
        found["targets"].as_array().expect("a list").iter().map(|t| &t["name"]).collect();
    assert_eq!(names, ["val_loss=6.5", "val_loss=4"]);
    assert_eq!(run(&found, "a-3")["targets"][0]["reached"], true);
    // ways that are further apart than the evaluations
    let apart = Lab::new();
    for (name, lr, losses) in [("a", 1e-3, [6.0, 3.5, 3.0, 3.0]), ("b", 3e-3, [9.0, 8.0, 6.0, 3.5])] {
        for seed in 1..=3u64 {
            let later = losses.map(|loss| loss - 0.1 * seed as f64);
            let val = (0..).zip([10.0].into_iter().chain(later)).collect();
            Fake { val, ..Fake::new(&format!("{name}-{seed}"), seed, lr, 3.0) }.write(&apart.path("runs"));
        }
    }
    let found = document(&apart, &["--target", "val_loss=6.5,val_loss=4"]);
    let tested: Vec<&Value> =
        found["tests"].as_array().expect("a list").iter().map(|t| &t["metric"]).collect();
    assert_eq!(tested, ["tokens_to_val_loss=6.5", "tokens_to_val_loss=4"]);
    // one family of tests
    let [first, second] = [0, 1].map(|i| {
        let p = |name: &str| found["tests"][i][name].as_f64();
        (p("p"), p("p_adjusted"))
    });
    let smaller = if first.0 < second.0 { first } else { second };
    let (p, adjusted) = (smaller.0.expect("a test"), smaller.1.expect("adjusted"));
    assert!((adjusted - (2.0 * p).min(1.0)).abs() < 1e-12, "{p} {adjusted}");
    // a single test where others could have been made is adjusted, too
    for seed in 1..=3u64 {
        let losses = [10.0, 6.01, 3.51, 3.0, 3.0].map(|loss| loss - 0.1 * seed as f64);
        let val = (0..).zip(losses).collect();
        Fake { val, ..Fake::new(&format!("c-{seed}"), seed, 2e-3, 3.0) }.write(&apart.path("runs"));
    }
    let found = document(&apart, &["--target", "val_loss=4"]);
    let tested = found["tests"].as_array().expect("a list").iter().filter(|test| test["p"].is_number());
    assert_eq!(tested.count(), 1, "{}", found["tests"]);
    assert!(found["notes"].to_string().contains("p-values are adjusted"), "{}", found["notes"]);
    // another judge, another order
    let by = document(&lab, &["--target", "val_loss=4", "--by", "val_loss"]);
    assert_eq!((&by["judged_by"], &by["tests"][0]["metric"]), (&json!("val_loss"), &json!("val_loss")));
    let by = document(&lab, &["--target", "val_loss=4", "--by", "seconds_to_val_loss=4.0"]);
    assert_eq!(by["judged_by"], "seconds_to_val_loss=4");
    let sorted = document(&lab, &["--target", "val_loss=4", "--sort", "steps_to_val_loss=4", "--reverse"]);
    assert_eq!(ids(&sorted)[0], "a-3");
    // titles name the columns where there are several
    let both = lab.run(["compare", "runs", "--target", "val_loss=4,loss=7"]).expect(0).stdout.clone();
    assert!(both.contains("steps to val_loss 4") && both.contains("tokens to loss 7"), "{both}");
    assert!(both.contains("loss <= 7: the loss is that of single batches"), "{both}");
    // the third step of 10, 8, 6 is the first: nothing lies between steps
    let found = document(&lab, &["--target", "loss=7"]);
    assert_eq!(run(&found, "a-3")["targets"][0]["steps"], 3);
    assert_eq!(run(&found, "a-3")["targets"][0]["interpolated"], false);
}

#[test]
fn accuracies_are_reached_from_below_and_runs_that_still_train_count_as_far_as_they_came() {
    let lab = Lab::new();
    let runs = lab.path("runs");
    for (id, seed, status, cells) in [
        ("a-1", 1, "finished", ["0.25", "0.35", "0.5"]),
        ("a-2", 2, "interrupted", ["0.25", "", "0.75"]),
        ("a-3", 3, "finished", ["0.25", "0.2", "0.3"]),
    ] {
        let run = Fake { status, ..Fake::new(id, seed, 1e-3, 3.0) }.write(&runs);
        let rows: String =
            [0, 2, 4].iter().zip(cells).map(|(s, c)| format!("{s},{},9,{c}\n", s * 256)).collect();
        std::fs::write(run.join("val.csv"), format!("step,tokens,val_loss,poems_acc\n{rows}"))
            .expect("a file");
    }
    let found = document(&lab, &["--target", "poems_acc=0.5"]);
    assert_eq!(found["targets"][0]["reached_from"], "below");
    assert_eq!(ids(&found), ["a-2", "a-1", "a-3"]);
    let way = |id: &str| run(&found, id)["targets"][0].clone();
    // from 0.25 at step 0 to 0.75 at step 4; the empty cell is no value
    assert_eq!((&way("a-2")["steps"], &way("a-2")["interpolated"]), (&json!(2), &json!(true)));
    assert_eq!((&way("a-1")["steps"], &way("a-1")["interpolated"]), (&json!(4), &json!(false)));
    assert_eq!((&way("a-3")["reached"], &way("a-3")["best"]), (&json!(false), &json!(0.3)));
    assert_eq!(found["groups"][0]["targets"][0], json!({ "reached": 2, "of": 3, "open": 0 }));
    let table = lab.run(["compare", "runs", "--target", "poems_acc=0.5"]).expect(0).stdout.clone();
    assert!(table.contains("poems_acc >= 0.5 is not reached by a-3 (best 30.0 %)"), "{table}");
    // two runs have finished, and the way is that of two others
    let row = table.lines().filter(|line| line.contains(" ± ")).collect::<String>();
    assert!(row.contains("~3 ± 1.414 (2 of 3 reached)"), "{table}");
    // one that may go on has not missed it
    let run = Fake { status: "interrupted", ..Fake::new("a-4", 4, 1e-3, 3.0) }.write(&runs);
    std::fs::write(run.join("val.csv"), "step,tokens,val_loss,poems_acc\n0,0,9,0.25\n").expect("a file");
    let table = lab.run(["compare", "runs", "--target", "poems_acc=0.5"]).expect(0).stdout.clone();
    for says in [
        "not reached by a-3 (best 30.0 %)\n",
        "is not reached yet by a-4",
        "not yet",
        "(2 of 4 reached so far)",
    ] {
        assert!(table.contains(says), "{says}: {table}");
    }
    // a run without the column
    Fake::new("b-1", 1, 3e-3, 3.0).write(&runs);
    let table = lab.run(["compare", "runs", "--target", "poems_acc=0.5"]).expect(0).stdout.clone();
    assert!(table.contains("is reached by b-1 is not known: it has no poems_acc"), "{table}");
}

/// As where a sweep is looked at while it trains: those that have arrived are the sooner ones.
#[test]
fn seeds_that_may_reach_a_target_yet_are_counted_and_their_recipe_is_not_tested() {
    let write = |steps: u64| {
        let lab = Lab::new();
        for (i, lr) in [1e-3, 3e-3].into_iter().enumerate() {
            for seed in 1..=4u64 {
                let is_open = i == 0 && seed > 2;
                let reached = 2 + 4 * i as u64 + seed;
                let end = if is_open { steps } else { 20 };
                let at = |step: u64| if step >= reached && !is_open { 3.5 } else { 9.0 - step as f64 * 0.01 };
                let val = (0..=end).map(|step| (step, at(step))).collect();
                let status = if is_open { "interrupted" } else { "finished" };
                let fake = Fake::new(&format!("fake-{i}{seed}"), seed, lr, 3.0);
                let losses = vec![4.0; 20];
                let run = Fake { status, val, losses, ..fake }.write(&lab.path("runs"));
                let log = std::fs::read_to_string(run.join("train.csv")).expect("a log");
                let kept: Vec<&str> = log.lines().take(end as usize + 1).collect();
                std::fs::write(run.join("train.csv"), kept.join("\n") + "\n").expect("a log");
            }
        }
        (text(&lab, &[]), document(&lab, &["--target", "val_loss=4"]))
    };
    let (said, found) = write(10);
    for expected in
        ["(2 of 4 reached so far)", "so far, and which is sooner is not known: runs that have come as far"]
    {
        assert!(said.contains(expected), "{said}");
    }
    let caveat =
        "2 runs that have not reached val_loss <= 4 yet, though as far as others that have, are left out";
    assert!(said.contains(caveat) && found["notes"].to_string().contains(caveat), "{said}");
    assert_eq!(found["tests"][0]["p"], Value::Null);
    assert_eq!(found["groups"][0]["targets"][0], json!({ "reached": 2, "of": 2, "open": 2 }));
    // of those that have just begun nobody knows
    let (said, found) = write(1);
    assert!(said.contains("(2 of 4 reached so far)") && !said.contains("though as far"), "{said}");
    assert!(found["tests"][0]["p"].is_number());
}

#[test]
fn a_way_that_more_runs_have_gone_than_have_finished_says_how_many() {
    let lab = Lab::new();
    for (id, seed, status) in [("a-1", 1, "finished"), ("a-2", 2, "interrupted")] {
        let val = vec![(0, 10.0), (2, if seed == 1 { 4.0 } else { 6.0 }), (4, 4.0)];
        Fake { status, val, ..Fake::new(id, seed, 1e-3, 3.0) }.write(&lab.path("runs"));
    }
    let table = text(&lab, &[]);
    let (_, replicas) = table.split_once("\nreplicas, ").expect("a table of replicas");
    // one has finished, so one is what the other means are of
    assert!(
        replicas.contains("  1  3 ± 1.414 (2 of 2 reached)  ") && replicas.contains("  4.0000  "),
        "{table}"
    );
    let found = document(&lab, &["--target", "val_loss=4"]);
    assert_eq!(found["groups"][0]["metrics"]["steps_to_val_loss=4"]["n"], 2);
}

#[test]
fn an_alignment_cuts_the_way_too() {
    let lab = lab();
    let at = |axis: &str, at: &str, id: &str| {
        let found = document(&lab, &["--target", "val_loss=4", "--align", axis, "--at", at]);
        run(&found, id)["targets"][0]["reached"].clone()
    };
    assert_eq!((at("step", "3", "a-1"), at("step", "3", "a-2")), (json!(false), json!(true)));
    assert_eq!(at("tokens", "896", "a-1"), json!(true));
    let table = text(&lab, &["--align", "tokens", "--at", "900"]);
    assert!(table.contains("~853") && table.contains("the point of comparison or the target"), "{table}");
}

#[test]
fn recipes_that_reached_a_target_and_ended_before_the_point_are_tested_by_their_ways() {
    let lab = Lab::new();
    for (i, losses) in [vec![9.0, 3.5, 3.0], vec![9.0, 8.0, 3.5, 3.4, 3.3, 3.2]].into_iter().enumerate() {
        for seed in 1..=3u64 {
            let val = (0..).zip(losses.iter().map(|loss| loss - 0.01 * seed as f64)).collect();
            let fake = Fake::new(&format!("fake-{i}{seed}"), seed, [1e-3, 3e-3][i], 3.0);
            Fake { losses: losses.clone(), val, ..fake }.write(&lab.path("runs"));
        }
    }
    let found = document(&lab, &["--target", "val_loss=4", "--align", "step", "--at", "6"]);
    let sets: Vec<&Value> = found["runs"].as_array().expect("runs").iter().map(|run| &run["set"]).collect();
    assert_eq!(sets, [&json!(0); 6], "{found:#}");
    // the first one is behind its last evaluation at step 6
    assert_eq!(found["tests"][0]["better"], json!(0), "{:#}", found["tests"]);
    assert!(found["tests"][0]["p"].as_f64().is_some_and(|p| p < 0.01), "{:#}", found["tests"]);
}

#[test]
fn ways_on_different_validation_data_are_not_ranked_against_each_other() {
    let lab = Lab::new();
    let runs = lab.path("runs");
    for (id, seed, lr, data, last) in [
        ("a-1", 1, 1e-3, "x", 3.0),
        ("a-2", 2, 1e-3, "x", 5.0),
        ("b-1", 1, 3e-3, "y", 2.0),
        ("b-2", 2, 3e-3, "y", 2.5),
    ] {
        let extra = json!({ "digests": { "val": data } });
        Fake { val: vec![(0, 10.0), (4, last)], extra, ..Fake::new(id, seed, lr, 3.0) }.write(&runs);
    }
    let found = document(&lab, &["--target", "val_loss=4"]);
    // each set in its own order, and the run that did not get there stays in its set
    assert_eq!(ids(&found), ["a-1", "a-2", "b-1", "b-2"]);
    let sets: Vec<&Value> = found["runs"].as_array().expect("runs").iter().map(|run| &run["set"]).collect();
    assert_eq!(sets, [&json!(0), &json!(0), &json!(1), &json!(1)]);
    assert_eq!(found["tests"], json!([]));
    let notes = found["notes"].to_string();
    assert!(notes.contains("val_loss was measured on different data"), "{notes}");
}

#[test]
fn what_is_no_target_is_refused() {
    let lab = lab();
    for (target, parts) in [
        ("val_loss", &["`val_loss` is no target", "METRIC=VALUE, such as val_loss=3.28"][..]),
        ("val_loss=low", &["`val_loss=low` is no target"]),
        ("vall_oss=3", &["`vall_oss` is not a metric", "val_loss"]),
        ("tokens_per_s=9", &["`tokens_per_s` says how far or how fast", "a loss or an accuracy"]),
        ("mfu=0.5", &["`mfu` says how far or how fast"]),
    ] {
        lab.run(["compare", "runs", "--target", target]).expect(2).says(parts);
    }
    let run = Fake::new("c-1", 1, 1e-3, 3.0).write(&lab.path("more"));
    std::fs::write(run.join("val.csv"), "step,tokens,val_loss,poems_acc\n0,0,9,0.25\n").expect("a file");
    lab.run(["compare", "more", "--target", "poems_acc=30"])
        .expect(2)
        .says(&["`poems_acc` cannot be 30", "a fraction from 0 to 1"]);
    lab.run(["compare", "runs", "--target", "val_loss=4", "--assert-equal"]).expect(2);
    // reached before the first evaluation of a run that began later
    std::fs::write(run.join("val.csv"), "step,tokens,val_loss\n2,512,3\n4,1024,2\n").expect("a file");
    let table = lab.run(["compare", "more", "--target", "val_loss=4"]).expect(0).stdout.clone();
    assert!(
        table.contains("c-1: val_loss <= 4 by the first evaluation, so it was reached there or before"),
        "{table}"
    );
}

#[test]
fn a_plot_has_a_line_at_the_target_and_ends_where_the_last_run_reaches_it() {
    let lab = Lab::new();
    let runs = lab.path("runs");
    for (id, lr, second) in [("a-1", 1e-3, 4.0), ("b-1", 3e-3, 3.0), ("c-1", 1e-2, 6.0)] {
        let losses: Vec<f64> = (0..400).map(|step| 10.0 - f64::from(step) / 100.0).collect();
        let last = if id == "c-1" { 5.5 } else { 2.0 };
        let val = vec![(0, 10.0), (20, 6.5), (40, second), (400, last)];
        Fake { losses, val, ..Fake::new(id, 1, lr, 3.0) }.write(&runs);
    }
    let plot = |file: &str, args: &[&str]| {
        lab.run([&["compare", "runs", "--plot", file], args].concat()).expect(0);
        std::fs::read_to_string(lab.path(file)).expect("a plot")
    };
    let whole = plot("whole.svg", &["--y", "val_loss"]);
    let cut = plot("cut.svg", &["--target", "val_loss=4"]);
    assert!(whole.contains(">400<") && !whole.contains("dashed: target"), "{whole}");
    assert!(!cut.contains(">400<") && !cut.contains(">100<") && cut.contains(">40<"), "{cut}");
    assert!(cut.contains("val_loss &lt;= 4") && cut.contains("dashed: target"), "{cut}");
    assert!(cut.contains("validation loss (nats per token)"), "the column of the target is shown: {cut}");
    assert!(cut.contains("stroke-dasharray"), "{cut}");
    let tokens = plot("tokens.svg", &["--target", "val_loss=4", "--x", "tokens"]);
    assert!(tokens.contains(">10k<") && !tokens.contains(">20k<"), "{tokens}");
    let time = plot("time.svg", &["--target", "val_loss=4", "--x", "time", "--y", "loss,lr"]);
    assert!(time.contains(">10<") && !time.contains(">20<") && time.contains("val_loss &lt;= 4"), "{time}");
    // nobody gets there: the whole curves
    let missed = plot("missed.svg", &["--target", "val_loss=1"]);
    assert!(missed.contains(">400<") && missed.contains("val_loss &lt;= 1"), "{missed}");
    let page = plot("page.html", &["--target", "val_loss=4"]);
    let (_, data) = page.split_once("<script type=\"application/json\" id=\"data\">").expect("data");
    let data: Value = serde_json::from_str(data.split_once("</script>").expect("its end").0).expect("JSON");
    assert_eq!(data["targets"], json!([{ "column": "val_loss", "value": 4.0, "shown": "val_loss <= 4" }]));
    assert_eq!(data["ends"]["step"], 40);
    assert_eq!(data["quantity"], "val_loss");
    assert!(page.contains("not reached") && page.contains("steps to 4"), "the table is in the page");
    let png = lab.run(["compare", "runs", "--target", "val_loss=4", "--plot", "cut.png"]);
    png.expect(0);
}

/// A line between two evaluations reaches the target later than the curve, by how much depends on the curve.
#[test]
fn where_evaluations_are_further_apart_than_the_ways_there_is_no_test_of_which_is_sooner() {
    let lab = Lab::new();
    let runs = lab.path("runs");
    let write = |every: [usize; 2], losses: [[f64; 3]; 2]| {
        for (i, losses) in losses.into_iter().enumerate() {
            for seed in 1..=3u64 {
                let val = (0..).step_by(2).zip([10.0].into_iter().chain(losses));
                let val = val.filter(|(_, loss)| !loss.is_nan());
                let val: Vec<_> = val.map(|(step, loss)| (step, loss - 0.1 * seed as f64)).collect();
                let fake =
                    Fake { val, ..Fake::new(&format!("{i}-{seed}"), seed, 1e-3 * (i + 1) as f64, 3.0) };
                let recipe = fake.write(&runs).join("recipe.toml");
                let text = std::fs::read_to_string(&recipe).expect("a recipe");
                let text = format!("{text}\n[eval]\nevery = {}\n", every[i]);
                std::fs::write(&recipe, text).expect("a recipe");
            }
        }
    };
    let tested = |every, losses| {
        write(every, losses);
        let found = document(&lab, &["--target", "val_loss=4"]);
        let says = text(&lab, &[]).contains("differ by") && text(&lab, &[]).contains("so there is no test");
        assert_eq!(says, found["tests"][0]["p"].is_null());
        assert_eq!(says, found["tests"][0]["distinguishable"].is_null());
        !says
    };
    // both between steps 2 and 4, or one behind the other
    let (between, apart) = ([[6.0, 3.0, 3.0], [5.0, 3.0, 3.0]], [[6.0, 3.0, 3.0], [6.0, 5.0, 3.0]]);
    assert!(tested([2, 2], apart) && tested([2, 4], apart));
    assert!(!tested([2, 2], between) && !tested([2, 4], between));
    // the one that seems sooner was not evaluated at step 4, and may have been far from the line there
    assert!(!tested([4, 2], [[4.4, f64::NAN, 1.0], [6.0, 4.5, 3.0]]));
}

/// Writes two recipes with three seeds each, of which these are the evaluations.
fn two_recipes(lab: &Lab, evaluations: impl Fn(usize, f64) -> Vec<(u64, f64)>) {
    for i in 0..2 {
        for seed in 1..=3u64 {
            let val = evaluations(i, 0.1 * seed as f64);
            Fake { val, ..Fake::new(&format!("{i}-{seed}"), seed, 1e-3 * (i + 1) as f64, 3.0) }
                .write(&lab.path("runs"));
        }
    }
}

#[test]
fn what_was_reached_by_the_first_evaluation_is_no_figure_to_test() {
    let lab = Lab::new();
    two_recipes(&lab, |i, noise| match i {
        0 => vec![(0, 10.0), (2, 6.0 - noise), (4, 3.0)],
        _ => vec![(4, 3.0 - noise)],
    });
    let found = document(&lab, &["--target", "val_loss=4"]);
    assert!(found["tests"][0]["p"].is_null() && found["tests"][0]["difference"].is_number(), "{found:#}");
    assert!(text(&lab, &[]).contains("which is sooner is not known"), "{}", text(&lab, &[]));
    // the other one was there at its beginning, as this one may have been
    for seed in 1..=3u64 {
        let val = vec![(0, 4.0 - 0.1 * seed as f64), (4, 3.0)];
        Fake { val, ..Fake::new(&format!("0-{seed}"), seed, 1e-3, 3.0) }.write(&lab.path("runs"));
    }
    let found = document(&lab, &["--target", "val_loss=4"]);
    assert!(found["tests"][0]["p"].is_null() && found["tests"][0]["difference"].is_number(), "{found:#}");
}

#[test]
fn a_run_that_counts_in_no_mean_leaves_no_order_open() {
    let lab = Lab::new();
    two_recipes(&lab, |i, noise| {
        let [before, at] = [[4.1, 3.0], [6.0, 4.2]][i];
        vec![(0, 10.0), (2, before), (3, at - noise / 2.0), (4, 2.0 - noise)]
    });
    let is_tested = || document(&lab, &["--target", "val_loss=4"])["tests"][0]["p"].is_number();
    assert!(is_tested());
    // it may have been there before all of the others
    let extra = serde_json::json!({"data_changed": true, "error": "`x.bin` was changed while it is in use"});
    let val = vec![(4, 3.0)];
    Fake { val, extra, status: "failed", ..Fake::new("1-4", 4, 2e-3, 3.0) }.write(&lab.path("runs"));
    let said = text(&lab, &[]);
    assert!(is_tested() && !said.contains("which is sooner is not known"), "{said}");
    assert!(!said.contains("did not reach val_loss"), "{said}");
}

#[test]
fn where_values_at_a_cut_lie_between_evaluations_that_overlap_there_is_no_test() {
    let compared = |of_second: &[(u64, f64)], at: &str| {
        let lab = Lab::new();
        for (i, val) in [&[(0, 10.0), (2, 6.0), (4, 4.0)][..], of_second].into_iter().enumerate() {
            for seed in 1..=3u64 {
                let val = val.iter().map(|(step, loss)| (*step, loss - 0.1 * seed as f64)).collect();
                Fake { val, ..Fake::new(&format!("{i}-{seed}"), seed, 1e-3 * (i + 1) as f64, 3.0) }
                    .write(&lab.path("runs"));
            }
        }
        let args = ["--align", "step", "--at", at];
        let found = document(&lab, &args);
        let said = lab.run([&["compare", "runs"], &args[..]].concat()).expect(0).stdout.clone();
        assert_eq!(said.contains("which is better is not known"), found["tests"][0]["p"].is_null(), "{said}");
        found["tests"][0]["p"].is_number()
    };
    // curves may cross on the way, also where they were evaluated equally often
    assert!(!compared(&[(0, 10.0), (2, 6.2), (4, 4.2)], "3"));
    assert!(!compared(&[(0, 10.0), (4, 4.2)], "3"));
    // at an evaluation, and lower than anything between the other's evaluations
    assert!(compared(&[(0, 10.0), (2, 6.2), (4, 4.2)], "2"));
    assert!(!compared(&[(0, 10.0), (4, 4.2)], "2"));
    assert!(compared(&[(0, 3.5), (4, 3.0)], "3"));
}

#[test]
fn ways_on_different_data_are_not_held_against_each_other_in_notes() {
    let lab = Lab::new();
    for (i, (val, losses)) in [
        ("a", [9.0, 8.0, 5.0, 3.0]),
        ("b", [9.0, 8.0, 5.1, 3.0]),
        ("a", [9.0, 8.0, 5.2, 3.0]),
        ("b", [9.0, 8.0, 5.3, 3.0]),
    ]
    .into_iter()
    .enumerate()
    {
        for seed in 1..=2u64 {
            let val_losses = (0..).zip(losses.map(|loss| loss - 0.01 * seed as f64)).collect();
            let extra = json!({"digests": {"val": val.repeat(64)}});
            let fake = Fake::new(&format!("fake-{i}{seed}"), seed, 1e-3 * (i + 1) as f64, 3.0);
            Fake { val: val_losses, extra, ..fake }.write(&lab.path("runs"));
        }
    }
    let said = lab.run(["compare", "runs", "--target", "val_loss=4,val_loss=6.5"]).expect(0).stdout.clone();
    for target in ["4", "6.5"] {
        let note = format!("tokens_to_val_loss={target}: the ways of ");
        let pairs = said.lines().find_map(|line| line.strip_prefix(&*note)).expect("a note");
        for pair in ["1e-3 and 3e-3", "2e-3 and 4e-3"] {
            let [one, other] = pair.split_once(" and ").map(|(one, other)| [one, other]).expect("a pair");
            let is_pair = |words: &str| words.contains(one) && words.contains(other);
            assert_eq!(pairs.split('(').filter(|words| is_pair(words)).count(), 1, "{pair}: {pairs}");
        }
        assert_eq!(pairs.matches('(').count(), 2, "{pairs}");
    }
}

#[test]
fn runs_that_diverge_after_they_have_reached_a_target_count_and_are_told_of() {
    let lab = lab();
    let note = "1 run that diverged after reaching val_loss <= 4 counts in means and tests of the way there";
    assert!(!text(&lab, &[]).contains(note));
    for (id, losses) in [("b-3", [6.0, 3.5]), ("a-3", [7.0, 5.0])] {
        let val = vec![(0, 10.0), (2, losses[0]), (3, 5.0), (4, losses[1])];
        let lr = if id == "a-3" { 1e-3 } else { 3e-3 };
        Fake { val, status: "diverged", ..Fake::new(id, 3, lr, 3.0) }.write(&lab.path("runs"));
    }
    let said = text(&lab, &[]);
    assert!(said.contains(note) && said.contains("(3 of 3 reached)"), "{said}");
}

/// A run that was never evaluated may have reached a target or not.
#[test]
fn a_run_that_was_not_measured_has_neither_reached_nor_missed_a_target() {
    let lab = Lab::new();
    for (id, seed, lr, val) in [
        ("a-1", 1, 1e-3, vec![(0, 9.0), (4, 3.5)]),
        ("a-2", 2, 1e-3, vec![(0, 9.0), (4, 5.0)]),
        ("b-1", 1, 3e-3, vec![]),
        ("b-2", 2, 3e-3, vec![]),
    ] {
        Fake { val, ..Fake::new(id, seed, lr, 3.0) }.write(&lab.path("runs"));
    }
    let said = lab.run(["compare", "runs", "--target", "val_loss=4"]).expect(0).stdout.clone();
    let row = |id: &str| said.lines().find(|line| line.starts_with(id)).expect("a row").to_owned();
    assert!(row("a-2").contains("not reached") && !row("b-1").contains("not reached"), "{said}");
    assert!(said.contains("whether val_loss <= 4 is reached by b-1 and b-2 is not known"), "{said}");
    assert!(said.contains("1 of 2 reached") && !said.contains("0 of 2 reached"), "{said}");
    let found = document(&lab, &["--target", "val_loss=4"]);
    let groups = found["groups"].as_array().expect("groups").iter();
    let of: Vec<&Value> = groups.map(|group| &group["targets"][0]["of"]).collect();
    assert_eq!(of, [2, 0]);
}

/// A run whose tasks were taken away before it ended may have reached an accuracy afterwards.
#[test]
fn a_run_that_was_trained_on_after_its_last_evaluation_has_neither_reached_nor_missed_a_target() {
    let lab = Lab::new();
    for (id, seed, last) in [("a-1", 1, 4), ("a-2", 2, 2)] {
        let run = Fake::new(id, seed, 1e-3, 3.0).write(&lab.path("runs"));
        let rows: Vec<String> = [0, 2, 4]
            .iter()
            .map(|step| {
                let acc = if *step <= last { format!("0.{}", step + 1) } else { String::new() };
                format!("{step},{},4,{acc}\n", step * 256)
            })
            .collect();
        std::fs::write(run.join("val.csv"), format!("step,tokens,val_loss,poems_acc\n{}", rows.concat()))
            .expect("a log");
    }
    let said = lab.run(["compare", "runs", "--target", "poems_acc=0.9"]).expect(0).stdout.clone();
    let row = |id: &str| said.lines().find(|line| line.starts_with(id)).expect("a row").to_owned();
    assert!(row("a-1").contains("not reached") && row("a-2").contains("not known"), "{said}");
    assert!(said.contains("0 of 1 reached"), "{said}");
    let why = "whether poems_acc >= 0.9 is reached is not known of runs whose poems_acc was last measured before their \
               end: a-2 (best 30.0 %)";
    assert!(said.contains(why) && said.contains("is not reached by a-1 (best 50.0 %)"), "{said}");
    let found = document(&lab, &["--target", "poems_acc=0.9"]);
    assert_eq!(found["groups"][0]["targets"][0], json!({ "reached": 0, "of": 1, "open": 0 }));
    // what was reached before is known
    let said = lab.run(["compare", "runs", "--target", "poems_acc=0.3"]).expect(0).stdout.clone();
    assert!(!said.contains("not known"), "{said}");
}
