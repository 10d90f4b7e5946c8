//! Ranks that are threads of one process.

use crate::comm_support;

use comm_support::{each, ends, names_who_gives_up, names_who_is_silent, obeys, values};
use runner::comm::{CommError, Solo};
use std::sync::Arc;
use std::time::Duration;

/// Seconds that a rank may take that is there.
const LONG: u64 = 120;
/// Seconds that a rank is waited for that never comes: every other one must come in less.
const SHORT: u64 = 2;

#[test]
fn sums_shares_and_messages_arrive_in_the_order_of_ranks() {
    for size in 1..=5 {
        obeys(&ends(size, LONG), true);
    }
    obeys(&[Arc::new(Solo)], true);
}

#[test]
fn a_rank_that_gives_up_is_named() {
    names_who_gives_up(&ends(3, LONG));
}

#[test]
fn ranks_that_do_not_arrive_are_named() {
    names_who_is_silent(&ends(4, SHORT), &[1, 3]);
    names_who_is_silent(&ends(3, SHORT), &[0]);
}

#[test]
fn values_of_different_sizes_are_refused_by_all() {
    for got in each(&ends(3, LONG), |comm| comm.all_reduce(&mut values(comm.rank(), 40 + comm.rank()))) {
        assert!(matches!(got, Err(CommError::Failed(_))), "{got:?}");
    }
}

#[test]
fn a_rank_that_works_is_waited_for() {
    let ends = ends(2, SHORT);
    let results = each(&ends, |comm| {
        if comm.rank() == 0 {
            comm.set_working(true);
            std::thread::sleep(Duration::from_secs(2 * SHORT));
            comm.set_working(false);
        }
        comm.barrier()
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}
