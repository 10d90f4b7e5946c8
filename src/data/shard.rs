//! One opened shard: a file or a built-in text, recognized and checked.

use super::DataError;
use super::format::{Format, recognize};
use super::lipsum::Lipsum;
use super::scan::{Scan, Scanner, scan_tokens};
use super::source::Source;
use super::text;
use super::tokenizer::Tokenizer;
use super::tokens::Tokens;
use memmap2::Mmap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// What is known about a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardInfo {
    /// The path, or the full name of a built-in text.
    pub name: String,
    /// The file, unless built in.
    pub path: Option<PathBuf>,
    /// What the file is.
    pub format: Format,
    /// Number of tokens.
    pub tokens: u64,
    /// Number of whole rows of the data set's block size.
    pub rows: u64,
    /// The smallest and the largest token, if there is one.
    pub range: Option<(i32, i32)>,
    /// blake3 of the file's contents, or of the text for built-in text.
    pub digest: blake3::Hash,
}

/// Opens a source and reads it through once.
///
/// `rows` is 0 in the answer: what a row is, is the data set's business.
pub(super) fn open(source: &Source, scanner: &Scanner) -> Result<(ShardInfo, Tokens), DataError> {
    let (name, path, format, (tokens, scan)) = match source {
        Source::Builtin(lipsum) => (lipsum.to_string(), None, Format::Builtin, builtin(lipsum)),
        Source::File(path) => {
            let (file, bytes) = map(path)?;
            let (format, opened) = match recognize(path, &bytes)? {
                None => (Format::Text, text::open(path, &file, &bytes, scanner)?),
                Some(layout) => {
                    let tokens = Tokens::mapped(bytes, layout);
                    let scan = scanner.tokens(path, &file, &tokens, false)?;
                    (layout.format, (tokens, scan))
                }
            };
            (path.display().to_string(), Some(path.clone()), format, opened)
        }
    };
    let info = ShardInfo {
        name,
        path,
        format,
        tokens: tokens.len(),
        rows: 0,
        range: scan.range,
        digest: scan.digest,
    };
    Ok((info, tokens))
}

/// A built-in text's tokens; the digest is the text's, as it would be in a file.
fn builtin(lipsum: &Lipsum) -> (Tokens, Scan) {
    let text = lipsum.text();
    let parts = Tokenizer::gpt2().encode_parallel(&text, 128 << 10);
    let tokens = Tokens::owned(parts.into_iter().flatten().map(text::narrow));
    let range = scan_tokens(&[], &tokens, |_| ()).range;
    (tokens, Scan { digest: blake3::hash(text.as_bytes()), range })
}

/// Maps a file into memory. An empty one maps to no bytes.
pub(super) fn map(path: &Path) -> Result<(File, Mmap), DataError> {
    // Looked at before it is opened: opening a pipe waits for a writer.
    let meta = std::fs::metadata(path).map_err(DataError::read(path))?;
    if meta.is_dir() {
        return Err(DataError::Directory { path: path.into() });
    }
    if !meta.is_file() {
        return Err(DataError::NotRegular { path: path.into() });
    }
    let file = File::open(path).map_err(DataError::read(path))?;
    // SAFETY: the map is read only. Nothing of ours writes to a file once it has its name; datasets/README.md tells
    // users not to change the files of a running experiment either.
    let map = unsafe { Mmap::map(&file) }.map_err(DataError::read(path))?;
    Ok((file, map))
}
