//! Mixtures: rows from several sources, in proportions that a recipe states.
//!
//! Which source a position of the stream takes its row from repeats after [`PERIOD`] positions, so any that many rows
//! in a row have the stated proportions exactly. Within a period the sources are interleaved as evenly as possible:
//! each position goes to the source that lags furthest behind its share, as in smooth weighted round-robin. Each source
//! is read in an order of its own ([`RowOrder`]), epoch after epoch. So the row at a position depends on the seed, the
//! position and the data alone, and a run can be resumed anywhere or split over ranks.

use super::order::of_source;
use super::{DataError, RowOrder};
use std::ops::Range;

/// Rows after which the pattern of sources repeats; a source has a whole number of them.
pub const PERIOD: u64 = 1000;

/// One source of a mixture.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// The path, glob or name that it has in the recipe.
    pub name: String,
    /// How many of [`PERIOD`] rows come from it.
    pub share: u64,
    /// Its tokens.
    pub tokens: u64,
    /// Its rows, by their numbers in the whole set.
    pub rows: Range<u64>,
    /// blake3 of its contents, as of a set of its own.
    pub digest: String,
}

/// Several sources and the order in which they take turns.
pub(super) struct Mixture {
    sources: Vec<Source>,
    /// For each position of a period, the source and how many earlier positions of the period have the same one.
    pattern: Vec<(u16, u16)>,
}

impl Mixture {
    /// A mixture of sources whose shares add up to [`PERIOD`].
    pub(super) fn new(sources: Vec<Source>) -> Self {
        let mut taken = vec![0; sources.len()];
        let next = |position| {
            // shares and what is taken of them, in units of one row of a period
            let lag = |k: &usize| sources[*k].share as i64 * (position + 1) - PERIOD as i64 * taken[*k];
            // the first one of those that lag furthest
            let k = (0..sources.len()).rev().max_by_key(lag).expect("a mixture has sources");
            taken[k] += 1;
            (k as u16, (taken[k] - 1) as u16)
        };
        let pattern = (0..PERIOD as i64).map(next).collect();
        Self { sources, pattern }
    }

    /// The sources, in the order of the recipe.
    pub(super) fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// The row at position `g` of the endless stream, by its number in the whole set.
    pub(super) fn row(&self, seed: u64, shuffle: bool, g: u64) -> u64 {
        let (k, before) = self.pattern[(g % PERIOD) as usize];
        let source = &self.sources[usize::from(k)];
        let position = g / PERIOD * source.share + u64::from(before);
        let rows = source.rows.end - source.rows.start;
        source.rows.start + RowOrder { seed: of_source(seed, k.into()), rows, shuffle }.row(position)
    }
}

/// How many of [`PERIOD`] rows each source has under these weights: in proportion, rounded so that the sum is right
/// (by the largest remainder). Remainders that would be equal differ by the rounding of floating-point numbers, which
/// then decides; another rule would change what runs with such weights were trained on.
///
/// # Errors
/// [`DataError::Share`] for a weight so small that it comes to no row.
pub(super) fn shares(parts: &[(String, f64)]) -> Result<Vec<u64>, DataError> {
    let total: f64 = parts.iter().map(|(_, weight)| weight).sum();
    let exact: Vec<f64> = parts.iter().map(|(_, weight)| PERIOD as f64 * weight / total).collect();
    let mut shares: Vec<u64> = exact.iter().map(|exact| *exact as u64).collect();
    let mut by_remainder: Vec<usize> = (0..parts.len()).collect();
    by_remainder.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()));
    let missing = PERIOD.saturating_sub(shares.iter().sum());
    by_remainder.into_iter().cycle().take(missing as usize).for_each(|k| shares[k] += 1);
    match shares.iter().position(|share| *share == 0) {
        None => Ok(shares),
        Some(k) => Err(DataError::Share { name: parts[k].0.clone(), weight: parts[k].1, total }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mixture(shares: &[u64], rows: &[u64]) -> Mixture {
        let mut start = 0;
        let source = |(&share, &rows): (&u64, &u64)| {
            start += rows;
            Source { name: String::new(), share, tokens: 0, rows: start - rows..start, digest: String::new() }
        };
        Mixture::new(shares.iter().zip(rows).map(source).collect())
    }

    fn weighted(weights: &[f64]) -> Vec<(String, f64)> {
        weights.iter().map(|weight| (format!("w{weight}"), *weight)).collect()
    }

    #[test]
    fn weights_become_rows_of_a_thousand() {
        for (weights, expected) in [
            (&[0.7, 0.3][..], &[700, 300][..]),
            (&[7.0, 3.0], &[700, 300]),
            (&[1.0, 1.0, 1.0], &[334, 333, 333]),
            (&[1e-3, 0.999], &[1, 999]),
            (&[0.2345, 0.7655], &[235, 765]),
        ] {
            assert_eq!(shares(&weighted(weights)).expect("shares"), expected, "{weights:?}");
        }
        let error = shares(&weighted(&[1.0, 1e-4])).expect_err("no row").to_string();
        assert!(error.contains("`w0.0001` has weight 0.0001 of 1.0001"), "{error}");
    }

    proptest! {
        #[test]
        fn any_thousand_rows_in_a_row_have_the_proportions_and_every_row_comes_once_per_epoch(
            weights in prop::collection::vec(0.01..10.0, 2..6),
            (seed, shuffle, at) in (any::<u64>(), any::<bool>(), 0u64..5000),
        ) {
            let total: f64 = weights.iter().sum();
            let shares = match shares(&weighted(&weights)) {
                Ok(shares) => shares,
                // only a weight worth less than a row can come to none
                Err(_) => {
                    prop_assert!(weights.iter().any(|weight| PERIOD as f64 * weight / total < 1.0));
                    return Ok(());
                }
            };
            prop_assert_eq!(shares.iter().sum::<u64>(), PERIOD);
            for (share, weight) in shares.iter().zip(&weights) {
                prop_assert!((*share as f64 - PERIOD as f64 * weight / total).abs() < 1.0);
            }
            // as many rows as two periods read, so that each comes twice in four
            let rows: Vec<u64> = shares.iter().map(|share| 2 * share).collect();
            let mixture = mixture(&shares, &rows);
            let read: Vec<u64> = (0..4 * PERIOD).map(|g| mixture.row(seed, shuffle, g)).collect();
            let of = |row: &u64| mixture.sources().iter().position(|source| source.rows.contains(row));
            let from = at as usize % (3 * PERIOD as usize);
            for (k, share) in shares.iter().enumerate() {
                let window = &read[from..from + PERIOD as usize];
                prop_assert_eq!(window.iter().filter(|row| of(row) == Some(k)).count() as u64, *share);
                // at no position is a source ahead of its share by a whole row
                let begun = read[..=from].iter().filter(|row| of(row) == Some(k)).count() as f64;
                prop_assert!(begun < (from + 1) as f64 * *share as f64 / PERIOD as f64 + 1.0);
            }
            for epoch in read.chunks(2 * PERIOD as usize) {
                let mut sorted = epoch.to_vec();
                sorted.sort_unstable();
                prop_assert!(sorted.into_iter().eq(0..2 * PERIOD));
            }
        }
    }

    #[test]
    fn the_order_is_the_same_for_ever() {
        // what runs have been trained on must not change under them
        let mixture = mixture(&[700, 300], &[50, 1000]);
        let rows = |from: u64| (from..from + 8).map(|g| mixture.row(1337, true, g)).collect::<Vec<_>>();
        assert_eq!(rows(0), [38, 545, 16, 4, 32, 574, 22, 46]);
    }
}
