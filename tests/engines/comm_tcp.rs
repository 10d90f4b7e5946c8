//! Ranks connected by TCP. Here each is a thread with its own connection instead of a process.

use crate::comm_support;

use comm_support::{names_who_gives_up, names_who_is_silent, obeys};
use runner::comm::{Comm, CommError, Joining, Secret, Tcp};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How long a rank may take that is there.
const LONG: Duration = Duration::from_secs(120);
/// How long a rank is waited for that never comes: every other one must come in less.
const SHORT: Duration = Duration::from_secs(3);
/// What a rank other than rank 0 waits in addition, so that rank 0 is the first to say who is lost.
const GRACE: Duration = Duration::from_secs(5);

fn secret(word: &str) -> Secret {
    Secret::new(word.as_bytes().to_vec(), "a test's").expect("long enough")
}

/// Rank 0 of `size`, which listens already, with what it warns of.
fn host(size: usize, listener: TcpListener, timeout: Duration) -> (Result<Tcp, CommError>, Vec<String>) {
    let warned = Mutex::new(Vec::new());
    let warn = |text: &str| warned.lock().expect("no panic").push(text.to_owned());
    let joining = Joining { secret: &secret("the secret of these ranks"), timeout, warn: &warn };
    let first = Tcp::host(size, listener, &joining);
    (first, warned.into_inner().expect("no panic"))
}

/// Another rank of `size`, at a port of the loopback.
fn join_with(word: &str, rank: usize, size: usize, port: u16, timeout: Duration) -> Result<Tcp, CommError> {
    let joining = Joining { secret: &secret(word), timeout, warn: &|_| {} };
    Tcp::join(rank, size, "127.0.0.1", port, &joining)
}

fn join(rank: usize, size: usize, port: u16, timeout: Duration) -> Result<Tcp, CommError> {
    join_with("the secret of these ranks", rank, size, port, timeout)
}

/// A listener on a port that the system chooses, and the port.
fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

/// The connected ranks.
fn group(size: usize, timeout: Duration) -> Vec<Arc<dyn Comm>> {
    let (listener, port) = listener();
    let others: Vec<_> = (1..size).map(|rank| thread::spawn(move || join(rank, size, port, LONG))).collect();
    let first = host(size, listener, LONG).0.expect("all come");
    let others = others.into_iter().map(|thread| thread.join().expect("no panic").expect("rank 0 is there"));
    let ends: Vec<_> = std::iter::once(first).chain(others).collect();
    ends.iter().for_each(|end| end.set_timeout(timeout));
    ends.into_iter().map(|end| Arc::new(end) as Arc<dyn Comm>).collect()
}

#[test]
fn sums_shares_and_messages_arrive_in_the_order_of_ranks() {
    for size in 1..=4 {
        obeys(&group(size, LONG), true);
    }
}

#[test]
fn a_rank_that_gives_up_is_named() {
    names_who_gives_up(&group(3, LONG));
}

#[test]
fn ranks_that_do_not_arrive_are_named() {
    names_who_is_silent(&group(4, SHORT), &[1, 3]);
}

#[test]
fn rank_0_is_named_when_it_hangs() {
    let ends = group(2, SHORT);
    match ends[1].barrier() {
        Err(CommError::Silent { ranks, .. }) => assert_eq!(ranks, [0]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_whose_process_ends_is_named_at_once() {
    for gone in [0, 2] {
        let mut ends = group(3, LONG);
        drop(ends.remove(gone));
        let results = comm_support::each(&ends, |comm| comm.barrier());
        for result in results {
            match result {
                Err(CommError::Lost { rank, size: 3, why }) => {
                    assert_eq!(rank, gone);
                    assert!(why.contains("process ended"), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_rank_that_does_not_wait_can_check_on_the_others() {
    let mut ends = group(3, LONG);
    assert!(ends.iter().all(|end| end.check().is_ok()));
    drop(ends.pop());
    let lost = |end: &Arc<dyn Comm>| loop {
        // rank 0 passes the failure on
        if let Err(CommError::Lost { rank, .. }) = end.check() {
            break rank;
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((lost(&ends[0]), lost(&ends[1])), (2, 2));
}

#[test]
fn strangers_are_not_let_in_and_do_no_harm() {
    let (listener, port) = listener();
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("somebody listens");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it is read");
    // a rank of a run of another size
    let other = thread::spawn(move || join(1, 5, port, SHORT));
    let second = thread::spawn(move || join(1, 2, port, LONG));
    let first = host(2, listener, LONG).0.expect("the right one comes");
    let second = second.join().expect("no panic").expect("rank 0 is there");
    assert!(other.join().expect("no panic").is_err());
    let both: Vec<Arc<dyn Comm>> = vec![Arc::new(first), Arc::new(second)];
    obeys(&both, true);
}

/// What a rank says first: the version of the greeting, its rank, the number of ranks, a random number.
fn hello(rank: u32, size: u32) -> Vec<u8> {
    [&b"runner ranks 3"[..], &rank.to_le_bytes(), &size.to_le_bytes(), &[7; 32]].concat()
}

/// All that arrives until the other end hangs up.
fn all_of(mut stream: TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(LONG)).expect("a timeout");
    let mut bytes = Vec::new();
    // whoever is turned away may see a reset
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

#[test]
fn a_stranger_takes_nobodys_place_and_learns_nothing() {
    let (listener, port) = listener();
    let first = thread::spawn(move || host(2, listener, LONG));
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("somebody listens");
    stranger.write_all(&hello(1, 2)).expect("it is read");
    let mut challenge = [0; 46];
    stranger.read_exact(&mut challenge).expect("a challenge");
    // it announces 4 GiB where a proof belongs
    stranger.write_all(&[&[0][..], &(1_u64 << 32).to_le_bytes(), &[0; 23]].concat()).expect("it is read");
    let told = all_of(stranger);
    assert!(told.len() == 33 && told[0] != 0 && told[1..].iter().all(|byte| *byte == 0), "{told:?}");
    let wrong = join_with("another secret of ranks", 1, 2, port, LONG).map(drop).expect_err("it is wrong");
    for word in ["secret", "RUNNER_SECRET_FILE", "RUNNER_SECRET", "a test's"] {
        assert!(wrong.to_string().contains(word) && !wrong.to_string().contains("of these ranks"), "{wrong}");
    }
    let second = join(1, 2, port, LONG).expect("its place is free");
    let (first, warned) = first.join().expect("no panic");
    let both: Vec<Arc<dyn Comm>> = vec![Arc::new(first.expect("the right one")), Arc::new(second)];
    obeys(&both, true);
    assert_eq!(warned.len(), 1, "both are one address and one rank: {warned:?}");
    assert!(warned[0].contains("127.0.0.1") && warned[0].contains("RUNNER_SECRET_FILE"), "{}", warned[0]);
}

#[test]
fn a_recorded_greeting_is_of_no_use() {
    // a rank, rank 0, and one between them that records what the rank says
    let (listener, port) = self::listener();
    let (between, recorded_port) = self::listener();
    let first = thread::spawn(move || host(2, listener, LONG).0);
    let second = thread::spawn(move || join(1, 2, recorded_port, LONG));
    let (mut rank, _) = between.accept().expect("a rank");
    let mut zero = TcpStream::connect(("127.0.0.1", port)).expect("rank 0");
    let (mut said, mut challenge, mut proof, mut verdict) = ([0; 54], [0; 46], [0; 32], [0; 33]);
    rank.read_exact(&mut said).expect("a hello");
    zero.write_all(&said).expect("sent");
    zero.read_exact(&mut challenge).expect("a challenge");
    rank.write_all(&challenge).expect("sent");
    rank.read_exact(&mut proof).expect("a proof");
    // so it is not let in yet
    drop((rank, zero));
    let mut again = TcpStream::connect(("127.0.0.1", port)).expect("rank 0");
    again.write_all(&said).expect("sent");
    let mut other = [0; 46];
    again.read_exact(&mut other).expect("a challenge");
    assert_ne!(challenge, other);
    again.write_all(&proof).expect("sent");
    again.read_exact(&mut verdict).expect("a verdict");
    assert_eq!(verdict[0], 1, "it was let in");
    // the rank has tried again meanwhile
    let (mut rank, _) = between.accept().expect("a rank");
    let mut zero = TcpStream::connect(("127.0.0.1", port)).expect("rank 0");
    let mut back = (rank.try_clone().expect("a handle"), zero.try_clone().expect("a handle"));
    let there = thread::spawn(move || std::io::copy(&mut rank, &mut zero));
    let here = thread::spawn(move || std::io::copy(&mut back.1, &mut back.0));
    let first = first.join().expect("no panic").expect("the rank comes");
    let second = second.join().expect("no panic").expect("rank 0 is there");
    let both: Vec<Arc<dyn Comm>> = vec![Arc::new(first), Arc::new(second)];
    obeys(&both, true);
    both.into_iter().for_each(drop);
    drop((there, here));
}

#[test]
fn a_false_rank_0_gets_a_rank_s_number_and_no_more() {
    let (false_zero, port) = listener();
    let rank = thread::spawn(move || join(1, 2, port, LONG).map(drop));
    let (mut stream, _) = false_zero.accept().expect("a rank");
    let (mut said, mut proof) = ([0; 54], [0; 32]);
    stream.read_exact(&mut said).expect("a hello");
    stream.write_all(&[&b"runner ranks 3"[..], &[3; 32]].concat()).expect("sent");
    stream.read_exact(&mut proof).expect("a proof");
    // as a welcome, with what it has just heard
    stream.write_all(&[&[0][..], &proof].concat()).expect("sent");
    let error = rank.join().expect("no panic").expect_err("it is found out");
    assert!(error.to_string().contains("does not know the secret"), "{error}");
    assert_eq!(all_of(stream), [] as [u8; 0]);
}

#[test]
fn other_versions_are_turned_away_in_words() {
    let (listener, port) = self::listener();
    let first = thread::spawn(move || host(2, listener, LONG));
    // as version 1 did: a message of 22 bytes
    let older =
        [&[0, 22, 0, 0, 0, 0, 0, 0, 0][..], b"runner ranks 1", &1_u32.to_le_bytes(), &2_u32.to_le_bytes()];
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("rank 0");
    stream.write_all(&older.concat()).expect("sent");
    let told = all_of(stream);
    assert!(told[0] == 1 && String::from_utf8_lossy(&told[9..]).contains("same build"), "{told:?}");
    let second = join(1, 2, port, LONG).expect("rank 0 is there");
    let (first, warned) = first.join().expect("no panic");
    drop((first.expect("the right one"), second));
    assert!(warned.len() == 1 && warned[0].contains("same build"), "{warned:?}");
    // a newer rank 0
    let (newer, port) = self::listener();
    let rank = thread::spawn(move || join(1, 2, port, LONG).map(drop));
    let (mut stream, _) = newer.accept().expect("a rank");
    stream.write_all(&[&b"runner ranks 4"[..], &[3; 32]].concat()).expect("sent");
    let error = rank.join().expect("no panic").expect_err("another version");
    assert!(error.to_string().contains("another version"), "{error}");
}

#[test]
fn silent_strangers_are_not_waited_for() {
    let (listener, port) = self::listener();
    let first = thread::spawn(move || host(2, listener, LONG).0.expect("the right one comes"));
    let silent: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("a connection")).collect();
    // some of them say something, now and then
    let mut talking = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let talks = thread::spawn(move || {
        for byte in hello(1, 2) {
            if talking.write_all(&[byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(200));
        }
    });
    let begun = std::time::Instant::now();
    let second = join(1, 2, port, LONG).expect("rank 0 is there");
    let took = begun.elapsed();
    let both: Vec<Arc<dyn Comm>> = vec![Arc::new(first.join().expect("no panic")), Arc::new(second)];
    obeys(&both, true);
    // one greeting may take five seconds: 200 one after the other take a quarter of an hour
    assert!(took < LONG, "{took:?}");
    drop(silent);
    talks.join().expect("no panic");
}

#[test]
fn an_announced_length_costs_nothing() {
    // one that knows the secret, and sends what no rank sends
    let (between, port) = self::listener();
    let (listener, zero_port) = self::listener();
    let first = thread::spawn(move || host(2, listener, LONG).0);
    let rank = thread::spawn(move || join(1, 2, port, LONG).map(drop));
    let (rank_side, _) = between.accept().expect("a rank");
    let zero = TcpStream::connect(("127.0.0.1", zero_port)).expect("rank 0");
    let mut copies = [
        (rank_side.try_clone().expect("a handle"), zero.try_clone().expect("a handle"), 54 + 32),
        (zero.try_clone().expect("a handle"), rank_side.try_clone().expect("a handle"), 46 + 33),
    ];
    thread::scope(|scope| {
        for (from, to, count) in &mut copies {
            scope.spawn(|| std::io::copy(&mut from.take(*count), to));
        }
    });
    let (mut zero, first) = (zero, first.join().expect("no panic").expect("all ranks are there"));
    zero.write_all(&[&[0][..], &(1_u64 << 32).to_le_bytes(), &[1; 1000]].concat()).expect("sent");
    match first.barrier() {
        Err(CommError::Lost { rank: 1, why, .. }) => assert!(why.contains("impossible length"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop((zero, rank_side, copies));
    assert!(rank.join().expect("no panic").is_err());
}

#[test]
fn a_rank_that_ends_before_all_are_there_may_come_again() {
    let (listener, port) = self::listener();
    let first = thread::spawn(move || host(3, listener, LONG).0);
    // as if its process ended: its connection ends when it gives up
    let gone = join(1, 3, port, Duration::from_secs(1)).map(drop);
    assert!(gone.is_err(), "rank 2 is not there");
    let others: Vec<_> = [1, 2].map(|rank| thread::spawn(move || join(rank, 3, port, LONG))).into();
    let mut ends = vec![Arc::new(first.join().expect("no panic").expect("all come")) as Arc<dyn Comm>];
    ends.extend(
        others.into_iter().map(|end| Arc::new(end.join().expect("no panic").expect("0")) as Arc<dyn Comm>),
    );
    obeys(&ends, true);
}

#[test]
fn a_rank_that_ended_before_all_were_there_is_not_counted() {
    let (listener, port) = self::listener();
    // longer than the first one waits
    let first = thread::spawn(move || host(3, listener, GRACE + 2 * SHORT).0.map(drop));
    let gone = join(1, 3, port, Duration::from_secs(1)).map(drop);
    assert!(gone.is_err(), "rank 2 is not there");
    let last = join(2, 3, port, SHORT).map(drop);
    assert!(last.is_err(), "rank 1 is not there any more");
    match first.join().expect("no panic") {
        // on a busy machine rank 2 may come too late as well
        Err(CommError::Absent { ranks, .. }) => assert!(ranks.contains(&1), "{ranks:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rank_that_does_not_join_is_named() {
    let (listener, _) = self::listener();
    match host(3, listener, Duration::from_millis(200)).0.map(drop) {
        Err(CommError::Absent { ranks, .. }) => assert_eq!(ranks, [1, 2]),
        other => panic!("{other:?}"),
    }
    let (closed, nobody) = self::listener();
    drop(closed);
    let error = join(1, 2, nobody, Duration::from_millis(200)).map(drop).expect_err("no rank 0");
    assert!(error.to_string().contains("MASTER_PORT"), "{error}");
}

#[test]
fn two_processes_that_are_one_rank_are_told_so() {
    let (listener, port) = self::listener();
    let first = thread::spawn(move || host(3, listener, LONG).0.map(drop));
    let twice: Vec<_> = (0..2).map(|_| thread::spawn(move || join(1, 3, port, LONG).map(drop))).collect();
    for end in twice.into_iter().chain([first]) {
        let error = end.join().expect("no panic").expect_err("one too many");
        assert!(error.to_string().contains("two processes say that they are rank 1"), "{error}");
    }
}

#[test]
fn a_rank_that_ends_is_named_despite_its_signs_of_life() {
    let mut ends = group(3, LONG);
    // rank 0 sends signs of life that rank 1 does not read
    ends[0].set_working(true);
    thread::sleep(Duration::from_millis(2500));
    drop(ends.remove(0));
    for end in &ends {
        assert!(matches!(end.check(), Err(CommError::Lost { rank: 0, .. })));
    }
}

#[test]
fn a_rank_that_works_is_waited_for() {
    let ends = group(3, SHORT);
    let results = comm_support::each(&ends, |comm| {
        // longer than the timeout and the grace period together
        if comm.rank() < 2 {
            comm.set_working(true);
            thread::sleep(SHORT * 2 + if comm.rank() == 0 { GRACE } else { Duration::ZERO });
            comm.set_working(false);
        }
        comm.barrier()
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn sending_to_a_hung_rank_is_given_up_in_time() {
    let ends = group(3, SHORT);
    // more than the sockets buffer: rank 1 reads nothing
    let results = comm_support::each(&[ends[0].clone(), ends[2].clone()], |comm| {
        let mut message = if comm.rank() == 0 { vec![1; 64 << 20] } else { Vec::new() };
        comm.broadcast(&mut message)
    });
    for result in results {
        match result {
            Err(CommError::Silent { ranks, .. }) => assert_eq!(ranks, [1]),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_rank_of_another_world_size_is_refused() {
    let (listener, port) = listener();
    let other = thread::spawn(move || join(1, 3, port, LONG).map(drop));
    let host = thread::spawn(move || host(2, listener, SHORT).0.map(drop));
    let error = other.join().expect("no panic").expect_err("three are not two");
    assert!(error.to_string().contains("one of 3") && error.to_string().contains("one of 2"), "{error}");
    assert!(host.join().expect("no panic").is_err());
}
