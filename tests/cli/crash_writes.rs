//! A run that dies or fails at any of its writes, once started again, ends with the bytes of one that was left in peace:
//! through the program, with checkpoints written between the steps and in the background.

use crate::support;

use std::fs;
use std::path::Path;
use support::{Ended, Lab, ended, essence, record, rows, tiny};

const SETS: [&str; 5] =
    ["schedule.max_steps=10", "checkpoint.every=2", "checkpoint.keep=2", "sample.every=4", "sample.prompt=!"];

fn sets(background: bool) -> Vec<&'static str> {
    let how = if background { "checkpoint.background=true" } else { "checkpoint.background=false" };
    SETS.into_iter().chain([how]).collect()
}

fn with_fault(lab: &Lab, runs: &str, sets: &[&str], fault: &str) -> Ended {
    let mut command = lab.command(tiny(runs, sets));
    command.env("RUNNER_FAULT", fault);
    ended(command)
}

/// Where the program writes, in the order of a run's life.
const POINTS: [&str; 20] = [
    "recipe.mid_write",
    "recipe.before_rename",
    "run_json.mid_write",
    "run_json.before_rename:2",
    "run_json.after_rename:3",
    "csv_header.mid_write",
    "csv_header.before_rename:2",
    "csv.before_row:3",
    "csv.mid_row",
    "csv.mid_row:7",
    "samples.mid_write:2",
    "checkpoint.mid_model:5",
    "checkpoint.after_model:2",
    "checkpoint.mid_optimizer:40",
    "checkpoint.after_optimizer:3",
    "checkpoint.before_rename",
    "checkpoint.before_rename:4",
    "checkpoint.after_rename:3",
    "rotate.before_delete",
    "rotate.mid_delete:2",
];

#[test]
fn the_program_may_die_at_any_write() {
    let lab = Lab::new();
    for background in [false, true] {
        let sets = sets(background);
        let whole = essence(&lab.train_in(&format!("whole-{background}"), &sets));
        // what else is written does not know of the thread
        let concerned =
            |point: &&&str| !background || point.contains("rotate") || point.contains("checkpoint");
        for point in POINTS.iter().filter(concerned) {
            let runs = format!("runs-{background}-{point}").replace([':', '.'], "-");
            let died = with_fault(&lab, &runs, &sets, point);
            assert_eq!(died.code, None, "{point} was never reached: {}", died.stderr);
            lab.run(tiny(&runs, &sets)).expect(0);
            assert!(essence(&lab.only_run(&runs)) == whole, "{point}, in the background: {background}");
        }
    }
}

#[test]
fn a_write_that_fails_ends_the_run_with_its_reason_and_loses_nothing() {
    let lab = Lab::new();
    for background in [false, true] {
        let sets = sets(background);
        let whole = essence(&lab.train_in(&format!("whole-{background}"), &sets));
        for (point, file) in [
            ("recipe.mid_write", "recipe.toml"),
            ("run_json.mid_write", "run.json"),
            ("csv_header.mid_write", "train.csv"),
            ("csv.mid_row:4", "train.csv"),
            ("samples.mid_write", "samples.txt"),
            ("checkpoint.mid_model:3", "step-00000002"),
            ("checkpoint.mid_optimizer:60", "step-0000000"),
            ("checkpoint.before_rename:2", "step-00000004"),
            ("rotate.before_delete", "step-00000002"),
        ] {
            let (kind, reason) = match background {
                false => ("error", "no space left"),
                true => ("eio", "nput/output error"),
            };
            let runs = format!("runs-{background}-{kind}-{point}").replace([':', '.'], "-");
            let failed = with_fault(&lab, &runs, &sets, &format!("{kind}:{point}"));
            failed.expect(1).says(&[file, reason]);
            let run = lab.only_run(&runs);
            if run.join("run.json").exists() {
                assert!(["failed", "running"].iter().any(|status| record(&run)["status"] == *status));
            }
            lab.run(tiny(&runs, &sets)).expect(0);
            assert!(essence(&run) == whole, "{kind} at {point}, in the background: {background}");
        }
    }
}

#[test]
fn training_goes_on_while_a_checkpoint_is_written_and_the_next_one_waits() {
    let lab = Lab::new();
    let sets = [&SETS[1..], &["schedule.max_steps=10", "checkpoint.background=true"]].concat();
    let whole = essence(&lab.train_in("whole", &sets));
    let (live, gate) = lab.held(lab.command(tiny("runs", &sets)), "checkpoint.mid_optimizer");
    let run = lab.only_run("runs");
    // the checkpoint of step 2 is held half-written, steps 2 and 3 are taken, the checkpoint of step 4 waits for it
    support::wait("two more steps", || rows(&run) == 4);
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(rows(&run), 4);
    let names = |dir: &Path| {
        let entries =
            fs::read_dir(dir).expect("checkpoints").map(|entry| entry.expect("an entry").file_name());
        entries.map(|name| name.to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let nameless = names(&run.join("checkpoints"));
    assert!(nameless.len() == 1 && nameless[0].starts_with(".tmp-step-00000002"), "{nameless:?}");
    gate.open();
    live.end().expect(0);
    assert!(essence(&run) == whole);
}

#[test]
fn a_run_killed_while_a_checkpoint_is_written_in_the_background_loses_nothing_before() {
    let lab = Lab::new();
    let sets = sets(true);
    let whole = essence(&lab.train_in("whole", &sets));
    // the second or the third checkpoint is held, and training waits where the next one is due
    for (point, steps) in
        [("checkpoint.mid_model:30", 6), ("checkpoint.mid_optimizer:120", 8), ("rotate.mid_delete", 8)]
    {
        let runs = point.replace([':', '.'], "-");
        let (mut live, gate) = lab.held(lab.command(tiny(&runs, &sets)), point);
        gate.reached();
        let run = lab.only_run(&runs);
        support::wait("steps", || rows(&run) == steps);
        assert!(live.kill(), "{point}");
        drop(live);
        let resumed = lab.run(tiny(&runs, &sets));
        resumed.expect(0);
        assert!(!resumed.stderr.contains("cannot be used"), "{}", resumed.stderr);
        assert!(essence(&run) == whole, "{point}");
    }
}

/// A limit on processes is one on threads, too.
#[test]
fn a_checkpoint_for_which_no_thread_is_started_is_written_all_the_same() {
    let lab = Lab::new();
    let sets = sets(true);
    let whole = essence(&lab.train_in("whole", &sets));
    for nth in [1, 3] {
        let runs = format!("runs-{nth}");
        with_fault(&lab, &runs, &sets, &format!("error:checkpoint.thread:{nth}")).expect(0);
        assert!(essence(&lab.only_run(&runs)) == whole, "{nth}");
    }
}

#[test]
fn a_signal_waits_for_the_checkpoint_that_is_being_written() {
    let lab = Lab::new();
    let sets = [&SETS[1..], &["schedule.max_steps=100000", "checkpoint.background=true"]].concat();
    let (mut live, gate) = lab.held(lab.command(tiny("runs", &sets)), "checkpoint.after_model");
    gate.reached();
    let run = lab.only_run("runs");
    support::wait("a row", || rows(&run) >= 3);
    live.signal("TERM");
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!live.is_over(), "it has left a checkpoint behind that is not whole");
    gate.open();
    live.end().expect(143).says(&["interrupted after"]);
    let steps = rows(&run);
    assert_eq!(support::checkpoints(&run).last(), Some(&format!("step-{steps:08}")));
    assert_eq!(record(&run)["status"], "interrupted");
}
