//! Many processes start one run, and sweeps are killed: one process trains a run at a time, and it is trained once.

#![cfg(target_os = "linux")]

use crate::support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use support::{Lab, essence, record, rows, tiny, wait};

#[test]
fn fifty_processes_start_and_one_trains_the_run() {
    let lab = Lab::new();
    let sets = ["schedule.max_steps=40"];
    let whole = essence(&lab.train_in("whole", &sets));
    let processes: Vec<_> = (0..50).map(|_| lab.start(tiny("runs", &sets))).collect();
    let ended: Vec<_> = processes.into_iter().map(support::Live::end).collect();
    let trained = |ended: &&support::Ended| ended.stderr.contains("step 0 of 40");
    assert_eq!(ended.iter().filter(trained).count(), 1);
    for ended in &ended {
        match ended.code {
            Some(0) if trained(&ended) => ended.says(&["finished in"]),
            Some(0) => ended.says(&["already finished"]),
            _ => ended.expect(3).says(&["is being written by process", "wait for it to end or stop it"]),
        };
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    }
    assert_eq!(lab.runs("runs").len(), 1, "{:?}", lab.runs("runs"));
    let run = lab.only_run("runs");
    assert_eq!(record(&run)["sessions"].as_array().map(Vec::len), Some(1));
    assert!(essence(&run) == whole);
}

/// Kills a process and all that it started.
fn kill_group(leader: u32) {
    let killed = Command::new("sh").args(["-c", "kill -KILL \"-$0\"", &leader.to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()), "the group {leader} was not killed");
}

/// Whether a process of this group lives. A zombie does not: its locks are gone, even if its parent never asks for it.
fn lives(leader: u32) -> bool {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let stats = processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats.into_iter().any(|stat| {
        // after the name in brackets: state, parent, group
        let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        !["Z", "X"].contains(&fields[0]) && fields[2] == leader.to_string()
    })
}

#[test]
fn a_sweep_that_is_killed_and_started_again_does_each_run_once() {
    let lab = Lab::new();
    let sets = ["schedule.max_steps=400", "checkpoint.every=20", "eval.every=0"];
    let sweep = |runs: &str| {
        let sets: Vec<_> = sets.iter().map(|set| format!("--set {set}")).collect();
        let sets = sets.join(" ");
        let line = format!(
            "for lr in 1e-3 2e-3 4e-3; do \"$RUNNER\" tiny.toml --runs-dir {runs} --set name=lr-$lr \
             --set optimizer.lr=$lr {sets} || exit; done"
        );
        let mut command = lab.launcher("sh");
        command.args(["-c", &line]).process_group(0);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    assert!(sweep("whole").status().expect("sh").success());
    let whole: Vec<_> = lab.runs("whole").iter().map(|id| essence(&lab.path("whole").join(id))).collect();
    assert_eq!(whole.len(), 3);
    let mut interrupted = 0;
    loop {
        let mut child = sweep("runs").spawn().expect("sh");
        // later and later, so that every start gets further than the one before
        let goal = 150 * (interrupted + 1);
        let taken = || lab.runs("runs").iter().map(|id| rows(&lab.path("runs").join(id))).sum::<usize>();
        wait("more steps", || taken() >= goal || child.try_wait().expect("a child").is_some());
        if let Some(status) = child.try_wait().expect("a child") {
            assert!(status.success(), "{status}");
            break;
        }
        kill_group(child.id());
        let _ = child.wait();
        wait("the end of the group", || !lives(child.id()));
        interrupted += 1;
    }
    assert!(interrupted > 1, "it was to be killed on the way");
    assert_eq!(lab.runs("runs"), lab.runs("whole"));
    let mut finished = 0;
    for (id, whole) in lab.runs("runs").iter().zip(&whole) {
        let run = lab.path("runs").join(id);
        assert!(essence(&run) == *whole, "{id} after {interrupted} kills");
        let record = record(&run);
        let sessions = record["sessions"].as_array().expect("sessions");
        finished += sessions.iter().filter(|session| session["to_step"] == 400).count();
        // each goes on from where the one before was saved
        let from: Vec<_> = sessions.iter().map(|session| session["from_step"].as_u64()).collect();
        assert!(from.is_sorted(), "{id}: {from:?}");
    }
    assert_eq!(finished, 3, "each run is finished by one process");
}

#[test]
fn what_a_crash_left_is_taken_over() {
    let lab = Lab::new();
    let run = lab.crash("runs", &[], "csv.before_row:8");
    // another machine's lock text, temporaries of every kind, and an old temporary of the cache
    fs::write(run.join("lock"), "process 1 on elsewhere since 1999-01-01T00:00:00Z\n").expect("written");
    fs::create_dir(run.join("checkpoints/.tmp-step-00000009-1-0")).expect("made");
    fs::write(run.join(".tmp-run.json-1-0"), "{").expect("written");
    let stale = lab.write("runs/.cache/.tmp-abc", "half a text");
    let fresh = lab.write("runs/.cache/.tmp-def", "half another");
    let hours = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    let file = fs::File::options().write(true).open(&stale).expect("open");
    file.set_modified(hours).expect("a time");
    lab.run(tiny("runs", &[])).expect(0).says(&["step 4 of 12"]);
    assert!(!stale.exists() && fresh.exists());
    assert!(essence(&run) == essence(&lab.train_in("whole", &[])));
}
