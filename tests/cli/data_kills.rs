//! Preparations and downloads that are killed repeatedly at random moments end with the bytes of undisturbed ones.
//!
//! After every kill, what has a name is whole; at the end nothing hidden is left. `CRASH_KILLS` and `KILL_SEED` are those
//! of `crash_kills`: `CRASH_KILLS=300 cargo test --release --test cli data_kills:: -- --nocapture` kills each 300 times.

#![cfg(unix)]

use crate::crash_kills::{number, seed, send};
use crate::data_prepare::{args, documents, lines};
use crate::fetch::{REPO, entry, fetching, listed};
use crate::server_support::{Reply, Server};
use crate::support;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::{Lab, Live, ended, everything, shard, spawned, tokens};

/// When to strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// Within the first milliseconds.
    AtTheStart,
    /// After a part of an undisturbed call's time.
    AnyTime,
    /// Once another file has its name.
    AfterAFile,
    /// Once something that has no name yet has changed.
    InAFile,
    /// Once all files have their names.
    AtTheEnd,
}

const MOMENTS: [Moment; 5] =
    [Moment::AtTheStart, Moment::AnyTime, Moment::AfterAFile, Moment::InAFile, Moment::AtTheEnd];

/// How to strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Blow {
    /// SIGKILL.
    Kill,
    /// SIGTERM, once or several times in a row.
    Storm,
    /// SIGSTOP, and SIGKILL a moment later.
    Freeze,
}

const BLOWS: [Blow; 4] = [Blow::Kill, Blow::Kill, Blow::Storm, Blow::Freeze];

type Files = BTreeMap<String, Vec<u8>>;

/// Something that is done into a directory of its own, and what must come of it.
struct Deed<'a> {
    name: &'static str,
    /// The command that does it into a directory below the laboratory's.
    command: Box<dyn Fn(&str) -> Command + 'a>,
    expected: Files,
    /// How long it takes undisturbed.
    undisturbed: Duration,
}

impl<'a> Deed<'a> {
    /// Does it once, undisturbed.
    fn new(lab: &Lab, name: &'static str, command: impl Fn(&str) -> Command + 'a) -> Self {
        let whole = format!("whole-{name}");
        let start = Instant::now();
        ended(command(&whole)).expect(0);
        let (undisturbed, expected) = (start.elapsed(), contents(&lab.path(&whole)));
        assert!(expected.len() > 1 && !expected.keys().any(|name| is_hidden(name)), "{:?}", expected.keys());
        Self { name, command: Box::new(command), expected, undisturbed }
    }
}

/// All files below a directory, those without a name too.
fn contents(dir: &Path) -> Files {
    let files = if dir.exists() { everything(dir) } else { BTreeMap::new() };
    files.into_iter().map(|(name, (bytes, _))| (name, bytes)).collect()
}

/// Whether a file has no name yet: it, or a directory above it, is hidden.
fn is_hidden(name: &str) -> bool {
    name.split('/').any(|part| part.starts_with('.'))
}

/// The names of files and their sizes; what disappears meanwhile is not there.
fn sizes(dir: &Path, below: &str, sizes: &mut BTreeMap<String, u64>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => self::sizes(&entry.path(), &format!("{name}/"), sizes),
            Ok(meta) => {
                sizes.insert(name, meta.len());
            }
            Err(_) => {}
        }
    }
}

/// Waits for the moment, or the end of the process.
fn wait_for(moment: Moment, live: &mut Live, deed: &Deed, out: &Path, random: &mut StdRng) {
    let start = Instant::now();
    let part = match moment {
        Moment::AtTheStart => 0.1,
        Moment::AnyTime => 1.0,
        _ => 0.0,
    };
    if part > 0.0 {
        std::thread::sleep(deed.undisturbed.mul_f64(random.gen_range(0.0..part)));
        return;
    }
    let now = || {
        let mut all = BTreeMap::new();
        sizes(out, "", &mut all);
        all.into_iter().partition::<BTreeMap<_, _>, _>(|(name, _)| is_hidden(name))
    };
    let (mut hidden, named) = now();
    let mut changes = random.gen_range(1..5);
    while !live.is_over() && start.elapsed() < Duration::from_secs(60) {
        let (hidden_now, named_now) = now();
        changes -= usize::from(hidden_now != hidden && changes > 0);
        hidden = hidden_now;
        let is_due = match moment {
            Moment::AtTheEnd => named_now.len() == deed.expected.len(),
            Moment::InAFile => changes == 0,
            _ => named_now != named,
        };
        if is_due {
            std::thread::sleep(Duration::from_micros(random.gen_range(0..2000)));
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Strikes, and waits for the end of the process; whether it was still at work.
fn strike(blow: Blow, mut live: Live, random: &mut StdRng, context: &str) -> bool {
    let was_working = !live.is_over();
    match blow {
        Blow::Storm => send(&mut live, &vec!["TERM"; random.gen_range(1..6)]),
        Blow::Freeze => {
            send(&mut live, &["STOP"]);
            std::thread::sleep(Duration::from_millis(random.gen_range(0..30)));
        }
        Blow::Kill => {}
    }
    if blow != Blow::Storm {
        live.kill();
    }
    let ended = live.end();
    assert!([None, Some(0)].contains(&ended.code), "{context}: {:?}: {}", ended.code, ended.stderr);
    was_working
}

/// Kills all deeds by turns, each a few times before it may end, and says how often.
fn kill_repeatedly(lab: &Lab, what: &str, deeds: &[Deed]) {
    let (wanted, seed) = (number("CRASH_KILLS").unwrap_or(16), seed());
    let mut random = StdRng::seed_from_u64(seed);
    let mut kills = BTreeMap::<(&str, Moment, Blow), u64>::new();
    let (mut killed, mut finished) = (0, 0);
    while killed < wanted {
        let deed = &deeds[finished % deeds.len()];
        let out = format!("{}-{finished}", deed.name);
        let dir = lab.path(&out);
        let mut starts = 0;
        loop {
            starts += 1;
            let moment = MOMENTS[random.gen_range(0..MOMENTS.len())];
            let blow = BLOWS[random.gen_range(0..BLOWS.len())];
            let context = format!("KILL_SEED={seed}, {out}, start {starts}, {moment:?}, {blow:?}");
            if starts > 5 || killed >= wanted {
                let last = ended((deed.command)(&out));
                assert_eq!(last.code, Some(0), "{context}: {}", last.stderr);
                break;
            }
            let mut live = spawned((deed.command)(&out));
            wait_for(moment, &mut live, deed, &dir, &mut random);
            if strike(blow, live, &mut random, &context) {
                *kills.entry((deed.name, moment, blow)).or_default() += 1;
                killed += 1;
            }
            for (name, bytes) in contents(&dir).iter().filter(|(name, _)| !is_hidden(name)) {
                assert!(
                    deed.expected.get(name) == Some(bytes),
                    "{context}: {name} has a name and other bytes"
                );
            }
        }
        let found = contents(&dir);
        let names = deed.expected.keys().chain(found.keys());
        let differing: Vec<_> = names.filter(|name| found.get(*name) != deed.expected.get(*name)).collect();
        assert!(differing.is_empty(), "KILL_SEED={seed}, {out}: after {starts} starts {differing:?} differ");
        let hidden: Vec<_> = fs::read_dir(&dir)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| is_hidden(name))
            .collect();
        assert!(hidden.is_empty(), "KILL_SEED={seed}, {out}: {hidden:?} is left");
        fs::remove_dir_all(&dir).expect("removed");
        finished += 1;
    }
    #[expect(clippy::print_stdout, reason = "the count is the result, shown with --nocapture")]
    {
        println!("KILL_SEED={seed}: {killed} kills in {finished} {what}, all with the same bytes");
        for ((name, moment, blow), kills) in &kills {
            println!("{name}, {moment:?}, {blow:?}: {kills}");
        }
    }
}

#[test]
fn a_preparation_killed_anywhere_ends_with_the_same_bytes() {
    let lab = Lab::new();
    let documents = documents(240);
    lab.write("text/a.jsonl", lines(&documents[..150]));
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(lines(&documents[150..200]).as_bytes()).expect("packed");
    lab.write("text/b.jsonl.gz", packed.finish().expect("packed"));
    lab.write("text/c.txt", documents[200..].join("<|end|>"));
    let deed = |name, more: &'static [&'static str]| {
        let lab = &lab;
        Deed::new(lab, name, move |out| lab.command(args("text", out, &[more, &["--threads", "2"]].concat())))
    };
    let deeds = [
        deed("in-order", &["--shard-tokens", "900", "--val-tokens", "1000"]),
        deed("drawn", &["--shard-tokens", "900", "--val-fraction", "0.2", "--shuffle-seed", "4"]),
        deed("characters", &["--tokenizer", "char", "--shard-tokens", "2000", "--val-first-shard"]),
        deed("limited", &["--split-on", "<|end|>", "--limit-tokens", "12000", "--shard-tokens", "900"]),
    ];
    kill_repeatedly(&lab, "preparations", &deeds);
}

#[test]
fn a_download_killed_anywhere_ends_with_the_same_bytes() {
    let lab = Lab::new();
    let files: Vec<(String, Vec<u8>)> =
        [("a.bin", 60_000), ("deep/b.bin", 9_000), ("c.bin", 150_000), ("d.bin", 600)]
            .iter()
            .zip(1..)
            .map(|((name, count), seed)| ((*name).to_owned(), shard(&tokens(*count, seed))))
            .collect();
    let server = Server::start(move |asked, _| {
        match files.iter().find(|(name, _)| asked.path.ends_with(&format!("/resolve/main/{name}"))) {
            // some tenths of a second for all of it, so that there is something to kill
            Some((_, file)) => Reply::part(file, asked).trickling(2_000).slowly(Duration::from_millis(1)),
            None => listed(&files.iter().map(|(name, file)| entry(name, file)).collect::<Vec<_>>()),
        }
    });
    let deed = |name, jobs: &'static str| {
        let (lab, server) = (&lab, &server);
        Deed::new(lab, name, move |out| fetching(lab, server, &[REPO, "--out", out, "--jobs", jobs]))
    };
    kill_repeatedly(&lab, "downloads", &[deed("one-by-one", "1"), deed("side-by-side", "4")]);
}
