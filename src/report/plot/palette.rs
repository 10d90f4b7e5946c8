//! Colours and dashes: told apart by colour-blind eyes, on paper and on dark screens.
//!
//! The hues are those of Okabe and Ito (*Color Universal Design*, 2008); a line also has a dash and a marker of its
//! own, so that a black-and-white print keeps them apart.

/// What a thing is drawn with. What colour that is, the theme decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Text and frames.
    Foreground,
    /// Text of less weight.
    Muted,
    /// Lines that help the eye.
    Grid,
    /// Behind everything.
    Background,
    /// The curve at this place of the legend.
    Series(usize),
    /// The curve of a sweep over numbers, from 0 for the lowest to 255 for the highest.
    Shade(u8),
    /// Curves that are not in the legend.
    Rest,
}

/// A set of colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    /// Dark on white.
    Light,
    /// Light on near black.
    Dark,
}

/// Curves without an order that get a colour, a dash and a place in the legend; the others are grey. So many pairs of a
/// colour and a dash there are.
pub const MOST_SERIES: usize = LIGHT.len() * DASHES.len();

const LIGHT: [u32; 7] = [0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x333333];
/// The hues of Okabe and Ito, lighter, for a dark ground.
const DARK: [u32; 7] = [0x4da6e0, 0xf07b2e, 0x2bc295, 0xe09cc3, 0xf0b73c, 0x8fd0f5, 0xe6e6e6];

/// Shades from low to high, which darken on white. On a dark ground they are lighter.
const LIGHT_SHADES: [u32; 5] = [0xf0a020, 0xe06a2c, 0xbf3a6b, 0x7a2a8c, 0x2a1160];
const DARK_SHADES: [u32; 5] = [0xfbe67b, 0xf9a95a, 0xee7590, 0xbb78dd, 0x7f86f2];

/// Lengths of strokes and gaps, in units of the line's width; empty for a solid line.
pub const DASHES: [&[f32]; 4] = [&[], &[5.0, 2.0], &[1.5, 1.5], &[6.0, 1.5, 1.5, 1.5]];

/// How a curve is told from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Its colour.
    pub ink: Ink,
    /// The number of its dash and of the shape of its markers.
    pub place: usize,
}

/// The looks of so many curves in the order of the legend, given where each lies in a sweep over numbers, if it is one;
/// `None` for a curve that has no place in the legend.
#[must_use]
pub fn looks(curves: usize, shades: Option<&[f64]>) -> Vec<Option<Look>> {
    let shade = |along: &f64| Some(Look { ink: Ink::Shade((along * 255.0).round() as u8), place: 0 });
    match shades {
        Some(shades) => shades.iter().map(shade).collect(),
        None => (0..curves)
            .map(|place| (place < MOST_SERIES).then_some(Look { ink: Ink::Series(place), place }))
            .collect(),
    }
}

/// The colour at a part of the way through shades.
fn shade(shades: &[u32; 5], at: u8) -> u32 {
    let along = f64::from(at) / 255.0 * (shades.len() - 1) as f64;
    let from = (along as usize).min(shades.len() - 2);
    let part = |shift: u32| {
        let of = |rgb: u32| f64::from(rgb >> shift & 255);
        let (a, b) = (of(shades[from]), of(shades[from + 1]));
        ((a + (b - a) * (along - from as f64)).round() as u32) << shift
    };
    part(16) | part(8) | part(0)
}

/// Red, green and blue.
#[must_use]
pub fn colour(ink: Ink, theme: Theme) -> u32 {
    let (light, dark) = match ink {
        Ink::Foreground => (0x1f2328, 0xe6edf3),
        Ink::Muted => (0x59636e, 0x9198a1),
        Ink::Grid => (0xe4e7eb, 0x2a3038),
        Ink::Background => (0xffffff, 0x0d1117),
        Ink::Series(i) => (LIGHT[i % LIGHT.len()], DARK[i % DARK.len()]),
        Ink::Shade(at) => (shade(&LIGHT_SHADES, at), shade(&DARK_SHADES, at)),
        Ink::Rest => (0xb8bec5, 0x4a525b),
    };
    if theme == Theme::Light { light } else { dark }
}

/// The dash of the curve at this place of the legend.
#[must_use]
pub fn dash(place: usize) -> &'static [f32] {
    DASHES[place % DASHES.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_curves_of_a_legend_look_the_same() {
        let look = |place: usize| (colour(Ink::Series(place), Theme::Light), place % DASHES.len());
        let looks: std::collections::HashSet<_> = (0..MOST_SERIES).map(look).collect();
        assert_eq!(looks.len(), MOST_SERIES);
    }

    #[test]
    fn shades_of_a_sweep_differ_and_end_at_both_ends() {
        let looks = looks(20, Some(&(0..20).map(|i| f64::from(i) / 19.0).collect::<Vec<_>>()));
        let inks: Vec<Ink> = looks.iter().flatten().map(|look| look.ink).collect();
        assert_eq!((inks.len(), inks[0], inks[19]), (20, Ink::Shade(0), Ink::Shade(255)));
        for theme in [Theme::Light, Theme::Dark] {
            let colours: std::collections::HashSet<u32> =
                inks.iter().map(|ink| colour(*ink, theme)).collect();
            assert_eq!(colours.len(), 20, "{theme:?}");
        }
        assert_eq!(colour(Ink::Shade(255), Theme::Light), LIGHT_SHADES[4]);
    }

    /// Contrast of two colours (WCAG 2.1).
    fn contrast(a: u32, b: u32) -> f64 {
        let luminance = |rgb: u32| {
            let part = |shift: u32| {
                let c = f64::from(rgb >> shift & 255) / 255.0;
                if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * part(16) + 0.7152 * part(8) + 0.0722 * part(0) + 0.05
        };
        let (a, b) = (luminance(a), luminance(b));
        (a / b).max(b / a)
    }

    #[test]
    fn everything_stands_out_from_the_ground() {
        for theme in [Theme::Light, Theme::Dark] {
            let against = |ink| contrast(colour(ink, theme), colour(Ink::Background, theme));
            assert!(against(Ink::Foreground) > 10.0 && against(Ink::Muted) > 4.5, "{theme:?}");
            let shades = (0..=255).map(Ink::Shade);
            for ink in (0..7).map(Ink::Series).chain(shades) {
                assert!(against(ink) > 2.0, "{theme:?} {ink:?}: {}", against(ink));
            }
        }
    }
}
