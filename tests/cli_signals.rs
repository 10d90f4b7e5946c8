//! Runs that are told to stop, or to save, end with the bytes of one that was left in peace. `crash_kills.rs` kills them.

#![cfg(unix)]

mod support;

use std::fs;
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

/// Whether this process, and what it starts, was told to ignore SIGHUP.
fn hang_ups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[test]
fn a_terminal_that_closes_ends_a_run_after_a_checkpoint_unless_it_was_told_not_to_mind() {
    if hang_ups_are_ignored() {
        // under nohup or the like no program that is started here minds a hang-up
        return;
    }
    let lab = Lab::new();
    let args = slow(1000);
    let mut live = started(&lab, &args, 2);
    live.signal("HUP");
    live.end().expect(129).says(&["interrupted after", "the same command resumes"]);
    let run = lab.only_run("runs");
    let steps = rows(&run);
    assert_eq!(checkpoints(&run).last(), Some(&format!("step-{steps:08}")));
    assert_eq!(record(&run)["status"], "interrupted");
    // as under nohup
    let mut command = std::process::Command::new("sh");
    let program = lab.command([""; 0]).get_program().to_owned();
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(program).args(&args).current_dir(lab.dir());
    let mut live = support::spawned(command);
    wait("more steps", || rows(&run) > steps);
    live.signal("HUP");
    live.end().expect(0);
    let mut again: Vec<_> = args.clone();
    again[2] = "whole".into();
    let whole = lab.run_of(lab.run(&again).expect(0));
    let of_the_logs = |run| support::without(essence(run), "checkpoints/");
    assert!(of_the_logs(&run) == of_the_logs(&whole));
}

#[test]
fn a_checkpoint_that_is_asked_for_is_written_at_once_and_the_run_goes_on() {
    for background in ["checkpoint.background=false", "checkpoint.background=true"] {
        let lab = Lab::new();
        let mut args = slow(1500);
        args.extend(["--set".to_owned(), background.to_owned()]);
        let mut live = started(&lab, &args, 2);
        let run = lab.only_run("runs");
        live.signal("USR1");
        wait("a checkpoint", || run.join("checkpoints").is_dir() && !checkpoints(&run).is_empty());
        // its name may still be that of a directory being written
        wait("its name", || checkpoints(&run).iter().any(|name| name.starts_with("step-")));
        let saved: u64 = checkpoints(&run)[0]["step-".len()..].parse().expect("a step");
        assert!((2..5).contains(&saved), "not one that was due");
        live.end()
            .expect(0)
            .says(&[&format!("checkpoint of step {saved} as asked by SIGUSR1"), "finished in"]);
        let mut again: Vec<_> = args.clone();
        again[2] = "whole".into();
        let whole = lab.run_of(lab.run(&again).expect(0));
        let common = |run| support::without(essence(run), &format!("step-{saved:08}"));
        assert!(common(&run) == common(&whole), "{background}");
    }
}
