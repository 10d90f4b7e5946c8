//! The terminal of `watch`: drawn anew at every look, in whatever size it has by then.

use super::Watched;
use crate::report::braille::{Glyph, chart};
use crate::run::RunStatus;
use console::Term;
use std::io::{self, Write};

/// Alternate screen, no cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Colours of the runs: those of the terminal, which its owner can read.
const COLOURS: [&str; 6] = ["\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[34m", "\x1b[31m"];
const PLAIN: &str = "\x1b[0m";

/// The terminal while it belongs to `watch`; given back on drop.
pub(super) struct Screen {
    term: Term,
    size: (u16, u16),
    has_colour: bool,
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        let term = Term::stdout();
        write(&term, ENTER)?;
        let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Ok(Self { size: term.size(), term, has_colour })
    }

    /// Whether the window has another size than when it was drawn last.
    pub(super) fn was_resized(&self) -> bool {
        self.term.size() != self.size
    }

    /// Draws everything.
    pub(super) fn draw(&mut self, runs: &[Watched]) -> io::Result<()> {
        let mut out = String::from("\x1b[H");
        if self.was_resized() {
            out.push_str("\x1b[2J");
            self.size = self.term.size();
        }
        let (rows, columns) = (usize::from(self.size.0), usize::from(self.size.1));
        let lines = frame(runs, columns, rows);
        for (i, line) in lines.iter().enumerate() {
            if i > 0 {
                out.push('\n');
            }
            self.line(line, &mut out);
            out.push_str("\x1b[K");
        }
        out.push_str("\x1b[J");
        write(&self.term, &out)
    }

    fn line(&self, line: &[Glyph], out: &mut String) {
        let mut current = None;
        for &(c, owner) in line {
            if owner != current && self.has_colour {
                out.push_str(owner.map_or(PLAIN, |run| COLOURS[run % COLOURS.len()]));
            }
            current = owner;
            out.push(c);
        }
        if current.is_some() && self.has_colour {
            out.push_str(PLAIN);
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // best effort: a terminal that is gone needs nothing given back
        let _ = write(&self.term, LEAVE);
    }
}

fn write(term: &Term, text: &str) -> io::Result<()> {
    let mut out = term;
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// The lines of the screen: no more than `rows`, none longer than `columns`.
pub(super) fn frame(runs: &[Watched], columns: usize, rows: usize) -> Vec<Vec<Glyph>> {
    // half of the screen at most is for figures
    let most = (rows / 2).max(1);
    let mut lines: Vec<Vec<Glyph>> = Vec::new();
    for (i, run) in runs.iter().enumerate().take(most) {
        let text = run.line();
        let mark = [('●', Some(i)), (' ', None)].into_iter();
        lines.push(mark.chain(text.chars().map(|c| (if c.is_control() { '?' } else { c }, None))).collect());
    }
    if runs.len() > most {
        lines.pop();
        lines.push(glyphs(&format!("and {} more", runs.len() - most + 1)));
    }
    let waits = runs.iter().any(|run| run.status == RunStatus::Interrupted);
    let foot = match waits {
        true => "loss by step; an interrupted run may go on; Ctrl-C ends",
        false => "loss by step; Ctrl-C ends",
    };
    let room = rows.saturating_sub(lines.len() + 2);
    let curves: Vec<(Vec<f64>, Vec<f64>)> =
        runs.iter().map(|run| run.train.rows().iter().map(|row| (row[0], row[2])).unzip()).collect();
    if room >= 4 {
        lines.push(Vec::new());
        let chart = chart(&curves, columns, room);
        lines.extend(if chart.is_empty() { vec![glyphs("no step yet")] } else { chart });
        lines.push(glyphs(foot));
    }
    lines.truncate(rows);
    lines.iter_mut().for_each(|line| line.truncate(columns));
    lines
}

fn glyphs(text: &str) -> Vec<Glyph> {
    text.chars().map(|c| (c, None)).collect()
}
