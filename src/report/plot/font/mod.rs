//! The font of plots: carried along, so that text has the same width everywhere and a picture needs no installed font.
//!
//! It is Inter by the Inter Project Authors under the SIL Open Font License (`OFL.txt`), cut down to ten kilobytes.

use ttf_parser::{Face, GlyphId, OutlineBuilder};

const FILE: &[u8] = include_bytes!("inter.otf");

/// How browsers are told to find the like of it.
pub const FAMILY: &str = "Inter, 'Helvetica Neue', Helvetica, Arial, sans-serif";

fn face() -> Face<'static> {
    Face::parse(FILE, 0).expect("the file is part of this program and tested")
}

fn glyph(face: &Face, c: char) -> GlyphId {
    face.glyph_index(c).or_else(|| face.glyph_index('\u{fffd}')).unwrap_or_default()
}

/// Width of a line of text at a size, both in points.
#[must_use]
pub fn width(text: &str, size: f32) -> f32 {
    let face = face();
    let advance = |c| f32::from(face.glyph_hor_advance(glyph(&face, c)).unwrap_or(0));
    text.chars().map(advance).sum::<f32>() * size / f32::from(face.units_per_em())
}

/// Hands the outlines of a line of text, which begins at a place on the base line, to a builder; y runs downward.
pub fn outline(text: &str, (x, y): (f32, f32), size: f32, path: &mut dyn OutlineBuilder) {
    let face = face();
    let scale = size / f32::from(face.units_per_em());
    let mut x = x;
    for c in text.chars() {
        let glyph = glyph(&face, c);
        face.outline_glyph(glyph, &mut Placed { path, x, y, scale });
        x += f32::from(face.glyph_hor_advance(glyph).unwrap_or(0)) * scale;
    }
}

/// Moves outlines from the font's units to the picture's.
struct Placed<'a> {
    path: &'a mut dyn OutlineBuilder,
    x: f32,
    y: f32,
    scale: f32,
}

impl Placed<'_> {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, self.y - y * self.scale)
    }
}

impl OutlineBuilder for Placed<'_> {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.curve_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sign_of_a_plot_is_in_the_font() {
        let face = face();
        let signs = (' '..='~').chain("±·×–…−µ".chars());
        for sign in signs {
            assert!(face.glyph_index(sign).is_some(), "{sign:?}");
        }
        assert!(width("loss", 12.0) > 15.0 && width("loss", 12.0) < 40.0);
        assert_eq!(width("", 12.0), 0.0);
        assert!(width("漢", 12.0) > 0.0, "what the font lacks has a stand-in");
    }
}
