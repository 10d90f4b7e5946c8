//! Files of every kind in a directory of their own, for the tests of data sets.

#![allow(dead_code, reason = "every test file uses its own part")]

use runner::data::{Cache, DataError, Dataset, NoProgress, OpenOptions, Progress, Tokenizer, write_llmc};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// A directory with some files and a cache of its own.
pub(crate) struct Place(pub(crate) TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn cache_dir(&self) -> PathBuf {
        self.path("cache")
    }

    pub(crate) fn cache(&self) -> Cache {
        Cache::new(self.cache_dir(), None)
    }

    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        fs::write(self.path(name), bytes).expect("written");
        self.spec(name)
    }

    pub(crate) fn llmc(&self, name: &str, tokens: impl IntoIterator<Item = u16>) -> String {
        write_llmc(&self.path(name), tokens).expect("written");
        self.spec(name)
    }

    pub(crate) fn spec(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub(crate) fn open(&self, specs: &[&str], block_size: usize) -> Result<Dataset, DataError> {
        self.open_with(specs, block_size, 50257, &NoProgress)
    }

    pub(crate) fn open_with(
        &self,
        specs: &[&str],
        block_size: usize,
        vocab_size: usize,
        progress: &dyn Progress,
    ) -> Result<Dataset, DataError> {
        let specs: Vec<String> = specs.iter().map(|s| s.to_string()).collect();
        let (tokenizer, cache) = (Tokenizer::gpt2(), &self.cache());
        Dataset::open(&specs, OpenOptions { block_size, vocab_size, tokenizer, cache, progress })
    }

    /// The shards of encoded text in the cache.
    pub(crate) fn cached(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.cache_dir()).expect("a cache");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }
}

/// An npy file as NumPy writes it, but for the padding of the header.
pub(crate) fn npy(descr: &str, count: usize, payload: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},), }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.bytes());
    file.extend(payload);
    file
}
