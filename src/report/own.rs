//! Whether the recipe and the logs in a run's directory are its own.
//!
//! A report shows what `recipe.toml` says, so an edited one would be believed. Reading two thousand runs must stay
//! quick: a recipe is only resolved where its bytes are not those on record.

use crate::recipe::{asks_the_disk, digest_of_values, identity_of_file, written};
use crate::run::checkpoint::{self, CheckpointState, FileDigest};
use crate::run::columns::LOGS;
use crate::run::{RunError, RunRecord, RunStatus, dir, seal, status_and_record};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// What the digest of a recipe's values is called among [`RunRecord::digests`].
const VALUES: &str = "recipe";

/// Notes the recipe of a run, which has this text, by its file and by what it says.
pub fn note_recipe(record: &mut RunRecord, text: &str) {
    record.files.insert(dir::RECIPE.to_owned(), FileDigest::of(text.as_bytes()));
    note_values(record, text);
}

/// Notes what the recipe of a run says, which has this text, beside the digest of its file.
pub fn note_values(record: &mut RunRecord, text: &str) {
    record.digests.extend(digest_of_values(text).map(|digest| (VALUES.to_owned(), digest)));
}

/// Takes off the record what the recipe says: another one is about to be written.
pub fn forget_recipe(record: &mut RunRecord) {
    record.files.remove(dir::RECIPE);
    record.digests.remove(VALUES);
}

/// Whether a recipe with this text says what is on record, however it is written. Its files may be elsewhere now.
#[must_use]
pub fn has_own_values(text: &str, record: &RunRecord) -> bool {
    record.digests.get(VALUES).is_none_or(|noted| digest_of_values(text).as_ref() == Some(noted))
}

/// Whether the recipe of `run` with this text has the identity and the values on record. It may differ in its paths.
/// The record of an earlier version lacks the values, so what is kept and shown may differ there too. `None` for a text
/// without an identity and a record without its digest: another version may have written it, or it is damaged.
#[must_use]
pub fn is_own(run: &Path, text: &str, record: &RunRecord) -> Option<bool> {
    let noted = record.files.get(dir::RECIPE);
    if record.hash.is_empty() || noted.is_some_and(|noted| *noted == FileDigest::of(text.as_bytes())) {
        return Some(true);
    }
    if written(text).is_ok_and(|values| asks_the_disk(&values)) {
        return Some(noted.is_none());
    }
    match identity_of_file(&run.join(dir::RECIPE), &record.digests) {
        Some(identity) => Some(identity == record.hash && has_own_values(text, record)),
        // where it is on record, this version wrote it, and can no longer read it
        None => noted.map(|_| false),
    }
}

/// How a log of `run` is not the one that it finished with, whose digest is among those of its `logs`. `is_same` tells
/// quickly that it is; what it does not know to be the same is read.
#[must_use]
pub fn other_log(
    run: &Path,
    log: &str,
    logs: &BTreeMap<String, FileDigest>,
    is_same: impl FnOnce(&FileDigest) -> bool,
) -> Option<String> {
    let noted = logs.get(log).filter(|noted| !is_same(noted))?;
    // of one that cannot be read nobody knows, and who reads it says so
    let is_unreadable =
        |error: &RunError| matches!(error, RunError::Io { error, .. } if error.kind() != ErrorKind::NotFound);
    // it may have been given more columns since
    let other = seal::verify_whole(&run.join(log), noted).err().filter(|error| !is_unreadable(error));
    other.map(|error| error.to_string())
}

/// How the logs of a run are not those that it finished with, or that led to its newest checkpoint.
#[must_use]
pub fn changed_logs(run: &Path) -> Vec<String> {
    let Ok((status, Some(record))) = status_and_record(run) else { return Vec::new() };
    match status {
        RunStatus::Finished => {
            let logs = LOGS.into_iter();
            logs.filter_map(|(log, _)| other_log(run, log, &record.files, |_| false)).collect()
        }
        RunStatus::Created | RunStatus::Running => Vec::new(),
        _ => altered_logs(run),
    }
}

/// How the logs of a run that may go on are not those that led to its newest checkpoint, by which it would be refused.
#[must_use]
pub fn altered_logs(run: &Path) -> Vec<String> {
    let newest = checkpoint::list(run).ok().and_then(|mut all| all.pop());
    let state = newest.and_then(|(_, newest)| CheckpointState::read(&newest).ok());
    let noted = state.map(|state| state.logs).unwrap_or_default();
    let altered = |log: &&str| seal::verify_beginning(&run.join(log), noted.get(*log)?).err();
    [dir::TRAIN_CSV, dir::VAL_CSV].iter().filter_map(altered).map(|error| error.to_string()).collect()
}
