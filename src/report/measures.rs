//! The columns of numbers of a comparison: metrics, and how a row relates to others.

use super::compare::Comparison;
use super::export::{Cell, Column};
use super::metrics::{self, Metric, metrics};
use super::runs::Run;
use crate::run::column::Unit;

/// A column of numbers: a metric, or how a row's speed relates to another row's.
#[derive(Debug, Clone)]
pub enum Measure {
    /// A metric of the run itself.
    Own(Metric),
    /// Tokens per second over those of the first row.
    Speedup,
    /// Tokens per second over those of the row above.
    Gain,
}

impl Measure {
    /// The measure of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        match name {
            "speedup" => Some(Self::Speedup),
            "gain" => Some(Self::Gain),
            _ => metrics::find(name).cloned().map(Self::Own),
        }
    }

    /// Every name, as [`find`](Self::find) knows them.
    pub fn names() -> impl Iterator<Item = &'static str> {
        metrics().iter().map(|metric| metric.name.as_str()).chain(["speedup", "gain"])
    }

    /// The measures of which nobody named others: all metrics to programs, fewer to people. With `goals`, the
    /// metrics of the ways to targets, people see these, the best values and the speed.
    fn usual(for_people: bool, goals: &[Metric]) -> Vec<Self> {
        let mut bests: Vec<&Metric> = Vec::new();
        for best in goals.iter().filter_map(|goal| Some(&goal.target.as_ref()?.best)) {
            if !bests.contains(&best) {
                bests.push(best);
            }
        }
        let shown = |metric: &&Metric| match goals.is_empty() {
            true => metric.for_people,
            false => metric.name == SPEED,
        };
        let usual = metrics().iter().filter(|metric| !for_people || shown(metric));
        let all: Vec<&Metric> = match for_people {
            true => goals.iter().chain(bests).chain(usual).collect(),
            // behind what programs have always found
            false => {
                let is_further = |best: &&Metric| !metrics().contains(best);
                usual.chain(goals).chain(bests.into_iter().filter(is_further)).collect()
            }
        };
        all.into_iter().cloned().map(Self::Own).collect()
    }

    /// The measures that are shown: those that somebody `named` behind the ways to targets, or the usual ones with the
    /// metric that the rows are ranked by. Each comes once.
    pub(super) fn chosen(named: &[Self], goals: &[Metric], judge: &Metric, for_people: bool) -> Vec<Self> {
        let (first, others) = match named {
            [] => (Self::usual(for_people, goals), vec![Self::Own(judge.clone())]),
            named => (goals.iter().cloned().map(Self::Own).collect(), named.to_vec()),
        };
        let mut chosen: Vec<Self> = Vec::new();
        for measure in first.into_iter().chain(others) {
            if chosen.iter().all(|known| known.name() != measure.name()) {
                chosen.push(measure);
            }
        }
        chosen
    }

    /// The metric, where it is one of the run itself.
    #[must_use]
    pub fn own(&self) -> Option<&Metric> {
        match self {
            Self::Own(metric) => Some(metric),
            Self::Speedup | Self::Gain => None,
        }
    }

    /// The metric that the numbers are made of.
    #[must_use]
    pub fn made_of(&self) -> Option<&Metric> {
        match self {
            Self::Own(metric) => Some(metric),
            Self::Speedup | Self::Gain => metrics::find(SPEED),
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Own(metric) => &metric.name,
            Self::Speedup => "speedup",
            Self::Gain => "gain",
        }
    }

    pub(super) fn column(&self) -> Column {
        match self {
            Self::Own(metric) => Column::numbers(&metric.name, &metric.title),
            Self::Speedup => Column::numbers(self.name(), "speed-up"),
            Self::Gain => Column::numbers(self.name(), "gain"),
        }
    }

    /// The cell of the run at this place. A ratio of speeds that were measured differently is left out.
    pub(super) fn cell(&self, comparison: &Comparison, i: usize) -> Cell {
        let runs = &comparison.runs;
        let over = |other: Option<usize>| {
            let ratio = || {
                let speed = metrics::find(SPEED)?;
                let other = other.filter(|&other| comparison.are_alike(speed, i, other))?;
                let [own, theirs] = [i, other].map(|run| runs[run].results.get(SPEED));
                Some(own? / theirs?)
            };
            Cell::number(ratio(), |x| Unit::Ratio.shown(x))
        };
        match self {
            Self::Own(metric) => own(&runs[i], metric),
            Self::Speedup => over(Some(0)),
            Self::Gain => over(i.checked_sub(1)),
        }
    }
}

/// The metric by which rows relate to others.
const SPEED: &str = "tokens_per_s";

fn own(run: &Run, metric: &Metric) -> Cell {
    let value = run.results.get(&metric.name);
    if let Some(target) = metric.target.as_ref().filter(|target| target.way(&run.results).is_none()) {
        let shown = match run.is_measured(metric) {
            true if target.is_open(run) => "not yet",
            true if target.is_known(run) => "not reached",
            true => "not known",
            false => "",
        };
        return Cell { shown: shown.to_owned(), ..Cell::empty() };
    }
    let mark = if run.results.interpolated().contains(&metric.name) { "~" } else { "" };
    Cell::number(value, |x| format!("{mark}{}", metric.unit.shown(x)))
}
