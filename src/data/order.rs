//! The order of rows: a pure function of (seed, position in the stream).
//!
//! Shuffling needs neither a table nor state, so a run can be resumed anywhere, split over ranks or cut into
//! other micro-batches without changing what the model sees. Each epoch is a permutation of the rows, made by
//! a balanced Feistel network over the next even number of bits and cycle-walked into range: a value that
//! falls outside is encrypted again until it falls inside (Black and Rogaway, "Ciphers with arbitrary finite
//! domains", 2002). The domain is less than four times the number of rows, so fewer than four walks are
//! expected.
//!
//! The round function is the finalizer of SplitMix64 (Steele, Lea and Flood, 2014, with Stafford's
//! constants): two multiplications, every input bit affects every output bit, and it needs no tables, so it
//! is the same on every machine. With wide halves, four rounds make a permutation hard to tell from random
//! (Luby and Rackoff, 1988); halves are narrow here, so there are eight. The permutation has to look random,
//! not to resist an attacker.

const ROUNDS: u64 = 8;

/// 2^64 divided by the golden ratio, odd: SplitMix64's step between keys.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The order in which the rows of a data set are read, endlessly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowOrder {
    /// Selects the permutations; has no effect unless `shuffle`.
    pub seed: u64,
    /// Number of rows R in the set, at least 1.
    pub rows: u64,
    /// Whether each epoch is permuted (differently), instead of read in file order.
    pub shuffle: bool,
}

impl RowOrder {
    /// The row at position `g` of the endless stream: in epoch g / R, row number g mod R of its permutation.
    /// Panics if `rows` is 0.
    pub fn row(&self, g: u64) -> u64 {
        let (epoch, index) = (g / self.rows, g % self.rows);
        if !self.shuffle {
            return index;
        }
        let key = mix(mix(self.seed.wrapping_add(GOLDEN)) ^ epoch);
        let half_bits = half_bits(self.rows);
        let mut row = feistel(key, half_bits, index);
        while row >= self.rows {
            row = feistel(key, half_bits, row);
        }
        row
    }
}

/// The seed for source `k` of a mixture: for the first one it is the mixture's.
pub(super) fn of_source(seed: u64, k: u64) -> u64 {
    if k == 0 { seed } else { mix(seed ^ mix(k.wrapping_mul(GOLDEN))) }
}

/// Half of the bits (at least one) of the smallest domain 4^b that holds `rows` values.
fn half_bits(rows: u64) -> u32 {
    let bits = u64::BITS - (rows - 1).leading_zeros();
    bits.div_ceil(2).max(1)
}

/// A permutation of the numbers below 2^(2 half_bits), a different one for each key.
fn feistel(key: u64, half_bits: u32, value: u64) -> u64 {
    let mask = u64::MAX >> (u64::BITS - half_bits);
    let (mut left, mut right) = (value >> half_bits, value & mask);
    for round in 1..=ROUNDS {
        let round_key = mix(key.wrapping_add(GOLDEN.wrapping_mul(round)));
        // the high bits, because a product's low bits depend on fewer bits of its input
        let word = mix(right ^ round_key) >> (u64::BITS - half_bits);
        (left, right) = (right, left ^ word);
    }
    left << half_bits | right
}

/// SplitMix64's finalizer.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epoch(order: RowOrder, epoch: u64) -> Vec<u64> {
        (0..order.rows).map(|i| order.row(epoch * order.rows + i)).collect()
    }

    fn shuffled(seed: u64, rows: u64) -> RowOrder {
        RowOrder { seed, rows, shuffle: true }
    }

    fn assert_permutation(order: RowOrder, epoch_index: u64) {
        let mut seen = vec![false; order.rows as usize];
        for row in epoch(order, epoch_index) {
            assert!(row < order.rows, "{row} of {order:?}");
            assert!(!std::mem::replace(&mut seen[row as usize], true), "{row} twice in {order:?}");
        }
    }

    #[test]
    fn every_small_and_every_awkward_size_is_permuted() {
        let awkward = (2..16).flat_map(|k| [(1 << k) - 1, 1 << k, (1 << k) + 1]);
        for rows in (1..200).chain(awkward).chain([257, 10_007, 65_521]) {
            assert_permutation(shuffled(1337, rows), 0);
            assert_permutation(shuffled(0, rows), 3);
        }
    }

    proptest! {
        #[test]
        fn any_epoch_of_any_seed_is_a_permutation(seed: u64, rows in 1u64..5_000, epoch in 0u64..1_000_000) {
            assert_permutation(shuffled(seed, rows), epoch);
        }

        #[test]
        fn huge_sets_stay_in_range(seed: u64, rows in 1u64.., g: u64) {
            prop_assert!(shuffled(seed, rows).row(g) < rows);
        }

        #[test]
        fn unshuffled_is_file_order(seed: u64, rows in 1u64.., g: u64) {
            prop_assert_eq!(RowOrder { seed, rows, shuffle: false }.row(g), g % rows);
        }

        #[test]
        fn epochs_and_seeds_differ(seed: u64, rows in 64u64..2_000) {
            let order = shuffled(seed, rows);
            prop_assert_ne!(epoch(order, 0), epoch(order, 1));
            prop_assert_ne!(epoch(order, 0), epoch(shuffled(seed.wrapping_add(1), rows), 0));
            prop_assert_ne!(epoch(order, 0), (0..rows).collect::<Vec<_>>());
        }
    }

    /// All orders of 3 and of 4 rows occur about equally often, over epochs as well as over seeds.
    #[test]
    fn small_permutations_are_uniform() {
        for (rows, orders) in [(3u64, 6usize), (4, 24)] {
            for by_seed in [false, true] {
                let mut counts = std::collections::BTreeMap::<_, u32>::new();
                let trials = 1_000 * orders as u64;
                for t in 0..trials {
                    let (seed, e) = if by_seed { (t, 0) } else { (7, t) };
                    *counts.entry(epoch(shuffled(seed, rows), e)).or_default() += 1;
                }
                assert_eq!(counts.len(), orders);
                // binomial with mean 1000: five standard deviations are under 160
                assert!(counts.values().all(|&n| (840..=1160).contains(&n)), "{counts:?}");
            }
        }
    }

    /// Neighbours in the stream are not neighbours in the files.
    #[test]
    fn steps_between_rows_are_spread_out() {
        let rows = 10_000;
        let order = epoch(shuffled(42, rows), 0);
        let adjacent = order.windows(2).filter(|w| w[0].abs_diff(w[1]) == 1).count();
        // about 2 are expected of a random permutation
        assert!(adjacent <= 12, "{adjacent} adjacent pairs");
        let distance: u64 = order.windows(2).map(|w| w[0].abs_diff(w[1])).sum();
        let mean = distance as f64 / (rows - 1) as f64;
        assert!((mean / rows as f64 - 1.0 / 3.0).abs() < 0.02, "mean distance {mean}");
    }

    /// Frozen, from an independent implementation in Python: a change here would silently change what every
    /// recipe trains on.
    #[test]
    fn golden_order() {
        assert_eq!(epoch(shuffled(1337, 10), 0), [6, 7, 2, 4, 1, 8, 3, 9, 0, 5]);
        assert_eq!(epoch(shuffled(1337, 10), 1), [6, 2, 1, 3, 7, 9, 5, 4, 8, 0]);
        assert_eq!(shuffled(u64::MAX, 330).row(1 << 63), 175);
        assert_eq!(shuffled(1, 1 << 40).row(123_456_789), 515_170_438_228);
    }
}
