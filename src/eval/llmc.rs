//! llm.c's files of multiple choice: 256 little-endian 32-bit words, of which the first four are the magic number, the
//! version (1), the number of examples and the bytes of the longest one. An example is 16-bit words: 65535, its bytes,
//! its index, the label, the number of endings, then length and tokens of the context and of each ending.

use super::EvalError;
use super::task::{Encoded, Room};
use std::path::Path;

const MAGIC: i32 = 20_240_522;
const HEADER: usize = 1024;
const START: u16 = u16::MAX;

/// Whether these are the bytes of such a file.
pub(super) fn is_eval_file(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// The examples of a file that begins with the magic number.
pub(super) fn read(path: &Path, bytes: &[u8], room: &mut Room) -> Result<Vec<Encoded>, EvalError> {
    let no_task = |what: String| EvalError::NoTask { path: path.to_owned(), what };
    let word = |index: usize| {
        let bytes = bytes.get(4 * index..4 * index + 4)?.try_into().ok()?;
        Some(i32::from_le_bytes(bytes))
    };
    let (Some(1), Some(count)) = (word(1), word(2)) else {
        let version = word(1).map_or("none".to_owned(), |version| version.to_string());
        return Err(no_task(format!("llm.c's file of version {version}, but only version 1 is known")));
    };
    let Some(body) = bytes.get(HEADER..) else {
        return Err(no_task("llm.c's file, which ends inside its header: copy it again".into()));
    };
    if count <= 0 {
        return Err(EvalError::Empty { path: path.to_owned() });
    }
    let mut words = body.chunks_exact(2).map(|word| u16::from_le_bytes([word[0], word[1]]));
    let example = |example, problem: String| EvalError::Example { path: path.to_owned(), example, problem };
    (0..count as usize)
        .map(|index| {
            let encoded = one(&mut words, room).map_err(|problem| example(index, problem))?;
            Ok(Encoded { place: format!("example {index}"), ..encoded })
        })
        .collect()
}

fn one(words: &mut impl Iterator<Item = u16>, room: &mut Room) -> Result<Encoded, String> {
    let mut read = 0;
    let mut next = || {
        read += 1;
        words.next().ok_or("the file ends here: it is truncated, copy it again")
    };
    let start = next()?;
    if start != START {
        return Err(format!(
            "it begins with {start} and not with {START}: the file is damaged, copy it again"
        ));
    }
    let (bytes, _index, label, endings) = (next()?, next()?, next()?, next()?);
    if endings < 2 || label >= endings {
        return Err(format!("its label {label} is none of its {endings} endings, which are counted from 0"));
    }
    let mut tokens = || {
        let len = next()?;
        (0..len).map(|_| next().map(u32::from)).collect::<Result<Vec<u32>, _>>()
    };
    let context = tokens()?;
    let mut pairs = Vec::new();
    for _ in 0..endings {
        let ending = tokens()?;
        if ending.is_empty() {
            return Err("one of its endings has no token".into());
        }
        room.take(context.len() + ending.len())?;
        pairs.push((context.clone(), ending));
    }
    if 2 * read != usize::from(bytes) {
        return Err(format!(
            "it has {} bytes and declares {bytes}: the file is damaged, copy it again",
            2 * read
        ));
    }
    let characters = vec![0; pairs.len()];
    Ok(Encoded { pairs, characters, label: usize::from(label), place: String::new() })
}
