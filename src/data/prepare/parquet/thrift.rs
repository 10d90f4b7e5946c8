//! Thrift's compact protocol, as far as Parquet's headers need it: the fields that are asked for become plain values,
//! within bounds, and all others are passed over.
//!
//! Source: Apache Thrift, `doc/specs/thrift-compact-protocol.md`.

use std::io::Read;

/// Structures in structures; Parquet has fewer than ten.
const DEPTH: usize = 24;
/// A header is never longer.
const LONGEST: u64 = 64 << 20;
/// Values that are kept of a header. A column of a group of rows has eight.
const MOST: u32 = 1 << 20;

/// The fields of a structure that are kept, each with those of the structure, or of the list of structures, in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted(pub(super) &'static [(i16, Wanted)]);

/// A field without fields of its own.
pub(super) const LEAF: Wanted = Wanted(&[]);

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Item {
    Bool(bool),
    Int(i64),
    Bytes(Vec<u8>),
    List(Vec<Item>),
    Struct(Vec<(i16, Item)>),
    /// What is passed over: a field that nobody asked for, a floating-point number, a map.
    Other,
}

impl Item {
    /// A structure's field.
    pub(super) fn get(&self, id: i16) -> Option<&Self> {
        let Self::Struct(fields) = self else { return None };
        fields.iter().find(|(known, _)| *known == id).map(|(_, value)| value)
    }

    /// A structure's field that is a number.
    pub(super) fn int(&self, id: i16) -> Option<i64> {
        if let Self::Int(value) = self.get(id)? { Some(*value) } else { None }
    }

    /// A structure's field that is a list; empty where it is missing.
    pub(super) fn list(&self, id: i16) -> &[Self] {
        if let Some(Self::List(items)) = self.get(id) { items } else { &[] }
    }

    /// A structure's field that is a text.
    pub(super) fn text(&self, id: i16) -> Option<&str> {
        if let Self::Bytes(bytes) = self.get(id)? { std::str::from_utf8(bytes).ok() } else { None }
    }
}

/// Reads a structure.
pub(super) fn structure(input: &mut impl Read, wanted: Wanted) -> Result<Item, String> {
    Reader { input, left: LONGEST, most: MOST }.structure(DEPTH, Some(wanted))
}

struct Reader<'a, R> {
    input: &'a mut R,
    /// Bytes that may still be read: a header's lists and texts are bounded together.
    left: u64,
    /// Values that may still be kept.
    most: u32,
}

impl<R: Read> Reader<'_, R> {
    fn byte(&mut self) -> Result<u8, String> {
        self.left = self.left.checked_sub(1).ok_or("a header is longer than 64 MiB")?;
        let mut byte = [0];
        self.input.read_exact(&mut byte).map_err(|_| "a header is cut off")?;
        Ok(byte[0])
    }

    fn unsigned(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a header has a number of more than 64 bits".into())
    }

    fn signed(&mut self) -> Result<i64, String> {
        let value = self.unsigned()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn bytes(&mut self, is_kept: bool) -> Result<Item, String> {
        let len = self.unsigned()?;
        self.left = self.left.checked_sub(len).ok_or("a header has a text that is longer than 64 MiB")?;
        let mut input = self.input.by_ref().take(len);
        // memory grows with what is there, not with what is stated
        let mut bytes = Vec::new();
        let read = match is_kept {
            true => input.read_to_end(&mut bytes).map(|read| read as u64),
            false => std::io::copy(&mut input, &mut std::io::sink()),
        };
        if !read.is_ok_and(|read| read == len) {
            return Err("a header is cut off".into());
        }
        Ok(if is_kept { Item::Bytes(bytes) } else { Item::Other })
    }

    /// A structure; nothing of it is kept where nothing is wanted.
    fn structure(&mut self, depth: usize, wanted: Option<Wanted>) -> Result<Item, String> {
        let depth = depth.checked_sub(1).ok_or("a header has too many levels")?;
        let (mut fields, mut id) = (Vec::new(), 0i16);
        loop {
            let byte = self.byte()?;
            let (step, kind) = (byte >> 4, byte & 15);
            if kind == 0 {
                return Ok(Item::Struct(fields));
            }
            id = match step {
                0 => self.signed()? as i16,
                step => id.wrapping_add(i16::from(step)),
            };
            let inner =
                wanted.and_then(|Wanted(fields)| fields.iter().find(|(known, _)| *known == id)).map(|f| f.1);
            let value = match kind {
                1 => Item::Bool(true),
                2 => Item::Bool(false),
                kind => self.value(kind, depth, inner)?,
            };
            if inner.is_some() {
                self.keep()?;
                fields.push((id, value));
            }
        }
    }

    fn keep(&mut self) -> Result<(), String> {
        self.most = self.most.checked_sub(1).ok_or("a header describes too many columns")?;
        Ok(())
    }

    fn value(&mut self, kind: u8, depth: usize, wanted: Option<Wanted>) -> Result<Item, String> {
        let depth = depth.checked_sub(1).ok_or("a header has too many levels")?;
        Ok(match kind {
            1 | 2 => Item::Bool(self.byte()? == 1),
            3 => Item::Int(i64::from(self.byte()? as i8)),
            4..=6 => Item::Int(self.signed()?),
            7 => {
                for _ in 0..8 {
                    self.byte()?;
                }
                Item::Other
            }
            8 => self.bytes(wanted.is_some())?,
            9 | 10 => {
                let byte = self.byte()?;
                let count = if byte >> 4 == 15 { self.unsigned()? } else { u64::from(byte >> 4) };
                // each item has a byte at least, so damage cannot ask for more than there is
                let mut items = Vec::new();
                for _ in 0..count {
                    let item = self.value(byte & 15, depth, wanted)?;
                    if wanted.is_some() {
                        self.keep()?;
                        items.push(item);
                    }
                }
                Item::List(items)
            }
            11 => {
                let count = self.unsigned()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                for _ in 0..count {
                    self.value(kinds >> 4, depth, None)?;
                    self.value(kinds & 15, depth, None)?;
                }
                Item::Other
            }
            12 => self.structure(depth, wanted)?,
            other => return Err(format!("a header has a value of kind {other}, which there is not")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Wanted = Wanted(&[(1, LEAF), (2, LEAF), (3, LEAF), (4, LEAF), (5, Wanted(&[(1, LEAF)]))]);

    #[test]
    fn a_structure_is_read() {
        let bytes = [0x15, 0x02, 0x18, 2, b'h', b'i', 0x19, 0x25, 0x04, 0x01, 0x11, 0x1c, 0x12, 0, 0];
        let item = structure(&mut &bytes[..], ALL).expect("read");
        assert_eq!(
            (item.int(1), item.text(2), item.list(3)),
            (Some(1), Some("hi"), &[Item::Int(2), Item::Int(-1)][..])
        );
        assert_eq!(item.get(4), Some(&Item::Bool(true)));
        assert_eq!(item.get(5).and_then(|inner| inner.get(1)), Some(&Item::Bool(false)));
        for len in 0..bytes.len() {
            assert!(structure(&mut &bytes[..len], ALL).is_err(), "cut at {len}");
        }
        assert!(structure(&mut &[0x1c; 100][..], ALL).expect_err("deep").contains("levels"));
        let long = [0x18, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert!(structure(&mut &long[..], ALL).expect_err("long").contains("longer"));
    }

    #[test]
    fn what_is_not_wanted_is_passed_over() {
        let bytes = [0x15, 0x02, 0x18, 2, b'h', b'i', 0x19, 0x25, 0x04, 0x01, 0x15, 0x06, 0];
        let item = structure(&mut &bytes[..], Wanted(&[(1, LEAF), (4, LEAF)])).expect("read");
        assert_eq!(item, Item::Struct(vec![(1, Item::Int(1)), (4, Item::Int(3))]));
    }

    #[test]
    fn a_list_of_nothing_does_not_fill_the_memory() {
        // a list of 2^21 structures without a field, of one byte each
        let list = [&[0x19, 0xfc, 0x80, 0x80, 0x80, 0x01][..], &[0; 1 << 21], &[0]].concat();
        let problem = structure(&mut &list[..], Wanted(&[(1, LEAF)])).expect_err("too many");
        assert!(problem.contains("too many columns"), "{problem}");
        assert_eq!(structure(&mut &list[..], LEAF), Ok(Item::Struct(Vec::new())));
    }
}
