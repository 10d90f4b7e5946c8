//! What a reader should know about each run by itself: for formats that have a place beside it, and for whom sentences
//! about several runs are hard to take apart.

use super::super::compare::Comparison;
use super::super::runs::Run;
use super::{
    BEGAN_WITH_WEIGHTS, BRANCHED_OFF, BY_FIRST_EVALUATION, Common, began_with_weights, changed_between,
    measured, name, took_a_state,
};
use crate::run::RunStatus;
use crate::run::record::TrainedBefore;
use crate::wording::{count, thousands};
use std::collections::HashSet;

/// The notes on each run, in the order of the runs, one phrase each.
pub(super) fn each(comparison: &Comparison, common: &Common) -> Vec<Vec<String>> {
    let mut notes: Vec<Vec<String>> = comparison.runs.iter().map(|run| of_run(comparison, run)).collect();
    let mut add = |runs: &[&Run], note: &str| {
        let of: HashSet<*const Run> = runs.iter().map(|&run| std::ptr::from_ref(run)).collect();
        let all = comparison.runs.iter().zip(&mut notes);
        let noted = all.filter(|(run, _)| of.contains(&std::ptr::from_ref(*run)));
        noted.for_each(|(_, notes)| notes.push(note.to_owned()));
    };
    for (key, by_contents) in changed_between(comparison) {
        for (digest, of) in by_contents {
            let digest = digest.get(..12).unwrap_or(&digest);
            add(&of, &format!("{key} names the same path as that of others and other contents ({digest})"));
        }
    }
    for (metric, by_word) in measured::by_precision(comparison, &comparison.shown) {
        for (word, of) in by_word {
            add(&of, &format!("{} was evaluated in {word}, and that of others was not", metric.name));
        }
    }
    // of the one that is judged by, the column `set` says it
    for (footing, metrics) in measured::mixed(comparison, &comparison.judged[..1]) {
        for set in 0..footing.count() {
            let of = comparison.runs.iter().zip(&footing.sets).filter(|(_, of)| **of == Some(set));
            let is = if metrics.len() == 1 { "it is" } else { "they are" };
            let how = measured::differently(&metrics, &footing.differing);
            let note = format!("{how}: {is} of set {} of {}", set + 1, footing.count());
            add(&of.map(|(run, _)| run).collect::<Vec<_>>(), &note);
        }
    }
    // what holds for all of them
    let all: Vec<&Run> = comparison.runs.iter().collect();
    common.all().for_each(|note| add(&all, note));
    for &(copy, counted) in comparison.groups.iter().flat_map(|group| &group.copies) {
        let counted = name(&comparison.runs, &comparison.runs[counted]);
        notes[copy].push(format!("it has the recipe and the seed of {counted}: no further seed"));
    }
    notes
}

fn of_run(comparison: &Comparison, run: &Run) -> Vec<String> {
    let mut notes = run.notes.clone();
    notes.extend(measured::trains_on_validation(run));
    notes.extend(measured::weights_have_seen(run));
    let mut add = |is_so: bool, note: &str| notes.extend(is_so.then(|| note.to_owned()));
    let facts = &run.facts;
    add(measured::is_of_seen(comparison, run), measured::OF_SEEN);
    for metric in measured::of_losses(comparison).filter(|metric| measured::is_beside(run, metric)) {
        add(true, &format!("{} {}", metric.name, measured::BESIDE));
    }
    for metric in comparison.shown.iter().filter(|metric| measured::is_of_no_validation(run, metric)) {
        add(true, &format!("{} {}", metric.measured().name, measured::OF_NO_VALIDATION));
    }
    add(facts.trained_before == Some(TrainedBefore::OtherData), measured::PERHAPS_SEEN);
    add(began_with_weights(run), BEGAN_WITH_WEIGHTS);
    add(took_a_state(run), BRANCHED_OFF);
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
    notes.extend(early.map(|target| format!("{} {BY_FIRST_EVALUATION}", target.shown())));
    notes
}
