//! Ranks that `mpirun` starts, with the feature `mpi`.

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use support::{Ended, Lab, Live, checkpoints, column, record, rows, spawned, tiny, wait};

/// A hundred steps whose rows divide among 1, 2 and 4 ranks.
const LONG: [&str; 5] = [
    "batch.micro_batch=1",
    "schedule.max_steps=100",
    "schedule.warmup_steps=10",
    "optimizer.lr=1e-3",
    "checkpoint.every=50",
];

/// One test at a time: ranks poll while they wait for each other, so two jobs on two cores slow each other down.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `mpirun` with `size` ranks of the program.
fn mpirun(lab: &Lab, size: usize, more: &[&str], args: &[String]) -> Command {
    let mut launcher = lab.launcher("mpirun");
    launcher
        .args(["-n", &size.to_string()])
        .args(more)
        .arg(lab.command(args).get_program())
        .args(args)
        // mpirun otherwise refuses to start more ranks than cores, or to run in a container
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .env("OMPI_MCA_hwloc_base_binding_policy", "none")
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    launcher
}

fn sized(runs: &str, size: usize, more: &[&str]) -> Vec<String> {
    let size = format!("batch.world_size={size}");
    let sets: Vec<&str> = [size.as_str()].into_iter().chain(more.iter().copied()).collect();
    tiny(runs, &sets)
}

/// Starts ranks and waits for some steps of their run. Ranks that end before fail the test with what they said.
fn begun(lab: &Lab, command: Command, runs: &str, steps: usize) -> (Live, PathBuf) {
    let mut live = spawned(command);
    let mut is_over = false;
    wait("some steps, or the end of the ranks", || {
        is_over = live.is_over();
        is_over || lab.runs(runs).first().is_some_and(|run| rows(&lab.path(runs).join(run)) > steps)
    });
    if is_over {
        panic!("the ranks ended: {:?}", live.end());
    }
    let run = lab.only_run(runs);
    (live, run)
}

fn finished(lab: &Lab, size: usize, more: &[&str]) -> Ended {
    let args = sized(&format!("mpi-{size}-{}", more.len()), size, more);
    let ended = support::ended(mpirun(lab, size, &[], &args));
    ended.expect(0);
    ended
}

#[test]
fn two_and_four_ranks_give_the_losses_of_one() {
    let _turn = turn();
    let lab = Lab::new();
    let alone = lab.train(&LONG);
    for (size, shard) in [(2, false), (4, false), (2, true), (4, true)] {
        let mut sets = LONG.to_vec();
        if shard {
            sets.push("distributed.shard_optimizer=true");
        }
        let ended = finished(&lab, size, &sets);
        let run = lab.run_of(&ended);
        assert_eq!(rows(&run), 100);
        for (step, (a, b)) in column(&run, "loss").iter().zip(&column(&alone, "loss")).enumerate() {
            assert!((a - b).abs() <= 1e-6 * b, "{size} ranks, step {step}: {a} and {b}");
        }
        let plan = &record(&run)["plan"];
        assert_eq!(plan["world_size"], size);
        // one rank can resume what several ranks have written
        let name = run.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        std::fs::remove_dir_all(run.join("checkpoints/step-00000100")).expect("the last checkpoint");
        let record_path = run.join("run.json");
        let text = std::fs::read_to_string(&record_path)
            .expect("a record")
            .replace("\"finished\"", "\"interrupted\"");
        std::fs::write(&record_path, text).expect("written");
        let parent = run.parent().expect("a directory of runs").display().to_string();
        let resumed = lab.run(["--resume", &name, "--runs-dir", &parent, "--set", "batch.world_size=1"]);
        resumed.expect(0).says(&["step 50 of 100"]);
        let (last, first) = (column(&run, "loss"), column(&alone, "loss"));
        assert!((last[99] - first[99]).abs() <= 1e-6 * first[99]);
    }
}

/// Process ids of the ranks that `mpirun` started, in the order of ranks.
fn ranks(live: &mut Live) -> Vec<u32> {
    let children = format!("/proc/{0}/task/{0}/children", live.id());
    let read = |path: &str| std::fs::read(path).unwrap_or_default();
    let rank = |id: &u32| -> Option<usize> {
        let environment = read(&format!("/proc/{id}/environ"));
        let text = String::from_utf8_lossy(&environment).into_owned();
        text.split('\0').find_map(|pair| pair.strip_prefix("OMPI_COMM_WORLD_RANK=")?.parse().ok())
    };
    let text = String::from_utf8_lossy(&read(&children)).into_owned();
    let mut ids: Vec<(usize, u32)> = text
        .split_whitespace()
        .filter_map(|id| id.parse().ok())
        .filter_map(|id| Some((rank(&id)?, id)))
        .collect();
    ids.sort_unstable();
    ids.into_iter().map(|(_, id)| id).collect()
}

#[test]
fn a_rank_that_is_killed_ends_the_job_and_the_last_checkpoint_stays() {
    let _turn = turn();
    let lab = Lab::new();
    let sets = ["batch.micro_batch=1", "schedule.max_steps=1000000", "checkpoint.every=5"];
    let command = mpirun(&lab, 4, &[], &sized("runs", 4, &sets));
    let (mut live, run) = begun(&lab, command, "runs", 8);
    let victim = ranks(&mut live)[2];
    let sent = Command::new("sh").args(["-c", "kill -KILL \"$0\"", &victim.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
    let ended = live.end();
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    assert!(ended.stderr.contains("rank 2"), "{}", ended.stderr);
    assert!(!checkpoints(&run).is_empty());
    // the same command resumes
    let before = rows(&run);
    let (mut again, _) = begun(&lab, mpirun(&lab, 2, &[], &sized("other", 2, &sets)), "other", 3);
    again.signal("TERM");
    again.end();
    assert!(before >= 8);
}

#[test]
fn sigterm_to_mpirun_makes_one_checkpoint() {
    let _turn = turn();
    let lab = Lab::new();
    let sets = ["batch.micro_batch=1", "schedule.max_steps=1000000", "checkpoint.every=0"];
    // mpirun gives its processes one second to end unless told otherwise
    let patient = ["--mca", "odls_base_sigkill_timeout", "5"];
    let command = mpirun(&lab, 2, &patient, &sized("runs", 2, &sets));
    let (mut live, run) = begun(&lab, command, "runs", 3);
    live.signal("TERM");
    let ended = live.end();
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    assert!(run.join("checkpoints").exists(), "{}", ended.stderr);
    assert_eq!(checkpoints(&run).len(), 1, "{}", ended.stderr);
    assert_eq!(record(&run)["status"], "interrupted");
}

#[test]
fn a_recipe_for_another_number_of_ranks_is_refused_with_both_numbers() {
    let _turn = turn();
    let lab = Lab::new();
    let command = mpirun(&lab, 2, &[], &sized("runs", 4, &["batch.micro_batch=1"]));
    let ended = support::ended(command);
    ended.expect(2).says(&["batch.world_size is 4", "mpirun (OMPI_COMM_WORLD_SIZE = 2) started 2 ranks"]);
    assert_eq!(ended.stderr.matches("batch.world_size is 4").count(), 1, "{}", ended.stderr);
}

#[test]
fn a_rank_that_hangs_is_named_by_the_others() {
    let _turn = turn();
    let lab = Lab::new();
    let sets = [
        "batch.micro_batch=1",
        "schedule.max_steps=1000000",
        "checkpoint.every=5",
        "distributed.timeout_s=5",
    ];
    let command = mpirun(&lab, 4, &[], &sized("runs", 4, &sets));
    let (mut live, run) = begun(&lab, command, "runs", 8);
    let victim = ranks(&mut live)[2].to_string();
    let signal = |name: &str| Command::new("sh").args(["-c", "kill -\"$0\" \"$1\"", name, &victim]).status();
    assert!(signal("STOP").is_ok_and(|status| status.success()));
    let ended = live.end();
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    assert!(ended.stderr.contains("rank 2 of 4 did not answer for 5 s"), "{}", ended.stderr);
    assert!(!checkpoints(&run).is_empty());
}
