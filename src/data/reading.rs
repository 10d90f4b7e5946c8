//! What has been read of a data set since it was last found unchanged.
//!
//! A file may be overwritten and put back as it was. Nothing of that is left in the file, so the rows that were read
//! meanwhile are remembered by their checksums, and compared once there is reason to.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No more rows are remembered between two checks. They take 16 MiB.
const MOST: usize = 1 << 20;

/// Rows that were read, and the first token that cannot be one.
#[derive(Default)]
pub(super) struct Reading(Mutex<Read>);

/// See [`Reading`].
#[derive(Default)]
pub(super) struct Read {
    /// Rows and their checksums.
    rows: Vec<(u64, u64)>,
    /// Whether there were more rows than are remembered.
    is_cut: bool,
    /// The row that has a token outside the vocabulary, its index among the row's tokens, and the token.
    pub(super) outside: Option<(u64, usize, u32)>,
}

/// Rows of which all that was read is still to be compared.
pub(super) struct Rows {
    rows: Vec<(u64, u64)>,
    is_cut: bool,
}

impl Reading {
    /// Keeps others from reading, so that what is copied and what is noted of it belong together.
    pub(super) fn lock(&self) -> MutexGuard<'_, Read> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the rows that were noted.
    pub(super) fn take(&self) -> Rows {
        let mut read = self.lock();
        Rows { rows: std::mem::take(&mut read.rows), is_cut: std::mem::take(&mut read.is_cut) }
    }
}

impl Read {
    /// Notes a row that was read, by its checksum.
    pub(super) fn note(&mut self, row: u64, checksum: u64) {
        if self.rows.len() < MOST {
            self.rows.push((row, checksum));
        } else {
            self.is_cut = true;
        }
    }
}

impl Rows {
    /// The first row whose checksum is another one now, or that cannot be compared. `now` computes a row's checksum.
    pub(super) fn first_differing(&self, mut now: impl FnMut(u64) -> u64) -> Option<u64> {
        let differing = self.rows.iter().find(|(row, checksum)| now(*row) != *checksum);
        differing.or(self.rows.last().filter(|_| self.is_cut)).map(|(row, _)| *row)
    }
}

/// A checksum of tokens, in which every changed token shows but by a chance of about 2^-64.
pub(super) fn checksum(tokens: &[u32]) -> u64 {
    tokens.iter().fold(0x9e37_79b9_7f4a_7c15, |sum: u64, &token| {
        (sum ^ u64::from(token)).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_was_another_one_is_found_once_asked_for() {
        let reading = Reading::default();
        for row in [4, 9, 2] {
            reading.lock().note(row, checksum(&[row as u32, 7]));
        }
        let rows = reading.take();
        assert_eq!(rows.first_differing(|row| checksum(&[row as u32, 7])), None);
        assert_eq!(rows.first_differing(|row| checksum(&[row as u32, 7 + u32::from(row == 2)])), Some(2));
        assert_eq!(reading.take().first_differing(|_| 0), None, "what was taken is no longer there");
    }

    #[test]
    fn rows_that_were_not_noted_count_as_differing() {
        let reading = Reading::default();
        for row in 0..=MOST as u64 {
            reading.lock().note(row, 5);
        }
        assert_eq!(reading.take().first_differing(|_| 5), Some(MOST as u64 - 1));
    }
}
