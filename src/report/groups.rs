//! Groups of runs that differ only in the seed, and what their spread allows to conclude.

use super::differences::{label, meant, replica_key};
use super::footing::Footing;
use super::metrics::Metric;
use super::numbers::significant;
use super::runs::Run;
use super::sooner::{is_overtaking, is_unknown};
use super::stats::{ALPHA, Spread, Welch, holm, seeds_needed, spread, welch};
use super::target::Target;
use crate::recipe::keys::SEED;
use crate::run::column::Better;
use crate::run::made::is_of_hash;
use crate::run::{RunStatus, dir};
use rayon::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Runs whose recipes differ only in the seed.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// What distinguishes it from the other groups.
    pub label: String,
    /// Its runs, by their place in the comparison.
    pub runs: Vec<usize>,
    /// Those of its runs that do not count, because another one has the same seed, each with the one that counts.
    pub copies: Vec<(usize, usize)>,
}

impl Group {
    /// Its runs that count: one for each seed, by their place in the comparison.
    pub fn counted(&self) -> impl Iterator<Item = usize> {
        self.runs.iter().copied().filter(|run| self.copies.iter().all(|(copy, _)| copy != run))
    }

    /// The runs whose value of a metric [counts](Run::counts), one for each seed, by their place in the comparison,
    /// with these values.
    fn values(&self, runs: &[Run], metric: &Metric) -> Vec<(usize, f64)> {
        let complete = self.counted().filter(|&i| runs[i].counts(metric));
        let value = |i: usize| Some((i, runs[i].results.get(&metric.name).filter(|v| v.is_finite())?));
        complete.filter_map(value).collect()
    }

    /// The runs that have a metric which [counts](Run::counts), one for each seed, by their place in the comparison.
    pub fn measured<'a>(&'a self, runs: &'a [Run], metric: &'a Metric) -> impl Iterator<Item = usize> + 'a {
        self.counted().filter(|&i| runs[i].counts(metric) && runs[i].is_measured(metric))
    }

    /// The runs whose value of a metric counts, by their place in the comparison.
    pub(super) fn with_value(&self, runs: &[Run], metric: &Metric) -> Vec<usize> {
        self.values(runs, metric).into_iter().map(|(run, _)| run).collect()
    }

    /// Mean and spread of a metric over the complete runs that have it, however these were
    /// [measured](super::footing::Footing::spread).
    pub(super) fn spread(&self, runs: &[Run], metric: &Metric) -> Option<Spread> {
        let values: Vec<f64> = self.values(runs, metric).iter().map(|(_, value)| *value).collect();
        spread(&values)
    }

    /// Its runs, one for each seed, that are what they say and of which it is known whether they have reached a target,
    /// each with whether it has.
    pub fn reached<'a>(
        &'a self,
        runs: &'a [Run],
        target: &'a Target,
    ) -> impl Iterator<Item = (usize, bool)> + 'a {
        let is_known = |run: &Run| !run.is_altered() && target.is_known(run) && !target.is_open(run);
        let known = self.counted().filter(move |&i| is_known(&runs[i]));
        known.map(|i| (i, target.way(&runs[i].results).is_some()))
    }

    /// How many of its runs have [reached](Self::reached) a target, of how many.
    #[must_use]
    pub fn count_reached(&self, runs: &[Run], target: &Target) -> (usize, usize) {
        let reached: Vec<bool> = self.reached(runs, target).map(|(_, reached)| reached).collect();
        (reached.iter().filter(|reached| **reached).count(), reached.len())
    }

    /// Its runs, one for each seed, that were evaluated and may reach a target yet.
    pub fn open<'a>(&'a self, runs: &'a [Run], target: &'a Target) -> impl Iterator<Item = usize> + 'a {
        let is_measured = |run: &Run| run.results.get(&target.best.name).is_some();
        let is_open = move |run: &Run| !run.is_altered() && is_measured(run) && target.is_open(run);
        self.counted().filter(move |&i| is_open(&runs[i]))
    }

    /// Its runs, one for each seed, that are left out because they are not complete.
    pub fn incomplete(&self, runs: &[Run]) -> impl Iterator<Item = usize> {
        self.counted().filter(|&i| !runs[i].complete)
    }
}

/// Groups runs, in the order in which each group's first run comes. `differing` are the keys that tell them apart.
#[must_use]
pub fn groups(runs: &[Run], differing: &[String]) -> Vec<Group> {
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut groups: Vec<Group> = Vec::new();
    let mut several = false;
    for (i, run) in runs.iter().enumerate() {
        let at = *known.entry(replica_key(run)).or_insert(groups.len());
        match groups.get_mut(at) {
            Some(group) => {
                group.runs.push(i);
                several = true;
            }
            None => groups.push(Group { label: String::new(), runs: vec![i], copies: Vec::new() }),
        }
    }
    for group in &mut groups {
        group.copies = copies(&group.runs, runs);
    }
    // among groups, a key counts only if it differs between them and not within one, as the seed does
    let tells = |key: &&String| {
        let of_group = |group: &Group| {
            let mut values = group.runs.iter().map(|&i| meant(&runs[i], key));
            let first = values.next()?;
            values.all(|value| value == first).then_some(first)
        };
        let values: Option<Vec<_>> = groups.iter().map(of_group).collect();
        values.is_some_and(|values| values.iter().any(|value| *value != values[0]))
    };
    let keys: Vec<String> =
        differing.iter().filter(|key| !several || *key != SEED).filter(tells).cloned().collect();
    let first = |group: &Group| group.counted().next().unwrap_or(group.runs[0]);
    let labels: Vec<String> = groups.iter().map(|group| label(&runs[first(group)], &keys)).collect();
    for (i, group) in groups.iter_mut().enumerate() {
        let is_shared = labels.iter().filter(|label| **label == labels[i]).count() > 1;
        let id = &runs[first(group)].id;
        // other data under the same name
        group.label =
            if is_shared && labels[i] != *id { format!("{} ({id})", labels[i]) } else { labels[i].clone() };
    }
    groups
}

/// Sorts groups by the mean of a metric, the best first, so that no single lucky seed puts one in front; those
/// without a mean come last. `ends` are where the sets of runs end, which stay apart; within each the order can be
/// reversed.
pub(super) fn sort_by_mean(
    groups: &mut Vec<Group>,
    runs: &[Run],
    (metric, footing): (&Metric, &Footing),
    (ends, is_reversed): (&[usize], bool),
) {
    let sign = if metric.better == Better::Lower { 1.0 } else { -1.0 };
    let place = |group: &Group| {
        let mean = footing.spread(group, runs, metric).map_or(f64::INFINITY, |spread| sign * spread.mean);
        (ends.partition_point(|end| *end <= group.runs[0]), mean)
    };
    let mut placed: Vec<_> = groups.drain(..).map(|group| (place(&group), group)).collect();
    placed.sort_by(|(a, _), (b, _)| {
        let within = a.1.total_cmp(&b.1);
        a.0.cmp(&b.0).then(if is_reversed { within.reverse() } else { within })
    });
    groups.extend(placed.into_iter().map(|(_, group)| group));
}

/// The runs of a group whose seed another of its runs has, each with the run that counts: one that is complete, if
/// possible finished, with the logs that it wrote and a record whose id is that of its hash, trained as its recipe says
/// from beginning to end and under the name that it was made with, and of those the one of which most is known that
/// this comparison shows, then the first by its path. So the choice does not depend on how good a run is, nor on what
/// somebody calls a copy of it.
fn copies(group: &[usize], runs: &[Run]) -> Vec<(usize, usize)> {
    let mut by_seed: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for &i in group {
        let seed = runs[i].value(SEED).map_or_else(String::new, ToString::to_string);
        by_seed.entry(seed).or_default().push(i);
    }
    // a copy whose recipe was edited has another seed in name alone
    let mut by_hash: HashMap<&str, Vec<usize>> = HashMap::new();
    for &i in group {
        by_hash.entry(&runs[i].facts.hash).or_default().push(i);
    }
    by_hash.remove("");
    let mut copies = Vec::new();
    for mut same in by_seed.into_values().chain(by_hash.into_values()) {
        let is_in_parts = |i: usize| !runs[i].parts.otherwise.is_empty();
        let is_finished = |i: usize| runs[i].status == RunStatus::Finished;
        let is_renamed = |i: usize| !is_of_hash(&runs[i].facts.id, &runs[i].facts.hash);
        same.sort_by_key(|&i| {
            let run = &runs[i];
            let known = Reverse(run.results.known());
            let name = run.id != run.facts.id;
            let is_changed = run.has_changed_log();
            (
                !run.complete,
                !is_finished(i),
                is_changed,
                is_renamed(i),
                is_in_parts(i),
                name,
                known,
                &run.path,
            )
        });
        copies.extend(same.iter().skip(1).map(|&copy| (copy, same[0])));
    }
    copies.sort_unstable();
    copies.dedup_by_key(|(copy, _)| *copy);
    copies
}

/// How the best group of a set, or the best one with several seeds, compares with another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The metric that it is about.
    pub metric: Metric,
    /// The better group by its mean, and the other one.
    pub groups: (usize, usize),
    /// Mean and spread of each.
    pub spreads: (Spread, Spread),
    /// Whether evaluations do not tell which of the two is better, or reached a target sooner.
    pub is_unknown: bool,
    /// Whether the way to a target is that of the sooner runs of a group alone: others are as far, and may reach it
    /// yet.
    pub is_early: bool,
    /// The test, the better group's sample first; `None` if a group has a single seed or nothing varies, and where the
    /// order is unknown or it is too early.
    pub test: Option<Welch>,
    /// The p-value held against the number of pairs.
    pub p_adjusted: Option<f64>,
    /// A confidence interval of the difference, so wide that those of all pairs hold together in 95 of 100 comparisons
    /// (Bonferroni): the best group was chosen by the same values.
    pub interval: Option<(f64, f64)>,
    /// Seeds per group with which this test, one of so many, would find a difference of this size in four of five
    /// cases; where it is not settled, and they are not too many.
    pub seeds_needed: Option<u32>,
}

impl Verdict {
    /// Whether the groups can be told apart at the level [`ALPHA`].
    #[must_use]
    pub fn is_distinguishable(&self) -> bool {
        self.p_adjusted.is_some_and(|p| p < ALPHA)
    }
}

/// Compares the best group with each other one by each of these metrics, within each set of the metric's footing. If it
/// has one seed, the best one with several is compared with the others that have.
///
/// Which one is the best is seen in the same values, so the best of many looks better than it is. What the tests could
/// have been counts, too: p-values are held against the number of all pairs.
#[must_use]
pub fn verdicts(groups: &[Group], runs: &[Run], judged: &[(Metric, Footing)]) -> Vec<Verdict> {
    let (mut verdicts, mut pairs) = (Vec::<Verdict>::new(), 0);
    let sets = judged.iter().flat_map(|(metric, footing)| {
        let mut sets: Vec<Vec<(usize, &Group)>> = vec![Vec::new(); footing.count()];
        for (i, group) in groups.iter().enumerate() {
            if let Some(set) = footing.of_group(group, runs, metric) {
                sets[set].push((i, group));
            }
        }
        sets.into_iter().map(move |of_set| (metric, footing, of_set))
    });
    for (metric, footing, of_set) in sets {
        let mut known: Vec<(usize, Spread)> = of_set
            .into_iter()
            .filter_map(|(i, group)| Some((i, footing.spread(group, runs, metric)?)))
            .collect();
        known.sort_by(|(_, a), (_, b)| match metric.better {
            Better::Lower => a.mean.total_cmp(&b.mean),
            Better::Higher => b.mean.total_cmp(&a.mean),
        });
        let Some(&best) = known.first() else { continue };
        // of a single seed there is no test
        let tested = known.iter().find(|(_, spread)| spread.sd.is_some()).copied();
        let sds = known.iter().filter_map(|(_, spread)| spread.sd);
        // groups between which there is noise to hold a difference against
        pairs += pairs_of(sds.clone().count()) - pairs_of(sds.filter(|sd| *sd == 0.0).count());
        verdicts.extend(known[1..].iter().map(|&(other, second)| {
            let of_several = tested.filter(|(tested, _)| *tested != other && second.sd.is_some());
            let (best, first) = of_several.unwrap_or(best);
            let is_unknown = is_unknown([&groups[best], &groups[other]], runs, metric);
            let is_early = [best, other].iter().any(|&group| is_overtaking(&groups[group], runs, metric));
            Verdict {
                metric: metric.clone(),
                groups: (best, other),
                spreads: (first, second),
                is_unknown,
                is_early,
                test: welch(first, second).filter(|_| !is_unknown && !is_early),
                p_adjusted: None,
                interval: None,
                seeds_needed: None,
            }
        }));
    }
    let p: Vec<f64> = verdicts.iter().filter_map(|verdict| Some(verdict.test?.p)).collect();
    let (mut adjusted, level) = (holm(&p, pairs).into_iter(), ALPHA / pairs.max(1) as f64);
    for verdict in verdicts.iter_mut().filter(|verdict| verdict.test.is_some()) {
        verdict.p_adjusted = adjusted.next();
    }
    // of hundreds of groups, to say how many seeds are needed takes as long as to read all their logs
    verdicts.par_iter_mut().filter(|verdict| verdict.test.is_some()).for_each(|verdict| {
        verdict.interval = verdict.test.map(|test| test.interval(level));
        let (a, b) = verdict.spreads;
        if !verdict.is_distinguishable() {
            let sds = a.sd.zip(b.sd).unwrap_or_default();
            // a test with at least so many each has been made and did not settle it
            let have = a.n.min(b.n) as u32;
            verdict.seeds_needed =
                seeds_needed(b.mean - a.mean, sds.0, sds.1, level).map(|needed| needed.max(have + 1));
        }
    });
    verdicts
}

fn pairs_of(groups: usize) -> usize {
    groups * groups.saturating_sub(1) / 2
}

/// A verdict in a sentence or two, without a final newline.
#[must_use]
pub fn sentence(verdict: &Verdict, groups: &[Group]) -> String {
    let metric = &verdict.metric;
    let (best, other) = (&groups[verdict.groups.0].label, &groups[verdict.groups.1].label);
    let (a, b) = verdict.spreads;
    let difference = metric.unit.apart(a.mean, b.mean);
    let seen = format!("{best} and {other} differ by {difference} in {}", metric.name);
    let direction = if metric.better == Better::Lower { "lower" } else { "higher" };
    let Some((test, p)) = verdict.test.zip(verdict.p_adjusted) else {
        return match (a.sd, b.sd) {
            (Some(_), Some(_)) if verdict.is_early => format!(
                "{seen} so far, and which is sooner is not known: runs that have come as far may reach the target yet, \
                 so there is no test"
            ),
            (Some(_), Some(_)) if verdict.is_unknown && metric.target.is_none() => format!(
                "{seen}, and which is better is not known: the point of comparison lies between evaluations, and the \
                 values on both sides of it overlap, so there is no test; --at can name a step at which both were \
                 evaluated"
            ),
            (Some(_), Some(_)) if verdict.is_unknown && metric.log == dir::TRAIN_CSV => format!(
                "{seen}, and which is sooner is not known: a run that others branched off may have reached the target \
                 before, so there is no test"
            ),
            (Some(_), Some(_)) if verdict.is_unknown => format!(
                "{seen}, and which is sooner is not known: the evaluations on both sides of the target are too far \
                 apart for that, so there is no test"
            ),
            (Some(a), Some(b)) if a > 0.0 || b > 0.0 => {
                format!("{seen}; their values are so large or so small that there is no test of that")
            }
            (Some(_), Some(_)) => {
                format!("{seen}; neither varies between seeds, so there is no noise to hold it against")
            }
            _ => format!(
                "{seen}, with {} and {} seed{}: whether that is real cannot be said, at least 2 seeds each are needed",
                a.n,
                b.n,
                if b.n > 1 { "s" } else { "" }
            ),
        };
    };
    let figures =
        format!("Welch's t = {:.2}, {:.1} degrees of freedom, p = {}", test.t.abs(), test.df, p_value(p));
    if verdict.is_distinguishable() {
        return format!("{best} is {direction} than {other} in {} by {difference} ({figures})", metric.name);
    }
    let advice = match verdict.seeds_needed {
        Some(needed) => {
            let more = |spread: Spread| (needed as usize).saturating_sub(spread.n);
            let of = |(label, spread): &(&String, Spread)| format!("{} more of {label}", more(*spread));
            let more = match [(best, a), (other, b)] {
                [(_, a), (_, b)] if a.n == b.n => format!("{} more", more(a)),
                both => {
                    Vec::from_iter(both.iter().filter(|(_, spread)| more(*spread) > 0).map(of)).join(" and ")
                }
            };
            format!("a difference of this size would take about {needed} seeds each, {more}")
        }
        None => "no affordable number of seeds would settle a difference this small".to_owned(),
    };
    format!(
        "{best} and {other} are not distinguishable in {} ({difference} apart; {figures}): {advice}",
        metric.name
    )
}

/// A p-value in as few digits, two at least, as show on which side of [`ALPHA`] it is.
fn p_value(p: f64) -> String {
    let shown = |digits: usize| significant(p, digits);
    let is_clear = |shown: &String| p == ALPHA || shown.parse() != Ok(ALPHA);
    (2..=8).map(shown).find(is_clear).unwrap_or_else(|| shown(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_p_value_near_the_level_shows_its_side() {
        let found = [0.0504, 0.0496, 0.050_003, 0.04, 1.3e-7, 0.05].map(p_value);
        assert_eq!(found, ["0.0504", "0.0496", "0.050003", "0.04", "1.3e-7", "0.05"]);
    }
}
