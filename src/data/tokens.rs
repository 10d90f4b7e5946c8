//! The tokens of one shard, in a mapped file or in memory.

use super::format::{Layout, Width};
use memmap2::Mmap;
use rayon::prelude::*;
use std::ops::Range;

/// Bytes that one thread scans at a time; a multiple of every token width.
const PART: usize = 1 << 20;

enum Store {
    Mapped { map: Mmap, offset: usize },
    Owned(Vec<u8>),
}

/// A sequence of little-endian tokens.
pub(super) struct Tokens {
    store: Store,
    width: Width,
}

impl Tokens {
    /// The tokens of a mapped file with this layout.
    pub(super) fn mapped(map: Mmap, layout: Layout) -> Self {
        Self { store: Store::Mapped { map, offset: layout.offset }, width: layout.width }
    }

    /// Tokens held in memory.
    pub(super) fn owned(tokens: impl IntoIterator<Item = u16>) -> Self {
        Self {
            store: Store::Owned(tokens.into_iter().flat_map(u16::to_le_bytes).collect()),
            width: Width::U16,
        }
    }

    /// All bytes of the file; the tokens themselves if they are in memory.
    pub(super) fn file(&self) -> &[u8] {
        match &self.store {
            Store::Mapped { map, .. } => map,
            Store::Owned(bytes) => bytes,
        }
    }

    /// The file's bytes before the first token; empty for tokens in memory.
    pub(super) fn header(&self) -> &[u8] {
        match &self.store {
            Store::Mapped { map, offset } => &map[..*offset],
            Store::Owned(_) => &[],
        }
    }

    /// The tokens as stored, in bytes.
    pub(super) fn payload(&self) -> &[u8] {
        match &self.store {
            Store::Mapped { map, offset } => &map[*offset..],
            Store::Owned(bytes) => bytes,
        }
    }

    /// Bytes of a token.
    pub(super) fn width(&self) -> usize {
        self.width.bytes()
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> u64 {
        (self.payload().len() / self.width.bytes()) as u64
    }

    /// Copies tokens from index `at` on. Panics if there are fewer than `out` holds.
    pub(super) fn read(&self, at: u64, out: &mut [u32]) {
        let width = self.width.bytes();
        let at = usize::try_from(at).expect("the tokens are mapped, so their indices fit an address") * width;
        let bytes = &self.payload()[at..at + out.len() * width];
        for (out, token) in out.iter_mut().zip(decode(self.width, bytes)) {
            // negative tokens are refused when the set is opened
            *out = token as u32;
        }
    }

    /// All tokens in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = i32> {
        decode(self.width, self.payload())
    }

    /// The smallest and largest token in `bytes`, which must be whole tokens of the payload.
    pub(super) fn range(&self, bytes: &[u8]) -> Option<(i32, i32)> {
        let widen = |a: (i32, i32), b: (i32, i32)| (a.0.min(b.0), a.1.max(b.1));
        bytes
            .par_chunks(PART)
            .filter_map(|part| decode(self.width, part).map(|token| (token, token)).reduce(widen))
            .reduce_with(widen)
    }

    /// The index and value of the first token outside 0..`vocab_size`.
    pub(super) fn first_outside(&self, vocab_size: usize) -> Option<(u64, i32)> {
        self.iter()
            .enumerate()
            .find(|&(_, token)| usize::try_from(token).map_or(true, |t| t >= vocab_size))
            .map(|(index, token)| (index as u64, token))
    }

    /// The number of occurrences of each id below `ids` among the tokens of a part; other tokens are left out.
    pub(super) fn histogram(&self, part: Range<u64>, ids: usize) -> Vec<u64> {
        let count = |mut counts: Vec<u64>, part: &[u8]| {
            // a file that was changed since it was opened may have others, which the next check tells of
            decode(self.width, part).for_each(|token| {
                if let Some(count) = counts.get_mut(token as usize) {
                    *count += 1;
                }
            });
            counts
        };
        let add = |mut a: Vec<u64>, b: Vec<u64>| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
            a
        };
        let width = self.width.bytes();
        let byte = |token: u64| usize::try_from(token).expect("the tokens are mapped") * width;
        self.payload()[byte(part.start)..byte(part.end)]
            .par_chunks(PART)
            .fold(|| vec![0; ids], count)
            .reduce(|| vec![0; ids], add)
    }
}

/// Entropy in nats of a distribution with these counts, of which one is not 0.
pub(super) fn entropy(counts: &[u64]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    let sum: f64 = counts.iter().filter(|&&n| n > 0).map(|&n| n as f64 / total).map(|p| -p * p.ln()).sum();
    // that of one kind of token would be a negative zero
    sum + 0.0
}

/// Decodes the tokens in `bytes`.
fn decode(width: Width, bytes: &[u8]) -> impl Iterator<Item = i32> {
    // one of the two is empty: a chain of plain loops can be vectorized, a branch per token cannot
    let (short, long) = match width {
        Width::U16 => (bytes, &[][..]),
        Width::I32 => (&[][..], bytes),
    };
    let short = short.chunks_exact(2).map(|b| i32::from(u16::from_le_bytes([b[0], b[1]])));
    short.chain(long.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])))
}
