//! Runs that are told to stop, and runs that are killed, end with the bytes of one that was left in peace.

#![cfg(unix)]

mod support;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs;
use std::time::{Duration, Instant, UNIX_EPOCH};
use support::{Lab, Live, checkpoints, essence, record, rows, tiny, wait};

/// A run of a few steps that take long enough to be met in the middle: each has `micro_steps` forward passes of a row.
fn slow(micro_steps: usize) -> Vec<String> {
    let tokens = format!("batch.total_tokens={}", 32 * micro_steps);
    let sets = ["batch.micro_batch=1", "schedule.max_steps=6", "eval.every=2", &tokens];
    tiny("runs", &sets).into_iter().chain(["--set".into(), "checkpoint.every=5".into()]).collect()
}

/// Starts a run and returns once it has `steps` rows.
fn started(lab: &Lab, args: &[String], steps: usize) -> Live {
    let live = lab.start(args);
    let run = lab.only_run("runs");
    wait("steps", || rows(&run) >= steps);
    live
}

#[test]
fn a_first_signal_ends_a_run_after_a_checkpoint_of_its_last_whole_step() {
    // 1500 micro-steps of a fraction of a millisecond each: the signal comes inside the third step
    for (signal, code, micro_steps) in [("INT", 130, 1500), ("TERM", 143, 1500), ("TERM", 143, 100)] {
        let lab = Lab::new();
        let args = slow(micro_steps);
        let mut live = started(&lab, &args, 2);
        live.signal(signal);
        let stopped = live.end();
        stopped.expect(code).says(&["interrupted after", "the same command resumes"]);
        let run = lab.run_of(&stopped);
        let steps = rows(&run);
        assert!((2..6).contains(&steps), "it was to be stopped on the way, not after {steps} steps");
        assert_eq!(checkpoints(&run).last(), Some(&format!("step-{steps:08}")));
        let at = record(&run);
        assert_eq!((&at["status"], &at["steps_done"]), (&"interrupted".into(), &steps.into()));
        let resumed = lab.run(&args);
        resumed.expect(0).says(&[&format!("step {steps} of 6")]);
        let mut again: Vec<_> = args.clone();
        again[2] = "whole".into();
        let whole = lab.run_of(lab.run(&again).expect(0));
        let of_the_logs = |run| support::without(essence(run), "checkpoints/");
        assert!(of_the_logs(&run) == of_the_logs(&whole), "SIG{signal} after {steps} steps");
        // but for the checkpoint that the signal asked for
        let extra = format!("checkpoints/step-{steps:08}/");
        let common = |run| {
            let kept = essence(run).into_iter().filter(|(name, _)| !name.starts_with(&extra));
            kept.collect::<Vec<_>>()
        };
        assert!(common(&run) == common(&whole), "SIG{signal} after {steps} steps");
    }
}

#[test]
fn a_stop_before_the_first_step_is_over_leaves_a_checkpoint_of_the_beginning() {
    let lab = Lab::new();
    let args = slow(20_000);
    let mut live = lab.start(&args);
    let run = lab.only_run("runs");
    // the header of the log is written when the run has begun
    wait("the log", || fs::read_to_string(run.join("val.csv")).is_ok_and(|text| text.lines().count() == 2));
    live.signal("INT");
    live.end().expect(130).says(&["interrupted after 0 of 6 steps"]);
    assert_eq!((rows(&run), checkpoints(&run)), (0, vec!["step-00000000".to_owned()]));
    let mut live = started(&lab, &args, 1);
    live.signal("INT");
    live.end().expect(130);
    assert_eq!(support::val_csv(&run).numbers("step"), [0.0], "the first evaluation is not there twice");
}

#[test]
fn a_signal_ends_all_recipes_of_a_call() {
    let lab = Lab::new();
    lab.write("next.toml", "extends = \"tiny.toml\"\nname = \"next\"\n");
    let mut args = slow(1000);
    args.insert(1, "next.toml".into());
    let mut live = started(&lab, &args, 1);
    live.signal("TERM");
    live.end().expect(143).says(&["interrupted after"]);
    assert_eq!(lab.runs("runs").len(), 1, "{:?}", lab.runs("runs"));
}

#[test]
fn a_second_signal_ends_at_once() {
    let lab = Lab::new();
    // between two forward passes the first signal would be seen and obeyed, so the process sleeps until both are sent
    let args = slow(100_000);
    let mut live = lab.start(&args);
    let run = lab.only_run("runs");
    wait("the log", || fs::read_to_string(run.join("val.csv")).is_ok_and(|text| text.lines().count() == 2));
    live.signal("STOP");
    live.signal("INT");
    live.signal("TERM");
    live.signal("CONT");
    let ended = live.end();
    assert!([Some(130), Some(143)].contains(&ended.code), "{:?}: {}", ended.code, ended.stderr);
    assert!(!run.join("checkpoints").exists(), "a second signal waits for no checkpoint");
    assert_eq!(record(&run)["status"], "running", "nor for the record");
}

#[test]
fn a_run_killed_anywhere_ends_with_the_same_bytes() {
    let seed = std::env::var("KILL_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| UNIX_EPOCH.elapsed().expect("a clock after 1970").subsec_nanos().into());
    let mut random = StdRng::seed_from_u64(seed);
    let lab = Lab::new();
    let sets = [
        "schedule.max_steps=40",
        "checkpoint.every=3",
        "checkpoint.keep=2",
        "sample.every=4",
        "sample.prompt=!",
        "compute.precision=fp16",
    ];
    let start = Instant::now();
    let whole = essence(&lab.train_in("whole", &sets));
    let duration = start.elapsed();
    let (mut kills, mut lives, mut runs) = (0, 0, 0);
    while kills < 12 || lives > 0 {
        let mut live = lab.start(tiny(&format!("runs-{runs}"), &sets));
        lives += 1;
        if kills < 12 {
            std::thread::sleep(random.gen_range(Duration::ZERO..duration.mul_f64(0.6)));
            if live.kill() {
                kills += 1;
                continue;
            }
        }
        live.end().expect(0);
        let run = lab.only_run(&format!("runs-{runs}"));
        let found = essence(&run);
        let differing: Vec<_> = whole.keys().filter(|name| found.get(*name) != whole.get(*name)).collect();
        assert!(found == whole, "KILL_SEED={seed}: after {kills} kills {differing:?} differ");
        (lives, runs) = (0, runs + 1);
    }
    // shown only with --nocapture or when a test fails, which is when it is of use
    assert!(runs > 0 && kills == 12, "KILL_SEED={seed}");
}
