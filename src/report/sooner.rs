//! Whether evaluations tell which of two groups of runs is better at a point, or reached a target sooner.
//!
//! The way to a target is interpolated between the evaluations on both sides of it. The line between two evaluations
//! lies above a curve that flattens and below one that begins to fall: the target was reached anywhere between the two.

use super::groups::Group;
use super::metrics::Metric;
use super::runs::Run;
use super::target::Target;
use serde_json::Value as Json;

/// The key that says how often runs are evaluated.
pub(super) const EVERY: &str = "eval.every";

/// Steps between two evaluations of a run: by its recipe, and of parts that were trained under another value.
pub(super) fn steps_apart(run: &Run) -> impl Iterator<Item = u64> {
    let own = run.value(EVERY).and_then(Json::as_u64);
    let of_part = |part: &String| part.strip_prefix(EVERY)?.strip_prefix('=')?.parse().ok();
    own.into_iter().chain(run.parts.otherwise.iter().filter_map(of_part))
}

/// The way to a target, and the evaluations before and behind its end, by the metric of that way: the means over the
/// runs of a group that have reached it and count.
pub(super) struct End {
    pub(super) at: f64,
    between: [f64; 2],
}

impl End {
    /// `None` for another metric, and where no run has reached the target.
    pub(super) fn of(group: &Group, runs: &[Run], way: &Metric) -> Option<Self> {
        way.target.as_ref()?;
        let of_run = |run: usize| {
            let results = &runs[run].results;
            let [before, behind] = results.between(&way.name)?;
            Some([results.get(&way.name)?, before, behind])
        };
        let counted = group.counted().filter(|&run| runs[run].counts(way));
        let ends: Vec<[f64; 3]> = counted.filter_map(of_run).collect();
        let mean = |which: usize| ends.iter().map(|end| end[which]).sum::<f64>() / ends.len() as f64;
        (!ends.is_empty()).then(|| Self { at: mean(0), between: [mean(1), mean(2)] })
    }

    /// Whether it is known to the step.
    fn is_exact(&self) -> bool {
        self.between[0] >= self.between[1]
    }

    /// Whether it may come before the last place at which another one may.
    fn may_precede(&self, other: &Self) -> bool {
        let (first, last) = (self.between[0], other.between[1]);
        first < last || self.is_exact() && first <= last
    }
}

/// The runs of a group that have come as far as one of its seeds that has reached a target, and may reach it yet:
/// without them, its ways are those of the sooner seeds.
pub(super) fn overtaken<'a>(
    group: &'a Group,
    runs: &'a [Run],
    target: &'a Target,
) -> impl Iterator<Item = usize> + 'a {
    let reached = group.reached(runs, target).filter_map(|(run, _)| target.way(&runs[run].results));
    let soonest = reached.map(|[steps, ..]| steps).fold(f64::INFINITY, f64::min);
    let is_as_far = move |run: &usize| runs[*run].results.get("steps").is_some_and(|steps| steps >= soonest);
    group.open(runs, target).filter(is_as_far)
}

/// Whether a metric of a group is a way of which some of its seeds have [overtaken](overtaken) others.
pub(super) fn is_overtaking(group: &Group, runs: &[Run], metric: &Metric) -> bool {
    metric.target.as_ref().is_some_and(|target| overtaken(group, runs, target).next().is_some())
}

/// Whether evaluations leave open which of two groups is better: which reached a target sooner, or has the better value
/// at a point between evaluations.
pub(super) fn is_unknown(groups: [&Group; 2], runs: &[Run], metric: &Metric) -> bool {
    match &metric.target {
        Some(_) => is_way_unknown(groups, runs, metric),
        None => is_value_unknown(groups, runs, metric),
    }
}

/// The ways end anywhere between two evaluations each, and these ranges overlap. A curve that bends is on either side
/// of the line, by how much depends on the curve, so it does not help that both were evaluated equally often.
fn is_way_unknown(groups: [&Group; 2], runs: &[Run], way: &Metric) -> bool {
    let [first, second] = groups.map(|group| End::of(group, runs, way));
    first.zip(second).is_some_and(|(first, second)| {
        first.may_precede(&second) && second.may_precede(&first) && !(first.is_exact() && second.is_exact())
    })
}

/// The values at a cut lie anywhere between those of two evaluations each, and these ranges, in the mean over the
/// seeds, overlap. Two curves may cross between evaluations, so it does not help that both were evaluated at the same
/// steps.
fn is_value_unknown(groups: [&Group; 2], runs: &[Run], metric: &Metric) -> bool {
    let range = |group: &Group| {
        let counted = group.counted().filter(|&run| runs[run].counts(metric));
        let ranges: Vec<[f64; 2]> = counted.filter_map(|run| runs[run].results.range(&metric.name)).collect();
        let mean = |side: usize| ranges.iter().map(|range| range[side]).sum::<f64>() / ranges.len() as f64;
        (!ranges.is_empty()).then(|| [mean(0), mean(1)])
    };
    let [first, second] = groups.map(range);
    first.zip(second).is_some_and(|([a, b], [c, d])| a.max(c) <= b.min(d) && (a < b || c < d))
}
