//! `run.json`: what a run is, how far it came, and what it found.
//!
//! Written by the holder of the lock at the start, at checkpoints and at the end. A process that is killed cannot
//! update it. [`status`](super::status()) therefore also asks whether a live process holds the lock; readers should
//! rely on it.

pub use super::before::{Parent, TrainedBefore};
use super::digest::FileDigest;
use super::error::Context;
use super::log::EarlierRow;
use super::status::RunStatus;
use super::{RunError, facts, files};
use crate::engine::FastPaths;
use crate::json;
use crate::regular::{self, OpenDir};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// Name of the record in a run directory.
pub const FILE: &str = "run.json";
/// The version of the record that this build writes, and the newest that it reads.
pub const FORMAT_VERSION: u64 = 1;
/// Sessions that a record keeps.
const MOST_SESSIONS: usize = 1000;

/// What begins the names of the digests of tasks.
const TASK: &str = "task_";

/// The name of the digest of one of several sets of validation data among [`RunRecord::digests`].
pub fn digest_of_set(set: &str) -> String {
    format!("set_{set}")
}

/// The name of the digest of a task's examples among [`RunRecord::digests`].
pub fn digest_of_task(task: &str) -> String {
    format!("{TASK}{task}")
}

/// Whether this is the name of the digest of some task's examples.
pub fn is_of_task(digest: &str) -> bool {
    digest.starts_with(TASK)
}

/// The peak rate that MFU is measured against.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Peak {
    /// Floating-point operations per second, of all ranks together.
    pub flops: f64,
    /// Where the number comes from, e.g. `measured` or a table.
    pub how: String,
    /// The model of the processor or CUDA device; empty in records of earlier versions.
    pub processor: String,
    /// Threads that it was measured with; 0 where it was looked up.
    pub threads: usize,
    /// The vector instructions that it was measured with, by their word in `RUNNER_SIMD`; empty where it was looked up.
    pub simd: String,
    /// When it was measured, RFC 3339 in UTC.
    pub measured: Option<String>,
}

/// One process's share of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Session {
    /// When it started, RFC 3339 in UTC.
    pub started: String,
    /// When it ended; absent while it runs, and for good if it was killed.
    pub ended: Option<String>,
    /// The first step that it took or takes.
    pub from_step: u64,
    /// One past its last step, once known.
    pub to_step: Option<u64>,
    /// The peak rate that `mfu` is a fraction of in this session's rows, in operations per second.
    pub peak_flops: Option<f64>,
    /// The vector instructions of its kernels, as [`RunRecord::simd`] has those of the last one.
    pub simd: Option<String>,
    /// What `--set` changed for it, as `key=value`.
    pub overrides: Vec<String>,
    /// The keys that a resumed run may change, with their values, where these are not the defaults; absent in records
    /// of earlier versions.
    pub settings: Option<BTreeMap<String, Value>>,
    /// The names of the tasks that its evaluations scored; absent in records of earlier versions.
    pub tasks: Option<Vec<String>>,
    /// The device trained on; absent in records of earlier versions.
    pub device: Option<String>,
    /// The machine; absent in records of earlier versions.
    pub host: Option<String>,
    /// The processor that computed; absent for a CUDA device and in records of earlier versions.
    pub processor: Option<String>,
    /// The CPU threads of a rank; absent in records of earlier versions.
    pub threads: Option<usize>,
    /// What its backward pass computed again, where the recipe leaves that open; absent in records of earlier versions.
    pub recompute: Option<String>,
    /// How several ranks were joined, `threads` of one process or `processes`, with how many of them were on the
    /// machine of rank 0; absent for a single rank and in records of earlier versions.
    pub ranks: Option<String>,
    /// When it wrote its log last, RFC 3339 in UTC, where it was killed and the run went on.
    pub last_written: Option<String>,
    /// Recipes that its process had turned to before: what they have left counts towards the memory.
    pub recipes_before: u64,
}

/// The checkpoint of the best evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BestCheckpoint {
    /// Its step.
    pub step: u64,
    /// The validation loss at that step, in nats per token.
    pub val_loss: f64,
    /// Its directory, seen from that of the run.
    pub path: String,
}

/// The evaluation that ended a run before its last step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReachedTarget {
    /// Its step. The run has taken more steps where it went on beyond it before, to a lower target or without one.
    pub step: u64,
    /// The validation loss there as `val.csv` states it, in nats per token.
    pub val_loss: f64,
    /// `schedule.stop_at_val_loss`, which it reached.
    pub target: f64,
}

/// The contents of `run.json`. Times are RFC 3339 in UTC.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunRecord {
    /// See [`FORMAT_VERSION`].
    pub format_version: u64,
    /// Name of the run directory.
    pub id: String,
    /// The recipe's name.
    pub name: String,
    /// The status as last written. Readers should ask [`status`](super::status()) instead, which notices a killed
    /// process.
    pub status: RunStatus,
    /// The identity of the run, 64 hexadecimal digits; the id ends in the first 8.
    pub hash: String,
    /// Digests that went into the identity, keyed by what was digested: the recipe, each data set.
    pub digests: BTreeMap<String, String>,
    /// The run that it began from, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// What the weights that it began with had been trained on, where those were other data than its own and that is
    /// known: weights of other programs do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trained_before: Option<TrainedBefore>,
    /// Those of several sets of validation data that are known to have been among those data.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trained_before_sets: Vec<String>,
    /// Whether some of its validation data are among its training data.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trains_on_validation: bool,
    /// Those of several sets of validation data of which that is so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trains_on_sets: Vec<String>,
    /// The losses that are of other tokens where rows have another length, as with short files: the names of their
    /// columns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by_row: Vec<String>,
    /// By what the files of its training data are known again, sorted: the beginnings of their digests and of those of
    /// the texts of shards, with `-part` where that is not all of it, and the names of built-in texts; empty where they
    /// are too many, and in records of earlier versions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train_files: Vec<String>,
    /// When the directory was made.
    pub created: String,
    /// When training first started.
    pub started: Option<String>,
    /// When a process last ended the run in order, as opposed to being killed.
    pub ended: Option<String>,
    /// Optimizer steps that the recipe asks for.
    pub total_steps: u64,
    /// Optimizer steps taken.
    pub steps_done: u64,
    /// The device trained on.
    pub device: String,
    /// The engine.
    pub engine: String,
    /// The precision of matrix products.
    pub precision: String,
    /// Whether that precision is imitated by rounding.
    pub emulated: bool,
    /// CPU threads of a rank.
    pub threads: usize,
    /// The vector instructions of the last session's kernels, by their word in `RUNNER_SIMD`; absent for a CUDA device,
    /// the reference engine and in records of earlier versions.
    pub simd: Option<String>,
    /// Versions by component: `runner`, `rustc`, a driver.
    pub versions: BTreeMap<String, String>,
    /// The commit of the recipe's repository.
    pub git_commit: Option<String>,
    /// The machine.
    pub host: String,
    /// What MFU is measured against, where known.
    pub peak: Option<Peak>,
    /// Which ways to be faster the engine uses, on devices where there is a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_paths: Option<FastPaths>,
    /// The plan as printed before the start.
    pub plan: Value,
    /// `final_loss`, `best_val_loss` and the like.
    pub results: Value,
    /// The checkpoint with the lowest validation loss, once it is on the disk; absent unless `checkpoint.keep_best`
    /// keeps it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_checkpoint: Option<BestCheckpoint>,
    /// The evaluation that ended the run before its last step; absent for a run that ended otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reached_target: Option<ReachedTarget>,
    /// The evaluation of the step that the last session went on from, which the log lacks until it is made again. It is
    /// absent once the session has ended in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluated_before: Option<EarlierRow>,
    /// Why the run failed or diverged.
    pub error: Option<String>,
    /// Whether it failed because others had changed the data: from which step on, nobody knows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub data_changed: bool,
    /// Size and digest of `recipe.toml` and, once the run has finished, of its logs; empty in records of earlier
    /// versions.
    pub files: BTreeMap<String, FileDigest>,
    /// One entry for each process that trained it.
    pub sessions: Vec<Session>,
    /// Fields that this build does not know, kept as they are.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl RunRecord {
    /// Whether it began with weights that were trained before, or with the state of a run that had.
    #[must_use]
    pub fn began_with_weights(&self) -> bool {
        let of_state = |parent: &Parent| parent.with_weights || !parent.optimizer;
        self.digests.contains_key("init_from") && self.parent.as_ref().is_none_or(of_state)
    }

    /// A record of a run that is made now, on this machine, by this build.
    pub fn new(id: &str, name: &str, hash: &str) -> Self {
        Self {
            format_version: FORMAT_VERSION,
            id: id.to_owned(),
            name: name.to_owned(),
            hash: hash.to_owned(),
            created: facts::now(),
            host: facts::host(),
            versions: BTreeMap::from([("runner".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]),
            ..Self::default()
        }
    }

    /// Notes a process that trains the run from now on. Of more than a thousand the first one and the latest stay, so
    /// that a record which is read as a whole stays small.
    pub fn begin_session(&mut self, session: Session) {
        if self.sessions.len() >= MOST_SESSIONS {
            self.sessions.drain(1..self.sessions.len() + 2 - MOST_SESSIONS);
        }
        self.sessions.push(session);
    }

    /// The first step that the run takes itself: 0 but for a run that branched off another one.
    pub fn first_step(&self) -> u64 {
        self.parent.as_ref().map_or(0, Parent::steps)
    }

    /// Whether the run, if it has ended at a target, would not end there under this one: it has none, or a lower one.
    pub fn goes_on(&self, target: Option<f64>) -> bool {
        self.reached_target.is_some_and(|reached| target.is_none_or(|target| reached.val_loss > target))
    }

    /// The evaluation that ended the run before its last step, with the numbers of steps that it took and was to take.
    pub fn reached(&self) -> Option<(ReachedTarget, u64, u64)> {
        self.reached_target.map(|reached| (reached, self.steps_done, self.total_steps))
    }

    /// Reads the record of a run directory; `None` if none has been written, or nothing but zeros are left of it.
    ///
    /// Missing fields get their defaults. Errors: [`RunError::NewerFormat`], [`RunError::Malformed`].
    pub fn read(run_dir: &Path) -> Result<Option<Self>, RunError> {
        let path = run_dir.join(FILE);
        match regular::read_unlinked(&path, regular::DOCUMENT) {
            // a power cut may leave a file without its bytes, which says as little as none
            Ok(bytes) if bytes.iter().all(|byte| *byte == 0) => Ok(None),
            Ok(bytes) => Self::from_json(&path, &bytes).map(Some).map_err(RunError::of_a_record),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context("read", &path),
        }
    }

    /// Parses the contents of a `run.json`; `path` is used in messages.
    ///
    /// Errors: [`RunError::NewerFormat`], [`RunError::Malformed`].
    pub fn from_json(path: &Path, bytes: &[u8]) -> Result<Self, RunError> {
        from_versioned_json(path, bytes, FORMAT_VERSION)
    }

    /// Writes the record atomically. Only for the holder of the run's lock.
    pub fn write(&self, run: &OpenDir) -> Result<(), RunError> {
        let path = run.join(FILE);
        let mut text =
            serde_json::to_string_pretty(self).map_err(|error| RunError::malformed(&path, error))?;
        text.push('\n');
        files::write_in(run, FILE, text.as_bytes(), "run_json")
    }
}

/// Parses JSON that states a `format_version`, refusing versions after `newest`.
pub(super) fn from_versioned_json<T: serde::de::DeserializeOwned>(
    path: &Path,
    bytes: &[u8],
    newest: u64,
) -> Result<T, RunError> {
    let value = json::value(bytes).map_err(|error| RunError::malformed(path, error))?;
    match value.get("format_version").and_then(Value::as_u64) {
        Some(found) if found > newest => {
            Err(RunError::NewerFormat { path: path.to_owned(), found, supported: newest })
        }
        Some(_) => serde_json::from_value(value).map_err(|error| RunError::malformed(path, error)),
        None => Err(RunError::malformed(path, "it states no format_version")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn record() -> RunRecord {
        let mut record = RunRecord::new("r-01234567", "r", "0123456789abcdef");
        record.digests.insert("recipe".into(), "aa".into());
        record.peak = Some(Peak { flops: 3.71e11, how: "measured".into(), ..Peak::default() });
        record.results = serde_json::json!({"final_loss": 3.25, "best_val_loss": null});
        record.sessions.push(Session { overrides: vec!["compute.threads=2".into()], ..Session::default() });
        record
    }

    #[test]
    fn a_record_survives_the_disk_with_fields_of_other_builds() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert_eq!(RunRecord::read(dir.path()).expect("absent"), None);
        let mut written = record();
        written.other.insert("of_a_later_build".into(), serde_json::json!([1, 2]));
        written.write(&OpenDir::open(dir.path()).expect("open")).expect("write");
        assert_eq!(RunRecord::read(dir.path()).expect("read"), Some(written));
    }

    #[test]
    fn of_many_sessions_the_first_and_the_latest_stay() {
        let mut record = record();
        record.sessions.clear();
        for from_step in 0..1005 {
            record.begin_session(Session { from_step, ..Session::default() });
        }
        let steps: Vec<u64> = record.sessions.iter().map(|session| session.from_step).collect();
        assert_eq!((steps.len(), steps[0], steps[1], steps[999]), (1000, 0, 6, 1004));
    }

    #[test]
    fn missing_fields_are_filled_and_newer_formats_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join(FILE);
        fs::write(&path, r#"{"format_version": 1, "id": "x", "status": "finished"}"#).expect("write");
        let record = RunRecord::read(dir.path()).expect("read").expect("there");
        assert_eq!((record.id.as_str(), record.status, record.threads), ("x", RunStatus::Finished, 0));
        fs::write(&path, r#"{"format_version": 2, "id": ["another", "shape"]}"#).expect("write");
        let error = RunRecord::read(dir.path()).expect_err("newer");
        assert!(matches!(error, RunError::NewerFormat { found: 2, supported: 1, .. }), "{error}");
        for broken in ["{", "{}", "\0{}", r#"{"format_version": 1, "status": "unheard of"}"#] {
            fs::write(&path, broken).expect("write");
            let error = RunRecord::read(dir.path()).expect_err(broken);
            assert!(error.to_string().contains("run.json"), "{error}");
        }
        for lost in ["", "\0\0\0"] {
            fs::write(&path, lost).expect("write");
            assert_eq!(RunRecord::read(dir.path()).expect("as if there were none"), None);
        }
    }
}
