//! Ranks connected by TCP. Here each is a thread with its own connection instead of a process.

use crate::comm_support;

use comm_support::{names_who_gives_up, names_who_is_silent, obeys};
use runner::comm::{Comm, CommError, Tcp};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long a rank may take that is there.
const LONG: Duration = Duration::from_secs(120);
/// How long a rank is waited for that never comes: every other one must come in less.
const SHORT: Duration = Duration::from_secs(3);
/// What a rank other than rank 0 waits in addition, so that rank 0 is the first to say who is lost.
const GRACE: Duration = Duration::from_secs(5);

/// The connected ranks, on a port that the system chooses.
fn group(size: usize, timeout: Duration) -> Vec<Arc<dyn Comm>> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let others: Vec<_> =
        (1..size).map(|rank| thread::spawn(move || Tcp::join(rank, size, "127.0.0.1", port, LONG))).collect();
    let first = Tcp::host(size, listener, LONG).expect("all come");
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
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("somebody listens");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it is read");
    // a rank of a run of another size
    let other = thread::spawn(move || Tcp::join(1, 5, "127.0.0.1", port, SHORT));
    let second = thread::spawn(move || Tcp::join(1, 2, "127.0.0.1", port, LONG));
    let first = Tcp::host(2, listener, LONG).expect("the right one comes");
    let second = second.join().expect("no panic").expect("rank 0 is there");
    assert!(other.join().expect("no panic").is_err());
    let both: Vec<Arc<dyn Comm>> = vec![Arc::new(first), Arc::new(second)];
    obeys(&both, true);
}

#[test]
fn a_rank_that_does_not_join_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    match Tcp::host(3, listener, Duration::from_millis(200)).map(drop) {
        Err(CommError::Silent { ranks, .. }) => assert_eq!(ranks, [1, 2]),
        other => panic!("{other:?}"),
    }
    let nobody =
        TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address").port();
    let error =
        Tcp::join(1, 2, "127.0.0.1", nobody, Duration::from_millis(200)).map(drop).expect_err("no rank 0");
    assert!(error.to_string().contains("MASTER_PORT"), "{error}");
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
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let other = thread::spawn(move || Tcp::join(1, 3, "127.0.0.1", port, LONG).map(drop));
    let host = thread::spawn(move || Tcp::host(2, listener, SHORT).map(drop));
    let error = other.join().expect("no panic").expect_err("three are not two");
    assert!(error.to_string().contains("one of 3") && error.to_string().contains("one of 2"), "{error}");
    assert!(host.join().expect("no panic").is_err());
}
