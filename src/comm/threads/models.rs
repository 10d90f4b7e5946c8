//! The meetings of ranks in every order of events that Loom finds, up to a number of preemptions. Loom's time stands
//! still: no rank is ever late.

use super::*;
use crate::sync::thread;

/// Runs what each of `size` ranks does, each on a thread, in every order.
fn model(size: usize, preemptions: usize, rank: fn(&Threads)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let mut ranks = Threads::group(size, Duration::from_secs(3600)).into_iter();
        let own = ranks.next().expect("a rank");
        let others: Vec<_> = ranks.map(|comm| thread::spawn(move || rank(&comm))).collect();
        rank(&own);
        for other in others {
            other.join().expect("a rank panicked");
        }
    });
}

#[test]
fn sums_and_messages_of_two_ranks() {
    model(2, 2, |comm| {
        let mut values = [comm.rank() as f32 + 1.0, 10.0];
        comm.all_reduce(&mut values).expect("both are there");
        assert_eq!(values, [3.0, 20.0]);
        let mut message = vec![comm.rank() as u8];
        comm.broadcast(&mut message).expect("both are there");
        assert_eq!(message, [0]);
    });
}

#[test]
fn gathered_messages_of_three_ranks() {
    model(3, 1, |comm| {
        let all = comm.gather(&[comm.rank() as u8]).expect("all are there");
        assert_eq!(all, if comm.rank() == 0 { vec![vec![0], vec![1], vec![2]] } else { Vec::new() });
    });
}

#[test]
fn a_rank_that_gives_up_ends_every_meeting() {
    model(3, 1, |comm| {
        if comm.rank() == 2 {
            return comm.abandon("no data");
        }
        let failed = comm.all_reduce(&mut [1.0; 3]).expect_err("one is gone");
        assert!(failed.to_string().contains("no data"), "{failed}");
    });
}
