//! Whether evaluations tell which of two groups of runs is better at a point, or reached a target sooner.
//!
//! The way to a target is interpolated between the evaluations on both sides of it. Losses fall ever more slowly, so
//! the line between two evaluations lies above the curve, and the further apart they are, the later the target seems to
//! be reached. Runs that were evaluated equally often are off by as much, and others are not.

use super::groups::Group;
use super::metrics::Metric;
use super::runs::Run;
use super::target::{Target, Way};
use serde_json::Value as Json;
use std::collections::BTreeSet;

/// The key that says how often runs are evaluated.
const EVERY: &str = "eval.every";

/// Steps between two evaluations of a run: by its recipe, and of parts that were trained under another value.
pub(super) fn steps_apart(run: &Run) -> impl Iterator<Item = u64> {
    let own = run.value(EVERY).and_then(Json::as_u64);
    let of_part = |part: &String| part.strip_prefix(EVERY)?.strip_prefix('=')?.parse().ok();
    own.into_iter().chain(run.parts.otherwise.iter().filter_map(of_part))
}

/// Tokens between two evaluations of a run, which a batch of another size makes more or less.
pub(super) fn tokens_apart(run: &Run) -> impl Iterator<Item = u64> {
    let tokens = run.value("batch.total_tokens").and_then(Json::as_u64).unwrap_or(1);
    steps_apart(run).map(move |steps| steps.saturating_mul(tokens))
}

/// The last evaluation before and the first one after the runs of a group reached a target, by the metric of a way to
/// it; `None` for another metric, and where none did.
pub(super) fn between(group: &Group, runs: &[Run], way: &Metric) -> Option<[f64; 2]> {
    way.target.as_ref()?;
    let of_runs = group.counted().filter_map(|run| runs[run].results.between(&way.name));
    of_runs.reduce(|[a, b], [c, d]| [a.min(c), b.max(d)])
}

/// Whether evaluations leave open which of two groups is better: the values of both lie between evaluations that are
/// not equally far apart and overlap.
pub(super) fn is_unknown(groups: [&Group; 2], runs: &[Run], metric: &Metric) -> bool {
    match &metric.target {
        Some(target) => is_way_unknown(groups, runs, metric, target),
        None => is_value_unknown(groups, runs, metric),
    }
}

/// The target was reached between evaluations that overlap although they are not equally far apart, or by the first
/// one.
fn is_way_unknown(groups: [&Group; 2], runs: &[Run], way: &Metric, target: &Target) -> bool {
    let [first, second] = groups.map(|group| between(group, runs, way));
    let overlap = first.zip(second).is_some_and(|([a, b], [c, d])| a.max(c) < b.min(d));
    let of_both = || groups.into_iter().flat_map(Group::counted).map(|run| &runs[run]);
    let is_bound = |run: &Run| run.results.before_first().contains(&target.name());
    // a column of `eval.csv` has rows at other steps than the recipe says
    let steps = target.metric(Way::Steps);
    let apart = of_both().filter_map(|run| run.results.between(&steps)).map(|[begin, end]| end - begin);
    let is_unequal = are_unequal(apart.filter(|apart| *apart > 0.0))
        || of_both().flat_map(tokens_apart).collect::<BTreeSet<u64>>().len() > 1;
    overlap && (of_both().any(is_bound) || is_unequal)
}

/// The values at a cut lie between those of evaluations that overlap although they are not equally far apart.
fn is_value_unknown(groups: [&Group; 2], runs: &[Run], metric: &Metric) -> bool {
    let sides = |group: &Group| -> Vec<([f64; 2], f64)> {
        group.counted().filter_map(|run| runs[run].results.sides(&metric.name)).collect()
    };
    let [first, second] = groups.map(sides);
    let range = |sides: &[([f64; 2], f64)]| {
        sides.iter().map(|(values, _)| *values).reduce(|[a, b], [c, d]| [a.min(c), b.max(d)])
    };
    let overlap = range(&first).zip(range(&second)).is_some_and(|([a, b], [c, d])| a.max(c) <= b.min(d));
    overlap && are_unequal(first.iter().chain(&second).map(|(_, steps)| *steps))
}

fn are_unequal(mut numbers: impl Iterator<Item = f64>) -> bool {
    let first = numbers.next();
    numbers.any(|number| Some(number) != first)
}
