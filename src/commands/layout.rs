//! A line that fits a terminal: what is left out where there is no room for everything.

use console::{measure_text_width, truncate_str};

/// Columns of the bar, where it is shown at all.
const BAR: std::ops::RangeInclusive<usize> = 8..=30;
/// Between two pieces.
const GAP: &str = "  ";

/// A piece of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// From the longest to the shortest way of saying it.
    forms: Vec<String>,
    /// Pieces of lower rank are left out first.
    rank: u8,
}

impl Piece {
    pub(super) fn new(rank: u8, text: impl Into<String>) -> Self {
        Self { forms: vec![text.into()], rank }
    }

    /// A piece with shorter forms, which are taken before it is left out.
    pub(super) fn with_forms(rank: u8, forms: impl IntoIterator<Item = String>) -> Self {
        Self { forms: forms.into_iter().collect(), rank }
    }

    fn text(&self) -> &str {
        self.forms.first().map_or("", String::as_str)
    }
}

/// A line of at most `width` columns: a bar of which the share `done` is filled, then the pieces in order. Where there
/// is no room, the bar goes first, then the pieces from the lowest rank; the last one is shortened and never left out.
pub(super) fn line(width: usize, done: f64, mut pieces: Vec<Piece>) -> String {
    while length(&pieces) > width {
        let lowest = (0..pieces.len()).min_by_key(|&i| pieces[i].rank).unwrap_or(0);
        let shorter = pieces.get(lowest).is_some_and(|piece| piece.forms.len() > 1);
        if shorter {
            pieces[lowest].forms.remove(0);
        } else if pieces.len() > 1 {
            pieces.remove(lowest);
        } else {
            break;
        }
    }
    let text = pieces.iter().map(Piece::text).collect::<Vec<_>>().join(GAP);
    let room = width.saturating_sub(length(&pieces) + GAP.len());
    if room >= *BAR.start() {
        return format!("{}{GAP}{text}", bar(room.min(*BAR.end()), done));
    }
    truncate_str(&text, width, "…").into_owned()
}

fn length(pieces: &[Piece]) -> usize {
    let gaps = pieces.len().saturating_sub(1) * GAP.len();
    pieces.iter().map(|piece| measure_text_width(piece.text())).sum::<usize>() + gaps
}

fn bar(width: usize, done: f64) -> String {
    // not full before everything is done
    let filled = (done.clamp(0.0, 1.0) * width as f64) as usize;
    "█".repeat(filled) + &"░".repeat(width - filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(step: u64, steps: u64) -> Vec<Piece> {
        vec![
            Piece::with_forms(
                9,
                [format!("step {step}/{steps}"), format!("{step}/{steps}"), step.to_string()],
            ),
            Piece::new(5, "next 40 %"),
            Piece::new(8, "loss 9.8123"),
            Piece::new(4, "lr 6.00e-6"),
            Piece::new(3, "norm 12.332"),
            Piece::new(6, "1,012 tok/s"),
            Piece::new(7, "2.9 years left"),
        ]
    }

    #[test]
    fn what_matters_less_goes_first() {
        let at = |width| line(width, 0.25, pieces(12, 19073));
        let whole =
            "step 12/19073  next 40 %  loss 9.8123  lr 6.00e-6  norm 12.332  1,012 tok/s  2.9 years left";
        assert_eq!(at(300), format!("{}  {whole}", bar(30, 0.25)));
        assert_eq!(at(101), format!("██░░░░░░  {whole}"));
        assert_eq!(at(100), whole);
        assert_eq!(at(80), "step 12/19073  next 40 %  loss 9.8123  lr 6.00e-6  1,012 tok/s  2.9 years left");
        assert_eq!(at(60), "step 12/19073  loss 9.8123  1,012 tok/s  2.9 years left");
        assert_eq!(at(40), "███░░░░░░░░░  step 12/19073  loss 9.8123");
        assert_eq!(at(30), "step 12/19073  loss 9.8123");
        assert_eq!(at(20), "step 12/19073");
        assert_eq!(at(8), "12/19073");
        assert_eq!(at(3), "12");
    }

    #[test]
    fn a_text_that_is_too_long_for_the_terminal_is_cut() {
        let text = line(30, 0.5, vec![Piece::new(9, "encoding ../datasets/a/very/long/path.txt")]);
        assert_eq!(text, "encoding ../datasets/a/very/l…");
    }

    #[test]
    fn a_bar_is_full_only_at_the_end() {
        assert_eq!(bar(8, 0.999), "███████░");
        assert_eq!([bar(4, 1.0), bar(4, 2.0), bar(4, f64::NAN)], ["████", "████", "░░░░"]);
    }

    proptest! {
        #[test]
        fn a_line_fits_and_has_the_step(
            width in 20usize..300,
            steps in 1u64..u64::MAX,
            part in 0.0f64..1.0,
            texts in prop::collection::vec(("[ -~äßφ]{0,40}", 0u8..9), 0..7),
        ) {
            let step = (steps as f64 * part) as u64;
            let mut pieces = pieces(step, steps);
            pieces.extend(texts.into_iter().map(|(text, rank)| Piece::new(rank, text)));
            let line = line(width, part, pieces);
            prop_assert!(measure_text_width(&line) <= width, "{line:?}");
            prop_assert!(line.contains(&step.to_string()), "{line:?}");
        }
    }
}
