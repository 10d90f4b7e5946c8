//! What can be wrong with data. Each message names the file, the value found and what to do about it.

use crate::wording::count;
use std::io;
use std::path::{Path, PathBuf};

/// A reason why data cannot be read, trained on or written.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The list of files is empty.
    #[error("no data is named: give at least one file, glob or `builtin:lipsum`")]
    NothingNamed,
    /// A plain path that does not exist.
    #[error("`{}` does not exist: check the path", path.display())]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// A glob that matches nothing.
    #[error("`{pattern}` matches no file: check the directory and the pattern")]
    NoMatch {
        /// The glob.
        pattern: String,
    },
    /// A glob that cannot be parsed.
    #[error("`{pattern}` is not a valid glob: {detail}; put a literal bracket or star in brackets: `[*]`")]
    BadPattern {
        /// The glob.
        pattern: String,
        /// What is wrong with it, and where.
        detail: String,
    },
    /// A preparation or a download that has not ended.
    #[error(transparent)]
    Unfinished(#[from] super::unfinished::Unfinished),
    /// A directory where a file is needed.
    #[error("`{}` is a directory: name its files, for instance `{}`", path.display(), path.join("*.bin").display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// A pipe, socket or device where a file is needed.
    #[error("`{}` is not a regular file, so it cannot be mapped: copy its contents to a file first", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// The operating system refused to read something.
    #[error("could not read `{}`: {error}; check its permissions and what it leads to", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The operating system maps no further file into memory.
    #[error("could not map `{}`: {error}; raise `ulimit -v` (or `sysctl vm.max_map_count`)", path.display())]
    TooManyMaps {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The operating system refused to write something.
    #[error("could not write `{}`: {error}; check its directory's permissions and the free space", path.display())]
    Write {
        /// The file to be written.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file of no bytes.
    #[error("`{}` is empty: it needs at least one row of tokens", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A file with neither a known magic number nor a known extension.
    #[error(
        "`{}` has neither a known magic number nor the extension .txt or .bin: rename plain text to .txt and \
         headerless 16-bit tokens to .bin",
        path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A file of llm.c's that is no shard of GPT-2's tokens.
    #[error("`{}` begins with {magic}, the magic number of {what}", path.display())]
    ForeignMagic {
        /// The file.
        path: PathBuf,
        /// Its first word.
        magic: i32,
        /// What such files are, and what to do instead.
        what: &'static str,
    },
    /// A file that is something else than tokens by all appearances.
    #[error("`{}` holds no tokens: by its first bytes it is {what}", path.display())]
    NoTokens {
        /// The file.
        path: PathBuf,
        /// What it looks like, and what to do about it.
        what: &'static str,
    },
    /// An index of Megatron-LM's that is damaged or does not fit the file of tokens beside it.
    #[error("`{}` cannot be read by Megatron-LM's index `{}`: {what}", path.display(), index.display())]
    Megatron {
        /// The file of tokens.
        path: PathBuf,
        /// The index beside it.
        index: PathBuf,
        /// What is wrong with the index, and what to do.
        what: String,
    },
    /// A headerless file of wider tokens than 16 bits.
    #[error(
        "`{}` looks like {bits}-bit tokens (the upper bytes of each are 0), but a file without a header holds 16-bit \
         tokens: convert it, in Python with \
         numpy.fromfile(path, dtype=numpy.uint{bits}).astype(numpy.uint16).tofile(other)",
        path.display()
    )]
    Wide {
        /// The file.
        path: PathBuf,
        /// The bits of a token.
        bits: u32,
    },
    /// A character of a text that its vocabulary does not have.
    #[error(
        "`{}` has {c:?} at byte {offset}, which is none of the characters that the vocabulary has: take the \
         vocabulary from all of the text, or encode bytes with data.tokenizer = \"bytes\"",
        path.display()
    )]
    Unlisted {
        /// The text.
        path: PathBuf,
        /// The character.
        c: char,
        /// Its first byte in the text.
        offset: usize,
    },
    /// A file that says what tokens stand for, and cannot be read.
    #[error("`{}` does not say what the tokens beside it stand for: {problem}", path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Shards whose tokens stand for different things.
    #[error(
        "`{}` and `{}` give the same tokens other meanings: train on sets of one vocabulary",
        first.display(),
        second.display()
    )]
    Vocabularies {
        /// What one shard's tokens stand for.
        first: PathBuf,
        /// What another one's stand for.
        second: PathBuf,
    },
    /// Characters are to be the vocabulary of data without text.
    #[error(
        "`{}` is no text, and no dataset.json or meta.pkl beside it lists characters: data.tokenizer = \"char\" needs \
         either",
        path.display()
    )]
    NoText {
        /// A file of tokens.
        path: PathBuf,
    },
    /// An unknown version of llm.c's header, or one without 16-bit tokens.
    #[error(
        "`{}` has version {version} in its llm.c header, but only version 1 is known, which holds 16-bit tokens of \
         GPT-2: write it again with llm.c's scripts for GPT-2",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its second word.
        version: i32,
    },
    /// A negative number of tokens in llm.c's header.
    #[error("`{}` declares {count} tokens in its llm.c header: the file is damaged, write it again", path.display())]
    TokenCount {
        /// The file.
        path: PathBuf,
        /// Its third word.
        count: i32,
    },
    /// A file that ends inside its header.
    #[error(
        "`{}` ends inside its header after {}: it is truncated, copy it again",
        path.display(), count(*bytes, "byte")
    )]
    TruncatedHeader {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: usize,
    },
    /// A header that contradicts the size of the file.
    #[error(
        "`{}` declares {declared} tokens in its header ({expected} bytes), but {held} bytes follow it: \
         the file is truncated or damaged, copy it again",
        path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Tokens according to the header.
        declared: u64,
        /// The bytes that these tokens take.
        expected: u128,
        /// The bytes after the header.
        held: usize,
    },
    /// A headerless file that does not consist of 16-bit tokens.
    #[error(
        "`{}` has no header and {bytes} bytes, an odd number, so it does not hold 16-bit tokens: it is truncated or \
         no token file",
        path.display()
    )]
    OddLength {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: usize,
    },
    /// A damaged file of tokens.
    #[error("`{}` is damaged: {detail}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do about it.
        detail: String,
    },
    /// An npy array whose elements are not tokens.
    #[error(
        "`{}` holds elements of type {found}, but tokens are `<u2` or `<i4`: save the array with .astype(numpy.int32)",
        path.display()
    )]
    NpyType {
        /// The file.
        path: PathBuf,
        /// The type in NumPy's notation.
        found: String,
    },
    /// An npy array that is not one-dimensional.
    #[error(
        "`{}` holds an array of shape {found}, but tokens are one-dimensional: save array.reshape(-1)",
        path.display()
    )]
    NpyShape {
        /// The file.
        path: PathBuf,
        /// The shape in NumPy's notation.
        found: String,
    },
    /// A `.txt` file that is not UTF-8.
    #[error("`{}` is not UTF-8 at byte {offset}: convert it, for instance with iconv", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first byte that is not part of a character.
        offset: usize,
    },
    /// A file that changed while it was read.
    #[error("`{}` changed while it was read: start again when nothing writes to it", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A file that others have changed while it is mapped.
    #[error(
        "`{name}` was changed while it is in use: {what}; put it back as it was at the start and run the same command \
         again, which goes on from the last checkpoint"
    )]
    InUse {
        /// The file.
        name: String,
        /// What has changed.
        what: String,
    },
    /// A token that the model has no embedding for.
    #[error(
        "`{name}` has token {token} at index {index}, but model.vocab_size is {vocab_size}: \
         raise model.vocab_size (GPT-2's is {}) or tokenize the data with the right vocabulary",
        super::tokenizer::VOCAB_SIZE
    )]
    Token {
        /// The file or built-in text.
        name: String,
        /// The first token that is out of range.
        token: i32,
        /// Its index among the tokens, from 0.
        index: u64,
        /// The number of ids that the model knows.
        vocab_size: usize,
    },
    /// A set with less than one whole row.
    #[error(
        "`{name}`{others} has {}, but a row of block_size {block_size} needs {}: {}",
        count(*tokens, "token"), block_size + 1, remedy(*tokens)
    )]
    TooShort {
        /// The longest file or built-in text.
        name: String,
        /// If there are several files, a phrase that says that this is the longest.
        others: String,
        /// The number of tokens in it.
        tokens: u64,
        /// The number of inputs in a row.
        block_size: usize,
    },
    /// A split that leaves one part with less than one whole row.
    #[error(
        "the {what} {tokens} of {of} tokens are too few: a row of block_size {block_size} needs {}; \
         choose another fraction, longer data or a smaller model.block_size",
        block_size + 1
    )]
    SplitTooShort {
        /// Which part: `first` or `last`.
        what: &'static str,
        /// The number of tokens in it.
        tokens: u64,
        /// The number of tokens of both parts.
        of: u64,
        /// The number of inputs in a row.
        block_size: usize,
    },
    /// A mixture, of which no last part can be kept.
    #[error(
        "the data are a mixture, of which no last part can be kept: name files for validation in data.val"
    )]
    SplitMixture,
    /// A weight that comes to no row.
    #[error(
        "`{name}` has weight {weight} of {total}, which comes to none of {} rows: leave it out, or give it a larger \
         weight",
        super::mixture::PERIOD
    )]
    Share {
        /// The source.
        name: String,
        /// Its weight.
        weight: f64,
        /// The sum of all weights.
        total: f64,
    },
    /// A `builtin:` name that does not exist.
    #[error("`{spec}` is not built in: the only built-in data is `builtin:lipsum`")]
    UnknownBuiltin {
        /// What was asked for.
        spec: String,
    },
    /// Options of a built-in text that make no sense.
    #[error("`{spec}` {detail}: write it like `builtin:lipsum:seed=1,words=200000`")]
    BuiltinOption {
        /// What was asked for.
        spec: String,
        /// What is wrong with it.
        detail: String,
    },
    /// More tokens than llm.c's header can count.
    #[error(
        "`{}` would hold more than {} tokens, the most that llm.c's header can count: split the input",
        path.display(), i32::MAX
    )]
    TooManyTokens {
        /// The shard that was being written.
        path: PathBuf,
    },
}

impl DataError {
    pub(super) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        |error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Missing { path },
            _ => Self::Read { path, error },
        }
    }

    pub(super) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        |error| Self::Write { path, error }
    }
}

fn remedy(tokens: u64) -> String {
    match tokens {
        0 | 1 => "use longer data".into(),
        n => format!("set model.block_size to {} or less, or use longer data", n - 1),
    }
}
