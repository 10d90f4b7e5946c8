//! Runs that are killed repeatedly at random moments end with the bytes of an undisturbed run.
//!
//! The moments are chosen to hurt: at the start, at any time, right after a row of the log, in an evaluation, while a
//! sample or a checkpoint is being written, while an old one is being deleted, at the end. One process works on a run,
//! or two ranks that are threads, or two that are processes. `CRASH_KILLS=200 cargo test --release --test cli
//! crash_kills:: -- --nocapture` kills 200 times and says when; a failure says the `KILL_SEED` that repeats its choices.

#![cfg(unix)]

use crate::processes;
use crate::support;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use runner::run::checkpoint::{Newest, newest_intact};
use runner::run::{RunStatus, status};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, UNIX_EPOCH};
use support::{Lab, Live, essence, rows, spawned, tiny};

/// When to strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// Within the first milliseconds.
    AtTheStart,
    /// After a part of an undisturbed run's time.
    AnyTime,
    /// Once another row is in the log.
    AfterARow,
    /// Once the row of a step is there after which the model is evaluated.
    InAnEvaluation,
    /// Once the row of a step is there after which a sample is written.
    InASample,
    /// Once a file of a nameless checkpoint is there.
    InACheckpoint,
    /// Once there are more checkpoints than are to be kept.
    InARotation,
    /// Once the last row is there.
    AtTheEnd,
}

const MOMENTS: [Moment; 8] = [
    Moment::AtTheStart,
    Moment::AnyTime,
    Moment::AfterARow,
    Moment::InAnEvaluation,
    Moment::InASample,
    Moment::InACheckpoint,
    Moment::InARotation,
    Moment::AtTheEnd,
];

/// How to strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Blow {
    /// SIGKILL to every process.
    Kill,
    /// SIGKILL to one; the others have to notice.
    KillOne,
    /// SIGTERM to every process, once or several times in a row.
    Storm,
    /// SIGSTOP, and SIGKILL a moment later.
    Freeze,
}

const BLOWS: [Blow; 6] = [Blow::Kill, Blow::Kill, Blow::Kill, Blow::KillOne, Blow::Storm, Blow::Freeze];

/// Who works on a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Workers {
    One,
    TwoThreads,
    TwoProcesses,
}

const STEPS: usize = 24;

/// What every run here has in common: two checkpoints kept, one more every second step.
const SETS: [&str; 6] = [
    "schedule.max_steps=24",
    "checkpoint.every=2",
    "checkpoint.keep=2",
    "sample.every=7",
    "sample.prompt=!",
    "watchdog.max_loss_zscore=2",
];

/// What it has besides, by turns: written between the steps or in the background, and with a scaler.
const VARIANTS: [(Workers, &[&str]); 6] = [
    (Workers::One, &["checkpoint.background=true", "watchdog.action=skip", "watchdog.window=3"]),
    (Workers::TwoThreads, &["checkpoint.background=false", "watchdog.action=skip", "watchdog.window=3"]),
    (
        Workers::TwoProcesses,
        &[
            "checkpoint.background=true",
            "watchdog.action=skip",
            "watchdog.window=5",
            "compute.precision=fp16",
        ],
    ),
    (
        Workers::One,
        &[
            "checkpoint.background=false",
            "watchdog.action=skip",
            "watchdog.window=5",
            "compute.precision=fp16",
        ],
    ),
    (Workers::TwoThreads, &["checkpoint.background=true", "distributed.shard_optimizer=true"]),
    (Workers::TwoProcesses, &["checkpoint.background=false", "distributed.shard_optimizer=true"]),
];

impl Workers {
    /// Settings beside those of a variant.
    fn sets(self) -> &'static [&'static str] {
        match self {
            Self::One => &[],
            Self::TwoThreads | Self::TwoProcesses => &["batch.world_size=2", "batch.micro_batch=1"],
        }
    }

    /// Starts all processes that work on a run.
    fn start(self, lab: &Lab, args: &[String]) -> Vec<Live> {
        match self {
            Self::One | Self::TwoThreads => vec![lab.start(args)],
            Self::TwoProcesses => {
                let port = processes::port();
                let rank = |rank| {
                    let mut command = processes::rank(lab, rank, 2, port, args);
                    // one that is killed before it joins is waited for
                    command.env("RUNNER_JOIN_TIMEOUT_S", "60");
                    spawned(command)
                };
                (0..2).map(rank).collect()
            }
        }
    }
}

/// A number from the environment.
pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// What `KILL_SEED` says, else another number each time.
pub(crate) fn seed() -> u64 {
    let now = || UNIX_EPOCH.elapsed().expect("a clock after 1970").subsec_nanos().into();
    number("KILL_SEED").unwrap_or_else(now)
}

/// Waits for the moment, or the end of a process.
fn wait_for(moment: Moment, live: &mut [Live], run: &Path, undisturbed: Duration, random: &mut StdRng) {
    let start = Instant::now();
    let part = match moment {
        Moment::AtTheStart => 0.1,
        Moment::AnyTime => 1.0,
        _ => 0.0,
    };
    if part > 0.0 {
        std::thread::sleep(undisturbed.mul_f64(random.gen_range(0.0..part)));
        return;
    }
    let rows_now = rows(run);
    let names = || {
        let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let another_row_of = |every: usize| {
        let rows = rows(run);
        rows > rows_now && rows.is_multiple_of(every)
    };
    // the first of a kind comes early in each start; a later one is as good
    let mut passed_over = random.gen_range(0..4);
    let mut was_due = false;
    while !live.iter_mut().any(Live::is_over) && start.elapsed() < Duration::from_secs(60) {
        let due = match moment {
            Moment::AtTheStart | Moment::AnyTime | Moment::AfterARow => rows(run) > rows_now + passed_over,
            Moment::InAnEvaluation => another_row_of(5),
            Moment::InASample => another_row_of(7),
            Moment::AtTheEnd => rows(run) == STEPS,
            Moment::InACheckpoint => names().iter().any(|name| name.starts_with(".tmp-")),
            Moment::InARotation => names().iter().filter(|name| name.starts_with("step-")).count() > 2,
        };
        let is_one_of_many = matches!(moment, Moment::InACheckpoint | Moment::InARotation);
        if due && (passed_over == 0 || !is_one_of_many) {
            std::thread::sleep(Duration::from_micros(random.gen_range(0..3000)));
            return;
        }
        passed_over -= usize::from(due && !was_due && passed_over > 0);
        was_due = due;
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Sends signals to a process, one right after the other; it may have ended.
pub(crate) fn send(live: &mut Live, signals: &[&str]) {
    let kills: Vec<_> = signals.iter().map(|signal| format!("kill -{signal} {}", live.id())).collect();
    // one that has ended is no child any more, or a zombie that no signal reaches
    let _ = Command::new("sh").args(["-c", &kills.join("; ")]).stderr(std::process::Stdio::null()).status();
}

/// Strikes, and waits until every process has ended; whether any was still at work.
fn strike(blow: Blow, mut live: Vec<Live>, random: &mut StdRng, context: &str) -> bool {
    let were_working = !live.iter_mut().any(Live::is_over);
    let one = random.gen_range(0..live.len());
    if blow == Blow::Storm {
        let storm = vec!["TERM"; random.gen_range(1..6)];
        live.iter_mut().for_each(|live| send(live, &storm));
    }
    if blow == Blow::Freeze {
        live.iter_mut().for_each(|live| send(live, &["STOP"]));
        std::thread::sleep(Duration::from_millis(random.gen_range(0..30)));
    }
    for (rank, live) in live.iter_mut().enumerate() {
        let is_killed = blow == Blow::Kill || blow == Blow::Freeze || blow == Blow::KillOne && rank == one;
        if is_killed {
            live.kill();
        }
    }
    for (rank, live) in live.into_iter().enumerate() {
        let ended = live.end();
        assert!(!ended.stderr.contains("panicked"), "{context}: {}", ended.stderr);
        let is_expected = match (blow, ended.code) {
            // before it listens to signals, or after the end
            (_, None | Some(0)) => true,
            (Blow::KillOne, Some(1)) => rank != one,
            // one that ends at once may be missed by the other
            (Blow::Storm, code) => [Some(143), Some(1)].contains(&code),
            _ => false,
        };
        assert!(is_expected, "{context}: rank {rank} ended with {:?}: {}", ended.code, ended.stderr);
    }
    were_working
}

/// The newest intact checkpoint of a killed run; nothing that has a checkpoint's name may be damaged.
fn newest(run: &Path, context: &str) -> u64 {
    let Newest { reader, rejected } = newest_intact(run).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(rejected.is_empty(), "{context}: a kill has damaged {rejected:?}");
    reader.map_or(0, |reader| reader.state().step)
}

/// What a run must have in common with an undisturbed one: everything; but after a signal that asks for a checkpoint, of
/// the checkpoints only the last.
fn promised(files: &BTreeMap<String, Vec<u8>>, was_asked: bool) -> BTreeMap<&String, &Vec<u8>> {
    let last = format!("checkpoints/step-{STEPS:08}/");
    let is_promised = |name: &str| !was_asked || !name.starts_with("checkpoints/") || name.starts_with(&last);
    files.iter().filter(|(name, _)| is_promised(name)).collect()
}

#[test]
fn a_run_killed_anywhere_ends_with_the_same_bytes() {
    let wanted = number("CRASH_KILLS").unwrap_or(18);
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let lab = Lab::new();
    let mut whole = Vec::new();
    for (i, (workers, variant)) in VARIANTS.iter().enumerate() {
        let sets = [&SETS[..], variant, workers.sets()].concat();
        let start = Instant::now();
        let runs = format!("whole-{i}");
        let mut ended = workers.start(&lab, &tiny(&runs, &sets)).into_iter().map(Live::end);
        let run = lab.run_of(ended.next().expect("rank 0").expect(0));
        ended.for_each(|ended| {
            ended.expect(0);
        });
        whole.push((
            *workers,
            sets,
            essence(&run),
            start.elapsed(),
            run.file_name().expect("a name").to_owned(),
        ));
    }
    let (mut kills, mut finished) = (BTreeMap::<(Workers, Moment, Blow), u64>::new(), 0);
    let killed = |kills: &BTreeMap<_, u64>| kills.values().sum::<u64>();
    while killed(&kills) < wanted {
        let (workers, sets, expected, undisturbed, id) = &whole[finished % whole.len()];
        let runs = format!("runs-{finished}");
        let run = lab.path(&runs).join(id);
        let (mut starts, mut last, mut was_asked, mut before) = (0, 0, false, None);
        loop {
            starts += 1;
            let moment = MOMENTS[random.gen_range(0..MOMENTS.len())];
            let blow = BLOWS[random.gen_range(0..BLOWS.len())];
            let mut live = workers.start(&lab, &tiny(&runs, sets));
            let context =
                format!("KILL_SEED={seed}, {workers:?}, {runs}, start {starts}, {moment:?}, {blow:?}");
            // a few kills for each run, so that it also comes to its end
            if starts <= 6 && killed(&kills) < wanted {
                wait_for(moment, &mut live, &run, *undisturbed, &mut random);
                was_asked |= blow == Blow::Storm;
                if strike(blow, live, &mut random, &context) {
                    *kills.entry((*workers, moment, blow)).or_default() += 1;
                }
                if run.join("recipe.toml").exists() {
                    let newest = newest(&run, &context);
                    assert!(newest >= last, "{context}: step {last} was saved, now it is {newest}");
                    last = newest;
                    let status = status(&run).unwrap_or_else(|error| panic!("{context}: {error}"));
                    // a rank that lost another one has failed, and can be resumed
                    let left = [RunStatus::Interrupted, RunStatus::Finished, RunStatus::Failed];
                    let may_fail =
                        *workers == Workers::TwoProcesses && matches!(blow, Blow::KillOne | Blow::Storm);
                    let left = if may_fail { &left[..] } else { &left[..2] };
                    // nor has a process that was killed early written how it stands now
                    let is_expected = left.contains(&status) || before == Some(status);
                    assert!(is_expected, "{context}: {status} after {before:?}");
                    before = Some(status);
                }
                continue;
            }
            for ended in live.into_iter().map(Live::end) {
                assert_eq!(ended.code, Some(0), "{context}: {}", ended.stderr);
                assert!(!ended.stderr.contains("warning: runs"), "{context}: {}", ended.stderr);
            }
            break;
        }
        let found = essence(&run);
        let (found, expected) = (promised(&found, was_asked), promised(expected, was_asked));
        let names = expected.keys().chain(found.keys());
        let differing: Vec<_> = names.filter(|name| found.get(*name) != expected.get(*name)).collect();
        assert!(differing.is_empty(), "KILL_SEED={seed}, {runs}: after {starts} starts {differing:?} differ");
        assert_eq!(lab.runs(&runs).len(), 1);
        fs::remove_dir_all(lab.path(&runs)).expect("removed");
        finished += 1;
    }
    #[expect(clippy::print_stdout, reason = "the count is the result, shown with --nocapture")]
    {
        println!("KILL_SEED={seed}: {} kills in {finished} runs, all with the same bytes", killed(&kills));
        for ((workers, moment, blow), kills) in &kills {
            println!("{workers:?}, {moment:?}, {blow:?}: {kills}");
        }
    }
}
