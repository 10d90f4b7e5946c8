//! A picture as SVG. With both themes in it, it follows the reader's screen; on paper it is light.

use super::font::FAMILY;
use super::palette::{Ink, Theme, colour};
use super::scene::{Anchor, Item, Point, Scene, Shape, corners};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The picture as a document. Without a theme it is light, and dark where the reader's screen is.
#[must_use]
pub fn svg(scene: &Scene, theme: Option<Theme>) -> String {
    let (w, h) = (short(scene.width), short(scene.height));
    let mut inks = BTreeMap::new();
    let mut body = String::new();
    for item in &scene.items {
        draw(item, &mut inks, &mut body);
    }
    let rules = |theme: Theme| -> String {
        let background = format!(".b{{fill:#{:06x}}}", colour(Ink::Background, theme));
        let rule = |(class, ink): (&String, &Ink)| {
            format!(".{class}{{stroke:#{c:06x}}}.{class}f{{fill:#{c:06x}}}", c = colour(*ink, theme))
        };
        let rim = format!(".m{{stroke:#{:06x}}}", colour(Ink::Background, theme));
        background + &inks.iter().map(rule).collect::<String>() + &rim
    };
    let style = match theme {
        Some(theme) => rules(theme),
        None => {
            format!("{}@media(prefers-color-scheme:dark){{{}}}", rules(Theme::Light), rules(Theme::Dark))
        }
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" role=\"img\" \
         font-family=\"{FAMILY}\">\n<title>{}</title>\n<style>path{{fill:none;stroke-linejoin:round}}{style}</style>\n\
         <rect class=\"b\" width=\"{w}\" height=\"{h}\"/>\n{body}</svg>\n",
        escaped(&scene.title)
    )
}

/// The name of an ink, so that a theme is a few rules.
pub(in crate::report) fn class(ink: Ink) -> String {
    match ink {
        Ink::Foreground => "fg".to_owned(),
        Ink::Muted => "mu".to_owned(),
        Ink::Grid => "gr".to_owned(),
        Ink::Background => "bg".to_owned(),
        Ink::Series(place) => format!("s{place}"),
        Ink::Shade(at) => format!("h{at}"),
        Ink::Rest => "re".to_owned(),
    }
}

/// The class of an ink, which is noted.
fn noted(ink: Ink, inks: &mut BTreeMap<String, Ink>) -> String {
    let name = class(ink);
    inks.entry(name.clone()).or_insert(ink);
    name
}

fn draw(item: &Item, inks: &mut BTreeMap<String, Ink>, out: &mut String) {
    // writing to a string cannot fail
    let _ = match item {
        Item::Line { points, stroke } => {
            let dash: Vec<String> = stroke.dash.iter().map(|d| short(d * stroke.width)).collect();
            let dash = if dash.is_empty() {
                String::new()
            } else {
                format!(" stroke-dasharray=\"{}\"", dash.join(" "))
            };
            let opacity =
                if stroke.opacity < 1.0 { format!(" opacity=\"{}\"", stroke.opacity) } else { String::new() };
            let (class, width) = (noted(stroke.ink, inks), short(stroke.width));
            writeln!(
                out,
                "<path class=\"{class}\" stroke-width=\"{width}\"{dash}{opacity} d=\"{}\"/>",
                path(points)
            )
        }
        Item::Area { points, ink, opacity } => {
            let class = noted(*ink, inks);
            writeln!(
                out,
                "<path class=\"{class}f\" style=\"fill-opacity:{opacity}\" d=\"{}Z\"/>",
                path(points)
            )
        }
        Item::Marker { at, shape: Shape::Circle, radius, ink } => {
            let (x, y) = (short(at.0), short(at.1));
            let class = noted(*ink, inks);
            writeln!(out, "<circle class=\"{class}f m\" cx=\"{x}\" cy=\"{y}\" r=\"{}\"/>", short(*radius))
        }
        Item::Marker { at, shape, radius, ink } => {
            let class = noted(*ink, inks);
            writeln!(out, "<path class=\"{class}f m\" d=\"{}Z\"/>", path(&corners(*shape, *at, *radius)))
        }
        Item::Text { at, text, size, anchor, ink } => {
            let anchor = match anchor {
                Anchor::Start => "",
                Anchor::Middle => " text-anchor=\"middle\"",
                Anchor::End => " text-anchor=\"end\"",
            };
            let (x, y, class) = (short(at.0), short(at.1), noted(*ink, inks));
            let text = escaped(text);
            writeln!(
                out,
                "<text class=\"{class}f\" x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{anchor}>{text}</text>"
            )
        }
    };
}

/// Points as a path, each relative to the one before: a tenth of a point is finer than a screen.
fn path(points: &[Point]) -> String {
    let tenths = |v: f32| (v * 10.0).round() as i64;
    let mut out = String::new();
    let mut before = (0, 0);
    for (i, &(x, y)) in points.iter().enumerate() {
        let (x, y) = (tenths(x), tenths(y));
        let command = match i {
            0 => "M",
            1 => "l",
            _ => "",
        };
        let (dx, dy) = (x - before.0, y - before.1);
        let gap = if dx >= 0 && i > 1 { " " } else { "" };
        let between = if dy < 0 { "" } else { " " };
        let _ = write!(out, "{command}{gap}{}{between}{}", short(dx as f32 / 10.0), short(dy as f32 / 10.0));
        before = (x, y);
    }
    out
}

/// A number to a tenth, in as few signs as possible.
fn short(value: f32) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or_else(|| text.clone(), str::to_owned)
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // XML 1.0, section 2.2, has no other control characters, and neither of these
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::plot::scene::Stroke;

    #[test]
    fn texts_and_paths_are_well_formed() {
        let mut scene = Scene { width: 100.0, height: 50.5, title: "a<b".into(), items: Vec::new() };
        scene.text((1.0, 2.0), "x & <y>\u{1}\u{fffe}", 12.0, Anchor::End, Ink::Muted);
        let stroke = Stroke { ink: Ink::Series(1), width: 2.0, dash: &[1.5], opacity: 1.0 };
        scene.items.push(Item::Line { points: vec![(0.0, 1.0), (10.04, 0.5), (9.0, 3.0)], stroke });
        let text = svg(&scene, Some(Theme::Light));
        assert!(
            text.contains(">x &amp; &lt;y&gt;  </text>") && text.contains("<title>a&lt;b</title>"),
            "{text}"
        );
        assert!(text.contains("stroke-dasharray=\"3\" d=\"M0 1l10-0.5-1 2.5\""), "{text}");
        assert!(!text.contains("@media") && svg(&scene, None).contains("prefers-color-scheme:dark"));
    }
}
