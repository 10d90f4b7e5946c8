//! Notes on figures that depend on how often runs were evaluated.

use super::super::chosen::RECOMPUTE;
use super::super::compare::Comparison;
use super::super::groups::Group;
use super::super::metrics::Metric;
use super::super::runs::Run;
use super::super::sooner::{EVERY, End, is_unknown, steps_apart};
use super::{is_of_time, listed, names, took_a_state};
use crate::recipe::StepSizes;
use crate::recipe::keys::{KEYS, Key, find};
use crate::run::column::Aggregate;
use crate::run::dir;
use crate::wording::thousands;
use std::collections::BTreeSet;

/// The metric of which the run's own evaluations are counted.
const BEST_VAL_LOSS: &str = "best_val_loss";

pub(super) fn interpolated(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let mut notes = Vec::new();
    if runs.iter().any(|run| !run.results.interpolated().is_empty()) {
        notes.push(format!(
            "~ interpolated linearly between the evaluations before and after {}",
            point(comparison)
        ));
    }
    let unknown = || runs.iter().filter(|run| !run.results.unknown().is_empty());
    let mut lacking: Vec<String> = Vec::new();
    for name in unknown().flat_map(|run| run.results.unknown()) {
        // the best value of a column lacks with the last one
        let of_last = name.strip_prefix("best_").unwrap_or(name);
        if !lacking.iter().any(|known| known == of_last) {
            lacking.push(of_last.to_owned());
        }
    }
    if !lacking.is_empty() {
        notes.push(format!(
            "{}: no evaluation at the point of comparison or on both sides of it, so there is no {}",
            names(runs, unknown()),
            listed(lacking)
        ));
    }
    notes
}

/// How often runs were evaluated, as a phrase, where that differs between them: steps of a batch that grows are of few
/// tokens first, and a part may have been trained under another value.
pub(super) fn differing(runs: &[Run]) -> Option<String> {
    let cadence = |run: &Run| {
        let steps: BTreeSet<u64> = steps_apart(run).collect();
        let sizes = run.step_sizes();
        let [first, last] = sizes.as_ref().map_or([1; 2], first_and_last);
        let apart = |steps: u64| [first, last].map(|tokens| steps.saturating_mul(tokens));
        let apart: BTreeSet<[u64; 2]> = steps.iter().copied().map(apart).collect();
        // the stages of one that grows decide as well, where there are evaluations
        let is_growing = |sizes: &StepSizes| !sizes.is_constant() && steps.last() != Some(&0);
        let growing = sizes.filter(is_growing);
        // for how long each value held shows in how many there are
        let made = run.results.best_of(BEST_VAL_LOSS).filter(|_| steps.len() > 1 && run.complete);
        (!steps.is_empty()).then_some((apart, steps, growing, made))
    };
    let cadences: Vec<_> = runs.iter().filter_map(cadence).collect();
    let (first, _, growing, _) = cadences.first()?;
    let made: BTreeSet<u64> = cadences.iter().filter_map(|(.., made)| *made).collect();
    let is_one = cadences.iter().all(|(apart, _, sizes, _)| (apart, sizes) == (first, growing));
    if is_one && made.len() <= 1 {
        return None;
    }
    let steps: BTreeSet<u64> = cadences.iter().flat_map(|(_, steps, ..)| steps).copied().collect();
    if steps.len() > 1 {
        return Some(format!("eval.every = {}", listed(steps.into_iter().map(thousands).collect())));
    }
    let apart: BTreeSet<[u64; 2]> = cadences.into_iter().flat_map(|(apart, ..)| apart).collect();
    let shown = |[first, last]: [u64; 2]| match first == last {
        true => thousands(first),
        false => format!("{} to {}", thousands(first), thousands(last)),
    };
    Some(format!("every {} tokens", listed(apart.into_iter().map(shown).collect())))
}

/// Tokens of a run's first steps, and of those of its whole batch.
fn first_and_last(sizes: &StepSizes) -> [u64; 2] {
    [0, u64::MAX].map(|at| sizes.tokens(at))
}

/// The metrics of `val.csv` that are the best of evaluations, of those that are judged or shown.
fn best_values(comparison: &Comparison) -> impl Iterator<Item = &Metric> {
    let is_best = |metric: &&Metric| matches!(metric.aggregate, Aggregate::Min | Aggregate::Max);
    comparison.shown.iter().filter(|metric| metric.log == dir::VAL_CSV).filter(is_best)
}

/// Which figures depend on how often a run is evaluated, where that differs as [`differing`] says.
pub(super) fn cadences(comparison: &Comparison, how: Option<&str>) -> Option<String> {
    let (runs, how) = (&comparison.runs, how?);
    let best: Vec<String> = best_values(comparison).map(|metric| metric.name.clone()).collect();
    let is_between = comparison.targets.iter().any(|target| target.best.log != dir::TRAIN_CSV)
        || runs.iter().any(|run| !run.results.interpolated().is_empty());
    let mut follows: Vec<String> = Vec::new();
    if !best.is_empty() {
        follows.push(format!("{} is better by chance the more evaluations there are", listed(best)));
    }
    if is_between {
        follows.push(format!("what lies between evaluations at {} is known less closely", point(comparison)));
    }
    let is_any = !follows.is_empty();
    is_any.then(|| {
        format!(
            "runs were not evaluated equally often ({how}): {}, so equal trainings can look different",
            listed(follows)
        )
    })
}

/// The keys that say how many tokens an evaluation reads.
const TOKENS: &str = "eval.tokens";
const BATCHES: &str = "eval.batches";

/// Whether evaluations of some runs read more tokens than those of others, over all sets: by more than what is lost
/// where tokens are taken in whole rows.
fn reads_differ(runs: &[Run]) -> bool {
    let read = |run: &Run| {
        let rows =
            run.facts.eval_others.values().fold(run.facts.eval_rows?, |all, rows| all.saturating_add(*rows));
        rows.checked_mul(run.value("model.block_size")?.as_u64()?)
    };
    let is_evaluated = |run: &&Run| steps_apart(run).any(|steps| steps > 0);
    let read: BTreeSet<u64> = runs.iter().filter(is_evaluated).filter_map(read).collect();
    let [fewest, most] = [read.first(), read.last()].map(|tokens| tokens.copied().unwrap_or(0) as f64);
    fewest < 0.98 * most
}

/// Which figures depend on settings that no recipe is told apart by, where these differ.
pub(super) fn pauses(comparison: &Comparison, shown: &[Metric], how: Option<&str>) -> Option<String> {
    let differs = |key: &&Key| {
        let known = comparison.runs.iter().filter(|run| !run.recipe.is_empty());
        let mut values = known.map(|run| run.value(key.path).or_else(|| key.default_json()));
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    let is_of_time = is_of_time(comparison, shown) || !comparison.targets.is_empty();
    let pauses = KEYS.iter().filter(|key| key.is_between_steps && is_of_time).filter(differs);
    let mut pauses: Vec<String> = pauses.map(|key| key.path.to_owned()).collect();
    // as many as there are, or of several sets
    let is_key = |key: &str| pauses.iter().any(|known| known == key);
    let reads_more = !is_key(TOKENS) && !is_key(BATCHES) && reads_differ(&comparison.runs);
    let reads_sooner = !is_key(EVERY) && how.is_some();
    if is_of_time {
        pauses.extend(reads_more.then(|| "the tokens of an evaluation".to_owned()));
        pauses.extend(reads_sooner.then(|| "the tokens between evaluations".to_owned()));
    }
    let differs_in_recompute = find(RECOMPUTE).as_ref().is_some_and(differs);
    let mut parts = Vec::new();
    if !pauses.is_empty() {
        parts.push(format!(
            "seconds include evaluations, checkpoints and samples, and runs differ in {}, so equal trainings can take \
             different times",
            listed(pauses)
        ));
    }
    if differs_in_recompute {
        parts.push(format!("runs differ in {RECOMPUTE}, which changes their speed and memory alone"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Whether the best loss of a batch is shown of runs that have other batches or other numbers of them.
pub(super) fn best_batches(comparison: &Comparison) -> Option<String> {
    let is_best = |metric: &&Metric| metric.log == dir::TRAIN_CSV && metric.aggregate == Aggregate::Min;
    let asked = comparison.shown.iter().find(is_best)?;
    let batches = |run: &Run| {
        // of a branch, the best is that of its own steps
        let steps = run.results.get("steps").unwrap_or(0.0) as u64;
        (run.step_sizes().as_ref().map(first_and_last), steps.saturating_sub(run.facts.steps_before()))
    };
    // one that has not ended has seen fewer
    let mut of = comparison.runs.iter().filter(|run| run.counts(asked)).map(batches);
    let first = of.next();
    of.any(|batches| Some(batches) != first).then(|| {
        format!(
            "{} is the lowest of single batches: lower by chance the smaller these are and the more there are",
            asked.name
        )
    })
}

/// Which ways to targets end between evaluations that overlap, so that the order of the recipes is not known.
pub(super) fn overlaps(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let mut notes = Vec::new();
    for (metric, footing) in &comparison.judged {
        let mut groups: Vec<(usize, &Group, f64)> = Vec::new();
        for group in &comparison.groups {
            let set = footing.of_group(group, runs, metric);
            groups.extend(set.zip(End::of(group, runs, metric)).map(|(set, end)| (set, group, end.at)));
        }
        groups.sort_by(|(set, _, a), (other, _, b)| set.cmp(other).then(a.total_cmp(b)));
        let next = groups.iter().map(|(set, group, _)| (set, group));
        let next = next.clone().zip(next.skip(1)).filter(|((set, _), (other, _))| set == other);
        let overlapping = next.filter(|((_, a), (_, b))| is_unknown([a, b], runs, metric));
        let pairs: Vec<String> =
            overlapping.map(|((_, a), (_, b))| format!("({} and {})", a.label, b.label)).collect();
        // of one log with a row for each step, the note on branches tells
        if !pairs.is_empty() && metric.log != dir::TRAIN_CSV {
            notes.push(format!(
                "{}: the ways of {} end between evaluations that overlap, so which is sooner is not known from them; a \
                 lower eval.every tells",
                metric.name,
                listed(pairs)
            ));
        }
    }
    notes
}

/// Which best values are those of unequally many evaluations, and not only because runs were not evaluated equally
/// often, of which another note tells.
pub(super) fn best_of_some(comparison: &Comparison, how: Option<&str>) -> Vec<String> {
    let runs = &comparison.runs;
    let is_told = how.is_some();
    let note = |metric: &Metric| {
        let is_scattered = runs.iter().any(|run| run.results.is_scattered(&metric.name));
        // one that has not ended has made fewer
        let counts = |run: &&Run| is_scattered || run.counts(metric);
        let of = runs.iter().filter(counts).filter_map(|run| run.results.best_of(&metric.name));
        let of: BTreeSet<u64> = of.collect();
        let numbers = match (of.first(), of.last()) {
            (Some(fewest), Some(most)) if of.len() > 2 => format!("{fewest} to {most}"),
            _ => listed(of.iter().map(u64::to_string).collect()),
        };
        let branches = if runs.iter().any(took_a_state) { " (those of a branch are its own)" } else { "" };
        (of.len() > 1 && (is_scattered || !is_told)).then(|| {
            format!(
                "{} is the best of {numbers} evaluations{branches}: better by chance the more there are",
                metric.name
            )
        })
    };
    comparison.shown.iter().filter_map(note).collect()
}

/// What lies between the evaluations.
fn point(comparison: &Comparison) -> &'static str {
    match (comparison.cut.is_some(), comparison.targets.is_empty()) {
        (_, true) => "the point of comparison",
        (true, false) => "the point of comparison or the target",
        (false, false) => "the target",
    }
}
