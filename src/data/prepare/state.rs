//! How far a preparation has come, kept beside its shards until it is finished.
//!
//! A state is written whenever a file of tokens is complete, and a shard gets its name only once a state lists it: what
//! no state lists is not this preparation's. What a killed process did after that is done again, with the same result:
//! where files are cut depends on the sources and the options alone.

use super::PrepareError;
use crate::data::DataError;
use crate::data::card::{self, CARD, SourceCard};
use crate::data::scan::Identity;
use crate::data::unfinished::{PREPARE, STATE};
use crate::data::write::{Made, whole, write_through};
use crate::json;
use crate::regular::{self, OFlags, OpenDir};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

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
    /// What states of earlier versions have in place of [`back`](Self::back): a whole state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Box<State>>,
    /// The last state that was kept before the source at the position began: what is gone on from once a source that is
    /// wrong is mended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) back: Option<Earlier>,
    /// Whether every token is in a shard, so that only the card is left.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) is_complete: bool,
    /// Whether shards get their names once a state lists them. With states of earlier versions, the next one may be
    /// there already.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) lists_first: bool,
    /// Shards with names that were given up by going back, and are to be removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) dropped: Vec<(String, Made)>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// In what an earlier state of a preparation differs from a later one. All lists have only grown since.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Earlier {
    /// How many of the sources were begun, and of the files of tokens complete.
    sources: usize,
    runs: usize,
    shards: usize,
    position: Position,
    documents: u64,
    bytes: u64,
    counts: Vec<u64>,
}

impl Earlier {
    pub(super) fn of(state: &State) -> Self {
        Self {
            sources: state.sources.len(),
            runs: state.runs.len(),
            shards: state.shards.len(),
            position: state.position,
            documents: state.documents,
            bytes: state.bytes,
            counts: state.counts.clone(),
        }
    }
}

/// The file of a state. A bit that has changed in it would be a wrong data set that nobody notices.
#[derive(Serialize, Deserialize)]
struct Kept<S> {
    /// The digest of the state as this module spells it.
    checksum: String,
    state: S,
}

/// The digest of a state, which may be long, and how many bytes it takes.
fn checksum(state: &State) -> (String, u64) {
    #[derive(Debug)]
    struct Counted(blake3::Hasher, u64);
    impl Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 += bytes.len() as u64;
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counted = io::BufWriter::new(Counted(blake3::Hasher::new(), 0));
    serde_json::to_writer(&mut counted, state).expect("a state is plain data");
    let Counted(hasher, bytes) = counted.into_inner().expect("a hasher takes everything");
    (hasher.finalize().to_hex().to_string(), bytes)
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

    /// Goes back to an earlier state.
    pub(super) fn return_to(&mut self, earlier: Earlier) {
        let Earlier { sources, runs, shards, position, documents, bytes, counts } = earlier;
        self.sources.truncate(sources);
        self.runs.truncate(runs);
        self.shards.truncate(shards);
        (self.position, self.documents, self.bytes, self.counts) = (position, documents, bytes, counts);
        (self.is_read, self.is_complete, self.back) = (false, false, None);
    }

    /// Whether the numbers go together, as those do that were kept here: others might be more than can be counted.
    fn is_sound(&self, is_spooled: bool) -> bool {
        self.adds_up(&Earlier::of(self), self.is_read, is_spooled)
            && (!self.is_complete || self.in_shards() == self.tokens())
            && (self.vocabulary_sources.is_empty() || self.sources.len() <= self.vocabulary_sources.len())
            && self.dropped.iter().all(|(name, _)| is_shard(name))
            && self.back.as_ref().is_none_or(|back| self.adds_up(back, false, is_spooled))
    }

    /// Whether the numbers of this moment go together.
    fn adds_up(&self, at: &Earlier, is_read: bool, is_spooled: bool) -> bool {
        const MOST: u64 = 1 << 60;
        let of = |files: &[Made]| sum(files.iter().map(|made| made.tokens)).filter(|sum| *sum < MOST);
        let (Some(runs), Some(shards)) = (self.runs.get(..at.runs), self.shards.get(..at.shards)) else {
            return false;
        };
        let has_runs = !runs.is_empty();
        let (tokens, runs, shards) = (sum(at.counts.iter().copied()), of(runs), of(shards));
        let in_files = match is_spooled {
            true => runs == tokens && shards <= if is_read { tokens } else { Some(0) },
            false => shards == tokens && !has_runs && !is_read,
        };
        let Position { file, document, within } = at.position;
        in_files
            && runs.is_some()
            && shards.is_some()
            && at.sources <= self.sources.len()
            && file < at.sources.max(1)
            && [at.documents, at.bytes, document, within].iter().all(|number| *number < MOST)
    }
}

fn sum(mut numbers: impl Iterator<Item = u64>) -> Option<u64> {
    numbers.try_fold(0u64, u64::checked_add)
}

/// Removes what a finished preparation does not need any more. What cannot be removed does no harm.
pub(super) fn clear(dir: &Path) {
    if let Ok(dir) = OpenDir::open(dir) {
        let _ = dir.remove_tree(PREPARE, LOCK, &|| Ok(()));
    }
}

/// The directory of a preparation, while this process is the only one that writes there.
pub(super) struct Workplace {
    pub(super) dir: Arc<OpenDir>,
    /// Where the spool, the state and the shards without a name lie.
    pub(super) inside: Arc<OpenDir>,
    /// Whether this process made `dir`.
    is_new: bool,
    lock: File,
}

impl Workplace {
    /// Makes the directory, unless it is there, and locks it.
    pub(super) fn open(dir: &Path) -> Result<Self, PrepareError> {
        let is_new = !dir.exists();
        let opened = OpenDir::make_all(dir).map_err(DataError::write(dir))?;
        let path = opened.join(PREPARE);
        // what is unfinished is removed, and files that are none of ours may lie behind a link
        let inside = opened.make(PREPARE).and_then(|_| opened.inside(PREPARE));
        let inside = inside.map_err(DataError::write(&path))?;
        if let Some(user) = inside.of_another().map_err(DataError::read(&path))? {
            return Err(PrepareError::OfAnother { inside: path, user });
        }
        let lock = inside.open_file(LOCK, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND);
        let lock = lock.map_err(DataError::write(&inside.join(LOCK)))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(PrepareError::Locked { dir: dir.into() }),
            // a file system without locks: better without than not at all
            Err(TryLockError::Error(_)) => {}
        }
        // earlier versions wrote beside the shards
        sweep(&opened, |name| is_shard(name) || name.starts_with(CARD))?;
        sweep(&inside, |_| true)?;
        Ok(Self { dir: Arc::new(opened), inside: Arc::new(inside), is_new, lock })
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
        drop(bytes);
        let mut state = kept.state;
        if kept.checksum != checksum(&state).0 {
            return Err(occupied("it was changed or damaged"));
        }
        if let Some(before) = state.before.take() {
            state.back = Some(Earlier::of(&before));
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

    /// Keeps a state, unless it is longer than one that is read.
    pub(super) fn keep(&self, state: &State) -> Result<(), PrepareError> {
        let (checksum, bytes) = checksum(state);
        if bytes > card::MAX_BYTES - (1 << 10) {
            return Err(PrepareError::TooLong { files: state.sources.len(), shards: state.shards.len() });
        }
        let kept = Kept { checksum, state };
        let write = |file: &mut io::BufWriter<_>| Ok(serde_json::to_writer(file, &kept)?);
        write_through(&self.inside, STATE, write).map_err(Into::into)
    }

    /// Gives a shard that is complete its name, which nothing else may have.
    pub(super) fn publish(&self, name: &str, made: &Made) -> Result<(), PrepareError> {
        let path = self.dir.join(name);
        match self.inside.name_into(name, &self.dir, name) {
            // of a process that was killed, perhaps of an earlier version
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match self.holds(name, made)? {
                true => self.inside.remove_file(name).map_err(DataError::write(&path))?,
                false => return Err(self.occupied_by(name)),
            },
            named => named.map_err(DataError::write(&path))?,
        }
        self.dir.sync().map_err(|error| DataError::write(&path)(error).into())
    }

    /// Gives the card that lies inside its name, which nothing else may have.
    pub(super) fn publish_card(&self) -> Result<(), PrepareError> {
        let path = self.dir.join(CARD);
        match self.inside.name_into(CARD, &self.dir, CARD).and_then(|()| self.dir.sync()) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(self.occupied_by(CARD)),
            named => named.map_err(|error| DataError::write(&path)(error).into()),
        }
    }

    /// Removes the shards that were given up. What has their names and holds something else stays.
    pub(super) fn remove(&self, dropped: &[(String, Made)]) -> Result<(), PrepareError> {
        for (name, made) in dropped {
            if self.holds(name, made)? {
                self.dir.remove_file(name).map_err(DataError::write(&self.dir.join(name)))?;
            }
        }
        Ok(())
    }

    /// Whether a shard is there as it was made.
    fn holds(&self, name: &str, made: &Made) -> Result<bool, PrepareError> {
        let path = self.dir.join(name);
        Ok(!self.dir.is_link(name) && path.is_file() && whole(&path)?.as_ref() == Some(made))
    }

    /// The first file of tokens that lies here under none of these names.
    pub(super) fn stranger(&self, known: &[String]) -> Result<Option<String>, PrepareError> {
        let names = self.dir.names().map_err(DataError::read(self.dir.path()))?;
        let names = names.iter().map(|name| name.to_string_lossy().into_owned());
        let is_strange = |name: &String| name.ends_with(".bin") && !name.starts_with('.');
        Ok(names.filter(|name| is_strange(name) && !known.contains(name)).min())
    }

    /// The error that something lies here that is not this preparation's.
    pub(super) fn occupied_by(&self, name: &str) -> PrepareError {
        PrepareError::Occupied {
            dir: self.dir.path().into(),
            what: format!("{name}, which no preparation of these sources has made"),
        }
    }

    /// Removes everything but the result.
    pub(super) fn finish(self) {
        let _ = self.dir.remove_held(PREPARE, &self.inside, &|| Ok(()), (LOCK, self.lock));
    }

    /// Removes every trace of a preparation that has made nothing, with the shards of these names.
    pub(super) fn undo(self, shards: &[String]) {
        for shard in shards {
            let _ = self.dir.remove_file(shard);
        }
        let _ = self.dir.remove_held(PREPARE, &self.inside, &|| Ok(()), (LOCK, self.lock));
        if self.is_new {
            // not empty where somebody else has put something there
            let _ = fs::remove_dir(self.dir.path());
        }
    }
}

/// Whether a preparation gives shards such names.
fn is_shard(name: &str) -> bool {
    regular::is_beside(name) && (name.starts_with("train-") || name.starts_with("val-"))
}

/// Removes what a killed process left unfinished of files whose names `are_ours`.
fn sweep(dir: &OpenDir, are_ours: impl Fn(&str) -> bool) -> Result<(), PrepareError> {
    let is_ours = |name: &OsStr| regular::meant(name).is_some_and(|meant| are_ours(&meant.to_string_lossy()));
    let names = dir.names().map_err(DataError::read(dir.path()))?;
    for name in names.iter().filter(|name| is_ours(name)) {
        dir.remove_file(name).map_err(DataError::write(&dir.join(name)))?;
    }
    Ok(())
}
