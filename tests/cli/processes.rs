//! Ranks as processes that a launcher starts: they join, agree, die and hang.

use crate::support;

use std::io::{Read, Write};
use std::iter;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use support::{Ended, Lab, Live, checkpoints, column, essence, record, rows, spawned, tiny};

/// A port that nothing listens on, below those that the system gives to connections.
pub(crate) fn port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let mut ports = std::iter::repeat_with(|| {
        let number = std::process::id() * 97 + TAKEN.fetch_add(1, Ordering::Relaxed);
        (FIRST + number % COUNT) as u16
    });
    ports.find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()).expect("one of many")
}

/// One rank as `torchrun` would start it.
pub(crate) fn rank(lab: &Lab, rank: usize, size: usize, port: u16, args: &[String]) -> Command {
    let mut command = lab.command(args);
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", size.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("LOCAL_WORLD_SIZE", size.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string());
    command
}

fn start(lab: &Lab, size: usize, args: &[String]) -> Vec<Live> {
    let port = port();
    (0..size).map(|r| spawned(rank(lab, r, size, port, args))).collect()
}

fn end(ranks: Vec<Live>) -> Vec<Ended> {
    ranks.into_iter().map(Live::end).collect()
}

/// The arguments that train `tiny.toml` with `size` ranks.
pub(crate) fn sized(runs: &str, size: usize, more: &[&str]) -> Vec<String> {
    let size = format!("batch.world_size={size}");
    let sets: Vec<&str> =
        [size.as_str(), "batch.micro_batch=1"].into_iter().chain(more.iter().copied()).collect();
    tiny(runs, &sets)
}

/// Long enough to be interrupted.
const ENDLESS: [&str; 2] = ["schedule.max_steps=1000000", "checkpoint.every=5"];

fn steps(run: &Path, least: usize) {
    support::wait("some steps", || run.join("train.csv").exists() && rows(run) > least);
}

#[test]
fn processes_train_as_threads_do() {
    let lab = Lab::new();
    for shard in ["distributed.shard_optimizer=false", "distributed.shard_optimizer=true"] {
        let threads = lab.run(sized(&format!("threads-{shard}"), 2, &[shard]));
        threads.expect(0);
        let ended = end(start(&lab, 2, &sized(&format!("processes-{shard}"), 2, &[shard])));
        for (rank, ended) in ended.iter().enumerate() {
            ended.expect(0);
            // only rank 0 prints, one line per run
            assert_eq!(ended.stdout.lines().count(), usize::from(rank == 0));
            assert!(rank == 0 || ended.stderr.is_empty(), "{}", ended.stderr);
        }
        let run = lab.run_of(&ended[0]);
        // both add up the ranks in the same order, so every bit agrees
        assert!(essence(&run) == essence(&lab.run_of(&threads)), "{shard}");
    }
}

#[test]
fn processes_branch_off_a_run_as_threads_do() {
    let lab = Lab::new();
    let sets = ["distributed.shard_optimizer=true", "checkpoint.keep=0"];
    let parent = lab.run_of(lab.run(sized("parents", 2, &sets)).expect(0));
    let name = parent.file_name().and_then(|name| name.to_str()).expect("a name");
    let from = format!("model.init_from={{run=\"parents/{name}\",step=4}}");
    let sets = [&sets[..], &[&from, "schedule.max_steps=14"]].concat();
    let threads = lab.run(sized("threads", 2, &sets));
    threads.expect(0);
    let ended = end(start(&lab, 2, &sized("processes", 2, &sets)));
    for ended in &ended {
        ended.expect(0);
    }
    let run = lab.run_of(&ended[0]);
    assert!(essence(&run) == essence(&lab.run_of(&threads)));
    assert_eq!(column(&run, "step")[0], 4.0);
    assert_eq!(checkpoints(&run), [4, 8, 12, 14].map(|step| format!("step-{step:08}")));
}

#[test]
fn three_processes_give_the_losses_of_one() {
    let lab = Lab::new();
    let more = ["batch.total_tokens=384", "schedule.max_steps=100", "optimizer.lr=1e-3"];
    let alone = lab.train(&more.iter().copied().chain(["batch.micro_batch=1"]).collect::<Vec<_>>());
    let ended = end(start(&lab, 3, &sized("three", 3, &more)));
    let run = lab.run_of(ended[0].expect(0));
    for (a, b) in column(&run, "loss").iter().zip(&column(&alone, "loss")) {
        assert!((a - b).abs() <= 1e-6 * b, "{a} and {b}");
    }
    assert_eq!(rows(&run), 100);
}

#[test]
fn a_finished_run_and_several_recipes_are_agreed_upon() {
    let lab = Lab::new();
    let first = end(start(&lab, 2, &sized("runs", 2, &[])));
    first[0].expect(0);
    let mut args = sized("runs", 2, &[]);
    lab.write("second.toml", "extends = \"tiny.toml\"\nseed = 2\n");
    args.insert(1, "second.toml".to_owned());
    let ended = end(start(&lab, 2, &args));
    ended[0].expect(0).says(&["already finished"]);
    ended[1].expect(0);
    assert_eq!(ended[0].stdout.lines().count(), 2, "{}", ended[0].stdout);
    assert_eq!(lab.runs("runs").len(), 2);
}

#[test]
fn a_rank_whose_own_copy_of_the_data_is_changed_keeps_the_others_from_saving() {
    let lab = Lab::new();
    let copy = lab.shard("copy/train.bin", &support::tokens(4000, 1));
    let sets = |data| sized("runs", 2, &[ENDLESS[0], "checkpoint.every=0", "eval.every=0", data]);
    let (port, data) = (port(), ["data.train=data/train.bin", "data.train=copy/train.bin"]);
    let mut ranks: Vec<Live> = (0..2).map(|r| spawned(rank(&lab, r, 2, port, &sets(data[r])))).collect();
    let run = lab.only_run("runs");
    steps(&run, 5);
    let file = std::fs::File::options().write(true).open(&copy).expect("open");
    let other = support::shard(&support::tokens(4000, 7));
    std::os::unix::fs::FileExt::write_all_at(&file, &other, 0).expect("written");
    ranks[0].signal("TERM");
    let ended = end(ranks);
    assert_eq!(ended.iter().map(|ended| ended.code).collect::<Vec<_>>(), [Some(1); 2]);
    ended[0].says(&["rank 1 of 2", "copy/train.bin` was changed while it is in use"]);
    assert_eq!(record(&run)["status"], "failed");
    assert!(!run.join("checkpoints").exists(), "a checkpoint that knows of other data");
}

#[test]
fn a_rank_that_is_killed_is_named_and_the_run_goes_on_later() {
    for victim in [1, 0] {
        let lab = Lab::new();
        let args = sized("runs", 3, &["batch.total_tokens=384", ENDLESS[0], ENDLESS[1]]);
        let mut ranks = start(&lab, 3, &args);
        let run = lab.only_run("runs");
        steps(&run, 12);
        assert!(ranks[victim].kill());
        for (rank, ended) in end(ranks).iter().enumerate().filter(|(rank, _)| *rank != victim) {
            let who = format!("rank {victim} of 3 is lost");
            assert_eq!(ended.code, Some(1), "rank {rank}: {}", ended.stderr);
            ended.says(&[&who, "the last checkpoint, where there is one, is intact"]);
        }
        if victim > 0 {
            assert_eq!(record(&run)["status"], "failed");
            assert!(record(&run)["error"].as_str().is_some_and(|error| error.contains("rank 1 of 3")));
        }
        let taken = rows(&run);
        // resumed by fewer ranks, and ended in order
        let name = run.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let mut live = lab.start(["--resume", &name, "--set", "batch.world_size=1"]);
        // beyond what there was: the log is cut back first
        steps(&run, taken + 3);
        live.signal("INT");
        live.end().expect(130);
    }
}

#[test]
fn a_rank_that_hangs_is_named_after_the_timeout() {
    let lab = Lab::new();
    let args =
        sized("runs", 3, &["batch.total_tokens=384", "distributed.timeout_s=5", ENDLESS[0], ENDLESS[1]]);
    let mut ranks = start(&lab, 3, &args);
    let run = lab.only_run("runs");
    steps(&run, 6);
    ranks[2].signal("STOP");
    let mut hung = ranks.pop().expect("three");
    for ended in end(ranks) {
        ended.expect(1).says(&["rank 2 of 3 did not answer for 5 s (distributed.timeout_s)"]);
    }
    hung.signal("CONT");
    hung.end().expect(1);
    assert!(!checkpoints(&run).is_empty());
}

#[test]
fn a_signal_to_any_rank_stops_all_after_one_checkpoint() {
    for (asked, signal, code) in [(0, "TERM", 143), (1, "INT", 130)] {
        let lab = Lab::new();
        let mut ranks = start(&lab, 2, &sized("runs", 2, &ENDLESS[..1]));
        let run = lab.only_run("runs");
        steps(&run, 5);
        ranks[asked].signal(signal);
        for ended in end(ranks) {
            ended.expect(code);
        }
        let last = rows(&run);
        assert!(checkpoints(&run).contains(&format!("step-{last:08}")));
    }
}

#[test]
fn a_launcher_sends_its_signal_to_all_ranks_and_one_checkpoint_is_written() {
    let lab = Lab::new();
    let mut ranks = start(&lab, 2, &sized("runs", 2, &["schedule.max_steps=1000000", "checkpoint.every=0"]));
    let run = lab.only_run("runs");
    steps(&run, 5);
    ranks.iter_mut().for_each(|rank| rank.signal("TERM"));
    for ended in end(ranks) {
        ended.expect(143);
    }
    assert_eq!(checkpoints(&run).len(), 1);
}

#[test]
fn sigusr1_to_any_rank_saves() {
    let lab = Lab::new();
    let mut ranks = start(&lab, 2, &sized("runs", 2, &["schedule.max_steps=1000000", "checkpoint.every=0"]));
    let run = lab.only_run("runs");
    steps(&run, 5);
    ranks[1].signal("USR1");
    support::wait("a checkpoint", || run.join("checkpoints").exists() && !checkpoints(&run).is_empty());
    ranks[0].signal("TERM");
    for ended in end(ranks) {
        ended.expect(143);
    }
}

#[test]
fn a_disagreement_is_reported_once_with_both_values() {
    let lab = Lab::new();
    // the recipe and the launcher
    let ended = end(start(&lab, 2, &sized("runs", 4, &[])));
    ended[0].expect(2).says(&["batch.world_size is 4", "torchrun (WORLD_SIZE = 2) started 2 ranks"]);
    ended[1].expect(2);
    assert!(ended[1].stderr.is_empty(), "{}", ended[1].stderr);
    // the ranks' recipes
    let port = port();
    let one = spawned(rank(&lab, 0, 2, port, &sized("runs", 2, &[])));
    let two = spawned(rank(&lab, 1, 2, port, &sized("runs", 2, &["seed=7"])));
    one.end().expect(2).says(&["same recipe", "`seed` (7) of rank 1 is not `seed` (1337) of rank 0"]);
    two.end().expect(2);
    // logging and checkpoint cadence must agree as well: all ranks act at the same steps
    let port = self::port();
    let one = spawned(rank(&lab, 0, 2, port, &sized("runs", 2, &[])));
    let two = spawned(rank(&lab, 1, 2, port, &sized("runs", 2, &["checkpoint.every=7"])));
    one.end().expect(2).says(&["`checkpoint.every` (7) of rank 1 is not `checkpoint.every` (4) of rank 0"]);
    two.end().expect(2);
    // a key that only one of them has
    let port = self::port();
    let one = spawned(rank(&lab, 0, 2, port, &sized("runs", 2, &[])));
    let two = spawned(rank(&lab, 1, 2, port, &sized("runs", 2, &["eval.tokens=64"])));
    one.end().expect(2).says(&["`eval.batches` (unset) of rank 1 is not `eval.batches` (1) of rank 0"]);
    two.end().expect(2);
    // what they are asked to do
    for (word, asked) in [
        ("--fresh", "rank 1 was asked to train 1 recipe with --fresh and rank 0 to train 1 recipe"),
        ("tiny.toml", "rank 1 was asked to train 2 recipes and rank 0 to train 1 recipe"),
    ] {
        let port = self::port();
        let one = spawned(rank(&lab, 0, 2, port, &sized("runs", 2, &[])));
        let two = spawned(rank(&lab, 1, 2, port, &[sized("runs", 2, &[]), vec![word.to_owned()]].concat()));
        one.end().expect(2).says(&["the same command line", asked]);
        two.end().expect(2);
    }
    // a run that only one of them finds
    let run = lab.train_in("resumed", &["schedule.max_steps=4"]);
    let name = run.display().to_string();
    let port = self::port();
    let there = Lab::new();
    let args = ["--resume", "resumed", "--set", "batch.world_size=2"].map(str::to_owned);
    let here =
        ["--resume", &name, "--set", "batch.world_size=2", "--set", "batch.micro_batch=1"].map(str::to_owned);
    let one = spawned(rank(&lab, 0, 2, port, &here));
    let two = spawned(rank(&there, 1, 2, port, &args));
    one.end().expect(2).says(&["rank 1:", "is not a run"]);
    two.end().expect(2);
    // a file that only one of them has
    lab.shard("data/mine.bin", &support::tokens(4000, 5));
    let (here, there) = (Lab::new(), Lab::new());
    here.shard("data/mine.bin", &support::tokens(4000, 5));
    let port = self::port();
    let args = sized("runs", 2, &["data.train=data/mine.bin"]);
    let one = spawned(rank(&here, 0, 2, port, &args));
    let two = spawned(rank(&there, 1, 2, port, &args));
    one.end().expect(2).says(&["rank 1:", "data/mine.bin"]);
    two.end().expect(2);
    assert!(lab.runs("runs").is_empty() && here.runs("runs").is_empty());
}

#[test]
fn no_rank_ends_before_rank_0_has_said_why() {
    // a launcher ends all ranks as soon as one has failed
    let lab = Lab::new();
    let bench =
        ["bench", "tiny.toml", "--set", "batch.world_size=2", "--set", "batch.micro_batch=1", "--steps"];
    let bench = |steps: &str| bench.iter().map(ToString::to_string).chain([steps.to_owned()]).collect();
    let cases = [
        ([sized("runs", 4, &[]), sized("runs", 4, &[])], "batch.world_size is 4"),
        ([sized("runs", 2, &[]), sized("runs", 2, &["seed=7"])], "`seed` (7) of rank 1 is not `seed` (1337)"),
        ([bench("2"), bench("3")], "--steps (3) of rank 1 is not --steps (2) of rank 0"),
    ];
    for (asked, says) in cases {
        let port = port();
        // so that what rank 0 says has to wait
        let (mut reader, mut told) = UnixStream::pair().expect("a pair");
        told.set_nonblocking(true).expect("a socket");
        let full = iter::from_fn(|| told.write(b"x").ok()).sum::<usize>();
        told.set_nonblocking(false).expect("a socket");
        let mut one = rank(&lab, 0, 2, port, &asked[0]);
        one.stdout(Stdio::null()).stderr(OwnedFd::from(told));
        let mut started = one.spawn().expect("the program starts");
        // which holds the other end of the pair
        drop(one);
        let mut two = spawned(rank(&lab, 1, 2, port, &asked[1]));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!two.is_over(), "{says}");
        let mut text = Vec::new();
        reader.read_to_end(&mut text).expect("a pipe");
        let text = String::from_utf8_lossy(&text[full..]).into_owned();
        assert!(text.contains(says), "`{says}` is not in: {text}");
        assert_eq!(started.wait().expect("a child").code(), Some(2));
        assert!(two.end().expect(2).stderr.is_empty());
    }
}

#[test]
fn a_launcher_that_sets_too_few_variables_is_told_which_are_missing() {
    let lab = Lab::new();
    let args = sized("runs", 2, &[]);
    let mut command = lab.command(&args);
    command.env("RANK", "0").env("WORLD_SIZE", "2");
    support::ended(command).expect(2).says(&["MASTER_ADDR", "MASTER_PORT"]);
    let mut command = lab.command(&args);
    command.env("RANK", "2").env("WORLD_SIZE", "2").env("MASTER_ADDR", "localhost").env("MASTER_PORT", "1");
    support::ended(command).expect(2).says(&["RANK = 2", "WORLD_SIZE = 2"]);
}

#[test]
fn a_failure_between_two_recipes_is_reported_once_per_rank() {
    let lab = Lab::new();
    let first = end(start(&lab, 2, &sized("runs", 2, &["schedule.max_steps=4"])));
    let run = lab.run_of(first[0].expect(0));
    // its samples are a directory, which shows when all ranks have begun; the second recipe is fine
    std::fs::remove_file(run.join("run.json")).expect("a record");
    let _ = std::fs::remove_file(run.join("samples.txt"));
    std::fs::create_dir(run.join("samples.txt")).expect("a directory");
    lab.write("second.toml", "extends = \"tiny.toml\"\nseed = 2\n");
    let mut args = sized("runs", 2, &["schedule.max_steps=4"]);
    args.insert(1, "second.toml".to_owned());
    for (rank, ended) in end(start(&lab, 2, &args)).iter().enumerate() {
        assert_eq!(ended.code, Some(1), "rank {rank}: {}", ended.stderr);
        assert_eq!(ended.stderr.matches("error:").count(), 1, "{}", ended.stderr);
    }
}

#[test]
fn a_locked_run_is_refused_on_all_ranks() {
    let lab = Lab::new();
    let args = sized("runs", 2, &ENDLESS);
    let mut first = start(&lab, 2, &args);
    let run = lab.only_run("runs");
    steps(&run, 2);
    let second = end(start(&lab, 2, &args));
    second[0].expect(3);
    second[1].expect(3);
    first[0].signal("TERM");
    for ended in end(first) {
        ended.expect(143);
    }
}

/// `srun` in a few lines: as many processes as there are tasks, with the variables of a step.
const SRUN: &str = r#"#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
export SLURM_STEP_NUM_TASKS="$SLURM_NTASKS" SLURM_STEP_NODELIST=127.0.0.1
pids=
for rank in $(seq 0 $((SLURM_NTASKS - 1))); do
    SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" &
    pids="$pids $!"
done
echo "$pids" >ranks
trap 'kill -TERM $pids' TERM
code=0
for pid in $pids; do
    wait "$pid" || code=$?
    while kill -0 "$pid" 2>/dev/null; do
        wait "$pid" || code=$?
    done
done
exit "$code"
"#;

#[test]
fn the_script_for_several_nodes_starts_a_rank_for_each_task_and_asks_for_more_time() {
    let lab = Lab::new();
    let bin = lab.write("bin/srun", SRUN);
    let told = lab.path("told");
    let scontrol = lab.write("bin/scontrol", format!("#!/bin/sh\necho \"$@\" >>{}\n", told.display()));
    for script in [&bin, &scontrol] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).expect("executable");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/sweeps/slurm_nodes.sh");
    // whose port, 20,000 and the job, nothing listens on, and the system gives to no connection
    let free = iter::repeat_with(port).find(|port| *port >= 20_000).expect("one of many");
    let job = u32::from(free) - 20_000 + 12_000;
    let sbatch = |steps: &str| {
        let mut command = lab.launcher("sh");
        let path = format!("{}:{}", lab.path("bin").display(), std::env::var("PATH").unwrap_or_default());
        command
            .arg(&script)
            .args(["--set", "batch.micro_batch=1", "--set", steps, "--set", "checkpoint.every=0"])
            .env("PATH", path)
            .env("RECIPE", "tiny.toml")
            .env("SLURM_NTASKS", "2")
            .env("SLURM_JOB_ID", job.to_string());
        command
    };
    support::ended(sbatch("schedule.max_steps=6")).expect(0);
    let run = lab.only_run("runs");
    assert_eq!(rows(&run), 6);
    assert_eq!(record(&run)["plan"]["world_size"], 2);
    assert!(!told.exists());
    // the time is up: all ranks are told
    let live = spawned(sbatch("schedule.max_steps=1000000"));
    support::wait("a second run", || lab.runs("runs").len() == 2);
    let name =
        lab.runs("runs").into_iter().find(|name| lab.path("runs").join(name) != run).expect("the second");
    let second = lab.path("runs").join(name);
    steps(&second, 5);
    for id in std::fs::read_to_string(lab.path("ranks")).expect("process ids").split_whitespace() {
        let sent = Command::new("sh").args(["-c", "kill -TERM \"$0\"", id]).status();
        assert!(sent.is_ok_and(|status| status.success()));
    }
    live.end().expect(143);
    assert_eq!(checkpoints(&second).len(), 1);
    assert_eq!(std::fs::read_to_string(&told).expect("a request"), format!("requeue {job}\n"));
    // the same run goes on with other ranks, where it is named
    let mut with_four = sbatch("schedule.max_steps=1000000");
    let live = spawned({
        with_four.env("RUN", &second).env("SLURM_NTASKS", "4");
        with_four
    });
    let before = rows(&second);
    steps(&second, before + 5);
    assert_eq!((record(&second)["plan"]["world_size"].clone(), lab.runs("runs").len()), (4.into(), 2));
    for id in std::fs::read_to_string(lab.path("ranks")).expect("process ids").split_whitespace() {
        let sent = Command::new("sh").args(["-c", "kill -TERM \"$0\"", id]).status();
        assert!(sent.is_ok_and(|status| status.success()));
    }
    live.end().expect(143);
}
