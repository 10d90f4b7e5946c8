//! Dropout: which elements a training pass leaves out (Srivastava et al., 2014; `torch.nn.functional.dropout`).
//!
//! Whether an element stays is a function of the run's seed, the number of its training row, its place in the network
//! and its position there, and of nothing else. So it does not depend on micro-batches, ranks, threads, devices or on
//! what is computed again, and the backward pass draws again what the forward pass has drawn. The function is
//! Philox4x32 with seven rounds (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"), the fewest that
//! passed the authors' tests.

/// Rounds of Philox.
const ROUNDS: usize = 7;
/// Counters that are computed together: as many as the widest vectors have numbers.
const LANES: usize = 16;

/// Four numbers of 32 bits for each of some counters, whose words are given and returned word by word.
#[inline(always)]
fn philox4x32<const ROUNDS: usize, const N: usize>(
    mut counters: [[u32; N]; 4],
    key: [u32; 2],
) -> [[u32; N]; 4] {
    const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const INCREMENTS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    let [mut left, mut right] = key;
    for _ in 0..ROUNDS {
        let [a, b, c, d] = &mut counters;
        for i in 0..N {
            let first = u64::from(MULTIPLIERS[0]) * u64::from(a[i]);
            let second = u64::from(MULTIPLIERS[1]) * u64::from(c[i]);
            a[i] = (second >> 32) as u32 ^ b[i] ^ left;
            b[i] = second as u32;
            c[i] = (first >> 32) as u32 ^ d[i] ^ right;
            d[i] = first as u32;
        }
        left = left.wrapping_add(INCREMENTS[0]);
        right = right.wrapping_add(INCREMENTS[1]);
    }
    counters
}

/// How much is left out, and the seed of the draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropout {
    /// Draws below this are left out.
    threshold: u32,
    seed: u64,
}

impl Dropout {
    /// Dropout of this share of elements, from 0 (inclusive) to 1 (exclusive), in steps of 2⁻³²; `None` where nothing
    /// is left out.
    pub fn new(rate: f64, seed: u64) -> Option<Self> {
        let threshold = (rate * 2f64.powi(32)).round() as u32;
        (threshold > 0).then_some(Self { threshold, seed })
    }

    /// The share of elements that are left out.
    pub fn rate(self) -> f64 {
        f64::from(self.threshold) / 2f64.powi(32)
    }

    /// Draws below this number are left out.
    pub fn threshold(self) -> u32 {
        self.threshold
    }

    /// The factor of elements that stay, 1 / (1 - [`rate`](Self::rate)): it keeps their expectation.
    pub fn scale(self) -> f32 {
        (1.0 / (1.0 - self.rate())) as f32
    }

    /// The two halves of the seed.
    pub fn key(self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }

    /// What is drawn for a training row at a place of the network; `head` is that of attention's probabilities, else 0.
    #[inline(always)]
    pub fn draw(self, row: u64, site: Site, head: usize) -> Draw {
        let high = site.number() << 20 | (head as u32) << 10 | ((row >> 32) as u32 & 0x3ff);
        Draw { key: self.key(), row: [row as u32, high], threshold: self.threshold, scale: self.scale() }
    }
}

/// A place of the network where elements are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The sum of token and position embedding, `[N, C]`.
    Embedding,
    /// Attention's probabilities in this block, `[rows, n_head, T, T]`.
    Probabilities(usize),
    /// The output of attention's projection in this block, `[N, C]`.
    Attention(usize),
    /// The MLP's output in this block, `[N, C]`.
    Mlp(usize),
}

impl Site {
    /// A number of its own for each place, below 2¹² in the 1024 blocks that a model has at most.
    #[inline(always)]
    pub fn number(self) -> u32 {
        match self {
            Self::Embedding => 0,
            Self::Probabilities(block) => 3 * block as u32 + 1,
            Self::Attention(block) => 3 * block as u32 + 2,
            Self::Mlp(block) => 3 * block as u32 + 3,
        }
    }
}

/// The draws of one training row at one place of the network.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    key: [u32; 2],
    /// The last two words of each counter.
    row: [u32; 2],
    threshold: u32,
    scale: f32,
}

impl Draw {
    #[inline(always)]
    fn words<const N: usize>(&self, first: [u32; N], second: [u32; N]) -> [[u32; N]; 4] {
        philox4x32::<ROUNDS, N>([first, second, [self.row[0]; N], [self.row[1]; N]], self.key)
    }

    #[inline(always)]
    fn factor(&self, word: u32) -> f32 {
        if word < self.threshold { 0.0 } else { self.scale }
    }

    /// The factor of a channel at a position of a `[T, C]` matrix. Four neighbouring channels share a counter.
    pub fn of_channel(&self, position: usize, channel: usize) -> f32 {
        self.factor(self.words([position as u32], [channel as u32 / 4])[channel % 4][0])
    }

    /// The factor of the probability of a key for a query. Queries and keys that differ in the bit of 8 share a
    /// counter, for a thread of a tensor core's fragment holds these four.
    pub fn of_probability(&self, query: usize, key: usize) -> f32 {
        let word = query / 8 % 2 * 2 + key / 8 % 2;
        self.factor(self.words([query as u32 & !8], [key as u32 & !8])[word][0])
    }

    /// The factors of the 64 channels from `first` on, a multiple of 4, at a position.
    #[inline(always)]
    pub(super) fn channels(&self, position: usize, first: usize) -> [f32; 4 * LANES] {
        let counters = std::array::from_fn(|i| (first / 4 + i) as u32);
        let words = self.words([position as u32; LANES], counters);
        let mut factors = [0.0; 4 * LANES];
        for (i, factors) in factors.chunks_exact_mut(4).enumerate() {
            for (factor, word) in factors.iter_mut().zip(&words) {
                *factor = self.factor(word[i]);
            }
        }
        factors
    }

    /// The factors of the probabilities of the 32 keys from `first` on, a multiple of 16, for a query.
    #[inline(always)]
    pub(super) fn keys(&self, query: usize, first: usize) -> [f32; 2 * LANES] {
        let counters = std::array::from_fn(|i| (first + i / 8 * 16 + i % 8) as u32);
        let [a, b, c, d] = self.words([query as u32 & !8; LANES], counters);
        let [low, high] = if query & 8 == 0 { [a, b] } else { [c, d] };
        let mut factors = [0.0; 2 * LANES];
        for i in 0..LANES {
            let at = i / 8 * 16 + i % 8;
            factors[at] = self.factor(low[i]);
            factors[at + 8] = self.factor(high[i]);
        }
        factors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn philox_gives_the_numbers_that_its_authors_publish() {
        let pi = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
        let known = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([!0; 4], [!0; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (pi.0, pi.1, [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
        ];
        for (counter, key, want) in known {
            assert_eq!(philox4x32::<10, 1>(counter.map(|word| [word]), key).as_flattened(), want);
        }
        let seven = philox4x32::<ROUNDS, 1>([[0]; 4], [0; 2]);
        assert_eq!(seven.as_flattened(), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
    }

    #[test]
    fn no_dropout_is_none_and_the_rest_keeps_the_expectation() {
        assert_eq!(Dropout::new(0.0, 1), None);
        assert_eq!(Dropout::new(1e-12, 1), None);
        for rate in [0.1, 0.2, 0.5, 0.999] {
            let dropout = Dropout::new(rate, 7).expect("something is left out");
            assert!((dropout.rate() - rate).abs() < 2f64.powi(-32));
            let mut mean = 0.0;
            for position in 0..100 {
                let draw = dropout.draw(3, Site::Mlp(1), 0);
                mean += (0..1000).map(|c| f64::from(draw.of_channel(position, c))).sum::<f64>() / 1e5;
            }
            // five standard deviations of the mean of 100,000 factors
            assert!((mean - 1.0).abs() < 5.0 * (rate / (1.0 - rate) / 1e5).sqrt(), "{rate}: {mean}");
        }
    }

    #[test]
    fn every_place_of_the_largest_network_has_a_number_of_its_own() {
        let of_block = |l| [Site::Probabilities(l), Site::Attention(l), Site::Mlp(l)];
        let sites = [Site::Embedding].into_iter().chain((0..1024).flat_map(of_block));
        assert!(sites.map(Site::number).eq(0..3073));
    }

    #[test]
    fn neighbours_in_every_direction_are_independent() {
        let dropout = Dropout::new(0.5, 1).expect("something is left out");
        let kept =
            |row: u64, site, head, query, key| dropout.draw(row, site, head).of_probability(query, key) > 0.0;
        let site = Site::Probabilities(2);
        let base = |i: usize| kept((i / 64) as u64, site, 1, i % 8 + 8, i / 8 % 8);
        let others: [&dyn Fn(usize) -> bool; 7] = [
            &|i| kept((i / 64) as u64 + 1, site, 1, i % 8 + 8, i / 8 % 8),
            &|i| kept((i / 64) as u64 + (1 << 32), site, 1, i % 8 + 8, i / 8 % 8),
            &|i| kept((i / 64) as u64, Site::Probabilities(3), 1, i % 8 + 8, i / 8 % 8),
            &|i| kept((i / 64) as u64, site, 2, i % 8 + 8, i / 8 % 8),
            &|i| kept((i / 64) as u64, site, 1, i % 8, i / 8 % 8),
            &|i| kept((i / 64) as u64, site, 1, i % 8 + 8, i / 8 % 8 + 8),
            &|i| kept((i / 64) as u64, site, 1, i / 8 % 8, i % 8 + 8),
        ];
        let count = 20_000;
        for (which, other) in others.into_iter().enumerate() {
            let equal = (0..count).filter(|&i| base(i) == other(i)).count() as f64;
            let off = (equal - count as f64 / 2.0).abs() / (count as f64 / 4.0).sqrt();
            assert!(off < 5.0, "direction {which}: {equal} of {count} are equal");
        }
    }

    proptest! {
        #[test]
        fn many_at_once_are_what_one_at_a_time_is(
            seed: u64, row in 0u64..1 << 42, block in 0usize..1024, head in 0usize..1024,
            position in 0usize..1 << 20, first in 0usize..1 << 14, rate in 0.01f64..0.99,
        ) {
            let dropout = Dropout::new(rate, seed).expect("something is left out");
            let draw = dropout.draw(row, Site::Attention(block), 0);
            let channels = draw.channels(position, first * 64);
            for (i, factor) in channels.into_iter().enumerate() {
                prop_assert_eq!(factor, draw.of_channel(position, first * 64 + i));
            }
            let draw = dropout.draw(row, Site::Probabilities(block), head);
            for (i, factor) in draw.keys(position, first * 16).into_iter().enumerate() {
                prop_assert_eq!(factor, draw.of_probability(position, first * 16 + i));
            }
        }
    }
}
