//! `runner compare`: what differs, what came of it, and whether that is more than noise.

use crate::report_support;
use crate::support;

use report_support::{Fake, many, rfc4180, sweep, violation};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use support::{Lab, ended};

fn lab() -> Lab {
    let lab = Lab::new();
    sweep(&lab.path("runs"));
    lab
}

fn json(lab: &Lab, args: &[&str]) -> Value {
    let ended = lab.run([&["compare"], args, &["--format", "json"]].concat());
    ended.expect(0);
    serde_json::from_str(&ended.stdout).expect("JSON")
}

#[test]
fn only_what_differs_has_a_column_and_the_best_comes_first() {
    let lab = lab();
    let ended = lab.run(["compare", "runs"]);
    ended.expect(0);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(
        lines[0].starts_with("6 runs share: ") && lines[0].contains("schedule.max_steps = 4"),
        "{}",
        lines[0]
    );
    let head: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(head[..3], ["run", "seed", "lr"]);
    assert!(lines[3].starts_with("fake-11  "), "{}", lines[3]);
    assert!(!ended.stdout.contains("precision") && !ended.stdout.contains("status"), "{}", ended.stdout);
    assert!(ended.stdout.contains("lr 3e-3 is lower than lr 1e-3 in val_loss by 1.0000 (Welch's t = "));
    assert!(ended.stdout.contains("3.5017 ± 0.0189"), "{}", ended.stdout);
    // one run alone has nothing that differs
    let alone = lab.run(["compare", "fake-01", "--metrics", "loss"]);
    assert_eq!(alone.expect(0).stdout.lines().nth(2), Some("run        loss"));
}

#[test]
fn runs_are_named_by_directory_glob_prefix_and_each_counts_once() {
    let lab = lab();
    lab.write("runs/README.md", "no run");
    for (names, n) in [
        (&["runs"][..], 6),
        (&["runs/fake-0*", "fake-01"], 3),
        (&["fake-1"], 3),
        (&["*-?2"], 2),
        (&["runs/fake-01", "./runs/fake-01", "runs/README.md"], 1),
    ] {
        let found = json(&lab, names);
        assert_eq!(found["runs"].as_array().map(Vec::len), Some(n), "{names:?}");
    }
    lab.run(["compare", "nothing"]).expect(2).says(&["`nothing` is not a run", "runner list"]);
    lab.run(["compare", "runs", "--metrics", "los"]).expect(2).says(&["`los` is not a metric", "val_loss"]);
    lab.run(["compare", "runs", "--sort", "optimizer.lt"]).expect(2).says(&["optimizer.lt", "optimizer.lr"]);
    lab.run(["compare", "runs", "--plot", "x.pdf"]).expect(2).says(&["x.pdf", ".svg"]);
}

#[test]
fn one_seed_each_is_no_evidence() {
    let lab = Lab::new();
    for (i, last) in [3.0, 4.0].into_iter().enumerate() {
        Fake::new(&format!("fake-{i}"), 1, 1e-3 * (i + 1) as f64, last).write(&lab.path("runs"));
    }
    let said = lab.run(["compare", "runs"]).expect(0).stdout.clone();
    assert!(said.contains("one seed each") && said.contains("--set seed="), "{said}");
    assert!(!said.contains("Welch"), "{said}");
    // a second seed of one of them is not enough for a test
    Fake::new("fake-2", 2, 1e-3, 3.1).write(&lab.path("runs"));
    let found = json(&lab, &["runs"]);
    assert_eq!(
        (&found["tests"][0]["p"], &found["tests"][0]["distinguishable"]),
        (&Value::Null, &Value::Null)
    );
    let said = lab.run(["compare", "runs"]).expect(0).stdout.clone();
    assert!(said.contains("with 2 and 1 seed: whether that is real cannot be said"), "{said}");
}

#[test]
fn what_noise_explains_is_not_called_a_difference() {
    let lab = Lab::new();
    for (i, lasts) in [[3.0, 3.4, 3.2], [3.1, 3.5, 3.3]].into_iter().enumerate() {
        for (seed, last) in lasts.into_iter().enumerate() {
            let fake = Fake::new(&format!("fake-{i}{seed}"), seed as u64, 1e-3 * (i + 1) as f64, last);
            fake.write(&lab.path("runs"));
        }
    }
    let said = lab.run(["compare", "runs"]).expect(0).stdout.clone();
    assert!(said.contains("are not distinguishable in val_loss (0.1000 apart"), "{said}");
    assert!(said.contains("a difference of this size would take about 64 seeds each, 61 more"), "{said}");
    let test = &json(&lab, &["runs"])["tests"][0];
    assert_eq!((&test["distinguishable"], &test["seeds_needed"]), (&json!(false), &json!(64)));
}

#[test]
fn seeds_that_would_settle_it_do_not_grow_with_those_of_the_larger_group() {
    // 0.06 apart, with deviations of 0.027 and 0.0205: scipy's noncentral distribution has a power of 0.83 with 4
    // seeds each, of 0.62 with 3
    for (seeds, second, advice) in [
        (12, 2, "about 4 seeds each, 2 more of lr 2e-3\n"),
        (3, 2, "about 4 seeds each, 1 more of lr 1e-3 and 2 more of lr 2e-3\n"),
    ] {
        let lab = Lab::new();
        for (i, (seeds, mean, deviation)) in
            [(seeds, 3.0, 0.027), (second, 3.06, 0.0205)].into_iter().enumerate()
        {
            let middle = f64::from(seeds - 1) / 2.0;
            let places: Vec<f64> = (0..seeds).map(|seed| f64::from(seed) - middle).collect();
            let spread = places.iter().map(|place| place * place).sum::<f64>() / f64::from(seeds - 1);
            for (seed, place) in places.iter().enumerate() {
                let last = mean + deviation * place / spread.sqrt();
                let fake = Fake::new(&format!("fake-{i}{seed}"), seed as u64, 1e-3 * (i + 1) as f64, last);
                fake.write(&lab.path("runs"));
            }
        }
        let said = lab.run(["compare", "runs"]).expect(0).stdout.clone();
        assert!(said.contains("are not distinguishable") && said.contains(advice), "{said}");
        assert_eq!(json(&lab, &["runs"])["tests"][0]["seeds_needed"], json!(4));
    }
}

#[test]
fn of_many_verdicts_the_first_are_shown_and_what_to_know_of_them_always() {
    let lab = Lab::new();
    many(&lab.path("runs"));
    let caveats = [
        "p-values are adjusted for all pairs of recipes (Holm): the best was chosen by the same values",
        "14 runs that are not finished are left out",
    ];
    for format in ["table", "markdown"] {
        let said = lab.run(["compare", "runs", "--format", format]).expect(0).stdout.clone();
        assert_eq!(said.matches("Welch's t = ").count(), 12, "{said}");
        let (_, rest) = said.split_once("2 more: --format json\n").expect("where the others are");
        assert!(caveats.iter().all(|caveat| rest.contains(caveat)), "{rest}");
    }
    let found = json(&lab, &["runs"]);
    let schema: Value =
        serde_json::from_str(include_str!("../../docs/compare.schema.json")).expect("a schema");
    assert_eq!(violation(&schema, &found, "$"), None);
    let notes = found["notes"].as_array().expect("notes");
    for caveat in caveats {
        let is_it = |note: &&Value| note.as_str().is_some_and(|note| note.contains(caveat));
        assert_eq!(notes.iter().filter(is_it).count(), 1, "{caveat}: {notes:?}");
    }
    assert_eq!(found["tests"].as_array().map(Vec::len), Some(14));
}

#[test]
fn one_of_many_tests_takes_more_seeds_than_a_single_one() {
    let lab = Lab::new();
    many(&lab.path("runs"));
    // 0.04 apart with a deviation of 0.0141: scipy's noncentral distribution has a power of 0.82 with 8 seeds at the
    // level over all 105 pairs, of 0.68 with 7, and at the whole level of 0.91 with 4
    let needed = |runs: &[&str]| json(&lab, runs)["tests"][0]["seeds_needed"].clone();
    assert_eq!((needed(&["runs"]), needed(&["fake-0-*", "fake-1-*"])), (json!(8), json!(4)));
    let said = lab.run(["compare", "runs"]).expect(0).stdout.clone();
    assert!(said.contains("a difference of this size would take about 8 seeds each, 6 more"), "{said}");
}

#[test]
fn groups_that_do_not_vary_are_among_the_pairs() {
    let lab = Lab::new();
    let groups = [[3.0; 3], [3.3; 3], [3.2, 3.25, 3.2], [3.4, 3.3, 3.5], [3.5, 3.4, 3.6]];
    for (i, losses) in groups.iter().enumerate() {
        for (seed, last) in (1..).zip(losses) {
            let lr = 1e-3 * (i + 1) as f64;
            Fake::new(&format!("fake-{i}-{seed}"), seed, lr, *last).write(&lab.path("runs"));
        }
    }
    // nine pairs of which one varies at least, of ten; the best is tested in three of them
    let found = json(&lab, &["runs"]);
    let of = |test: &Value| test["p"].as_f64().zip(test["p_adjusted"].as_f64());
    let mut tests: Vec<(f64, f64)> =
        found["tests"].as_array().expect("tests").iter().filter_map(of).collect();
    tests.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert_eq!(tests.len(), 3);
    let (p, adjusted) = tests[0];
    assert!((adjusted - 9.0 * p).abs() < 1e-12, "{p} {adjusted}");
}

#[test]
fn unfinished_runs_count_only_where_they_are_aligned() {
    let lab = lab();
    let mut crashed = Fake::new("fake-14", 4, 3e-3, 9.0);
    (crashed.status, crashed.extra) = ("failed", json!({"error": "the disk is full"}));
    let run = crashed.write(&lab.path("runs"));
    let mut file = fs::OpenOptions::new().append(true).open(run.join("train.csv")).expect("a log");
    file.write_all(b"4,12").expect("a torn line");
    let ended = lab.run(["compare", "runs"]);
    ended.expect(0).says(&["fake-14: failed: the disk is full"]);
    assert!(ended.stdout.contains("1 run that is not finished is left out"), "{}", ended.stdout);
    let n = |args: &[&str], group: usize| json(&lab, args)["groups"][group]["metrics"]["loss"]["n"].clone();
    assert_eq!(n(&["runs"], 0), 3);
    let aligned = &["runs", "--align", "step", "--at", "3", "--by", "loss", "--sort", "optimizer.lr"];
    assert_eq!((n(aligned, 0), n(aligned, 1)), (json!(3), json!(4)));
    let found = json(&lab, aligned);
    assert!(found["runs"].as_array().expect("runs").iter().all(|run| run["metrics"]["loss"] == 6));
    assert_eq!(found["cut"], json!({"axis": "step", "at": 3}));
    for (axis, at, says) in [
        ("step", "nan", "a number that is 0 or more"),
        ("time", "inf", "a number that is 0 or more"),
        ("tokens", "-1", "a number that is 0 or more"),
        ("step", "2.5", "--at 2.5: steps are counted in whole numbers"),
        ("tokens", "0.5", "--at 0.5: tokens are counted in whole numbers"),
    ] {
        lab.run(["compare", "runs", "--align", axis, "--at", at]).expect(2).says(&[at, says]);
    }
    // without --at, where the shortest ends
    Fake { losses: vec![10.0, 8.0], ..Fake::new("fake-05", 5, 1e-3, 0.0) }.write(&lab.path("runs"));
    for (axis, at) in [("step", json!(2)), ("tokens", json!(512)), ("time", json!(0.512))] {
        assert_eq!(json(&lab, &["runs", "--align", axis])["cut"]["at"], at);
    }
}

#[test]
fn replicas_are_in_the_order_of_their_means_and_not_of_their_luckiest_seeds() {
    let lab = Lab::new();
    for (id, seed, lr, last) in [
        ("lucky-1", 1, 1e-3, 2.5),
        ("lucky-2", 2, 1e-3, 3.5),
        ("fair-1", 1, 2e-3, 2.8),
        ("fair-2", 2, 2e-3, 2.9),
    ] {
        Fake::new(id, seed, lr, last).write(&lab.path("runs"));
    }
    let groups = |args: &[&str]| {
        let found = json(&lab, &[&["runs", "--by", "loss"], args].concat());
        assert_eq!(found["runs"][0]["id"], if args.is_empty() { "lucky-1" } else { "lucky-2" });
        let labels = found["groups"].as_array().expect("groups").iter();
        labels.map(|group| group["label"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    let best_first = groups(&[]);
    assert!(best_first[0].contains("2e-3") && best_first.len() == 2, "{best_first:?}");
    assert_eq!(groups(&["--reverse"]), [best_first[1].clone(), best_first[0].clone()]);
}

#[test]
fn a_best_run_of_one_seed_keeps_no_others_from_being_compared() {
    let lab = Lab::new();
    sweep(&lab.path("runs"));
    let test = |lab: &Lab, place: usize| json(lab, &["runs", "--by", "loss"])["tests"][place].clone();
    let alone = test(&lab, 0);
    assert!(alone["p"].is_number(), "{alone}");
    Fake::new("lone", 1, 5e-3, 2.0).write(&lab.path("runs"));
    let (of_lone, again) = (test(&lab, 0), test(&lab, 1));
    assert_eq!((&of_lone["better"], &of_lone["other"], &of_lone["p"]), (&json!(0), &json!(1), &Value::Null));
    assert_eq!((&again["better"], &again["other"]), (&json!(1), &json!(2)));
    for name in ["p", "p_adjusted", "interval", "difference"] {
        assert_eq!(again[name], alone[name], "{name}");
    }
}

#[test]
fn a_mean_of_fewer_seeds_than_its_row_counts_says_of_how_many() {
    let lab = Lab::new();
    for (id, seed, last, poems) in
        [("a-1", 1, "3.5", "0.25"), ("a-2", 2, "NaN", "0.75"), ("a-3", 3, "4.5", "")]
    {
        let run = Fake::new(id, seed, 1e-3, 3.0).write(&lab.path("runs"));
        let rows = format!("step,tokens,val_loss,poems_acc\n0,0,9,0.25\n4,1024,{last},{poems}\n");
        // the last evaluation of one had no score
        let rows = if poems.is_empty() { rows.replace("9,0.25", "9,") } else { rows };
        fs::write(run.join("val.csv"), rows).expect("a file");
    }
    let args = ["compare", "runs", "--metrics", "loss,val_loss,best_val_loss,poems_acc"];
    let table = lab.run(args).expect(0).stdout.clone();
    let (_, replicas) = table.split_once("\nreplicas, ").expect("a table of replicas");
    for part in ["3.0000 ± 0.0000  ", "  4.0000 ± 0.7071 (2 of 3)  ", "  50.0 % ± 35.4 (2 of 3)"] {
        assert!(replicas.contains(part), "`{part}` is not in\n{table}");
    }
    assert!(!replicas.contains("(3 of 3)"), "{table}");
    let page = lab.run([&args[..], &["--plot", "page.html"]].concat());
    page.expect(0);
    let page = fs::read_to_string(lab.path("page.html")).expect("a page");
    assert!(page.contains("4.0000 ± 0.7071 (2 of 3)"), "the page has the same table");
    assert!(!page.contains("compared after"));
    // figures before the end say so wherever they go
    let cut = [&args[..], &["--align", "step", "--at", "1"]].concat();
    lab.run([&cut[..], &["--plot", "page.html"]].concat()).expect(0);
    assert!(fs::read_to_string(lab.path("page.html")).expect("a page").contains("compared after 1 steps"));
    let csv = lab.run([&cut[..], &["--format", "csv"]].concat());
    csv.expect(0).says(&["note: compared after 1 steps"]);
    let rows: Vec<&str> = csv.stdout.lines().skip(1).collect();
    assert!(rows.iter().all(|row| row.contains("compared after 1 steps")), "{rows:?}");
}

#[test]
fn logs_and_recipes_of_other_versions_are_read_as_far_as_they_go() {
    let lab = lab();
    let runs = lab.path("runs");
    fs::write(runs.join("fake-01/train.csv"), "step,loss,novelty\n0,5,x\n1,nonsense,y\n2,4,z\n")
        .expect("write");
    fs::remove_file(runs.join("fake-01/val.csv")).expect("remove");
    fs::write(runs.join("fake-02/run.json"), r#"{"format_version": 99}"#).expect("write");
    fs::write(runs.join("fake-03/recipe.toml"), "seed = 3\n[future]\nkey = \"new\"\n").expect("write");
    let ended = lab.run(["compare", "runs", "--format", "json"]);
    ended.expect(0).says(&["1 malformed rows", "fake-02/run.json", "format version 99"]);
    let found: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let run = |id: &str| {
        found["runs"].as_array().expect("runs").iter().find(|r| r["id"] == id).expect("there").clone()
    };
    let old = run("fake-01");
    assert_eq!(old["metrics"]["loss"], 4);
    assert_eq!((&old["metrics"]["steps"], &old["metrics"]["tokens"]), (&json!(3), &Value::Null));
    assert_eq!(run("fake-03")["differing"]["future.key"], "new");
    assert_eq!(run("fake-03")["metrics"]["loss"], 4.015);
}

#[test]
fn csv_is_rfc_4180_to_other_readers() {
    let lab = lab();
    let odd = Fake::new("fake,\"odd\"\n1", 9, 1e-3, 2.0);
    odd.write(&lab.path("runs"));
    let ended = lab.run(["compare", "runs", "--format", "csv"]);
    let text = &ended.expect(0).stdout;
    let records = rfc4180(text);
    assert_eq!(records.len(), 8);
    assert_eq!(records[0][..4], ["run", "seed", "optimizer.lr", "status"]);
    assert_eq!(records[1][0], odd.id, "the best is the first");
    let column = records[0].iter().position(|name| name == "val_loss").expect("a column");
    assert_eq!(records[1][column], "2.5");
}

#[test]
#[ignore = "needs python3"]
fn csv_is_read_by_pythons_strict_reader() {
    let lab = lab();
    Fake::new("fake,\"odd\"\n1", 9, 1e-3, 2.0).write(&lab.path("runs"));
    let text = &lab.run(["compare", "runs", "--format", "csv"]).expect(0).stdout.clone();
    let mut python = Command::new("python3")
        .args([
            "-c",
            "import csv,sys,json; json.dump(list(csv.reader(open(0, newline=''), strict=True)), sys.stdout)",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    python.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("python reads");
    let output = python.wait_with_output().expect("python ends");
    let theirs: Vec<Vec<String>> = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(theirs, rfc4180(text));
}

#[test]
fn json_follows_the_committed_schema() {
    let lab = lab();
    let committed = include_str!("../../docs/compare.schema.json");
    let printed = lab.run(["schema", "compare"]).expect(0).stdout.clone();
    assert!(committed == printed, "refresh it: runner schema compare > docs/compare.schema.json");
    let schema: Value = serde_json::from_str(committed).expect("JSON");
    let mut odd = Fake::new("fake-99", 1, 1e-3, f64::NAN);
    (odd.status, odd.extra) = ("diverged", json!({"error": "at step 3 the loss is NaN", "emulated": true}));
    odd.write(&lab.path("runs"));
    fs::create_dir(lab.path("runs/empty")).expect("a directory");
    fs::write(lab.path("runs/empty/recipe.toml"), "").expect("a file");
    for args in [
        &["runs"][..],
        &["runs", "--align", "step", "--at", "2"],
        &["fake-99"],
        &["runs", "--metrics", "gain,speedup"],
    ] {
        let found = json(&lab, args);
        assert_eq!(violation(&schema, &found, ""), None, "{args:?}");
    }
    let found = json(&lab, &["fake-99"]);
    assert_eq!(
        (&found["runs"][0]["metrics"]["loss"], &found["runs"][0]["emulated"]),
        (&json!("NaN"), &json!(true))
    );
    assert!(violation(&schema, &json!({"format_version": 1}), "").is_some());
    let mut other = found;
    other["runs"][0]["metrics"]["loss"] = json!("words");
    assert!(violation(&schema, &other, "").is_some_and(|found| found.contains("loss")));
    // a column of another version
    let val = lab.path("runs/fake-99/val.csv");
    let lines = fs::read_to_string(&val).expect("a log");
    let lines = lines.lines().enumerate();
    let wider: String =
        lines.map(|(i, line)| format!("{line},{}\n", if i == 0 { "poems_acc" } else { "0.5" })).collect();
    fs::write(&val, wider).expect("writable");
    let mut found = json(&lab, &["runs", "--metrics", "val_loss,poems_acc", "--by", "poems_acc"]);
    assert_eq!(violation(&schema, &found, ""), None);
    assert_eq!(
        (&found["judged_by"], &found["runs"][0]["metrics"]["poems_acc"]),
        (&json!("poems_acc"), &json!(0.5))
    );
    found["runs"][0]["metrics"]["poems_acc"] = json!("words");
    assert!(violation(&schema, &found, "").is_some_and(|found| found.contains("poems_acc")));
}

#[test]
fn a_table_fits_the_width_and_says_what_it_leaves_out() {
    let lab = Lab::new();
    for (i, lr) in [5e-4, 1e-3, 2e-3].into_iter().enumerate() {
        for seed in 1..=2 {
            let id = format!("small-{i}{seed}aa{i}{seed}bb");
            let last = 3.0 + i as f64 / 10.0 + seed as f64 / 100.0;
            let fake = Fake { tokens_per_s: 700.0 + last, ..Fake::new(&id, seed, lr, last) };
            fake.write(&lab.path("runs"));
        }
    }
    let piped = lab.run(["compare", "runs"]).expect(0).stdout.clone();
    assert!(piped.lines().any(|line| line.chars().count() > 120) && !piped.contains("not shown"), "{piped}");
    assert_eq!(lab.run(["compare", "runs", "--wide"]).expect(0).stdout, piped);
    for width in [60, 80, 120] {
        let text = lab.run(["compare", "runs", "--width", &width.to_string()]).expect(0).stdout.clone();
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
        let head = text.lines().find(|line| line.starts_with("run ")).expect("a head");
        assert!(["seed", "lr", "val loss"].iter().all(|title| head.contains(title)), "{head}");
        let rows = text.lines().filter(|line| line.starts_with("small-")).count();
        assert_eq!(rows, 6, "names in full: {text}");
    }
    let text = lab.run(["compare", "runs", "--width", "60"]).expect(0).stdout.clone();
    let told =
        text.split("\n\n").find(|part| part.starts_with("not shown: ")).expect("a line").replace('\n', " ");
    assert!(
        told.contains("in every row") && told.contains("steps 4") && told.contains("best (as loss)"),
        "{told}"
    );
    assert!(told.contains("--wide") && told.contains("--metrics"), "{told}");
    // what is asked for by name is shown
    let asked = ["compare", "runs", "--width", "60", "--metrics", "steps,tokens,loss,best_loss,memory_bytes"];
    let text = lab.run(asked).expect(0).stdout.clone();
    assert!(["steps", "tokens", "best", "memory"].iter().all(|title| text.contains(title)), "{text}");
    for format in ["csv", "json", "markdown"] {
        let narrow =
            lab.run(["compare", "runs", "--format", format, "--width", "40"]).expect(0).stdout.clone();
        assert_eq!(narrow, lab.run(["compare", "runs", "--format", format]).expect(0).stdout, "{format}");
    }
}

#[test]
fn what_a_name_contains_is_shown_and_not_obeyed() {
    let lab = Lab::new();
    for (i, id) in ["a\u{1b}[31mred", "b\u{1b}]0;title\u{7}"].into_iter().enumerate() {
        Fake { val: vec![(0, 9.0)], ..Fake::new(id, 1, 1e-3, 3.0 + i as f64) }.write(&lab.path("runs"));
    }
    for args in
        [&["compare", "runs"][..], &["compare", "runs", "--align", "step"], &["list"], &["list", "--wide"]]
    {
        for format in ["table", "markdown"] {
            let ended = lab.run([args, &["--format", format]].concat());
            let printed = format!("{}{}", ended.expect(0).stdout, ended.stderr);
            let raw = printed.chars().find(|c| c.is_control() && *c != '\n');
            assert_eq!(raw, None, "{args:?} {format}: {printed:?}");
        }
    }
}

#[test]
fn emulated_precisions_are_marked() {
    let lab = Lab::new();
    let runs = lab.path("runs");
    Fake::new("fake-1", 1, 1e-3, 3.0).write(&runs);
    let bf16 = Fake { precision: "bf16", tokens_per_s: 1500.0, ..Fake::new("fake-2", 1, 1e-3, 3.1) };
    Fake { extra: json!({"emulated": true}), ..bf16 }.write(&runs);
    let args = [
        "compare",
        "fake-1",
        "fake-2",
        "--sort",
        "given",
        "--metrics",
        "tokens_per_s,speedup,gain",
        "--format",
    ];
    let ended = lab.run([&args[..], &["markdown"]].concat());
    let rows: Vec<&str> = ended.expect(0).stdout.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(
        rows,
        [
            "| run | precision | tokens/s | speed-up | gain |",
            "| --- | --- | ---: | ---: | ---: |",
            "| fake-1 | fp32 | 1,000 | 1.00x |  |",
            "| fake-2 | bf16 (emulated) | 1,500 | 1.50x | 1.50x |",
        ]
    );
}

#[test]
fn equality_is_asserted_on_what_the_recipe_decides() {
    let lab = Lab::new();
    let runs = lab.path("runs");
    let fake = |id: &str, last: f64, tokens_per_s: f64| {
        Fake { tokens_per_s, ..Fake::new(id, 1, 1e-3, last) }.write(&runs);
    };
    fake("a", 3.0, 1000.0);
    fake("b", 3.0, 700.0);
    fake("c", 3.0003, 1000.0);
    let equal = |args: &[&str]| lab.run([&["compare", "--assert-equal"], args].concat());
    equal(&["a", "b"]).expect(0).says(&["equal"]);
    let differs = equal(&["a", "b", "c"]);
    differs
        .expect(1)
        .says(&["runs/a and runs/c: train.csv differs first at step 3, column loss: 3 and 3.0003"]);
    equal(&["a", "c", "--rtol", "1e-3"]).expect(0);
    equal(&["a", "c", "--rtol", "1e-5"]).expect(1);
    equal(&["a"]).expect(2).says(&["needs two runs"]);
    // a job that died at once has left no run
    fs::create_dir(lab.path("empty")).expect("a directory");
    equal(&["a", "b", "empty"]).expect(1).says(&["runs/a and runs/b: equal", "`empty` is not a run"]);
    // and one that has lost its recipe is not passed over
    fake("d-01234567", 4.0, 1000.0);
    fs::remove_file(runs.join("d-01234567/recipe.toml")).expect("removed");
    equal(&["runs"]).expect(1).says(&["runs/d-01234567: train.csv differs"]);
    // however it is named
    for named in ["d-01234567", "runs/d-01234567"] {
        assert!(lab.run(["list", named]).expect(0).stdout.contains("d-01234567"));
        equal(&["a", named]).expect(1).says(&["train.csv differs"]);
    }
    lab.run(["list", "d-01234567", "--remove", "--yes"]).expect(0);
    assert!(!runs.join("d-01234567").exists());
    equal(&["a", "b", "--rtol", "-1"]).expect(2);
}

#[test]
fn trained_runs_are_compared_while_they_are_written() {
    let lab = Lab::new();
    let first = lab.train(&[]);
    lab.train_in("again", &[]);
    let name = first.file_name().expect("a name").to_string_lossy().into_owned();
    let again = format!("again/{name}");
    lab.run(["compare", "--assert-equal", &name, &again]).expect(0);
    lab.train(&["seed=2"]);
    let found = json(&lab, &["tiny"]);
    assert_eq!(found["differing"], json!(["seed"]));
    let live = support::tiny("runs", &["seed=3", "schedule.max_steps=100000", "compute.threads=1"]);
    let mut live = lab.start(live);
    support::wait("rows of all three", || {
        let runs = lab.runs("runs");
        runs.len() == 3 && runs.iter().all(|id| support::rows(&lab.path("runs").join(id)) > 0)
    });
    let found = json(&lab, &["tiny"]);
    let running: Vec<&Value> =
        found["runs"].as_array().expect("runs").iter().filter(|r| r["status"] == "running").collect();
    assert_eq!(running.len(), 1);
    assert!(running[0]["metrics"]["steps"].as_u64() > Some(0));
    live.kill();
    let _ = live.end();
    let shown = ended(lab.command(["compare", "tiny"]));
    assert!(shown.stdout.contains("interrupted"), "{}", shown.stdout);
}

#[test]
fn a_recipe_from_before_a_key_says_what_the_default_says() {
    let lab = Lab::new();
    for seed in 1..=4 {
        let run = Fake::new(&format!("fake-{seed}"), seed, 1e-3, 3.0).write(&lab.path("runs"));
        let recipe = fs::read_to_string(run.join("recipe.toml")).expect("a recipe");
        if seed > 2 {
            let newer = recipe.replace("[data]", "[model]\ndropout = 0.0\n\n[data]");
            fs::write(run.join("recipe.toml"), newer).expect("a recipe");
        }
    }
    let compared = |lab: &Lab| -> Value {
        let ended = lab.run(["compare", "runs", "--format", "json"]);
        serde_json::from_str(&ended.expect(0).stdout).expect("JSON")
    };
    let found = compared(&lab);
    assert_eq!((&found["differing"], found["groups"].as_array().map(Vec::len)), (&json!(["seed"]), Some(1)));
    assert_eq!(found["shared"]["model.dropout"], 0.0);
    // another value is another recipe
    let recipe = lab.path("runs/fake-4/recipe.toml");
    let text = fs::read_to_string(&recipe).expect("a recipe").replace("dropout = 0.0", "dropout = 0.1");
    fs::write(&recipe, text).expect("a recipe");
    let found = compared(&lab);
    assert_eq!(
        (found["differing"][1].as_str(), found["groups"].as_array().map(Vec::len)),
        (Some("model.dropout"), Some(2))
    );
}
