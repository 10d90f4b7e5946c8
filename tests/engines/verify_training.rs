//! Training with `compute.engine = "dfdx"`: everything but the speed is as with the fused engine.

use crate::log_support;
use crate::verify_support;

use std::fs;
use std::path::Path;
use verify_support::Place;

const DFDX: [&str; 2] = ["compute.engine=dfdx", "compute.attention=naive"];

/// A CSV log's columns and rows.
fn csv(path: &Path) -> (Vec<String>, Vec<Vec<String>>) {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    (lines.next().expect("a header"), lines.collect())
}

fn column(path: &Path, name: &str) -> Vec<f64> {
    let (names, rows) = csv(path);
    let at = names.iter().position(|n| n == name).expect("the column exists");
    rows.iter().map(|row| row[at].parse().expect("a number")).collect()
}

/// The columns that a recipe determines.
fn deterministic(run: &Path) -> String {
    log_support::deterministic(&fs::read_to_string(run.join("train.csv")).expect("a log"))
}

/// The largest relative difference of two columns.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

#[test]
fn the_reference_trains_like_the_fused_engine() {
    let place = Place::new();
    let fused = place.train("fused", &DFDX[1..]);
    let dfdx = place.train("dfdx", &DFDX);
    let (ours, theirs) = (dfdx.join("train.csv"), fused.join("train.csv"));
    assert_eq!(csv(&ours).0, csv(&theirs).0, "the same columns");
    let losses = column(&ours, "loss");
    assert_eq!(losses.len(), 30);
    assert!(losses[29] < losses[0] - 0.5, "it learns: {losses:?}");
    for (name, bound) in [("loss", 1e-4), ("grad_norm", 1e-3), ("lr", 0.0), ("tokens", 0.0)] {
        let error = apart(&column(&ours, name), &column(&theirs, name));
        assert!(error <= bound, "{name} differs by {error}");
    }
    let (ours, theirs) = (dfdx.join("val.csv"), fused.join("val.csv"));
    assert_eq!(column(&ours, "step"), column(&theirs, "step"));
    assert!(apart(&column(&ours, "val_loss"), &column(&theirs, "val_loss")) < 1e-4);
    let samples = fs::read_to_string(dfdx.join("samples.txt")).expect("samples");
    assert!(samples.contains('!'), "{samples}");
    let record = fs::read_to_string(dfdx.join("run.json")).expect("a record");
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    assert_eq!((&record["engine"], &record["status"]), (&"dfdx".into(), &"finished".into()));
}

#[test]
fn the_same_recipe_gives_the_same_bytes_with_any_number_of_threads() {
    let place = Place::new();
    let first = place.train("a", &DFDX);
    let again = place.train("b", &DFDX);
    assert_eq!(deterministic(&first), deterministic(&again));
    let weights = "checkpoints/step-00000030/model.safetensors";
    let read = |run: &Path| fs::read(run.join(weights)).expect("a checkpoint");
    assert!(read(&first) == read(&again));
    let alone = place.train("c", &[&DFDX[..], &["compute.threads=1"]].concat());
    assert_eq!(deterministic(&first), deterministic(&alone));
    assert!(read(&first) == read(&alone));
}

/// The first loss of a run that starts from these weights.
fn first_loss(place: &Place, from: &Path, settings: &[&str]) -> f64 {
    let from = format!("model.init_from={}", from.display());
    let one_step = [&from, "schedule.max_steps=1", "schedule.warmup_steps=0", "sample.every=0"];
    let run = place.train("probes", &[&one_step[..], settings].concat());
    column(&run.join("train.csv"), "loss")[0]
}

#[test]
fn checkpoints_are_interchangeable() {
    let place = Place::new();
    for settings in [&DFDX[..], &DFDX[1..]] {
        let run = place.train("runs", settings);
        let checkpoint = run.join("checkpoints/step-00000030");
        let dfdx = first_loss(&place, &checkpoint, &DFDX);
        let fused = first_loss(&place, &checkpoint, &[]);
        assert!((dfdx - fused).abs() / fused < 1e-5, "{dfdx} {fused}");
        let last = *column(&run.join("train.csv"), "loss").last().expect("rows");
        assert!((fused - last).abs() < 0.5, "trained weights were loaded: {fused} after {last}");
    }
}

#[test]
fn a_crashed_run_resumes_to_the_same_bytes() {
    let place = Place::new();
    let whole = place.train("whole", &DFDX);
    let mut arguments = vec!["tiny.toml", "--runs-dir", "crashed"];
    // between the steps: the disk of a busy machine may take longer than the four steps until the crash
    for setting in DFDX.iter().chain(&["checkpoint.background=false"]) {
        arguments.extend(["--set", setting]);
    }
    let crashed = place.path().join("crashed").join(whole.file_name().expect("an id"));
    // in the middle of the fourteenth row of a log, after the checkpoint at step 10
    let died = place.command(&arguments).env("RUNNER_FAULT", "csv.mid_row:14").output().expect("it starts");
    assert_eq!(died.status.code(), None, "aborted");
    assert!((11..20).contains(&csv(&crashed.join("train.csv")).1.len()));
    let said = place.run(&arguments);
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stderr.contains("step 10 of 30"), "it went on from the checkpoint: {}", said.stderr);
    assert_eq!(deterministic(&crashed), deterministic(&whole));
    for file in ["val.csv", "samples.txt", "checkpoints/step-00000030/model.safetensors"] {
        let read = |run: &Path| fs::read(run.join(file)).expect("the file exists");
        assert!(read(&crashed) == read(&whole), "{file}");
    }
}

#[test]
fn what_dfdx_cannot_do_is_refused_with_the_reason() {
    let place = Place::new();
    for (settings, reason) in [
        (["compute.precision=bf16", "compute.attention=naive"], "the dfdx engine computes in fp32 only"),
        (["compute.precision=tf32", "compute.attention=naive"], "its crate has no tf32"),
        (["compute.precision=fp16", "compute.attention=naive"], "a reference must not round to fp16"),
        (["compute.precision=fp32", "compute.attention=flash"], "always materializes the attention matrix"),
    ] {
        let said = place.run(&["tiny.toml", "--set", DFDX[0], "--set", settings[0], "--set", settings[1]]);
        assert_eq!(said.code, 2, "{settings:?}: {}", said.stderr);
        assert!(said.stderr.contains(reason), "{settings:?}: {}", said.stderr);
    }
    assert!(!place.path().join("runs").exists(), "nothing was begun");
}
