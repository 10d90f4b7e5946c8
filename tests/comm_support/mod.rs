//! What every implementation of `Comm` must do, as one set of checks.
#![allow(dead_code, reason = "each test program uses its part")]

use runner::comm::{Comm, CommError, Threads, shares};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The ends of ranks that are threads of this process. One that does not come within `seconds` counts as silent.
pub(crate) fn ends(size: usize, seconds: u64) -> Vec<Arc<dyn Comm>> {
    let ends = Threads::group(size, Duration::from_secs(seconds)).into_iter();
    ends.map(|end| Arc::new(end) as Arc<dyn Comm>).collect()
}

/// Runs `rank` on one thread for each connection, and returns the results in the order of ranks.
pub(crate) fn each<T: Send>(
    ends: &[Arc<dyn Comm>],
    rank: impl Fn(&dyn Comm) -> Result<T, CommError> + Sync,
) -> Vec<Result<T, CommError>> {
    thread::scope(|scope| {
        let threads: Vec<_> = ends.iter().map(|end| scope.spawn(|| rank(end.as_ref()))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Values of a rank whose sums depend on the order of additions.
pub(crate) fn values(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + rank * 104_729) % 1000) as f32 * 1e-3 + 1.0 / (rank + 1) as f32).collect()
}

/// The expected sums, added in the order of ranks.
pub(crate) fn sums(size: usize, len: usize) -> Vec<f32> {
    let mut sum = values(0, len);
    for rank in 1..size {
        sum.iter_mut().zip(values(rank, len)).for_each(|(sum, value)| *sum += value);
    }
    sum
}

/// Sums, shares and messages arrive where they belong. `exact`: sums are added in the order of ranks.
pub(crate) fn obeys(ends: &[Arc<dyn Comm>], exact: bool) {
    let size = ends.len();
    let close = |a: &[f32], b: &[f32]| match exact {
        true => a == b,
        false => a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs()),
    };
    for len in [0, 1, 17, 5000, 100_003] {
        let expected = sums(size, len);
        for got in each(ends, |comm| {
            let mut mine = values(comm.rank(), len);
            comm.all_reduce(&mut mine)?;
            Ok(mine)
        }) {
            assert!(close(&got.expect("all ranks are there"), &expected), "all_reduce of {len}");
        }
        let owners = shares(len, size);
        let both = each(ends, |comm| {
            let mut mine = values(comm.rank(), len);
            comm.reduce_scatter(&mut mine, &owners)?;
            let own = owners[comm.rank()].clone();
            let share = mine[own.clone()].to_vec();
            // the other ranges are undefined
            let mut whole = vec![f32::NAN; len];
            whole[own.clone()].copy_from_slice(&share);
            comm.all_gather(&mut whole, &owners)?;
            Ok(whole)
        });
        for got in both {
            assert!(close(&got.expect("all ranks are there"), &expected), "reduce_scatter of {len}");
        }
    }
    for round in 0..20u8 {
        let got = each(ends, |comm| {
            let rank = comm.rank() as u8;
            let gathered = comm.gather(&vec![rank; usize::from(round)])?;
            let mut message = if rank == 0 { vec![round, 9] } else { Vec::new() };
            comm.broadcast(&mut message)?;
            let all = comm.exchange(&[rank, round])?;
            let sum = comm.sum(f64::from(rank) + 0.5)?;
            comm.barrier()?;
            comm.check()?;
            Ok((gathered, message, all, sum))
        });
        for (rank, got) in got.into_iter().enumerate() {
            let (gathered, message, all, sum) = got.expect("all ranks are there");
            let expected: Vec<Vec<u8>> = (0..size as u8).map(|rank| vec![rank; usize::from(round)]).collect();
            assert_eq!(gathered, if rank == 0 { expected } else { Vec::new() });
            assert_eq!(message, [round, 9]);
            assert_eq!(all, (0..size as u8).map(|rank| vec![rank, round]).collect::<Vec<_>>());
            assert_eq!(sum, (0..size).map(|rank| rank as f64 + 0.5).sum::<f64>());
        }
    }
}

/// If a rank gives up, every later call of the others returns an error that names it.
pub(crate) fn names_who_gives_up(ends: &[Arc<dyn Comm>]) {
    let last = ends.len() - 1;
    let got = each(ends, |comm| {
        comm.barrier()?;
        if comm.rank() == last {
            comm.abandon("its disk is full");
            return Ok(None);
        }
        let first = comm.all_reduce(&mut [1.0; 40]).expect_err("a rank has given up");
        let second = comm.barrier().expect_err("a failure is final");
        assert_eq!(comm.check().expect_err("a failure is final"), second);
        assert_eq!(first, second);
        Ok(Some(first))
    });
    for error in got.into_iter().take(last) {
        match error.expect("the barrier held") {
            Some(CommError::Lost { rank, size, why }) => {
                assert_eq!((rank, size, why.as_str()), (last, last + 1, "its disk is full"));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Ranks that wait get an error that names the ranks that did not arrive.
pub(crate) fn names_who_is_silent(ends: &[Arc<dyn Comm>], silent: &[usize]) {
    let present: Vec<_> = ends.iter().filter(|end| !silent.contains(&end.rank())).cloned().collect();
    for got in each(&present, |comm| comm.barrier()) {
        match got {
            Err(CommError::Silent { ranks, size, .. }) => {
                assert_eq!((ranks.as_slice(), size), (silent, ends.len()))
            }
            other => panic!("{other:?}"),
        }
    }
}
