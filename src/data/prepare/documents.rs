//! Documents of files of text, one after the other, in parts that can be encoded by themselves.

use super::PrepareError;
use super::bounds::{self, Allowance};
use super::field::{Field, Found};
use super::parquet;
use super::sources::{Packing, Shape, TextFile};
use super::zstd::Frames;
use crate::data::{DataError, Tokenizer};
use crate::json;
use crate::wording::shortened;
use serde::de::DeserializeSeed;
use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::Path;

/// Bytes of a part of a long document, at least.
const PART: usize = 256 << 10;
/// Bytes that are read at a time.
const BLOCK: usize = 64 << 10;

/// A part of a document.
pub(super) struct Part<'a> {
    pub(super) text: &'a str,
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

/// Takes parts in order; a break ends the reading.
pub(super) type Take<'a> = &'a mut dyn FnMut(Part) -> ControlFlow<()>;

/// How documents are told apart.
#[derive(Debug, Clone)]
pub(super) struct Reading<'a> {
    /// What has the text, in lines and tables.
    pub(super) field: &'a str,
    /// What stands between documents of a text file.
    pub(super) split_on: Option<&'a str>,
    /// Says where a text may be cut.
    pub(super) tokenizer: &'a Tokenizer,
}

/// Counts and digests the bytes that are read.
struct Counted<'a, R> {
    inner: R,
    advance: &'a dyn Fn(u64),
    hasher: &'a RefCell<blake3::Hasher>,
}

/// Ends where a packed file unfolds to more than text does.
struct Bounded<R> {
    inner: R,
    allowance: Allowance,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(out)?;
        self.allowance.take(read).map_err(std::io::Error::other)?;
        Ok(read)
    }
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(out)?;
        self.hasher.borrow_mut().update(&out[..read]);
        (self.advance)(read as u64);
        Ok(read)
    }
}

impl Reading<'_> {
    /// Hands out all documents of a file. `advance` is told about the bytes of the file that were read. Gives the
    /// blake3 of what was read, if `take` has taken all of it; `None` for a table, which is not read from end to end.
    pub(super) fn documents(
        &self,
        file: &TextFile,
        open: File,
        advance: &dyn Fn(u64),
        take: Take,
    ) -> Result<Option<blake3::Hash>, PrepareError> {
        let path = file.path();
        if file.shape == Shape::Parquet {
            parquet::texts(path, open, self.field, advance, &mut |text| self.whole(text, take))?;
            return Ok(None);
        }
        let hasher = &RefCell::new(blake3::Hasher::new());
        let counted = Counted { inner: open, advance, hasher };
        let packed = |inner| Bounded { inner, allowance: Allowance::of(file.bytes) };
        match file.packing {
            Packing::Plain => self.unpacked(file, counted, take)?,
            Packing::Gzip => {
                let input = flate2::read::MultiGzDecoder::new(BufReader::with_capacity(BLOCK, counted));
                self.unpacked(file, packed(Box::new(input) as Box<dyn Read>), take)?;
            }
            Packing::Zstd => {
                let input = Frames::new(BufReader::with_capacity(BLOCK, counted));
                self.unpacked(file, packed(Box::new(input)), take)?;
            }
        }
        Ok(Some(hasher.borrow().finalize()))
    }

    fn unpacked(&self, file: &TextFile, input: impl Read, take: Take) -> Result<(), PrepareError> {
        let longest = match file.packing {
            Packing::Plain => bounds::LONGEST,
            _ => bounds::longest(file.bytes),
        };
        match file.shape {
            Shape::Text => self.text(file.path(), longest, input, take),
            _ => self.lines(file.path(), longest, input, take),
        }
    }

    /// Hands out a document that is there as a whole.
    fn whole(&self, text: &str, take: Take) -> ControlFlow<()> {
        let (mut rest, mut is_first) = (text, true);
        while let Some(at) = self.tokenizer.cut(rest, PART).filter(|_| rest.len() > PART) {
            let (head, tail) = rest.split_at(at);
            take(Part { text: head, is_first, is_last: false })?;
            (rest, is_first) = (tail, false);
        }
        take(Part { text: rest, is_first, is_last: true })
    }

    fn lines(&self, path: &Path, longest: usize, input: impl Read, take: Take) -> Result<(), PrepareError> {
        let mut input = BufReader::with_capacity(BLOCK, input);
        let (mut line, mut number) = (Vec::new(), 0u64);
        loop {
            line.clear();
            number += 1;
            let problem = |problem: String| PrepareError::Document {
                path: path.into(),
                place: format!("line {number}"),
                problem,
            };
            let read = input.by_ref().take(longest as u64 + 1).read_until(b'\n', &mut line);
            if read.map_err(|error| unreadable(path, error))? == 0 {
                return Ok(());
            }
            if line.len() > longest {
                let advice = bounds::advice(longest);
                return Err(problem(format!("it is longer than {advice}; a JSON object per line is needed")));
            }
            let json = if number == 1 { json::without_mark(&line) } else { &line };
            if json.trim_ascii().is_empty() {
                continue;
            }
            let text = self.field_of(json).map_err(problem)?;
            if self.whole(&text, take).is_break() {
                return Ok(());
            }
            // one huge line must not be remembered for ever
            line.shrink_to(4 * PART);
        }
    }

    /// The text of a line.
    fn field_of(&self, line: &[u8]) -> Result<String, String> {
        let line = std::str::from_utf8(line)
            .map_err(|error| format!("it is not UTF-8 at byte {}", error.valid_up_to()))?;
        // the end of an unfinished object has a column where no line follows
        let mut input = serde_json::Deserializer::from_str(line.trim_end());
        let found = Field(self.field).deserialize(&mut input).and_then(|found| input.end().map(|()| found));
        match found {
            Ok(Found::Text(text)) => Ok(text),
            Ok(Found::Other(kind)) => {
                Err(format!("its field `{}` is {kind}, not a text: choose another with --field", self.field))
            }
            Ok(Found::Missing(fields)) => {
                Err(no_field(self.field, &fields.iter().map(String::as_str).collect::<Vec<_>>()))
            }
            Err(error) => {
                // the place in the file is known better than serde_json knows it
                let told = error.to_string();
                let what = told.rsplit_once(" at line ").map_or(&told[..], |(what, _)| what);
                Err(format!("it is no JSON object at column {}: {what}", error.column()))
            }
        }
    }

    fn text(
        &self,
        path: &Path,
        longest: usize,
        mut input: impl Read,
        take: Take,
    ) -> Result<(), PrepareError> {
        let mut text =
            Documents { reading: self, text: String::new(), searched: 0, uncut: 0, is_first: true };
        let (mut block, mut filled) = (vec![0; BLOCK], 0);
        let mut offset = 0;
        loop {
            let read = match input.read(&mut block[filled..]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                read => read.map_err(|error| unreadable(path, error))?,
            };
            let bytes = &block[..filled + read];
            let valid = match std::str::from_utf8(bytes) {
                Ok(valid) => valid.len(),
                // a character that the block cuts in two
                Err(error) if error.error_len().is_none() && read > 0 => error.valid_up_to(),
                Err(error) => {
                    let offset = offset + error.valid_up_to();
                    return Err(DataError::NotUtf8 { path: path.into(), offset }.into());
                }
            };
            text.text.push_str(std::str::from_utf8(&bytes[..valid]).expect("just checked"));
            let end = bytes.len();
            block.copy_within(valid..end, 0);
            (filled, offset) = (end - valid, offset + valid);
            if text.text.len() > longest {
                let place = format!("from byte {} on", offset - text.text.len());
                let advice = bounds::advice(longest);
                let problem = format!("a text without a place to cut it is longer than {advice}");
                return Err(PrepareError::Document { path: path.into(), place, problem });
            }
            if text.hand_out(read == 0, take).is_break() || read == 0 {
                return Ok(());
            }
        }
    }
}

/// What was read of a text file and not handed out yet.
struct Documents<'a> {
    reading: &'a Reading<'a>,
    text: String,
    /// No separator begins before this byte.
    searched: usize,
    /// There is no place to cut between `PART` and this byte.
    uncut: usize,
    is_first: bool,
}

impl Documents<'_> {
    /// Hands out what is complete.
    fn hand_out(&mut self, is_end: bool, take: Take) -> ControlFlow<()> {
        let mut start = 0;
        // what may be the beginning of a separator stays
        let mut kept = 0;
        if let Some(separator) = self.reading.split_on {
            let finder = memchr::memmem::Finder::new(separator);
            while let Some(at) = finder.find(&self.text.as_bytes()[self.searched..]) {
                let end = self.searched + at;
                // nothing between two separators is no document
                if end > start || !self.is_first {
                    self.give(start..end, true, take)?;
                }
                start = end + separator.len();
                (self.searched, self.uncut) = (start, start);
            }
            kept = separator.len() - 1;
            self.searched = self.text.floor_char_boundary(self.text.len().saturating_sub(kept)).max(start);
        }
        if is_end {
            if start < self.text.len() || !self.is_first {
                self.give(start..self.text.len(), true, take)?;
            }
            self.text.clear();
            return ControlFlow::Continue(());
        }
        let usable = self.text.floor_char_boundary(self.text.len().saturating_sub(kept)).max(start);
        while usable - start > 2 * PART {
            let from = (start + PART).max(self.uncut);
            let Some(at) = self.reading.tokenizer.cut(&self.text[..usable], from) else {
                self.uncut = usable;
                break;
            };
            self.give(start..at, false, take)?;
            start = at;
        }
        self.text.drain(..start);
        self.searched = self.searched.saturating_sub(start);
        self.uncut = self.uncut.saturating_sub(start);
        ControlFlow::Continue(())
    }

    fn give(&mut self, part: std::ops::Range<usize>, is_last: bool, take: Take) -> ControlFlow<()> {
        let is_first = std::mem::replace(&mut self.is_first, is_last);
        take(Part { text: &self.text[part], is_first, is_last })
    }
}

/// What is said where a field is missing.
pub(super) fn no_field(field: &str, fields: &[&str]) -> String {
    match fields {
        [] => format!("it has no field `{field}`, and no other"),
        _ => {
            let fields: Vec<String> = fields.iter().take(20).map(|name| shortened(name, 80)).collect();
            format!("it has no field `{field}`: choose one of {} with --field", fields.join(", "))
        }
    }
}

/// A file that cannot be read, or not be unpacked.
fn unreadable(path: &Path, error: std::io::Error) -> PrepareError {
    if error.raw_os_error().is_some() {
        return DataError::Read { path: path.into(), error }.into();
    }
    let problem = format!("it cannot be unpacked: {error}; the file is damaged or cut off, fetch it again");
    PrepareError::Document { path: path.into(), place: "its compressed contents".into(), problem }
}

#[cfg(test)]
mod tests;
