//! Preparing a data set: from files of text to shards of tokens with a card, [`Card`].
//!
//! The tokens are one sequence, a pure function of the sources and the options: documents in the order of the sources,
//! or in an order that a seed draws, each with its separator. [`prepare`] cuts it into shards. Memory does not grow
//! with the sources; a process that is killed goes on at the last complete shard.

mod bounds;
mod complete;
mod documents;
mod earlier;
mod error;
mod field;
mod parquet;
mod pipeline;
mod shards;
mod sources;
mod spool;
mod state;
mod vocabulary;
mod work;
mod zstd;

use super::card::{self, Card, SourceCard};
use super::tokenizer::{Tokenizer, TokenizerKind};
use super::unfinished::{self, Unfinished};
use super::{DataError, Progress};
use documents::Reading;
use serde_json::json;
use sources::TextFile;
use state::{State, Workplace};
use std::io;
use std::path::{self, Path, PathBuf};

pub use error::PrepareError;
pub use pipeline::Separator;
pub use shards::Validation;

/// What is to be prepared, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Files, globs and directories of text.
    pub sources: Vec<String>,
    /// The directory of the result.
    pub out: PathBuf,
    /// What makes tokens of text.
    pub tokenizer: TokenizerKind,
    /// The field or column that has the text.
    pub field: String,
    /// What stands between documents of text files; `None` for one document per file.
    pub split_on: Option<String>,
    /// Tokens of a shard, at least 2.
    pub shard_tokens: u64,
    /// What is validated on.
    pub validation: Validation,
    /// Where the separator stands; `None` for the tokenizer's default.
    pub separator: Option<Separator>,
    /// Draws the order of the documents.
    pub shuffle_seed: Option<u64>,
    /// No more tokens are read.
    pub limit_tokens: Option<u64>,
    /// Threads that encode, at least 1. They change no byte of the result.
    pub threads: usize,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Prepared {
    /// The set is complete.
    Now(Card),
    /// It was complete before, and nothing was done.
    Before(Card),
}

/// What a preparation tells, and where a test may make it fail.
pub struct Hooks<'a> {
    /// Is told about bytes of files.
    pub progress: &'a dyn Progress,
    /// Is called with the name of a moment before and after every write; its error is taken as that of the write.
    pub fault: &'a dyn Fn(&str) -> io::Result<()>,
}

impl Options {
    /// Where the separator stands.
    #[must_use]
    pub fn separator(&self) -> Separator {
        let default =
            if self.tokenizer == TokenizerKind::Gpt2 { Separator::Prepend } else { Separator::None };
        self.separator.unwrap_or(default)
    }

    /// Whether all tokens are kept on the disk before the first shard is written.
    fn is_spooled(&self) -> bool {
        self.shuffle_seed.is_some() || matches!(self.validation, Validation::Fraction(_))
    }

    /// The number of files of text in a set, if `split_on` was to part documents in them and never did; `None` where a
    /// limit may have kept it from that.
    #[must_use]
    pub fn undivided(&self, card: &Card) -> Option<usize> {
        let is_text = |source: &&SourceCard| {
            sources::recorded(source).is_some_and(|format| format.starts_with(sources::TEXT))
        };
        let texts: Vec<_> = card.sources.iter().filter(is_text).collect();
        let is_vain = self.split_on.is_some()
            && !self.is_limit(card.tokens)
            && texts.iter().all(|text| text.documents <= 1);
        is_vain.then_some(texts.len())
    }

    /// Whether so many tokens are all that are read, whatever else there is.
    fn is_limit(&self, tokens: u64) -> bool {
        self.limit_tokens.is_some_and(|limit| tokens >= limit)
    }

    /// Bytes of memory that a preparation takes at most, for lines and texts without a place to cut them of up to
    /// 512 KiB; a longer one takes eight times its length, and no two are worked on at once. The figure holds the
    /// program and its vocabulary, what waits between threads, a run of the spool where there is one, and of the source
    /// for which it is most, the window of the first frame under zstd where that is long, or a page of the table; and
    /// what is on record of each source.
    #[must_use]
    pub fn memory(&self) -> u64 {
        const PROGRAM: u64 = 40 << 20;
        // of a source there are its path, what is on record of it, the card, and the card's text, which grows
        const RECORDS: u64 = 4;
        // a cache of pieces, a stack, the allocator's own
        const THREAD: u64 = 8 << 20;
        // text, its tokens with room to grow, and what was read of the file
        let batch = 6 * pipeline::BATCH as u64;
        let spool =
            if self.is_spooled() { 2 * spool::RUN as u64 + spool::BUFFERS as u64 + (32 << 20) } else { 0 };
        // of one source at a time
        let files = sources::find(&self.sources).unwrap_or_default();
        let reader = files.iter().map(|file| file.held(&self.field)).max().unwrap_or(0);
        let waiting = pipeline::in_flight(self.threads) as u64 * batch;
        let records = files.iter().map(|file| self.record(file)).sum::<u64>();
        PROGRAM + self.threads as u64 * THREAD + waiting + spool + reader + RECORDS * records
    }

    /// Bytes that a source takes in the state, about.
    fn record(&self, file: &TextFile) -> u64 {
        // numbers, digests and names of fields
        const FIELDS: usize = 270;
        let json = |path: &Path| serde_json::to_string(&path.to_string_lossy()).map_or(0, |text| text.len());
        let path = path::absolute(file.path()).unwrap_or_default();
        let once = FIELDS + json(file.path()) + json(&path);
        // the vocabulary of characters has its own
        once as u64 * if self.tokenizer == TokenizerKind::Char { 2 } else { 1 }
    }

    /// Refuses more sources than a state, or a card, has room for.
    fn check_room(&self, files: &[TextFile]) -> Result<(), PrepareError> {
        // of the rest, most is how often each token was taken
        const REST: u64 = 4 << 20;
        let records = files.iter().map(|file| self.record(file)).sum::<u64>();
        match records > card::MAX_BYTES - REST {
            true => Err(PrepareError::TooLong { files: files.len(), shards: 0 }),
            false => Ok(()),
        }
    }

    /// What decides the result, besides the contents of the sources.
    fn identity(&self) -> serde_json::Value {
        let validation = match self.validation {
            Validation::None => json!(null),
            Validation::Tokens(tokens) => json!({ "tokens": tokens }),
            Validation::FirstShard => json!("first shard"),
            Validation::Fraction(fraction) => json!({ "fraction": fraction }),
        };
        json!({
            "tokenizer": self.tokenizer,
            "field": self.field,
            "split_on": self.split_on,
            "shard_tokens": self.shard_tokens,
            "validation": validation,
            "separator": self.separator().word(),
            "shuffle_seed": self.shuffle_seed,
            "limit_tokens": self.limit_tokens,
        })
    }

    fn check(&self) -> Result<(), PrepareError> {
        let wrong = |text: &str| Err(PrepareError::Options(text.to_owned()));
        if self.separator() != Separator::None && self.tokenizer != TokenizerKind::Gpt2 {
            return Err(PrepareError::Options(format!(
                "--separator {}: the vocabulary of --tokenizer {} has no token that separates documents; leave it out",
                self.separator().word(),
                self.tokenizer
            )));
        }
        if !(2..i32::MAX as u64).contains(&self.shard_tokens) {
            return wrong("--shard-tokens: a shard has between 2 and 2147483646 tokens");
        }
        match self.validation {
            Validation::Fraction(fraction) if !(fraction > 0.0 && fraction < 1.0) => {
                wrong("--val-fraction: a number between 0 and 1 is needed, such as 0.1")
            }
            Validation::Tokens(0) => {
                wrong("--val-tokens: at least 1 is needed; leave it out for no validation data")
            }
            _ if self.limit_tokens == Some(0) => wrong("--limit-tokens: at least 1 is needed"),
            _ if self.split_on.as_deref() == Some("") => wrong("--split-on: an empty text separates nothing"),
            _ if self.threads == 0 => wrong("--threads: at least 1 is needed"),
            _ => Ok(()),
        }
    }
}

/// Checks that no files of an unfinished download are to come into a directory.
fn check_downloads(out: &Path) -> Result<(), PrepareError> {
    match unfinished::fetch_into(out) {
        Some(by) => {
            let pattern = out.display().to_string();
            Err(DataError::from(Unfinished::Fetch { pattern, by }).into())
        }
        None => Ok(()),
    }
}

/// Prepares a data set, goes on with one that was begun, or finds that it is there already.
///
/// # Errors
/// What is wrong with the sources, the options or the directory. Unless a file of tokens was complete by then, nothing
/// is left behind.
pub fn prepare(options: &Options, hooks: &Hooks) -> Result<Prepared, PrepareError> {
    options.check()?;
    let files = sources::find(&options.sources)?;
    if let Some(card) = earlier::finished(options, &files, hooks)? {
        state::clear(&options.out);
        return Ok(Prepared::Before(card));
    }
    check_downloads(&options.out)?;
    let place = Workplace::open(&options.out)?;
    // one that has begun meanwhile finds this preparation, or is found
    if let Err(error) = check_downloads(&options.out) {
        if !place.inside.has(unfinished::STATE) {
            place.undo(&[]);
        }
        return Err(error);
    }
    let state = match place.state(options.is_spooled())? {
        Some(state) => {
            earlier::check_options(options, &state.options, "an unfinished preparation")?;
            earlier::check_sources(options, &files, &state, hooks)?;
            state
        }
        None => {
            let stranger = place.stranger(&[])?.map(|name| place.occupied_by(&name));
            if let Some(error) = stranger.or_else(|| options.check_room(&files).err()) {
                place.undo(&[]);
                return Err(error);
            }
            State { options: options.identity(), lists_first: true, ..State::default() }
        }
    };
    let mut work = work::Work::new(options, &files, &place, state, hooks)?;
    let ended = vocabulary::tokenizer(options, &files, &place, &mut work.state, hooks)
        .and_then(|tokenizer| work.run(&tokenizer));
    if ended.as_ref().is_err_and(PrepareError::is_of_source) {
        work.go_back()?;
    }
    match ended {
        Ok(card) => {
            place.finish();
            Ok(Prepared::Now(card))
        }
        Err(error) => {
            let is_vain = matches!(
                error,
                PrepareError::NoTrain { .. } | PrepareError::NoVal { .. } | PrepareError::NoText { .. }
            );
            let (made, kept) = (work.made().to_vec(), if is_vain { 0 } else { work.kept() });
            let has_characters = work.state.characters.is_some();
            // the unfinished shard goes before its directory
            drop(work);
            match error {
                PrepareError::SourceChanged { path, .. } if kept == 0 => {
                    place.undo(&made);
                    Err(DataError::Changed { path }.into())
                }
                error if kept == 0 => {
                    place.undo(&made);
                    Err(error)
                }
                // what is kept is in the characters of what was there before
                PrepareError::Data(DataError::Changed { path }) if has_characters => {
                    Err(PrepareError::SourceChanged { path, dir: options.out.clone() })
                }
                // the same command would be refused
                error @ (PrepareError::SourceChanged { .. }
                | PrepareError::Occupied { .. }
                | PrepareError::TooLong { .. }) => Err(error),
                error => Err(PrepareError::Kept { error: Box::new(error), shards: kept }),
            }
        }
    }
}

fn reading<'a>(options: &'a Options, tokenizer: &'a Tokenizer) -> Reading<'a> {
    Reading { field: &options.field, split_on: options.split_on.as_deref(), tokenizer }
}
