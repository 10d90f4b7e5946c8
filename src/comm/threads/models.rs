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

/// A rank brings its next message only after rank 0 has taken the one before.
#[test]
fn messages_do_not_overtake_each_other() {
    model(2, 2, |comm| {
        for round in 0..2 {
            let all = comm.gather(&[comm.rank() as u8, round]).expect("both are there");
            assert_eq!(all, if comm.rank() == 0 { vec![vec![0, round], vec![1, round]] } else { Vec::new() });
        }
        for round in 0..2 {
            let mut message = vec![comm.rank() as u8, round];
            comm.broadcast(&mut message).expect("both are there");
            assert_eq!(message, [0, round]);
        }
    });
}

/// Each rank sums a share of its own and takes the other's.
#[test]
fn shares_of_two_ranks() {
    model(2, 2, |comm| {
        let (mine, owners) = (comm.rank() as f32 + 1.0, [0..1, 1..2]);
        let mut values = [mine; 17];
        comm.all_reduce(&mut values).expect("both are there");
        assert_eq!(values, [3.0; 17]);
        let mut values = [mine, 10.0 * mine];
        comm.reduce_scatter(&mut values, &owners).expect("both are there");
        assert_eq!(values[comm.rank()], [3.0, 30.0][comm.rank()]);
        comm.all_gather(&mut values, &owners).expect("both are there");
        assert_eq!(values, [3.0, 30.0]);
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
            comm.abandon("no data");
        }
        // the one that has given up does not meet the others either
        let failed = comm.all_reduce(&mut [1.0; 3]).expect_err("one is gone");
        assert!(failed.to_string().contains("no data"), "{failed}");
    });
}

/// A failure stays: nobody meets again, and nobody uses what another one lent.
#[test]
fn values_of_different_sizes_are_refused_for_good() {
    model(2, 2, |comm| {
        let mut values = [1.0; 2];
        let failed = comm.all_reduce(&mut values[comm.rank()..]).expect_err("sizes differ");
        assert!(failed.to_string().contains("different sizes"), "{failed}");
        assert_eq!(comm.all_reduce(&mut values), Err(failed));
        assert_eq!(values, [1.0; 2]);
    });
}

/// What comes from outside while ranks meet: wakeups without a reason, as a system may have them, and the end of all
/// meetings. Lent values are given back only when nobody uses them any more.
fn disturbed(disturb: fn(&Threads)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let ranks: Vec<_> = Threads::group(2, Duration::from_secs(3600)).into_iter().map(Arc::new).collect();
        let rank = |comm: Arc<Threads>| {
            move || {
                let mut values = [comm.rank() as f32 + 1.0, 10.0];
                let before = values;
                let ended = comm.all_reduce(&mut values);
                assert_eq!(values, if ended.is_ok() { [3.0, 20.0] } else { before });
                ended.is_ok()
            }
        };
        let (own, shared) = (rank(Arc::clone(&ranks[0])), Arc::clone(&ranks[0]));
        let other = thread::spawn(rank(Arc::clone(&ranks[1])));
        let disturbing = thread::spawn(move || disturb(&shared));
        let ended = own();
        assert_eq!(ended, other.join().expect("a rank panicked"), "one has the sum and the other has not");
        disturbing.join().expect("nothing that panics");
    });
}

#[test]
fn a_wakeup_without_a_reason_changes_nothing() {
    disturbed(|comm| comm.hub.changed.notify_all());
}

#[test]
fn ranks_that_have_lent_their_values_end_together_whatever_fails() {
    disturbed(|comm| comm.abandon("a signal"));
}
