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

/// Curves that get a colour, a dash and a place in the legend; the others are grey.
pub const MOST_SERIES: usize = 16;

const LIGHT: [u32; 7] = [0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x333333];
/// The hues of Okabe and Ito, lighter, for a dark ground.
const DARK: [u32; 7] = [0x4da6e0, 0xf07b2e, 0x2bc295, 0xe09cc3, 0xf0b73c, 0x8fd0f5, 0xe6e6e6];

/// Lengths of strokes and gaps, in units of the line's width; empty for a solid line.
pub const DASHES: [&[f32]; 4] = [&[], &[5.0, 2.0], &[1.5, 1.5], &[6.0, 1.5, 1.5, 1.5]];

/// Red, green and blue.
#[must_use]
pub fn colour(ink: Ink, theme: Theme) -> u32 {
    let (light, dark) = match ink {
        Ink::Foreground => (0x1f2328, 0xe6edf3),
        Ink::Muted => (0x59636e, 0x9198a1),
        Ink::Grid => (0xe4e7eb, 0x2a3038),
        Ink::Background => (0xffffff, 0x0d1117),
        Ink::Series(i) => (LIGHT[i % LIGHT.len()], DARK[i % DARK.len()]),
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
            for place in 0..7 {
                assert!(
                    against(Ink::Series(place)) > 2.0,
                    "{theme:?} {place}: {}",
                    against(Ink::Series(place))
                );
            }
        }
    }
}
