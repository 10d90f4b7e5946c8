//! Which runs of a comparison were measured on the same data, so that they can be ranked by a metric.

use super::basis::Basis;
use super::groups::Group;
use super::metrics::Metric;
use super::runs::Run;
use super::stats::Spread;
use std::collections::{BTreeSet, HashMap};

/// The runs of a comparison in sets whose judged metric was measured on the same data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footing {
    /// The set of each run, from 0, in the order in which the sets' first runs come; `None` for a run without the
    /// metric.
    pub sets: Vec<Option<usize>>,
    /// What differs between the sets, as phrases; empty for a single set.
    pub differing: Vec<&'static str>,
    /// Whether what is on record of all runs is equal as it is, so that no part of them is of several sets either.
    is_uniform: bool,
    /// What the runs of each set were measured on, where there are several.
    bases: Vec<Basis>,
}

impl Footing {
    /// Sorts runs into sets of equal [`Basis`]; only runs that have the metric count.
    #[must_use]
    pub fn new(runs: &[Run], metric: &Metric) -> Self {
        let measured = runs.iter().filter(|run| run.is_measured(metric));
        let bases: Vec<Basis> = measured.map(|run| Basis::of(run, metric)).collect();
        let is_uniform = Basis::alike(&bases);
        let known = Basis::settled(bases);
        if Basis::alike(&known) {
            let sets = runs.iter().map(|run| run.is_measured(metric).then_some(0)).collect();
            return Self { sets, differing: Vec::new(), is_uniform, bases: Vec::new() };
        }
        let mut known = known.into_iter();
        let bases: Vec<Option<Basis>> =
            runs.iter().map(|run| if run.is_measured(metric) { known.next() } else { None }).collect();
        let mut known: HashMap<&Basis, usize> = HashMap::new();
        let mut sets = Vec::with_capacity(runs.len());
        for basis in &bases {
            let next = known.len();
            sets.push(basis.as_ref().map(|basis| *known.entry(basis).or_insert(next)));
        }
        let mut known: Vec<(&Basis, usize)> = known.into_iter().collect();
        known.sort_by_key(|(_, set)| *set);
        let known: Vec<&Basis> = known.into_iter().map(|(basis, _)| basis).collect();
        let differing = Basis::differing(&known);
        Self { sets, differing, is_uniform: false, bases: known.into_iter().cloned().collect() }
    }

    /// The set of a group of replicas by a metric; `None` if none of its runs that count towards a mean has it, or if
    /// they are of several sets.
    #[must_use]
    pub fn of_group(&self, group: &Group, runs: &[Run], metric: &Metric) -> Option<usize> {
        let mut sets = group.measured(runs, metric).filter_map(|run| self.sets[run]);
        let first = sets.next()?;
        sets.all(|set| set == first).then_some(first)
    }

    /// In what some of the runs, by their places, were measured differently by a metric, as phrases; `None` where they
    /// may have a mean. A record of an earlier version, which says less, can put runs that differ into one set, so runs
    /// of one set are compared with each other again.
    #[must_use]
    pub fn differing_among(
        &self,
        some: &[usize],
        runs: &[Run],
        metric: &Metric,
    ) -> Option<Vec<&'static str>> {
        if self.is_uniform {
            return None;
        }
        let sets: BTreeSet<usize> = some.iter().filter_map(|&run| self.sets[run]).collect();
        if sets.len() > 1 {
            let bases: Vec<&Basis> = sets.into_iter().map(|set| &self.bases[set]).collect();
            return Some(Basis::differing(&bases));
        }
        let alone = Basis::of_each(some.iter().map(|&run| &runs[run]), metric);
        (!Basis::alike(&alone)).then(|| Basis::differing(&alone.iter().collect::<Vec<_>>()))
    }

    /// In what those runs of a group that have a value of a metric were measured [differently](Self::differing_among).
    #[must_use]
    pub fn differing_in(&self, group: &Group, runs: &[Run], metric: &Metric) -> Option<Vec<&'static str>> {
        self.differing_among(&group.with_value(runs, metric), runs, metric)
    }

    /// Mean and spread of a metric over the complete runs of a group that have it, one for each seed. The way to a
    /// target is known of every run that has reached it, complete or not. `None` where they were measured differently.
    #[must_use]
    pub fn spread(&self, group: &Group, runs: &[Run], metric: &Metric) -> Option<Spread> {
        let spread = group.spread(runs, metric)?;
        self.differing_in(group, runs, metric).is_none().then_some(spread)
    }

    /// How many sets there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sets.iter().flatten().max().map_or(0, |last| last + 1)
    }

    /// Whether runs were measured on different data.
    #[must_use]
    pub fn is_mixed(&self) -> bool {
        self.count() > 1
    }

    /// The runs of each set, in their order; those without the metric come behind all sets.
    #[must_use]
    pub fn apart(&self, runs: Vec<Run>) -> Vec<Vec<Run>> {
        let count = self.count();
        let mut apart: Vec<Vec<Run>> = (0..=count).map(|_| Vec::new()).collect();
        for (run, set) in runs.into_iter().zip(&self.sets) {
            apart[set.unwrap_or(count)].push(run);
        }
        apart
    }

    /// What to make of several sets, as a sentence; `None` for a single one.
    #[must_use]
    pub fn note(&self, metric: &Metric) -> Option<String> {
        // of a way to a target the data are those of its column, and the settings those of the way
        let target = metric.target.as_ref().filter(|_| !Basis::is_of_settings(&self.differing));
        let name = target.map_or(&metric.name, |target| &target.column);
        self.is_mixed().then(|| {
            format!(
                "{name} was measured {}: {} sets of runs, which are neither ranked against each other nor tested",
                Basis::differently(&self.differing),
                self.count()
            )
        })
    }
}
