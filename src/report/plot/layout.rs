//! Where everything goes: panels under each other, the legend beside them where it covers nothing.

use super::curve::{Curve, thin};
use super::font;
use super::palette::{Ink, Look, dash};
use super::scale::{Scale, horizontal, labels};
use super::scene::{Anchor, Item, Point, Scene, Stroke, shape};
use super::{Figure, Options, Panel, Series};

/// Heights of text in points.
const SIZE: f32 = 12.0;
const TITLE_SIZE: f32 = 15.0;
const SMALL: f32 = 10.5;
/// Free space at the edges of the picture.
const EDGE: f32 = 14.0;
/// Between the entries of the legend.
const LINE_HEIGHT: f32 = 18.0;
/// Width of the sample of a line in the legend.
const SAMPLE: f32 = 30.0;
/// Above a panel, for its title, and below it, for the ticks.
const PANEL_HEAD: f32 = 26.0;
const PANEL_FOOT: f32 = 22.0;
/// Between the title of a legend below the panels and its entries.
const TITLE_GAP: f32 = 14.0;
/// A legend of so few rows may stand beside a panel that is lower.
const FEW_ROWS: usize = 8;
/// Shades in a legend; those between them are not named.
const MOST_ENTRIES: usize = 20;
/// From one line of the note to the next.
const NOTE_LINE: f32 = SMALL + 4.0;
/// The line of a target.
const TARGET_DASH: &[f32] = &[5.0, 4.0];
/// Points are marked singly up to so many.
const MOST_MARKS: usize = 40;

/// A rectangle of the picture.
#[derive(Clone, Copy)]
struct Frame {
    left: f32,
    top: f32,
    right: f32,
    bottom: f32,
}

/// Draws a figure.
#[must_use]
pub fn draw(figure: &Figure, options: &Options) -> Scene {
    let entries = entries(figure);
    let legend_width = legend_width(figure, &entries);
    let legend_rows = entries.len() + usize::from(figure.legend_title.is_some());
    let panels = figure.panels.len().max(1) as f32 * (PANEL_HEAD + options.panel_height + PANEL_FOOT);
    // a legend that takes too much of the width or the height goes below
    let is_narrow = legend_width < options.width * 0.34;
    let is_low = legend_rows <= FEW_ROWS || legend_rows as f32 * LINE_HEIGHT + PANEL_HEAD <= panels;
    let beside = !entries.is_empty() && is_narrow && is_low;
    // below, the title stands at the left of the entries
    let title_room = figure.legend_title.as_ref().map_or(0.0, |title| font::width(title, SIZE) + TITLE_GAP);
    let room = options.width - 2.0 * EDGE - title_room;
    let columns = (room / legend_width.max(1.0)).floor().max(1.0) as usize;
    let below = if beside || entries.is_empty() {
        0.0
    } else {
        entries.len().div_ceil(columns) as f32 * LINE_HEIGHT + 10.0
    };
    let title = options.title.as_ref().map_or(0.0, |_| TITLE_SIZE + 12.0);
    let gutter = gutter(figure, options);
    let note_lines = wrapped(&figure.note, options.width - 2.0 * EDGE - gutter);
    let note = if note_lines.is_empty() { 0.0 } else { note_lines.len() as f32 * NOTE_LINE + 6.0 };
    let body = if beside { panels.max(legend_rows as f32 * LINE_HEIGHT + PANEL_HEAD) } else { panels };
    let height = EDGE + title + body + SIZE + 8.0 + below + note + EDGE;
    let mut scene = Scene {
        width: options.width,
        height: height.ceil(),
        title: options.title.clone().unwrap_or_else(|| describe(figure)),
        items: Vec::new(),
    };
    let mut top = EDGE;
    if let Some(text) = &options.title {
        scene.text((EDGE, top + TITLE_SIZE), text, TITLE_SIZE, Anchor::Start, Ink::Foreground);
        top += title;
    }
    let right = options.width - EDGE - if beside { legend_width + 12.0 } else { 0.0 };
    let legend_at = (right + 12.0, top + PANEL_HEAD);
    let x = x_scale(figure, options);
    for panel in &figure.panels {
        let frame = Frame {
            left: EDGE + gutter,
            top: top + PANEL_HEAD,
            right,
            bottom: top + PANEL_HEAD + options.panel_height,
        };
        draw_panel(&mut scene, panel, figure, options, frame, x);
        top = frame.bottom + PANEL_FOOT;
    }
    let high = xs(figure).fold(0.0, f64::max);
    let middle = (EDGE + gutter + right) / 2.0;
    let at = (middle, top + SIZE + 2.0);
    scene.text(at, horizontal(options.axis, high).0, SIZE, Anchor::Middle, Ink::Foreground);
    if beside {
        draw_legend(&mut scene, figure, &entries, legend_at, 1, legend_width);
    } else {
        draw_legend(&mut scene, figure, &entries, (EDGE, top + SIZE + 14.0), columns, legend_width);
    }
    let last = note_lines.len().saturating_sub(1);
    for (i, line) in note_lines.iter().enumerate() {
        let at = (EDGE + gutter, scene.height - EDGE - (last - i) as f32 * NOTE_LINE);
        scene.text(at, line, SMALL, Anchor::Start, Ink::Muted);
    }
    scene
}

/// A text in lines of at most this width, broken between words; a longer word stays whole.
fn wrapped(text: &str, width: f32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if font::width(&format!("{line} {word}"), SMALL) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A description for readers who cannot see the picture.
fn describe(figure: &Figure) -> String {
    let names: Vec<&str> = figure.panels.iter().map(|panel| panel.quantity.title.as_str()).collect();
    format!("{} of {} curves: {}", names.join(", "), figure.labels.len(), figure.labels.join("; "))
}

/// An entry of the legend: how its curve looks, or nothing for the line that counts those that have no entry.
struct Entry {
    look: Option<Look>,
    label: String,
}

/// The entries of the legend. Of many shades of a sweep some are enough to read the others.
fn entries(figure: &Figure) -> Vec<Entry> {
    if figure.labels.len() < 2 && figure.labels.iter().all(|label| label.len() < 2) {
        return Vec::new();
    }
    let curves = figure.labels.iter().zip(&figure.looks);
    let mut entries: Vec<Entry> = curves
        .filter_map(|(label, look)| Some(Entry { look: Some((*look)?), label: label.clone() }))
        .collect();
    let rest = figure.labels.len() - entries.len();
    if rest > 0 {
        entries.push(Entry { look: None, label: format!("{rest} more") });
    }
    let last = entries.len() - 1;
    if entries.len() > MOST_ENTRIES && matches!(entries[0].look, Some(Look { ink: Ink::Shade(_), .. })) {
        let kept: Vec<usize> = (0..MOST_ENTRIES).map(|i| i * last / (MOST_ENTRIES - 1)).collect();
        let mut place = 0..;
        entries.retain(|_| place.next().is_some_and(|place: usize| kept.contains(&place)));
    }
    entries
}

fn legend_width(figure: &Figure, entries: &[Entry]) -> f32 {
    let titles = figure.legend_title.iter().map(|title| font::width(title, SIZE));
    let labels = entries.iter().map(|entry| SAMPLE + 8.0 + font::width(&entry.label, SIZE));
    titles.chain(labels).fold(0.0, f32::max) + 6.0
}

fn draw_legend(
    scene: &mut Scene,
    figure: &Figure,
    entries: &[Entry],
    (left, top): Point,
    columns: usize,
    width: f32,
) {
    let mut top = top;
    let mut left = left;
    if let Some(title) = &figure.legend_title
        && !entries.is_empty()
    {
        scene.text((left, top + SIZE), title, SIZE, Anchor::Start, Ink::Muted);
        if columns == 1 {
            top += LINE_HEIGHT;
        } else {
            left += font::width(title, SIZE) + TITLE_GAP;
        }
    }
    let marked =
        figure.panels.iter().any(|panel| panel.series.iter().any(|series| !series.marks.x.is_empty()));
    for (i, Entry { look, label }) in entries.iter().enumerate() {
        let x = left + (i % columns) as f32 * width;
        let y = top + (i / columns) as f32 * LINE_HEIGHT + SIZE * 0.65;
        scene.items.push(Item::Line { points: vec![(x, y), (x + SAMPLE, y)], stroke: stroke(*look) });
        if let Some(look) = look.filter(|_| marked) {
            let at = (x + SAMPLE / 2.0, y);
            scene.items.push(Item::Marker { at, shape: shape(look.place), radius: 3.6, ink: look.ink });
        }
        scene.text((x + SAMPLE + 8.0, y + SIZE * 0.35), label, SIZE, Anchor::Start, Ink::Foreground);
    }
}

fn stroke(look: Option<Look>) -> Stroke {
    match look {
        Some(look) => Stroke { ink: look.ink, width: 1.8, dash: dash(look.place), opacity: 1.0 },
        None => Stroke { ink: Ink::Rest, width: 0.8, dash: &[], opacity: 1.0 },
    }
}

fn xs(figure: &Figure) -> impl Iterator<Item = f64> {
    let series = figure.panels.iter().flat_map(|panel| &panel.series);
    series.flat_map(|series| series.line.x.iter().chain(&series.marks.x).copied())
}

fn x_scale(figure: &Figure, options: &Options) -> Option<Scale> {
    Scale::over(xs(figure), options.log_x, if options.log_x { 0.0 } else { 0.01 })
}

fn y_scale(panel: &Panel, options: &Options) -> Option<Scale> {
    let of = |series: &Series| -> Vec<f64> {
        let edges = series.band.iter().zip(&series.line.y).flat_map(|(sd, y)| [lower(*y, *sd), y + sd]);
        series.line.y.iter().chain(&series.marks.y).copied().chain(edges).collect()
    };
    let levels = || panel.levels.iter().map(|(level, _)| *level);
    let range = |is_log| Scale::over(panel.series.iter().flat_map(of).chain(levels()), is_log, 0.04);
    // a band may reach below zero where every curve is above it
    if options.log_y { range(true) } else { range(false) }
}

/// The lower edge of a band: what is never negative gets none below zero.
fn lower(y: f64, sd: f64) -> f64 {
    if y >= 0.0 { (y - sd).max(0.0) } else { y - sd }
}

/// The widest label at a vertical axis.
fn gutter(figure: &Figure, options: &Options) -> f32 {
    let of = |panel: &Panel| {
        let scale = y_scale(panel, options)?;
        let texts = labels(&scale.ticks(ticks(options.panel_height)), scale.is_log());
        texts.iter().map(|text| font::width(text, SIZE)).reduce(f32::max)
    };
    figure.panels.iter().filter_map(of).fold(20.0, f32::max) + 8.0
}

/// How many ticks suit a length, at a vertical axis.
fn ticks(length: f32) -> usize {
    (length / 45.0).clamp(2.0, 10.0) as usize
}

fn draw_panel(
    scene: &mut Scene,
    panel: &Panel,
    figure: &Figure,
    options: &Options,
    frame: Frame,
    x: Option<Scale>,
) {
    let title_at = (frame.left, frame.top - 9.0);
    let suffix = if options.log_y { ", logarithmic" } else { "" };
    scene.text(title_at, format!("{}{suffix}", panel.quantity.title), SIZE, Anchor::Start, Ink::Foreground);
    let (Some(x), Some(y)) = (x, y_scale(panel, options)) else {
        let middle = ((frame.left + frame.right) / 2.0, (frame.top + frame.bottom) / 2.0);
        scene.text(middle, "nothing to show", SIZE, Anchor::Middle, Ink::Muted);
        return;
    };
    draw_axes(scene, figure, options, frame, x, y);
    let at = |px: f64, py: f64| -> Option<Point> {
        let (along, up) = (x.place(px)? as f32, y.place(py)? as f32);
        let point = (
            frame.left + along * (frame.right - frame.left),
            frame.bottom - up.clamp(0.0, 1.0) * (frame.bottom - frame.top),
        );
        (-0.001..=1.001).contains(&along).then_some(point)
    };
    for (level, text) in &panel.levels {
        let Some(up) = y.place(*level) else { continue };
        let height = frame.bottom - up as f32 * (frame.bottom - frame.top);
        let stroke = Stroke { ink: Ink::Foreground, width: 1.2, dash: TARGET_DASH, opacity: 0.7 };
        let points = vec![(frame.left, height), (frame.right, height)];
        scene.items.push(Item::Line { points, stroke });
        scene.text((frame.left + 6.0, height - 4.0), text, SMALL, Anchor::Start, Ink::Foreground);
    }
    // the best last, so that nothing covers it; those without a place in the legend first
    for (series, look) in panel.series.iter().zip(&figure.looks).rev() {
        draw_series(scene, series, *look, &x, at);
    }
}

fn draw_axes(scene: &mut Scene, figure: &Figure, options: &Options, frame: Frame, x: Scale, y: Scale) {
    let y_ticks = y.ticks(ticks(frame.bottom - frame.top));
    for (tick, text) in y_ticks.iter().zip(labels(&y_ticks, y.is_log())) {
        let Some(up) = y.place(*tick) else { continue };
        let level = frame.bottom - up as f32 * (frame.bottom - frame.top);
        scene.line(vec![(frame.left, level), (frame.right, level)], Ink::Grid, 1.0);
        scene.text((frame.left - 7.0, level + SIZE * 0.35), text, SIZE, Anchor::End, Ink::Muted);
    }
    let (_, divisor) = horizontal(options.axis, xs(figure).fold(0.0, f64::max));
    // round values of the unit that is shown, not of the one that is stored
    let scaled =
        Scale::over(xs(figure).map(|x| x / divisor), options.log_x, if options.log_x { 0.0 } else { 0.01 });
    let x_ticks =
        scaled.map(|scale| scale.ticks(((frame.right - frame.left) / 80.0) as usize)).unwrap_or_default();
    let mut free_from = f32::NEG_INFINITY;
    for (tick, text) in x_ticks.iter().zip(labels(&x_ticks, x.is_log())) {
        let Some(along) = x.place(*tick * divisor) else { continue };
        let across = frame.left + along as f32 * (frame.right - frame.left);
        scene.line(vec![(across, frame.bottom), (across, frame.bottom + 4.0)], Ink::Muted, 1.0);
        let half = font::width(&text, SIZE) / 2.0;
        if across - half > free_from {
            scene.text((across, frame.bottom + 17.0), text, SIZE, Anchor::Middle, Ink::Muted);
            free_from = across + half + 6.0;
        }
    }
    scene.line(vec![(frame.left, frame.bottom), (frame.right, frame.bottom)], Ink::Muted, 1.0);
}

fn draw_series(
    scene: &mut Scene,
    series: &Series,
    look: Option<Look>,
    x: &Scale,
    at: impl Fn(f64, f64) -> Option<Point>,
) {
    let rows = thin(&series.line, x);
    let Curve { x: xs, y: ys } = &series.line;
    if let Some(look) = look.filter(|_| !series.band.is_empty()) {
        let edge = |y: fn(f64, f64) -> f64| {
            let at = &at;
            rows.iter().filter_map(move |&i| at(xs[i], y(ys[i], series.band[i]))).collect::<Vec<_>>()
        };
        let mut points = edge(|y, sd| y + sd);
        points.extend(edge(lower).into_iter().rev());
        if points.len() > 2 {
            scene.items.push(Item::Area { points, ink: look.ink, opacity: 0.18 });
        }
    }
    // a gap ends a line, and another one begins behind it
    let mut points: Vec<Point> = Vec::new();
    let mut finish = |points: &mut Vec<Point>| match points.len() {
        0 => {}
        1 => {
            let ink = look.map_or(Ink::Rest, |look| look.ink);
            scene.items.push(Item::Marker { at: points.remove(0), shape: shape(0), radius: 1.6, ink });
        }
        _ => scene.items.push(Item::Line { points: std::mem::take(points), stroke: stroke(look) }),
    };
    for &i in &rows {
        match at(xs[i], ys[i]) {
            Some(point) => points.push(point),
            None => finish(&mut points),
        }
    }
    finish(&mut points);
    let Some(look) = look else { return };
    let stride = series.marks.x.len().div_ceil(MOST_MARKS).max(1);
    let last = series.marks.x.len().saturating_sub(1);
    for i in (0..series.marks.x.len()).filter(|i| i % stride == 0 || *i == last) {
        if let Some(at) = at(series.marks.x[i], series.marks.y[i]) {
            scene.items.push(Item::Marker { at, shape: shape(look.place), radius: 3.6, ink: look.ink });
        }
    }
}
