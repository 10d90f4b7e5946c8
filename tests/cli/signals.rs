//! A run that a signal stops or tells to save ends, once resumed, with the bytes of an undisturbed run. `crash_kills.rs`
//! kills runs.

#![cfg(unix)]

use crate::support;

use std::fs;
use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;
use std::time::Duration;
use support::{Gate, Lab, Live, checkpoints, essence, record, rows, spawned_with, tiny, val_csv, wait};

/// The arguments of a run of six slow steps: each has `micro_steps` forward passes of one row.
pub(crate) fn slow(micro_steps: usize) -> Vec<String> {
    let tokens = format!("batch.total_tokens={}", 32 * micro_steps);
    let sets = ["batch.micro_batch=1", "schedule.max_steps=6", "eval.every=2", &tokens];
    tiny("runs", &sets).into_iter().chain(["--set".into(), "checkpoint.every=5".into()]).collect()
}

/// Starts a [`slow`] run and returns once it has `steps` rows. The run waits before it writes the next one until the gate
/// is opened, so it cannot finish before a signal is sent.
fn started(lab: &Lab, command: Command, steps: usize) -> (Live, Gate) {
    // evaluations have rows as well: one before the first step, one after every second
    let row = steps + 1 + steps / 2 + 1;
    let (live, gate) = lab.held(command, &format!("csv.before_row:{row}"));
    gate.reached();
    assert!(rows(&lab.only_run("runs")) >= steps);
    (live, gate)
}

/// Starts a [`slow`] run that waits in the middle of the step after `steps` until the gate is opened.
fn started_in_a_step(lab: &Lab, micro_steps: usize, steps: usize) -> (Live, Gate) {
    held_in_a_step(lab, lab.command(slow(micro_steps)), micro_steps, steps)
}

/// Starts a run that waits in the middle of the step after `steps` until the gate is opened.
pub(crate) fn held_in_a_step(lab: &Lab, command: Command, micro_steps: usize, steps: usize) -> (Live, Gate) {
    let passes = steps * micro_steps + micro_steps / 2;
    let (live, gate) = lab.held(command, &format!("step.micro_step:{passes}"));
    gate.reached();
    assert_eq!(rows(&lab.only_run("runs")), steps);
    (live, gate)
}

/// Whether half a row stands in one of a run's logs, where `csv.mid_row` holds it.
fn is_held_in_a_row(run: &Path) -> bool {
    let is_torn = |log| fs::read_to_string(run.join(log)).is_ok_and(|text| !text.ends_with('\n'));
    is_torn("train.csv") || is_torn("val.csv")
}

/// Starts a run that waits in the middle of the first row it writes until the gate is opened.
fn started_in_a_row(lab: &Lab, command: Command) -> (Live, Gate) {
    let (live, gate) = lab.held(command, "csv.mid_row");
    gate.reached();
    assert!(is_held_in_a_row(&lab.only_run("runs")));
    (live, gate)
}

#[test]
fn a_first_signal_ends_a_run_after_a_checkpoint_of_its_last_whole_step() {
    for (signal, code, micro_steps) in [("INT", 130, 1500), ("TERM", 143, 1500), ("TERM", 143, 500)] {
        let lab = Lab::new();
        let args = slow(micro_steps);
        let (mut live, gate) = started_in_a_step(&lab, micro_steps, 2);
        live.signal(signal);
        gate.open();
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
        let whole = undisturbed(&lab, &args);
        let of_the_logs = |run| support::without(essence(run), "checkpoints/");
        assert!(of_the_logs(&run) == of_the_logs(&whole), "SIG{signal} after {steps} steps");
        // all but the checkpoint that the signal asked for
        let extra = format!("checkpoints/step-{steps:08}/");
        let common = |run| {
            let kept = essence(run).into_iter().filter(|(name, _)| !name.starts_with(&extra));
            kept.collect::<Vec<_>>()
        };
        assert!(common(&run) == common(&whole), "SIG{signal} after {steps} steps");
    }
}

#[test]
fn a_stop_during_the_first_step_saves_the_initial_state() {
    let lab = Lab::new();
    let args = slow(3000);
    // the first row is that of the evaluation before the first step
    let (mut live, gate) = started_in_a_row(&lab, lab.command(&args));
    live.signal("INT");
    gate.open();
    let run = lab.only_run("runs");
    live.end().expect(130).says(&["interrupted after 0 of 6 steps"]);
    assert_eq!((rows(&run), checkpoints(&run)), (0, vec!["step-00000000".to_owned()]));
    // the evaluation is made again, then comes the first step; the next evaluation is due after the second
    let (command, said) = saying(&lab, &args);
    let (mut live, gate) = lab.held(command, "csv.before_row:2");
    gate.reached();
    live.signal("INT");
    wait_for_words(&said, "SIGINT: stopping");
    gate.open();
    live.end().expect(130);
    assert_eq!((rows(&run), checkpoints(&run).len()), (1, 2));
    assert_eq!(support::val_csv(&run).numbers("step"), [0.0], "the first evaluation is not there twice");
}

#[test]
fn the_last_validation_loss_of_a_run_stays_on_record_while_its_row_stays_in_the_log() {
    let lab = Lab::new();
    let args = tiny("runs", &["eval.every=6"]);
    // interrupts a session at this row of its logs, after the step of it
    let interrupt = |row: u32, step: u64| {
        let (command, said) = saying(&lab, &args);
        let (mut live, gate) = lab.held(command, &format!("csv.before_row:{row}"));
        gate.reached();
        live.signal("INT");
        wait_for_words(&said, "SIGINT: stopping");
        gate.open();
        live.end().expect(130);
        let run = lab.only_run("runs");
        assert_eq!(record(&run)["steps_done"], step);
        let logged = val_csv(&run).numbers("val_loss");
        (record(&run)["results"]["final_val_loss"].as_f64(), logged[logged.len() - 1] as f32, run)
    };
    // evaluated before the first step and after the sixth
    let (first, logged, _) = interrupt(9, 7);
    assert_eq!(first.map(|loss| loss as f32), Some(logged));
    let (second, _, run) = interrupt(1, 8);
    assert_eq!(second, first, "the second session has evaluated nothing");
    for step in [7, 8] {
        fs::remove_dir_all(run.join(format!("checkpoints/step-{step:08}"))).expect("a checkpoint");
    }
    let (third, logged, run) = interrupt(1, 5);
    assert_eq!(val_csv(&run).numbers("step"), [0.0]);
    assert_eq!(third, Some(f64::from(logged)), "the row of the sixth step was cut back");
}

/// The program with its stderr in a file, so that a test can read what a process has said that still runs.
pub(crate) fn saying(lab: &Lab, args: &[String]) -> (Command, PathBuf) {
    let mut command = lab.launcher("sh");
    command.args(["-c", "exec \"$RUNNER\" \"$@\" 2>said", "sh"]).args(args);
    (command, lab.path("said"))
}

pub(crate) fn wait_for_words(said: &Path, words: &str) {
    wait(words, || fs::read_to_string(said).is_ok_and(|text| text.contains(words)));
}

/// Places in a step of the tiny model where it looks up: before each of its two passes, after five kernels of each
/// layer forward and eight backward, and after the head.
const PLACES: u64 = 2 * (1 + 2 * 5 + 1 + 2 * 8);

#[test]
fn a_first_signal_is_answered_at_once_and_cuts_a_step_off_that_is_repeated() {
    let sets = ["schedule.max_steps=4", "checkpoint.every=0", "eval.every=0"];
    let reference = Lab::new();
    let whole = essence(&undisturbed(&reference, &tiny("runs", &sets)));
    // before the step and its second pass, within layers both ways, at the head, and after the last kernel
    for place in [1, 2, 7, 12, 13, 20, 28, 29, 40, PLACES] {
        let (signal, code) = if place == 13 { ("TERM", 143) } else { ("INT", 130) };
        let lab = Lab::new();
        let args = tiny("runs", &sets);
        let (command, said) = saying(&lab, &args);
        // within the third step
        let (mut live, gate) = lab.held(command, &format!("step.part:{}", 2 * PLACES + place));
        gate.reached();
        let run = lab.only_run("runs");
        assert_eq!(rows(&run), 2);
        // the loop is held and cannot answer
        live.signal(signal);
        wait_for_words(&said, &format!("SIG{signal}: stopping"));
        // after the last look a stop comes too late for this step
        let or_next = if place == PLACES { ", or 3 if that is finished first" } else { "" };
        wait_for_words(&said, &format!("then saving step 2{or_next} ("));
        wait_for_words(&said, "ends at once, without saving");
        gate.open();
        live.end().expect(code);
        assert_eq!(rows(&run), 2, "a step that was cut off leaves no row, at {place}");
        assert_eq!(checkpoints(&run), ["step-00000002"], "at {place}");
        lab.run(&args).expect(0).says(&["step 2 of 4"]);
        let resumed = support::without(essence(&run), "step-00000002");
        assert!(resumed == whole, "at {place}");
    }
}

#[test]
fn a_signal_within_an_evaluation_cuts_it_off_and_it_is_made_again() {
    let sets = ["schedule.max_steps=4", "eval.every=2", "checkpoint.every=0"];
    let reference = Lab::new();
    let whole = essence(&undisturbed(&reference, &tiny("runs", &sets)));
    // two passes of one look before and eleven within
    for place in [1, 2, 11, 12, 13, 24] {
        let lab = Lab::new();
        let args = tiny("runs", &sets);
        let (command, said) = saying(&lab, &args);
        let (mut live, gate) = lab.held(command, &format!("evaluation.part:{}", 24 + place));
        gate.reached();
        let run = lab.only_run("runs");
        assert_eq!(rows(&run), 2);
        live.signal("INT");
        wait_for_words(&said, "SIGINT: stopping");
        gate.open();
        live.end().expect(130);
        assert_eq!(support::val_csv(&run).numbers("step"), [0.0], "at {place}");
        lab.run(&args).expect(0).says(&["step 2 of 4"]);
        let resumed = support::without(essence(&run), "step-00000002");
        assert!(resumed == whole, "at {place}");
    }
}

#[test]
fn without_a_terminal_a_slow_step_says_how_far_it_is() {
    let lab = Lab::new();
    let args = tiny("runs", &["schedule.max_steps=3", "eval.every=0"]);
    let (command, said) = saying(&lab, &args);
    let (mut live, gate) = lab.held(command, &format!("step.part:{}", PLACES / 2 + 2));
    // the model's first kernel of the second micro-step
    wait_for_words(&said, "step 0/3, next 5");
    wait_for_words(&said, " %, micro-step 2 of 2, ");
    gate.open();
    wait("the end", || live.is_over());
    live.end().expect(0);
    let said = fs::read_to_string(said).expect("a file");
    assert!(!said.contains("00:00:00"), "{said}");
    assert!(said.contains("  time     about ") && said.contains(", predicted at "), "{said}");
}

#[test]
fn a_signal_ends_all_recipes_of_a_call() {
    let lab = Lab::new();
    lab.write("next.toml", "extends = \"tiny.toml\"\nname = \"next\"\n");
    let mut args = slow(1000);
    args.insert(1, "next.toml".into());
    let (mut live, gate) = started(&lab, lab.command(&args), 1);
    live.signal("TERM");
    gate.open();
    live.end().expect(143).says(&["interrupted after"]);
    assert_eq!(lab.runs("runs").len(), 1, "{:?}", lab.runs("runs"));
}

#[test]
fn a_second_signal_ends_at_once() {
    let lab = Lab::new();
    // the checkpoint that the first signal asks for is never done
    let args = tiny("runs", &["schedule.max_steps=1000000", "checkpoint.every=0"]);
    let (mut live, gate) = lab.held(lab.command(args), "checkpoint.mid_model");
    let run = lab.only_run("runs");
    wait("a step", || rows(&run) >= 1);
    live.signal("INT");
    gate.reached();
    // the first ones repeat the first signal
    wait("the end", || {
        live.signal("TERM");
        std::thread::sleep(Duration::from_millis(50));
        live.is_over()
    });
    live.end().expect(143).says(&["SIGTERM: ended at once, without waiting for a checkpoint"]);
    let written = checkpoints(&run).into_iter().find(|name| name.starts_with("step-"));
    assert_eq!(written, None, "a second signal waits for no checkpoint");
    assert_eq!(record(&run)["status"], "running", "a second signal waits for no record");
}

/// The program with SIGHUP at its default, also where the tests run under `nohup` and what they start inherits that.
pub(crate) fn minds_hang_ups(lab: &Lab, args: &[String]) -> Command {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let plain = lab.command(args);
    if mask.is_none_or(|mask| mask & 1 == 0) {
        return plain;
    }
    let mut command = lab.launcher("env");
    command.arg("--default-signal=HUP").arg(plain.get_program()).args(args);
    command
}

/// The directory of a run that nothing disturbed, with the arguments of one that was.
fn undisturbed(lab: &Lab, args: &[String]) -> PathBuf {
    let mut args = args.to_vec();
    args[2] = "whole".into();
    lab.run_of(lab.run(&args).expect(0))
}

#[test]
fn a_terminal_that_closes_ends_a_run_after_a_checkpoint_unless_nohup_protects_it() {
    let lab = Lab::new();
    let args = slow(1000);
    let (mut live, gate) = started(&lab, minds_hang_ups(&lab, &args), 2);
    live.signal("HUP");
    gate.open();
    live.end().expect(129).says(&["interrupted after", "the same command resumes"]);
    let run = lab.only_run("runs");
    let steps = rows(&run);
    assert_eq!(checkpoints(&run).last(), Some(&format!("step-{steps:08}")));
    assert_eq!(record(&run)["status"], "interrupted");
    let nohup = ["-c", "trap '' HUP; exec \"$RUNNER\" \"$@\"", "nohup"];
    let mut command = lab.launcher("sh");
    command.args(nohup).args(&args);
    let (mut live, gate) = started_in_a_row(&lab, command);
    live.signal("HUP");
    gate.open();
    live.end().expect(0);
    let whole = undisturbed(&lab, &args);
    let of_the_logs = |run| support::without(essence(run), "checkpoints/");
    assert!(of_the_logs(&run) == of_the_logs(&whole));
}

/// Ends a run that waits for a reader, who does not come.
fn ends_after_a_checkpoint(mut live: Live, run: &Path) {
    live.signal("TERM");
    wait("the end", || live.is_over());
    live.end().expect(143);
    let at = record(run);
    assert_eq!(at["status"], "interrupted");
    let step = at["steps_done"].as_u64().expect("a number");
    assert_eq!(checkpoints(run).last(), Some(&format!("step-{step:08}")));
}

#[test]
fn a_reader_that_does_not_read_keeps_no_run_from_ending_after_a_checkpoint() {
    for format in [&["--verbose"][..], &["--log-format", "json"]] {
        let lab = Lab::new();
        let many = ["schedule.max_steps=1000000", "eval.every=1"];
        // both pipes are read at the end alone
        let live = lab.start(tiny("runs", &many).iter().map(String::as_str).chain(format.iter().copied()));
        let run = lab.only_run("runs");
        let mut known = 0;
        wait("a pipe that is full", || {
            let before =
                std::mem::replace(&mut known, fs::read(run.join("val.csv")).map_or(0, |log| log.len()));
            std::thread::sleep(Duration::from_secs(1));
            known > 1000 && before == known
        });
        ends_after_a_checkpoint(live, &run);
    }
}

/// A terminal: the end that a person types at, and the end of programs.
fn terminal() -> [fs::File; 2] {
    let mut ends = [-1; 2];
    let [person, program] = &mut ends;
    // SAFETY: both are places for a number, and null asks for the usual settings and no name.
    let code = unsafe { libc::openpty(person, program, ptr::null_mut(), ptr::null_mut(), ptr::null_mut()) };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: they have just been opened, and nothing else has them.
    ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) }.into())
}

#[test]
fn a_terminal_that_is_stopped_or_not_read_keeps_no_run_from_ending_after_a_checkpoint() {
    for (typed, how) in [(&b"\x13"[..], &["--verbose"][..]), (b"\x13", &[]), (b"", &["--verbose"])] {
        let lab = Lab::new();
        let many = ["schedule.max_steps=1000000", "eval.every=1"];
        let [mut person, program] = terminal();
        let mut command =
            lab.command(tiny("runs", &many).iter().map(String::as_str).chain(how.iter().copied()));
        command.env("TERM", "xterm");
        let live = spawned_with(command, program);
        wait("a run", || fs::read_dir(lab.path("runs")).is_ok_and(|mut dir| dir.next().is_some()));
        let run = lab.only_run("runs");
        let rows_of_the_log = || fs::read(run.join("val.csv")).map_or(0, |log| log.len());
        wait("steps", || rows_of_the_log() > 1000);
        person.write_all(typed).expect("typed");
        let mut known = 0;
        wait("a program that waits", || {
            let before = std::mem::replace(&mut known, rows_of_the_log());
            std::thread::sleep(Duration::from_secs(1));
            before == known
        });
        ends_after_a_checkpoint(live, &run);
    }
}

#[test]
fn a_checkpoint_that_is_asked_for_is_written_at_once_and_the_run_goes_on() {
    for background in ["checkpoint.background=false", "checkpoint.background=true"] {
        let lab = Lab::new();
        let mut args = slow(1500);
        args.extend(["--set".to_owned(), background.to_owned()]);
        let (mut live, gate) = started(&lab, lab.command(&args), 2);
        let run = lab.only_run("runs");
        live.signal("USR1");
        gate.open();
        wait("a checkpoint", || run.join("checkpoints").is_dir() && !checkpoints(&run).is_empty());
        // its name may still be that of a directory being written
        wait("its name", || checkpoints(&run).iter().any(|name| name.starts_with("step-")));
        let saved: u64 = checkpoints(&run)[0]["step-".len()..].parse().expect("a step");
        assert!((2..5).contains(&saved), "not one that was due");
        live.end()
            .expect(0)
            .says(&[&format!("checkpoint of step {saved} as asked by SIGUSR1"), "finished in"]);
        let whole = undisturbed(&lab, &args);
        let common = |run| support::without(essence(run), &format!("step-{saved:08}"));
        assert!(common(&run) == common(&whole), "{background}");
    }
}

/// The system gives the first process of a container no default actions.
#[test]
fn signals_end_process_1_as_any_other() {
    let script = "unshare --pid --fork \"$RUNNER\" \"$@\" >said 2>&1 & shell=$!
        until child=$(cat /proc/$shell/task/$shell/children) && [ -n \"$child\" ]; do sleep 0.05; done
        until grep -q \"$word\" said; do sleep 0.05; done
        kill -TERM $child; wait $shell; echo $?";
    // only root may make a namespace of processes
    let may = Command::new("unshare").args(["--pid", "--fork", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        return;
    }
    for (args, word) in
        [(&["bench", "tiny.toml", "--steps", "1000000"][..], "."), (&["tiny.toml", "--verbose"], "^step 2/")]
    {
        let lab = Lab::new();
        let mut command = lab.launcher("sh");
        command
            .env("word", word)
            .args(["-c", script, "sh"])
            .args(args)
            .args(["--set", "schedule.max_steps=1000000"]);
        let ended = support::ended(command);
        assert_eq!(ended.stdout.trim(), "143", "{args:?} {}", ended.stderr);
        if args[0] == "tiny.toml" {
            assert!(!checkpoints(&lab.only_run("runs")).is_empty(), "training saves first");
        }
    }
}
