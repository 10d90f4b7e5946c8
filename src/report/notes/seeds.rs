//! Notes on runs that are no seeds of their own: they have that of another one, or share a part of their way.

use super::super::compare::Comparison;
use super::super::metrics::Metric;
use super::super::runs::Run;
use super::{name, names, took_a_state};
use crate::run::column::{Aggregate, Unit};

/// Which runs have the recipe and the seed of another one, and where their losses differ all the same.
pub(super) fn copies(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let mut notes = Vec::new();
    for group in &comparison.groups {
        for counted in group.counted() {
            let copies: Vec<usize> =
                group.copies.iter().filter(|(_, of)| *of == counted).map(|&(copy, _)| copy).collect();
            if copies.is_empty() {
                continue;
            }
            let is_are = if copies.len() == 1 { "has" } else { "have" };
            notes.push(format!(
                "{} {is_are} the recipe and the seed of {}: that is no further seed, and counts once{}",
                names(runs, copies.iter().map(|&copy| &runs[copy])),
                name(runs, &runs[counted]),
                differences(comparison, counted, &copies).unwrap_or_default()
            ));
        }
    }
    notes
}

/// That a loss of the run that counts is not that of its copies at the same step, which was measured alike.
fn differences(comparison: &Comparison, counted: usize, copies: &[usize]) -> Option<String> {
    let runs = &comparison.runs;
    let is_loss = |metric: &&Metric| {
        metric.unit == Unit::Loss && metric.target.is_none() && metric.aggregate == Aggregate::Last
    };
    let last = |run: usize, metric: &Metric| {
        let results = &runs[run].results;
        let is_between = results.interpolated().contains(&metric.name);
        let value =
            results.get(&metric.name).filter(|_| !is_between && results.earlier(&metric.name).is_none());
        Some((results.get("steps")?, results.precision(&metric.name).map(str::to_owned), value?))
    };
    let other = |metric: &Metric| {
        let (steps, precision, own) = last(counted, metric)?;
        let other_value = |&copy: &usize| {
            let (at, with, theirs) = last(copy, metric)?;
            let is_other = theirs != own && !(theirs.is_nan() && own.is_nan());
            let is_alike =
                || (at, &with) == (steps, &precision) && comparison.are_alike(metric, counted, copy);
            (is_other && is_alike()).then_some((copy, theirs))
        };
        let others: Vec<(usize, f64)> = copies.iter().filter_map(other_value).collect();
        let [own, theirs] = [own, others.first()?.1].map(|value| metric.unit.shown(value));
        let which = match own == theirs {
            true => "in later digits".to_owned(),
            false => format!("{theirs} instead of {own}"),
        };
        Some(format!(
            ", though {} came to another {} ({which}): another processor, device, version, micro-batch or number of \
             ranks computed it, or somebody edited it",
            names(runs, others.iter().map(|(copy, _)| &runs[*copy])),
            metric.name
        ))
    };
    comparison.metrics().filter(is_loss).find_map(other)
}

/// Which replicas share the first part of their way: what they branched off has one seed.
pub(super) fn one_trunk(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let mut notes = Vec::new();
    for group in &comparison.groups {
        let branches: Vec<&Run> =
            group.counted().map(|run| &runs[run]).filter(|run| took_a_state(run)).collect();
        if let [first, _, ..] = branches[..]
            && let Some(trunk) = &first.facts.parent
            && branches.iter().all(|run| run.facts.parent.as_ref().is_some_and(|own| own.is_place_of(trunk)))
        {
            notes.push(format!(
                "{} branched off one run: they share its steps and its seed, so they differ less than seeds do",
                names(runs, branches.into_iter())
            ));
        }
    }
    notes
}
