//! A run that dies at any of its writes ends, once restarted, with the files of one that did not.
//!
//! The run is a miniature: its parameters are a function of the step. It lives in a child process (this test binary
//! again), because a fault aborts the process it strikes.

use runner::engine::State;
use runner::engine::optimizer::adamw::{EXP_AVG, EXP_AVG_SQ};
use runner::model::{Dims, ParamLayout};
use runner::run::checkpoint::{self, CheckpointState, Writer};
use runner::run::row::Row;
use runner::run::{RunDir, RunError, RunRecord, RunStatus, TrainLog, TrainRow, cut_back, fault, status};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const RUNS: &str = "RUN_FAULTS_RUNS_DIR";
const FRESH: &str = "RUN_FAULTS_FRESH";
const STEPS: u64 = 8;

/// The other tests start this one as a process of its own, with a directory of runs and mostly with a fault.
#[test]
fn a_run_that_is_left_in_peace_finishes() {
    let own = tempfile::tempdir().expect("tempdir");
    let runs = std::env::var_os(RUNS).map_or(own.path().to_owned(), PathBuf::from);
    train(&runs, std::env::var_os(FRESH).is_some()).expect("no fault");
    assert_eq!(status(&runs.join("r")).expect("readable"), RunStatus::Finished);
}

/// What a trainer does with a run directory: a checkpoint every second step, two kept.
fn train(runs: &Path, fresh: bool) -> Result<(), RunError> {
    let dims = Dims { n_layer: 1, n_head: 1, n_embd: 4, block_size: 4, vocab_size: 5, padded_vocab: 8 };
    let layout = ParamLayout::new(&dims);
    let run = RunDir::create_or_open(runs, "r", "seed = 1\n", fresh)?;
    let mut record = run.record()?.unwrap_or_else(|| RunRecord::new("r", "r", "00"));
    if record.status == RunStatus::Finished {
        return Ok(());
    }
    record.status = RunStatus::Running;
    run.write_record(&record)?;
    let newest = checkpoint::newest_intact(run.path())?;
    assert!(newest.rejected.is_empty(), "a crash damages no checkpoint: {:?}", newest.rejected);
    let first = newest.reader.map_or(0, |reader| reader.state().step);
    let kept = cut_back(run.open_dir(), "train.csv", first, None)?;
    assert_eq!(kept.rows, first, "every row that led to the checkpoint is there");
    let mut log = TrainLog::open(run.open_dir())?;
    for step in first..STEPS {
        log.append(&row(step))?;
        if step % 2 == 1 {
            log.sync()?;
            let state = CheckpointState { step: step + 1, ..CheckpointState::default() };
            let states = [State::Parameters, State::Optimizer(&EXP_AVG), State::Optimizer(&EXP_AVG_SQ)];
            let mut writer = Writer::begin(run.open_dir(), &dims, &layout, states.to_vec(), state, &[])?;
            for (i, which) in states.into_iter().enumerate() {
                writer.put(which, &vec![step as f32 + i as f32 / 4.0; layout.len])?;
            }
            let written = writer.finish()?;
            checkpoint::rotate(run.open_dir(), 2, &[], Some(&written))?;
        }
    }
    record.status = RunStatus::Finished;
    run.write_record(&record)
}

fn row(step: u64) -> TrainRow {
    TrainRow {
        step,
        tokens: step * 16,
        loss: 1.0 / (step as f32 + 3.0),
        lr: 1e-3,
        grad_norm: 0.5,
        elapsed_s: step as f64,
        ..TrainRow::UNKNOWN
    }
}

/// Runs the child and tells whether it finished.
fn start(runs: &Path, fault: Option<&str>, fresh: bool) -> bool {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command
        .args(["--exact", "run_faults::a_run_that_is_left_in_peace_finishes"])
        .env(RUNS, runs)
        .env_remove(fault::VARIABLE);
    if let Some(fault) = fault {
        command.env(fault::VARIABLE, fault);
    }
    if fresh {
        command.env(FRESH, "1");
    }
    command.output().expect("start").status.success()
}

/// Every file of a run but the lock and the record, which tell of processes and times.
fn contents(dir: &Path, below: &str) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("read") {
        let entry = entry.expect("entry");
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            found.insert(name.clone(), Vec::new());
            found.extend(contents(&entry.path(), &format!("{name}/")));
        } else if !["lock", "run.json"].contains(&name.as_str()) {
            found.insert(name, fs::read(entry.path()).expect("read"));
        }
    }
    found
}

fn undisturbed() -> BTreeMap<String, Vec<u8>> {
    let runs = tempfile::tempdir().expect("tempdir");
    assert!(start(runs.path(), None, false));
    let found = contents(&runs.path().join("r"), "");
    assert_eq!(found.len(), 3 + 2 * 5, "recipe, log, checkpoints and two of them: {:?}", found.keys());
    found
}

/// Lets the faults strike one start after another, then starts without; the run must be as if nothing had happened.
fn survives(expected: &BTreeMap<String, Vec<u8>>, faults: &[&str]) {
    let runs = tempfile::tempdir().expect("tempdir");
    let run = runs.path().join("r");
    for fault in faults {
        assert!(!start(runs.path(), Some(fault), false), "{fault} was never reached");
        if run.join("recipe.toml").exists() && !fault.contains("run_json.after_rename:2") {
            assert_eq!(status(&run).expect("readable"), RunStatus::Interrupted, "after {fault}");
        }
    }
    assert!(start(runs.path(), None, false), "restart after {faults:?}");
    assert_eq!(status(&run).expect("readable"), RunStatus::Finished, "after {faults:?}");
    let found = contents(&run, "");
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "after {faults:?}");
    assert!(found == *expected, "other bytes after {faults:?}");
}

#[test]
fn a_process_may_die_at_any_write() {
    let expected = undisturbed();
    for fault in [
        "recipe.mid_write",
        "recipe.before_rename",
        "recipe.after_rename",
        "run_json.mid_write",
        "run_json.before_rename:2",
        "run_json.after_rename:2",
        "csv_header.mid_write",
        "csv_header.before_rename",
        "csv.before_row",
        "csv.mid_row",
        "csv.mid_row:6",
        "checkpoint.mid_model:5",
        "checkpoint.after_model:2",
        "checkpoint.mid_optimizer:40",
        "checkpoint.after_optimizer",
        "checkpoint.before_rename",
        "checkpoint.before_rename:3",
        "checkpoint.after_rename:3",
        "rotate.before_delete",
        "rotate.mid_delete:2",
        "rotate.mid_delete:4",
    ] {
        survives(&expected, &[fault]);
    }
}

#[test]
fn a_write_may_fail_at_any_point() {
    let expected = undisturbed();
    for fault in [
        "error:recipe.before_rename",
        "error:run_json.mid_write",
        "error:csv_header.before_rename",
        "error:csv.mid_row:4",
        "error:checkpoint.mid_model:3",
        "error:checkpoint.after_optimizer:2",
        "error:checkpoint.before_rename",
        "error:rotate.before_delete",
        "error:rotate.mid_delete:3",
    ] {
        survives(&expected, &[fault]);
    }
}

#[test]
fn a_restart_may_die_too() {
    let expected = undisturbed();
    // Row 4 and half of row 5 lie behind the checkpoint of step 4; a sweep needs something that the crash left.
    for faults in [
        &["csv.mid_row:6", "csv_cut.mid_write", "csv_cut.mid_write"][..],
        &["csv.mid_row:6", "csv_cut.before_rename", "csv_cut.before_rename"],
        &["csv.mid_row:6", "csv_cut.after_rename", "csv.mid_row:2"],
        &["csv.mid_row:6", "error:csv_cut.before_rename"],
        &["checkpoint.after_model:3", "sweep.mid_delete", "sweep.mid_delete:2"],
        &["rotate.mid_delete:2", "error:sweep.mid_delete"],
    ] {
        survives(&expected, faults);
    }
}

#[test]
fn discarding_a_run_may_be_cut_short() {
    let expected = undisturbed();
    for fault in
        ["discard.before_delete", "discard.before_delete:2", "discard.mid_delete:4", "discard.between:2"]
    {
        let runs = tempfile::tempdir().expect("tempdir");
        assert!(start(runs.path(), None, false));
        assert!(!start(runs.path(), Some(fault), true), "{fault} was never reached");
        assert!(start(runs.path(), None, false), "restart after {fault}");
        assert!(contents(&runs.path().join("r"), "") == expected, "other bytes after {fault}");
    }
}

#[test]
fn a_replacement_that_was_cut_short_is_undone() {
    let expected = undisturbed();
    let runs = tempfile::tempdir().expect("tempdir");
    let run = runs.path().join("r");
    assert!(!start(runs.path(), Some("csv.before_row:3"), false));
    let good = checkpoint::path_of(&run, 2);
    let before = contents(&good, "");
    // A crash at checkpoint.mid_replace leaves the only checkpoint under this name.
    fs::rename(&good, good.with_file_name(".old-step-00000002")).expect("rename");
    assert!(!start(runs.path(), Some("csv.before_row"), false));
    assert_eq!(contents(&good, ""), before, "it has its name back");
    assert!(start(runs.path(), None, false));
    assert!(contents(&run, "") == expected);
}
