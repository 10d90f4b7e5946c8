//! `--dry-run` and the state of a run in `plan`: what a call would do, found out without doing it.

use crate::support;

use serde_json::{Value as Json, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use support::{Ended, Lab, as_nobody, everything, tiny};

/// The call with `--dry-run`, which must leave everything in the directory of runs as it is.
fn rehearsed(lab: &Lab, args: &[String]) -> Ended {
    let state = || lab.path("runs").exists().then(|| everything(&lab.path("runs")));
    let before = state();
    let ended = lab.run(args.iter().map(String::as_str).chain(["--dry-run"]));
    assert!(state() == before, "something changed");
    ended
}

fn plan(lab: &Lab, sets: &[&str]) -> (String, Json) {
    let args = || ["plan".to_owned()].into_iter().chain(tiny("runs", sets));
    let text = lab.run(args());
    let line = text.expect(0).stdout.lines().find(|line| line.starts_with("directory")).expect("a line");
    let json = lab.run(args().chain(["--format".to_owned(), "json".to_owned()]));
    let json: Json = serde_json::from_str(&json.expect(0).stdout).expect("JSON");
    (line.trim_start_matches("directory").trim().to_owned(), json["run"].clone())
}

#[test]
fn what_is_not_begun_would_be_trained_where_it_is_said() {
    let lab = Lab::new();
    let dry = rehearsed(&lab, &tiny("runs", &[]));
    dry.expect(0).says(&["step 0 of 12", "model", "memory", "would train 12 steps from the beginning"]);
    assert!(!lab.path(dry.stdout.trim_end()).exists(), "nothing is made");
    let (text, json) = plan(&lab, &[]);
    let id = dry.stdout.trim_end().strip_prefix("runs/").expect("a directory").to_owned();
    assert_eq!(text, format!("runs/{id}, not begun"));
    assert_eq!((&json["id"], &json["state"]), (&json!(id), &json!("not begun")));
    assert_eq!(json["directory"], json!(format!("runs/{id}")));
    // it is what the real call prints
    assert_eq!(lab.run(tiny("runs", &[])).expect(0).stdout, dry.stdout);
    assert_eq!(plan(&lab, &[]).0, format!("runs/{id}, finished"));
}

#[test]
fn an_interrupted_run_would_go_on_from_its_checkpoint() {
    let lab = Lab::new();
    let run = lab.crash("runs", &[], "csv.before_row:12");
    let shown = format!("runs/{}", run.file_name().expect("a name").to_str().expect("UTF-8"));
    let (text, json) = plan(&lab, &[]);
    assert_eq!(
        text,
        format!("{shown}, interrupted after 9 of 12 steps: goes on from its checkpoint of step 8")
    );
    let expected = json!({ "state": "interrupted", "steps_done": 9, "checkpoint": 8, "process": null });
    for (key, value) in expected.as_object().expect("keys") {
        assert_eq!(&json[key], value, "{key}");
    }
    let would = format!("{shown}: would train 4 steps from {shown}/checkpoints/step-00000008");
    for args in [tiny("runs", &[]), vec!["--resume".to_owned(), shown.clone()]] {
        let dry = rehearsed(&lab, &args);
        dry.expect(0).says(&["step 8 of 12", &would]);
        assert_eq!(dry.stdout, format!("{shown}\n"));
    }
    // the call writes a recipe again that is gone, and goes on without a record
    for gone in [&["recipe.toml"][..], &["run.json"], &["recipe.toml", "run.json"]] {
        let away = |from: &Path, to: &Path| {
            gone.iter().for_each(|name| fs::rename(from.join(name), to.join(name)).expect("moved"));
        };
        away(&run, &lab.path(""));
        rehearsed(&lab, &tiny("runs", &[])).expect(0).says(&["step 8 of 12", &would]);
        assert!(plan(&lab, &[]).0.ends_with("goes on from its checkpoint of step 8"), "{gone:?}");
        away(&lab.path(""), &run);
    }
    // what is damaged is told and left alone
    let newest = run.join("checkpoints/step-00000008/model.safetensors");
    let mut bytes = fs::read(&newest).expect("read");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(&newest, bytes).expect("written");
    rehearsed(&lab, &tiny("runs", &[])).expect(0).says(&["corrupted", "step 4 of 12", "would train 8 steps"]);
    fs::remove_dir_all(run.join("checkpoints/step-00000004")).expect("removed");
    let lost = rehearsed(&lab, &tiny("runs", &[]));
    lost.expect(1).says(&["its only checkpoint is not intact", "--fresh"]);
    assert_eq!(lab.run(tiny("runs", &[])).expect(1).stdout, lost.stdout);
    let mut fresh = tiny("runs", &[]);
    fresh.push("--fresh".to_owned());
    let fresh = rehearsed(&lab, &fresh);
    fresh
        .expect(0)
        .says(&["would be discarded; it is interrupted after 9 of 12 steps", "would train 12 steps from"]);
}

#[test]
fn what_is_in_the_place_of_a_file_is_found_by_the_rehearsal_too() {
    let lab = Lab::new();
    for name in ["lock", "train.csv", "val.csv", "samples.txt", "checkpoints"] {
        let run = lab.crash("runs", &[], "csv.before_row:12");
        let elsewhere = lab.path("elsewhere");
        // texts are generated in some runs only
        fs::rename(run.join(name), &elsewhere).or_else(|_| fs::write(&elsewhere, "")).expect("moved");
        symlink(&elsewhere, run.join(name)).expect("a link");
        let both = [rehearsed(&lab, &tiny("runs", &[])), lab.run(tiny("runs", &[]))];
        for ended in &both {
            ended.expect(1).says(&[name, "link"]);
        }
        assert_eq!(both[0].stdout, both[1].stdout, "{name}");
        fs::remove_file(run.join(name)).expect("the link");
        fs::rename(&elsewhere, run.join(name)).expect("moved back");
        fs::remove_dir_all(&run).expect("removed");
    }
    // samples that no run has written, where a checkpoint of the beginning says nothing of them
    let run = lab.crash("runs", &[], "csv.before_row:2");
    fs::write(run.join("samples.txt"), "zz\n").expect("written");
    let args = tiny("runs", &[]);
    let both = [rehearsed(&lab, &args), lab.run(&args)];
    for ended in &both {
        ended.expect(1).says(&["does not begin with a sample"]);
    }
    assert_eq!(both[0].stdout, both[1].stdout);
    fs::remove_dir_all(&run).expect("removed");
    // what is discarded may be anything, and of a finished run the record counts
    let call = |name: &str, inside: &[&str], more: &[&str]| {
        let run = lab.train(&["schedule.max_steps=4"]);
        fs::remove_file(run.join(name)).expect("removed");
        fs::create_dir(run.join(name)).expect("a directory");
        inside.iter().for_each(|inside| fs::write(run.join(name).join(inside), "mine").expect("written"));
        let args: Vec<String> = tiny("runs", &["schedule.max_steps=4"])
            .into_iter()
            .chain(more.iter().map(|arg| (*arg).to_owned()))
            .collect();
        let codes = [rehearsed(&lab, &args), lab.run(&args)].map(|ended| ended.code.expect("a code"));
        fs::remove_dir_all(&run).expect("removed");
        codes
    };
    assert_eq!(call("run.json", &[], &["--fresh"]), [0, 0]);
    assert_eq!(call("recipe.toml", &[], &[]), [0, 0]);
    // but what no run has written
    assert_eq!(call("train.csv", &["notes"], &["--fresh"]), [1, 1]);
    // a run that would begin behind a link
    let id = rehearsed(&lab, &tiny("runs", &[])).expect(0).stdout.trim_end().to_owned();
    fs::create_dir(lab.path("behind")).expect("a directory");
    symlink(lab.path("behind"), lab.path(&id)).expect("a link");
    for ended in [rehearsed(&lab, &tiny("runs", &[])), lab.run(tiny("runs", &[]))] {
        ended.expect(1).says(&[&id, "link"]);
    }
}

#[test]
fn ended_runs_end_the_rehearsal_as_they_end_the_call() {
    let lab = Lab::new();
    lab.train(&["schedule.max_steps=4"]);
    let done = rehearsed(&lab, &tiny("runs", &["schedule.max_steps=4"]));
    done.expect(0).says(&["already finished"]);
    assert!(!done.stderr.contains("would train"), "{}", done.stderr);
    let mut fresh = tiny("runs", &["schedule.max_steps=4"]);
    fresh.push("--fresh".to_owned());
    rehearsed(&lab, &fresh)
        .expect(0)
        .says(&["would be discarded; it is finished", "would train 4 steps from"]);
    let wild = ["optimizer.lr=1e30", "optimizer.clip_norm=0.0"];
    lab.run(tiny("runs", &wild)).expect(4);
    rehearsed(&lab, &tiny("runs", &wild)).expect(4).says(&["would diverge again"]);
    let (text, json) = plan(&lab, &wild);
    assert!(text.contains(", diverged at step "), "{text}");
    assert_eq!(json["state"], json!("diverged"));
    // what is wrong with a recipe is wrong in a rehearsal
    rehearsed(&lab, &tiny("runs", &["model.n_layers=3"])).expect(2).says(&["unknown key"]);
    rehearsed(&lab, &tiny("runs", &["data.train=none.bin"])).expect(2).says(&["none.bin"]);
    let huge = ["model.n_layer=100", "model.n_embd=20000"];
    rehearsed(&lab, &tiny("runs", &huge)).expect(2).says(&["not even a micro_batch of 1 fits"]);
    let text = plan(&lab, &["data.train=none.bin"]);
    assert_eq!((text.0.starts_with("known once the data can be opened"), text.1), (true, Json::Null));
}

#[test]
fn a_live_run_is_seen_and_not_disturbed() {
    let lab = Lab::new();
    let sets = ["schedule.max_steps=100000000", "eval.every=0", "checkpoint.every=0"];
    let (mut live, gate) = lab.held(lab.command(tiny("runs", &sets)), "csv.before_row:3");
    gate.reached();
    let run = lab.only_run("runs");
    assert_eq!(support::rows(&run), 2);
    let id = live.id();
    let dry = rehearsed(&lab, &tiny("runs", &sets));
    dry.expect(3).says(&["being written by process", &id.to_string()]);
    assert_eq!(dry.stdout.lines().count(), 1, "as the call itself: {}", dry.stdout);
    let mut fresh = tiny("runs", &sets);
    fresh.push("--fresh".to_owned());
    rehearsed(&lab, &fresh).expect(3);
    rehearsed(&lab, &["--resume".to_owned(), run.to_str().expect("UTF-8").to_owned()]).expect(3);
    let (text, json) = plan(&lab, &sets);
    assert!(text.contains(&format!(", trained now by process {id} on ")), "{text}");
    assert!(text.ends_with(": 2 of 100,000,000 steps done"), "{text}");
    assert_eq!((&json["state"], &json["steps_done"]), (&json!("running"), &json!(2)));
    assert!(json["process"].as_str().is_some_and(|text| text.starts_with(&format!("process {id} "))));
    assert!(live.kill());
    gate.open();
}

#[test]
fn several_recipes_are_rehearsed_in_order() {
    let lab = Lab::new();
    for (name, lr) in [("a", "1e-3"), ("b", "2e-3")] {
        let text = format!("extends = \"tiny.toml\"\nname = \"{name}\"\noptimizer.lr = {lr}\n");
        lab.write(&format!("{name}.toml"), text);
    }
    let args = |more: &[&str]| {
        let all = ["a.toml", "b.toml", "--set", "schedule.max_steps=3"].iter().chain(more);
        all.map(|word| (*word).to_owned()).collect::<Vec<_>>()
    };
    let dry = rehearsed(&lab, &args(&[]));
    dry.expect(0).says(&["a-", "b-", "would train 3 steps"]);
    assert_eq!(lab.runs("runs"), [""; 0]);
    assert_eq!(lab.run(args(&[])).expect(0).stdout, dry.stdout);
    let again = rehearsed(&lab, &args(&[]));
    assert_eq!((again.expect(0).stderr.matches("already finished").count(), &again.stdout), (2, &dry.stdout));
    rehearsed(&lab, &args(&["missing.toml"])).expect(2).says(&["missing.toml"]);
}

#[test]
fn what_may_not_be_written_is_found_by_the_rehearsal_too() {
    let lab = Lab::new();
    let run = lab.crash("runs", &[], "csv.before_row:12");
    let id = run.file_name().and_then(|id| id.to_str()).expect("an id");
    for name in ["train.csv", "checkpoints"] {
        let closed = format!("chown -R 65534 . && chmod 755 . && chown -R 0 runs/{id}/{name}");
        let args = tiny("runs", &[]).into_iter().chain(["--dry-run".to_owned()]);
        let Some(dry) = as_nobody(&lab, &closed, args) else { return };
        dry.expect(1).says(&[name, "ermission denied"]);
        assert_eq!(dry.stdout, format!("runs/{id}\n"));
    }
}
