//! How much of a log is taken, whatever it holds: its memory stays within a few times its size.

use crate::run::records::HEADER;
use std::borrow::Cow;

/// Rows that are handed out of any log, and bytes that each further one has on average at least. A row takes some
/// hundred bytes of memory once its numbers are held: rows of single digits would take fifty times the size of their
/// file.
pub(super) const FEW_ROWS: u64 = 1 << 16;
pub(super) const ROW_BYTES: u64 = 12;

/// How many rows may be handed out of a log, whether it is read at once or in pieces: those that are too many for the
/// bytes read so far count as malformed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Allowance {
    /// Bytes read behind the header, and rows handed out.
    bytes: u64,
    rows: u64,
}

impl Allowance {
    pub(super) fn grow(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Whether one more row may be handed out, which is counted then.
    pub(super) fn take(&mut self) -> bool {
        let is_left = self.rows < FEW_ROWS + self.bytes / ROW_BYTES;
        self.rows += u64::from(is_left);
        is_left
    }
}

/// Lines as long as a row may be, and how many were longer: a row of commas takes eight times its bytes of memory.
pub(super) fn without_long_lines(bytes: &[u8]) -> (Cow<'_, [u8]>, u64) {
    let is_short = |line: &&[u8]| line.len() <= HEADER;
    let lines = || bytes.split_inclusive(|&byte| byte == b'\n');
    let long = lines().filter(|line| !is_short(line)).count();
    if long == 0 {
        return (Cow::Borrowed(bytes), 0);
    }
    let mut kept = Vec::new();
    lines().filter(is_short).for_each(|line| kept.extend_from_slice(line));
    (Cow::Owned(kept), long as u64)
}

/// Whether the first record of a log, which names its columns, ends where one may at the latest. In quotes it could go
/// on over all lines, and names take many times their bytes of memory.
pub(super) fn has_header(bytes: &[u8]) -> bool {
    let beginning = &bytes[..bytes.len().min(HEADER)];
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(beginning);
    let is_read = reader.read_byte_record(&mut csv::ByteRecord::new()).is_ok();
    is_read && (beginning.len() == bytes.len() || reader.position().byte() < beginning.len() as u64)
}
