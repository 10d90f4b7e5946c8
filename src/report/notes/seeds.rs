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
            let copies: Vec<&Run> =
                group.copies.iter().filter(|(_, of)| *of == counted).map(|&(copy, _)| &runs[copy]).collect();
            if copies.is_empty() {
                continue;
            }
            let counted = &runs[counted];
            let is_are = if copies.len() == 1 { "has" } else { "have" };
            notes.push(format!(
                "{} {is_are} the recipe and the seed of {}: that is no further seed, and counts once{}",
                names(runs, copies.iter().copied()),
                name(runs, counted),
                differences(comparison, counted, &copies).unwrap_or_default()
            ));
        }
    }
    notes
}

/// That a loss of the run that counts is not that of each of its copies which have come as far.
fn differences(comparison: &Comparison, counted: &Run, copies: &[&Run]) -> Option<String> {
    let is_loss = |metric: &&Metric| {
        metric.unit == Unit::Loss && metric.target.is_none() && metric.aggregate == Aggregate::Last
    };
    let at_end = |run: &Run, metric: &Metric| {
        let value = run.results.get(&metric.name).filter(|_| run.results.earlier(&metric.name).is_none());
        Some((run.results.get("steps")?, value?))
    };
    let other = |metric: &Metric| {
        let (steps, own) = at_end(counted, metric)?;
        let differs = |run: &&Run| {
            let theirs = at_end(run, metric).filter(|(theirs, _)| *theirs == steps);
            theirs.is_some_and(|(_, theirs)| theirs != own && !(theirs.is_nan() && own.is_nan()))
        };
        let others: Vec<&Run> = copies.iter().copied().filter(differs).collect();
        let theirs = others.first()?.results.get(&metric.name)?;
        let [own, theirs] = [own, theirs].map(|value| metric.unit.shown(value));
        let which = if own == theirs { "in more digits".to_owned() } else { format!("{own} and {theirs}") };
        let (name_of, has) = (&metric.name, names(&comparison.runs, others.into_iter()));
        Some(format!(
            ", though {has} came to another {name_of} ({which}): on another device, by another version, or by hand"
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
