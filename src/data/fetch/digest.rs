//! The digests by which servers name contents.

use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};

/// Bytes that are hashed at a time.
const CHUNK: usize = 1 << 20;

/// What a file must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// SHA-256 of the contents, by which Git LFS names large files.
    Sha256([u8; 32]),
    /// SHA-1 of `blob`, the size and the contents, by which Git names small files. It tells damage, not malice.
    GitBlob([u8; 20]),
}

impl Digest {
    /// A digest of 64 or 40 hexadecimal digits; `None` for anything else.
    #[must_use]
    pub const fn parse(hex: &str) -> Option<Self> {
        match hex.len() {
            64 => match decode(hex.as_bytes()) {
                Some(bytes) => Some(Self::Sha256(bytes)),
                None => None,
            },
            40 => match decode(hex.as_bytes()) {
                Some(bytes) => Some(Self::GitBlob(bytes)),
                None => None,
            },
            _ => None,
        }
    }

    /// The digest of the same kind of a file, from where it stands.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn of(self, mut file: File) -> io::Result<Self> {
        Ok(match self {
            Self::Sha256(_) => {
                let mut hasher = Sha256::new();
                feed(&mut file, |bytes| hasher.update(bytes))?;
                Self::Sha256(hasher.finalize().into())
            }
            Self::GitBlob(_) => {
                let mut hasher = Sha1::new();
                hasher.update(format!("blob {}\0", file.metadata()?.len()));
                feed(&mut file, |bytes| hasher.update(bytes))?;
                Self::GitBlob(hasher.finalize().into())
            }
        })
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (name, bytes) = match self {
            Self::Sha256(bytes) => ("sha256:", &bytes[..]),
            Self::GitBlob(bytes) => ("git:", &bytes[..]),
        };
        f.write_str(name)?;
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn feed(file: &mut File, mut update: impl FnMut(&[u8])) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(read) => update(&chunk[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

const fn decode<const N: usize>(hex: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let mut i = 0;
    while i < N {
        let (Some(high), Some(low)) = (nibble(hex[2 * i]), nibble(hex[2 * i + 1])) else { return None };
        bytes[i] = high << 4 | low;
        i += 1;
    }
    Some(bytes)
}

const fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_usual_tools() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "hello\n").expect("written");
        // printf 'hello\n' | sha256sum; git hash-object
        for hex in [
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
            "ce013625030ba8dba906f756967f9e9ca394464a",
        ] {
            let wanted = Digest::parse(hex).expect("a digest");
            assert_eq!(wanted.of(file.reopen().expect("open")).expect("read"), wanted);
            assert!(wanted.to_string().ends_with(hex));
        }
        for wrong in ["", "5891", &"g".repeat(64), &"é".repeat(20)] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }
}
