//! Opens one shard, a file or a built-in text: recognizes its format and checks it.

use super::format::{Format, recognize};
use super::guard::{Guard, Stamp};
use super::lipsum::Lipsum;
use super::mapping::{again, map_found};
use super::scan::{Scan, Scanner, scan_tokens};
use super::source::Source;
use super::text;
use super::tokenizer::{Tokenizer, Unlisted};
use super::tokens::Tokens;
use super::{DataError, unfinished};
use crate::regular;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// Bytes of the file that lie in holes, and are read as zeros.
    pub holes: u64,
    /// The smallest and the largest token, if there is one.
    pub range: Option<(i32, i32)>,
    /// blake3 of the file's contents, or of the text for built-in text.
    pub digest: blake3::Hash,
}

/// A shard that was opened.
pub(super) struct Opened {
    pub(super) info: ShardInfo,
    pub(super) tokens: Arc<Tokens>,
    /// Of the file that is mapped.
    pub(super) guard: Option<Guard>,
}

const OTHER_TOKENS: &str = "its header states the blake3 of other tokens than it holds: copy it again, or prepare the \
                            set again; if it is meant as it is, write zeros over bytes 12 to 43";

/// Opens a source and reads it through once. `rows` of the result is 0, because the length of a row is up to
/// the data set.
pub(super) fn open(source: &Source, tokenizer: &Tokenizer, scanner: &Scanner) -> Result<Opened, DataError> {
    let (name, path, format, holes, (tokens, scan, guard)) = match source {
        Source::Builtin(lipsum) => {
            let (tokens, scan) = builtin(lipsum, tokenizer)?;
            (lipsum.to_string(), None, Format::Builtin, 0, (Arc::new(tokens), scan, None))
        }
        Source::File(found) => {
            let path = &found.path;
            let (file, bytes) = map_found(found)?;
            let holes = unfinished::holes_of_data(path, &file, bytes.len())?;
            let (format, opened) = match recognize(path, &bytes)? {
                None => (Format::Text, text::open(path, &file, &bytes, tokenizer, scanner)?),
                Some(layout) => {
                    let stamp = stamp(path, &file)?;
                    let whole = bytes.len();
                    let scan = scanner.tokens(path, &file, &Tokens::mapped(bytes, layout), false)?;
                    if scan.is_damaged {
                        return Err(DataError::Damaged { path: path.clone(), detail: OTHER_TOKENS.into() });
                    }
                    let tokens = Arc::new(Tokens::mapped(again(path, &file, whole)?, layout));
                    let guard = Guard::new((path, file, stamp), tokens.clone(), true, (0, scan.digest));
                    (layout.format, (tokens, scan, Some(guard)))
                }
            };
            (path.display().to_string(), Some(path.clone()), format, holes, opened)
        }
    };
    let info = ShardInfo {
        name,
        path,
        format,
        tokens: tokens.len(),
        rows: 0,
        holes,
        range: scan.range,
        digest: scan.digest,
    };
    Ok(Opened { info, tokens, guard })
}

/// What the system says of an open file before it is scanned.
pub(super) fn stamp(path: &Path, file: &File) -> Result<Stamp, DataError> {
    let found = regular::dated(file, || file.metadata());
    Ok(Stamp::from(&found.map_err(DataError::read(path))?))
}

/// The tokens of a built-in text, with the digest that the text would have as a file.
fn builtin(lipsum: &Lipsum, tokenizer: &Tokenizer) -> Result<(Tokens, Scan), DataError> {
    let text = lipsum.text();
    let parts = tokenizer
        .encode_parallel(&text, 128 << 10)
        .map_err(|Unlisted { c, offset }| DataError::Unlisted { path: lipsum.to_string().into(), c, offset });
    let tokens = Tokens::owned(parts?.into_iter().flatten());
    let range = scan_tokens(&[], &tokens, |_| ()).range;
    Ok((tokens, Scan { digest: blake3::hash(text.as_bytes()), range, is_damaged: false }))
}
