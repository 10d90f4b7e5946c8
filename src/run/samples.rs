//! `samples.txt`: the text that a run generated, one section per sampling.

use super::appended::{Appended, changed};
use super::digest::FileDigest;
use super::dir::SAMPLES;
use super::error::Context;
use super::{RunError, files, seal};
use crate::regular::{self, OpenDir};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

const MARK: (&str, &str) = ("=== step ", " ===");

/// `samples.txt` of a run, open for appending. The first sample makes the file.
#[derive(Debug)]
pub struct Samples {
    run: Arc<OpenDir>,
    file: Option<Appended>,
}

impl Samples {
    /// Opens the samples of a run, if it has any. The caller must hold the run's lock and must have called
    /// [`cut_back`].
    ///
    /// Errors: [`RunError::Io`].
    pub fn open(run: &Arc<OpenDir>) -> Result<Self, RunError> {
        let found = run.has(SAMPLES).then(|| run.read(SAMPLES, regular::LOG));
        let file = match found.transpose().context("read", &run.join(SAMPLES))? {
            Some(found) => Some(Appended::open(run, SAMPLES, &found)?),
            None => None,
        };
        Ok(Self { run: Arc::clone(run), file })
    }

    /// Appends one sample: a line with the step, the text, an empty line. If the write fails, the file is cut to its
    /// length before it.
    ///
    /// Fault point: `samples.mid_write`.
    pub fn append(&mut self, step: u64, text: &str) -> Result<(), RunError> {
        let section = format!("{}{step}{}\n{}\n\n", MARK.0, MARK.1, unmarked(text.trim_end_matches('\n')));
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(Appended::create(&self.run, SAMPLES)?),
        };
        file.append(step, section.as_bytes(), ("samples", "mid_write"))?;
        // samples are rare, and after a power cut the checkpoint needs them
        file.sync()
    }

    /// The digest of the samples before a step.
    pub fn digest_before(&self, step: u64) -> FileDigest {
        self.file.as_ref().map_or_else(|| FileDigest::of(b""), |file| file.digest_before(step))
    }

    /// Checks that the file at the path is the one that samples are appended to. One that was removed, or replaced by
    /// an earlier part of itself, is written again; returns whether it had to be.
    ///
    /// Errors: [`RunError::Log`] if something else is there.
    pub fn check(&mut self) -> Result<bool, RunError> {
        let path = &self.run.join(SAMPLES);
        match &mut self.file {
            Some(file) => file.check(),
            None if self.run.has(SAMPLES) => {
                let found = self.run.read(SAMPLES, regular::LOG).context("read", path)?;
                Err(changed(path, found.len() as u64, 0))
            }
            None => Ok(false),
        }
    }

    /// Checks that the file holds what was written, by reading it.
    ///
    /// Errors: [`RunError::Log`] if it does not.
    pub fn check_contents(&self) -> Result<(), RunError> {
        self.file.as_ref().map_or(Ok(()), Appended::check_contents)
    }
}

/// A text in which no line is the mark of a sample: a blank comes before one that would be.
fn unmarked(text: &str) -> String {
    let line = |line: &str| match step_of(line.as_bytes()) {
        Some(_) => format!(" {line}"),
        None => line.to_owned(),
    };
    text.split_inclusive('\n').map(line).collect()
}

/// Removes everything from the first sample of `first_step_to_drop` or a later step on; with `None` all. What stands
/// behind the part that has the digest `written` goes as well, whatever it says. A missing file has no samples.
///
/// Errors: [`RunError::Io`]; [`RunError::Log`] for a file that begins with no sample, which no run has written.
pub fn cut_back(
    run: &OpenDir,
    first_step_to_drop: Option<u64>,
    written: Option<&FileDigest>,
) -> Result<(), RunError> {
    let bytes = read(run)?;
    let known = written.and_then(|written| seal::beginning(&bytes, written)).unwrap_or(&bytes);
    let kept = first_step_to_drop.map_or(&b""[..], |step| before(known, step));
    if kept.len() < bytes.len() {
        files::write_in(run, SAMPLES, kept, "samples_cut")?;
    }
    Ok(())
}

/// The file's contents; none of a missing one.
///
/// Errors: [`RunError::Io`]; [`RunError::Log`] for a file that begins with no sample, which no run has written.
pub fn read(run: &OpenDir) -> Result<Vec<u8>, RunError> {
    let path = run.join(SAMPLES);
    let bytes = run.read(SAMPLES, regular::LOG).context("read", &path)?;
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    // a kill may have cut the first one short, and a power cut have left zeros in its place
    let mark = MARK.0.as_bytes();
    let is_ours = first.starts_with(mark) || mark.starts_with(first) || first.iter().all(|byte| *byte == 0);
    if !is_ours {
        return Err(RunError::Log { path, problem: "it does not begin with a sample".to_owned() });
    }
    Ok(bytes)
}

/// What stands before the first sample of a step or a later one.
fn before(bytes: &[u8], step: u64) -> &[u8] {
    let is_before = |line: &&[u8]| step_of(line).is_none_or(|found| found < step);
    let lines = bytes.split_inclusive(|&b| b == b'\n').take_while(is_before);
    &bytes[..lines.map(<[u8]>::len).sum()]
}

/// Bytes at the end of the file in which [`newest`] looks.
const TAIL: u64 = 1 << 18;

/// The newest samples, at most so many and the newest first, each with its step; of a long file only those at its end.
/// A missing file has no samples.
///
/// Errors: [`RunError::Io`].
pub fn newest(path: &Path, most: usize) -> Result<Vec<(u64, String)>, RunError> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = regular::open_unlinked(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = match read() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.context("read", path)?,
    };
    let found = String::from_utf8_lossy(&bytes);
    Ok(sections(&found).into_iter().rev().take(most).map(|(step, text)| (step, text.to_owned())).collect())
}

/// The samples of a file, each with its step and its text. One that is still being written is left out.
pub fn sections(file: &str) -> Vec<(u64, &str)> {
    let (mut marks, mut at) = (Vec::new(), 0);
    for line in file.split_inclusive('\n') {
        marks.extend(step_of(line.as_bytes()).map(|step| (step, at, at + line.len())));
        at += line.len();
    }
    let ends = marks.iter().skip(1).map(|(_, begin, _)| *begin).chain([file.len()]);
    let section = |((step, _, begin), end): (&(u64, usize, usize), usize)| {
        Some((*step, file.get(*begin..end)?.strip_suffix("\n\n")?))
    };
    marks.iter().zip(ends).filter_map(section).collect()
}

fn step_of(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?.trim_end();
    line.strip_prefix(MARK.0)?.strip_suffix(MARK.1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn later_samples_and_torn_ones_are_cut() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("samples.txt");
        let run = Arc::new(OpenDir::open(dir.path()).expect("open"));
        let append = |step, text| Samples::open(&run).expect("open").append(step, text).expect("append");
        cut_back(&run, Some(0), None).expect("nothing to do");
        for step in [0, 50, 100] {
            append(step, "Lorem\nipsum\n");
        }
        let whole = fs::read(&path).expect("read");
        cut_back(&run, Some(100), None).expect("cut");
        let two = fs::read_to_string(&path).expect("read");
        assert_eq!(two, "=== step 0 ===\nLorem\nipsum\n\n=== step 50 ===\nLorem\nipsum\n\n");
        append(100, "Lorem\nipsum");
        assert_eq!(fs::read(&path).expect("read"), whole);
        let lorem = "Lorem\nipsum".to_owned();
        assert_eq!(newest(&path, 2).expect("read"), [(100, lorem.clone()), (50, lorem)]);
        assert_eq!(newest(&dir.path().join("none"), 2).expect("no file"), []);
        let text = String::from_utf8(whole.clone()).expect("UTF-8");
        assert_eq!(sections(&text), [0, 50, 100].map(|step| (step, "Lorem\nipsum")));
        assert_eq!(sections(&text[..text.len() - 1]), [0, 50].map(|step| (step, "Lorem\nipsum")));
        assert_eq!(sections("no sample\n\n"), []);
        fs::write(&path, &whole[..whole.len() - 4]).expect("tear");
        cut_back(&run, Some(100), None).expect("cut");
        assert_eq!(fs::read_to_string(&path).expect("read"), two);
        fs::write(&path, [0; 300]).expect("as a power cut leaves it");
        cut_back(&run, None, None).expect("cut");
        assert_eq!(fs::read(&path).expect("read"), b"");
        fs::write(&path, "precious\n").expect("written");
        cut_back(&run, None, None).expect_err("no run has written it");
        assert_eq!(fs::read(&path).expect("read"), b"precious\n");
    }

    #[test]
    fn samples_that_are_taken_away_come_back_and_changed_ones_are_an_error() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("samples.txt");
        let run = Arc::new(OpenDir::open(dir.path()).expect("open"));
        let mut samples = Samples::open(&run).expect("open");
        assert!(!samples.check().expect("none yet"));
        fs::write(&path, "mine").expect("write");
        samples.check().expect_err("another's");
        fs::remove_file(&path).expect("remove");
        for step in [0, 5, 5] {
            samples.append(step, "Lorem").expect("append");
        }
        let whole = fs::read(&path).expect("read");
        let of_first = FileDigest::of(b"=== step 0 ===\nLorem\n\n");
        assert_eq!([5, 6].map(|step| samples.digest_before(step)), [of_first, FileDigest::of(&whole)]);
        assert!(!samples.check().expect("as it was"));
        fs::remove_file(&path).expect("remove");
        assert!(samples.check().expect("written again"));
        assert_eq!(fs::read(&path).expect("read"), whole);
        samples.check_contents().expect("whole");
        fs::write(&path, "mine").expect("write");
        samples.check().expect_err("edited");
        samples.check_contents().expect_err("edited");
    }

    #[test]
    fn a_text_may_hold_what_looks_like_a_mark() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("samples.txt");
        let run = Arc::new(OpenDir::open(dir.path()).expect("open"));
        let append = |step, text| Samples::open(&run).expect("open").append(step, text).expect("append");
        append(1, "x\n=== step 999 ===\ny");
        append(5, "z");
        let text = fs::read_to_string(&path).expect("read");
        assert_eq!(sections(&text), [(1, "x\n === step 999 ===\ny"), (5, "z")]);
        assert_eq!(before(text.as_bytes(), 5).len(), text.find("=== step 5").expect("there"));
        cut_back(&run, Some(5), None).expect("cut");
        assert_eq!(sections(&fs::read_to_string(&path).expect("read")), [(1, "x\n === step 999 ===\ny")]);
    }
}
