//! The note on scores of so few examples that other ones may say something else.

use super::super::compare::{Comparison, Options};
use super::super::metrics::{self, Metric};
use super::super::runs::Run;
use super::super::target::Target;
use crate::run::column::Unit;
use crate::run::columns::task_of;
use crate::wording::thousands;
use std::path::PathBuf;

/// What `eval.csv` calls the standard error of an accuracy.
fn error_of(metric: &Metric) -> String {
    format!("{}_stderr", metric.column)
}

/// Whether a metric is an accuracy in a task.
fn is_accuracy(metric: &Metric) -> bool {
    metric.unit == Unit::Fraction && metric.target.is_none() && task_of(&metric.column).is_some()
}

/// The standard error of an accuracy that is tested, where the logs have it. No table shows it.
#[must_use]
pub fn standard_error(paths: &[PathBuf], options: &Options) -> Option<Metric> {
    let judge = options.judge.as_ref().filter(|judge| is_accuracy(judge))?;
    metrics::further(paths, &error_of(judge))
}

/// That a difference which is tested is less than what the number of examples leaves open. A test over seeds asks what
/// other seeds would do on the same examples. The standard error is that of a mean over the examples, as `eval.csv` has
/// it; in the plan of a run is how many a task has.
pub(super) fn of_few_examples(comparison: &Comparison) -> Vec<String> {
    let error = |run: &Run, metric: &Metric| {
        let by_number = || {
            let examples =
                run.facts.examples.get(task_of(&metric.column)?).filter(|examples| **examples > 1)?;
            let accuracy = run.results.get(&metric.name)?;
            Some(error_of_few(accuracy, *examples))
        };
        run.results.get(&error_of(metric)).or_else(by_number).filter(|error| error.is_finite())
    };
    let note = |metric: &Metric| {
        let tested =
            comparison.verdicts.iter().filter(|verdict| verdict.metric == *metric && verdict.test.is_some());
        let open = tested.filter_map(|verdict| {
            let groups = [verdict.groups.0, verdict.groups.1].map(|group| comparison.groups[group].counted());
            let errors = groups.into_iter().flatten().filter_map(|run| error(&comparison.runs[run], metric));
            let error = errors.reduce(f64::max)?;
            let difference = (verdict.spreads.0.mean - verdict.spreads.1.mean).abs();
            (difference < 2.0 * error).then_some(error)
        });
        let error = open.reduce(f64::max)?;
        Some(format!(
            "a difference in {} may be that of the examples at hand, which no test over seeds shows: over them, its \
             standard error is up to {}",
            metric.name,
            metric.unit.apart(error, 0.0)
        ))
    };
    let judged = comparison.judged.iter().map(|(metric, _)| metric);
    let ways = comparison.targets.iter().filter_map(|target| of_target(comparison, target));
    judged.filter(|metric| is_accuracy(metric)).filter_map(note).chain(ways).collect()
}

/// That an accuracy which is to be reached may be reached by the examples at hand: of many evaluations near it, the
/// first that crosses it is a lucky one.
fn of_target(comparison: &Comparison, target: &Target) -> Option<String> {
    let task = task_of(&target.column).filter(|_| target.best.unit == Unit::Fraction)?;
    let is_reached = |run: &Run| target.way(&run.results).is_some();
    let is_known = comparison.runs.iter().any(is_reached) && target.value > 0.0 && target.value < 1.0;
    let examples = comparison.runs.iter().filter_map(|run| run.facts.examples.get(task).copied());
    let fewest = examples.filter(|examples| *examples > 1).min().filter(|_| is_known)?;
    Some(format!(
        "the first evaluation with {} may owe it to the {} examples at hand: over them, the standard error of such a \
         score is {}",
        target.shown(),
        thousands(fewest),
        target.best.unit.apart(error_of_few(target.value, fewest), 0.0)
    ))
}

/// The standard error of an accuracy over so many examples, as that of a mean.
fn error_of_few(accuracy: f64, examples: u64) -> f64 {
    (accuracy * (1.0 - accuracy) / (examples - 1) as f64).sqrt()
}
