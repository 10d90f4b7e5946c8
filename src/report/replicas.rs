//! The table of replicas: what a recipe gives on average, and how much that varies between seeds.

use super::compare::Comparison;
use super::export::{Cell, Column, Table};
use super::groups::Group;
use super::measures::Measure;
use super::metrics::Metric;
use super::numbers::fixed;
use super::stats::Spread;
use crate::run::column::Unit;

/// One row per group of replicas: mean ± standard deviation of the measures that vary from run to run.
pub(super) fn table(comparison: &Comparison, measures: &[Measure]) -> Table {
    let own = || {
        measures.iter().filter_map(|measure| match measure {
            Measure::Own(metric) if metric.unit != Unit::Count || metric.target.is_some() => Some(metric),
            _ => None,
        })
    };
    let mut columns = vec![Column::words("group", "recipe"), Column::numbers("n", "n")];
    columns.extend(own().map(|metric| Column::numbers(&metric.name, &metric.title)));
    let row = |group: &Group| {
        let complete = group.counted().count() - group.incomplete(&comparison.runs).count();
        let mut cells =
            vec![Cell::text(&*group.label), Cell::number(Some(complete as f64), |n| n.to_string())];
        cells.extend(own().map(|metric| cell(comparison, group, metric, complete)));
        cells
    };
    let mut table = Table { rows: comparison.groups.iter().map(row).collect(), columns };
    table.drop_empty_columns();
    table
}

/// Mean and deviation of a metric over the seeds of a group that have it, and how many these are unless they are the
/// `complete` ones, whose number the row has.
fn cell(comparison: &Comparison, group: &Group, metric: &Metric, complete: usize) -> Cell {
    let runs = &comparison.runs;
    let reached = metric.target.as_ref().map(|target| group.count_reached(runs, target));
    let open = metric.target.as_ref().map_or(0, |target| group.open(runs, target).count());
    let said = |(reached, of): (usize, usize)| match open {
        0 => format!("{reached} of {of} reached"),
        open => format!("{reached} of {} reached so far", of + open),
    };
    let Some(spread) = comparison.spread(group, metric) else {
        let missed = reached.filter(|(reached, of)| reached < of || open > 0);
        return missed.map_or_else(Cell::empty, |reached| Cell::text(said(reached)));
    };
    let seeds = match reached {
        Some(found @ (reached, of))
            if reached == spread.n && (reached < of + open || reached != complete) =>
        {
            format!(" ({})", said(found))
        }
        _ if spread.n == complete => String::new(),
        _ => format!(" ({} of {})", spread.n, reached.map_or(complete, |(_, of)| of)),
    };
    let is_interpolated = |i: usize| runs[i].results.interpolated().contains(&metric.name);
    let mark = if group.counted().any(is_interpolated) { "~" } else { "" };
    Cell::text(format!("{mark}{}{seeds}", shown(spread, metric.unit)))
}

/// Mean ± standard deviation; the mean alone where there is no deviation.
fn shown(spread: Spread, unit: Unit) -> String {
    let sd = |sd: f64| match unit {
        Unit::Loss => fixed(sd, 4),
        Unit::Fraction => fixed(sd * 100.0, 1),
        unit => unit.shown(sd),
    };
    let mean = unit.shown(spread.mean);
    spread.sd.map_or_else(|| mean.clone(), |deviation| format!("{mean} ± {}", sd(deviation)))
}
