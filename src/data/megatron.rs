//! Megatron-LM's data sets: bare tokens in a `.bin`, and an `.idx` beside it that says how wide they are.
//!
//! The index (`megatron/core/datasets/indexed_dataset.py` of Megatron-LM, little-endian) has `MMIDIDX\0\0`, the version
//! 1 in 64 bits, a byte for the type of the tokens, the number of sequences and that of the documents' boundaries in
//! 64 bits each, then the sequences' lengths (32 bits), where each begins in the `.bin` (bytes, 64 bits), and with
//! which sequence each document begins (64 bits). Sequences that fill the `.bin` in order are read as one stream of
//! tokens, as all other formats are.

use super::DataError;
use super::format::{Format, Layout, Width};
use super::mapping::map;
use crate::regular::is_put_beside;
use memmap2::Mmap;
use std::path::{Path, PathBuf};

/// What an index begins with.
pub(super) const MAGIC: &[u8] = b"MMIDIDX\0\0";
/// Bytes before the first array.
const HEADER: usize = 34;
/// The names of the types that are not read.
const TYPES: [(u8, &str); 6] =
    [(1, "uint8"), (2, "int8"), (3, "int16"), (5, "int64"), (6, "float64"), (7, "float32")];

const NOT_DIVIDED: &str = "its documents do not divide its sequences: copy it again";

/// An index that agrees with its file of tokens.
pub(super) struct Index {
    map: Mmap,
    header: Header,
}

/// The numbers at the beginning of an index.
struct Header {
    width: Width,
    sequences: usize,
    /// One more than there are documents.
    boundaries: usize,
}

impl Header {
    /// The lengths of the sequences in tokens, where they begin, and with which of them documents begin.
    fn lists<'a>(&self, bytes: &'a [u8]) -> [&'a [u8]; 3] {
        let (lengths, rest) = bytes[HEADER..].split_at(4 * self.sequences);
        let (pointers, boundaries) = rest.split_at(8 * self.sequences);
        [lengths, pointers, &boundaries[..8 * self.boundaries]]
    }

    /// The length of each document in tokens.
    fn documents(&self, bytes: &[u8]) -> impl Iterator<Item = u64> {
        let [lengths, _, boundaries] = self.lists(bytes);
        let sequences = |at: usize| 4 * number(&boundaries[8 * at..8 * at + 8]) as usize;
        (1..self.boundaries)
            .map(move |at| lengths[sequences(at - 1)..sequences(at)].chunks_exact(4).map(number).sum())
    }
}

impl Index {
    /// The length of each document, in tokens.
    pub(super) fn documents(&self) -> impl Iterator<Item = u64> {
        self.header.documents(&self.map)
    }
}

/// Where the index of a file of tokens would be.
pub(super) fn index_of(path: &Path) -> PathBuf {
    path.with_extension("idx")
}

/// An index of Megatron-LM that another user has put beside `path`, which does not belong to that user: it could say
/// anything of the tokens, and says nothing.
pub(super) fn put_beside(path: &Path) -> Option<PathBuf> {
    let at = index_of(path);
    let is_index = || matches!(mapped(&at), Ok(Some(_)));
    (is_put_beside(&at, path) && is_index()).then_some(at)
}

/// The file at this place, if it is an index of Megatron-LM.
fn mapped(at: &Path) -> Result<Option<Mmap>, DataError> {
    if !at.is_file() {
        return Ok(None);
    }
    let (_, map) = map(at)?;
    Ok(Some(map).filter(|map| map.starts_with(MAGIC)))
}

/// The index beside `path`, a file of `bytes` bytes; `None` if there is none of Megatron-LM, or one that another user
/// has put there.
///
/// # Errors
/// The index is damaged, belongs to another file or has tokens that cannot be read as one stream.
pub(super) fn index(path: &Path, bytes: usize) -> Result<Option<Index>, DataError> {
    let at = index_of(path);
    if is_put_beside(&at, path) {
        return Ok(None);
    }
    let Some(map) = mapped(&at)? else { return Ok(None) };
    let fault = |what: String| DataError::Megatron { path: path.into(), index: at.clone(), what };
    let header = parse(&map, bytes).map_err(fault)?;
    Ok(Some(Index { map, header }))
}

/// The layout of the tokens under an index.
pub(super) fn layout(index: &Index) -> Layout {
    let width = index.header.width;
    Layout { format: Format::Megatron { bits: 8 * width.bytes() as u32 }, offset: 0, width }
}

/// Checks an index against the size of its file of tokens, in bytes.
fn parse(bytes: &[u8], held: usize) -> Result<Header, String> {
    let ends = || format!("it ends after {} bytes, within its lists: copy it again", bytes.len());
    let header = bytes.get(..HEADER).ok_or_else(ends)?;
    let word = |at: usize| number(&header[at..at + 8]);
    if word(9) != 1 {
        return Err(format!("it has version {}, but only version 1 is known", word(9)));
    }
    let width = match header[17] {
        8 => Width::U16,
        4 => Width::I32,
        code => {
            let name = TYPES.iter().find(|(known, _)| *known == code).map_or("unknown", |(_, name)| name);
            return Err(format!(
                "its tokens have type {code} ({name}), but uint16 and int32 are read: write it again with GPT-2's \
                 vocabulary"
            ));
        }
    };
    let (sequences, boundaries) = (word(18), word(26));
    let size = u128::from(sequences) * 12 + u128::from(boundaries) * 8 + HEADER as u128;
    if size != bytes.len() as u128 {
        return Err(format!("its lists take {size} bytes, but it has {}: copy it again", bytes.len()));
    }
    // the sizes agree, so they fit an address
    let header = Header { width, sequences: sequences as usize, boundaries: boundaries as usize };
    let [lengths, pointers, documents] = header.lists(bytes);
    let mut at = 0;
    for (i, (length, pointer)) in lengths.chunks_exact(4).zip(pointers.chunks_exact(8)).enumerate() {
        if number(pointer) != at {
            return Err(format!(
                "sequence {i} begins at byte {}, not where the one before ends ({at}), and only sequences in order \
                 are read: write the data set again with tools/preprocess_data.py",
                number(pointer)
            ));
        }
        at += number(length) * width.bytes() as u64;
    }
    if at != held as u64 {
        return Err(format!(
            "its sequences take {at} bytes, but the file has {held}: one of the two is truncated or another data \
             set's, copy both again"
        ));
    }
    let mut before = None;
    for boundary in documents.chunks_exact(8).map(number) {
        if before.map_or(boundary != 0, |before| boundary < before) {
            return Err(NOT_DIVIDED.into());
        }
        before = Some(boundary);
    }
    if before == Some(sequences) { Ok(header) } else { Err(NOT_DIVIDED.into()) }
}

/// A little-endian number of at most eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An index of documents with these sequences, as Megatron-LM writes it.
    fn index_file(dtype: u8, width: u64, documents: &[&[u32]]) -> Vec<u8> {
        let lengths: Vec<u32> = documents.concat();
        let mut file = MAGIC.to_vec();
        file.extend(1u64.to_le_bytes());
        file.push(dtype);
        file.extend((lengths.len() as u64).to_le_bytes());
        file.extend((documents.len() as u64 + 1).to_le_bytes());
        file.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
        let mut at = 0u64;
        for length in &lengths {
            file.extend(at.to_le_bytes());
            at += u64::from(*length) * width;
        }
        let mut first = 0u64;
        file.extend(first.to_le_bytes());
        for document in documents {
            first += document.len() as u64;
            file.extend(first.to_le_bytes());
        }
        file
    }

    #[test]
    fn documents_are_sequences_between_boundaries() {
        for (dtype, width) in [(8, 2), (4, 4)] {
            let file = index_file(dtype, width, &[&[3, 4], &[], &[5]]);
            let header = parse(&file, 12 * width as usize).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(header.width.bytes() as u64, width);
            assert_eq!(header.documents(&file).collect::<Vec<_>>(), [7, 0, 5]);
        }
    }

    #[test]
    fn what_an_index_contradicts_is_named() {
        let good = index_file(8, 2, &[&[3], &[5]]);
        let refused = |bytes: &[u8], held| parse(bytes, held).err().expect("refused");
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            bytes
        };
        assert!(refused(&good, 18).contains("take 16 bytes, but the file has 18"));
        assert!(refused(&good[..20], 16).contains("ends after 20 bytes"));
        assert!(refused(&good[..good.len() - 1], 16).contains("its lists take"));
        assert!(refused(&changed(9, 2), 16).contains("version 2"));
        assert!(refused(&changed(17, 5), 16).contains("type 5 (int64)"));
        assert!(refused(&changed(17, 99), 16).contains("type 99 (unknown)"));
        // the second pointer, and the last boundary
        assert!(refused(&changed(HEADER + 16, 9), 16).contains("sequence 1 begins at byte 9"));
        assert!(refused(&changed(good.len() - 8, 1), 16).contains("do not divide"));
        assert!(refused(&changed(25, 0xff), 16).contains("its lists take"), "a huge count");
    }

    proptest! {
        #[test]
        fn no_change_of_an_index_makes_it_read_beyond_its_end(
            changes in prop::collection::vec((0usize..90, any::<u8>()), 1..4),
            cut in 0usize..90,
        ) {
            let mut file = index_file(8, 2, &[&[3, 2], &[5]]);
            for (at, to) in changes {
                let at = at % file.len();
                file[at] = to;
            }
            file.truncate(file.len() - if cut < 80 { 0 } else { cut % file.len() });
            if let Ok(header) = parse(&file, 20) {
                prop_assert_eq!(header.documents(&file).sum::<u64>() * header.width.bytes() as u64, 20);
            }
        }
    }
}
