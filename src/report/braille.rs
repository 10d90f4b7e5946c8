//! Curves in characters: each has two by four dots (Unicode's Braille patterns), so a terminal shows a readable chart.

use super::numbers::{si, significant};
use super::plot::scale::{Scale, labels};

/// A character and the curve that it belongs to.
pub type Glyph = (char, Option<usize>);

/// The sign of a point that is marked.
pub const MARK: char = '◆';

/// A curve: places and values in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    /// The points that a line joins.
    pub line: (Vec<f64>, Vec<f64>),
    /// Points that are marked singly.
    pub marks: (Vec<f64>, Vec<f64>),
}

/// Draws curves on so many columns and rows with a scale at the left and a line with the ends of the horizontal axis
/// below. Empty if nothing can be drawn.
#[must_use]
pub fn chart(curves: &[Curve], columns: usize, rows: usize) -> Vec<Vec<Glyph>> {
    let plot_rows = rows.saturating_sub(1);
    let xs = || curves.iter().flat_map(|curve| curve.line.0.iter().chain(&curve.marks.0).copied());
    let ys = curves.iter().flat_map(|curve| curve.line.1.iter().chain(&curve.marks.1).copied());
    let x = Scale::over(xs(), false, 0.0);
    let y = Scale::over(ys, false, 0.0);
    let (Some(x), Some(y)) = (x, y) else { return Vec::new() };
    let ticks = y.ticks((plot_rows / 3).clamp(1, 6));
    let texts = labels(&ticks, false);
    let gutter = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0) + 1;
    if plot_rows < 2 || columns < gutter + 8 {
        return Vec::new();
    }
    let width = columns - gutter;
    let mut canvas = Canvas {
        dots: vec![0; width * plot_rows],
        owner: vec![None; width * plot_rows],
        width,
        rows: plot_rows,
    };
    // the first curve last, so that it lies on top
    for (i, curve) in curves.iter().enumerate().rev() {
        canvas.curve(i, &curve.line.0, &curve.line.1, &x, &y);
    }
    let mut lines: Vec<Vec<Glyph>> =
        (0..plot_rows).map(|row| [vec![(' ', None); gutter], canvas.row(row)].concat()).collect();
    for (i, Curve { marks, .. }) in curves.iter().enumerate().rev() {
        for (mark_x, mark_y) in marks.0.iter().zip(&marks.1) {
            let (Some(along), Some(up)) = (x.place(*mark_x), y.place(*mark_y)) else { continue };
            let column = ((along * width as f64) as usize).min(width - 1);
            let row = ((1.0 - up) * (plot_rows as f64 * 4.0 - 1.0) / 4.0) as usize;
            lines[row.min(plot_rows - 1)][gutter + column] = (MARK, Some(i));
        }
    }
    for (tick, text) in ticks.iter().zip(&texts) {
        let Some(up) = y.place(*tick) else { continue };
        let row = ((1.0 - up) * (plot_rows as f64 * 4.0 - 1.0) / 4.0) as usize;
        let begin = gutter - 1 - text.chars().count();
        for (k, c) in text.chars().enumerate() {
            lines[row.min(plot_rows - 1)][begin + k] = (c, None);
        }
    }
    let ends = xs().filter(|x| x.is_finite());
    let (low, high) = ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
    let shown = |v: f64| if v.abs() < 1e4 { significant(v, 4) } else { si(v) };
    let (low, high) = (shown(low), shown(high));
    let gap = width.saturating_sub(low.chars().count() + high.chars().count());
    let axis = format!("{}{low}{}{high}", " ".repeat(gutter), " ".repeat(gap));
    lines.push(axis.chars().take(columns).map(|c| (c, None)).collect());
    lines
}

struct Canvas {
    dots: Vec<u8>,
    owner: Vec<Option<usize>>,
    width: usize,
    rows: usize,
}

impl Canvas {
    /// Draws a curve: the mean of the points in each column of dots, joined by lines.
    fn curve(&mut self, owner: usize, xs: &[f64], ys: &[f64], x: &Scale, y: &Scale) {
        let (across, down) = (self.width * 2, self.rows * 4);
        let mut sums = vec![(0.0, 0u32); across];
        for (px, py) in xs.iter().zip(ys) {
            let (Some(along), Some(up)) = (x.place(*px), y.place(*py)) else { continue };
            let column = ((along * across as f64) as usize).min(across - 1);
            sums[column].0 += up;
            sums[column].1 += 1;
        }
        let mut before: Option<(i64, i64)> = None;
        for (column, (sum, count)) in sums.into_iter().enumerate().filter(|(_, (_, count))| *count > 0) {
            let up = sum / f64::from(count);
            let here = (column as i64, ((1.0 - up) * (down - 1) as f64).round() as i64);
            let from = before.unwrap_or(here);
            let steps = (here.0 - from.0).abs().max((here.1 - from.1).abs()).max(1);
            for step in 0..=steps {
                let part = |a: i64, b: i64| a + ((b - a) as f64 * step as f64 / steps as f64).round() as i64;
                self.dot(owner, part(from.0, here.0) as usize, part(from.1, here.1) as usize);
            }
            before = Some(here);
        }
    }

    fn dot(&mut self, owner: usize, column: usize, row: usize) {
        // the order of the dots in the code points, by column and row
        const BITS: [[u8; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
        let cell = (row / 4).min(self.rows - 1) * self.width + (column / 2).min(self.width - 1);
        self.dots[cell] |= BITS[column % 2][row % 4];
        self.owner[cell] = Some(owner);
    }

    fn row(&self, row: usize) -> Vec<Glyph> {
        let cells = row * self.width..(row + 1) * self.width;
        let glyph = |cell: usize| match self.dots[cell] {
            0 => (' ', None),
            dots => (char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '), self.owner[cell]),
        };
        cells.map(glyph).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[Vec<Glyph>]) -> Vec<String> {
        lines.iter().map(|line| line.iter().map(|(c, _)| *c).collect()).collect()
    }

    fn line(xs: Vec<f64>, ys: Vec<f64>) -> Curve {
        Curve { line: (xs, ys), ..Curve::default() }
    }

    #[test]
    fn points_are_marked_over_lines() {
        let mut curve = line(vec![0.0, 100.0], vec![10.0, 0.0]);
        curve.marks = (vec![0.0, 100.0, 50.0], vec![10.0, f64::NAN, 12.0]);
        let lines = text(&chart(&[curve], 40, 9));
        assert_eq!(lines.concat().matches(MARK).count(), 2, "{lines:#?}");
        assert!(lines[0].contains(MARK), "the highest value: {lines:#?}");
    }

    #[test]
    fn a_falling_line_falls() {
        let xs: Vec<f64> = (0..100).map(f64::from).collect();
        let lines = chart(&[line(xs.clone(), xs.iter().map(|x| 100.0 - x).collect())], 24, 7);
        let text = text(&lines);
        assert_eq!(text.len(), 7);
        assert!(text.iter().all(|line| line.chars().count() <= 24), "{text:#?}");
        let first = |line: &str| line.chars().position(|c| ('\u{2801}'..='\u{28ff}').contains(&c));
        assert!(first(&text[0]) < first(&text[5]) && first(&text[0]).is_some(), "{text:#?}");
        assert!(text[6].ends_with("99") && text[0].starts_with("100"), "{text:#?}");
    }

    #[test]
    fn what_has_no_room_or_no_values_is_empty() {
        let curve = || vec![line(vec![0.0, 1.0], vec![1.0, 2.0])];
        assert!(chart(&[], 80, 20).is_empty());
        assert!(chart(&[line(vec![0.0], vec![f64::NAN])], 80, 20).is_empty());
        assert!(chart(&curve(), 80, 2).is_empty() && chart(&curve(), 5, 20).is_empty());
        for (columns, rows) in [(12, 3), (13, 50), (200, 4)] {
            assert_eq!(chart(&curve(), columns, rows).len(), rows);
        }
    }
}
