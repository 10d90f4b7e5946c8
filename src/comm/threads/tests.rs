//! Ranks that use what others have lent them, for Miri and the sanitizers to watch; values of all sizes and orders of
//! events have tests elsewhere.

use super::*;
use std::thread;

#[test]
fn ranks_use_each_other_s_values_and_then_their_own() {
    for size in [2, 3] {
        let ranks = Threads::group(size, Duration::from_secs(600));
        let ranks: Vec<_> = ranks.into_iter().map(|comm| thread::spawn(move || rounds(&comm))).collect();
        for rank in ranks {
            rank.join().expect("a rank panicked");
        }
    }
}

fn rounds(comm: &Threads) {
    let (rank, size) = (comm.rank(), comm.size());
    let sum = (1..=size).sum::<usize>() as f32;
    for round in 0..if cfg!(miri) { 3 } else { 200 } {
        // freed at the end of each round
        let mut values = vec![rank as f32 + 1.0; 16 * size + round % 5];
        let owners = crate::comm::shares(values.len(), size);
        comm.all_reduce(&mut values).expect("all are there");
        assert!(values.iter().all(|value| *value == sum));
        values.fill(rank as f32 + 1.0);
        comm.reduce_scatter(&mut values, &owners).expect("all are there");
        assert!(values[owners[rank].clone()].iter().all(|value| *value == sum));
        comm.all_gather(&mut values, &owners).expect("all are there");
        assert!(values.iter().all(|value| *value == sum));
        let all = comm.exchange(&[rank as u8, round as u8]).expect("all are there");
        assert!(all.iter().enumerate().all(|(rank, message)| *message == [rank as u8, round as u8]));
    }
}
