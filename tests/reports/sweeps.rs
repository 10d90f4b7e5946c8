//! The shipped sweeps and the ladder, run as their readers would, at toy size.

use crate::support;

use std::path::{Path, PathBuf};
use support::{Ended, Lab, ended};

/// What makes `small.toml` and the ladder's base a matter of a second.
const TOY: &[&str] = &[
    "data.train=builtin:lipsum:words=1000",
    "model.n_layer=2",
    "model.n_head=2",
    "model.n_embd=32",
    "model.block_size=16",
    "batch.total_tokens=64",
    "batch.micro_batch=4",
    "schedule.max_steps=3",
    "compute.threads=1",
];

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes").join(name)
}

/// Runs a script in a lab.
fn sh(lab: &Lab, script: &str, variables: &[(&str, &str)], sets: &[&str]) -> Ended {
    let mut command = lab.launcher("sh");
    command.arg(shipped(script)).args(sets.iter().flat_map(|set| ["--set", set]));
    command.envs(variables.iter().copied());
    ended(command)
}

fn sweep(sets: &[&'static str]) -> Vec<&'static str> {
    let small = ["data.val=builtin:lipsum:seed=2,words=500", "eval.batches=1", "schedule.warmup_steps=1"];
    TOY.iter().chain(&small).chain(sets).copied().collect()
}

/// The directories on stdout, all of them runs.
fn directories(lab: &Lab, ended: &Ended) -> Vec<String> {
    let mut lines: Vec<String> = ended.stdout.lines().map(str::to_owned).collect();
    assert!(lines.iter().all(|line| lab.path(line).join("run.json").is_file()), "{}", ended.stdout);
    lines.sort();
    lines.dedup();
    lines
}

#[test]
fn the_grid_is_trained_once_in_parallel_and_found_again() {
    let lab = Lab::new();
    let grid = [("LRS", "1e-3 2e-3"), ("SEEDS", "1 2"), ("JOBS", "3")];
    let first = sh(&lab, "sweeps/lr.sh", &grid, &sweep(&[]));
    first.expect(0);
    let runs = directories(&lab, &first);
    assert_eq!(runs.len(), 4, "{}", first.stdout);
    let of_a_run = |line: &str| {
        let named =
            |run: &String| line.contains(run.as_str()) || line.starts_with(run.trim_start_matches("runs/"));
        runs.iter().any(named)
    };
    assert!(first.stderr.lines().all(of_a_run), "{}", first.stderr);
    assert!(first.stderr.contains(": step 3/3 loss "), "{}", first.stderr);
    let before = support::everything(&lab.path("runs"));
    let again = sh(&lab, "sweeps/lr.sh", &grid, &sweep(&[]));
    assert_eq!(directories(&lab, again.expect(0)), runs);
    assert!(support::everything(&lab.path("runs")) == before, "something changed");
    let compared = lab.run(["compare", "runs", "--metrics", "val_loss"]);
    assert!(compared.expect(0).stdout.contains("Welch's t"), "{}", compared.stdout);
}

#[test]
fn seeds_are_replicas() {
    let lab = Lab::new();
    let ended = sh(&lab, "sweeps/seeds.sh", &[("SEEDS", "4 5 6")], &sweep(&[]));
    assert_eq!(directories(&lab, ended.expect(0)).len(), 3);
    let compared = lab.run(["compare", "runs"]).expect(0).stdout.clone();
    assert!(compared.contains("replicas"), "{compared}");
}

#[test]
fn runs_beside_each_other_may_tell_programs_what_they_do() {
    let lab = Lab::new();
    let mut command = lab.launcher("sh");
    command.arg(shipped("sweeps/seeds.sh")).args(["--log-format", "json"]);
    command.args(sweep(&[]).iter().flat_map(|set| ["--set", set])).envs([("SEEDS", "4 5"), ("JOBS", "2")]);
    let ended = ended(command);
    assert_eq!(directories(&lab, ended.expect(0)).len(), 2);
    let is_event = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
    assert!(ended.stderr.lines().all(is_event), "{}", ended.stderr);
}

#[test]
fn muon_meets_adamw_on_both_texts() {
    let lab = Lab::new();
    let toy = ["data.train=builtin:lipsum:words=2000", "data.tokenizer=bytes", "model.vocab_size=256"];
    let toy: Vec<_> = toy.iter().chain(&TOY[1..]).chain(&["schedule.warmup_steps=1"]).copied().collect();
    let ended = sh(&lab, "muon/run.sh", &[("SEEDS", "1 2"), ("FORMAT", "csv")], &toy);
    let tables = ended.expect(0).stdout.clone();
    assert_eq!(lab.runs("runs").len(), 8);
    for (recipe, kind) in
        [("shakespeare", "adamw"), ("shakespeare", "muon"), ("lipsum", "adamw"), ("lipsum", "muon")]
    {
        let is_of = |line: &&str| line.contains(&format!("{recipe}-")) && line.contains(&format!(",{kind},"));
        assert_eq!(tables.lines().filter(is_of).count(), 2, "{recipe} {kind}: {tables}");
    }
    for target in ["2.45", "2.8"] {
        let ways = format!(",steps_to_val_loss={target},tokens_to_val_loss={target},");
        assert_eq!(tables.matches(&ways).count(), 1, "{target}: {tables}");
    }
}

#[test]
fn every_precision_meets_every_attention_and_emulation_is_marked() {
    let lab = Lab::new();
    let ended = sh(&lab, "sweeps/precision.sh", &[("JOBS", "2")], &sweep(&["compute.device=cpu"]));
    assert_eq!(directories(&lab, ended.expect(0)).len(), 8);
    let compared = lab.run(["compare", "runs", "--metrics", "val_loss,speedup"]).expect(0).stdout.clone();
    assert_eq!(compared.matches("(emulated)").count(), 6, "{compared}");
}

#[test]
fn failures_come_last_and_do_not_keep_the_others_from_being_trained() {
    let lab = Lab::new();
    let grid = [("LRS", "-1 1e-3 nonsense"), ("SEEDS", "1")];
    let ended = sh(&lab, "sweeps/lr.sh", &grid, &sweep(&[]));
    ended.expect(2);
    assert_eq!(directories(&lab, &ended).len(), 1);
    let tail: Vec<&str> = ended.stderr.lines().rev().take(4).collect();
    assert!(tail[3].starts_with("failed, with exit codes:"), "{}", ended.stderr);
    assert!(tail[2].starts_with("  2 ") && tail[2].contains("optimizer.lr=-1"), "{}", ended.stderr);
    assert!(tail[1].contains("optimizer.lr=nonsense"), "{}", ended.stderr);
}

/// Lines on the standard input of `each.sh`, a run each.
fn each(lab: &Lab, lines: &str) -> Ended {
    lab.write("lines", lines);
    let mut command = lab.launcher("sh");
    command.arg(shipped("sweeps/each.sh")).arg(shipped("sweeps/small.toml"));
    command.args(sweep(&[]).iter().flat_map(|set| ["--set", set]));
    command.stdin(std::fs::File::open(lab.path("lines")).expect("the lines"));
    ended(command)
}

#[test]
fn every_line_is_a_run_whatever_blanks_it_ends_in() {
    let lab = Lab::new();
    let two = each(&lab, "--set seed=1 \n\n \t\n--set seed=2\t \n");
    assert_eq!(directories(&lab, two.expect(0)).len(), 2, "{}", two.stderr);
}

#[test]
fn lines_that_cannot_be_read_are_a_failure() {
    let lab = Lab::new();
    let open = each(&lab, "--set sample.prompt=it's\n--set seed=2\n");
    assert_ne!(open.code, Some(0), "{}", open.stderr);
    open.says(&["xargs", "quote"]);
    for nothing in ["", " \n\n"] {
        each(&lab, nothing).expect(2).says(&["standard input has no lines"]);
    }
    assert!(!lab.path("runs").exists());
}

#[test]
fn a_signal_to_a_script_alone_ends_the_sweep() {
    for jobs in ["1", "2"] {
        let lab = Lab::new();
        let mut command = lab.launcher("sh");
        command.arg(shipped("sweeps/lr.sh")).envs([("JOBS", jobs)]);
        command.args(sweep(&["schedule.max_steps=20000"]).iter().flat_map(|set| ["--set", set]));
        let mut script = support::spawned(command);
        let at_once: usize = jobs.parse().expect("a number");
        // its second row comes once signals are held
        let trains = |run: &String| {
            let log = lab.path("runs").join(run).join("train.csv");
            let log = std::fs::read_to_string(log).unwrap_or_default();
            log.lines().count() > 2
        };
        support::wait("the first runs", || {
            lab.runs("runs").iter().filter(|run| trains(run)).count() == at_once
        });
        script.signal("TERM");
        assert_eq!(script.end().code, Some(143));
        let runs = lab.runs("runs");
        assert_eq!(runs.len(), at_once, "no other begins");
        for run in runs {
            let run = lab.path("runs").join(run);
            let record = std::fs::read_to_string(run.join("run.json")).expect("a record");
            assert!(record.contains("\"status\": \"interrupted\""), "{record}");
            assert_eq!(std::fs::read_dir(run.join("checkpoints")).expect("checkpoints").count(), 1);
        }
    }
}

#[test]
fn a_task_of_the_array_trains_its_own_run() {
    let lab = Lab::new();
    let root = env!("CARGO_MANIFEST_DIR");
    let task = |n: &str| {
        let grid = [("SLURM_ARRAY_TASK_ID", n), ("SLURM_SUBMIT_DIR", root), ("SLURM_CPUS_PER_TASK", "1")];
        sh(&lab, "sweeps/slurm.sh", &grid, &sweep(&[]))
    };
    let resolved = |ended: &Ended| {
        let runs = directories(&lab, ended.expect(0));
        std::fs::read_to_string(lab.path(&runs[0]).join("recipe.toml")).expect("a recipe")
    };
    let (first, last) = (resolved(&task("0")), resolved(&task("5")));
    assert!(first.contains("seed = 1\n") && first.contains("lr = 0.0005\n"), "{first}");
    assert!(last.contains("seed = 2\n") && last.contains("lr = 0.002\n"), "{last}");
    task("6").expect(2).says(&["beyond the grid of 6 runs"]);
}

#[test]
fn the_ladder_is_a_comparison_of_its_rungs() {
    let lab = Lab::new();
    let mut sets = TOY.to_vec();
    sets.push("compute.device=cpu");
    let ended = sh(&lab, "ladder/run.sh", &[("FORMAT", "csv")], &sets);
    ended.expect(0);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines.len(), 8, "{}", ended.stdout);
    for column in
        ["tokens_per_s", "step_ms", "gain", "speedup", "loss", "compute.engine", "model.vocab_multiple"]
    {
        assert!(lines[0].split(',').any(|name| name == column), "{}", lines[0]);
    }
    let emulated = |line: &str| line.split(',').rev().nth(1).map(str::to_owned);
    for (i, name) in
        ["1-eager", "2-fused", "3-tf32", "4-bf16", "5-flash", "6-padded", "7-gpt3"].iter().enumerate()
    {
        assert!(lines[i + 1].starts_with(&format!("ladder-{name}-")), "{}", lines[i + 1]);
        assert_eq!(emulated(lines[i + 1]).as_deref(), Some(if i > 1 { "true" } else { "false" }));
    }
    // a rung that cannot be had here is left out and listed
    let failed = sh(&lab, "ladder/run.sh", &[("RUNGS", "2 3")], &[&sets[..], &["optimizer.lr=-1"]].concat());
    failed.expect(2).says(&["failed, with exit codes:", "2 ", "2-fused.toml", "3-tf32.toml"]);
}

#[test]
fn temporary_files_of_the_ladder_are_where_nobody_can_put_a_link() {
    let lab = Lab::new();
    std::fs::create_dir(lab.path("tmp")).expect("a directory");
    let says =
        "#!/bin/sh\nfor left in tmp/*; do [ -d \"$left\" ] || echo \"open: $left\" >&2; done\nexit 1\n";
    lab.write("spy", says);
    let tmp = lab.path("tmp").display().to_string();
    let ended = sh(&lab, "ladder/run.sh", &[("RUNGS", "2 3"), ("TMPDIR", &tmp), ("RUNNER", "sh spy")], &[]);
    ended.expect(1);
    assert!(!ended.stderr.contains("open: "), "{}", ended.stderr);
    assert_eq!(
        std::fs::read_dir(lab.path("tmp")).expect("a directory").count(),
        0,
        "it is removed at the end"
    );
}
