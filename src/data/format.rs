//! The formats of token files. The magic number decides; the extension decides only for files without one.

use super::appearance::looks_like;
use super::foreign::{refuse_headerless, refuse_llmc};
use super::llmc::{HEADER, MAGIC};
use super::{DataError, megatron};
use std::fmt;
use std::path::Path;

const NPY_MAGIC: &[u8] = b"\x93NUMPY";

/// The kind of a data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// llm.c's shard: a header of int32\[256\] (magic number, version 1, number of tokens), then 16-bit
    /// tokens.
    LlmC,
    /// A one-dimensional NumPy array of `<u2` or `<i4`, as build-nanogpt writes it.
    Npy,
    /// nanoGPT's file: 16-bit tokens without a header.
    Headerless,
    /// Megatron-LM's file: tokens without a header, beside an index that says how wide they are.
    Megatron {
        /// Bits of a token: 16 or 32.
        bits: u32,
    },
    /// Plain UTF-8 text, encoded with GPT-2's vocabulary.
    Text,
    /// Text that the program generates.
    Builtin,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::LlmC => "llm.c shard",
            Self::Npy => "npy array",
            Self::Headerless => "headerless 16-bit tokens",
            Self::Megatron { bits: 16 } => "Megatron-LM data of 16-bit tokens",
            Self::Megatron { .. } => "Megatron-LM data of 32-bit tokens",
            Self::Text => "text",
            Self::Builtin => "built-in text",
        })
    }
}

/// How a token is stored (little-endian).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    U16,
    I32,
}

impl Width {
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::I32 => 4,
        }
    }
}

/// Where a file's tokens are: from `offset` to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) format: Format,
    pub(super) offset: usize,
    pub(super) width: Width,
}

/// Finds the tokens in the file `path`, whose contents are `bytes`; `None` if it is text.
pub(super) fn recognize(path: &Path, bytes: &[u8]) -> Result<Option<Layout>, DataError> {
    refuse_llmc(path, bytes)?;
    let extension = path.extension().map(|e| e.to_ascii_lowercase());
    if bytes.is_empty() {
        Err(DataError::Empty { path: path.into() })
    } else if bytes.starts_with(&MAGIC.to_le_bytes()) {
        llmc(path, bytes).map(Some)
    } else if bytes.starts_with(NPY_MAGIC) {
        npy(path, bytes).map(Some)
    } else if extension.as_deref().is_some_and(|e| e == "txt") {
        Ok(None)
    } else if extension.as_deref().is_some_and(|e| e == "bin") {
        if let Some(index) = megatron::index(path, bytes.len())? {
            return Ok(Some(megatron::layout(&index)));
        }
        refuse_others(path, bytes)?;
        if bytes.len() % 2 == 1 {
            return Err(DataError::OddLength { path: path.into(), bytes: bytes.len() });
        }
        refuse_headerless(path, bytes)?;
        Ok(Some(Layout { format: Format::Headerless, offset: 0, width: Width::U16 }))
    } else {
        refuse_others(path, bytes)?;
        Err(DataError::UnknownFormat { path: path.into() })
    }
}

/// Refuses a file that is recognized as something else than tokens.
fn refuse_others(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    looks_like(bytes).map_or(Ok(()), |what| Err(DataError::NoTokens { path: path.into(), what }))
}

fn llmc(path: &Path, bytes: &[u8]) -> Result<Layout, DataError> {
    let path = path.to_path_buf();
    if bytes.len() < HEADER {
        return Err(DataError::TruncatedHeader { path, bytes: bytes.len() });
    }
    let (version, count) = (header_word(bytes, 1), header_word(bytes, 2));
    if version != 1 {
        return Err(DataError::Version { path, version });
    }
    let declared = u64::try_from(count).map_err(|_| DataError::TokenCount { path: path.clone(), count })?;
    let layout = Layout { format: Format::LlmC, offset: HEADER, width: Width::U16 };
    check_length(&path, bytes, layout, declared)
}

/// Word `index` of llm.c's header.
fn header_word(bytes: &[u8], index: usize) -> i32 {
    let word = bytes[4 * index..4 * index + 4].try_into().expect("four bytes were taken");
    i32::from_le_bytes(word)
}

fn check_length(path: &Path, bytes: &[u8], layout: Layout, declared: u64) -> Result<Layout, DataError> {
    let held = bytes.len() - layout.offset;
    let expected = u128::from(declared) * layout.width.bytes() as u128;
    if expected == held as u128 {
        Ok(layout)
    } else {
        Err(DataError::Length { path: path.into(), declared, expected, held })
    }
}

/// More bytes than the header of an array of numbers has: numpy's own have about a hundred.
const MOST_NPY_HEADER: usize = 1 << 16;

/// The npy format, version 1 to 3: magic, two version bytes, the header's length (16 bits in version 1, else 32), then
/// a Python dictionary literal with `descr`, `fortran_order` and `shape`.
fn npy(path: &Path, bytes: &[u8]) -> Result<Layout, DataError> {
    let damaged = |what: &str| DataError::Damaged {
        path: path.into(),
        detail: format!("its npy header {what}: save the array again with numpy.save"),
    };
    let truncated = || DataError::TruncatedHeader { path: path.into(), bytes: bytes.len() };
    let (length, start) = match bytes.get(6).ok_or_else(truncated)? {
        1 => (bytes.get(8..10).map(|b| u16::from_le_bytes([b[0], b[1]]) as usize), 10),
        2 | 3 => (bytes.get(8..12).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize), 12),
        other => return Err(damaged(&format!("version {other}"))),
    };
    let offset = start + length.ok_or_else(truncated)?;
    // a copy: others may write to a map, and what has been checked must not change
    let header = bytes.get(start..offset).ok_or_else(truncated)?;
    if header.len() > MOST_NPY_HEADER {
        return Err(damaged("its header is too long"));
    }
    let header = header.to_vec();
    let header = std::str::from_utf8(&header).map_err(|_| damaged("not text"))?;

    let descr = value(header, "descr").ok_or_else(|| damaged("no descr"))?;
    let width = match quoted(descr) {
        Some("<u2") => Width::U16,
        Some("<i4") => Width::I32,
        other => {
            // a structured type is a list instead of a string
            let found = other.map_or_else(|| "a structure".into(), |descr| format!("`{descr}`"));
            return Err(DataError::NpyType { path: path.into(), found });
        }
    };
    let shape = value(header, "shape").and_then(|v| v.strip_prefix('(')?.split_once(')'));
    let (shape, _) = shape.ok_or_else(|| damaged("no shape"))?;
    let mut dimensions = shape.split(',').map(str::trim).filter(|d| !d.is_empty());
    let (Some(declared), None) = (dimensions.next(), dimensions.next()) else {
        return Err(DataError::NpyShape { path: path.into(), found: format!("({shape})") });
    };
    let declared = declared.parse().map_err(|_| damaged(&format!("shape ({shape})")))?;
    check_length(path, bytes, Layout { format: Format::Npy, offset, width }, declared)
}

/// The text after the last `'key':` in a Python dictionary literal, which is the one that Python takes.
fn value<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) =
        header.rsplit_once(&format!("'{key}'")).or_else(|| header.rsplit_once(&format!("\"{key}\"")))?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

/// The string literal at the start of `text`.
fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|&c| c == '\'' || c == '"')?;
    text[1..].split_once(quote).map(|(inside, _)| inside)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An npy file as numpy.save writes it, with this header and payload.
    pub(in crate::data) fn npy_file(version: u8, header: &str, payload: &[u8]) -> Vec<u8> {
        let start = if version == 1 { 10 } else { 12 };
        let padding = 64 - (start + header.len() + 1) % 64;
        let header = format!("{header}{}\n", " ".repeat(padding));
        let mut file = [NPY_MAGIC, &[version, 0]].concat();
        match version {
            1 => file.extend((header.len() as u16).to_le_bytes()),
            _ => file.extend((header.len() as u32).to_le_bytes()),
        }
        file.extend(header.bytes());
        file.extend(payload);
        file
    }

    fn llmc_file(version: i32, count: i32, payload: usize) -> Vec<u8> {
        let mut file: Vec<u8> = [MAGIC, version, count].iter().flat_map(|w| w.to_le_bytes()).collect();
        file.resize(HEADER + payload, 0);
        file
    }

    fn layout(name: &str, bytes: &[u8]) -> Layout {
        recognize(Path::new(name), bytes).expect("recognized").expect("tokens")
    }

    fn message(name: &str, bytes: &[u8]) -> String {
        recognize(Path::new(name), bytes).expect_err("refused").to_string()
    }

    #[test]
    fn the_magic_number_decides() {
        let llmc = llmc_file(1, 3, 6);
        let npy = npy_file(1, "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }", &[0; 6]);
        for name in ["a.bin", "a.txt", "a.npy", "a"] {
            assert_eq!(layout(name, &llmc), Layout { format: Format::LlmC, offset: 1024, width: Width::U16 });
            assert_eq!(layout(name, &npy).format, Format::Npy);
        }
        assert_eq!(layout("a.BIN", &[1, 0, 2, 0]).format, Format::Headerless);
        assert_eq!(recognize(Path::new("a.txt"), b"text").expect("recognized"), None);
        assert!(message("a.npy", b"text").contains("neither a known magic number"));
        assert!(message("a", b"text").contains("`a` has neither"));
    }

    #[test]
    fn npy_headers_of_all_versions_and_types() {
        for version in 1..=3 {
            let header = "{'descr': '<i4', 'fortran_order': False, 'shape': (5,), }";
            let file = npy_file(version, header, &[0; 20]);
            let layout = layout("a.npy", &file);
            assert_eq!((layout.width, layout.offset), (Width::I32, file.len() - 20));
            assert_eq!(layout.offset % 64, 0);
        }
        // another writer's order, quotes and spacing
        let header = r#"{"shape":(2, ), "fortran_order":True , "descr" : "<u2"}"#;
        assert_eq!(layout("a.npy", &npy_file(1, header, &[0; 4])).width, Width::U16);
    }

    #[test]
    fn wrong_npy_arrays_are_refused() {
        let refuse = |header: &str, payload: usize| message("a.npy", &npy_file(1, header, &vec![0; payload]));
        assert!(refuse("{'descr': '<i8', 'shape': (1,)}", 8).contains("elements of type `<i8`"));
        assert!(refuse("{'descr': '>u2', 'shape': (1,)}", 2).contains("elements of type `>u2`"));
        assert!(refuse("{'descr': [('a', '<u2')], 'shape': (1,)}", 2).contains("a structure"));
        assert!(refuse("{'descr': '<u2', 'shape': (2, 3)}", 12).contains("shape (2, 3)"));
        assert!(refuse("{'descr': '<u2', 'shape': ()}", 2).contains("shape ()"));
        assert!(refuse("{'descr': '<u2', 'shape': (x,)}", 2).contains("damaged"));
        assert!(refuse("{'descr': '<u2'}", 2).contains("no shape"));
        assert!(refuse("{'shape': (1,)}", 2).contains("no descr"));
        let twice = refuse("{'descr': '<u2', 'shape': (1,), 'descr': '<i8'}", 2);
        assert!(twice.contains("elements of type `<i8`"), "Python takes the last: {twice}");
        assert!(
            refuse("{'descr': '<u2', 'shape': (3,)}", 4)
                .contains("declares 3 tokens in its header (6 bytes), but 4")
        );
        assert!(
            refuse("{'descr': '<u2', 'shape': (18446744073709551615,)}", 4)
                .contains("declares 18446744073709551615")
        );
        assert!(message("a.npy", b"\x93NUMPY\x09\0\0\0").contains("version 9"));
        assert!(
            message("a.npy", b"\x93NUMPY\x01\0\xff\x00{").contains("ends inside its header after 11 bytes")
        );
        assert!(message("a.npy", b"\x93NUMPY").contains("ends inside its header after 6 bytes"));
    }

    #[test]
    fn damaged_llmc_shards_are_refused() {
        assert!(message("a.bin", &llmc_file(2, 3, 6)).contains("version 2"));
        assert!(message("a.bin", &llmc_file(1, -3, 6)).contains("declares -3 tokens"));
        assert!(
            message("a.bin", &llmc_file(1, 3, 5))
                .contains("declares 3 tokens in its header (6 bytes), but 5 bytes")
        );
        assert!(message("a.bin", &llmc_file(1, 3, 8)).contains("but 8 bytes follow"));
        assert!(message("a.bin", &llmc_file(1, 3, 6)[..1000]).contains("after 1000 bytes"));
        for name in ["a.bin", "a.txt", "a"] {
            let questions = [&20_240_522_i32.to_le_bytes()[..], &[0; 2000]].concat();
            assert!(message(name, &questions).contains("HellaSwag"));
        }
    }

    #[test]
    fn odd_and_empty_files_are_refused() {
        assert!(message("a.bin", &[1, 2, 3]).contains("3 bytes, an odd number"));
        assert!(message("a.txt", &[]).contains("`a.txt` is empty"));
    }
}
