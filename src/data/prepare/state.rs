//! How far a preparation has come, kept beside its shards until it is finished.
//!
//! A state is written whenever a file of tokens is complete. What a killed process did after that is done again, with
//! the same result: where files are cut depends on the sources and the options alone.

use super::PrepareError;
use crate::data::DataError;
use crate::data::card::SourceCard;
use crate::data::scan::Identity;
use crate::data::write::{Made, write_whole};
use crate::json;
use crate::regular::{self, OFlags, OpenDir};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::sync::Arc;

/// The directory, beside the shards, of what is removed at the end.
const DIRECTORY: &str = ".prepare";
const STATE: &str = "state.json";
const LOCK: &str = "lock";

/// Where the next token comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// The file's number.
    pub(super) file: usize,
    /// The document's number in the file.
    pub(super) document: u64,
    /// Tokens of the document that were taken.
    pub(super) within: u64,
}

/// A source that was begun, or whose characters are known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) card: SourceCard,
    /// The file as the system described it.
    pub(super) identity: Identity,
}

/// How far a preparation has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    /// What was asked for.
    #[serde(deserialize_with = "json::bounded")]
    pub(super) options: serde_json::Value,
    /// The vocabulary, for a tokenizer of characters.
    pub(super) characters: Option<String>,
    /// All sources, as they were when the characters were collected; none in states of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) vocabulary_sources: Vec<Begun>,
    /// The sources that were begun, in order.
    pub(super) sources: Vec<Begun>,
    pub(super) position: Position,
    /// Documents and bytes of text before the document at the position.
    pub(super) documents: u64,
    pub(super) bytes: u64,
    /// How often each token was taken.
    pub(super) counts: Vec<u64>,
    /// Runs of the spool that are complete.
    pub(super) runs: Vec<Made>,
    /// Whether everything was read, so that only the spool is left to be written into shards.
    pub(super) is_read: bool,
    /// Shards that are complete, in the order of their tokens.
    pub(super) shards: Vec<Made>,
    /// The last state that was kept before the source at the position began: what is gone on from once a source that is
    /// wrong is mended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Box<State>>,
}

/// The file of a state. A bit that has changed in it would be a wrong data set that nobody notices.
#[derive(Serialize, Deserialize)]
struct Kept<S> {
    /// The digest of the state as this module spells it.
    checksum: String,
    state: S,
}

fn checksum(state: &State) -> String {
    blake3::hash(&serde_json::to_vec(state).expect("a state is plain data")).to_hex().to_string()
}

impl State {
    /// Tokens that were taken.
    pub(super) fn tokens(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Tokens in complete shards.
    pub(super) fn in_shards(&self) -> u64 {
        self.shards.iter().map(|shard| shard.tokens).sum()
    }

    /// Whether the numbers go together, as those do that were kept here: others might be more than can be counted.
    fn is_sound(&self, is_spooled: bool) -> bool {
        const MOST: u64 = 1 << 60;
        let of = |files: &[Made]| sum(files.iter().map(|made| made.tokens)).filter(|sum| *sum < MOST);
        let (tokens, runs, shards) = (sum(self.counts.iter().copied()), of(&self.runs), of(&self.shards));
        let in_files = match is_spooled {
            true => runs == tokens && shards <= if self.is_read { tokens } else { Some(0) },
            false => shards == tokens && self.runs.is_empty() && !self.is_read,
        };
        let Position { file, document, within } = self.position;
        in_files
            && runs.is_some()
            && shards.is_some()
            && file < self.sources.len().max(1)
            && [self.documents, self.bytes, document, within].iter().all(|number| *number < MOST)
            && self.before.as_ref().is_none_or(|before| before.is_sound(is_spooled))
    }
}

fn sum(mut numbers: impl Iterator<Item = u64>) -> Option<u64> {
    numbers.try_fold(0u64, u64::checked_add)
}

/// Removes what a finished preparation does not need any more. What cannot be removed does no harm.
pub(super) fn clear(dir: &Path) {
    if let Ok(dir) = OpenDir::open(dir) {
        let _ = dir.remove_tree(DIRECTORY, LOCK, &|| Ok(()));
    }
}

/// The directory of a preparation, while this process is the only one that writes there.
pub(super) struct Workplace {
    pub(super) dir: Arc<OpenDir>,
    /// Where the spool and the state lie.
    pub(super) inside: Arc<OpenDir>,
    /// Whether this process made `dir`.
    is_new: bool,
    _lock: File,
}

impl Workplace {
    /// Makes the directory, unless it is there, and locks it.
    pub(super) fn open(dir: &Path) -> Result<Self, PrepareError> {
        let is_new = !dir.exists();
        let opened =
            fs::create_dir_all(dir).and_then(|()| OpenDir::open(dir)).map_err(DataError::write(dir))?;
        let path = opened.join(DIRECTORY);
        // what is unfinished is removed, and files that are none of ours may lie behind a link
        let inside = opened.make(DIRECTORY).and_then(|_| opened.inside(DIRECTORY));
        let inside = inside.map_err(DataError::write(&path))?;
        let lock = inside.open_file(LOCK, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND);
        let lock = lock.map_err(DataError::write(&inside.join(LOCK)))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(PrepareError::Locked { dir: dir.into() }),
            // a file system without locks: better without than not at all
            Err(TryLockError::Error(_)) => {}
        }
        sweep(&opened)?;
        sweep(&inside)?;
        Ok(Self { dir: Arc::new(opened), inside: Arc::new(inside), is_new, _lock: lock })
    }

    /// The state of a preparation that was begun here, which keeps all tokens on the disk first or does not.
    pub(super) fn state(&self, is_spooled: bool) -> Result<Option<State>, PrepareError> {
        if !self.inside.has(STATE) {
            return Ok(None);
        }
        let read = self.inside.read(STATE, regular::DOCUMENT);
        let bytes = read.map_err(DataError::read(&self.inside.join(STATE)))?;
        let occupied = |why: &str| self.unfinished(&format!("whose state cannot be read ({why})"));
        let kept: Kept<State> =
            serde_json::from_slice(&bytes).map_err(|error| occupied(&error.to_string()))?;
        let state = kept.state;
        if kept.checksum != checksum(&state) {
            return Err(occupied("it was changed or damaged"));
        }
        if !state.is_sound(is_spooled) {
            return Err(occupied("its numbers contradict each other"));
        }
        Ok(Some(state))
    }

    /// The error that what was begun here cannot be gone on with.
    pub(super) fn unfinished(&self, what: &str) -> PrepareError {
        PrepareError::Occupied {
            dir: self.dir.path().into(),
            what: format!("an unfinished preparation {what}"),
        }
    }

    /// Keeps a state.
    pub(super) fn keep(&self, state: &State) -> Result<(), PrepareError> {
        let kept = Kept { checksum: checksum(state), state };
        let text = serde_json::to_vec(&kept).expect("a state is plain data");
        write_whole(&self.inside, STATE, &text).map_err(Into::into)
    }

    /// A shard that lies here and does not belong to this preparation.
    pub(super) fn stranger(&self) -> Result<Option<String>, PrepareError> {
        let names = self.dir.names().map_err(DataError::read(self.dir.path()))?;
        let mut names = names.iter().map(|name| name.to_string_lossy().into_owned());
        Ok(names.find(|name| name.ends_with(".bin")))
    }

    /// Removes everything but the result.
    pub(super) fn finish(self) {
        let _ = self.dir.remove_held(DIRECTORY, &self.inside, LOCK);
    }

    /// Removes every trace of a preparation that has made nothing, with the shards of these names.
    pub(super) fn undo(self, shards: &[String]) {
        for shard in shards {
            let _ = self.dir.remove_file(shard);
        }
        let _ = self.dir.remove_held(DIRECTORY, &self.inside, LOCK);
        if self.is_new {
            // not empty where somebody else has put something there
            let _ = fs::remove_dir(self.dir.path());
        }
    }
}

/// Removes what a killed process left unfinished.
fn sweep(dir: &OpenDir) -> Result<(), PrepareError> {
    let names = dir.names().map_err(DataError::read(dir.path()))?;
    for name in names.iter().filter(|name| regular::is_temporary(name)) {
        dir.remove_file(name).map_err(DataError::write(&dir.join(name)))?;
    }
    Ok(())
}
