//! What a reader should know about each run by itself: for formats that have a place beside it, and for whom sentences
//! about several runs are hard to take apart.

use super::super::compare::Comparison;
use super::super::runs::Run;
use super::{BEGAN_WITH_WEIGHTS, measured, name, took_a_state};
use crate::recipe::keys::INIT_FROM;
use crate::run::RunStatus;
use crate::run::record::TrainedBefore;
use crate::wording::{count, thousands};

/// The notes on each run, in the order of the runs, one phrase each.
pub(in super::super) fn each(comparison: &Comparison) -> Vec<Vec<String>> {
    let mut notes: Vec<Vec<String>> = comparison.runs.iter().map(|run| of_run(comparison, run)).collect();
    for &(copy, counted) in comparison.groups.iter().flat_map(|group| &group.copies) {
        let counted = name(&comparison.runs, &comparison.runs[counted]);
        notes[copy].push(format!("it has the recipe and the seed of {counted}: no further seed"));
    }
    notes
}

fn of_run(comparison: &Comparison, run: &Run) -> Vec<String> {
    let mut notes = run.notes.clone();
    let mut add = |is_so: bool, note: &str| notes.extend(is_so.then(|| note.to_owned()));
    let facts = &run.facts;
    add(facts.trains_on_validation, measured::TRAINS_ON_VALIDATION);
    add(measured::is_of_seen(comparison, run), measured::OF_SEEN);
    add(facts.trained_before == Some(TrainedBefore::ValidationData), measured::SEEN_BEFORE);
    add(facts.trained_before == Some(TrainedBefore::OtherData), measured::PERHAPS_SEEN);
    add(run.value(INIT_FROM).is_some() && !took_a_state(run), BEGAN_WITH_WEIGHTS);
    add(took_a_state(run), "branched off another run, whose steps and tokens count and whose seconds do not");
    add(measured::is_above_peak(run), measured::ABOVE_PEAK);
    let skipped = run.results.get("skipped_steps").filter(|skipped| *skipped > 0.0);
    notes.extend(skipped.map(|skipped| {
        let steps = count(skipped as usize, "step");
        format!("{steps} skipped, whose update was left out, among the steps and tokens")
    }));
    for metric in comparison.metrics().filter(|_| run.status == RunStatus::Finished) {
        let earlier = run.results.earlier(&metric.name);
        notes.extend(earlier.map(|step| {
            format!("{} was last measured before the end, at step {}", metric.name, thousands(step))
        }));
    }
    let early =
        comparison.targets.iter().filter(|target| run.results.before_first().contains(&target.name()));
    notes.extend(early.map(|target| {
        format!("{} by the first evaluation, so it was reached there or before", target.shown())
    }));
    notes
}
