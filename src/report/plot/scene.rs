//! A picture before it is a file: lines, areas, markers and texts at places in points, so that every format draws the
//! same one.

use super::palette::Ink;

/// A place, in points from the upper left corner.
pub type Point = (f32, f32);

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stroke {
    /// Its colour.
    pub ink: Ink,
    /// Width in points.
    pub width: f32,
    /// Strokes and gaps in units of the width; empty for a solid line.
    pub dash: &'static [f32],
    /// From 0, invisible, to 1.
    pub opacity: f32,
}

/// Which point of a text its place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The left end of its base line.
    Start,
    /// The middle.
    Middle,
    /// The right end.
    End,
}

/// The shape of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are what they are called")]
pub enum Shape {
    Circle,
    Square,
    Triangle,
    Diamond,
}

/// The marker of the curve at this place of the legend.
#[must_use]
pub fn shape(place: usize) -> Shape {
    [Shape::Circle, Shape::Square, Shape::Triangle, Shape::Diamond][place % 4]
}

/// Something to draw.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A line through points.
    Line {
        /// The points, at least two.
        points: Vec<Point>,
        /// How.
        stroke: Stroke,
    },
    /// A filled polygon.
    Area {
        /// Its corners.
        points: Vec<Point>,
        /// Its colour.
        ink: Ink,
        /// From 0, invisible, to 1.
        opacity: f32,
    },
    /// A sign at a point, filled, with a rim in the colour of the ground.
    Marker {
        /// Its middle.
        at: Point,
        /// Its shape.
        shape: Shape,
        /// Half its height in points.
        radius: f32,
        /// Its colour.
        ink: Ink,
    },
    /// A line of text.
    Text {
        /// Where, on the base line.
        at: Point,
        /// What.
        text: String,
        /// Height in points.
        size: f32,
        /// What `at` is of it.
        anchor: Anchor,
        /// Its colour.
        ink: Ink,
    },
}

/// A picture. Later items cover earlier ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    /// Width in points.
    pub width: f32,
    /// Height in points.
    pub height: f32,
    /// A description for readers who cannot see the picture.
    pub title: String,
    /// What is in it.
    pub items: Vec<Item>,
}

impl Scene {
    /// Adds a text.
    pub fn text(&mut self, at: Point, text: impl Into<String>, size: f32, anchor: Anchor, ink: Ink) {
        self.items.push(Item::Text { at, text: text.into(), size, anchor, ink });
    }

    /// Adds a solid line.
    pub fn line(&mut self, points: Vec<Point>, ink: Ink, width: f32) {
        self.items.push(Item::Line { points, stroke: Stroke { ink, width, dash: &[], opacity: 1.0 } });
    }
}

/// The corners of a marker; empty for a circle, which has none.
#[must_use]
pub fn corners(shape: Shape, (x, y): Point, r: f32) -> Vec<Point> {
    match shape {
        Shape::Circle => Vec::new(),
        Shape::Square => {
            let r = r * 0.9;
            vec![(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
        }
        Shape::Triangle => vec![(x, y - r * 1.2), (x + r * 1.1, y + r * 0.8), (x - r * 1.1, y + r * 0.8)],
        Shape::Diamond => {
            let r = r * 1.25;
            vec![(x, y - r), (x + r, y), (x, y + r), (x - r, y)]
        }
    }
}
