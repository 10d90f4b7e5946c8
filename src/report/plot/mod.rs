//! Plots of runs, good enough for a paper or a README as they are.
//!
//! [`figure`] gathers curves, [`layout::draw`] makes a picture of them, [`svg`] and [`png`] make that a file.

pub mod curve;
pub mod font;
pub mod layout;
pub mod palette;
pub mod png;
mod quantity;
pub mod scale;
pub mod scene;
pub mod svg;

use super::axis::Axis;
use super::basis::{Basis, is_speed};
use super::compare::Comparison;
use super::footing::Footing;
use super::groups::Group;
use super::legend::Legend;
use super::metrics::{self, Metric};
use super::notes::{first_of, listed, of_drawn};
use super::runs::Run;
use super::target::Target;
use crate::recipe::keys::SEED;
use curve::{Curve, average, read, read_val, smooth, usual_window};
use palette::{Look, looks};
pub use quantity::{Quantity, further, quantities};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// What is plotted.
#[derive(Debug, Clone)]
pub struct Options {
    /// The horizontal axis.
    pub axis: Axis,
    /// One panel each, from top to bottom.
    pub quantities: Vec<Quantity>,
    /// Rows that are averaged; a fiftieth of the run unless given, 1 for none.
    pub window: Option<usize>,
    /// Whether the horizontal axis is logarithmic.
    pub log_x: bool,
    /// Whether the vertical axes are.
    pub log_y: bool,
    /// Over the whole.
    pub title: Option<String>,
    /// Points.
    pub width: f32,
    /// Points, of each panel.
    pub panel_height: f32,
}

/// One curve of a panel: a run, or the mean of replicas.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// The line; empty for the validation loss alone.
    pub line: Curve,
    /// Standard deviation around it, row by row; empty for a single run.
    pub band: Vec<f64>,
    /// Evaluations.
    pub marks: Curve,
    /// The smallest and the largest number of rows that a value of the line was averaged over, among the runs.
    pub window: Option<(usize, usize)>,
    /// Columns that not all runs of a mean have, with how many do.
    of_some: Vec<(String, usize)>,
    /// Whether the runs were evaluated on different data, so that their evaluations have no mean.
    is_mixed: bool,
    /// How the runs' speeds were measured differently, so that they have no mean.
    apart: Option<String>,
    /// How the runs' seconds were, where the axis is of time, so that nothing has a mean.
    untimed: Option<String>,
}

/// A panel: its quantity and a series for every entry of the legend.
#[derive(Debug)]
pub struct Panel {
    /// What is shown.
    pub quantity: Quantity,
    /// In the order of the figure's labels.
    pub series: Vec<Series>,
    /// Targets: a value, and what it is.
    pub levels: Vec<(f64, String)>,
}

/// Everything that a plot shows.
#[derive(Debug)]
pub struct Figure {
    /// What the labels are values of, if that is one key.
    pub legend_title: Option<String>,
    /// What tells the series apart.
    pub labels: Vec<String>,
    /// How each series is drawn; `None` for one that is not in the legend.
    pub looks: Vec<Option<Look>>,
    /// From top to bottom.
    pub panels: Vec<Panel>,
    /// How lines, marks and bands are to be read.
    pub note: String,
}

/// The metrics of the curves of these quantities, and of seconds where they may lie along an axis of time, as far as
/// there are such. Notes on a comparison are to be [about them](super::compare::Options::drawn).
#[must_use]
pub fn drawn<'a>(
    quantities: impl IntoIterator<Item = &'a Quantity>,
    may_be_timed: bool,
    runs: &[PathBuf],
) -> Vec<Metric> {
    let mut drawn: Vec<Metric> = Vec::new();
    for quantity in quantities {
        let marked = quantity.marks().filter(|_| !quantity.is_evaluated).map(Quantity::evaluated);
        let of_marks = marked.and_then(|marked| marked.metric(runs));
        for metric in quantity.metric(runs).into_iter().chain(of_marks) {
            if !drawn.contains(&metric) {
                drawn.push(metric);
            }
        }
    }
    drawn.extend(seconds(Axis::Time).filter(|_| may_be_timed).cloned());
    drawn
}

/// Reads the curves of a comparison.
#[must_use]
pub fn figure(comparison: &Comparison, options: &Options) -> Figure {
    let read_group = |group: &Group| -> Vec<Series> {
        let runs = plotted(group, &comparison.runs);
        options.quantities.iter().map(|quantity| series(comparison, &runs, quantity, options)).collect()
    };
    let mut by_group: Vec<_> = comparison.groups.par_iter().map(read_group).collect();
    let mut panels: Vec<Panel> = options
        .quantities
        .iter()
        .cloned()
        .map(|quantity| Panel { levels: levels(comparison, &quantity), quantity, series: Vec::new() })
        .collect();
    let end = comparison.last_reached(options.axis);
    let legend = legend(&comparison.runs, &comparison.groups, &comparison.differences.differing);
    for &place in &legend.order {
        for (panel, series) in panels.iter_mut().zip(std::mem::take(&mut by_group[place])) {
            panel.series.push(end.map_or_else(|| series.clone(), |end| series.up_to(end)));
        }
    }
    let labels: Vec<String> = legend.order.iter().map(|&place| legend.labels[place].clone()).collect();
    let note = note(&panels, comparison, &labels, &legend.untold, options.axis);
    let looks = looks(legend.order.len(), legend.ordered_shades().as_deref());
    Figure { legend_title: legend.title, labels, looks, panels, note }
}

/// The curve of a group, of which these runs count, by their places.
fn series(comparison: &Comparison, places: &[usize], quantity: &Quantity, options: &Options) -> Series {
    let mut buffer = Vec::new();
    let (mut lines, mut marks, mut bases, mut windows) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for run in places.iter().map(|&place| &comparison.runs[place]) {
        if !quantity.is_evaluated {
            let mut logged = read(&run.path, options.axis, &quantity.name, &mut buffer);
            let curve = &mut logged.curve;
            let window = options.window.unwrap_or_else(|| window(quantity, curve.x.len()));
            curve.y = smooth(&curve.y, window);
            windows.extend((!curve.y.is_empty()).then_some(window));
            lines.push(logged);
        }
        if let Some(column) = quantity.marks() {
            let logged = read_val(&run.path, options.axis, column, &mut buffer);
            // a log that cannot be read, or has no value of this column, has no part in the mean
            if logged.curve.y.iter().any(|y| !y.is_nan()) {
                bases.push(Basis::of_validation(run, column));
                marks.push(logged);
            }
        }
    }
    lines.retain(|logged| !logged.steps.is_empty());
    let is_mixed = !Basis::alike(&Basis::settled(bases));
    if is_mixed {
        marks.clear();
    }
    let differently = |metric: &Metric| {
        let runs = &comparison.runs;
        let measured: Vec<usize> =
            places.iter().copied().filter(|&run| runs[run].is_measured(metric)).collect();
        let differing = comparison.footing_by(metric).differing_among(&measured, runs, metric);
        differing.map(|names| Basis::differently(&names))
    };
    let untimed = seconds(options.axis).and_then(differently);
    let speed = quantity.metric(&[]).filter(|metric| is_speed(metric) && untimed.is_none());
    let apart = speed.as_ref().and_then(differently);
    if apart.is_some() || untimed.is_some() {
        lines.clear();
        windows.clear();
    }
    if untimed.is_some() {
        marks.clear();
    }
    let (drawn, evaluated) = (lines.len(), marks.len());
    let columns =
        [(Some(&*quantity.name).filter(|_| !quantity.is_evaluated), drawn), (quantity.marks(), evaluated)];
    let of_some = columns.into_iter().filter(|(_, n)| (1..places.len()).contains(n));
    let of_some = of_some.filter_map(|(column, n)| Some((column?.to_owned(), n))).collect();
    let (line, mut band) = average(&lines);
    let (marks, spread) = average(&marks);
    if quantity.is_evaluated {
        band = spread;
        return Series {
            line: marks.clone(),
            band: several(band, evaluated),
            marks,
            window: None,
            of_some,
            is_mixed,
            apart,
            untimed,
        };
    }
    let window = windows.iter().copied().min().zip(windows.iter().copied().max());
    Series { line, band: several(band, drawn), marks, window, of_some, is_mixed, apart, untimed }
}

/// The metric of what lies along an axis of time.
fn seconds(axis: Axis) -> Option<&'static Metric> {
    metrics::find(Axis::Time.column()).filter(|_| axis == Axis::Time)
}

/// The targets that a panel shows: those of its column, or of the one that is marked beside it.
pub(super) fn levels(comparison: &Comparison, quantity: &Quantity) -> Vec<(f64, String)> {
    let is_shown =
        |target: &&Target| quantity.name == target.column || quantity.marks() == Some(&target.column);
    let level = |target: &Target| (target.value, target.shown());
    comparison.targets.iter().filter(is_shown).map(level).collect()
}

impl Series {
    /// As far as a place along the horizontal axis.
    fn up_to(&self, end: f64) -> Self {
        let line = self.line.up_to(end);
        let band = Curve { x: self.line.x.clone(), y: self.band.clone() };
        let band = if self.band.is_empty() { Vec::new() } else { band.up_to(end).y };
        let evaluations = self.marks.x.partition_point(|x| *x <= end);
        let first = |values: &[f64]| values[..evaluations].to_vec();
        let marks = Curve { x: first(&self.marks.x), y: first(&self.marks.y) };
        Self { line, band, marks, ..self.clone() }
    }
}

fn several(band: Vec<f64>, runs: usize) -> Vec<f64> {
    if runs > 1 { band } else { Vec::new() }
}

/// The default window of a moving average: 1 for a curve without noise.
fn window(quantity: &Quantity, rows: usize) -> usize {
    if quantity.is_smoothed { usual_window(rows) } else { 1 }
}

/// The runs that a group's curve is the mean of: those that came to their end, if any did, for a mean that loses
/// members on the way jumps.
fn plotted(group: &Group, runs: &[Run]) -> Vec<usize> {
    let complete: Vec<usize> = group.counted().filter(|&run| runs[run].complete).collect();
    if complete.is_empty() { group.counted().collect() } else { complete }
}

/// What tells the groups apart; the number of seeds is part of a label. `differing` are the keys in which runs differ.
pub(super) fn legend(runs: &[Run], groups: &[Group], differing: &[String]) -> Legend {
    let has_replicas = groups.iter().any(|group| group.counted().count() > 1);
    let keys: Vec<String> = differing.iter().filter(|key| !has_replicas || *key != SEED).cloned().collect();
    let lines: Vec<Vec<&Run>> =
        groups.iter().map(|group| group.counted().map(|i| &runs[i]).collect()).collect();
    let mut legend = Legend::new(&lines, &keys);
    for (label, group) in legend.labels.iter_mut().zip(groups) {
        let (drawn, all) = (plotted(group, runs), group.counted().count());
        let n = drawn.len();
        match drawn.iter().any(|&run| runs[run].complete) {
            _ if all == 1 => {}
            true if n < all => *label += &format!(" (n = {n} of {all})"),
            true => *label += &format!(" (n = {n})"),
            false => *label += &format!(" (n = {n}, none complete)"),
        }
    }
    legend
}

/// How the picture is to be read, and what to know of it; `untold` are keys that labels leave out.
fn note(
    panels: &[Panel],
    comparison: &Comparison,
    labels: &[String],
    untold: &[String],
    axis: Axis,
) -> String {
    let mut parts = Vec::new();
    if !untold.is_empty() {
        parts.push(format!("not in the legend: {}", listed(untold.to_vec())));
    }
    let any = |with: &dyn Fn(&Panel, &Series) -> bool| {
        panels.iter().any(|panel| panel.series.iter().any(|series| with(panel, series)))
    };
    if any(&|panel, series| !panel.quantity.is_evaluated && !series.marks.x.is_empty()) {
        parts.push("lines: training, marks: validation".to_owned());
    }
    // as they were averaged: a target ends the curves later
    let windows = panels.iter().flat_map(|panel| &panel.series).filter_map(|series| series.window);
    let widest = windows.reduce(|(a, b), (c, d)| (a.min(c), b.max(d))).filter(|(_, most)| *most > 1);
    match widest {
        Some((least, most)) if least == most => parts.push(format!("lines averaged over {most} steps")),
        Some((least, most)) => parts.push(format!("lines averaged over {least} to {most} steps")),
        None => {}
    }
    if any(&|_, series| !series.band.is_empty()) {
        parts.push("bands: ± standard deviation over seeds".to_owned());
        if axis == Axis::Time {
            parts.push("means and bands are of equal steps, at the mean of their seconds".to_owned());
        }
    }
    if panels.iter().any(|panel| !panel.levels.is_empty()) {
        parts.push("dashed: target".to_owned());
    }
    let judge = comparison.judge();
    let apart = |name: &str, footing: &Footing| {
        let (sets, differently) = (footing.count(), Basis::differently(&footing.differing));
        footing.is_mixed().then(|| format!("{name} was measured {differently}: {sets} sets of runs"))
    };
    let judged = judge.target.as_ref().map_or(&judge.name, |target| &target.column);
    parts.extend(apart(judged, comparison.footing()));
    let paths: Vec<PathBuf> = comparison.runs.iter().map(|run| run.path.clone()).collect();
    let drawn = drawn(panels.iter().map(|panel| &panel.quantity), axis == Axis::Time, &paths);
    for metric in drawn.iter().filter(|metric| !metric.is_of_column(judge)) {
        let footing = comparison.footing_by(metric);
        // a curve shows at which step each value is
        if !Basis::is_of_steps(&footing.differing) {
            parts.extend(apart(&metric.column, &footing));
        }
    }
    let some = panels.iter().flat_map(|panel| panel.series.iter().zip(labels));
    let mut of_some: BTreeMap<&(String, usize), Vec<&String>> = BTreeMap::new();
    for (series, label) in some {
        for column in &series.of_some {
            let labels = of_some.entry(column).or_default();
            labels.extend((!labels.contains(&label)).then_some(label));
        }
    }
    parts.extend(of_some.into_iter().map(|((column, n), labels)| {
        let seeds = crate::wording::count(*n, "seed");
        let each = if labels.len() > 1 { " each" } else { "" };
        format!("{column} of {} is that of {seeds}{each}", first_of(labels.into_iter(), String::clone))
    }));
    for panel in panels {
        let is_mixed = panel.series.iter().any(|series| series.is_mixed);
        if let Some(column) = panel.quantity.marks().filter(|_| is_mixed) {
            parts.push(format!("no mean of {column} where seeds were evaluated on different data"));
        }
        let column = &panel.quantity.name;
        let apart: BTreeSet<&str> =
            panel.series.iter().filter_map(|series| series.apart.as_deref()).collect();
        parts.extend(
            apart.into_iter().map(|how| format!("no mean of {column} where seeds were measured {how}")),
        );
    }
    let all = panels.iter().flat_map(|panel| &panel.series);
    let untimed: BTreeSet<&str> = all.filter_map(|series| series.untimed.as_deref()).collect();
    let no_mean = |how| format!("no mean over time where the seconds of seeds were measured {how}");
    parts.extend(untimed.into_iter().map(no_mean));
    parts.extend(of_drawn(comparison, &drawn, axis));
    parts.join("; ")
}
