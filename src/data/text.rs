//! Plain text: encoded once and cached as a llm.c shard whose name is the digest of the text.
//!
//! The digest is the blake3 of the contents, so a copy, a new name or a new date needs no new encoding, and
//! an edit does. A cached shard is used only if its tokens match the checksum in its header.

use super::DataError;
use super::appearance::looks_binary;
use super::format::{Format, recognize};
use super::guard::Guard;
use super::mapping::{again, map_in};
use super::progress::Task;
use super::scan::{Identity, Scan, Scanner};
use super::shard::stamp;
use super::tokenizer::{Tokenizer, TokenizerKind, Unlisted};
use super::tokens::Tokens;
use super::write::{ShardWriter, stored_checksum};
use crate::regular::{self, OpenDir};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Bytes of text that are encoded and written before the next ones; bounds the memory for a big file.
const BATCH: usize = 32 << 20;
/// Bytes of text that one thread encodes at a time.
const PART: usize = 128 << 10;

/// The tokens of the text file `path`, with the digest of the text, the range of the tokens and a guard of the cached
/// shard. The text itself is not read again, so it may change.
pub(super) fn open(
    path: &Path,
    file: &File,
    text: &[u8],
    tokenizer: &Tokenizer,
    scanner: &Scanner,
) -> Result<(Arc<Tokens>, Scan, Option<Guard>), DataError> {
    let before = regular::dated(file, || Identity::of(path, file))?;
    let digest = scanner.text(path, file, text)?.digest;
    let name = format!("{}.{}.bin", digest.to_hex(), vocabulary(tokenizer));
    let found = scanner.cache.find().map(|dir| cached(&dir, &name, scanner)).transpose()?.flatten();
    if let Some((tokens, scan, guard)) = found {
        return Ok((tokens, Scan { digest, ..scan }, Some(guard)));
    }
    let shard = encode(path, (text, digest), tokenizer, &name, scanner)?;
    // while the shard has no name: it may hold the tokens of another text than the name would say
    if Identity::of(path, file)? != before {
        return Err(DataError::Changed { path: path.into() });
    }
    shard.finish()?;
    let dir = scanner.cache.make()?;
    match cached(&dir, &name, scanner)? {
        Some((tokens, scan, guard)) => Ok((tokens, Scan { digest, ..scan }, Some(guard))),
        None => Err(DataError::Changed { path: dir.join(name) }),
    }
}

/// The tokens of a complete and undamaged cached shard, with their digest, their range and the shard's guard.
fn cached(
    dir: &OpenDir,
    name: &str,
    scanner: &Scanner,
) -> Result<Option<(Arc<Tokens>, Scan, Guard)>, DataError> {
    let cache = &dir.join(name);
    let (file, bytes) = match map_in(dir, name) {
        Ok(opened) => opened,
        // what is no file counts as nothing here
        Err(_) if !dir.has_file(name) => return Ok(None),
        Err(error) => return Err(error),
    };
    let layout = match recognize(cache, &bytes) {
        Ok(Some(layout)) if layout.format == Format::LlmC => layout,
        _ => return Ok(None),
    };
    let stamp = stamp(cache, &file)?;
    let whole = bytes.len();
    let scan = scanner.tokens(cache, &file, &Tokens::mapped(bytes, layout), true)?;
    let tokens = Arc::new(Tokens::mapped(again(cache, &file, whole)?, layout));
    let whole = scan.digest.as_bytes() == stored_checksum(tokens.header());
    // the cache may be emptied at any time, which leaves the open file as it is
    let guard = Guard::new((cache, file, stamp), tokens.clone(), false, (layout.offset, scan.digest));
    Ok(whole.then_some((tokens, scan, guard)))
}

/// Encodes a text with this digest into a shard of the cache that has all tokens and no name yet.
///
/// The text is a map that others may write to, so what is encoded is a copy, and the digest of that is compared.
fn encode(
    path: &Path,
    (text, digest): (&[u8], blake3::Hash),
    tokenizer: &Tokenizer,
    name: &str,
    scanner: &Scanner,
) -> Result<ShardWriter, DataError> {
    let not_text = |offset| match looks_binary(text) {
        Some(what) => DataError::NoTokens { path: path.into(), what },
        None => DataError::NotUtf8 { path: path.into(), offset },
    };
    // before anything is written; what is encoded is checked as it is then
    std::str::from_utf8(text).map_err(|error| not_text(error.valid_up_to()))?;
    let task = Task::start(scanner.progress, &format!("tokenizing {}", path.display()), text.len() as u64);
    let dir = scanner.cache.make()?;
    // a directory could not be written over; one with something in it stays, and is named
    let _ = dir.remove_dir(name);
    let mut writer = ShardWriter::create(&dir, name)?;
    let (mut hasher, mut held) = (blake3::Hasher::new(), Vec::new());
    let (mut copied, mut done) = (0, 0);
    while copied < text.len() {
        let before = held.len();
        held.extend_from_slice(&text[copied..text.len().min(copied + BATCH)]);
        hasher.update_rayon(&held[before..]);
        copied += held.len() - before;
        let is_last = copied == text.len();
        let valid = match std::str::from_utf8(&held) {
            Ok(valid) => valid,
            // a character that the batch cuts in two
            Err(error) if error.error_len().is_none() && !is_last => {
                std::str::from_utf8(&held[..error.valid_up_to()]).expect("just checked")
            }
            Err(error) => return Err(not_text(done + error.valid_up_to())),
        };
        let end = match is_last {
            true => Some(valid.len()),
            false => tokenizer.cut(valid, valid.len().saturating_sub(PART)),
        };
        let Some(end) = end else { continue };
        let parts = tokenizer.encode_parallel(&valid[..end], PART).map_err(|Unlisted { c, offset }| {
            DataError::Unlisted { path: path.into(), c, offset: done + offset }
        });
        for part in parts? {
            writer.push(part)?;
        }
        held.drain(..end);
        done += end;
        task.advance(end as u64);
    }
    // what the name says must be what was encoded, even if the text has changed only for a moment
    match hasher.finalize() == digest {
        true => Ok(writer),
        false => Err(DataError::Changed { path: path.into() }),
    }
}

/// What the name of a cached shard says about its vocabulary.
fn vocabulary(tokenizer: &Tokenizer) -> String {
    match (tokenizer.kind(), tokenizer.characters()) {
        (TokenizerKind::Char, Some(characters)) => {
            format!("char-{}", &blake3::hash(characters.text().as_bytes()).to_hex()[..16])
        }
        (kind, _) => kind.to_string(),
    }
}
