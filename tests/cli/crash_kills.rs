//! Runs that are killed repeatedly at random moments end with the bytes of an undisturbed run.
//!
//! The moments are chosen to hurt: at any time, right after a row of the log, while a checkpoint is being written, while
//! an old one is being deleted. `CRASH_KILLS=200 cargo test --release --test cli crash_kills:: -- --nocapture` kills 200 times and
//! says when; a failure says the `KILL_SEED` that repeats its choices.

#![cfg(unix)]

use crate::support;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use runner::run::checkpoint::{Newest, newest_intact};
use runner::run::{RunStatus, status};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};
use support::{Lab, Live, essence, rows, tiny};

/// When to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// After a part of an undisturbed run's time.
    AnyTime,
    /// Once another row is in the log.
    AfterARow,
    /// Once a file of a nameless checkpoint is there.
    InACheckpoint,
    /// Once there are more checkpoints than are to be kept.
    InARotation,
}

const MOMENTS: [Moment; 4] = [Moment::AnyTime, Moment::AfterARow, Moment::InACheckpoint, Moment::InARotation];

/// What every run here has in common: two checkpoints kept, one more every second step.
const SETS: [&str; 6] = [
    "schedule.max_steps=24",
    "checkpoint.every=2",
    "checkpoint.keep=2",
    "sample.every=5",
    "sample.prompt=!",
    "watchdog.max_loss_zscore=2",
];

/// What it has besides, by turns: written between the steps or in the background, and with a scaler.
const VARIANTS: [&[&str]; 3] = [
    &["checkpoint.background=true", "watchdog.action=skip", "watchdog.window=3"],
    &["checkpoint.background=false", "watchdog.action=skip", "watchdog.window=3"],
    &["checkpoint.background=true", "watchdog.action=skip", "watchdog.window=5", "compute.precision=fp16"],
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Waits for the moment, or the end of the process.
fn wait_for(moment: Moment, live: &mut Live, run: &Path, undisturbed: Duration, random: &mut StdRng) {
    let start = Instant::now();
    if moment == Moment::AnyTime {
        std::thread::sleep(undisturbed.mul_f64(random.gen_range(0.0..1.0)));
        return;
    }
    let rows_now = rows(run);
    let names = || {
        let entries = fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    // the first of a kind comes early in each start; a later one is as good
    let mut passed_over = random.gen_range(0..4);
    let mut was_due = false;
    while !live.is_over() && start.elapsed() < Duration::from_secs(60) {
        let due = match moment {
            Moment::AnyTime | Moment::AfterARow => rows(run) > rows_now + passed_over,
            Moment::InACheckpoint => names().iter().any(|name| name.starts_with(".tmp-")),
            Moment::InARotation => names().iter().filter(|name| name.starts_with("step-")).count() > 2,
        };
        if due && (passed_over == 0 || moment == Moment::AfterARow) {
            std::thread::sleep(Duration::from_micros(random.gen_range(0..3000)));
            return;
        }
        passed_over -= usize::from(due && !was_due && passed_over > 0);
        was_due = due;
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The newest intact checkpoint of a killed run; nothing that has a checkpoint's name may be damaged.
fn newest(run: &Path, context: &str) -> u64 {
    let Newest { reader, rejected } = newest_intact(run).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(rejected.is_empty(), "{context}: a kill has damaged {rejected:?}");
    reader.map_or(0, |reader| reader.state().step)
}

#[test]
fn a_run_killed_anywhere_ends_with_the_same_bytes() {
    let wanted = number("CRASH_KILLS").unwrap_or(12);
    let now = || UNIX_EPOCH.elapsed().expect("a clock after 1970").subsec_nanos().into();
    let seed = number("KILL_SEED").unwrap_or_else(now);
    let mut random = StdRng::seed_from_u64(seed);
    let lab = Lab::new();
    let mut whole = Vec::new();
    for (i, variant) in VARIANTS.iter().enumerate() {
        let sets = [&SETS[..], variant].concat();
        let start = Instant::now();
        let run = lab.train_in(&format!("whole-{i}"), &sets);
        whole.push((sets, essence(&run), start.elapsed(), run.file_name().expect("a name").to_owned()));
    }
    let (mut kills, mut finished) = (BTreeMap::<Moment, u64>::new(), 0);
    let killed = |kills: &BTreeMap<Moment, u64>| kills.values().sum::<u64>();
    while killed(&kills) < wanted {
        let (sets, expected, undisturbed, id) = &whole[finished % whole.len()];
        let runs = format!("runs-{finished}");
        let run = lab.path(&runs).join(id);
        let (mut starts, mut last) = (0, 0);
        loop {
            starts += 1;
            let moment = MOMENTS[random.gen_range(0..MOMENTS.len())];
            let mut live = lab.start(tiny(&runs, sets));
            let context = format!("KILL_SEED={seed}, {runs}, start {starts}, {moment:?}");
            // a few kills for each run, so that it also comes to its end
            if starts <= 6 && killed(&kills) < wanted {
                wait_for(moment, &mut live, &run, *undisturbed, &mut random);
                if live.kill() {
                    assert!(!live.end().stderr.contains("panicked"), "{context}");
                    *kills.entry(moment).or_default() += 1;
                    if run.join("recipe.toml").exists() {
                        let newest = newest(&run, &context);
                        assert!(newest >= last, "{context}: step {last} was saved, now it is {newest}");
                        last = newest;
                        let status = status(&run).unwrap_or_else(|error| panic!("{context}: {error}"));
                        assert!(
                            [RunStatus::Interrupted, RunStatus::Finished].contains(&status),
                            "{context}: {status}"
                        );
                    }
                    continue;
                }
            }
            let ended = live.end();
            assert_eq!(ended.code, Some(0), "{context}: {}", ended.stderr);
            assert!(!ended.stderr.contains("warning: runs"), "{context}: {}", ended.stderr);
            break;
        }
        let found = essence(&run);
        let names = expected.keys().chain(found.keys());
        let differing: Vec<_> = names.filter(|name| found.get(*name) != expected.get(*name)).collect();
        assert!(differing.is_empty(), "KILL_SEED={seed}, {runs}: after {starts} starts {differing:?} differ");
        assert_eq!(lab.runs(&runs).len(), 1);
        fs::remove_dir_all(lab.path(&runs)).expect("removed");
        finished += 1;
    }
    #[expect(clippy::print_stdout, reason = "the count is the result, shown with --nocapture")]
    {
        println!(
            "KILL_SEED={seed}: {} kills {kills:?} in {finished} runs, all with the same bytes",
            killed(&kills)
        );
    }
}
