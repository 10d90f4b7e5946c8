//! `batch.world_size` above 1 without a launcher: ranks that are threads of the program.

use crate::support;

use support::{Lab, checkpoints, column, essence, record, results, rows};

/// Rows of a step that 1, 2, 3 and 4 ranks can divide, for a hundred steps, at a learning rate at which a model learns.
const LONG: [&str; 7] = [
    "batch.total_tokens=384",
    "batch.micro_batch=1",
    "schedule.max_steps=100",
    "schedule.warmup_steps=10",
    "optimizer.lr=1e-3",
    "eval.every=25",
    "checkpoint.every=50",
];

fn with<'a>(sets: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    sets.iter().chain(more).copied().collect()
}

fn close(a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    for (step, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs(), "step {step}: {a} and {b}");
    }
}

#[test]
fn every_number_of_ranks_gives_the_same_losses() {
    let lab = Lab::new();
    let alone = lab.train(&LONG);
    assert_eq!(rows(&alone), 100);
    for (ranks, shard) in [(2, false), (3, false), (4, false), (2, true), (4, true)] {
        let (ranks, shard) =
            (format!("batch.world_size={ranks}"), format!("distributed.shard_optimizer={shard}"));
        let run = lab.train(&with(&LONG, &[&ranks, &shard]));
        for name in ["loss", "grad_norm"] {
            let tolerance = if name == "loss" { 1e-6 } else { 1e-5 };
            close(&column(&run, name), &column(&alone, name), tolerance);
        }
        assert_eq!(column(&run, "lr"), column(&alone, "lr"));
        assert_eq!(column(&run, "epoch"), column(&alone, "epoch"));
        close(
            &support::val_csv(&run).numbers("val_loss"),
            &support::val_csv(&alone).numbers("val_loss"),
            1e-6,
        );
    }
}

#[test]
fn ranks_repeat_themselves_byte_for_byte() {
    let lab = Lab::new();
    let sets = ["batch.world_size=4", "batch.micro_batch=1", "distributed.shard_optimizer=true"];
    let (once, again) = (lab.train_in("once", &sets), lab.train_in("again", &sets));
    assert!(essence(&once) == essence(&again));
    // background checkpoints are made of whole moments, too
    let background = lab.train_in("background", &with(&sets, &["checkpoint.background=true"]));
    assert!(results(&background) == results(&once));
}

#[test]
fn ranks_that_are_stopped_and_continued_go_on() {
    let lab = Lab::new();
    let sets = ["batch.world_size=2", "batch.micro_batch=1", "distributed.timeout_s=1"];
    let sets = with(&sets, &["schedule.max_steps=100000", "checkpoint.every=5"]);
    let mut live = lab.start(support::tiny("runs", &sets));
    let run = lab.only_run("runs");
    for _ in 0..3 {
        let taken = rows(&run);
        support::wait("some steps", || rows(&run) > taken + 2);
        live.signal("STOP");
        // longer than a rank waits for another, and than a busy machine may take
        std::thread::sleep(std::time::Duration::from_millis(3_500));
        live.signal("CONT");
    }
    let taken = rows(&run);
    support::wait("a step after that", || rows(&run) > taken || live.is_over());
    live.signal("TERM");
    live.end().expect(143);
}

#[test]
fn ranks_wait_for_one_that_writes_slowly() {
    let lab = Lab::new();
    let sets = ["batch.world_size=2", "batch.micro_batch=1", "distributed.timeout_s=1"];
    // the row of an evaluation, and those of steps
    for row in [1, 2, 3] {
        let runs = format!("runs-{row}");
        let command = lab.command(support::tiny(&runs, &sets));
        let (live, gate) = lab.held(command, &format!("csv.before_row:{row}"));
        gate.reached();
        std::thread::sleep(std::time::Duration::from_millis(2_500));
        gate.open();
        live.end().expect(0);
    }
}

#[test]
fn a_run_goes_on_with_any_number_of_ranks() {
    let lab = Lab::new();
    let sets =
        ["batch.total_tokens=384", "batch.micro_batch=1", "schedule.max_steps=16", "optimizer.lr=1e-3"];
    let alone = lab.train_in("alone", &sets);
    let four = with(&sets, &["batch.world_size=4"]);
    // dies in step 6, after the checkpoint of step 4, and so on
    let run = lab.crash("runs", &four, "csv.before_row:6");
    let name = run.file_name().expect("a name").to_owned();
    for (ranks, shard, fault) in
        [(2, true, Some("csv.before_row:6")), (1, false, Some("csv.before_row:6")), (3, true, None)]
    {
        let ranks = format!("batch.world_size={ranks}");
        let shard = format!("distributed.shard_optimizer={shard}");
        let mut args = vec!["--resume", name.to_str().expect("a name"), "--set", &ranks];
        if ranks != "batch.world_size=1" {
            args.extend(["--set", &shard]);
        }
        let mut command = lab.command(args);
        if let Some(fault) = fault {
            command.env("RUNNER_FAULT", fault);
        }
        let ended = support::ended(command);
        assert_eq!(ended.code, if fault.is_some() { None } else { Some(0) }, "{}", ended.stderr);
    }
    assert_eq!(rows(&run), 16);
    close(&column(&run, "loss"), &column(&alone, "loss"), 1e-6);
    assert_eq!(checkpoints(&run), checkpoints(&alone));
    // the same rows in the same order: nothing else gives the same losses to seven digits
    let state = |run: &std::path::Path| {
        let text =
            std::fs::read_to_string(run.join("checkpoints/step-00000016/state.json")).expect("a state");
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["rows_consumed"].clone()
    };
    assert_eq!(state(&run), state(&alone));
}

#[test]
fn every_rank_takes_part_in_what_happens_within_a_run() {
    let lab = Lab::new();
    // fp16's loss scale, the numbers that the watchdog reads and samples take all ranks; no step is bad enough to skip
    let sets = [
        "batch.world_size=2",
        "batch.micro_batch=1",
        "compute.precision=fp16",
        "watchdog.max_loss_zscore=1e300",
        "watchdog.max_grad_zscore=1e300",
        "watchdog.window=3",
        "distributed.shard_optimizer=true",
        "model.vocab_size=50257",
        "sample.every=6",
        "sample.tokens=3",
    ];
    let run = lab.train(&sets);
    assert_eq!(rows(&run), 12);
    let samples = std::fs::read_to_string(run.join("samples.txt")).expect("samples");
    assert!(samples.contains("12"), "{samples}");
    let plan = &record(&run)["plan"];
    assert_eq!((plan["world_size"].as_u64(), plan["micro_steps"].as_u64()), (Some(2), Some(4)));
}

#[test]
fn a_run_of_several_ranks_diverges_as_one() {
    let lab = Lab::new();
    let sets = ["optimizer.lr=1e30", "batch.micro_batch=1"];
    let alone = lab.run(support::tiny("alone", &sets));
    let ranks = lab.run(support::tiny("ranks", &with(&sets, &["batch.world_size=4"])));
    alone.expect(4);
    ranks.expect(4).says(&["diverged at step"]);
    let error = |runs: &str| record(&lab.only_run(runs))["error"].as_str().expect("an error").to_owned();
    let (alone, ranks) = (error("alone"), error("ranks"));
    assert_eq!(alone, ranks, "the same step and the same blame");
}

#[test]
fn a_signal_stops_all_ranks_after_one_checkpoint() {
    let lab = Lab::new();
    let sets =
        ["batch.world_size=3", "batch.total_tokens=384", "batch.micro_batch=1", "schedule.max_steps=100000"];
    let mut live = lab.start(support::tiny("runs", &sets));
    let run = lab.only_run("runs");
    support::wait("some steps", || rows(&run) > 5);
    live.signal("TERM");
    live.end().expect(143).says(&["interrupted after"]);
    let last = rows(&run);
    assert!(checkpoints(&run).contains(&format!("step-{last:08}")), "{:?} {last}", checkpoints(&run));
    assert_eq!(record(&run)["status"], "interrupted");
}

#[test]
fn what_rank_0_cannot_write_ends_the_run() {
    let lab = Lab::new();
    let sets = ["batch.world_size=2", "batch.micro_batch=1"];
    let mut command = lab.command(support::tiny("runs", &sets));
    // the disk is full at the second checkpoint
    command.env("RUNNER_FAULT", "error:checkpoint.after_model:2");
    support::ended(command).expect(1).says(&["no space left"]);
    let run = lab.only_run("runs");
    assert_eq!(record(&run)["status"], "failed");
    assert_eq!(checkpoints(&run), ["step-00000004"]);
    // and the same command goes on
    assert_eq!(rows(&lab.train(&sets)), 12);
}
