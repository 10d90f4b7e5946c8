//! `dataset.json`: what a prepared set of shards says about itself.

use super::DataError;
use super::llmc::HEADER;
use super::tokenizer::{Characters, Tokenizer, TokenizerKind};
use super::write::{Made, stated, whole, write_whole};
use crate::json;
use crate::regular::{self, OpenDir};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file's name, beside the shards.
pub const CARD: &str = "dataset.json";
/// The version of the format that this program writes, and the only one that it reads.
const VERSION: u32 = 1;
/// No longer card is read, and none is written.
pub(super) const MAX_BYTES: u64 = 64 << 20;

/// What a prepared set says about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// The version of this format.
    pub version: u32,
    /// What made tokens of the text.
    pub tokenizer: TokenizerKind,
    /// The characters in the order of their ids, for a tokenizer of characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub characters: Option<String>,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Documents that were read.
    pub documents: u64,
    /// Tokens in all shards, separators included.
    pub tokens: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// Entropy of the frequencies of all tokens, in nats per token: the loss of the best model that ignores context.
    pub unigram_entropy: f64,
    /// The shards to train on.
    pub train: Part,
    /// The shards to validate on; without files where none were asked for.
    pub val: Part,
    /// What was asked for.
    #[serde(deserialize_with = "json::bounded")]
    pub options: serde_json::Value,
    /// What was read, in order; with a tokenizer of characters all sources, for the vocabulary has theirs.
    pub sources: Vec<SourceCard>,
}

/// The version alone.
#[derive(Deserialize)]
struct Stated {
    version: Option<u64>,
}

/// Shards of one purpose.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Tokens in them.
    pub tokens: u64,
    /// Their names, in order.
    pub files: Vec<String>,
    /// blake3 of the tokens in each of them, in order; none in cards of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blake3: Vec<String>,
}

impl Part {
    /// Adds a shard.
    pub(super) fn push(&mut self, name: String, made: &Made) {
        self.tokens += made.tokens;
        self.files.push(name);
        self.blake3.push(made.blake3.clone());
    }

    /// The digest of a shard of this name, if it is one of them and its digest is on record.
    fn digest_of(&self, name: &str) -> Option<&str> {
        let place = self.files.iter().position(|file| file == name)?;
        self.blake3.get(place).map(String::as_str)
    }

    /// The first of the shards, which lie `at` these paths, that is not what it was when it was written, and how. Reads
    /// all of them; `advance` is told about their bytes.
    pub(super) fn damage(
        &self,
        at: &dyn Fn(&str) -> PathBuf,
        advance: &dyn Fn(u64),
    ) -> Result<Option<String>, DataError> {
        let mut tokens = 0;
        for (number, name) in self.files.iter().enumerate() {
            let path = at(name);
            if !regular::is_beside(name) || !path.is_file() {
                return Ok(Some(format!("not its shard {name}")));
            }
            // a file of holes may be as long as it likes
            let longest = (HEADER as u64).saturating_add(self.tokens.saturating_mul(2));
            if path.metadata().is_ok_and(|meta| meta.len() > longest) {
                return Ok(Some(format!("not its shard {name} as it was written")));
            }
            let is_stated = |made: &Made| self.blake3.get(number).is_none_or(|digest| *digest == made.blake3);
            let Some(made) = whole(&path)?.filter(is_stated) else {
                return Ok(Some(format!("not its shard {name} as it was written")));
            };
            tokens += made.tokens;
            advance(2 * made.tokens);
        }
        let stated = self.tokens;
        Ok((tokens != stated).then(|| format!("{tokens} tokens in its shards and not the stated {stated}")))
    }
}

/// A file of text that a set was prepared from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceCard {
    /// Its path as it was found.
    pub path: String,
    /// How it was read, as an ending of names says it: `txt`, `jsonl.gz`; none in cards of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Its size.
    pub bytes: u64,
    /// blake3 of its contents.
    pub blake3: String,
    /// Documents that were taken from it.
    pub documents: u64,
    /// Tokens of these documents, separators included; none in cards of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

impl Card {
    /// The first of its sources with the contents of an earlier one, of which documents were taken.
    #[must_use]
    pub fn repeated(&self) -> Option<&SourceCard> {
        let mut known = HashSet::new();
        self.sources.iter().filter(|source| source.documents > 0).find(|source| !known.insert(&source.blake3))
    }

    /// Whether the file at a path is known not to be the shard of its name: it states other tokens, or none.
    #[must_use]
    pub fn is_of_other_tokens(&self, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let on_record = [&self.train, &self.val].iter().find_map(|part| part.digest_of(&name));
        on_record.is_some_and(|known| stated(path).is_none_or(|stated| known != stated.to_hex().as_str()))
    }

    /// The version that is written.
    pub(super) const VERSION: u32 = VERSION;

    /// The card in a directory, if there is one.
    ///
    /// # Errors
    /// [`DataError::Vocabulary`] for a card that is damaged or of a later version, [`DataError::Read`].
    pub fn read(dir: &Path) -> Result<Option<Self>, DataError> {
        let path = dir.join(CARD);
        let bytes = match regular::read_within(&path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::NotFound | ErrorKind::NotADirectory => Ok(None),
                    ErrorKind::FileTooLarge => {
                        Err(DataError::Vocabulary { path, problem: "it is too large for a card".into() })
                    }
                    _ => Err(DataError::Read { path, error }),
                };
            }
        };
        let malformed = |problem: String| DataError::Vocabulary { path: path.clone(), problem };
        let stated: Stated =
            serde_json::from_slice(&bytes).map_err(|error| malformed(format!("it is no JSON: {error}")))?;
        match stated.version {
            Some(1) => {}
            Some(version) => {
                return Err(malformed(format!("version {version} is not known, only {VERSION}")));
            }
            None => {
                return Err(malformed("it has no `version`, so no `runner data prepare` wrote it".into()));
            }
        }
        serde_json::from_slice(&bytes).map(Some).map_err(|error| malformed(error.to_string()))
    }

    /// Writes the card into a directory, whole or not at all; false, and nothing is written, where it is longer than
    /// one that is read.
    pub(super) fn write(&self, dir: &Arc<OpenDir>) -> Result<bool, DataError> {
        let text = serde_json::to_string_pretty(self).expect("a card is plain data") + "\n";
        let is_readable = text.len() as u64 <= MAX_BYTES;
        if is_readable {
            write_whole(dir, CARD, text.as_bytes())?;
        }
        Ok(is_readable)
    }

    /// What the set's tokens stand for.
    ///
    /// # Errors
    /// What is wrong with its characters.
    pub fn tokenizer(&self) -> Result<Tokenizer, String> {
        match (self.tokenizer, &self.characters) {
            (TokenizerKind::Gpt2, _) => Ok(Tokenizer::gpt2().clone()),
            (TokenizerKind::Bytes, _) => Ok(Tokenizer::bytes().clone()),
            (TokenizerKind::Char, Some(all)) => Characters::new(all.chars().collect()).map(Tokenizer::chars),
            (TokenizerKind::Char, None) => Err("it lists no `characters`".into()),
        }
    }

    /// Whether a file of this name is one of its shards.
    #[must_use]
    pub fn lists(&self, name: &str) -> bool {
        self.train.files.iter().chain(&self.val.files).any(|file| file == name)
    }
}
