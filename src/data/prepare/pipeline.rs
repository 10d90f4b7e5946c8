//! Reading, encoding and writing at the same time: a thread reads documents, others encode them, and the caller gets
//! the tokens in the order of the text.
//!
//! What waits between them is bounded, so memory is. Where a batch ends depends on the text alone, so the number of
//! threads changes no token and no order.

use super::PrepareError;
use super::bounds::{Closing, Room, Taken};
use super::documents::{Part, Reading};
use super::sources::TextFile;
use crate::data::scan::Identity;
use crate::data::{DataError, Tokenizer, unfinished};
use crate::regular;
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

/// Bytes of text that a thread encodes at a time, about.
pub(super) const BATCH: usize = 512 << 10;
/// Documents that a batch has at most, so that empty ones do not pile up.
const DOCUMENTS: usize = 1 << 14;

/// Batches that wait or are being worked on.
pub(super) fn in_flight(threads: usize) -> usize {
    2 * threads + 2
}

/// Where the separator stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Separator {
    /// Before every document, as llm.c, build-nanogpt and modded-nanogpt have it.
    Prepend,
    /// Behind every document, as nanoGPT has it.
    Append,
    /// Nowhere.
    None,
}

impl Separator {
    /// The word on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Prepend => "prepend",
            Self::Append => "append",
            Self::None => "none",
        }
    }
}

/// A part of a document among the tokens of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    /// The document's number in its file.
    pub(super) document: u64,
    /// Bytes of text.
    pub(super) bytes: usize,
    /// Tokens, a separator included; known once it is encoded.
    pub(super) tokens: usize,
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

struct Batch {
    /// The number of the file.
    file: usize,
    text: String,
    marks: Vec<Mark>,
}

/// A batch that was encoded.
pub(super) struct Encoded {
    pub(super) tokens: Vec<u16>,
    pub(super) marks: Vec<Mark>,
}

/// What the caller is given, in order.
pub(super) enum Step {
    /// The file with this number begins; its size and time, and the blake3 of its contents.
    Begin(usize, Identity, blake3::Hash),
    /// Tokens of the file.
    Tokens(Encoded),
    /// The file has ended; the number of its documents.
    End(u64),
}

enum Message<'a> {
    Step(Step),
    Batch(Receiver<Result<Encoded, PrepareError>>, Taken<'a>),
    Failed(PrepareError),
}

/// What is read and how it is encoded.
pub(super) struct Pipeline<'a> {
    pub(super) files: &'a [TextFile],
    /// The number of the file to begin with, and of the first document of it.
    pub(super) from: (usize, u64),
    pub(super) reading: Reading<'a>,
    pub(super) separator: Separator,
    pub(super) threads: usize,
    /// Is told about the bytes of files that were read.
    pub(super) advance: &'a (dyn Fn(u64) + Sync),
}

impl Pipeline<'_> {
    /// Runs until everything was read, `take` breaks, or something fails.
    pub(super) fn run(
        &self,
        mut take: impl FnMut(Step) -> Result<ControlFlow<()>, PrepareError>,
    ) -> Result<(), PrepareError> {
        let bound = in_flight(self.threads);
        // before the channels, whose messages refer to it
        let room = Room::of(bound * 2 * BATCH);
        let (steps, ordered) = mpsc::sync_channel(bound);
        let (jobs, queue) = mpsc::sync_channel::<(Batch, SyncSender<_>)>(bound);
        let queue = Mutex::new(queue);
        let tokenizer = self.reading.tokenizer;
        thread::scope(|scope| {
            let _closing = Closing(&room);
            for _ in 0..self.threads {
                scope.spawn(|| {
                    loop {
                        let job = queue.lock().unwrap_or_else(|error| error.into_inner()).recv();
                        let Ok((batch, back)) = job else { return };
                        // nobody waits for it after a failure
                        let _ = back.send(self.encode(tokenizer, batch));
                    }
                });
            }
            let room = &room;
            scope.spawn(move || {
                if let Err(error) = self.read(room, &steps, &jobs) {
                    let _ = steps.send(Message::Failed(error));
                }
            });
            let ordered = ordered;
            let lost = || PrepareError::Options("a thread that encodes text has ended".into());
            for message in &ordered {
                // what a batch has taken is given back once its tokens are written
                let (step, _taken) = match message {
                    Message::Step(step) => (step, None),
                    Message::Batch(encoded, taken) => {
                        (Step::Tokens(encoded.recv().map_err(|_| lost())??), Some(taken))
                    }
                    Message::Failed(error) => return Err(error),
                };
                if take(step)?.is_break() {
                    break;
                }
            }
            Ok(())
        })
    }

    fn encode(&self, tokenizer: &Tokenizer, batch: Batch) -> Result<Encoded, PrepareError> {
        let Batch { file, text, mut marks } = batch;
        let mut tokens = Vec::with_capacity(text.len() / 3 + marks.len());
        let mut rest = &text[..];
        for mark in &mut marks {
            let (part, after) = rest.split_at(mark.bytes);
            let before = tokens.len();
            if mark.is_first && self.separator == Separator::Prepend {
                tokens.extend(tokenizer.separator());
            }
            // the vocabulary is that of all the text, unless a file changes meanwhile
            let changed = |_| DataError::Changed { path: self.files[file].path().to_owned() };
            tokenizer.encode_into(part, &mut tokens).map_err(changed)?;
            if mark.is_last && self.separator == Separator::Append {
                tokens.extend(tokenizer.separator());
            }
            (mark.tokens, rest) = (tokens.len() - before, after);
        }
        Ok(Encoded { tokens, marks })
    }

    /// Reads all files into batches; ends early where nobody waits for them any more.
    fn read<'a>(
        &self,
        room: &'a Room,
        steps: &SyncSender<Message<'a>>,
        jobs: &SyncSender<(Batch, SyncSender<Result<Encoded, PrepareError>>)>,
    ) -> Result<(), PrepareError> {
        let send = |batch: Batch| {
            let (back, encoded) = mpsc::sync_channel(1);
            let bytes = batch.text.len();
            let Some(taken) = room.take(bytes) else { return ControlFlow::Break(()) };
            let sent = steps.send(Message::Batch(encoded, taken)).is_ok() && jobs.send((batch, back)).is_ok();
            room.settle(bytes);
            if sent { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let (from, skipped) = self.from;
        for (number, file) in self.files.iter().enumerate().skip(from) {
            let first = if number == from { skipped } else { 0 };
            let mut open = file.open()?;
            let (before, digest) = begin(file, &mut open)?;
            if steps.send(Message::Step(Step::Begin(number, before.clone(), digest))).is_err() {
                return Ok(());
            }
            let empty = || {
                let text = String::with_capacity(BATCH + BATCH / 4);
                Batch { file: number, text, marks: Vec::new() }
            };
            let (mut batch, mut documents, mut is_over) = (empty(), 0, false);
            let mut add = |part: Part| {
                documents += u64::from(part.is_first);
                let document = documents - 1;
                if document < first {
                    return ControlFlow::Continue(());
                }
                let Part { text, is_first, is_last } = part;
                batch.text.push_str(text);
                batch.marks.push(Mark { document, bytes: text.len(), tokens: 0, is_first, is_last });
                if batch.text.len() < BATCH && batch.marks.len() < DOCUMENTS {
                    return ControlFlow::Continue(());
                }
                let sent = send(std::mem::replace(&mut batch, empty()));
                is_over = sent.is_break();
                sent
            };
            let read = self.reading.documents(file, open, &self.advance, &mut add);
            if is_over {
                return Ok(());
            }
            check_read(file.path(), &before, digest, read)?;
            if !batch.marks.is_empty() && send(batch).is_break()
                || steps.send(Message::Step(Step::End(documents))).is_err()
            {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Whether a file is what it was: the same to the system, or at least with the same digest.
pub(super) fn is_unchanged(path: &Path, before: &Identity, blake3: &str) -> Result<bool, PrepareError> {
    let mut open = match regular::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        open => open.map_err(DataError::read(path))?,
    };
    Ok(Identity::of(path, &open)? == *before || digest(path, &mut open)?.to_hex().as_str() == blake3)
}

/// What the system says of an open source before it is read, and the blake3 of its contents.
///
/// # Errors
/// Those of [`digest`], and any hole in a text, whose zeros would pass for characters.
pub(super) fn begin(source: &TextFile, file: &mut File) -> Result<(Identity, blake3::Hash), PrepareError> {
    let path = source.path();
    let found = regular::dated(file, || Identity::of(path, file))?;
    if source.is_plain() {
        unfinished::holes(path, file, 0)?;
    }
    Ok((found, digest(path, file)?))
}

/// Checks that a file's documents were those that its digest is of. `read` is what [`Reading::documents`] has given.
///
/// # Errors
/// [`DataError::Changed`], else those of the reading, which a change may be the reason for.
pub(super) fn check_read(
    path: &Path,
    before: &Identity,
    digest: blake3::Hash,
    read: Result<Option<blake3::Hash>, PrepareError>,
) -> Result<(), PrepareError> {
    let is_same = match &read {
        // the contents may have been put back by now
        Ok(Some(found)) => *found == digest && is_unchanged(path, before, digest.to_hex().as_str())?,
        Ok(None) => is_unchanged(path, before, "")?,
        Err(_) => is_unchanged(path, before, digest.to_hex().as_str())?,
    };
    if !is_same {
        return Err(DataError::Changed { path: path.into() }.into());
    }
    read.map(drop)
}

/// blake3 of a file's contents. The file is left at its beginning.
///
/// # Errors
/// It cannot be read, or has larger holes than any whole file.
pub(super) fn digest(path: &Path, file: &mut File) -> Result<blake3::Hash, PrepareError> {
    unfinished::holes(path, file, unfinished::HOLES)?;
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; 1 << 20];
    let mut read = || -> std::io::Result<()> {
        loop {
            match file.read(&mut block) {
                Ok(0) => return std::io::Seek::rewind(file),
                Ok(read) => drop(hasher.update(&block[..read])),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    };
    read().map_err(DataError::read(path))?;
    Ok(hasher.finalize())
}
