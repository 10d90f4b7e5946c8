//! A page to explore: curves to zoom into and to switch on and off, and the tables, in one file that needs no network.
//!
//! The curves are in the page as numbers; `page.js` draws them.

use super::axis::Axis;
use super::compare::Comparison;
use super::export::{Export, Html, escaped, number};
use super::legend::Legend;
use super::plot::curve::read_val;
use super::plot::palette::{DASHES, Ink, Look, MOST_SERIES, Theme, colour, looks};
use super::plot::svg::class;
use super::plot::{Options, Quantity, legend, quantities};
use super::runs::Run;
use super::scan::scan;
use super::target::Target;
use crate::run::dir;
use crate::wording::count;
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

const HTML: &str = include_str!("page.html");
const CSS: &str = include_str!("page.css");
const JS: &str = include_str!("page.js");

/// Points in the whole page; more make it heavy to load.
const MOST_POINTS: usize = 150_000;

/// The page. Without a theme it follows the reader's screen.
#[must_use]
pub fn page(comparison: &Comparison, options: &Options, theme: Option<Theme>) -> String {
    let runs = &comparison.runs;
    let shown: Vec<&Quantity> = shown(options);
    let points = (MOST_POINTS / runs.len().max(1)).clamp(60, 600);
    let of_groups = legend(comparison);
    let looks = looks(of_groups.order.len(), of_groups.shades.as_deref());
    let group = |i: usize| comparison.groups.iter().position(|group| group.runs.contains(&i)).unwrap_or(0);
    let replica = |i: usize| comparison.groups[group(i)].runs.iter().position(|&run| run == i).unwrap_or(0);
    // each run has a line of its own here, and the colour of its group
    let lines: Vec<Vec<&Run>> = runs.iter().map(|run| vec![run]).collect();
    let labels = Legend::new(&lines, &comparison.differences.differing);
    let titled = |label: &String| match &labels.title {
        Some(title) => format!("{title} {label}"),
        None => label.clone(),
    };
    let mut inks: BTreeMap<String, Ink> = BTreeMap::new();
    let mut order: Vec<usize> = (0..runs.len()).collect();
    if of_groups.shades.is_some() {
        order.sort_by_key(|&i| (of_groups.order.iter().position(|&place| place == group(i)), replica(i)));
    }
    let curves: Vec<Value> = order
        .par_iter()
        .map(|&i| {
            let mut value = curves(&runs[i], points, &shown);
            value["label"] = titled(&labels.labels[i]).into();
            // a page shows every line, also those that a picture has no colour for
            let cycled = Look { ink: Ink::Series(group(i) % MOST_SERIES), place: group(i) };
            let look = looks[group(i)].unwrap_or(cycled);
            value["ink"] = class(look.ink).into();
            value["dash"] = ((look.place + replica(i)) % DASHES.len()).into();
            value
        })
        .collect();
    for look in (0..runs.len()).map(|i| looks[group(i)]) {
        let ink = look.map(|look| look.ink);
        inks.extend(ink.map(|ink| (class(ink), ink)));
    }
    inks.extend((0..MOST_SERIES.min(runs.len())).map(Ink::Series).map(|ink| (class(ink), ink)));
    let described = |q: &&Quantity| {
        json!({
            "name": q.name,
            "title": q.title,
            "evaluated": q.is_evaluated,
            "smoothed": q.is_smoothed,
            "marks": q.marks(),
        })
    };
    let axes = [Axis::Step, Axis::Tokens, Axis::Time]
        .map(|axis| json!({ "name": axis.column(), "title": axis.title() }));
    // a picture ends where the last run has reached a target
    let ends = [Axis::Step, Axis::Tokens, Axis::Time]
        .map(|axis| (axis.column().to_owned(), comparison.last_reached(axis).map_or(Value::Null, number)));
    let target =
        |target: &Target| json!({ "column": target.column, "value": target.value, "shown": target.shown() });
    let data = json!({
        "runs": curves,
        "quantities": shown.iter().map(described).collect::<Vec<_>>(),
        "axes": axes,
        "axis": options.axis.column(),
        "quantity": options.quantities.first().map_or("loss", |quantity| quantity.name.as_str()),
        "logX": options.log_x,
        "logY": options.log_y,
        "window": options.window,
        "targets": comparison.targets.iter().map(target).collect::<Vec<_>>(),
        "ends": ends.into_iter().collect::<Map<_, _>>(),
    });
    let title = options.title.clone().unwrap_or_else(|| format!("{} compared", count(runs.len(), "run")));
    let measures = comparison.usual(true);
    let mut tables = format!("<p class=\"shared\">{}</p>\n", escaped(&comparison.shared_line()));
    tables += &format!("<div class=\"scroll\">{}</div>\n", Html.export(&comparison.table(&measures, true)));
    if comparison.has_replicas() {
        tables += "<h2>Replicas, mean ± standard deviation over seeds</h2>\n";
        tables += &format!("<div class=\"scroll\">{}</div>\n", Html.export(&comparison.replicas(&measures)));
    }
    for sentences in [comparison.notes(), comparison.sentences()] {
        if !sentences.is_empty() {
            let items: String = sentences.iter().map(|s| format!("<li>{}</li>\n", escaped(s))).collect();
            tables += &format!("<ul>\n{items}</ul>\n");
        }
    }
    // a text in the data must not end the script that holds it
    let data = data.to_string().replace("</", "<\\/").replace("<!--", "<\\u0021--");
    let parts = [
        ("{{title}}", escaped(&title)),
        (
            "{{theme}}",
            theme.map_or("auto", |theme| if theme == Theme::Light { "light" } else { "dark" }).to_owned(),
        ),
        ("{{colours}}", colours(&inks)),
        ("{{css}}", CSS.to_owned()),
        ("{{tables}}", tables),
        ("{{data}}", data),
        ("{{js}}", JS.to_owned()),
    ];
    fill(HTML, &parts)
}

/// What the page offers: the quantities of the table of columns, and the further ones that were asked for.
fn shown(options: &Options) -> Vec<&Quantity> {
    let further = options.quantities.iter().filter(|quantity| !quantities().contains(quantity));
    quantities().iter().chain(further).collect()
}

/// Puts the parts into their places in one go: a part may hold what looks like a place.
fn fill(template: &str, parts: &[(&str, String)]) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((at, (name, part))) =
        parts.iter().filter_map(|part| Some((rest.find(part.0)?, part))).min_by_key(|(at, _)| *at)
    {
        out += &rest[..at];
        out += part;
        rest = &rest[at + name.len()..];
    }
    out + rest
}

/// The palette as variables of the style sheet.
fn colours(of_lines: &BTreeMap<String, Ink>) -> String {
    let inks = [("fg", Ink::Foreground), ("muted", Ink::Muted), ("grid", Ink::Grid), ("bg", Ink::Background)];
    let of = |theme: Theme| {
        let mut out = String::new();
        for (name, ink) in inks {
            // writing to a string cannot fail
            let _ = write!(out, "--{name}:#{:06x};", colour(ink, theme));
        }
        for (name, ink) in of_lines {
            let _ = write!(out, "--{name}:#{:06x};", colour(*ink, theme));
        }
        out
    };
    let (light, dark) = (of(Theme::Light), of(Theme::Dark));
    format!(
        ":root{{color-scheme:light dark;{light}}}\n\
         @media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n\
         :root[data-theme=dark]{{color-scheme:dark;{dark}}}\n\
         :root[data-theme=light]{{color-scheme:light}}"
    )
}

/// The logs of a run, thinned to so many points: the mean of the rows that a point stands for, its last place.
fn curves(run: &Run, points: usize, shown: &[&Quantity]) -> Value {
    let mut buffer = Vec::new();
    let axes = [Axis::Step, Axis::Tokens, Axis::Time].map(Axis::column);
    let columns: Vec<&str> = axes
        .into_iter()
        .chain(shown.iter().filter(|quantity| !quantity.is_evaluated).map(|quantity| quantity.name.as_str()))
        .collect();
    let mut rows: Vec<f64> = Vec::new();
    scan(&run.path.join(dir::TRAIN_CSV), &columns, &mut buffer, |row| rows.extend_from_slice(row));
    let count = rows.len() / columns.len();
    let stride = count.div_ceil(points).max(1);
    let mut train = Map::new();
    for (c, name) in columns.iter().enumerate() {
        let values = (0..count).step_by(stride).map(|from| {
            let to = (from + stride).min(count);
            if c < axes.len() {
                return rounded(rows[(to - 1) * columns.len() + c], 12);
            }
            let finite: Vec<f64> =
                (from..to).map(|i| rows[i * columns.len() + c]).filter(|value| value.is_finite()).collect();
            rounded(finite.iter().sum::<f64>() / finite.len() as f64, 6)
        });
        let values: Vec<Value> = values.collect();
        // a column that the log does not have
        if values.iter().any(|value| !value.is_null()) {
            train.insert((*name).to_owned(), values.into());
        }
    }
    let mut val = Map::new();
    for axis in [Axis::Step, Axis::Tokens, Axis::Time] {
        for quantity in shown.iter().filter(|quantity| quantity.is_evaluated) {
            let curve = read_val(&run.path, axis, &quantity.name, &mut buffer);
            val.insert(axis.column().to_owned(), curve.x.iter().map(|&x| rounded(x, 12)).collect());
            val.insert(quantity.name.clone(), curve.y.iter().map(|&y| rounded(y, 6)).collect());
        }
    }
    json!({ "id": run.id, "status": run.status, "stride": stride, "train": train, "val": val })
}

/// A number in so many digits; null for what is none.
fn rounded(value: f64, digits: usize) -> Value {
    let text = format!("{value:.*e}", digits - 1);
    text.parse().ok().filter(|value: &f64| value.is_finite()).map_or(Value::Null, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_looks_like_a_place_is_left_alone() {
        let parts = [("{{a}}", "{{b}}".to_owned()), ("{{b}}", "x".to_owned())];
        assert_eq!(fill("1{{a}}2{{b}}3", &parts), "1{{b}}2x3");
    }
}
