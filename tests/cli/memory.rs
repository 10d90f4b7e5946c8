//! The plan's bytes are the memory that a run takes.

#![cfg(target_os = "linux")]

use crate::support;

use std::fs;
use std::path::Path;
use support::{Lab, column, record, tiny};

/// A model of which no part is small.
const MODEL: [&str; 5] = [
    "model.n_layer=4",
    "model.n_head=4",
    "model.n_embd=256",
    "model.block_size=256",
    "model.vocab_size=50304",
];

/// What a run may take besides: the program as the plan states it, and as much again on a machine with more threads or
/// another allocator.
const BESIDES: f64 = 2.0 * runner::plan::PROGRAM_BYTES as f64;

/// Steps of every run here.
const STEPS: usize = 3;

/// Peak resident bytes of a live process, as the system counts them; none once it is gone.
fn peak(id: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok().map(|kib| kib * 1024.0)
}

/// The highest peak of `tiny.toml` with changes, which must finish. It writes `rows` rows and waits before the last one
/// until it was looked at.
fn watched(lab: &Lab, runs: &str, sets: &[&str], rows: usize) -> f64 {
    let (mut live, gate) = lab.held(lab.command(tiny(runs, sets)), &format!("csv.before_row:{rows}"));
    gate.reached();
    assert_eq!(support::rows(&lab.only_run(runs)), STEPS - 1);
    let id = live.id();
    let mut highest = peak(id).expect("a process that waits");
    gate.open();
    while !live.is_over() {
        highest = peak(id).unwrap_or(highest);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    live.end().expect(0);
    highest
}

fn within_the_plan(what: &str, run: &Path, seen: f64) {
    let record = record(run);
    let planned = record["plan"]["total_bytes"].as_f64().expect("a number");
    // taken while a checkpoint is written in the background
    let snapshot = record["plan"]["snapshot_bytes"].as_f64().expect("a number");
    let stated = record["results"]["peak_memory_bytes"].as_f64().expect("a number");
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let told = format!(
        "{what}: planned {:.1} MiB, seen {:.1}, stated {:.1}",
        mib(planned + snapshot),
        mib(seen),
        mib(stated)
    );
    for peak in [seen, stated] {
        assert!(peak >= planned, "{told}");
        assert!(peak <= planned + snapshot + BESIDES, "{told}");
    }
}

#[test]
fn a_run_takes_the_memory_of_its_plan() {
    let lab = Lab::new();
    let steps = format!("schedule.max_steps={STEPS}");
    let rest = ["batch.total_tokens=512", "batch.micro_batch=2", &steps, "eval.every=0"];
    let common = [&MODEL[..], &rest].concat();
    for (what, more) in [
        ("fp32", &[][..]),
        ("bf16, naive", &["compute.precision=bf16", "compute.attention=naive", "compute.threads=2"]),
    ] {
        let sets = [&common[..], &["checkpoint.every=0"], more].concat();
        let runs = if more.is_empty() { "fp32" } else { "bf16" };
        let seen = watched(&lab, runs, &sets, STEPS);
        within_the_plan(what, &lab.only_run(runs), seen);
    }
    let sets = [&common[..], &["checkpoint.every=1", "checkpoint.background=true"]].concat();
    let seen = watched(&lab, "background", &sets, STEPS);
    let run = lab.only_run("background");
    within_the_plan("in the background", &run, seen);
    let snapshot = record(&run)["plan"]["snapshot_bytes"].as_f64().expect("a number");
    assert!(snapshot > 3.0 * 4.0 * 50304.0 * 256.0, "parameters and two moments: {snapshot}");
    let common = [&common[..], &["checkpoint.every=2"]].concat();
    // going on from a checkpoint reads more than a beginning does
    let run = lab.crash("resumed", &common, "csv.before_row:3");
    let seen = watched(&lab, "resumed", &common, 1);
    within_the_plan("resumed", &run, seen);
}

/// Under Muon no state covers every parameter, so a checkpoint that laid one out for all of them would take more.
#[test]
fn a_checkpoint_takes_no_memory_for_what_its_states_do_not_cover() {
    let lab = Lab::new();
    let steps = format!("schedule.max_steps={STEPS}");
    let muon =
        ["optimizer.kind=muon", "optimizer.muon_ns_steps=1", "model.n_embd=512", "model.block_size=64"];
    let rest = ["batch.total_tokens=64", "batch.micro_batch=1", &steps, "eval.every=0", "checkpoint.every=1"];
    let common = [&MODEL[..], &muon, &rest].concat();
    let seen = watched(&lab, "foreground", &common, STEPS);
    within_the_plan("between two steps", &lab.only_run("foreground"), seen);
    let background = [&common[..], &["checkpoint.background=true"]].concat();
    let seen = watched(&lab, "background", &background, STEPS);
    let run = lab.only_run("background");
    within_the_plan("in the background", &run, seen);
    let plan = &record(&run)["plan"];
    let hidden = 4 * 12 * 512 * 512 * 4;
    let total = plan["parameters"].as_u64().expect("a number") * 4;
    // two moments of all but the hidden matrices, whose momentum is one
    let held = 3 * total - hidden;
    let snapshot = plan["snapshot_bytes"].as_u64().expect("a number");
    assert!((held..held + held / 1000).contains(&snapshot), "{snapshot} for {held}");
    let common = [&common[..], &["checkpoint.every=2"]].concat();
    let run = lab.crash("resumed", &common, "csv.before_row:3");
    let seen = watched(&lab, "resumed", &common, 1);
    within_the_plan("resumed", &run, seen);
}

#[test]
fn a_run_after_a_larger_one_of_the_same_call_has_its_own_peak() {
    let lab = Lab::new();
    let mut args = vec!["large.toml".to_owned()];
    let mut recipe = fs::read_to_string(lab.path("tiny.toml")).expect("a recipe");
    for (small, large) in [
        ("n_embd = 32", "n_embd = 256"),
        ("block_size = 32", "block_size = 256"),
        ("= 256\n[data]", "= 50304\n[data]"),
    ] {
        assert!(recipe.contains(small));
        recipe = recipe.replacen(small, large, 1);
    }
    let recipe = recipe.replace("\"tiny\"", "\"large\"").replace("total_tokens = 256", "total_tokens = 1024");
    lab.write("large.toml", recipe);
    args.extend(tiny("runs", &[]));
    let ended = lab.run(&args);
    ended.expect(0);
    let [large, small] = ["large", "tiny"].map(|name| {
        let run = lab.runs("runs").into_iter().find(|run| run.starts_with(name)).expect("a run");
        column(&lab.path("runs").join(run), "memory_bytes").into_iter().fold(0.0, f64::max)
    });
    assert!(large > 100e6 && small < large / 3.0, "{small} bytes after {large}");
    let before = |name: &str| {
        let run = lab.runs("runs").into_iter().find(|run| run.starts_with(name)).expect("a run");
        support::record(&lab.path("runs").join(run))["sessions"][0]["recipes_before"].clone()
    };
    assert_eq!(["large", "tiny"].map(before), [0, 1]);
}

#[test]
fn what_encoding_a_text_took_is_none_of_the_run_s_memory() {
    let lab = Lab::new();
    let words = "some text of which there is more than one piece\n";
    lab.write("long.txt", words.repeat((24 << 20) / words.len()));
    let peak = |seed: &str| {
        let run = lab.train(&["data.train=long.txt", "data.val=long.txt", "data.tokenizer=char", seed]);
        support::record(&run)["results"]["peak_memory_bytes"].as_f64().expect("bytes")
    };
    let [first, second] = ["seed=1", "seed=2"].map(peak);
    assert!(first < second + 6e6, "{first} bytes with encoding, {second} without");
}
