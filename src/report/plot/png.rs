//! A picture as PNG, without a system font or a screen.

use super::font;
use super::palette::{Ink, Theme, colour};
use super::scene::{Anchor, Item, Point, Scene, Shape, corners};
use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, Stroke, StrokeDash, Transform,
};
use ttf_parser::OutlineBuilder;

/// Pixels per point: sharp on the screens of today, and on paper.
const SCALE: f32 = 2.0;

/// The picture as the bytes of a file.
///
/// Errors: a picture that is too large to hold.
pub fn png(scene: &Scene, theme: Theme) -> Result<Vec<u8>, String> {
    let (width, height) = ((scene.width * SCALE).ceil() as u32, (scene.height * SCALE).ceil() as u32);
    let too_large =
        || format!("a picture of {width} x {height} pixels cannot be made; choose a smaller size");
    let mut pixels = Pixmap::new(width, height).ok_or_else(too_large)?;
    pixels.fill(rgba(Ink::Background, theme, 1.0));
    for item in &scene.items {
        draw(item, theme, &mut pixels);
    }
    pixels.encode_png().map_err(|error| error.to_string())
}

fn rgba(ink: Ink, theme: Theme, opacity: f32) -> Color {
    let rgb = colour(ink, theme);
    let part = |shift: u32| (rgb >> shift & 255) as f32 / 255.0;
    Color::from_rgba(part(16), part(8), part(0), opacity.clamp(0.0, 1.0)).unwrap_or(Color::BLACK)
}

fn draw(item: &Item, theme: Theme, pixels: &mut Pixmap) {
    let scale = Transform::from_scale(SCALE, SCALE);
    let paint = |ink, opacity| {
        let mut paint = Paint { anti_alias: true, ..Paint::default() };
        paint.set_color(rgba(ink, theme, opacity));
        paint
    };
    match item {
        Item::Line { points, stroke } => {
            let dash = stroke.dash.iter().map(|length| length * stroke.width).collect::<Vec<_>>();
            let how = Stroke {
                width: stroke.width,
                line_cap: LineCap::Butt,
                line_join: LineJoin::Round,
                dash: StrokeDash::new(dash, 0.0),
                ..Stroke::default()
            };
            if let Some(path) = polygon(points, false) {
                pixels.stroke_path(&path, &paint(stroke.ink, stroke.opacity), &how, scale, None);
            }
        }
        Item::Area { points, ink, opacity } => {
            if let Some(path) = polygon(points, true) {
                pixels.fill_path(&path, &paint(*ink, *opacity), FillRule::Winding, scale, None);
            }
        }
        Item::Marker { at, shape, radius, ink } => {
            let path = match shape {
                Shape::Circle => PathBuilder::from_circle(at.0, at.1, *radius),
                shape => polygon(&corners(*shape, *at, *radius), true),
            };
            if let Some(path) = path {
                pixels.fill_path(&path, &paint(*ink, 1.0), FillRule::Winding, scale, None);
                let rim = Stroke { width: 1.0, ..Stroke::default() };
                pixels.stroke_path(&path, &paint(Ink::Background, 1.0), &rim, scale, None);
            }
        }
        Item::Text { at, text, size, anchor, ink } => {
            let width = font::width(text, *size);
            let x = match anchor {
                Anchor::Start => at.0,
                Anchor::Middle => at.0 - width / 2.0,
                Anchor::End => at.0 - width,
            };
            let mut outline = Outline(PathBuilder::new());
            font::outline(text, (x, at.1), *size, &mut outline);
            if let Some(path) = outline.0.finish() {
                pixels.fill_path(&path, &paint(*ink, 1.0), FillRule::Winding, scale, None);
            }
        }
    }
}

fn polygon(points: &[Point], closed: bool) -> Option<Path> {
    let mut path = PathBuilder::new();
    for (i, &(x, y)) in points.iter().enumerate() {
        if i == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
    }
    if closed {
        path.close();
    }
    path.finish()
}

/// Joins the font's outlines to the rasterizer's paths.
struct Outline(PathBuilder);

impl OutlineBuilder for Outline {
    fn move_to(&mut self, x: f32, y: f32) {
        self.0.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.0.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.0.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.0.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ink_lands_where_it_was_put() {
        let mut scene = Scene { width: 40.0, height: 20.0, title: String::new(), items: Vec::new() };
        scene.line(vec![(0.0, 10.0), (20.0, 10.0)], Ink::Series(1), 4.0);
        scene.text((22.0, 15.0), "H", 14.0, Anchor::Start, Ink::Foreground);
        let bytes = png(&scene, Theme::Light).expect("small");
        let pixels = Pixmap::decode_png(&bytes).expect("a picture");
        assert_eq!((pixels.width(), pixels.height()), (80, 40));
        let at = |x, y| {
            let p = pixels.pixel(x, y).expect("inside");
            u32::from(p.red()) << 16 | u32::from(p.green()) << 8 | u32::from(p.blue())
        };
        assert_eq!((at(10, 20), at(10, 5)), (0xd55e00, 0xffffff));
        let dark = (44..70).flat_map(|x| (8..30).map(move |y| (x, y))).filter(|&(x, y)| at(x, y) == 0x1f2328);
        assert!(dark.count() > 40, "the letter is drawn");
        assert!(png(&Scene { width: 1e9, ..scene }, Theme::Dark).is_err());
    }
}
