//! nanoGPT's `meta.pkl`: the characters that the tokens of a data set stand for.
//!
//! It is a dictionary with `vocab_size`, `itos` from ids to characters and `stoi` from characters to ids.

use super::pickle::{self, Object};
use crate::regular;
use std::io::Read;
use std::path::Path;

/// The file's name, beside `train.bin` and `val.bin`.
pub const META: &str = "meta.pkl";
/// A vocabulary of all characters that there are takes a few megabytes.
const MAX_BYTES: u64 = 16 << 20;

/// The characters that a `meta.pkl` lists, in the order of their ids; `None` for one without `itos`, as data sets of
/// GPT-2's tokens may have. Nothing in the file is executed.
///
/// # Errors
/// What is wrong with the file, without its name.
pub fn characters(path: &Path) -> Result<Option<Vec<char>>, String> {
    let mut bytes = Vec::new();
    let read = regular::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("it could not be read: {error}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err("it is too large for a vocabulary of characters".into());
    }
    if !pickle::begins(&bytes) {
        return Err("it is no pickle of protocol 2 to 5".into());
    }
    // what helps with weights does not help here
    let pickle =
        pickle::read(&bytes).map_err(|told| told.replace(&format!("; {}", pickle::SAVE_WEIGHTS), ""))?;
    let Some(list) = pickle.get(pickle.root, "itos") else { return Ok(None) };
    let Object::Dict(items) = pickle.object(list) else { return Err("its `itos` is no dictionary".into()) };
    let mut all = vec![None; items.len()];
    for (id, c) in items {
        let Object::Int(id) = *pickle.object(*id) else {
            return Err("its `itos` has an id that is no number".into());
        };
        let mut characters = pickle.text(*c).unwrap_or_default().chars();
        let (Some(c), None) = (characters.next(), characters.next()) else {
            return Err(format!("its `itos` has no single character for id {id}"));
        };
        match usize::try_from(id).ok().and_then(|id| all.get_mut(id)) {
            Some(place) if place.is_none() => *place = Some(c),
            _ => {
                return Err(format!(
                    "its `itos` does not number {} characters from 0 on: id {id}",
                    items.len()
                ));
            }
        }
    }
    Ok(Some(all.into_iter().flatten().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pickle.dumps({'vocab_size': 3, 'itos': {0: '\n', 1: 'a', 2: 'é'}, 'stoi': {...}})`, as Python 3.12 makes it.
    const NANOGPT: &[u8] = b"\x80\x04\x95I\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\nvocab_size\x94K\x03\x8c\x04itos\
        \x94}\x94(K\x00\x8c\x01\n\x94K\x01\x8c\x01a\x94K\x02\x8c\x02\xc3\xa9\x94u\x8c\x04stoi\x94}\x94(h\x04K\x00h\x05K\
        \x01h\x06K\x02uu.";

    fn read(bytes: &[u8]) -> Result<Option<Vec<char>>, String> {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join(META), bytes).expect("written");
        characters(&dir.path().join(META))
    }

    #[test]
    fn the_characters_are_read_in_the_order_of_their_ids() {
        assert_eq!(read(NANOGPT), Ok(Some(vec!['\n', 'a', 'é'])));
        // {'vocab_size': 50257}
        assert_eq!(read(b"\x80\x02}q\x00X\x0a\x00\x00\x00vocab_sizeq\x01MQ\xc4s."), Ok(None));
    }

    #[test]
    fn anything_else_is_refused() {
        // os.system("true")
        let problem = read(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.").expect_err("refused");
        assert!(problem.contains("names `os.system`"), "{problem}");
        let twice = NANOGPT.to_vec();
        let at = twice.windows(2).position(|pair| pair == b"K\x01").expect("id 1");
        let mut twice = twice;
        twice[at + 1] = 0;
        assert!(read(&twice).expect_err("refused").contains("does not number 3 characters"), "a gap");
        assert!(read(b"hello").expect_err("refused").contains("no pickle"));
        assert!(read(&NANOGPT[..40]).expect_err("refused").contains("cut off"));
    }
}
