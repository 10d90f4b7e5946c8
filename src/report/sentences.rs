//! What replicas allow to conclude, in sentences, and what a reader must know before believing them.

use super::compare::Comparison;
use super::footing::Footing;
use super::groups::{Group, sentence};
use super::metrics::Metric;
use super::sooner::overtaken;
use crate::run::RunStatus;
use crate::wording::count;

/// More sentences than these about groups or runs say no more to a reader.
const MOST: usize = 12;

/// The first of these sentences. In place of the others stands how many they are, and where to find them.
#[must_use]
pub fn first(mut sentences: Vec<String>, others: &str) -> Vec<String> {
    let more = sentences.len().saturating_sub(MOST);
    sentences.truncate(MOST);
    sentences.extend((more > 0).then(|| format!("{more} more: {others}")));
    sentences
}

/// The verdict on the best group and each other one, one sentence each. Where no group has replicas, it is that there
/// is none.
pub(super) fn conclusions(comparison: &Comparison) -> Vec<String> {
    if !is_said(comparison) {
        return Vec::new();
    }
    if !comparison.has_replicas() {
        return vec![
            "one seed each: whether a difference is more than a seed's noise cannot be said; run replicas with other \
             seeds (--set seed=2, ...)"
                .to_owned(),
        ];
    }
    comparison.verdicts.iter().map(|verdict| sentence(verdict, &comparison.groups)).collect()
}

/// How the p-values are adjusted, and how many runs are left out of means and tests for which reason.
pub(super) fn caveats(comparison: &Comparison) -> Vec<String> {
    let Comparison { runs, groups, verdicts, .. } = comparison;
    let mut sentences = Vec::new();
    if !comparison.has_replicas() {
        return sentences;
    }
    let tests = || verdicts.iter().filter_map(|verdict| Some((verdict.test?.p, verdict.p_adjusted?)));
    // also of a single test, where others could have been
    if tests().count() > 1 || tests().any(|(p, adjusted)| adjusted > p) {
        sentences.push(
            "p-values are adjusted for all pairs of recipes (Holm): the best was chosen by the same values"
                .to_owned(),
        );
    }
    let is = |number: usize| if number == 1 { "is" } else { "are" };
    let is_diverged = |run: &usize| runs[*run].status == RunStatus::Diverged;
    for target in &comparison.targets {
        let known = groups.iter().flat_map(|group| group.reached(runs, target));
        let (reached, missed): (Vec<_>, Vec<_>) = known.partition(|(_, reached)| *reached);
        let later = reached.iter().filter(|(run, _)| is_diverged(run)).count();
        let early = groups.iter().map(|group| overtaken(group, runs, target).count()).sum();
        let target = target.shown();
        if !missed.is_empty() {
            let (runs, is) = (count(missed.len(), "run"), is(missed.len()));
            sentences.push(format!(
                "{runs} that did not reach {target} {is} left out of means and tests of the way there"
            ));
        }
        if early > 0 {
            let (runs, has, is) = (count(early, "run"), if early == 1 { "has" } else { "have" }, is(early));
            sentences.push(format!(
                "{runs} that {has} not reached {target} yet, though as far as others that have, {is} left out of means \
                 of the way there: they are of the sooner runs, and not tested"
            ));
        }
        if later > 0 {
            let (runs, counts) = (count(later, "run"), if later == 1 { "counts" } else { "count" });
            sentences.push(format!(
                "{runs} that diverged after reaching {target} {counts} in means and tests of the way there"
            ));
        }
    }
    // a note says why those are left out that are not what they say
    let incomplete = groups.iter().flat_map(|group| group.incomplete(runs));
    let incomplete = incomplete.filter(|&run| !runs[run].is_altered());
    let (diverged, others): (Vec<usize>, Vec<usize>) = incomplete.partition(is_diverged);
    let of_what = match (comparison.judge().target.is_some(), comparison.targets.is_empty()) {
        (true, _) => "the other means",
        (false, true) => "means and tests",
        (false, false) => "the other means and tests",
    };
    if !others.is_empty() {
        let is = is(others.len());
        let what = match comparison.cut {
            Some(_) => "did not come as far".to_owned(),
            None => format!("{is} not finished"),
        };
        let is_sooner = |run: &usize| comparison.cut.is_some() && runs[*run].facts.reached_target.is_some();
        let sooner = match others.iter().any(is_sooner) {
            true => ": those that a target of their own has ended were the sooner ones",
            false => "",
        };
        sentences
            .push(format!("{} that {what} {is} left out of {of_what}{sooner}", count(others.len(), "run")));
    }
    let counted = || groups.iter().flat_map(Group::counted);
    let later =
        counted().filter(|run| comparison.cut.is_some() && is_diverged(run) && runs[*run].complete).count();
    if later > 0 {
        let (runs, counts) = (count(later, "run"), if later == 1 { "counts" } else { "count" });
        sentences.push(format!("{runs} that diverged after the point of comparison {counts} in {of_what}"));
    }
    if !diverged.is_empty() {
        // a recipe of which every run diverged has no mean to look good by
        let is_flattered = |group: &Group| {
            group.incomplete(runs).any(|run| is_diverged(&run))
                && group.counted().any(|run| runs[run].complete)
        };
        let flattered = match groups.iter().filter(|group| is_flattered(group)).count() {
            0 => "",
            1 => ": its recipe looks better than it is",
            _ => ": their recipes look better than they are",
        };
        let (number, is) = (count(diverged.len(), "run"), is(diverged.len()));
        sentences.push(format!("{number} that diverged {is} left out of {of_what}{flattered}"));
    }
    sentences
}

/// Whether there is something to conclude: several groups, some of which may be compared by a judged metric.
fn is_said(comparison: &Comparison) -> bool {
    let Comparison { runs, groups, judged, .. } = comparison;
    let has_pair = |metric: &Metric, footing: &Footing| {
        let sets: Vec<Option<usize>> =
            groups.iter().map(|group| footing.of_group(group, runs, metric)).collect();
        let has_other =
            |set: &Option<usize>| set.is_some() && sets.iter().filter(|other| *other == set).count() > 1;
        !footing.is_mixed() || sets.iter().any(has_other)
    };
    groups.len() > 1 && judged.iter().any(|(metric, footing)| has_pair(metric, footing))
}
