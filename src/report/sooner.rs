//! Whether evaluations tell which of two groups of runs reached a target sooner.
//!
//! The way to a target is interpolated between the evaluations on both sides of it. Losses fall ever more slowly, so
//! the line between two evaluations lies above the curve, and the further apart they are, the later the target seems to
//! be reached. Runs that were evaluated equally often are off by as much, and others are not.

use super::groups::Group;
use super::metrics::Metric;
use super::runs::Run;
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

/// Whether two groups reached a target between evaluations that overlap although they are not equally far apart, so
/// that their order is not known.
pub(super) fn is_unknown(groups: [&Group; 2], runs: &[Run], way: &Metric) -> bool {
    let [first, second] = groups.map(|group| between(group, runs, way));
    let overlap = first.zip(second).is_some_and(|([a, b], [c, d])| a.max(c) < b.min(d));
    let of_both = groups.into_iter().flat_map(Group::counted).flat_map(|run| tokens_apart(&runs[run]));
    overlap && of_both.collect::<BTreeSet<u64>>().len() > 1
}
