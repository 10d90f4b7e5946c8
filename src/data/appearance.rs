//! What a file that holds no tokens looks like, by its first bytes.
//!
//! A download may leave an error page, and an archive may have a data file's name. Read as 16-bit tokens they would be
//! trained on as garbage. What is recognized here cannot be tokens but by a chance below one in a billion.

/// A file is taken for text only if at least this much of its beginning is text.
const ENOUGH_TEXT: usize = 64;
/// No more of a file is looked at.
const SAMPLE: usize = 4096;

/// Signatures, with what has them and what helps.
const SIGNATURES: &[(&[u8], &str)] = &[
    (b"\x28\xb5\x2f\xfd", "a file that zstd has compressed: unpack it first, with zstd -d"),
    (b"PK\x03\x04", "a zip archive, as NumPy's .npz and PyTorch's files are: take the arrays out of it"),
    (b"PAR1", "a Parquet table, which holds text or columns: tokenize its text first"),
    (b"ARROW1", "an Arrow table, which holds text or columns: tokenize its text first"),
    (b"\xfd7zXZ\0", "a file that xz has compressed: unpack it first, with xz -d"),
    (b"BZh91AY&SY", "a file that bzip2 has compressed: unpack it first, with bzip2 -d"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file: save its tokens with numpy.save"),
    (b"MMIDIDX\0\0", "Megatron-LM's index: name the .bin file beside it"),
    (b"GGUF", "a model in llama.cpp's format: weights are no data"),
];

/// What the bytes of a file say it is, with what to do about it; `None` if they may be tokens.
pub(super) fn looks_like(bytes: &[u8]) -> Option<&'static str> {
    looks_binary(bytes).or_else(|| as_text(bytes))
}

/// As [`looks_like`], for a file that is not text.
pub(super) fn looks_binary(bytes: &[u8]) -> Option<&'static str> {
    let found = SIGNATURES.iter().find(|(signature, _)| bytes.starts_with(signature));
    found.map(|(_, what)| *what).or_else(|| gzip(bytes)).or_else(|| pickle(bytes))
}

/// RFC 1952: two magic bytes, the method, flags, a time, extra flags, and the system.
fn gzip(bytes: &[u8]) -> Option<&'static str> {
    let header = bytes.get(..10)?;
    let is = header.starts_with(&[0x1f, 0x8b, 8]) && header[3] < 0x20 && matches!(header[8], 0 | 2 | 4);
    is.then_some("a file that gzip has compressed: unpack it first, with gzip -d")
}

/// Python's pickle: PROTO, a version, the opcode of a container, a frame or a name, and STOP at the end.
fn pickle(bytes: &[u8]) -> Option<&'static str> {
    let opcodes = if bytes.get(1)? < &4 { &b"}](cX"[..] } else { &b"\x95"[..] };
    let is = bytes[0] == 0x80
        && (2..=5).contains(&bytes[1])
        && opcodes.contains(bytes.get(2)?)
        && bytes.last() == Some(&b'.');
    is.then_some(
        "a file of pickled Python objects, which could run any code: save the tokens with numpy.save",
    )
}

fn as_text(bytes: &[u8]) -> Option<&'static str> {
    // a copy: others may write to a map, and what has been checked must not change
    let sample = bytes[..bytes.len().min(SAMPLE)].to_vec();
    // a character may be cut at the end of the sample
    let text = match std::str::from_utf8(&sample) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&sample[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    if text.chars().any(|c| c.is_control() && !c.is_whitespace()) {
        return None;
    }
    let start = text.trim_start_matches('\u{feff}').trim_start();
    let begins = |with: &str| start.get(..with.len()).is_some_and(|head| head.eq_ignore_ascii_case(with));
    if begins("<!doctype html") || begins("<html") {
        return Some("a web page, most likely a server's error message: download the file again");
    }
    if begins("<?xml") || begins("<Error>") {
        return Some("an XML document, most likely a server's error message: download the file again");
    }
    if begins("version https://git-lfs.github.com/") {
        return Some("a pointer of Git LFS and not the file itself: get that with git lfs pull");
    }
    if sample.len() < ENOUGH_TEXT {
        return None;
    }
    match start.bytes().next() {
        Some(b'{' | b'[') => {
            Some("JSON, which holds text or a server's error message: tokenize its text first")
        }
        _ => Some("plain text: rename it to .txt, and it is tokenized when it is used"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_token_file_is_named() {
        let gzip = [0x1f, 0x8b, 8, 0, 1, 2, 3, 4, 0, 3, 77, 88];
        let long = "All the world's a stage, and all the men and women merely players. ".repeat(4);
        for (bytes, what) in [
            (&b"<!DOCTYPE html><html><head>"[..], "a web page"),
            (b"\n <HTML>\n<body>404", "a web page"),
            (b"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>", "an XML document"),
            (&gzip, "gzip"),
            (b"\x28\xb5\x2f\xfd\x04\x00", "zstd"),
            (b"PK\x03\x04\x14\0", "zip"),
            (b"PAR1\x15\x04", "Parquet"),
            (b"\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94.", "pickled"),
            (b"\x80\x02}q\0(X\x05\0\0\0tokens.", "pickled"),
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "Git LFS"),
            (b"MMIDIDX\0\0\x01\0", "Megatron-LM's index"),
            (long.as_bytes(), "plain text"),
            (format!("{{\"text\": \"{long}\"}}").as_bytes(), "JSON"),
            // the sample ends within a character
            (&[b"x".as_slice(), "é".repeat(4000).as_bytes()].concat(), "plain text"),
        ] {
            let found = looks_like(bytes).unwrap_or_else(|| panic!("{bytes:?} was not recognized as {what}"));
            assert!(found.contains(what), "{found} for {what}");
        }
    }

    proptest! {
        #[test]
        fn tokens_are_never_taken_for_anything_else(
            tokens in prop::collection::vec(0u16..50_257, 100..1000),
            characters in prop::collection::vec(0u16..65, 1..1000),
        ) {
            for tokens in [tokens, characters] {
                let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
                prop_assert_eq!(looks_like(&bytes), None);
            }
        }
    }
}
