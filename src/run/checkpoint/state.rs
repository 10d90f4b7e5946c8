//! `state.json`: everything of a checkpoint that is not a tensor.
//!
//! It is written last and carries a digest of each other file and of itself, so a checkpoint whose state can be read
//! was written to its end, and any later change of a bit shows.

use super::super::digest::FileDigest;
use super::super::error::{Context, RunError};
use super::super::fault;
use super::super::import::digest_of_all;
use super::super::record::from_versioned_json;
use super::MODEL;
use crate::{regular, weights};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Name of the state's file in a checkpoint.
pub(super) const FILE: &str = "state.json";
/// The version of the checkpoint format that this build writes, and the newest that it reads.
pub const FORMAT_VERSION: u64 = 1;

const CHECKSUM: &str = "checksum";

/// The loss scaler of fp16 training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Scaler {
    /// Factor on the loss; 1 in other precisions.
    pub scale: f64,
    /// Updates applied since the scale last changed.
    pub good_steps: u64,
}

impl Default for Scaler {
    fn default() -> Self {
        Self { scale: 1.0, good_steps: 0 }
    }
}

/// What the watchdog remembers of the steps whose updates were applied; empty if nothing is watched.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WatchdogState {
    /// Their losses, oldest first.
    pub losses: Vec<f64>,
    /// Their gradient norms before clipping.
    pub grad_norms: Vec<f64>,
    /// Steps skipped since the last of them.
    pub skipped: u64,
}

impl WatchdogState {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The evaluation whose checkpoint is kept besides the newest ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BestState {
    /// The step of the evaluation and of its checkpoint.
    pub step: u64,
    /// The validation loss, in nats per token.
    pub val_loss: f64,
}

/// Choices that a run keeps while a session has others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenState {
    /// As [`CheckpointState::micro_batch`].
    pub micro_batch: usize,
    /// As [`CheckpointState::keeps_outputs`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps_outputs: Option<bool>,
}

/// Where a run stands at a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointState {
    /// See [`FORMAT_VERSION`]; set when written.
    pub format_version: u64,
    /// Optimizer steps taken, skipped ones included: the next step to take.
    pub step: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Updates applied by the optimizer, skipped steps left out: a bias correction continues from here.
    pub updates_applied: u64,
    /// Rows of the stream that have been consumed: the next row to read.
    pub rows_consumed: u64,
    /// The step from which on the rows were those of the run's training data; left out where that is 0, and by earlier
    /// versions.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub data_from: u64,
    /// The loss scaler.
    pub scaler: Scaler,
    /// The watchdog's window.
    #[serde(default, skip_serializing_if = "WatchdogState::is_empty")]
    pub watchdog: WatchdogState,
    /// Seconds trained.
    pub elapsed_s: f64,
    /// The identity of the run, in full.
    pub recipe_hash: String,
    /// Digests of the data by what they are of.
    pub data_digests: BTreeMap<String, String>,
    /// Digests of the training data of the runs that its weights came from, the first of them first; left out where
    /// there are none, and by earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trained_before: Vec<String>,
    /// By what the files that its weights were trained on, by this run and by those that they came from, are known
    /// again (as `train_files` of the run's record), sorted; empty where they are too many, and by earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trained_files: Vec<String>,
    /// Sequences per forward pass of the session that has saved this.
    pub micro_batch: usize,
    /// Whether the outputs of LayerNorm and GELU are kept for the backward pass; left out where that was not decided,
    /// as on a CPU, and by earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps_outputs: Option<bool>,
    /// What the run goes on with, where the session that has saved this was given another micro-batch; left out
    /// otherwise, and by earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<ChosenState>,
    /// The lowest validation loss so far.
    pub best_val: Option<f64>,
    /// The best evaluation whose checkpoint is kept, under `checkpoint.keep_best`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<BestState>,
    /// Size and digest of what the logs, and the samples if there are any, hold before `step`, by name; empty in
    /// checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub logs: BTreeMap<String, FileDigest>,
    /// Size and digest of every other file; set when written.
    pub files: BTreeMap<String, FileDigest>,
}

/// Training data that weights have seen, as far as that is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrainedOn {
    /// The digests of whole sets, the first first.
    pub sets: Vec<String>,
    /// By what files are known again, sorted.
    pub files: Vec<String>,
}

impl CheckpointState {
    /// Whether the run has trained the weights on its data: the first checkpoint of a branch on other data is that of
    /// the run that it has begun from.
    #[must_use]
    pub fn has_trained(&self) -> bool {
        self.step > self.data_from
    }

    /// All training data that the weights have seen.
    #[must_use]
    pub fn trained_on(&self) -> TrainedOn {
        let mut sets = self.trained_before.clone();
        let own = self.data_digests.get("train").filter(|own| self.has_trained() && !sets.contains(own));
        sets.extend(own.cloned());
        TrainedOn { sets, files: self.trained_files.clone() }
    }

    /// The [digest](crate::run::import::content_digest) of the model's weights.
    #[must_use]
    pub fn digest_of_model(&self) -> String {
        digest_of_all(self.files.get(MODEL))
    }

    /// Reads the state of a checkpoint directory and checks it against its own checksum. One that another user has put
    /// beside weights that are not theirs is refused.
    ///
    /// Errors: [`RunError::Corrupted`], [`RunError::Malformed`], [`RunError::NewerFormat`].
    pub fn read(checkpoint: &Path) -> Result<Self, RunError> {
        let path = checkpoint.join(FILE);
        let model = weights::files(checkpoint).ok().and_then(|files| files.into_iter().next());
        let checked = model.map_or(Ok(()), |model| weights::check_beside(&path, &model));
        checked.map_err(|problem| RunError::PutBeside { path: path.clone(), problem })?;
        let bytes =
            fault::point("state", "read").and_then(|()| regular::read_within(&path, regular::DOCUMENT));
        let bytes = bytes.context("read", &path)?;
        Self::from_json(&path, &bytes)
    }

    /// The state that a file's contents state; `path` is for the messages. Errors as those of [`read`](Self::read).
    pub fn from_json(path: &Path, bytes: &[u8]) -> Result<Self, RunError> {
        let mut value: Value = from_versioned_json(path, bytes, FORMAT_VERSION)?;
        let stated = value.as_object_mut().and_then(|fields| fields.shift_remove(CHECKSUM));
        let expected = stated.as_ref().and_then(Value::as_str).unwrap_or("a checksum");
        let found = checksum(&value);
        if expected != found {
            let (path, expected) = (path.to_owned(), expected.to_owned());
            return Err(RunError::Corrupted { path, expected, found });
        }
        let state: Self = serde_json::from_value(value).map_err(|error| RunError::malformed(path, error))?;
        match state.files.keys().find(|name| !regular::is_beside(name)) {
            Some(name) => Err(RunError::malformed(path, format!("`{name}` is no file beside it"))),
            None => Ok(state),
        }
    }

    /// The text of the state's file.
    pub fn to_json(&self) -> String {
        let mut value = serde_json::to_value(self).expect("its maps have string keys");
        let checksum = checksum(&value);
        value.as_object_mut().expect("a struct is an object").insert(CHECKSUM.to_owned(), checksum.into());
        format!("{value:#}\n")
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(step: &u64) -> bool {
    *step == 0
}

/// The digest of the compact spelling: whitespace is free, everything else counts.
fn checksum(value: &Value) -> String {
    blake3::hash(value.to_string().as_bytes()).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn no_flipped_bit_changes_the_state_unnoticed() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join(FILE);
        let state = CheckpointState {
            format_version: FORMAT_VERSION,
            step: 1000,
            scaler: Scaler { scale: 65536.0, good_steps: 7 },
            elapsed_s: 0.1 + 0.2,
            best_val: Some(1.0 / 3.0),
            recipe_hash: "ab12".into(),
            data_digests: BTreeMap::from([("train".into(), "cd".into())]),
            files: BTreeMap::from([("f".into(), FileDigest { bytes: u64::MAX, blake3: "ef".into() })]),
            ..CheckpointState::default()
        };
        let text = state.to_json().into_bytes();
        fs::write(&path, &text).expect("write");
        assert_eq!(CheckpointState::read(dir.path()).expect("intact"), state);
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &flipped).expect("write");
            // Another space or a digit past the last that counts changes no meaning.
            if let Ok(read) = CheckpointState::read(dir.path()) {
                assert_eq!(read, state, "bit {bit}");
            }
        }
        for length in 0..text.len() - 2 {
            fs::write(&path, &text[..length]).expect("write");
            CheckpointState::read(dir.path()).expect_err("truncated");
        }
    }
}
