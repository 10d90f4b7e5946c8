//! Inspects one data file, without a model in mind.

use super::scan::Scanner;
use super::shard::{self, ShardInfo};
use super::source::Source;
use super::{DataError, Progress, Tokenizer};
use std::path::Path;

/// How many tokens are shown.
const FIRST: u64 = 32;

/// What a data file contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// Format, number and range of the tokens, and digest; `rows` is 0.
    pub info: ShardInfo,
    /// Its first tokens, at most 32; negative tokens of a damaged npy array appear as their two's complement.
    pub first: Vec<u32>,
}

/// Opens the file `path` as training would, whatever tokens it has. Text is encoded, and the tokens are
/// cached in `cache_dir`.
pub fn inspect(path: &Path, cache_dir: &Path, progress: &dyn Progress) -> Result<Inspection, DataError> {
    let scanner = Scanner { cache_dir, progress, big: super::dataset::BIG };
    let shard::Opened { info, tokens, .. } =
        shard::open(&Source::File(path.into()), Tokenizer::gpt2(), &scanner)?;
    let mut first = vec![0; info.tokens.min(FIRST) as usize];
    tokens.read(0, &mut first);
    Ok(Inspection { info, first })
}
