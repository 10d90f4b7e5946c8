//! Ranks that are threads of one process.

mod comm_support;

use comm_support::{each, names_who_gives_up, names_who_is_silent, obeys, values};
use runner::comm::{Comm, CommError, Solo, Threads};
use std::sync::Arc;
use std::time::Duration;

/// How long a rank may take that is there.
const LONG: Duration = Duration::from_secs(120);
/// How long a rank is waited for that never comes: every other one must come in less.
const SHORT: Duration = Duration::from_secs(2);

fn group(size: usize, timeout: Duration) -> Vec<Arc<dyn Comm>> {
    Threads::group(size, timeout).into_iter().map(|end| Arc::new(end) as Arc<dyn Comm>).collect()
}

#[test]
fn sums_shares_and_messages_arrive_in_the_order_of_ranks() {
    for size in 1..=5 {
        obeys(&group(size, LONG), true);
    }
    obeys(&[Arc::new(Solo)], true);
}

#[test]
fn a_rank_that_gives_up_is_named() {
    names_who_gives_up(&group(3, LONG));
}

#[test]
fn ranks_that_do_not_arrive_are_named() {
    names_who_is_silent(&group(4, SHORT), &[1, 3]);
    names_who_is_silent(&group(3, SHORT), &[0]);
}

#[test]
fn values_of_different_sizes_are_refused_by_all() {
    for got in each(&group(3, LONG), |comm| comm.all_reduce(&mut values(comm.rank(), 40 + comm.rank()))) {
        assert!(matches!(got, Err(CommError::Failed(_))), "{got:?}");
    }
}

#[test]
fn a_rank_that_works_is_waited_for() {
    let ends = group(2, SHORT);
    let results = each(&ends, |comm| {
        if comm.rank() == 0 {
            comm.set_working(true);
            std::thread::sleep(SHORT * 2);
            comm.set_working(false);
        }
        comm.barrier()
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}
