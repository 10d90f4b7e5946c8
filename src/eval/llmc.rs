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
pub(super) fn read<'a>(
    path: &'a Path,
    bytes: &'a [u8],
    mut room: Room,
) -> Result<impl Iterator<Item = Result<Encoded, EvalError>> + 'a, EvalError> {
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
    Ok((0..count as usize).map(move |index| {
        let encoded =
            one(&mut words, &mut room).map(|one| Encoded { place: format!("example {index}"), ..one });
        encoded.map_err(|problem| EvalError::Example { path: path.to_owned(), example: index, problem })
    }))
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
    let (bytes, _index, label, count) = (next()?, next()?, next()?, next()?);
    if count < 2 || label >= count {
        return Err(format!("its label {label} is none of its {count} endings, which are counted from 0"));
    }
    let mut tokens = || {
        let len = next()?;
        (0..len).map(|_| next().map(u32::from)).collect::<Result<Vec<u32>, _>>()
    };
    let context = tokens()?;
    let (mut endings, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let ending = tokens()?;
        if ending.is_empty() {
            return Err("one of its endings has no token".into());
        }
        room.take(context.len(), ending.len())?;
        endings.extend(ending);
        ends.push((endings.len(), 0));
    }
    if 2 * read != usize::from(bytes) {
        return Err(format!(
            "it has {} bytes and declares {bytes}: the file is damaged, copy it again",
            2 * read
        ));
    }
    Ok(Encoded { context, endings, ends, label: usize::from(label), place: String::new() })
}
