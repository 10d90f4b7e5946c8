//! Collectives: what the ranks of a run say to each other.
//!
//! A rank is one copy of the model that trains on its share of every step's rows. [`Comm`] is the one trait through which
//! ranks meet, with an implementation for each way in which they live together: [`Solo`] is alone, [`Threads`] are the
//! threads of one process, [`Tcp`] connects processes; with the feature `mpi`,
//! `Mpi` leaves their sums to MPI.
//!
//! All ranks call the same functions in the same order. Whoever cannot go on calls [`Comm::abandon`], so that the others
//! learn why instead of waiting; whoever dies or hangs is named by those that are left.

mod frame;
pub mod launch;
mod meeting;
#[cfg(feature = "mpi")]
mod mpi;
mod notice;
mod solo;
mod tcp;
mod threads;

#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use solo::Solo;
pub use tcp::Tcp;
pub use threads::Threads;

use std::ops::Range;
use std::time::Duration;

/// Why ranks cannot go on together. Every rank that is left gets the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommError {
    /// A rank ended, or said that it cannot go on.
    #[error(
        "rank {rank} of {size} is lost: {why}; the last checkpoint is intact, and the same command resumes from it"
    )]
    Lost {
        /// Which.
        rank: usize,
        /// Of how many.
        size: usize,
        /// As far as is known.
        why: String,
    },
    /// Ranks did not come to a meeting in time.
    #[error(
        "{} of {size} did not answer for {seconds} s (distributed.timeout_s): hung, or cut off from the others; the last \
         checkpoint is intact, and the same command resumes from it", named(.ranks)
    )]
    Silent {
        /// Which.
        ranks: Vec<usize>,
        /// Of how many.
        size: usize,
        /// How long the others waited.
        seconds: u64,
    },
    /// What carries the messages failed.
    #[error("{0}")]
    Failed(String),
}

/// Ranks in words: "rank 3", "ranks 1 and 3".
pub fn named(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match numbers.split_last() {
        None => "no rank".to_owned(),
        Some((only, [])) => format!("rank {only}"),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
    }
}

/// One rank's end of the connection to all others.
///
/// Sums are taken in the order of ranks, so the same ranks give the same bytes again (an implementation that leaves sums to
/// a library says so), and every rank gets the same bytes. A failure is final: every later call returns it too.
pub trait Comm: Send + Sync {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// How many there are.
    fn size(&self) -> usize;

    /// Brings a message from each rank to rank 0, in order; the others get nothing.
    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError>;

    /// Brings rank 0's message to all others.
    fn broadcast(&self, message: &mut Vec<u8>) -> Result<(), CommError>;

    /// Adds up `values` over all ranks, in place.
    fn all_reduce(&self, values: &mut [f32]) -> Result<(), CommError>;

    /// Adds up `values` over all ranks, range `owners[r]` on rank r only; elsewhere they are as good as lost.
    fn reduce_scatter(&self, values: &mut [f32], owners: &[Range<usize>]) -> Result<(), CommError>;

    /// Brings range `owners[r]` of rank r's `values` to all others.
    fn all_gather(&self, values: &mut [f32], owners: &[Range<usize>]) -> Result<(), CommError>;

    /// Whether the others are still there, without waiting for them.
    fn check(&self) -> Result<(), CommError>;

    /// Tells the others that this rank cannot go on. What they return from then on names it.
    fn abandon(&self, why: &str);

    /// How long to wait for a rank before it counts as hung, where that was not known when the ranks met.
    fn set_timeout(&self, _timeout: Duration) {}

    /// How long a rank may keep the others waiting before it counts as hung.
    fn timeout(&self) -> Duration {
        Duration::from_secs(600)
    }

    /// Says that this rank works on something that takes its time (opens data, writes, generates text), or has ended that:
    /// meanwhile it does not count as hung.
    fn set_working(&self, _working: bool) {}

    /// What sums travel on, for people: `threads`, `mpi` and so on.
    fn name(&self) -> &'static str;

    /// Every rank's message to every rank, in order.
    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let gathered = self.gather(mine)?;
        let mut packed = Vec::new();
        for message in gathered {
            packed.extend((message.len() as u64).to_le_bytes());
            packed.extend(message);
        }
        self.broadcast(&mut packed)?;
        unpack(&packed).ok_or_else(|| CommError::Failed("a message of rank 0 was cut short".to_owned()))
    }

    /// The sum over all ranks, in the order of ranks.
    fn sum(&self, mine: f64) -> Result<f64, CommError> {
        if self.size() == 1 {
            return Ok(mine);
        }
        let all = self.gather(&mine.to_le_bytes())?;
        let sum: f64 =
            all.iter().filter_map(|bytes| Some(f64::from_le_bytes(bytes.as_slice().try_into().ok()?))).sum();
        let mut message = sum.to_le_bytes().to_vec();
        self.broadcast(&mut message)?;
        let bytes = message.as_slice().try_into();
        bytes
            .map(f64::from_le_bytes)
            .map_err(|_| CommError::Failed("a sum of rank 0 has the wrong size".to_owned()))
    }

    /// Waits until all ranks are here.
    fn barrier(&self) -> Result<(), CommError> {
        self.gather(&[])?;
        self.broadcast(&mut Vec::new())
    }
}

/// The messages of [`Comm::exchange`] from their lengths and contents.
fn unpack(mut packed: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = packed.split_first_chunk() {
        let (message, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
        messages.push(message.to_vec());
        packed = rest;
    }
    packed.is_empty().then_some(messages)
}

/// How `len` elements are divided among `count` ranks: in order, in whole vectors of 16, the last part or parts shorter.
pub fn part(len: usize, index: usize, count: usize) -> Range<usize> {
    const VECTOR: usize = 16;
    let size = len.div_ceil(VECTOR).div_ceil(count) * VECTOR;
    (index * size).min(len)..((index + 1) * size).min(len)
}

/// All of them.
pub fn parts(len: usize, count: usize) -> Vec<Range<usize>> {
    (0..count).map(|index| part(len, index, count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_follow_each_other_and_miss_nothing(len in 0usize..5000, count in 1usize..40) {
            let parts = parts(len, count);
            let mut end = 0;
            for part in &parts {
                prop_assert_eq!(part.start, end);
                end = part.end;
            }
            prop_assert_eq!(end, len);
            let largest = parts[0].len();
            prop_assert!(parts.iter().all(|part| part.len() <= largest));
        }

        #[test]
        fn messages_survive_packing(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..6)) {
            let mut packed = Vec::new();
            for message in &messages {
                packed.extend((message.len() as u64).to_le_bytes());
                packed.extend(message);
            }
            prop_assert_eq!(unpack(&packed), Some(messages));
            packed.push(1);
            prop_assert_eq!(unpack(&packed), None);
        }
    }

    #[test]
    fn ranks_are_named_in_words() {
        assert_eq!(named(&[3]), "rank 3");
        assert_eq!(named(&[0, 2, 5]), "ranks 0, 2 and 5");
    }
}
