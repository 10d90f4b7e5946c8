//! A log that is read while it grows, and cut back when its run starts again from a checkpoint.

use super::bounds::Allowance;
use super::scan::scan_piece;
use super::tail::{Grown, Tail};
use crate::run::RunError;
use std::path::Path;

/// What [`Follow::poll`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct News {
    /// Rows that were added at the end, behind those that had been there and still are.
    pub added: usize,
    /// Whether rows that had been there are gone.
    pub was_cut: bool,
}

/// What a look at a log gives, in order.
#[derive(Debug)]
pub enum Piece<'a> {
    /// What was read before no longer holds: the log is another file, was cut back, or is gone.
    Anew,
    /// The header and the whole rows behind those that were read before; there may be none.
    Rows(&'a [u8]),
}

/// A log that is read while it grows, without keeping what was read.
#[derive(Debug)]
pub struct LogTail {
    tail: Tail,
    header: Vec<u8>,
}

impl LogTail {
    /// Follows a log, which need not exist yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { tail: Tail::new(path), header: Vec::new() }
    }

    /// Reads what is new.
    ///
    /// Errors: [`RunError::Io`].
    pub fn poll(&mut self, mut take: impl FnMut(Piece)) -> Result<(), RunError> {
        let Grown { lines, is_other } = self.tail.read()?;
        // nothing was read before of a log without a header
        if is_other && !self.header.is_empty() {
            self.header.clear();
            take(Piece::Anew);
        }
        if !lines.is_empty() {
            // the header comes before every piece, so that a piece can be read alone
            take(Piece::Rows(&[&self.header[..], &lines].concat()));
        }
        if self.header.is_empty() {
            let end = lines.iter().position(|&b| b == b'\n').map_or(0, |newline| newline + 1);
            self.header = lines[..end].to_vec();
        }
        Ok(())
    }
}

/// A log and the rows that it has so far.
#[derive(Debug)]
pub struct Follow {
    tail: LogTail,
    columns: Vec<String>,
    rows: Vec<Vec<f64>>,
    /// How many rows the log may have by its size, all pieces of it together.
    allowance: Allowance,
}

impl Follow {
    /// Follows a log, which need not exist yet. The first column must be the step.
    #[must_use]
    pub fn new<'a>(path: &Path, columns: impl IntoIterator<Item = &'a str>) -> Self {
        let columns = columns.into_iter().map(str::to_owned).collect();
        Self { tail: LogTail::new(path), columns, rows: Vec::new(), allowance: Allowance::default() }
    }

    /// The rows so far, by step.
    #[must_use]
    pub fn rows(&self) -> &[Vec<f64>] {
        &self.rows
    }

    /// Reads what is new.
    ///
    /// Errors: [`RunError::Io`].
    pub fn poll(&mut self) -> Result<News, RunError> {
        let columns: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        let (rows, allowance, mut old) = (&mut self.rows, &mut self.allowance, Vec::new());
        let before = rows.len();
        let read = self.tail.poll(|piece| match piece {
            Piece::Anew => (old, *allowance) = (std::mem::take(rows), Allowance::default()),
            Piece::Rows(text) => {
                scan_piece(text, &columns, allowance, |row| rows.push(row.to_vec()));
            }
        });
        read?;
        // another file is news only as far as it differs: a step that was taken again took another time
        let is_same = |a: &f64, b: &f64| a.to_bits() == b.to_bits();
        let are_same = |(a, b): &(&Vec<f64>, &Vec<f64>)| a.iter().zip(*b).all(|(a, b)| is_same(a, b));
        let kept = old.iter().zip(&self.rows).take_while(are_same).count();
        let begin = if old.is_empty() { before } else { kept };
        Ok(News { added: self.rows.len() - begin, was_cut: kept < old.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::bounds::{FEW_ROWS, ROW_BYTES};
    use super::*;
    use std::fs;
    use std::io::Write;

    #[test]
    fn rows_are_read_once_and_torn_lines_later() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        let mut log = Follow::new(&path, ["step", "loss"]);
        let add = |text: &str| {
            let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).expect("open");
            file.write_all(text.as_bytes()).expect("write");
        };
        let mut news = || {
            let news = log.poll().expect("readable");
            (news.added, news.was_cut, log.rows().len())
        };
        assert_eq!(news(), (0, false, 0), "there is no file yet");
        add("step,lo");
        assert_eq!(news(), (0, false, 0));
        add("ss\n0,5\n1,");
        assert_eq!(news(), (1, false, 1));
        add("4\n2,3\n");
        assert_eq!(news(), (2, false, 3));
        assert_eq!(news(), (0, false, 3));
        // cut back to a checkpoint, and further than before by the next look
        let other = dir.path().join("other");
        fs::write(&other, "step,loss\n0,5\n1,4\n").expect("write");
        fs::rename(&other, &path).expect("rename");
        assert_eq!(news(), (0, true, 2));
        fs::write(&other, "step,loss\n0,5\n1,4\n2,3\n3,2\n").expect("write");
        fs::rename(&other, &path).expect("rename");
        assert_eq!(news(), (2, false, 4));
        // the same steps, taken again
        fs::write(&other, "step,loss\n0,5\n1,4\n2,3.5\n3,2\n4,1\n").expect("write");
        fs::rename(&other, &path).expect("rename");
        assert_eq!(news(), (3, true, 5));
        fs::remove_file(&path).expect("remove");
        assert_eq!(news(), (0, true, 0));
    }

    /// Two files that take its place one after the other: the second may have the number of the first one.
    #[test]
    fn a_longer_file_of_the_same_number_is_read_from_its_beginning() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("val.csv");
        let mut log = Follow::new(&path, ["step", "val_loss"]);
        fs::write(&path, "step,tokens,val_loss\n0,0,9.5\n10,5120,8.25\n").expect("write");
        log.poll().expect("readable");
        let wider = "step,tokens,val_loss,acc\n0,0,9.5,\n20,10240,7.5,0.25\n30,15360,7.0,0.5\n";
        fs::write(&path, wider).expect("write");
        assert_eq!(log.poll().expect("readable"), News { added: 2, was_cut: true });
        assert_eq!(log.rows(), [[0.0, 9.5], [20.0, 7.5], [30.0, 7.0]]);
    }

    #[test]
    fn a_row_with_an_empty_cell_is_the_same_in_another_file() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (path, other) = (dir.path().join("train.csv"), dir.path().join("other"));
        let mut log = Follow::new(&path, ["step", "mfu"]);
        fs::write(&path, "step,mfu\n0,\n1,\n").expect("write");
        assert_eq!(log.poll().expect("readable").added, 2);
        fs::write(&other, "step,mfu\n0,\n1,\n2,\n").expect("write");
        fs::rename(&other, &path).expect("rename");
        assert_eq!(log.poll().expect("readable"), News { added: 1, was_cut: false });
    }

    #[test]
    fn a_log_that_grows_by_rows_of_single_digits_is_held_as_far_as_one_that_is_read_at_once() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("train.csv");
        let mut log = Follow::new(&path, ["step", "loss"]);
        let (mut text, piece) = ("step\n".to_owned(), "1\n".repeat(FEW_ROWS as usize + 1000));
        for _ in 0..5 {
            text += &piece;
            fs::write(&path, &text).expect("write");
            log.poll().expect("readable");
            let most = FEW_ROWS + text.len() as u64 / ROW_BYTES;
            assert!(log.rows().len() as u64 <= most, "{} of at most {most}", log.rows().len());
        }
        // a log that is another one begins again
        let held = log.rows().len();
        fs::write(dir.path().join("other"), &text).expect("write");
        fs::rename(dir.path().join("other"), &path).expect("rename");
        assert_eq!(log.poll().expect("readable"), News::default());
        assert_eq!(log.rows().len(), held);
        // rows as they are, a few at a time
        let (mut log, mut text) = (Follow::new(&path, ["step", "loss"]), "step,loss\n".to_owned());
        for look in 0..3 {
            text.extend((0..FEW_ROWS).map(|row| format!("{},0.123456789\n", look * FEW_ROWS + row)));
            fs::write(&path, &text).expect("write");
            log.poll().expect("readable");
            assert_eq!(log.rows().len() as u64, (look + 1) * FEW_ROWS);
        }
    }
}
