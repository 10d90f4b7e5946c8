//! What replicas allow to conclude, in sentences, and what a reader must know before believing them.

use super::compare::Comparison;
use super::footing::Footing;
use super::groups::sentence;
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
    if !is_said(comparison) || !comparison.has_replicas() {
        return sentences;
    }
    if verdicts.iter().filter(|verdict| verdict.test.is_some()).count() > 1 {
        sentences.push("p-values are adjusted for the number of tests (Holm)".to_owned());
    }
    for target in &comparison.targets {
        let reached = groups.iter().map(|group| group.reached(runs, target));
        let missed: usize = reached.map(|(reached, of)| of - reached).sum();
        if missed > 0 {
            let (runs, is) = (count(missed, "run"), if missed == 1 { "is" } else { "are" });
            sentences.push(format!(
                "{runs} that did not reach {} {is} left out of means and tests of the way there",
                target.shown()
            ));
        }
    }
    let incomplete: usize = groups.iter().map(|group| group.incomplete(runs)).sum();
    if incomplete > 0 {
        let is = if incomplete == 1 { "is" } else { "are" };
        let what = if comparison.cut.is_some() {
            "did not come as far".to_owned()
        } else {
            format!("{is} not finished")
        };
        let runs = count(incomplete, "run");
        let of_what = if comparison.judge().target.is_some() { "the other means" } else { "means and tests" };
        sentences.push(format!("{runs} that {what} {is} left out of {of_what}"));
    }
    sentences
}

/// Whether there is something to conclude: several groups, some of which may be compared by a judged metric.
fn is_said(comparison: &Comparison) -> bool {
    let Comparison { groups, judged, .. } = comparison;
    let has_pair = |footing: &Footing| {
        let sets: Vec<Option<usize>> = groups.iter().map(|group| footing.of_group(group)).collect();
        let has_other =
            |set: &Option<usize>| set.is_some() && sets.iter().filter(|other| *other == set).count() > 1;
        !footing.is_mixed() || sets.iter().any(has_other)
    };
    groups.len() > 1 && judged.iter().any(|(_, footing)| has_pair(footing))
}
