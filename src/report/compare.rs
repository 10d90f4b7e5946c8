//! A comparison of runs: what differs, how the results differ, and whether that is more than noise.

use super::axis::Cut;
use super::differences::{self, Differences, differences, short};
use super::export::{Cell, Column, Table};
use super::fit::Leaving;
use super::footing::Footing;
use super::groups::{Group, Verdict, groups, sentence, verdicts};
use super::metrics::{self, Metric, metrics};
use super::numbers::significant;
use super::runs::{Run, read_all};
use crate::recipe::keys::PRECISION;
use crate::recipe::{is_default, spelled};
use crate::run::column::{Better, Unit};
use crate::run::{RunError, RunStatus};
use crate::wording::count;
use std::path::PathBuf;

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

    /// The measures shown unless the user asks for others: all metrics to programs, fewer to people.
    #[must_use]
    pub fn usual(for_people: bool) -> Vec<Self> {
        metrics().iter().filter(|metric| !for_people || metric.for_people).cloned().map(Self::Own).collect()
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Own(metric) => &metric.name,
            Self::Speedup => "speedup",
            Self::Gain => "gain",
        }
    }

    fn column(&self) -> Column {
        match self {
            Self::Own(metric) => Column::numbers(&metric.name, &metric.title),
            Self::Speedup => Column::numbers(self.name(), "speed-up"),
            Self::Gain => Column::numbers(self.name(), "gain"),
        }
    }
}

/// How a comparison is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// The point up to which rows count.
    pub cut: Option<Cut>,
    /// The metric that is tested and sorted by; the validation loss if some run has one, else the training loss.
    pub judge: Option<Metric>,
    /// Metrics to gather beside those of the table of columns.
    pub further: Vec<Metric>,
    /// What the rows are sorted by.
    pub order: RowOrder,
    /// Whether the order is reversed.
    pub reverse: bool,
}

impl Options {
    /// The metric of this name, of the table of columns or a further one.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        metrics::find(name).or_else(|| self.further.iter().find(|metric| metric.name == name))
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
    /// Which runs were measured on the same data, so that they can be ranked by the judged metric.
    pub footing: Footing,
    /// The best group of each set against the set's other ones.
    pub verdicts: Vec<Verdict>,
    /// The metric that the verdicts are about.
    pub judge: Metric,
    /// The metrics gathered beside those of the table of columns.
    pub further: Vec<Metric>,
    /// Where the logs are cut.
    pub cut: Option<Cut>,
}

impl Comparison {
    /// Reads and compares runs.
    ///
    /// Errors: [`RunError::NotARun`] if a directory is no run; [`RunError::Io`] if a log cannot be read.
    pub fn new(paths: &[PathBuf], options: &Options) -> Result<Self, RunError> {
        let runs = read_all(paths, options.cut, &options.further)?;
        let usual = match runs.iter().any(|run| run.results.get("val_loss").is_some()) {
            true => "val_loss",
            false => "loss",
        };
        let judge = options.judge.as_ref().or_else(|| metrics::find(usual)).unwrap_or(&metrics()[0]).clone();
        let sorted_by = match &options.order {
            RowOrder::Given => None,
            RowOrder::Best => Some(&judge),
            RowOrder::By(name) => options.metric(name),
        };
        let footing = sorted_by.map(|metric| Footing::new(&runs, metric)).filter(Footing::is_mixed);
        let mut sets = match footing {
            Some(footing) => footing.apart(runs),
            None => vec![runs],
        };
        for set in &mut sets {
            match (&options.order, sorted_by) {
                (_, Some(metric)) => sort_by_metric(set, metric),
                (RowOrder::By(key), None) => sort_by_key(set, key),
                _ => {}
            }
            if options.reverse {
                set.reverse();
            }
        }
        let runs: Vec<Run> = sets.into_iter().flatten().collect();
        let footing = Footing::new(&runs, &judge);
        let differences = differences(&runs);
        let groups = groups(&runs, &differences.differing);
        let verdicts = verdicts(&groups, &runs, &judge, &footing);
        let further = options.further.clone();
        Ok(Self { runs, differences, groups, footing, verdicts, judge, further, cut: options.cut })
    }

    /// Whether some run has a replica.
    #[must_use]
    pub fn has_replicas(&self) -> bool {
        self.groups.iter().any(|group| group.counted().count() > 1)
    }

    /// What a reader must know before believing the figures, one sentence each.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        super::notes::notes(self)
    }

    /// One row per run: its id, the keys that differ, its status, and the measures.
    #[must_use]
    pub fn table(&self, measures: &[Measure], for_people: bool) -> Table {
        let keys = &self.differences.differing;
        let mut columns = vec![Column::words("run", "run")];
        let shows_sets = self.footing.is_mixed();
        if shows_sets && for_people {
            columns.push(Column::words("set", "set"));
        }
        for key in keys {
            let values = || self.runs.iter().filter_map(|run| differences::value(run, key));
            let is_numeric = values().all(|value| value.is_number());
            let title = if for_people { short(key, keys) } else { key };
            columns.push(Column { name: key.clone(), title: title.to_owned(), is_numeric });
        }
        let all_finished = self.runs.iter().all(|run| run.status == RunStatus::Finished);
        let shows_status = !for_people || !all_finished;
        let shows_notes = self.runs.iter().any(|run| !run.notes.is_empty());
        if shows_status {
            columns.push(Column::words("status", "status"));
        }
        columns.extend(measures.iter().map(|measure| measure.column()));
        if !for_people {
            columns.push(Column::words("emulated", "emulated"));
            columns.push(Column::words("path", "path"));
            columns.extend(self.cut.map(|_| Column::words("interpolated", "interpolated")));
            columns.extend(shows_sets.then(|| Column::numbers("set", "set")));
            columns.extend(shows_notes.then(|| Column::words("notes", "notes")));
        }
        let set = |i: usize| self.footing.sets[i];
        let speed = |i: usize| self.runs.get(i).and_then(|run| run.results.get("tokens_per_s"));
        let row = |(i, run): (usize, &Run)| {
            let mut cells = vec![Cell::text(&*run.id)];
            if shows_sets && for_people {
                cells.push(set(i).map_or_else(Cell::empty, |set| Cell::text((set + 1).to_string())));
            }
            for key in keys {
                let cell = |value| {
                    let mark = if run.facts.emulated && key == PRECISION { " (emulated)" } else { "" };
                    Cell { shown: format!("{}{mark}", differences::shown(&value)), value }
                };
                cells.push(differences::value(run, key).map_or_else(Cell::empty, cell));
            }
            if shows_status {
                cells.push(Cell { value: run.status.to_string().into(), shown: run.status_shown() });
            }
            for measure in measures {
                let over = |other: Option<f64>| Some(speed(i)? / other?);
                cells.push(match measure {
                    Measure::Own(metric) => {
                        let mark = if run.results.interpolated().contains(&metric.name) { "~" } else { "" };
                        let shown = |x| format!("{mark}{}", metric.unit.shown(x));
                        Cell::number(run.results.get(&metric.name), shown)
                    }
                    Measure::Speedup => Cell::number(over(speed(0)), |x| Unit::Ratio.shown(x)),
                    Measure::Gain => {
                        Cell::number(over(i.checked_sub(1).and_then(speed)), |x| Unit::Ratio.shown(x))
                    }
                });
            }
            if !for_people {
                cells.push(Cell { value: run.facts.emulated.into(), shown: run.facts.emulated.to_string() });
                cells.push(Cell::text(run.path.display().to_string()));
                cells.extend(self.cut.map(|_| Cell::text(run.results.interpolated().join(" "))));
                cells.extend(
                    shows_sets.then(|| Cell::number(set(i).map(|set| (set + 1) as f64), |n| n.to_string())),
                );
                cells.extend(shows_notes.then(|| Cell::text(run.notes.join("; "))));
            }
            cells
        };
        let mut table = Table { rows: self.runs.iter().enumerate().map(row).collect(), columns };
        if for_people {
            table.drop_empty_columns();
        }
        table
    }

    /// The columns that a table may leave out where it is too wide: the figures `measures` but the one that is judged
    /// by, and if need be keys.
    #[must_use]
    pub fn leaving(&self, measures: &[Measure]) -> Leaving {
        let own = measures.iter().filter_map(|measure| match measure {
            Measure::Own(metric) if metric.name != self.judge.name => Some(metric),
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
        let own = || {
            measures.iter().filter_map(|measure| match measure {
                Measure::Own(metric) if !matches!(metric.unit, Unit::Count) => Some(metric),
                _ => None,
            })
        };
        let mut columns = vec![Column::words("group", "recipe"), Column::numbers("n", "n")];
        columns.extend(own().map(|metric| Column::numbers(&metric.name, &metric.title)));
        let row = |group: &Group| {
            let complete = group.counted().count() - group.incomplete(&self.runs);
            let mut cells =
                vec![Cell::text(&*group.label), Cell::number(Some(complete as f64), |n| n.to_string())];
            cells.extend(own().map(|metric| {
                group.spread(&self.runs, metric).map_or_else(Cell::empty, |spread| {
                    let sd = |sd: f64| match metric.unit {
                        Unit::Loss => format!(" ± {sd:.4}"),
                        Unit::Fraction => format!(" ± {:.1}", sd * 100.0),
                        unit => format!(" ± {}", unit.shown(sd)),
                    };
                    let is_interpolated =
                        |i: usize| self.runs[i].results.interpolated().contains(&metric.name);
                    let mark = if group.counted().any(is_interpolated) { "~" } else { "" };
                    Cell::text(format!(
                        "{mark}{}{}",
                        metric.unit.shown(spread.mean),
                        spread.sd.map_or_else(String::new, sd)
                    ))
                })
            }));
            cells
        };
        let mut table = Table { rows: self.groups.iter().map(row).collect(), columns };
        table.drop_empty_columns();
        table
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
    pub fn sentences(&self) -> Vec<String> {
        let sets: Vec<Option<usize>> = self.groups.iter().map(|group| self.footing.of_group(group)).collect();
        let is_alone = |i: usize| sets.iter().filter(|set| **set == sets[i]).count() < 2;
        if self.groups.len() < 2 || (self.footing.is_mixed() && (0..sets.len()).all(is_alone)) {
            return Vec::new();
        }
        if !self.has_replicas() {
            return vec![
                "one seed each: whether a difference is more than a seed's noise cannot be said; run replicas with \
                 other seeds (--set seed=2, ...)"
                    .to_owned(),
            ];
        }
        let mut sentences: Vec<String> =
            self.verdicts.iter().map(|verdict| sentence(verdict, &self.groups, &self.judge)).collect();
        if self.verdicts.iter().filter(|verdict| verdict.test.is_some()).count() > 1 {
            sentences.push("p-values are adjusted for the number of tests (Holm)".to_owned());
        }
        let incomplete: usize = self.groups.iter().map(|group| group.incomplete(&self.runs)).sum();
        if incomplete > 0 {
            let is = if incomplete == 1 { "is" } else { "are" };
            let what = if self.cut.is_some() {
                "did not come as far".to_owned()
            } else {
                format!("{is} not finished")
            };
            let runs = count(incomplete, "run");
            sentences.push(format!("{runs} that {what} {is} left out of means and tests"));
        }
        sentences
    }

    /// Warnings about single runs, and errors that ended them.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let ended = |run: &Run| Some(format!("{}: {}: {}", run.id, run.status, run.facts.error.as_ref()?));
        let warnings = self.runs.iter().flat_map(|run| run.warnings.iter().cloned());
        warnings.chain(self.runs.iter().filter_map(ended)).collect()
    }

    /// Mean and standard deviation in a few digits, as in a legend: `3.3952 ± 0.0012`.
    #[must_use]
    pub fn shown_spread(&self, group: &Group) -> String {
        group.spread(&self.runs, &self.judge).map_or_else(String::new, |spread| match spread.sd {
            Some(sd) => format!("{} ± {}", self.judge.unit.shown(spread.mean), significant(sd, 2)),
            None => self.judge.unit.shown(spread.mean),
        })
    }
}

/// Sorts the best first, and runs without a number last.
fn sort_by_metric(runs: &mut [Run], metric: &Metric) {
    let sign = if metric.better == Better::Lower { 1.0 } else { -1.0 };
    let value =
        |run: &Run| run.results.get(&metric.name).filter(|x| !x.is_nan()).map_or(f64::INFINITY, |x| x * sign);
    runs.sort_by(|a, b| value(a).total_cmp(&value(b)));
}

/// Sorts by a key, runs without it last.
fn sort_by_key(runs: &mut [Run], key: &str) {
    runs.sort_by(|a, b| differences::order(differences::value(a, key), differences::value(b, key)));
}
