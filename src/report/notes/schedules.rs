//! Notes on how far runs are in their schedules where a comparison is cut.

use super::super::compare::Comparison;
use super::super::runs::Run;
use super::{first_of, name};

/// The key of the shape of the learning rate, and the shape that stays as it is.
const KIND: &str = "schedule.kind";
const CONSTANT: &str = "constant";
/// Shares of schedules that differ by less say little about losses.
const NEAR: f64 = 0.05;

/// How far runs are in their schedules at the point of comparison, where some have less of the decay of their learning
/// rate behind them than others.
pub(super) fn unequal(comparison: &Comparison) -> Option<String> {
    comparison.cut?;
    let runs = &comparison.runs;
    let decays = |run: &&Run| run.value(KIND).is_none_or(|kind| kind.as_str() != Some(CONSTANT));
    let share = |run: &Run| {
        let steps = run.results.get("steps").filter(|_| run.complete && run.facts.total_steps > 0)?;
        Some((steps / run.facts.total_steps as f64).min(1.0))
    };
    let shares: Vec<(&Run, f64)> =
        runs.iter().filter(decays).filter_map(|run| Some((run, share(run)?))).collect();
    let least = shares.iter().map(|(_, share)| *share).fold(f64::INFINITY, f64::min);
    let most = shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
    (most - least > NEAR).then(|| {
        let of = |(run, share): &(&Run, f64)| format!("{} ({:.0} %)", name(runs, run), 100.0 * share);
        format!(
            "at the point of comparison, runs are not equally far in their schedules: {}; a loss falls as the learning \
             rate decays, so that of the shorter schedule is flattered",
            first_of(shares.iter(), of)
        )
    })
}
