//! The digest of a log, kept up while the log grows, and holding a log against the digest that it must have.
//!
//! A checkpoint states which logs led to it. A run goes on only from these: rows that were lost, edited or exchanged
//! would make a finished run that looks whole.

use super::columns::LOGS;
use super::digest::{self, FileDigest};
use super::error::Context;
use super::records::read_or_empty;
use super::{RunError, RunRecord, cut, dir};
use crate::regular;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::path::Path;

/// Columns of a log, at most, of which some may have been added.
const MOST_COLUMNS: usize = 256;

/// The digest of a file that only grows.
#[derive(Debug, Clone)]
pub(super) struct Growing {
    bytes: u64,
    hasher: blake3::Hasher,
}

impl Growing {
    /// Of a file that holds this much so far.
    pub(super) fn new(contents: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(contents);
        Self { bytes: contents.len() as u64, hasher }
    }

    /// Takes in what is appended.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// The size of the file in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The digest of what the file holds now.
    pub(super) fn digest(&self) -> FileDigest {
        FileDigest { bytes: self.bytes, blake3: self.hasher.finalize().to_hex().to_string() }
    }
}

/// The bytes of a log, none if it does not exist; holes, which no log of this program has, make it another one.
fn without_holes(path: &Path) -> Result<Vec<u8>, RunError> {
    let mut bytes = Vec::new();
    match regular::read_without_holes(path, &mut bytes) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map(|()| bytes).context("read", path),
    }
}

/// Whether a file begins with exactly what has this digest. A text that a model generates may have any zeros in it, but
/// no holes: of a file that others have made, those take no place on a disk and long to read.
fn begins_with(path: &Path, expected: &FileDigest) -> Result<bool, RunError> {
    let file = match regular::open_unlinked(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(expected.bytes == 0),
        opened => opened.context("read", path)?,
    };
    let is_short = file.metadata().context("read", path)?.len() < expected.bytes;
    if is_short || expected.bytes > regular::LOG || regular::has_hole_before(&file, expected.bytes) {
        return Ok(false);
    }
    Ok(digest::of_reader(file.take(expected.bytes)).context("read", path)? == *expected)
}

/// Checks that a log begins with what has this digest; rows may follow. Empty columns that were added since do not
/// count.
///
/// Errors: [`RunError::Log`] says how it differs.
pub fn verify_beginning(path: &Path, expected: &FileDigest) -> Result<(), RunError> {
    if begins_with(path, expected)? || beginning(&without_holes(path)?, expected).is_some() {
        return Ok(());
    }
    let problem = match path.metadata().map(|found| found.len()) {
        Err(_) => "it is gone".to_owned(),
        Ok(found) if found < expected.bytes => {
            format!("it has {found} of the {} bytes that were written", expected.bytes)
        }
        Ok(_) => format!("its first {} bytes were changed", expected.bytes),
    };
    Err(RunError::Log { path: path.to_owned(), problem })
}

/// The part of a log with which it begins and that has this digest, once columns that were added since, and are
/// empty in it, are left out.
pub(super) fn beginning<'f>(found: &'f [u8], expected: &FileDigest) -> Option<&'f [u8]> {
    let length = usize::try_from(expected.bytes).unwrap_or(usize::MAX);
    let same = found.get(..length)?;
    if Growing::new(same).digest() == *expected {
        return Some(same);
    }
    let lines = || found.split_inclusive(|byte| *byte == b'\n');
    let columns = lines().next().map_or(0, |header| header.split(|byte| *byte == b',').count());
    // a log of ours has some tens of columns; of a line of thousands each number would be tried
    (1..columns.min(MOST_COLUMNS)).find_map(|kept| {
        let (mut narrow, mut wide) = (Vec::with_capacity(length), 0);
        for line in lines() {
            let mut cells = line.trim_ascii_end().split(|byte| *byte == b',');
            let own: Vec<&[u8]> = cells.by_ref().take(kept).collect();
            // what was measured before a column was added is not known in it
            if wide > 0 && cells.any(|added| !added.is_empty()) {
                return None;
            }
            narrow.extend(own.join(&b","[..]));
            narrow.push(b'\n');
            wide += line.len();
            if narrow.len() >= length {
                break;
            }
        }
        (narrow.len() == length && Growing::new(&narrow).digest() == *expected).then(|| &found[..wide])
    })
}

/// Checks that a log is what has this digest, and nothing more.
///
/// Errors: [`RunError::Log`] says how it differs.
pub fn verify_whole(path: &Path, expected: &FileDigest) -> Result<(), RunError> {
    verify_beginning(path, expected)?;
    let more = path.metadata().context("read", path)?.len().saturating_sub(expected.bytes);
    if more == 0 {
        return Ok(());
    }
    let problem = format!("it has {more} bytes after the {} that were written", expected.bytes);
    Err(RunError::Log { path: path.to_owned(), problem })
}

/// Checks that a training log has one row for each of these steps. (A run that branched off another one begins at that
/// one's step.)
///
/// Errors: [`RunError::Log`] with the number of rows; [`RunError::Malformed`] for a row that cannot be read.
pub fn verify_rows(path: &Path, steps: Range<u64>) -> Result<(), RunError> {
    let (kept, _) = cut::cut(path, &read_or_empty(path)?, steps.end)?;
    let count = steps.end.saturating_sub(steps.start);
    let last = steps.end.checked_sub(1).filter(|_| count > 0);
    if (kept.rows, kept.last_step) == (count, last) {
        return Ok(());
    }
    Err(RunError::Log {
        path: path.to_owned(),
        problem: format!("it has {} rows for {count} steps", kept.rows),
    })
}

/// Checks that a finished run's logs are those that it was finished with, or, where an earlier version finished it,
/// that the training log has a row for each step.
///
/// Errors: [`RunError::Log`]; [`RunError::Malformed`] for a row that cannot be read.
pub fn verify_finished(run_dir: &Path, record: &RunRecord) -> Result<(), RunError> {
    if !record.files.contains_key(dir::TRAIN_CSV) {
        return verify_rows(&run_dir.join(dir::TRAIN_CSV), record.first_step()..record.total_steps);
    }
    for (name, _) in LOGS {
        if let Some(expected) = record.files.get(name) {
            verify_whole(&run_dir.join(name), expected)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::row::Row;
    use super::super::{ValLog, ValRow};
    use super::*;
    use crate::regular::OpenDir;
    use std::fs;
    use std::sync::Arc;

    #[test]
    fn a_log_is_held_against_its_digest_and_its_steps() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        let text = "step,loss\n0,5\n1,4\n2,3\n";
        let mut growing = Growing::new(b"step,loss\n");
        growing.push(b"0,5\n");
        growing.push(b"1,4\n");
        let expected = growing.digest();
        assert_eq!(expected.bytes, growing.bytes());
        let message = |result: Result<(), RunError>| result.expect_err("refused").to_string();
        assert!(message(verify_beginning(&path, &expected)).contains("it is gone"));
        fs::write(&path, text).expect("write");
        verify_beginning(&path, &expected).expect("a row more");
        assert!(message(verify_whole(&path, &expected)).contains("4 bytes after the 18"));
        verify_rows(&path, 0..2).expect("rows 0 and 1");
        for (other, what) in [
            ("", "0 of the 18 bytes"),
            ("step,loss\n0,5\n", "14 of the 18 bytes"),
            ("step,loss\n1,4\n0,5\n2,3\n", "first 18 bytes were changed"),
            ("step,loss\n0,5\n1,2\n2,3\n", "first 18 bytes were changed"),
        ] {
            fs::write(&path, other).expect("write");
            let said = message(verify_beginning(&path, &expected));
            assert!(said.contains(what) && said.contains("train.csv") && said.contains("--fresh"), "{said}");
        }
        fs::write(&path, text.replace("1,4\n", "")).expect("write");
        assert!(message(verify_rows(&path, 0..3)).contains("2 rows for 3 steps"));
        fs::write(&path, text.replace("1,4\n", "1,4\n1,4\n")).expect("write");
        assert!(message(verify_rows(&path, 0..3)).contains("4 rows for 3 steps"));
        fs::write(&path, "").expect("write");
        verify_rows(&path, 0..0).expect("no step, no row");
    }

    #[test]
    fn an_open_log_knows_what_it_holds_and_comes_back_where_it_was_removed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("val.csv");
        let run = Arc::new(OpenDir::open(dir.path()).expect("open"));
        let row = |step| ValRow { step, ..ValRow::UNKNOWN };
        let mut log = ValLog::open(&run).expect("open");
        let head = log.digest();
        log.append(&row(0)).expect("append");
        let one = log.digest();
        log.append(&row(5)).expect("append");
        log.append(&row(5)).expect("append");
        let whole = FileDigest::of(&fs::read(&path).expect("read"));
        assert_eq!([0, 5, 6].map(|step| log.digest_before(step)), [one.clone(), one.clone(), whole.clone()]);
        assert_eq!((&whole, head.bytes < one.bytes), (&log.digest(), true));
        assert!(!log.check().expect("as it was"));
        fs::remove_file(&path).expect("remove");
        assert!(log.check().expect("written again"));
        log.append(&row(7)).expect("append");
        verify_beginning(&path, &whole).expect("nothing is lost");
        let bytes = fs::read(&path).expect("read");
        log.check_contents().expect("nor added");
        // an earlier part of it under its name is no other log, anything else is
        for (other, is_ours) in [(&bytes[..10], true), (b"step\n1\n", false)] {
            fs::remove_file(&path).expect("remove");
            fs::write(&path, other).expect("write");
            assert_eq!(log.check().is_ok(), is_ours);
            assert_eq!(fs::read(&path).expect("read") == bytes, is_ours);
        }
        fs::write(&path, &bytes).expect("write");
        let mut log = ValLog::open(&run).expect("open");
        assert_eq!(log.digest_before(9), FileDigest::of(&bytes));
        fs::write(&path, "").expect("empty");
        assert!(log.check().expect_err("emptied").to_string().contains("another program has changed it"));
    }
}
