//! Tokens kept on the disk until all are known: for an order of documents that is drawn, and for a fraction of all
//! tokens.
//!
//! Runs of sorted records are written one after the other, and read together at the end, always the record with the
//! lowest key next (external merge sort; Knuth, The Art of Computer Programming, 5.4). Memory is one run, then a buffer
//! per run.

use crate::data::DataError;
use crate::data::write::{Made, write_through};
use crate::regular::{OFlags, OpenDir};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// Tokens of a run.
pub(super) const RUN: usize = 16 << 20;
/// Bytes of the buffers of all runs together when they are read.
pub(super) const BUFFERS: usize = 64 << 20;
/// Bytes of the buffer of one run at most.
const BUFFER: usize = 64 << 10;

/// What records are sorted by: the key of the document, its number, and where in it the tokens begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) key: u64,
    pub(super) document: u64,
    pub(super) within: u64,
}

/// The key of a document in a drawn order: an injective mixing of its number and the seed (SplitMix64; Steele et al.,
/// 2014). Documents in the order of their keys are a shuffle of the documents.
pub(super) fn key(seed: u64, document: u64) -> u64 {
    let mix = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(document.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// The run that is being filled, and those before it.
pub(super) struct Spool {
    dir: Arc<OpenDir>,
    run: usize,
    pub(super) runs: Vec<Made>,
    tokens: Vec<u16>,
    records: Vec<(Order, usize, usize)>,
}

/// The name of the run with a number.
pub(super) fn name(run: usize) -> String {
    format!("run-{run:06}")
}

impl Spool {
    /// A spool in `dir` that has `runs` already, and writes others of `run` tokens.
    pub(super) fn new(dir: &Arc<OpenDir>, run: usize, runs: Vec<Made>) -> Self {
        Self { dir: Arc::clone(dir), run, runs, tokens: Vec::new(), records: Vec::new() }
    }

    /// Takes tokens up to the end of the run at most, and returns how many.
    pub(super) fn take(&mut self, order: Order, tokens: &[u16]) -> usize {
        let taken = tokens.len().min(self.run - self.tokens.len());
        self.tokens.reserve_exact(if self.tokens.capacity() == 0 { self.run } else { 0 });
        self.records.push((order, self.tokens.len(), taken));
        self.tokens.extend_from_slice(&tokens[..taken]);
        taken
    }

    /// Whether the run is complete. Records of very short documents take memory as well.
    pub(super) fn is_full(&self) -> bool {
        self.tokens.len() == self.run || self.records.len() >= self.run / 32
    }

    /// Sorts the run and writes it, if there is anything in it.
    pub(super) fn close(&mut self) -> Result<(), DataError> {
        if self.records.is_empty() {
            return Ok(());
        }
        self.records.sort_unstable_by_key(|record| record.0);
        let (mut hasher, mut record) = (blake3::Hasher::new(), Vec::new());
        write_through(&self.dir, name(self.runs.len()), |out| {
            for (order, start, len) in &self.records {
                record.clear();
                for word in [order.key, order.document, order.within, *len as u64] {
                    record.extend(word.to_le_bytes());
                }
                out.write_all(&record)?;
                hasher.update(&record);
                for tokens in self.tokens[*start..start + len].chunks(BUFFER / 2) {
                    record.clear();
                    record.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
                    out.write_all(&record)?;
                    hasher.update(&record);
                }
            }
            Ok(())
        })?;
        let (tokens, blake3) = (self.tokens.len() as u64, hasher.finalize().to_hex().to_string());
        self.runs.push(Made { tokens, blake3 });
        self.tokens.clear();
        self.records.clear();
        Ok(())
    }
}

/// A run that is being read. Its file is opened for every buffer, for there may be more runs than a process may have
/// files open.
struct Open<'a> {
    dir: &'a OpenDir,
    name: String,
    /// The place in the file behind the buffer.
    offset: u64,
    buffer: Vec<u8>,
    at: usize,
    size: usize,
}

impl Open<'_> {
    /// Reads the next buffer; false at the end of the file.
    fn fill(&mut self) -> Result<bool, DataError> {
        let mut read = || {
            let mut file = self.dir.open_file(&self.name, OFlags::RDONLY)?;
            file.seek(SeekFrom::Start(self.offset))?;
            self.buffer.clear();
            file.take(self.size as u64).read_to_end(&mut self.buffer)
        };
        let read = read().map_err(DataError::read(&self.dir.join(&self.name)))?;
        (self.offset, self.at) = (self.offset + read as u64, 0);
        Ok(read > 0)
    }

    /// The next bytes, at most `most`; none at the end of the file.
    fn bytes(&mut self, most: usize) -> Result<&[u8], DataError> {
        if self.at == self.buffer.len() && !self.fill()? {
            return Ok(&[]);
        }
        let start = self.at;
        self.at = self.buffer.len().min(start + most);
        Ok(&self.buffer[start..self.at])
    }

    /// The order of the next record and its length in tokens.
    fn head(&mut self) -> Result<Option<(Order, usize)>, DataError> {
        let (mut words, mut filled) = ([0; 32], 0);
        while filled < words.len() {
            let bytes = self.bytes(words.len() - filled)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            words[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
        }
        let word = |at: usize| u64::from_le_bytes(words[8 * at..][..8].try_into().expect("eight bytes"));
        let order = Order { key: word(0), document: word(1), within: word(2) };
        Ok(Some((order, word(3) as usize)))
    }
}

/// Bytes of the buffer of each of so many runs: an even number, for no token may lie in two buffers.
fn buffer(runs: usize) -> usize {
    (BUFFERS / runs.max(1)).clamp(4096, BUFFER) & !1
}

/// Hands out the tokens of `runs` runs in the order of their records.
pub(super) fn merge<E: From<DataError>>(
    dir: &OpenDir,
    runs: usize,
    mut take: impl FnMut(&[u16]) -> Result<(), E>,
) -> Result<(), E> {
    let size = buffer(runs);
    let mut open = Vec::new();
    let mut heads = BinaryHeap::new();
    for run in 0..runs {
        let mut run = Open { dir, name: name(run), offset: 0, buffer: Vec::with_capacity(size), at: 0, size };
        heads.extend(run.head()?.map(|(order, len)| Reverse((order, open.len(), len))));
        open.push(run);
    }
    let mut tokens = Vec::new();
    while let Some(Reverse((_, at, len))) = heads.pop() {
        let run: &mut Open = &mut open[at];
        let mut left = 2 * len;
        while left > 0 {
            // a record has an even number of bytes, and so have its head and every buffer
            let bytes = run.bytes(left)?;
            if bytes.is_empty() {
                let error = std::io::ErrorKind::UnexpectedEof.into();
                return Err(DataError::Read { path: dir.join(&run.name), error }.into());
            }
            tokens.clear();
            tokens.extend(bytes.as_chunks::<2>().0.iter().map(|token| u16::from_le_bytes(*token)));
            left -= bytes.len();
            take(&tokens)?;
        }
        heads.extend(run.head()?.map(|(order, len)| Reverse((order, at, len))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_come_back_in_the_order_of_their_records() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = Arc::new(OpenDir::open(dir.path()).expect("open"));
        let mut spool = Spool::new(&open, 64, Vec::new());
        let mut expected = Vec::new();
        for document in 0..100u64 {
            let tokens: Vec<u16> =
                (0..document as u16 % 17).map(|token| token + document as u16 * 100).collect();
            let mut at = 0;
            loop {
                let order = Order { key: key(7, document), document, within: at as u64 };
                at += spool.take(order, &tokens[at..]);
                if spool.is_full() {
                    spool.close().expect("written");
                }
                if at == tokens.len() {
                    break;
                }
            }
            expected.push((key(7, document), tokens));
        }
        spool.close().expect("written");
        assert!(spool.runs.len() > 10);
        for (number, run) in spool.runs.iter().enumerate() {
            let bytes = std::fs::read(dir.path().join(name(number))).expect("a run");
            assert_eq!(blake3::hash(&bytes).to_hex().to_string(), run.blake3);
        }
        expected.sort();
        let mut found = Vec::new();
        let merged: Result<(), DataError> = merge(&open, spool.runs.len(), |tokens| {
            found.extend_from_slice(tokens);
            Ok(())
        });
        merged.expect("read");
        assert_eq!(found, expected.into_iter().flat_map(|(_, tokens)| tokens).collect::<Vec<_>>());
    }

    #[test]
    fn no_token_lies_in_two_buffers() {
        assert!(
            (0..40_000).all(|runs| buffer(runs).is_multiple_of(2) && (4096..=BUFFER).contains(&buffer(runs)))
        );
    }
}
