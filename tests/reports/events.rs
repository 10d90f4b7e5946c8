//! TensorBoard's event files, read by their definitions and without a line of the program: what its two readers make of
//! them.
//!
//! TensorBoard's reader in Python forgets the steps from a restart on; the quick one takes no notice of restarts, and
//! forgets the steps of a tag from the one on that comes again. Both must see the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What an event file shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Shown {
    /// The points of each tag: step, value and seconds since 1970.
    pub(crate) scalars: BTreeMap<String, Vec<(u64, f32, f64)>>,
    /// The texts of each tag with their steps.
    pub(crate) texts: BTreeMap<String, Vec<(u64, String)>>,
    /// The hyperparameters, as texts.
    pub(crate) hyperparameters: BTreeMap<String, String>,
    /// Whether the end of the run is noted as a success.
    pub(crate) has_ended: bool,
    /// The steps of the starts of sessions after the first one.
    pub(crate) restarts: Vec<u64>,
}

/// A value of a field.
#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Integer(u64),
    Bytes(&'a [u8]),
    Double(f64),
    Float(f32),
}

impl<'a> Value<'a> {
    fn bytes(self) -> &'a [u8] {
        let Self::Bytes(bytes) = self else { panic!("{self:?} is no text and no message") };
        bytes
    }

    fn text(self) -> String {
        String::from_utf8(self.bytes().to_vec()).expect("UTF-8")
    }
}

/// The fields of a message.
fn fields(mut rest: &[u8]) -> Vec<(u64, Value<'_>)> {
    fn varint(rest: &mut &[u8]) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = rest[0];
            *rest = &rest[1..];
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return number;
            }
        }
    }
    fn taken<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (taken, after) = rest.split_at(count);
        *rest = after;
        taken
    }
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let key = varint(&mut rest);
        let value = match key & 7 {
            0 => Value::Integer(varint(&mut rest)),
            1 => Value::Double(f64::from_le_bytes(taken(&mut rest, 8).try_into().expect("eight"))),
            2 => {
                let length = varint(&mut rest) as usize;
                Value::Bytes(taken(&mut rest, length))
            }
            5 => Value::Float(f32::from_le_bytes(taken(&mut rest, 4).try_into().expect("four"))),
            other => panic!("no field has the type {other}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn field<'a>(message: &'a [u8], number: u64) -> Option<Value<'a>> {
    fields(message).into_iter().find(|(found, _)| *found == number).map(|(_, value)| value)
}

/// CRC-32C bit by bit, masked.
fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The data of the records of a file; `None` if the last one is not whole.
fn records(mut rest: &[u8]) -> Option<Vec<&[u8]>> {
    let mut records = Vec::new();
    while !rest.is_empty() {
        let length = u64::from_le_bytes(rest.get(..8)?.try_into().expect("eight")) as usize;
        let whole = rest.get(..length + 16)?;
        assert_eq!(whole[8..12], checksum(&whole[..8]).to_le_bytes(), "the checksum of a length");
        let data = &whole[12..12 + length];
        assert_eq!(whole[12 + length..], checksum(data).to_le_bytes(), "the checksum of data");
        records.push(data);
        rest = &rest[length + 16..];
    }
    Some(records)
}

/// The event files in a directory, by name.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.to_string_lossy().contains(".tfevents.")).collect();
    paths.sort();
    paths
}

/// The only event file in a directory.
pub(crate) fn only_file(dir: &Path) -> PathBuf {
    let mut found = files(dir);
    assert_eq!(found.len(), 1, "{}: {found:?}", dir.display());
    found.remove(0)
}

/// What TensorBoard shows of a directory.
pub(crate) fn shown(dir: &Path) -> Shown {
    let bytes = fs::read(only_file(dir)).expect("an event file");
    of_file(&bytes).unwrap_or_else(|| panic!("{}: a torn record", dir.display()))
}

/// What TensorBoard shows of a directory that something writes to; `None` while there is nothing whole.
pub(crate) fn shown_so_far(dir: &Path) -> Option<Shown> {
    let bytes = fs::read(files(dir).first()?).ok().filter(|bytes| !bytes.is_empty())?;
    of_file(&bytes)
}

fn of_file(bytes: &[u8]) -> Option<Shown> {
    let records = records(bytes)?;
    let begins = records.first().and_then(|record| field(record, 3)).expect("a version");
    assert_eq!(begins.text(), "brain.Event:2");
    let (by_restarts, mut by_tags) = (read(&records, true), read(&records, false));
    by_tags.restarts.clone_from(&by_restarts.restarts);
    // NaN is a number like others here
    assert_eq!(format!("{by_restarts:?}"), format!("{by_tags:?}"), "the two readers disagree");
    for points in by_restarts.scalars.values() {
        assert!(points.is_sorted_by(|(a, ..), (b, ..)| a < b), "a step is there twice: {points:?}");
    }
    Some(by_restarts)
}

fn read(records: &[&[u8]], by_restarts: bool) -> Shown {
    let mut shown = Shown::default();
    for record in records {
        let Some(Value::Double(wall_time)) = field(record, 1) else { panic!("an event without a time") };
        let step = match field(record, 2) {
            Some(Value::Integer(step)) => step,
            _ => 0,
        };
        if let Some(log) = field(record, 7) {
            assert!(matches!(field(log.bytes(), 1), Some(Value::Integer(1))), "no start of a session");
            // the first one is that of the first session
            shown.restarts.push(step);
            if by_restarts && shown.restarts.len() > 1 {
                shown.scalars.values_mut().for_each(|points| points.retain(|(at, ..)| *at < step));
                shown.texts.values_mut().for_each(|texts| texts.retain(|(at, _)| *at < step));
            }
        }
        let summary = field(record, 5).map_or(&[][..], Value::bytes);
        for (number, value) in fields(summary) {
            assert_eq!(number, 1, "a summary has values");
            let value = value.bytes();
            let tag = field(value, 1).expect("a tag").text();
            if let Some(Value::Float(number)) = field(value, 2) {
                let points = shown.scalars.entry(tag).or_default();
                if !by_restarts {
                    points.retain(|(at, ..)| *at < step);
                }
                points.push((step, number, wall_time));
                continue;
            }
            let metadata = field(value, 9).expect("metadata").bytes();
            let data = field(metadata, 1).expect("the data of a plugin").bytes();
            let plugin = field(data, 1).expect("a name").text();
            let tensor = field(value, 8).expect("a tensor").bytes();
            match plugin.as_str() {
                "text" => {
                    assert!(matches!(field(tensor, 1), Some(Value::Integer(7))), "a tensor of texts");
                    let texts = shown.texts.entry(tag).or_default();
                    if !by_restarts {
                        texts.retain(|(at, _)| *at < step);
                    }
                    texts.push((step, field(tensor, 8).expect("a text").text()));
                }
                "hparams" => hyperparameters(field(data, 2).expect("a content").bytes(), &mut shown),
                other => panic!("no plugin is called {other}"),
            }
        }
    }
    shown.scalars.retain(|_, points| !points.is_empty());
    assert_eq!(shown.restarts.remove(0), 0, "a file begins with the start of a session");
    shown
}

fn hyperparameters(data: &[u8], shown: &mut Shown) {
    if let Some(end) = field(data, 4) {
        shown.has_ended = matches!(field(end.bytes(), 1), Some(Value::Integer(1)));
        return;
    }
    let start = field(data, 3).expect("the start of a session").bytes();
    for (number, entry) in fields(start) {
        if number != 1 {
            continue;
        }
        let name = field(entry.bytes(), 1).expect("a name").text();
        let value = match fields(field(entry.bytes(), 2).expect("a value").bytes())[0] {
            (2, Value::Double(number)) => number.to_string(),
            (3, text) => text.text(),
            (4, Value::Integer(flag)) => (flag == 1).to_string(),
            other => panic!("{name} is {other:?}"),
        };
        shown.hyperparameters.insert(name, value);
    }
}
