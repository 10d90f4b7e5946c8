//! Inspects data files, without a model in mind.

use super::cache::Cache;
use super::format::Format;
use super::scan::Scanner;
use super::shard::{self, ShardInfo};
use super::source::{Found, Source};
use super::tokenizer::{END_OF_TEXT, Tokenizer, TokenizerKind};
use super::tokens::{Tokens, entropy};
use super::{DataError, Progress, megatron, vocabulary};
use crate::regular;
use std::path::{Path, PathBuf};

/// How many tokens are shown.
const FIRST: u64 = 32;
/// Tokens of larger ids are not counted one by one.
const MOST_IDS: i32 = 1 << 20;
/// The files of a directory that may be data, by their extensions.
const EXTENSIONS: [&str; 3] = ["bin", "npy", "txt"];

/// What a data file contains.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// Format, number and range of the tokens, and digest; `rows` is 0.
    pub info: ShardInfo,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// Its first tokens, at most 32; those of a damaged npy array may be negative.
    pub first: Vec<i32>,
    /// The text of the first tokens, if they belong to the vocabulary: that of the `dataset.json` or `meta.pkl` beside
    /// the file, or else GPT-2's.
    pub text: Option<String>,
    /// Its documents, where something tells where they begin.
    pub documents: Option<Documents>,
    /// Entropy of the frequencies of its tokens, in nats per token; `None` where ids are negative or above a million.
    pub entropy: Option<f64>,
}

/// The documents of a file. Where a data set was cut into shards, the first and the last may be parts of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Documents {
    /// What tells them apart.
    pub by: Boundary,
    /// Documents with at least one token besides separators.
    pub count: u64,
    /// Tokens of the shortest of them, separators left out.
    pub shortest: u64,
    /// Tokens of the longest of them.
    pub longest: u64,
    /// Tokens of all of them.
    pub tokens: u64,
}

/// What tells where a document begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boundary {
    /// GPT-2's end-of-text token before each document, as llm.c and build-nanogpt write it.
    Before,
    /// That token behind each document, as nanoGPT writes it for OpenWebText.
    Behind,
    /// That token between documents, but neither at the beginning nor at the end of the file.
    Between,
    /// Megatron-LM's index.
    Index,
}

/// Opens the file `path` as training would, whatever tokens it has. Text is encoded, and the tokens are kept in
/// `cache`.
///
/// # Errors
/// When the file cannot be read as tokens; the message says what it looks like instead.
pub fn inspect(path: &Path, cache: &Cache, progress: &dyn Progress) -> Result<Inspection, DataError> {
    let scanner = Scanner { cache, progress, big: super::dataset::BIG };
    let beside = path.to_str().map(|path| vocabulary::stated(&[path.to_owned()])).transpose()?.flatten();
    let tokenizer = beside.map_or_else(|| Tokenizer::gpt2().clone(), |stated| stated.tokenizer);
    let shard::Opened { info, tokens, .. } =
        shard::open(&Source::File(Found::named(path)), &tokenizer, &scanner)?;
    let bytes = path.metadata().map_err(DataError::read(path))?.len();
    let mut first = vec![0; info.tokens.min(FIRST) as usize];
    tokens.read(0, &mut first);
    let is_known = first.iter().all(|&token| (token as usize) < tokenizer.vocab_size());
    let text = is_known.then(|| tokenizer.decode(&first));
    let documents = match info.format {
        Format::Megatron { .. } => megatron::index(path, bytes as usize)?
            .and_then(|index| measured(Boundary::Index, index.documents())),
        _ if tokenizer.kind() == TokenizerKind::Gpt2 => separated(&tokens),
        // characters and bytes have no token between documents
        _ => None,
    };
    let counted = info.range.filter(|&(min, max)| min >= 0 && max < MOST_IDS);
    let entropy = counted.map(|(_, max)| entropy(&tokens.histogram(0..info.tokens, max as usize + 1)));
    let first = first.into_iter().map(u32::cast_signed).collect();
    Ok(Inspection { info, bytes, first, text, documents, entropy })
}

/// The files in the directory `dir` that may be data, in sorted order: those that end in .bin, .npy or .txt and are not
/// hidden.
///
/// # Errors
/// When the directory cannot be read.
pub fn data_files(dir: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(DataError::read(dir))? {
        let path = entry.map_err(DataError::read(dir))?.path();
        let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
        let is_data = EXTENSIONS.iter().any(|known| extension.as_deref().is_some_and(|it| it == *known));
        if is_data && !regular::is_hidden(&path) && path.is_file() {
            regular::check_planted(&path, dir).map_err(DataError::read(&path))?;
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Documents by the separators among the tokens; `None` if there is no separator.
fn separated(tokens: &Tokens) -> Option<Documents> {
    let is_separator = |token: i32| token == END_OF_TEXT as i32;
    let (mut lengths, mut length, mut separators) = (Vec::new(), 0u64, 0u64);
    let (mut begins, mut ends) = (false, false);
    for (at, token) in tokens.iter().enumerate() {
        ends = is_separator(token);
        if ends {
            begins |= at == 0;
            separators += 1;
            lengths.push(std::mem::take(&mut length));
        } else {
            length += 1;
        }
    }
    lengths.push(length);
    let by = match (begins, ends) {
        _ if separators == 0 => return None,
        (true, _) => Boundary::Before,
        (false, true) => Boundary::Behind,
        (false, false) => Boundary::Between,
    };
    measured(by, lengths.into_iter())
}

/// Sums lengths up. Documents without a token do not count.
fn measured(by: Boundary, lengths: impl Iterator<Item = u64>) -> Option<Documents> {
    let begin = Documents { by, count: 0, shortest: u64::MAX, longest: 0, tokens: 0 };
    let all = lengths.filter(|&length| length > 0).fold(begin, |all, length| Documents {
        by,
        count: all.count + 1,
        shortest: all.shortest.min(length),
        longest: all.longest.max(length),
        tokens: all.tokens + length,
    });
    (all.count > 0).then_some(all)
}
