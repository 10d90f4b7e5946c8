//! A file that one process appends to, step by step, and guards against all others: a log, or the samples.

use super::digest::FileDigest;
use super::error::Context;
use super::seal::{self, Growing};
use super::{RunError, fault, files};
use crate::regular::{self, OFlags, OpenDir};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file of a run that is open for appending.
#[derive(Debug)]
pub(super) struct Appended {
    run: Arc<OpenDir>,
    name: &'static str,
    path: PathBuf,
    file: File,
    /// What was written.
    whole: Growing,
    /// The step of the last append, and the file before the first append of that step.
    before: Option<(u64, Growing)>,
}

impl Appended {
    /// Opens the file, which holds `found`.
    pub(super) fn open(run: &Arc<OpenDir>, name: &'static str, found: &[u8]) -> Result<Self, RunError> {
        let file = reopen(run, name, OFlags::empty())?;
        Ok(Self::of(run, name, file, Growing::new(found)))
    }

    /// Makes the file.
    pub(super) fn create(run: &Arc<OpenDir>, name: &'static str) -> Result<Self, RunError> {
        let file = reopen(run, name, OFlags::CREATE | OFlags::EXCL)?;
        Ok(Self::of(run, name, file, Growing::new(b"")))
    }

    fn of(run: &Arc<OpenDir>, name: &'static str, file: File, whole: Growing) -> Self {
        Self { run: Arc::clone(run), name, path: run.join(name), file, whole, before: None }
    }

    /// Where it lies.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends what belongs to a step with one write. If the write fails, the file is cut to its length before it.
    /// `fault` is the point of faults in the middle.
    pub(super) fn append(
        &mut self,
        step: u64,
        bytes: &[u8],
        (of, point): (&str, &str),
    ) -> Result<(), RunError> {
        let written = match fault::due(of, point) {
            // Only a test has a reason to write in two parts.
            Some(due) => {
                let (head, tail) = bytes.split_at(bytes.len() / 2);
                self.file.write_all(head).and_then(|()| due.strike()).and_then(|()| self.file.write_all(tail))
            }
            None => self.file.write_all(bytes),
        };
        if written.is_err() {
            // If this fails too, what is torn is cut off when the run resumes.
            let _ = self.file.set_len(self.whole.bytes());
        }
        written.context("append to", &self.path)?;
        if self.before.as_ref().is_none_or(|(last, _)| *last < step) {
            self.before = Some((step, self.whole.clone()));
        }
        self.whole.push(bytes);
        Ok(())
    }

    /// The digest of what was appended before `step`.
    pub(super) fn digest_before(&self, step: u64) -> FileDigest {
        match &self.before {
            Some((last, before)) if *last >= step => before.digest(),
            _ => self.whole.digest(),
        }
    }

    /// The digest of what was written.
    pub(super) fn digest(&self) -> FileDigest {
        self.whole.digest()
    }

    /// Checks that the file at the path is the one that is appended to. One that was removed, or replaced by an earlier
    /// part of itself, is written again; returns whether it had to be.
    ///
    /// Errors: [`RunError::Log`] if something else is there.
    pub(super) fn check(&mut self) -> Result<bool, RunError> {
        let length = self.file.metadata().context("read", &self.path)?.len();
        if self.run.is_named(self.name, &self.file).context("read", &self.path)? {
            return if length == self.whole.bytes() { Ok(false) } else { Err(self.changed(length)) };
        }
        let mut written = Vec::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_end(&mut written));
        read.context("read", &self.path)?;
        let found = self.run.read(self.name, regular::LOG).context("read", &self.path)?;
        if Growing::new(&written).digest() != self.digest() || !written.starts_with(&found) {
            return Err(self.changed(found.len() as u64));
        }
        files::write_in(&self.run, self.name, &written, "csv_again")?;
        self.file = reopen(&self.run, self.name, OFlags::empty())?;
        Ok(true)
    }

    /// Checks that the file holds what was written, by reading it.
    ///
    /// Errors: [`RunError::Log`] if it does not.
    pub(super) fn check_contents(&self) -> Result<(), RunError> {
        seal::verify_whole(&self.path, &self.digest())
    }

    fn changed(&self, found: u64) -> RunError {
        changed(&self.path, found, self.whole.bytes())
    }

    /// Makes what was written durable.
    pub(super) fn sync(&self) -> Result<(), RunError> {
        self.file.sync_data().context("sync", &self.path)
    }
}

/// The error that a file has `found` bytes, and not the `written` ones.
pub(super) fn changed(path: &Path, found: u64, written: u64) -> RunError {
    let problem = format!(
        "another program has changed it: {found} bytes are there, {written} were written (the same \
         command goes on if the rows until the newest checkpoint are as they were)"
    );
    RunError::Log { path: path.to_owned(), problem }
}

/// A file for appending; what was written can be read again, whatever becomes of its name.
fn reopen(run: &OpenDir, name: &str, more: OFlags) -> Result<File, RunError> {
    run.open_file(name, OFlags::RDWR | OFlags::APPEND | more).context("open", &run.join(name))
}
