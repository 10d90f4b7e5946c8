//! An event file on the disk: what it holds so far, and appending to it.
//!
//! The file is all there is to go on from, so nothing beside it can contradict it. TensorBoard only reads on in a file
//! that it knows; so a file grows, and steps that are taken again are announced by a restart. Where nothing of a file
//! can stay, the next one is begun, whose name sorts behind it, and the old one is removed at the end.

use super::event::{At, KINDS, Kind, Seen, start};
use super::of_another;
use super::record::{frame, masked, read};
use crate::regular::{OFlags, OpenDir};
use crate::run::dir::{EVENT_FILE, is_event_file};
use crate::run::{RunError, fault};
use std::fs::{File, TryLockError};
use std::io::{self, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Events are written once they are this many bytes.
const FULL: usize = 1 << 20;

/// An event, as far as it is compared with the one that a run's logs ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    step: u64,
    checksum: u32,
}

/// An event file that only this process appends to.
#[derive(Debug)]
pub(super) struct EventFile {
    dir: Arc<OpenDir>,
    name: String,
    /// For messages.
    path: PathBuf,
    file: File,
    /// Bytes of whole records in the file.
    length: u64,
    /// Records to be appended.
    pending: Vec<u8>,
    /// The events that TensorBoard shows of the file, by kind: those before each restart, and those after it.
    entries: [Vec<Entry>; KINDS],
    /// The names of files of ours that this one takes the place of.
    old: Vec<String>,
    /// Events appended since the file was opened.
    added: u64,
}

impl EventFile {
    /// Opens the newest event file in a directory, and cuts off what a killed writer has left of a record; `None` if
    /// there is none.
    pub(super) fn open(dir: &Arc<OpenDir>) -> Result<Option<Self>, RunError> {
        let mut names = own_files(dir).map_err(|error| failed("read", dir.path(), error))?;
        let Some(name) = names.pop() else { return Ok(None) };
        let mut file = Self::locked(dir, name, OFlags::empty())?;
        file.old = names;
        file.mend().map_err(|error| failed("read", &file.path, error))?;
        Ok(Some(file))
    }

    /// Begins a file in a directory for a run that began so many seconds after 1970.
    pub(super) fn create(dir: &Arc<OpenDir>, began: u64) -> Result<Self, RunError> {
        let name = format!("{}{began:010}{}", EVENT_FILE.0, EVENT_FILE.1);
        Self::locked(dir, name, OFlags::CREATE | OFlags::EXCL)
    }

    fn locked(dir: &Arc<OpenDir>, name: String, flags: OFlags) -> Result<Self, RunError> {
        let path = dir.join(&name);
        let file = dir.open_file(&name, flags | OFlags::RDWR | OFlags::APPEND);
        let taken = || {
            let problem = "another process is writing it: wait for it to end or stop it";
            failed("lock", &path, io::Error::new(ErrorKind::WouldBlock, problem))
        };
        let file = match file {
            Ok(file) => file,
            // one that was begun since the directory was looked at
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(taken()),
            Err(error) => return Err(failed("open", &path, error)),
        };
        if let Some(user) = dir.maker_of(&file).map_err(|error| failed("read", &path, error))? {
            let problem = io::Error::new(ErrorKind::PermissionDenied, of_another(user));
            return Err(failed("write", &path, problem));
        }
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(taken());
        }
        Ok(Self {
            dir: Arc::clone(dir),
            name,
            path,
            file,
            length: 0,
            pending: Vec::new(),
            entries: Default::default(),
            old: Vec::new(),
            added: 0,
        })
    }

    fn mend(&mut self) -> io::Result<()> {
        let bytes = self.file.metadata()?.len();
        let entries = &mut self.entries;
        let whole = read(BufReader::new(&self.file), bytes, |data| match Seen::of(data) {
            Seen::Restart(step) => forget(entries, step),
            Seen::Event(kind, step) => entries[kind as usize].push(Entry { step, checksum: masked(data) }),
        })?;
        if whole < bytes {
            self.file.set_len(whole)?;
        }
        self.length = whole;
        Ok(())
    }

    /// How many events of a kind there are.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.entries[kind as usize].len()
    }

    /// The step of an event of a kind, by its place among them.
    pub(super) fn step_of(&self, kind: Kind, place: usize) -> Option<u64> {
        self.entries[kind as usize].get(place).map(|entry| entry.step)
    }

    /// Whether the event of a kind at a place, where there must be one, is this one.
    pub(super) fn holds(&self, kind: Kind, place: usize, step: u64, data: &[u8]) -> bool {
        self.entries[kind as usize][place] == Entry { step, checksum: masked(data) }
    }

    /// Appends an event.
    pub(super) fn push(&mut self, kind: Kind, step: u64, data: &[u8]) -> Result<(), RunError> {
        frame(data, &mut self.pending);
        self.entries[kind as usize].push(Entry { step, checksum: masked(data) });
        self.added += 1;
        if self.pending.len() >= FULL { self.flush() } else { Ok(()) }
    }

    /// Takes back the events of a step and those after it. Returns whether any of a run's remain; if none does, the
    /// file must be [`replace`](Self::replace)d.
    pub(super) fn rewind(&mut self, at: At) -> bool {
        forget(&mut self.entries, at.step);
        let remains = [Kind::Train, Kind::Val, Kind::Sample].iter().any(|kind| self.count(*kind) > 0);
        if remains {
            frame(&start(at), &mut self.pending);
        }
        remains
    }

    /// Begins a file that takes the place of this one.
    pub(super) fn replace(&mut self, began: u64) -> Result<(), RunError> {
        let number = self.name.strip_prefix(EVENT_FILE.0).and_then(|rest| rest.strip_suffix(EVENT_FILE.1));
        let after = number.and_then(|number| number.parse::<u64>().ok()).map_or(0, |number| number + 1);
        let new = Self::create(&self.dir, began.max(after))?;
        let Self { name, mut old, added, .. } = std::mem::replace(self, new);
        old.push(name);
        (self.old, self.added) = (old, added);
        Ok(())
    }

    /// Writes the events that are appended, and removes the files that this one takes the place of. After an error the
    /// file must be opened again.
    pub(super) fn flush(&mut self) -> Result<(), RunError> {
        let (head, tail) = self.pending.split_at(self.pending.len() / 2);
        let written = if self.pending.is_empty() { Ok(()) } else { self.write(head, tail) };
        if written.is_err() {
            // if this fails too, the torn record is cut off when the file is next opened
            let _ = self.file.set_len(self.length);
        }
        written.map_err(|error| failed("append to", &self.path, error))?;
        self.length += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    fn write(&self, head: &[u8], tail: &[u8]) -> io::Result<()> {
        let mut file = &self.file;
        file.write_all(head)?;
        fault::point("events", "mid_write")?;
        file.write_all(tail)
    }

    /// Writes what is appended, and removes the files that this one takes the place of.
    pub(super) fn settle(&mut self) -> Result<(), RunError> {
        self.flush()?;
        for name in self.old.drain(..) {
            match self.dir.remove_file(&name) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed("delete", &self.dir.join(&name), error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Events appended since this was asked last.
    pub(super) fn take_added(&mut self) -> u64 {
        std::mem::take(&mut self.added)
    }
}

/// The names of the event files of ours in a directory, oldest first; other programs' stay what they are.
fn own_files(dir: &OpenDir) -> io::Result<Vec<String>> {
    let names = dir.names()?.into_iter().filter(|name| is_event_file(name));
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    names.sort();
    Ok(names)
}

fn forget(entries: &mut [Vec<Entry>; KINDS], step: u64) {
    entries.iter_mut().for_each(|entries| entries.retain(|entry| entry.step < step));
}

fn failed(action: &'static str, path: &Path, error: io::Error) -> RunError {
    RunError::Io { action, path: path.to_owned(), error }
}
