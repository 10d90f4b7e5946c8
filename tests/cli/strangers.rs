//! Ranks that meet by TCP where others can reach them: who is let in, what the others learn, and what it costs.

use crate::processes::{port, rank};
use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;
use support::{Lab, Live, record, rows, spawned, tiny};

const WORD: &str = "a word of the ranks of this test";

/// The arguments of two short ranks.
fn two(runs: &str) -> Vec<String> {
    tiny(runs, &["batch.world_size=2", "batch.micro_batch=1"])
}

/// One of two ranks with this secret, that waits for the other for no longer than a test can.
fn with(lab: &Lab, number: usize, port: u16, secret: &str) -> Command {
    let mut command = rank(lab, number, 2, port, &two("runs"));
    command.env("RUNNER_SECRET", secret).env("RUNNER_JOIN_TIMEOUT_S", "100");
    command
}

/// Connects to rank 0 as soon as it listens.
fn connected(port: u16) -> TcpStream {
    let mut found = None;
    support::wait("rank 0", || {
        found = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok();
        found.is_some()
    });
    found.expect("just found")
}

fn hello(rank: u32, size: u32) -> Vec<u8> {
    [&b"runner ranks 3"[..], &rank.to_le_bytes(), &size.to_le_bytes(), &[7; 32]].concat()
}

/// What the other end says until it hangs up.
fn all_of(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(Duration::from_secs(100))).expect("a timeout");
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

/// The most memory that a process has had, in KiB.
fn most_memory(live: &mut Live) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", live.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn a_stranger_gets_no_byte_of_the_recipe_and_no_place() {
    let lab = Lab::new();
    let port = port();
    let mut zero = spawned(with(&lab, 0, port, WORD));
    // says that it is rank 1, and then what it has heard
    let mut liar = connected(port);
    liar.write_all(&hello(1, 2)).expect("sent");
    let mut challenge = [0; 46];
    liar.read_exact(&mut challenge).expect("a challenge");
    liar.write_all(&challenge[14..]).expect("sent");
    let told = all_of(liar);
    assert!(told.len() == 33 && told[1..].iter().all(|byte| *byte == 0), "{told:?}");
    // announces 4 GiB at once, and sends as much of it as is taken
    let before = most_memory(&mut zero);
    let mut large = connected(port);
    let _ = large.write_all(&[&[0][..], &(1_u64 << 32).to_le_bytes()].concat());
    let some = vec![b'x'; 1 << 20];
    while large.write_all(&some).is_ok() {}
    assert_eq!(all_of(large), [] as [u8; 0]);
    assert!(most_memory(&mut zero) < before + (32 << 10), "it holds what a stranger sends");
    let one = spawned(with(&lab, 1, port, WORD));
    let ended = zero.end();
    ended.expect(0).says(&["warning: ", "says it is rank 1 of 2", "RUNNER_SECRET_FILE or RUNNER_SECRET"]);
    assert!(!ended.stderr.contains(WORD), "{}", ended.stderr);
    one.end().expect(0);
    let run = lab.only_run("runs");
    assert_eq!(rows(&run), 12);
    let files = fs::read_dir(&run).expect("a run").map(|file| file.expect("a file").path());
    for file in files.filter(|file| file.is_file()) {
        let bytes = fs::read(&file).expect("a file");
        let is_told = bytes.windows(WORD.len()).any(|window| window == WORD.as_bytes());
        assert!(!is_told, "{} tells the secret", file.display());
    }
}

#[test]
fn silent_connections_do_not_hold_up_the_ranks() {
    let lab = Lab::new();
    let port = port();
    let zero = spawned(with(&lab, 0, port, WORD));
    let silent: Vec<TcpStream> = (0..200).map(|_| connected(port)).collect();
    let one = spawned(with(&lab, 1, port, WORD));
    zero.end().expect(0);
    one.end().expect(0);
    drop(silent);
}

#[test]
fn a_wrong_secret_ends_a_rank_at_once_and_rank_0_waits_for_the_right_one() {
    let lab = Lab::new();
    let port = port();
    let mut zero = spawned(with(&lab, 0, port, WORD));
    let wrong = spawned(with(&lab, 1, port, "the word of another test")).end();
    wrong.expect(1).says(&["rank 1", "do not have the same secret", "RUNNER_SECRET_FILE or RUNNER_SECRET"]);
    assert!(!wrong.stderr.contains("word of"), "{}", wrong.stderr);
    assert!(!zero.is_over());
    let right = spawned(with(&lab, 1, port, WORD));
    zero.end().expect(0).says(&["127.0.0.1", "does not know the secret"]);
    right.end().expect(0);
    // and where the right one does not come
    let port = self::port();
    let mut zero = with(&lab, 0, port, WORD);
    zero.env("RUNNER_JOIN_TIMEOUT_S", "3");
    support::ended(zero).expect(1).says(&["rank 1 of 2 did not join within 3 s (RUNNER_JOIN_TIMEOUT_S)"]);
}

#[test]
fn a_false_rank_0_is_told_nothing() {
    let lab = Lab::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let one = spawned(with(&lab, 1, port, WORD));
    let (mut stream, _) = listener.accept().expect("a rank");
    let (mut said, mut proof) = ([0; 54], [0; 32]);
    stream.read_exact(&mut said).expect("a hello");
    stream.write_all(&[&b"runner ranks 3"[..], &[1; 32]].concat()).expect("sent");
    stream.read_exact(&mut proof).expect("a proof");
    stream.write_all(&[&[0][..], &proof].concat()).expect("sent");
    assert_eq!(all_of(stream), [] as [u8; 0]);
    one.end().expect(1).says(&["does not know the secret", "MASTER_PORT"]);
}

#[test]
fn what_hangs_up_is_told_of_while_a_rank_waits() {
    let lab = Lab::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let mut one = with(&lab, 1, port, WORD);
    one.env("RUNNER_JOIN_TIMEOUT_S", "5");
    let one = spawned(one);
    // as rank 0 of version 1 does, to which a hello of this version is no message
    thread::spawn(move || listener.incoming().for_each(drop));
    one.end().expect(1).says(&["warning: rank 1", "hangs up", "older version", "cannot reach rank 0"]);
}

/// Ranks 0 and 1 without variables for the secret, whose caches are there.
fn at_home(lab: &Lab, caches: [&Path; 2]) -> Vec<support::Ended> {
    let port = port();
    let start = |number: usize| {
        let mut command = rank(lab, number, 2, port, &two("runs"));
        command.env("XDG_CACHE_HOME", caches[number]).env("RUNNER_JOIN_TIMEOUT_S", "5");
        spawned(command)
    };
    let ranks = [start(0), start(1)];
    ranks.into_iter().map(Live::end).collect()
}

fn made(cache: &Path) -> PathBuf {
    cache.join("runner/ranks.secret")
}

#[test]
fn ranks_that_share_a_home_need_no_variable() {
    let lab = Lab::new();
    let (home, other) = (lab.path("home"), lab.path("other"));
    for ended in at_home(&lab, [&home, &home]) {
        ended.expect(0);
    }
    let mode = fs::metadata(made(&home)).expect("it was made").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let word = fs::read_to_string(made(&home)).expect("it is ours");
    assert_eq!(word.trim_end().len(), 64);
    let run = lab.only_run("runs");
    assert!(!fs::read_to_string(run.join("run.json")).expect("a record").contains(word.trim_end()));
    // nodes without a shared home
    fs::remove_dir_all(lab.path("runs")).expect("removed");
    let ended = at_home(&lab, [&home, &other]);
    for (ended, cache) in ended.iter().zip([&home, &other]) {
        let path = made(cache).display().to_string();
        ended.expect(1).says(&["RUNNER_SECRET_FILE or RUNNER_SECRET", &path]);
        assert!(!ended.stderr.contains(word.trim_end()), "{}", ended.stderr);
    }
    // as ssh does
    fs::set_permissions(made(&home), fs::Permissions::from_mode(0o644)).expect("it is ours");
    for ended in at_home(&lab, [&home, &home]) {
        ended.expect(2).says(&["mode 644", &format!("chmod 600 {}", made(&home).display())]);
    }
}

#[test]
fn a_secret_that_is_none_is_refused() {
    let lab = Lab::new();
    let file = lab.write("word", "short\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let start = |variable: &str, value: &str| {
        let mut command = rank(&lab, 1, 2, port(), &two("runs"));
        command.env(variable, value);
        support::ended(command)
    };
    for (variable, value, says) in [
        ("RUNNER_SECRET", "fifteen letters", "too short"),
        ("RUNNER_SECRET", "", "too short"),
        ("RUNNER_SECRET_FILE", "word", "too short"),
        ("RUNNER_SECRET_FILE", "nothing", "RUNNER_SECRET_FILE=nothing"),
        ("RUNNER_SECRET_FILE", "data", "directory"),
        ("RUNNER_JOIN_TIMEOUT_S", "0", "RUNNER_JOIN_TIMEOUT_S is `0`"),
        ("RUNNER_JOIN_TIMEOUT_S", "soon", "RUNNER_JOIN_TIMEOUT_S is `soon`"),
    ] {
        let ended = start(variable, value);
        ended.expect(2).says(&[says]);
        assert!(!ended.stderr.contains("fifteen"), "{}", ended.stderr);
    }
}

#[test]
fn a_secret_comes_from_a_file_first() {
    let lab = Lab::new();
    let file = lab.write("word", format!("{WORD}\n"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).expect("it is ours");
    let port = port();
    let mut zero = with(&lab, 0, port, "something else that is long enough");
    zero.env("RUNNER_SECRET_FILE", &file);
    let (zero, one) = (spawned(zero), spawned(with(&lab, 1, port, WORD)));
    zero.end().expect(0);
    one.end().expect(0);
}

/// Whether something listens at an address of the loopback.
fn listens(address: [u8; 4], port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::from(address), port)).is_ok()
}

#[test]
fn rank_0_listens_where_it_is_looked_for() {
    let lab = Lab::new();
    let port = port();
    let start = |number: usize| {
        let mut command = with(&lab, number, port, WORD);
        command.env("MASTER_ADDR", "127.0.0.2");
        spawned(command)
    };
    let zero = start(0);
    support::wait("rank 0", || listens([127, 0, 0, 2], port));
    assert!(!listens([127, 0, 0, 1], port) && !listens([127, 0, 0, 3], port));
    let one = start(1);
    zero.end().expect(0);
    one.end().expect(0);
}

/// The arguments of two ranks that train for long.
fn endless(timeout: &str) -> Vec<String> {
    let timeout = format!("distributed.timeout_s={timeout}");
    let sets = ["batch.world_size=2", "batch.micro_batch=1", "schedule.max_steps=1000000", &timeout];
    tiny("runs", &sets)
}

fn stopped(live: &mut Live) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", live.id())).unwrap_or_default();
    status.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

fn start(lab: &Lab, timeout: &str) -> (Vec<Live>, PathBuf) {
    let port = port();
    let ranks: Vec<Live> = (0..2).map(|r| spawned(rank(lab, r, 2, port, &endless(timeout)))).collect();
    let run = lab.only_run("runs");
    support::wait("some steps", || run.join("train.csv").exists() && rows(&run) > 5);
    (ranks, run)
}

#[test]
fn a_rank_0_that_was_stopped_blames_no_other() {
    let lab = Lab::new();
    let (mut ranks, run) = start(&lab, "3");
    ranks[0].signal("STOP");
    support::wait("the stop", || stopped(&mut ranks[0]));
    // gives rank 0 up
    let one = ranks.pop().expect("two").end();
    one.expect(1).says(&["rank 0 of 2 did not answer for 3 s (distributed.timeout_s)"]);
    ranks[0].signal("CONT");
    let zero = ranks.pop().expect("one").end();
    zero.expect(1).says(&["rank 0 of 2 did not answer for 3 s (distributed.timeout_s)"]);
    assert!(!zero.stderr.contains("rank 1 of 2"), "{}", zero.stderr);
    assert!(record(&run)["error"].as_str().is_some_and(|error| error.contains("rank 0 of 2")));
}

#[test]
fn ranks_that_were_all_stopped_go_on() {
    let lab = Lab::new();
    let (mut ranks, run) = start(&lab, "4");
    for rank in &mut ranks {
        rank.signal("STOP");
    }
    support::wait("the stop", || ranks.iter_mut().all(stopped));
    let before = rows(&run);
    // longer than any of them waits: the timeout, and the five seconds by which the others wait longer for rank 0
    thread::sleep(Duration::from_secs(11));
    // rank 0 is ahead of the other
    ranks[0].signal("CONT");
    thread::sleep(Duration::from_millis(300));
    ranks[1].signal("CONT");
    support::wait("more steps", || rows(&run) > before + 5);
    ranks[0].signal("TERM");
    for ended in ranks.into_iter().map(Live::end) {
        ended.expect(143);
    }
}
