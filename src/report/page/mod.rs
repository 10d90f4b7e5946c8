//! A page to explore: curves to zoom into and to switch on and off, and the tables, in one file that needs no network.
//!
//! The curves are in the page as numbers; `chart.js` draws them. The page of `runner watch --serve`
//! ([`live`](super::live)) is the same one, whose curves grow.

pub(super) mod document;
pub mod lines;
pub mod points;

use super::compare::{Comparison, Measure};
use super::export::{Export, Html, Table, escaped, number};
use super::plot::palette::{Ink, Theme};
use super::plot::svg::class;
use super::plot::{Options, Quantity, quantities};
use super::runs::Run;
use super::scan::scan;
use super::target::Target;
use crate::run::dir;
use crate::wording::count;
use document::{AXES, Document, axes, described};
use lines::{Line, lines};
use points::{Kept, Points};
use rayon::prelude::*;
use serde_json::{Map, Value, json};

/// Points in the whole page; more make it heavy to load.
const MOST_POINTS: usize = 150_000;

/// The page. Without a theme it follows the reader's screen.
#[must_use]
pub fn page(comparison: &Comparison, options: &Options, theme: Option<Theme>) -> String {
    let runs = &comparison.runs;
    let shown: Vec<&Quantity> = shown(options);
    let points = (MOST_POINTS / runs.len().max(1)).clamp(60, 600);
    let lines = lines(runs, &comparison.groups, &comparison.differences.differing);
    let curves: Vec<Value> = lines
        .par_iter()
        .map(|line| {
            let mut value = drawn(line, line.run as u64);
            value.extend(curves(&runs[line.run], points, &shown));
            Value::from(value)
        })
        .collect();
    let inks: Vec<Ink> = lines.iter().map(|line| line.ink).collect();
    // a picture ends where the last run has reached a target
    let ends = AXES
        .map(|axis| (axis.column().to_owned(), comparison.last_reached(axis).map_or(Value::Null, number)));
    let target =
        |target: &Target| json!({ "column": target.column, "value": target.value, "shown": target.shown() });
    let data = json!({
        "runs": curves,
        "quantities": described(shown.iter().copied()),
        "axes": axes(),
        "axis": options.axis.column(),
        "quantity": options.quantities.first().map_or("loss", |quantity| quantity.name.as_str()),
        "logX": options.log_x,
        "logY": options.log_y,
        "window": options.window,
        "targets": comparison.targets.iter().map(target).collect::<Vec<_>>(),
        "ends": ends.into_iter().collect::<Map<_, _>>(),
    });
    let title = options.title.clone().unwrap_or_else(|| format!("{} compared", count(runs.len(), "run")));
    let cut = comparison
        .cut
        .map(|cut| format!("{}: what lies behind that has no part in the figures", cut.shown()));
    let lines = [comparison.shared_line()].into_iter().chain(cut);
    let mut tables: String =
        lines.map(|line| format!("<p class=\"shared\">{}</p>\n", escaped(&line))).collect();
    for (title, table) in results(comparison, &comparison.for_people()) {
        tables += &title.map_or_else(String::new, |title| format!("<h2>{}</h2>\n", escaped(title)));
        tables += &format!("<div class=\"scroll\">{}</div>\n", Html.export(&table));
    }
    for sentences in [comparison.notes(), comparison.sentences()] {
        if !sentences.is_empty() {
            let items: String = sentences.iter().map(|s| format!("<li>{}</li>\n", escaped(s))).collect();
            tables += &format!("<ul>\n{items}</ul>\n");
        }
    }
    let document = Document {
        title: &title,
        theme,
        inks: &inks,
        parts: ["", &tables],
        data: &data,
        nonce: None,
        further: ["", ""],
    };
    document.text()
}

/// The tables of a comparison, each with what stands over it.
pub(super) fn results(comparison: &Comparison, measures: &[Measure]) -> Vec<(Option<&'static str>, Table)> {
    let mut tables = vec![(None, comparison.table(measures))];
    if comparison.has_replicas() {
        let title = "Replicas, mean ± standard deviation over seeds";
        tables.push((Some(title), comparison.replicas(measures)));
    }
    tables
}

/// How the line of a run looks, for the scripts, which know the run by its key.
pub(super) fn drawn(line: &Line, key: u64) -> Map<String, Value> {
    let look = [("key", key.into()), ("label", line.label.clone().into())];
    let look = look.into_iter().chain([("ink", class(line.ink).into()), ("dash", line.dash.into())]);
    look.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// What the page offers: the quantities of the table of columns, and the further ones that were asked for.
fn shown(options: &Options) -> Vec<&Quantity> {
    let further = options.quantities.iter().filter(|quantity| !quantities().contains(quantity));
    quantities().iter().chain(further).collect()
}

/// The columns of a log that a page needs: the axes that its log has, then those of the quantities.
pub(super) fn columns<'a>(log: &str, shown: impl IntoIterator<Item = &'a Quantity>) -> (Vec<String>, usize) {
    let is_evaluated = log == dir::VAL_CSV;
    // evaluations have no clock of their own: the script takes that of the training step before
    let places = if is_evaluated { 2 } else { AXES.len() };
    let axes = AXES[..places].iter().map(|axis| axis.column().to_owned());
    let own = shown.into_iter().filter(|quantity| quantity.is_evaluated == is_evaluated);
    (axes.chain(own.map(|quantity| quantity.name.clone())).collect(), places)
}

/// What a page has of several rows of a log: evaluations are shown as they were measured.
pub(super) fn kept(log: &str) -> Kept {
    if log == dir::VAL_CSV { Kept::Last } else { Kept::Mean }
}

/// The logs of a run, thinned to so many points at most.
fn curves(run: &Run, points: usize, shown: &[&Quantity]) -> Map<String, Value> {
    let mut buffer = Vec::new();
    let mut read = |log: &str| {
        let (columns, places) = columns(log, shown.iter().copied());
        let mut points = Points::new(columns.clone(), places, kept(log), points);
        let wanted: Vec<&str> = columns.iter().map(String::as_str).collect();
        scan(&run.path.join(log), &wanted, &mut buffer, |row| points.push(row));
        points
    };
    let (train, val) = (read(dir::TRAIN_CSV), read(dir::VAL_CSV));
    let json = json!({
        "id": run.id,
        "status": run.status,
        "stride": train.stride(),
        "train": train.from(0),
        "val": val.from(0),
    });
    if let Value::Object(map) = json { map } else { Map::new() }
}
