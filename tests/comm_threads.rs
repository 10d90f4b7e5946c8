//! Ranks that are threads of one process.

mod comm_support;

use comm_support::{each, names_who_gives_up, names_who_is_silent, obeys, values};
use runner::comm::{Comm, CommError, Solo, Threads};
use std::sync::Arc;
use std::time::Duration;

fn group(size: usize, timeout: Duration) -> Vec<Arc<dyn Comm>> {
    Threads::group(size, timeout).into_iter().map(|end| Arc::new(end) as Arc<dyn Comm>).collect()
}

#[test]
fn sums_shares_and_messages_arrive_in_the_order_of_ranks() {
    for size in 1..=5 {
        obeys(&group(size, Duration::from_secs(60)), true);
    }
    obeys(&[Arc::new(Solo)], true);
}

#[test]
fn a_rank_that_gives_up_is_named() {
    names_who_gives_up(&group(3, Duration::from_secs(60)));
}

#[test]
fn ranks_that_do_not_arrive_are_named() {
    names_who_is_silent(&group(4, Duration::from_millis(300)), &[1, 3]);
    names_who_is_silent(&group(3, Duration::from_millis(300)), &[0]);
}

#[test]
fn values_of_different_sizes_are_refused_by_all() {
    for got in each(&group(3, Duration::from_secs(60)), |comm| {
        comm.all_reduce(&mut values(comm.rank(), 40 + comm.rank()))
    }) {
        assert!(matches!(got, Err(CommError::Failed(_))), "{got:?}");
    }
}

#[test]
fn a_rank_that_works_is_waited_for() {
    let ends = group(2, Duration::from_millis(200));
    let results = each(&ends, |comm| {
        if comm.rank() == 0 {
            comm.set_working(true);
            std::thread::sleep(Duration::from_secs(1));
            comm.set_working(false);
        }
        comm.barrier()
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}
