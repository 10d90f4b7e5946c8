//! The text of a page: its template with everything in its place.

use crate::report::axis::Axis;
use crate::report::export::escaped;
use crate::report::plot::Quantity;
use crate::report::plot::palette::{Ink, Theme, colour};
use crate::report::plot::svg::class;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

const HTML: &str = include_str!("page.html");
const CSS: &str = include_str!("page.css");
const CHART: &str = include_str!("chart.js");
const JS: &str = include_str!("page.js");

/// What stands in the places of the template.
#[derive(Debug)]
pub(in crate::report) struct Document<'a> {
    /// In the window's title and over everything.
    pub(in crate::report) title: &'a str,
    /// Without one, the page follows the reader's screen.
    pub(in crate::report) theme: Option<Theme>,
    /// The colours that lines may have.
    pub(in crate::report) inks: &'a [Ink],
    /// Markup between the title and the controls, and below the curves.
    pub(in crate::report) parts: [&'a str; 2],
    /// What the scripts read.
    pub(in crate::report) data: &'a Value,
    /// A word that the headers of the page name, without which its browser runs no script of the page.
    pub(in crate::report) nonce: Option<&'a str>,
    /// Rules and a script behind those of every page.
    pub(in crate::report) further: [&'a str; 2],
}

impl Document<'_> {
    /// The page.
    pub(in crate::report) fn text(&self) -> String {
        let theme = self.theme.map_or("auto", |theme| if theme == Theme::Light { "light" } else { "dark" });
        // a text in the data must not end the script that holds it
        let data = self.data.to_string().replace("</", "<\\/").replace("<!--", "<\\u0021--");
        let parts = [
            ("{{title}}", escaped(self.title)),
            ("{{theme}}", theme.to_owned()),
            ("{{nonce}}", self.nonce.map_or_else(String::new, |nonce| format!(" nonce=\"{nonce}\""))),
            ("{{colours}}", colours(self.inks)),
            ("{{css}}", [CSS, self.further[0]].concat()),
            ("{{above}}", self.parts[0].to_owned()),
            ("{{below}}", self.parts[1].to_owned()),
            ("{{data}}", data),
            ("{{js}}", [CHART, JS, self.further[1]].concat()),
        ];
        fill(HTML, &parts)
    }
}

/// The quantities as the scripts of a page know them.
pub(in crate::report) fn described<'a>(quantities: impl IntoIterator<Item = &'a Quantity>) -> Value {
    let described = |q: &Quantity| {
        json!({
            "name": q.name,
            "title": q.title,
            "evaluated": q.is_evaluated,
            "smoothed": q.is_smoothed,
            "marks": q.marks(),
        })
    };
    quantities.into_iter().map(described).collect()
}

/// The axes as the scripts of a page know them.
pub(in crate::report) fn axes() -> Value {
    AXES.map(|axis| json!({ "name": axis.column(), "title": axis.title() })).to_vec().into()
}

/// Every axis.
pub(in crate::report) const AXES: [Axis; 3] = [Axis::Step, Axis::Tokens, Axis::Time];

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
fn colours(of_lines: &[Ink]) -> String {
    let inks = [("fg", Ink::Foreground), ("muted", Ink::Muted), ("grid", Ink::Grid), ("bg", Ink::Background)];
    let of_lines: BTreeMap<String, Ink> = of_lines.iter().map(|ink| (class(*ink), *ink)).collect();
    let of = |theme: Theme| {
        let mut out = String::new();
        for (name, ink) in inks {
            // writing to a string cannot fail
            let _ = write!(out, "--{name}:#{:06x};", colour(ink, theme));
        }
        for (name, ink) in &of_lines {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_looks_like_a_place_is_left_alone() {
        let parts = [("{{a}}", "{{b}}".to_owned()), ("{{b}}", "x".to_owned())];
        assert_eq!(fill("1{{a}}2{{b}}3", &parts), "1{{b}}2x3");
    }
}
