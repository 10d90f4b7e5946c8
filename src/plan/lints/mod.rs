//! Remarks about a plan that will run but perhaps should not: one function per lint, each with its remedy.
//!
//! A recipe that knows better says so under `[lints] allow`.

mod data;
mod machine;
mod shape;
mod training;

use super::Plan;
use super::hardware::Hardware;
use super::predict::Prediction;
use crate::recipe::{LintCode, Recipe};
use serde::Serialize;
use std::path::PathBuf;

/// What lints look at.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// What was asked for.
    pub recipe: &'a Recipe,
    /// What follows from it.
    pub plan: &'a Plan,
    /// The machine.
    pub hardware: &'a Hardware,
    /// The data, if it could be opened.
    pub shards: Option<&'a Shards>,
    /// How long it is expected to take, where that can be told.
    pub prediction: Option<&'a Prediction>,
}

/// What is known of the files of data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shards {
    /// How many are trained on.
    pub train: usize,
    /// The largest token of all, if there is one.
    pub largest: Option<usize>,
    /// Files with holes: the key, the name, and the bytes of these.
    pub unwritten: Vec<(&'static str, String, u64)>,
    /// Files whose contents an earlier one of the same set has, outside a mixture: whether they are trained on, and the
    /// name.
    pub repeated: Vec<(bool, String)>,
    /// Those of the validation data of which something is trained on.
    pub shared: Vec<Shared>,
    /// The names of the sets of validation data that the weights were trained on that the run begins with, as far as
    /// they have names; `None` where those were trained on none.
    pub seen_before: Option<Vec<String>>,
    /// Files of tasks that are not there, and the run trains without, with their keys.
    pub skipped: Vec<(&'static str, PathBuf)>,
    /// Tasks with examples that do not fit into the context: the name, how many, and of how many.
    pub cut: Vec<(String, usize, usize)>,
}

/// A shard of validation data of which something is trained on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shared {
    /// For people.
    pub name: String,
    /// The set that it is of, where there are several.
    pub set: Option<String>,
    /// Whether that is certain of this shard, and not of all those of a text together.
    pub is_certain: bool,
}

/// A remark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lint {
    /// Names it in `[lints] allow`.
    pub code: LintCode,
    /// The key that it is about.
    pub key: &'static str,
    /// What is noticed.
    pub message: String,
    /// What to do.
    pub help: String,
}

/// What a lint function returns: key, message, help.
type Remark = Option<(&'static str, String, String)>;

/// Everything worth a remark, in the order of the codes, without what the recipe allows.
pub fn lints(subject: &Subject) -> Vec<Lint> {
    let allowed = &subject.recipe.lints.allow;
    let wanted = LintCode::ALL.iter().filter(|code| !allowed.contains(code));
    wanted
        .filter_map(|&code| {
            let (key, message, help) = look(code, subject)?;
            Some(Lint { code, key, message, help })
        })
        .collect()
}

fn look(code: LintCode, subject: &Subject) -> Remark {
    match code {
        LintCode::UglyVocab => shape::vocab(subject),
        LintCode::UglyWidth => shape::width(subject),
        LintCode::UglyHeads => shape::heads(subject),
        LintCode::UglyBatch => shape::batch(subject),
        LintCode::ScheduleHorizon => training::horizon(subject),
        LintCode::UnusualLr => training::lr(subject),
        LintCode::UnusualBatch => training::batch(subject),
        LintCode::UnusedDecay => training::decay(subject),
        LintCode::ValOverlap => data::overlap(subject),
        LintCode::ManyEpochs => data::epochs(subject),
        LintCode::SmallData => data::small(subject),
        LintCode::UnreadTokens => data::unread(subject),
        LintCode::RepeatedData => data::repeated(subject),
        LintCode::UnwrittenData => data::unwritten(subject),
        LintCode::UnusedVocab => data::vocab(subject),
        LintCode::MissingTask => data::missing_task(subject),
        LintCode::CutTask => data::cut_task(subject),
        LintCode::SmallVal => data::small_validation(subject),
        LintCode::EmulatedPrecision => machine::precision(subject),
        LintCode::TightMemory => machine::memory(subject),
        LintCode::LongRun => machine::time(subject),
    }
}
