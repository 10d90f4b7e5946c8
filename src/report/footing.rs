//! What a metric was measured on. Losses on different data say nothing about which run is better.

use super::differences::digest;
use super::groups::Group;
use super::metrics::Metric;
use super::runs::Run;
use crate::run::column::Unit;
use crate::run::dir;

/// The runs of a comparison in sets whose judged metric was measured on the same data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footing {
    /// The set of each run, from 0, in the order in which the sets' first runs come; `None` for a run without the
    /// metric.
    pub sets: Vec<Option<usize>>,
    /// What differs between the sets, as phrases; empty for a single set.
    pub differing: Vec<String>,
}

impl Footing {
    /// Sorts runs into sets. Only a loss depends on data, and only runs that have the metric count.
    #[must_use]
    pub fn new(runs: &[Run], metric: &Metric) -> Self {
        // all that evaluations give depends on their data, of what training gives the loss alone
        let is_validation = metric.log == dir::VAL_CSV;
        let is_loss = is_validation || is_a_loss(metric);
        // a run that has not reached a target was measured all the same
        let measured = metric.target.as_ref().map_or(&metric.name, |target| &target.best.name);
        let key = if is_validation { "data.val" } else { "data.train" };
        let facts = |run: &Run| match task(run, measured).filter(|_| is_validation) {
            Some(digest) => [("the task's examples", Some(digest)), ("evaluated tokens", None)],
            None => {
                let tokens = if is_validation { evaluated(run) } else { None };
                [(key, contents(run, key)), ("evaluated tokens", tokens)]
            }
        };
        let mut known = Vec::new();
        let mut sets = Vec::new();
        for run in runs {
            if run.results.get(measured).is_none() {
                sets.push(None);
                continue;
            }
            let facts = is_loss.then(|| facts(run));
            let at = known.iter().position(|other| *other == facts).unwrap_or(known.len());
            sets.push(Some(at));
            if at == known.len() {
                known.push(facts);
            }
        }
        let known: Vec<_> = known.into_iter().flatten().collect();
        let mut differing = Vec::new();
        if let Some((first, others)) = known.split_first() {
            for (i, (name, value)) in first.iter().enumerate() {
                let differs = others.iter().any(|other| other[i].1 != *value);
                differing.extend(differs.then(|| (*name).to_owned()));
            }
        }
        Self { sets, differing }
    }

    /// The set of a group of replicas; `None` if none of its runs has the metric.
    #[must_use]
    pub fn of_group(&self, group: &Group) -> Option<usize> {
        group.counted().find_map(|run| self.sets[run])
    }

    /// How many sets there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sets.iter().flatten().max().map_or(0, |last| last + 1)
    }

    /// Whether runs were measured on different data.
    #[must_use]
    pub fn is_mixed(&self) -> bool {
        self.count() > 1
    }

    /// The runs of each set, in their order; those without the metric come behind all sets.
    #[must_use]
    pub fn apart(&self, runs: Vec<Run>) -> Vec<Vec<Run>> {
        let count = self.count();
        let mut apart: Vec<Vec<Run>> = (0..=count).map(|_| Vec::new()).collect();
        for (run, set) in runs.into_iter().zip(&self.sets) {
            apart[set.unwrap_or(count)].push(run);
        }
        apart
    }

    /// What to make of several sets, as a sentence; `None` for a single one.
    #[must_use]
    pub fn note(&self, metric: &Metric) -> Option<String> {
        let name = metric.target.as_ref().map_or(&metric.name, |target| &target.column);
        self.is_mixed().then(|| {
            format!(
                "{name} was measured on different data ({}): {} sets of runs, which are neither ranked against \
                 each other nor tested",
                self.differing.join(" and "),
                self.count()
            )
        })
    }
}

/// Whether a metric is a loss, or the way to one.
fn is_a_loss(metric: &Metric) -> bool {
    metric.target.as_ref().map_or(metric.unit, |target| target.best.unit) == Unit::Loss
}

/// What a key of the data names: its digest where that is on record, else the names.
fn contents(run: &Run, key: &str) -> Option<String> {
    digest(run, key).cloned().or_else(|| Some(run.value(key)?.to_string()))
}

/// What follows a task's name in the names of its scores (`eval::Tally::scores`).
const SCORES: [&str; 5] = ["_acc", "_acc_norm", "_lm_eval_acc", "_lm_eval_acc_norm", "_perplexity"];

/// The digest of the task that a metric is a score of; `None` for a loss.
fn task(run: &Run, metric: &str) -> Option<String> {
    let score = metric.strip_prefix("best_").unwrap_or(metric);
    let of_task = |name: &str| {
        let task = name.strip_prefix("task_")?;
        SCORES.contains(&score.strip_prefix(task)?).then_some(task.len())
    };
    let found = run.facts.digests.iter().filter_map(|(name, digest)| Some((of_task(name)?, digest)));
    // `x_lm_eval` has a score that `x` could have
    found.max_by_key(|(len, _)| *len).map(|(_, digest)| digest.clone())
}

/// The tokens of an evaluation: from the record, or else as many as the recipe asks for at most.
fn evaluated(run: &Run) -> Option<String> {
    let number = |key: &str| run.value(key)?.as_u64();
    let batches = || number("eval.batches")?.checked_mul(number("batch.total_tokens")?);
    let rounded = || number("eval.tokens")?.checked_next_multiple_of(number("model.block_size")?);
    let asked = || rounded().or_else(batches);
    let known = || run.facts.eval_rows?.checked_mul(number("model.block_size")?);
    known().or_else(asked).map(|tokens| tokens.to_string())
}
