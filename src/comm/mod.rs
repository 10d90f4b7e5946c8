//! Communication between the ranks of a run: collectives, messages and failures.
//!
//! A rank is one copy of the model that trains on its share of every step's rows. Ranks communicate through
//! one trait, [`Comm`], which has an implementation for each way of running them: [`Solo`] for a single rank,
//! [`Threads`] for the threads of one process, [`Tcp`] for several processes. With the feature `mpi`, `Mpi`
//! is like [`Tcp`] but leaves sums to MPI.
//!
//! Processes that meet by TCP prove to each other that they know one [`Secret`] before either says more.
//!
//! All ranks call the same functions in the same order. A rank that cannot go on calls [`Comm::abandon`], so
//! that the others learn why instead of waiting. If a rank dies or hangs, the others return an error that
//! names it.

mod frame;
mod greeting;
mod incoming;
pub mod launch;
mod listening;
mod meeting;
#[cfg(feature = "mpi")]
mod mpi;
mod notice;
pub(crate) mod patience;
mod secret;
mod solo;
mod tcp;
mod threads;

#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use secret::Secret;
pub use solo::Solo;
pub use tcp::Tcp;
pub use threads::Threads;

/// What reads bytes from other processes, apart from the connections that they come from: for those that test it with
/// bytes of their own.
pub mod wire {
    pub use super::greeting::{Greeting, Heard, Refusal};
    pub use super::incoming::{Incoming, Received, longest};
    pub use super::notice::decode;
}

use std::ops::Range;
use std::time::Duration;

/// Why ranks cannot go on together. Every remaining rank gets the same error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommError {
    /// A rank ended, or reported that it cannot go on.
    #[error(
        "rank {rank} of {size} is lost: {why}; the last checkpoint, where there is one, is intact, and the same \
         command goes on from it"
    )]
    Lost {
        /// The lost rank.
        rank: usize,
        /// The number of ranks.
        size: usize,
        /// The reason, as far as it is known.
        why: String,
    },
    /// Ranks did not answer in time.
    #[error(
        "{} of {size} did not answer for {seconds} s (distributed.timeout_s): hung, or cut off from the others; \
         the last checkpoint, where there is one, is intact, and the same command goes on from it", named(.ranks)
    )]
    Silent {
        /// The ranks that did not answer.
        ranks: Vec<usize>,
        /// The number of ranks.
        size: usize,
        /// How long the others waited, in seconds.
        seconds: u64,
    },
    /// Ranks did not come to where all meet.
    #[error(
        "{} of {size} did not join within {seconds} s (RUNNER_JOIN_TIMEOUT_S): not started, or cut off from rank 0",
        named(.ranks)
    )]
    Absent {
        /// The ranks that did not come.
        ranks: Vec<usize>,
        /// The number of ranks.
        size: usize,
        /// How long rank 0 waited, in seconds.
        seconds: u64,
    },
    /// The connection itself failed.
    #[error("{0}")]
    Failed(String),
}

/// How ranks meet by TCP.
pub struct Joining<'a> {
    /// What all of them know.
    pub secret: &'a Secret,
    /// How long they wait for each other.
    pub timeout: Duration,
    /// Told, in a sentence, about processes that cannot take part. It is called a few times at most.
    pub warn: &'a dyn Fn(&str),
}

/// Names ranks in words: "rank 3", "ranks 1 and 3".
pub fn named(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match numbers.split_last() {
        None => "no rank".to_owned(),
        Some((only, [])) => format!("rank {only}"),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
    }
}

/// The ranks that brought something else to an [`exchange`](Comm::exchange) than rank 0.
pub fn differing(all: &[Vec<u8>]) -> Vec<usize> {
    (0..all.len()).filter(|&rank| all[rank] != all[0]).collect()
}

/// One rank's connection to all others.
///
/// Sums are taken in the order of ranks, so they are the same on every rank and in every run (an
/// implementation that leaves sums to a library says so). A failure is final: every later call returns it
/// again.
pub trait Comm: Send + Sync {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Collects one message from each rank on rank 0, in the order of ranks; on the others the result is
    /// empty.
    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError>;

    /// Sends rank 0's message to all others.
    fn broadcast(&self, message: &mut Vec<u8>) -> Result<(), CommError>;

    /// Sums `values` over all ranks, in place.
    fn all_reduce(&self, values: &mut [f32]) -> Result<(), CommError>;

    /// Sums `values` over all ranks, in place, where rank r receives the sum of range `owners[r]` only.
    /// Elsewhere its values are undefined afterwards.
    fn reduce_scatter(&self, values: &mut [f32], owners: &[Range<usize>]) -> Result<(), CommError>;

    /// Copies range `owners[r]` of rank r's `values` to all others.
    fn all_gather(&self, values: &mut [f32], owners: &[Range<usize>]) -> Result<(), CommError>;

    /// Returns an error if another rank is known to be lost, without waiting.
    fn check(&self) -> Result<(), CommError>;

    /// Reports that this rank cannot go on. The calls of all other ranks then return an error that names it.
    fn abandon(&self, why: &str);

    /// Sets how long to wait for a rank before it counts as hung, for runs that learn it only after the ranks
    /// have met.
    fn set_timeout(&self, _timeout: Duration) {}

    /// How long to wait for a rank before it counts as hung.
    fn timeout(&self) -> Duration {
        Duration::from_secs(600)
    }

    /// Says that this rank begins (or has ended) something slow, such as opening data, writing or generating
    /// text. In between it does not count as hung.
    fn set_working(&self, _working: bool) {}

    /// How sums are exchanged, for people: `threads`, `mpi` and so on.
    fn name(&self) -> &'static str;

    /// Collects one message from each rank on every rank, in the order of ranks.
    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let gathered = self.gather(mine)?;
        let mut packed = Vec::new();
        for message in gathered {
            packed.extend((message.len() as u64).to_le_bytes());
            packed.extend(message);
        }
        self.broadcast(&mut packed)?;
        let messages = unpack(&packed).filter(|messages| messages.len() == self.size());
        messages.ok_or_else(|| CommError::Failed("rank 0 sent what is no message of each rank".to_owned()))
    }

    /// The sum of one number over all ranks, added in the order of ranks.
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

    /// Waits until all ranks have arrived.
    fn barrier(&self) -> Result<(), CommError> {
        self.gather(&[])?;
        self.broadcast(&mut Vec::new())
    }
}

/// Decodes the messages that [`Comm::exchange`] packed as lengths and contents.
fn unpack(mut packed: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = packed.split_first_chunk() {
        let (message, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
        messages.push(message.to_vec());
        packed = rest;
    }
    packed.is_empty().then_some(messages)
}

/// The share of `len` elements that rank `index` of `count` owns. Shares are in order and consist of whole
/// vectors of 16; the last ones may be shorter or empty.
pub fn share(len: usize, index: usize, count: usize) -> Range<usize> {
    const VECTOR: usize = 16;
    let size = len.div_ceil(VECTOR).div_ceil(count) * VECTOR;
    (index * size).min(len)..((index + 1) * size).min(len)
}

/// The shares of `len` elements that `count` ranks own, in order.
pub fn shares(len: usize, count: usize) -> Vec<Range<usize>> {
    (0..count).map(|index| share(len, index, count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_follow_each_other_and_miss_nothing(len in 0usize..5000, count in 1usize..40) {
            let shares = shares(len, count);
            let mut end = 0;
            for share in &shares {
                prop_assert_eq!(share.start, end);
                end = share.end;
            }
            prop_assert_eq!(end, len);
            let largest = shares[0].len();
            prop_assert!(shares.iter().all(|share| share.len() <= largest));
        }

        #[test]
        fn messages_survive_packing(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..6)
        ) {
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
