//! Texts of a column of a Parquet file, page by page.
//!
//! The crate `parquet` takes as long to build as a third of this program. What a corpus of text needs is little: one
//! column of byte arrays, plain or with a dictionary, under the usual codecs. Anything else is refused by name.
//! Source: Apache Parquet, `parquet-format` 2.11, `README.md`, `Encodings.md` and `parquet.thrift`.

mod footer;
mod hybrid;
mod thrift;

pub(super) use footer::held;

use super::PrepareError;
use super::bounds::{Allowance, advice, longest, of_a_page, page};
use super::zstd::Frames;
use crate::data::DataError;
use footer::{Chunk, Column};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::Path;
use thrift::{Item, LEAF, Wanted};

/// What is needed of a page's header: its kind, sizes and checksum, and the counts, encodings and lengths of each kind.
const PAGE: Wanted = Wanted(&[
    (1, LEAF),
    (2, LEAF),
    (3, LEAF),
    (4, LEAF),
    (5, Wanted(&[(1, LEAF), (2, LEAF)])),
    (7, Wanted(&[(1, LEAF)])),
    (8, Wanted(&[(1, LEAF), (4, LEAF), (5, LEAF), (6, LEAF), (7, LEAF)])),
]);
/// Parquet's number for the page of a dictionary.
const DICTIONARY: i64 = 2;
/// Names of the encodings by their numbers.
const ENCODINGS: [&str; 10] = [
    "PLAIN",
    "GROUP_VAR_INT",
    "PLAIN_DICTIONARY",
    "RLE",
    "BIT_PACKED",
    "DELTA_BINARY_PACKED",
    "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY",
    "RLE_DICTIONARY",
    "BYTE_STREAM_SPLIT",
];
/// Names of the codecs by their numbers.
const CODECS: [&str; 8] = ["UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"];

/// Hands out the texts of a column in the order of the rows.
pub(super) fn texts(
    path: &Path,
    file: File,
    field: &str,
    advance: &dyn Fn(u64),
    take: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<(), PrepareError> {
    let at =
        |place: String| move |problem: String| PrepareError::Document { path: path.into(), place, problem };
    let bytes = file.metadata().map_err(DataError::read(path))?.len();
    let mut input = BufReader::with_capacity(64 << 10, file);
    let footer = footer::read(&mut input, bytes).map_err(at("its footer".into()))?;
    let column = Column::find(&footer, field).map_err(at("its schema".into()))?;
    let groups = footer.list(4);
    let (mut row, mut reported) = (0, 0);
    let mut left = Left { bytes, allowance: Allowance::of(bytes) };
    let (page, longest) = (page(bytes), longest(bytes));
    for (index, group) in groups.iter().enumerate() {
        let dictionary = Dictionary::default();
        let (input, left) = (&mut input, &mut left);
        let mut pages = Pages { input, column: &column, row, dictionary, left, page, longest };
        let read = Chunk::of(group, &column).and_then(|chunk| pages.chunk(&chunk, take));
        row = pages.row;
        if read.map_err(at(format!("row {row}")))?.is_break() {
            return Ok(());
        }
        let now = (bytes as u128 * (index as u128 + 1) / groups.len() as u128) as u64;
        advance(now - reported);
        reported = now;
    }
    Ok(())
}

/// The bytes of a page, unpacked and packed, as its header states them.
fn sizes(header: &Item) -> Result<(usize, usize), String> {
    let size = |id| header.int(id).and_then(|n| usize::try_from(n).ok());
    size(2).zip(size(3)).ok_or_else(|| "a page states a size that it cannot have".into())
}

fn unreadable(error: std::io::Error) -> String {
    format!("its column could not be read: {error}")
}

/// What a file may still make work of.
struct Left {
    /// Bytes of the file that no page has taken: pages do not overlap.
    bytes: u64,
    /// What may come out of it.
    allowance: Allowance,
}

/// The texts to which pages refer by their numbers.
#[derive(Default)]
struct Dictionary {
    page: Vec<u8>,
    /// Where each text lies in the page.
    texts: Vec<(u32, u32)>,
}

impl Dictionary {
    fn new(page: Vec<u8>, count: i64) -> Option<Self> {
        let mut texts = Vec::new();
        let mut rest = &page[..];
        for _ in 0..count {
            let text = plain(&mut rest)?;
            let end = u32::try_from(page.len() - rest.len()).ok()?;
            texts.push((end - text.len() as u32, end));
        }
        Some(Self { page, texts })
    }

    fn get(&self, index: u32) -> Option<&[u8]> {
        let &(start, end) = self.texts.get(index as usize)?;
        self.page.get(start as usize..end as usize)
    }
}

/// The pages of a column in a group of rows.
struct Pages<'a> {
    input: &'a mut BufReader<File>,
    column: &'a Column,
    /// Rows before the page.
    row: u64,
    dictionary: Dictionary,
    left: &'a mut Left,
    /// Bytes of a page at most, packed or not.
    page: usize,
    /// Bytes of a text at most.
    longest: usize,
}

impl Pages<'_> {
    fn chunk(
        &mut self,
        chunk: &Chunk,
        take: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, String> {
        self.input.seek(SeekFrom::Start(chunk.begin)).map_err(unreadable)?;
        let end = self.row.checked_add(chunk.values).ok_or(BROKEN)?;
        while self.row < end {
            let begin = self.input.stream_position().map_err(unreadable)?;
            let header = thrift::structure(self.input, PAGE)?;
            let (full, packed) = sizes(&header)?;
            if full.max(packed) > self.page {
                return Err(of_a_page(self.page));
            }
            let mut page = Vec::new();
            let read = self.input.by_ref().take(packed as u64).read_to_end(&mut page).map_err(unreadable)?;
            if read != packed {
                return Err("a page is cut off: fetch the file again".into());
            }
            let taken = self.input.stream_position().map_err(unreadable)? - begin;
            self.left.bytes = self.left.bytes.checked_sub(taken).ok_or(OVERLAP)?;
            self.left.allowance.take(full)?;
            let mut sum = flate2::Crc::new();
            sum.update(&page);
            if header.int(4).is_some_and(|stated| stated as u32 != sum.sum()) {
                return Err(BROKEN.into());
            }
            match header.int(1) {
                Some(0) => {
                    let page = unpack(chunk.codec, page, full)?;
                    let header = header.get(5).ok_or(BROKEN)?;
                    let (levels, values) = match self.column.is_optional {
                        true => hybrid::with_length(&page).ok_or(BROKEN)?,
                        false => (&[][..], &page[..]),
                    };
                    if self.values(header.int(1), header.int(2), levels, values, end, take)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Some(DICTIONARY) => {
                    let page = unpack(chunk.codec, page, full)?;
                    let count = header.get(7).and_then(|header| header.int(1)).ok_or(BROKEN)?;
                    self.dictionary = Dictionary::new(page, count).ok_or(BROKEN)?;
                }
                Some(3) => {
                    let header = header.get(8).ok_or(BROKEN)?;
                    let len = |id| header.int(id).and_then(|len| usize::try_from(len).ok());
                    let (Some(levels), Some(repeats)) = (len(5), len(6)) else { return Err(BROKEN.into()) };
                    let before = levels.checked_add(repeats).filter(|&before| before <= page.len().min(full));
                    let levels: Vec<u8> = page.drain(..before.ok_or(BROKEN)?).collect();
                    let is_packed = header.get(7) != Some(&Item::Bool(false));
                    let full = full - levels.len();
                    let values = unpack(if is_packed { chunk.codec } else { 0 }, page, full)?;
                    let levels = &levels[repeats..];
                    if self.values(header.int(1), header.int(4), levels, &values, end, take)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                // an index, which is not needed
                _ => {}
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Hands out the texts of a page.
    fn values(
        &mut self,
        count: Option<i64>,
        encoding: Option<i64>,
        levels: &[u8],
        values: &[u8],
        end: u64,
        take: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, String> {
        let count =
            count.and_then(|count| u64::try_from(count).ok()).filter(|&count| count <= end - self.row);
        let count = count.ok_or(BROKEN)?;
        // a few bytes may state any number of rows
        self.left.allowance.take_documents(count)?;
        if self.column.is_optional {
            let mut levels = hybrid::Runs::new(levels, 1);
            for _ in 0..count {
                if levels.next().ok_or(BROKEN)? == 0 {
                    return Err("its text is null: leave out rows without text".into());
                }
                self.row += 1;
            }
            self.row -= count;
        }
        let mut rest = values;
        let mut indices = match encoding {
            Some(0) => None,
            Some(2 | 8) => {
                let (width, indices) = values.split_first().ok_or(BROKEN)?;
                Some(hybrid::Runs::new(indices, u32::from(*width)))
            }
            other => {
                let name = other.and_then(|at| ENCODINGS.get(usize::try_from(at).ok()?));
                let name = name.map_or_else(|| format!("{other:?}"), ToString::to_string);
                return Err(format!(
                    "its pages have the encoding {name}, which is not read: write it with PLAIN or a dictionary, as \
                     pyarrow does"
                ));
            }
        };
        for _ in 0..count {
            let bytes = match &mut indices {
                None => plain(&mut rest).ok_or(BROKEN)?,
                Some(indices) => {
                    let index = indices.next().ok_or(BROKEN)?;
                    self.dictionary.get(index).ok_or(BROKEN)?
                }
            };
            if bytes.len() > self.longest {
                return Err(format!("its text is longer than {}", advice(self.longest)));
            }
            self.left.allowance.take(bytes.len())?;
            let text = std::str::from_utf8(bytes);
            let text =
                text.map_err(|error| format!("its text is not UTF-8 at byte {}", error.valid_up_to()))?;
            self.row += 1;
            if take(text).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

const BROKEN: &str = "a page is damaged: fetch the file again";
const OVERLAP: &str = "its pages overlap: fetch it again";

/// Takes the next byte array: its length in 32 bits, then its bytes.
fn plain<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, after) = rest.split_first_chunk::<4>()?;
    let (bytes, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *rest = after;
    Some(bytes)
}

/// The contents of a page, `full` bytes.
fn unpack(codec: i64, page: Vec<u8>, full: usize) -> Result<Vec<u8>, String> {
    let bounded = |input: &mut dyn Read| {
        let mut out = Vec::new();
        input.take(full as u64 + 1).read_to_end(&mut out).map(|_| out).ok()
    };
    let unpacked = match codec {
        0 => Some(page),
        1 if snap::raw::decompress_len(&page).ok() == Some(full) => {
            snap::raw::Decoder::new().decompress_vec(&page).ok()
        }
        1 => None,
        2 => bounded(&mut flate2::read::MultiGzDecoder::new(&page[..])),
        6 => bounded(&mut Frames::new(&page[..])),
        other => {
            let name = usize::try_from(other).ok().and_then(|at| CODECS.get(at));
            let name = name.map_or_else(|| other.to_string(), ToString::to_string);
            return Err(format!(
                "its pages are compressed with {name}, which is not read: write it with snappy, gzip or zstd"
            ));
        }
    };
    unpacked.filter(|page| page.len() == full).ok_or_else(|| BROKEN.to_owned())
}

#[cfg(test)]
mod tests;
