//! Where the pages of a column lie, which the end of the file says.

use super::super::documents::no_field;
use super::thrift::{self, Item, LEAF, Wanted};
use super::{DICTIONARY, OVERLAP, PAGE, sizes, unreadable};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

pub(super) const MAGIC: &[u8; 4] = b"PAR1";
/// What is needed of the footer: the schema's types, repetitions, names and numbers of children, and of each column of
/// a group of rows its codec, number of values, sizes, and where its pages and its dictionary begin.
const FOOTER: Wanted = Wanted(&[
    (2, Wanted(&[(1, LEAF), (3, LEAF), (4, LEAF), (5, LEAF)])),
    (4, Wanted(&[(1, Wanted(&[(3, COLUMN)]))])),
]);
const COLUMN: Wanted = Wanted(&[(4, LEAF), (5, LEAF), (6, LEAF), (7, LEAF), (9, LEAF), (11, LEAF)]);
/// Parquet's number for byte arrays.
const BYTE_ARRAY: i64 = 6;

/// Bytes of pages that are held at a time while a column is read: a page, packed and not, and a dictionary.
///
/// Errors: what is wrong with the file, which reading it says as well.
pub(in super::super) fn held(file: File, field: &str) -> Result<u64, String> {
    let mut left = file.metadata().map_err(|error| error.to_string())?.len();
    // little besides headers is read
    let mut input = BufReader::with_capacity(1 << 10, file);
    let footer = read(&mut input, left)?;
    let column = Column::find(&footer, field)?;
    let groups = footer.list(4).iter();
    groups
        .map(|group| Chunk::of(group, &column)?.held(&mut input, &mut left))
        .try_fold(0, |most, held| Ok(held?.max(most)))
}

/// The description of the whole file, which stands at its end.
pub(super) fn read(input: &mut BufReader<File>, bytes: u64) -> Result<Item, String> {
    let damaged = |_| "it is not there: the file is no Parquet, or cut off; fetch it again".to_owned();
    let mut tail = [0; 8];
    input.seek(SeekFrom::End(-8)).and_then(|_| input.read_exact(&mut tail)).map_err(damaged)?;
    let [a, b, c, d, magic @ ..] = tail;
    let len = u64::from(u32::from_le_bytes([a, b, c, d]));
    if magic != *MAGIC || len + 12 > bytes {
        return Err(damaged(std::io::ErrorKind::InvalidData.into()));
    }
    input.seek(SeekFrom::Start(bytes - 8 - len)).map_err(damaged)?;
    thrift::structure(&mut input.take(len), FOOTER)
}

/// The column that holds the texts.
pub(super) struct Column {
    /// Its number among the leaves.
    index: usize,
    /// Whether a row may lack it.
    pub(super) is_optional: bool,
}

impl Column {
    pub(super) fn find(footer: &Item, field: &str) -> Result<Self, String> {
        let schema = footer.list(2);
        let (mut at, mut index, mut found) = (1, 0, None);
        let mut names = Vec::new();
        while let Some(element) = schema.get(at) {
            let name = element.text(4).unwrap_or_default();
            names.push(name);
            let end = subtree(schema, at);
            if name == field {
                let is_text = end == at + 1 && element.int(1) == Some(BYTE_ARRAY);
                let Some(repetition @ (0 | 1)) = element.int(3).filter(|_| is_text) else {
                    return Err(format!(
                        "its column `{field}` does not hold texts: choose another with --field"
                    ));
                };
                if found.replace(Self { index, is_optional: repetition == 1 }).is_some() {
                    return Err(format!("it has two columns `{field}`: which one is meant cannot be told"));
                }
            }
            let is_leaf = |element: &&Item| element.int(5).unwrap_or(0) == 0;
            index += schema[at..end].iter().filter(is_leaf).count();
            at = end;
        }
        found.ok_or_else(|| no_field(field, &names))
    }
}

/// The place behind an element of the schema and everything below it.
fn subtree(schema: &[Item], at: usize) -> usize {
    let (mut end, mut left) = (at, 1);
    while let Some(element) = schema.get(end).filter(|_| left > 0) {
        left = element.int(5).unwrap_or(0).max(0).saturating_add(left - 1);
        end += 1;
    }
    end
}

/// The pages of a column in a group of rows, as the footer describes them.
pub(super) struct Chunk {
    pub(super) codec: i64,
    pub(super) values: u64,
    /// Bytes of all pages, packed and not.
    bytes: u64,
    /// Where the first page begins.
    pub(super) begin: u64,
}

impl Chunk {
    pub(super) fn of(group: &Item, column: &Column) -> Result<Self, String> {
        let chunk = group.list(1).get(column.index).and_then(|chunk| chunk.get(3));
        let chunk = chunk.ok_or("its column is not described")?;
        let number = |id| chunk.int(id).and_then(|number| u64::try_from(number).ok());
        let values = number(5).ok_or("its column states no number of values")?;
        let data = number(9).ok_or("its column states no place")?;
        Ok(Self {
            codec: chunk.int(4).unwrap_or(-1),
            values,
            bytes: number(6).zip(number(7)).map_or(u64::MAX, |(full, packed)| full.saturating_add(packed)),
            begin: number(11).filter(|at| (4..data).contains(at)).unwrap_or(data),
        })
    }

    /// What [`held`] says of one group. Where all pages together are few bytes, no page is looked at.
    fn held(&self, input: &mut BufReader<File>, left: &mut u64) -> Result<u64, String> {
        const FEW: u64 = 4 << 20;
        if self.bytes <= FEW {
            return Ok(self.bytes);
        }
        input.seek(SeekFrom::Start(self.begin)).map_err(unreadable)?;
        let (mut values, mut dictionary, mut largest) = (0_u64, 0, 0);
        while values < self.values {
            let begin = input.stream_position().map_err(unreadable)?;
            let header = thrift::structure(input, PAGE)?;
            let (full, packed) = sizes(&header)?;
            let count = |id| header.get(id).and_then(|kind| u64::try_from(kind.int(1)?).ok()).unwrap_or(0);
            input.seek_relative(packed as i64).map_err(unreadable)?;
            let taken = input.stream_position().map_err(unreadable)? - begin;
            *left = left.checked_sub(taken).ok_or(OVERLAP)?;
            values = values.saturating_add(count(5).max(count(8)));
            largest = largest.max(full as u64 + packed as u64);
            if header.int(1) == Some(DICTIONARY) {
                dictionary = full as u64 + count(7).saturating_mul(size_of::<(u32, u32)>() as u64);
            }
        }
        Ok(dictionary.saturating_add(largest))
    }
}
