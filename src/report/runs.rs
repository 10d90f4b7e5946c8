//! A run as a report sees it: its recipe, its facts and its results, read without taking its lock.
//!
//! A crash or another version may have left a run incomplete. What is missing is empty, what is odd is a warning, and
//! no run prevents the others from being shown.

use super::axis::Axis;
use super::chosen::Chosen;
use super::gather::{Gathered, Results, Scratch, Wanted, gather};
use super::metrics::Metric;
use super::own::{altered_logs, is_own};
use super::parts::Parts;
use super::planned;
use super::scan::last_row;
use super::spans::Span;
use crate::recipe::{BatchConfig, MicroBatch, StepSizes, written};
use crate::regular;
use crate::run::checkpoint::FileDigest;
use crate::run::log::EarlierRow;
use crate::run::record::{Parent, ReachedTarget, TrainedBefore};
use crate::run::{RunError, RunRecord, RunStatus, dir, lock, status_and_record};
use rayon::prelude::*;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a reader of a comparison should know about a run that was not trained to its last step.
const AT_TARGET: &str = "schedule.stop_at_val_loss ended it before its last step: --target compares how soon";

/// The note on a run whose log is not what is on record of it.
pub const LOG_CHANGED: &str = "a log of it was changed: what that says now is shown";

/// Why the rows of a run count for nothing.
const DATA_CHANGED: &str = "its data were changed while it was trained, so its last rows may be of other data: it is \
                            left out of means and tests";

/// Why a run counts for nothing whose recipe says something else than it was trained by.
const EDITED: &str =
    "its recipe.toml was edited, and is not what it was trained by: it is left out of means and tests";

/// A run that was read.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its directory.
    pub path: PathBuf,
    /// The directory's name.
    pub id: String,
    /// Its status now.
    pub status: RunStatus,
    /// The resolved recipe, known keys first.
    pub recipe: Vec<(String, Json)>,
    /// What `run.json` says beside the recipe.
    pub facts: Facts,
    /// What parts of it were trained with that neither says.
    pub parts: Parts,
    /// What `auto` came to.
    pub chosen: Chosen,
    /// What the logs say.
    pub results: Results,
    /// Whether it reached the cut, or its last step if there is no cut, and is not [altered](Self::is_altered).
    pub complete: bool,
    /// Whether its `recipe.toml` is not what it was trained by.
    pub is_edited: bool,
    /// What was odd about its files, one line each, naming the file.
    pub warnings: Vec<String>,
    /// What a reader of a comparison should know about the run, one phrase each, without its id.
    pub notes: Vec<String>,
}

/// What a report takes from `run.json`; the fields are empty if the run has no such file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// The name of the directory that it was made in.
    pub id: String,
    /// The identity of the run; empty where there is no record.
    pub hash: String,
    /// The recipe's name.
    pub name: String,
    /// Optimizer steps asked for.
    pub total_steps: u64,
    /// Tokens of all these steps, as the plan had them.
    pub total_tokens: Option<u64>,
    /// The device trained on.
    pub device: String,
    /// The processor that computed last, as the peak rate names it; empty for a CUDA device.
    pub processor: String,
    /// The vector instructions of the last session's kernels.
    pub simd: String,
    /// The threads of a rank of the last session; 0 for a CUDA device.
    pub threads: usize,
    /// The peak rate that MFU is a fraction of, in operations per second.
    pub peak_flops: Option<u64>,
    /// Peak memory in bytes of its last process, the last evaluation and checkpoint included.
    pub peak_memory_bytes: Option<f64>,
    /// The machine.
    pub host: String,
    /// The version of this program.
    pub version: String,
    /// The commit of the recipe's repository.
    pub git_commit: Option<String>,
    /// Whether the precision is imitated by rounding.
    pub emulated: bool,
    /// Digests of the data, by what they are of.
    pub digests: BTreeMap<String, String>,
    /// How several ranks were joined in its last session.
    pub ranks: Option<String>,
    /// Rows of one evaluation, as the plan had them.
    pub eval_rows: Option<u64>,
    /// Rows of one evaluation of each set of validation data but the one that decides what is best, by its name.
    pub eval_others: BTreeMap<String, u64>,
    /// How many examples each task has that its evaluations score.
    pub examples: BTreeMap<String, u64>,
    /// The losses that are of other tokens where rows have another length, by the names of their columns. Records of
    /// earlier versions do not say.
    pub by_row: Option<Vec<String>>,
    /// The step of the checkpoint with the lowest validation loss, where it is kept.
    pub best_step: Option<u64>,
    /// Size and digest of the logs that it finished with; empty for a run that has not, and in the records of earlier
    /// versions.
    pub logs: BTreeMap<String, FileDigest>,
    /// The evaluation of the step that it goes on from, which `val.csv` lacks until it is made again.
    pub evaluated_before: Option<EarlierRow>,
    /// The run that it began from, with the step.
    pub parent: Option<Parent>,
    /// What the weights that it began with had been trained on beside its own training data.
    pub trained_before: Option<TrainedBefore>,
    /// Those of several sets of validation data that are known to have been among those data.
    pub trained_before_sets: Vec<String>,
    /// Whether some of its validation data are among its training data.
    pub trains_on_validation: bool,
    /// Those of several sets of validation data of which that is so.
    pub trains_on_sets: Vec<String>,
    /// The evaluation that ended it before its last step.
    pub reached_target: Option<ReachedTarget>,
    /// Why it failed or diverged.
    pub error: Option<String>,
    /// Whether it failed because others had changed the data.
    pub data_changed: bool,
    /// When it was made, RFC 3339 in UTC.
    pub created: String,
    /// When a process last ended it in order, RFC 3339 in UTC.
    pub ended: Option<String>,
    /// When and where its processes trained; empty where that is not known of one.
    pub spans: Vec<Span>,
}

impl From<RunRecord> for Facts {
    fn from(record: RunRecord) -> Self {
        let mut logs = record.files;
        logs.remove(dir::RECIPE);
        if record.status != RunStatus::Finished {
            logs.clear();
        }
        Self {
            logs,
            id: record.id,
            hash: record.hash,
            name: record.name,
            total_steps: record.total_steps,
            total_tokens: record.plan.get("tokens").and_then(Json::as_u64),
            peak_flops: record.peak.as_ref().map(|peak| peak.flops as u64),
            peak_memory_bytes: record.results.get("peak_memory_bytes").and_then(Json::as_f64),
            // that of a CUDA device is its name
            processor: record
                .peak
                .filter(|_| record.device == "cpu")
                .map(|peak| peak.processor)
                .unwrap_or_default(),
            simd: record.simd.unwrap_or_default(),
            threads: if record.device == "cpu" { record.threads } else { 0 },
            device: record.device,
            host: record.host,
            version: record.versions.get("runner").cloned().unwrap_or_default(),
            git_commit: record.git_commit,
            emulated: record.emulated,
            digests: record.digests,
            ranks: record.sessions.last().and_then(|last| last.ranks.clone()),
            eval_rows: record.plan.get("eval_rows").and_then(Json::as_u64),
            eval_others: planned::eval_others(&record.plan).into_iter().flatten().collect(),
            examples: planned::examples(&record.plan).into_iter().flatten().collect(),
            by_row: (!record.train_files.is_empty()).then_some(record.by_row),
            best_step: record.best_checkpoint.map(|best| best.step),
            evaluated_before: record.evaluated_before,
            parent: record.parent,
            trained_before: record.trained_before,
            trained_before_sets: record.trained_before_sets,
            trains_on_validation: record.trains_on_validation,
            trains_on_sets: record.trains_on_sets,
            reached_target: record.reached_target,
            error: record.error,
            data_changed: record.data_changed,
            created: record.created,
            ended: record.ended,
            spans: Vec::new(),
        }
    }
}

impl Facts {
    /// The steps that another run has taken, which stand in no row.
    #[must_use]
    pub fn steps_before(&self) -> u64 {
        self.parent.as_ref().map_or(0, Parent::steps)
    }
}

impl Run {
    /// Reads everything but the logs.
    ///
    /// Errors: [`RunError::NotARun`] if `path` holds no run.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        let mut warnings = Vec::new();
        let mut warn = |error: &dyn std::fmt::Display| warnings.push(error.to_string());
        let (status, record) = match status_and_record(path) {
            Ok(known) => known,
            Err(error @ RunError::NotARun { .. }) => return Err(error),
            Err(error) => {
                warn(&error);
                (RunStatus::Unknown, None)
            }
        };
        // those that have ended have no lock to ask for
        if let RunStatus::Running | RunStatus::Created = status
            && let Err(error) = lock::is_held(&path.join(lock::FILE))
        {
            warn(&error);
        }
        let file = path.join(dir::RECIPE);
        let text = regular::read_unlinked_text(&file, regular::RECIPE);
        let known = text.as_ref().ok().zip(record.as_ref());
        let is_edited = known.is_some_and(|(text, record)| is_own(path, text, record) == Some(false));
        if let Some(record) = record.as_ref().filter(|_| is_edited) {
            warn(&format!(
                "`{}` was edited: it is not the recipe of the run, whose hash begins with {}; `runner` with that \
                 recipe writes it again",
                file.display(),
                record.hash.get(..8).unwrap_or(&record.hash)
            ));
        }
        let recipe = text.map_err(|error| error.to_string()).and_then(|text| written(&text));
        let recipe = recipe.unwrap_or_else(|error| {
            warn(&format!("`{}` cannot be read: {error}", file.display()));
            Vec::new()
        });
        let id = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let id = id.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let parts = record.as_ref().map(|record| Parts::new(record, &recipe, path)).unwrap_or_default();
        let chosen = record.as_ref().map(|record| Chosen::new(&record.plan, &recipe)).unwrap_or_default();
        let spans = record.as_ref().map(|record| Span::of_run(record, path, status)).unwrap_or_default();
        let facts = Facts { spans, ..record.map(Facts::from).unwrap_or_default() };
        let at_target = facts.reached_target.filter(|_| status == RunStatus::Finished);
        let at_target = at_target.map(|_| AT_TARGET.to_owned());
        let edited = is_edited.then(|| EDITED.to_owned());
        let notes = at_target.into_iter().chain(edited).chain(parts.note()).collect();
        let results = Results::default();
        let complete = status == RunStatus::Finished && !is_edited;
        Ok(Self {
            path: path.to_owned(),
            id,
            status,
            recipe,
            facts,
            parts,
            chosen,
            results,
            complete,
            is_edited,
            warnings,
            notes,
        })
    }

    /// Its status for people: that of a run that ended before its last step says why.
    #[must_use]
    pub fn status_shown(&self) -> String {
        match (self.status, self.facts.reached_target) {
            (RunStatus::Finished, Some(_)) => "finished at target".to_owned(),
            (status, _) => status.to_string(),
        }
    }

    /// Reads a run with the results of its logs: the metrics of the table of columns, and what else is `wanted`.
    ///
    /// Errors: [`RunError::NotARun`] if `path` holds no run.
    pub fn read_whole(path: &Path, wanted: Wanted, scratch: &mut Scratch) -> Result<Self, RunError> {
        let mut run = Self::read(path)?;
        let Gathered { results, malformed, reached, unreadable, changed } =
            gather(path, &run.facts, wanted, |basis, column| basis.goes_on(&run, column), scratch);
        run.results = results;
        run.results.is_cut_by_time = wanted.cut.is_some_and(|cut| cut.axis == Axis::Time);
        let is_readable = unreadable.is_empty();
        let may_go_on =
            matches!(run.status, RunStatus::Interrupted | RunStatus::Failed | RunStatus::Diverged);
        let altered = if may_go_on && is_readable { altered_logs(path) } else { Vec::new() };
        if !changed.is_empty() || !altered.is_empty() {
            run.notes.push(LOG_CHANGED.to_owned());
        }
        run.warnings.extend(changed.into_iter().chain(altered));
        run.warnings.extend(unreadable);
        run.complete &= is_readable;
        let at_target = run.facts.reached_target.filter(|_| run.status == RunStatus::Finished);
        if wanted.cut.is_none() {
            // a run that was let go beyond its target has other values than one that ended there
            let steps = run.results.get("steps").map_or(0, |steps| steps as u64);
            run.results.at_target = at_target.map(|reached| reached.step.max(steps));
            // the last evaluation and checkpoint come after the last row
            run.results.raise("memory_bytes", run.facts.peak_memory_bytes);
        } else {
            run.complete = reached && is_readable;
            if !reached && is_readable {
                let may_go_on = matches!(run.status, RunStatus::Created | RunStatus::Running);
                let what = if may_go_on { "it has not come to" } else { "it ended before" };
                run.notes.push(format!("{what} the point of comparison"));
            }
        }
        run.complete &= !run.is_altered();
        if run.facts.data_changed {
            run.notes.push(DATA_CHANGED.to_owned());
        }
        if malformed > 0 {
            run.warnings
                .push(format!("{malformed} malformed rows in the logs of `{}` are left out", path.display()));
        }
        Ok(run)
    }

    /// Whether its value of a metric counts in means and tests: that of a complete run does, and the way to a target
    /// does of every run that has reached it.
    #[must_use]
    pub fn counts(&self, metric: &Metric) -> bool {
        self.complete || metric.target.is_some() && !self.is_altered()
    }

    /// Whether it has what a metric was measured on. A way that was gone to a target needs no value at the cut.
    #[must_use]
    pub fn is_measured(&self, metric: &Metric) -> bool {
        [metric.measured(), metric].iter().any(|metric| self.results.get(&metric.name).is_some())
    }

    /// Whether a log of it is not what is on record of it.
    #[must_use]
    pub fn has_changed_log(&self) -> bool {
        self.notes.iter().any(|note| note == LOG_CHANGED)
    }

    /// Whether what it was trained with is not what its recipe and its record say: its recipe was edited, or its data
    /// were changed meanwhile.
    #[must_use]
    pub fn is_altered(&self) -> bool {
        self.is_edited || self.facts.data_changed
    }

    /// The value of a recipe's key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&Json> {
        self.recipe.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// How many rows each of its steps takes, as far as its recipe says it.
    #[must_use]
    pub fn step_sizes(&self) -> Option<StepSizes> {
        let number = |key: &str| self.value(key)?.as_u64();
        let size = |key: &str| number(key)?.try_into().ok();
        let batch = BatchConfig {
            total_tokens: size("batch.total_tokens")?,
            micro_batch: MicroBatch::Auto,
            world_size: 1,
            ramp_start: size("batch.ramp_start").unwrap_or(0),
            ramp_tokens: number("batch.ramp_tokens"),
            ramp_increment: size("batch.ramp_increment"),
        };
        // without which its tokens are those of rows of any length
        let block_size = size("model.block_size").filter(|size| *size > 0).unwrap_or(1);
        Some(StepSizes::new(&batch, block_size))
    }
}

/// Reads runs with their results, in parallel and in order.
///
/// Errors: the first one that [`Run::read_whole`] gives. Runs that were removed since they were found are left out.
pub fn read_all(paths: &[PathBuf], wanted: Wanted) -> Result<Vec<Run>, RunError> {
    let read = |scratch: &mut Scratch, path: &PathBuf| match Run::read_whole(path, wanted, scratch) {
        Err(RunError::NotARun { .. }) => None,
        read => Some(read),
    };
    paths.par_iter().map_init(Scratch::default, read).flatten().collect()
}

/// The furthest point that all of these runs have reached, those aside that have no row or a log that cannot be read;
/// `None` if no run has rows.
#[must_use]
pub fn common_end(paths: &[PathBuf], axis: Axis) -> Option<f64> {
    let end = |path: &PathBuf| {
        let row = last_row(&path.join(dir::TRAIN_CSV), &[axis.column()]).ok().flatten()?;
        Some(axis.reached(row[0])).filter(|end| end.is_finite())
    };
    paths.par_iter().filter_map(end).reduce_with(f64::min)
}
