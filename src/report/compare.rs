//! A comparison of runs: what differs, how the results differ, and whether that is more than noise.

use super::axis::{Axis, Cut};
use super::differences::{self, Differences, differences};
use super::export::Table;
use super::fit::Leaving;
use super::footing::Footing;
use super::gather::Wanted;
use super::groups::{Group, Verdict, groups, sort_by_mean, verdicts};
pub use super::measures::Measure;
use super::metrics::{self, Metric, metrics};
use super::notes;
use super::runs::{Run, read_all};
use super::spans::{Span, beside};
use super::stats::Spread;
use super::target::{self, Target};
use crate::recipe::keys::PRECISION;
use crate::recipe::{is_default, spelled};
use crate::run::RunError;
use crate::run::column::{Better, Unit};
use crate::wording::count;
use std::borrow::Cow;
use std::path::PathBuf;

/// How a comparison is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// The point up to which rows count.
    pub cut: Option<Cut>,
    /// The metric that is tested and sorted by; the validation loss if some run has one, else the training loss.
    pub judge: Option<Metric>,
    /// Metrics to gather beside those of the table of columns.
    pub further: Vec<Metric>,
    /// The measures that somebody named, which are then the only ones that are shown.
    pub named: Vec<Measure>,
    /// The metrics of curves that are drawn beside the tables: notes are about them as well.
    pub drawn: Vec<Metric>,
    /// Whether people read it, who are shown fewer measures than programs.
    pub for_people: bool,
    /// Targets. Unless there is a judge, the rows are sorted by the tokens to the first, and those to each are tested.
    pub targets: Vec<Target>,
    /// What the rows are sorted by.
    pub order: RowOrder,
    /// Whether the order is reversed.
    pub reverse: bool,
}

impl Options {
    /// The metric of this name: of the table of columns, a further one, or of the way to a target.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<Metric> {
        let further = || self.further.iter().find(|metric| metric.name == name);
        let goal = || {
            let name = target::metric_name(name)?;
            goals(&self.targets).into_iter().find(|metric| metric.name == name)
        };
        metrics::find(name).or_else(further).cloned().or_else(goal)
    }
}

/// The order of the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowOrder {
    /// The best first, by the metric that is tested.
    Best,
    /// As given.
    Given,
    /// By a metric or a key of the recipe.
    By(String),
}

/// Runs side by side.
#[derive(Debug)]
pub struct Comparison {
    /// The runs, in order.
    pub runs: Vec<Run>,
    /// How their recipes are related.
    pub differences: Differences,
    /// Replicas.
    pub groups: Vec<Group>,
    /// The best group of each set against the set's other ones.
    pub verdicts: Vec<Verdict>,
    /// The metrics that the verdicts are about, at least one, and for each which runs were measured on the same data.
    pub judged: Vec<(Metric, Footing)>,
    /// The targets.
    pub targets: Vec<Target>,
    /// The metrics of the ways to them, three each.
    pub goals: Vec<Metric>,
    /// The metrics gathered beside those of the table of columns.
    pub further: Vec<Metric>,
    /// The metrics that somebody named, what the rows are sorted by included: a reader must know where runs cannot be
    /// compared by one.
    pub asked: Vec<Metric>,
    /// The measures that are shown.
    pub measures: Vec<Measure>,
    /// The metrics that decide something, are shown or are drawn: what notes have to be about.
    pub shown: Vec<Metric>,
    /// Which runs were measured on the same data by each of them.
    footings: Vec<(Metric, Footing)>,
    /// The measures that somebody named.
    named: Vec<Measure>,
    /// Where the logs are cut.
    pub cut: Option<Cut>,
    /// The sessions of other runs in the same directories, with their hashes, where figures of time are shown.
    pub beside: Vec<(String, Span)>,
}

impl Comparison {
    /// Reads and compares runs.
    ///
    /// Errors: [`RunError::NotARun`] if a directory is no run.
    pub fn new(paths: &[PathBuf], options: &Options) -> Result<Self, RunError> {
        let Options { cut, further, targets, .. } = options;
        let others = |metric: &&Metric| metrics::find(&metric.name).is_none() && !further.contains(metric);
        let drawn = options.drawn.iter().filter(others).cloned();
        let noted =
            cut.map(|_| notes::learning_rate()).into_iter().chain(notes::standard_error(paths, options));
        let gathered: Vec<Metric> = further.iter().cloned().chain(drawn).chain(noted).collect();
        let mut runs = read_all(paths, Wanted { cut: *cut, further: &gathered, targets })?;
        notes::note_owners(runs.iter_mut());
        let goals = goals(targets);
        let usual = match runs.iter().any(|run| run.results.get("val_loss").is_some()) {
            true => "val_loss",
            false => "loss",
        };
        let by_targets: Vec<&Metric> = goals.iter().filter(|goal| goal.unit == Unit::Count).collect();
        let judges = match (&options.judge, by_targets.is_empty()) {
            (Some(judge), _) => vec![judge],
            (None, true) => vec![metrics::find(usual).unwrap_or(&metrics()[0])],
            (None, false) => by_targets,
        };
        let sorted_by = match &options.order {
            RowOrder::Given => None,
            RowOrder::Best => Some(judges[0].clone()),
            RowOrder::By(name) => options.metric(name),
        };
        let footing = sorted_by.as_ref().map(|metric| Footing::new(&runs, metric)).filter(Footing::is_mixed);
        let mut sets = match footing {
            Some(footing) => footing.apart(runs),
            None => vec![runs],
        };
        for set in &mut sets {
            match (&options.order, &sorted_by) {
                (_, Some(metric)) => sort_by_metric(set, metric),
                (RowOrder::By(key), None) => sort_by_key(set, key),
                _ => {}
            }
            if options.reverse {
                set.reverse();
            }
        }
        let ends = sets.iter().scan(0, |end, set| {
            *end += set.len();
            Some(*end)
        });
        let ends: Vec<usize> = ends.collect();
        let runs: Vec<Run> = sets.into_iter().flatten().collect();
        let differences = differences(&runs);
        let mut groups = groups(&runs, &differences.differing);
        // of the runs in the order that they have now
        let judged: Vec<_> =
            judges.into_iter().map(|metric| (metric.clone(), Footing::new(&runs, metric))).collect();
        let with_footing = |metric: &Metric| {
            let known = judged.iter().find(|(judged, _)| judged == metric).cloned();
            known.unwrap_or_else(|| (metric.clone(), Footing::new(&runs, metric)))
        };
        if let Some(metric) = &sorted_by {
            let (metric, footing) = &with_footing(metric);
            sort_by_mean(&mut groups, &runs, (metric, footing), (&ends, options.reverse));
        }
        let verdicts = verdicts(&groups, &runs, &judged);
        let named = options.named.clone();
        let mut asked = further.clone();
        let sorted_by = sorted_by.iter().filter(|metric| judged.iter().all(|(judged, _)| judged != *metric));
        for metric in named.iter().filter_map(Measure::made_of).chain(sorted_by) {
            if !asked.contains(metric) {
                asked.push(metric.clone());
            }
        }
        let targets = targets.clone();
        let measures = Measure::chosen(&named, &goals, &judged[0].0, options.for_people);
        let mut shown: Vec<Metric> = Vec::new();
        let deciding = judged.iter().map(|(metric, _)| metric);
        let of_columns = measures.iter().filter_map(Measure::made_of);
        for metric in deciding.chain(&asked).chain(of_columns).chain(&options.drawn) {
            if !shown.contains(metric) {
                shown.push(metric.clone());
            }
        }
        let footings = shown.iter().map(with_footing).collect();
        let beside = beside(&runs, &shown, *cut);
        Ok(Self {
            runs,
            differences,
            groups,
            verdicts,
            judged,
            targets,
            goals,
            further: further.clone(),
            asked,
            measures,
            shown,
            footings,
            named,
            cut: *cut,
            beside,
        })
    }

    /// The metric that the rows are ranked by, and the verdicts are about unless there are several targets.
    #[must_use]
    pub fn judge(&self) -> &Metric {
        &self.judged[0].0
    }

    /// Which runs were measured on the same data, so that they can be ranked by the [`judge`](Self::judge).
    #[must_use]
    pub fn footing(&self) -> &Footing {
        &self.judged[0].1
    }

    /// The metrics that are shown, drawn or decide something and that were measured on different data, each with which
    /// runs were measured on the same.
    pub(super) fn mixed(&self) -> impl Iterator<Item = &(Metric, Footing)> {
        self.footings.iter().filter(|(_, footing)| footing.is_mixed())
    }

    /// Whether two runs, by their places, were measured alike by a metric.
    pub(super) fn are_alike(&self, metric: &Metric, one: usize, other: usize) -> bool {
        let footing = self.footing_by(metric);
        footing.sets[one] == footing.sets[other]
    }

    /// Which runs were measured on the same data by a metric.
    pub(super) fn footing_by(&self, metric: &Metric) -> Cow<'_, Footing> {
        match self.footings.iter().find(|(known, _)| known == metric) {
            Some((_, footing)) => Cow::Borrowed(footing),
            None => Cow::Owned(Footing::new(&self.runs, metric)),
        }
    }

    /// [`Footing::differing_in`] of a group by a metric.
    pub(super) fn differing(&self, group: &Group, metric: &Metric) -> Option<Vec<&'static str>> {
        self.footing_by(metric).differing_in(group, &self.runs, metric)
    }

    /// [`Footing::spread`] of a group by a metric.
    pub(super) fn spread(&self, group: &Group, metric: &Metric) -> Option<Spread> {
        self.footing_by(metric).spread(group, &self.runs, metric)
    }

    /// The measures that people see, whatever the comparison is written as.
    #[must_use]
    pub fn for_people(&self) -> Vec<Measure> {
        Measure::chosen(&self.named, &self.goals, self.judge(), true)
    }

    /// The furthest point along an axis at which a run reached a target; `None` if none did.
    #[must_use]
    pub fn last_reached(&self, axis: Axis) -> Option<f64> {
        let ways = self.runs.iter().flat_map(|run| self.targets.iter().filter_map(|t| t.way(&run.results)));
        ways.map(|way| way[axis.place()]).filter(|at| *at > 0.0).reduce(f64::max)
    }

    /// Whether some run has a replica.
    #[must_use]
    pub fn has_replicas(&self) -> bool {
        self.groups.iter().any(|group| group.counted().count() > 1)
    }

    /// The metrics that every run was read for: those of the table of columns, further ones, and the ways to targets.
    pub(super) fn metrics(&self) -> impl Iterator<Item = &Metric> {
        metrics().iter().chain(&self.further).chain(&self.goals)
    }

    /// What a reader must know before believing the figures, one sentence each.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        super::notes::notes(self)
    }

    /// The [`notes`](Self::notes), and what a reader should know about each run, one phrase each.
    #[must_use]
    pub fn notes_with_those_of_each(&self) -> (Vec<String>, Vec<Vec<String>>) {
        super::notes::both(self)
    }

    /// One row per run, for people: its id, the keys that differ, its status, and the measures.
    #[must_use]
    pub fn table(&self, measures: &[Measure]) -> Table {
        super::runs_table::table(self, measures, None)
    }

    /// One row per run, for programs: as people see it, with where the run is and the notes on it.
    #[must_use]
    pub fn table_with_notes(&self, notes_of_each: Vec<Vec<String>>) -> Table {
        super::runs_table::table(self, &self.measures, Some(notes_of_each))
    }

    /// The columns that a table may leave out where it is too wide: the figures `measures` but the one that is judged
    /// by, and if need be keys.
    #[must_use]
    pub fn leaving(&self, measures: &[Measure]) -> Leaving {
        let own = measures.iter().filter_map(|measure| match measure {
            Measure::Own(metric) if metric.name != self.judge().name => Some(metric),
            _ => None,
        });
        let mut own: Vec<&Metric> = own.collect();
        own.sort_by_key(|metric| std::cmp::Reverse(metric.leaves));
        let first = own.iter().map(|metric| metric.name.clone()).collect();
        Leaving { first, at_last: self.differences.differing.clone() }
    }

    /// One row per group of replicas: mean ± standard deviation of the measures that vary from run to run.
    #[must_use]
    pub fn replicas(&self, measures: &[Measure]) -> Table {
        super::replicas::table(self, measures)
    }

    /// What all runs have in common, on one line: chosen values are spelled out, defaults are counted.
    #[must_use]
    pub fn shared_line(&self) -> String {
        let (usual, chosen): (Vec<_>, Vec<_>) =
            self.differences.shared.iter().partition(|(key, value)| is_default(key, value));
        let all_emulated = self.runs.iter().all(|run| run.facts.emulated);
        let spell = |(key, value): &&(String, serde_json::Value)| {
            let mark = if all_emulated && key == PRECISION { " (emulated)" } else { "" };
            format!("{key} = {}{mark}", spelled(value))
        };
        let mut parts: Vec<String> = chosen.iter().map(spell).collect();
        if !usual.is_empty() {
            parts.push(count(usual.len(), "default"));
        }
        match self.runs.len() {
            1 => format!("1 run has: {}", parts.join(", ")),
            runs => format!("{runs} runs share: {}", parts.join(", ")),
        }
    }

    /// What the replicas allow to conclude about the best group and each other one, one sentence each.
    #[must_use]
    pub fn conclusions(&self) -> Vec<String> {
        super::sentences::conclusions(self)
    }

    /// What a reader must know before believing means and tests, one sentence each: how p-values are adjusted, and
    /// which runs are left out.
    #[must_use]
    pub fn caveats(&self) -> Vec<String> {
        super::sentences::caveats(self)
    }

    /// All conclusions, and all caveats behind them.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        [self.conclusions(), self.caveats()].concat()
    }

    /// As [`sentences`](Self::sentences), but with the first conclusions only, how many more there are, and that
    /// `others` is where to find them.
    #[must_use]
    pub fn in_short(&self, others: &str) -> Vec<String> {
        [super::sentences::first(self.conclusions(), others), self.caveats()].concat()
    }

    /// Warnings about single runs, and errors that ended them.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let ended = |run: &Run| Some(format!("{}: {}: {}", run.id, run.status, run.facts.error.as_ref()?));
        let warnings = self.runs.iter().flat_map(|run| run.warnings.iter().cloned());
        warnings.chain(self.runs.iter().filter_map(ended)).collect()
    }
}

/// The metrics of the ways to targets. Their titles name the column where the targets are of several.
fn goals(targets: &[Target]) -> Vec<Metric> {
    let named = targets.iter().any(|target| target.column != targets[0].column);
    targets.iter().flat_map(|target| target.metrics(named)).collect()
}

/// Sorts the best first, and runs without a number last: of those that have not reached a target, by how close they
/// came.
fn sort_by_metric(runs: &mut [Run], metric: &Metric) {
    let value = |run: &Run, metric: &Metric| {
        let sign = if metric.better == Better::Lower { 1.0 } else { -1.0 };
        run.results.get(&metric.name).filter(|x| !x.is_nan()).map_or(f64::INFINITY, |x| x * sign)
    };
    let best = |run: &Run| metric.target.as_ref().map_or(0.0, |target| value(run, &target.best));
    // the same way to a target is no reason to ask how good the runs became later
    let closeness = |run: &Run| if value(run, metric).is_finite() { 0.0 } else { best(run) };
    runs.sort_by(|a, b| {
        value(a, metric).total_cmp(&value(b, metric)).then(closeness(a).total_cmp(&closeness(b)))
    });
}

/// Sorts by a key, runs without it last.
fn sort_by_key(runs: &mut [Run], key: &str) {
    runs.sort_by(|a, b| differences::order(differences::value(a, key), differences::value(b, key)));
}
