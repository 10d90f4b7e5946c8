//! The terminal of `watch`: drawn anew at every look, in whatever size it has by then.

use super::super::terminal;
use super::view::View;
use super::{Watched, header};
use crate::report::braille::{Curve, Glyph, chart};
use crate::run::RunStatus;
use crate::wording::is_tame;
use console::Term;
use std::io::{self, Write};

/// Colours of the runs: those of the terminal, which its owner can read.
const COLOURS: [&str; 6] = ["\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[34m", "\x1b[31m"];
const PLAIN: &str = "\x1b[0m";

/// The terminal while it belongs to `watch`; given back on drop.
pub(super) struct Screen {
    term: Term,
    size: (u16, u16),
    has_colour: bool,
}

/// Rows and columns of a window. More than any screen has would take memory for nothing: a window may claim 65535.
fn size(term: &Term) -> (u16, u16) {
    let (rows, columns) = term.size();
    (rows.min(500), columns.min(1000))
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        let term = Term::stdout();
        terminal::enter_screen()?;
        let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Ok(Self { size: size(&term), term, has_colour })
    }

    /// Whether the window has another size than when it was drawn last.
    pub(super) fn was_resized(&self) -> bool {
        size(&self.term) != self.size
    }

    /// Draws everything.
    pub(super) fn draw(&mut self, runs: &[Watched], view: &View) -> io::Result<()> {
        let mut out = String::from("\x1b[H");
        if self.was_resized() {
            out.push_str("\x1b[2J");
            self.size = size(&self.term);
        }
        let (rows, columns) = (usize::from(self.size.0), usize::from(self.size.1));
        let lines = frame(runs, view, columns, rows);
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
        terminal::leave_screen();
    }
}

fn write(term: &Term, text: &str) -> io::Result<()> {
    let mut out = term;
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// The lines of the screen: no more than `rows`, none longer than `columns`.
pub(super) fn frame(runs: &[Watched], view: &View, columns: usize, rows: usize) -> Vec<Vec<Glyph>> {
    // half of the screen at most is for figures
    let most = (rows / 2).max(1);
    let mut lines: Vec<Vec<Glyph>> = Vec::new();
    // before each line a sign in the colour of its run
    let texts = header::lines(runs, view, columns.saturating_sub(2));
    for (i, text) in texts.iter().enumerate().take(most) {
        let mark = [('●', Some(i)), (' ', None)].into_iter();
        lines.push(mark.chain(glyphs(text)).collect());
    }
    if runs.len() > most {
        lines.pop();
        lines.push(glyphs(&format!("and {} more", runs.len() - most + 1)));
    }
    let waits = runs.iter().any(|run| run.status == RunStatus::Interrupted);
    let may_go_on = if waits { "; an interrupted run may go on" } else { "" };
    let foot = format!("{}{may_go_on}; Ctrl-C ends", view.caption());
    let room = rows.saturating_sub(lines.len() + 2);
    let curves: Vec<Curve> = runs.iter().map(|run| view.curve(run)).collect();
    if room >= 4 {
        lines.push(Vec::new());
        let chart = chart(&curves, columns, room);
        lines.extend(if chart.is_empty() { vec![glyphs("no step yet")] } else { chart });
        lines.push(glyphs(&foot));
    }
    lines.truncate(rows);
    lines.iter_mut().for_each(|line| line.truncate(columns));
    lines
}

fn glyphs(text: &str) -> Vec<Glyph> {
    text.chars().map(|c| (if is_tame(c) { c } else { '?' }, None)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::axis::Axis;
    use crate::report::braille::MARK;
    use std::fs;
    use std::path::Path;

    fn run(dir: &Path, id: &str, loss: f64) -> std::path::PathBuf {
        let run = dir.join(id);
        fs::create_dir(&run).expect("a directory");
        fs::write(run.join("recipe.toml"), "seed = 1\n[schedule]\nmax_steps = 400\n").expect("a file");
        let row = |step: u32| {
            let (tokens, loss) = ((step + 1) * 512, loss - f64::from(step) / 100.0);
            format!("{step},{tokens},{loss},1e-3,1.5,1000,0.25,{},7\n", f64::from(step) / 10.0)
        };
        let head = "step,tokens,loss,lr,grad_norm,tokens_per_s,mfu,elapsed_s,loss_scale\n";
        fs::write(run.join("train.csv"), head.to_owned() + &(0..300).map(row).collect::<String>())
            .expect("a file");
        fs::write(
            run.join("val.csv"),
            "step,tokens,val_loss,poems\n0,0,9,1\n150,76800,8,2\n300,153600,7,3\n",
        )
        .expect("a file");
        run
    }

    fn shown(runs: &[std::path::PathBuf], y: &str, axis: Axis, columns: usize) -> Vec<String> {
        let view = View::new(y, axis, runs).expect("a column");
        let mut watched: Vec<Watched> =
            runs.iter().map(|run| Watched::new(run, &view).expect("a run")).collect();
        watched.iter_mut().for_each(|run| assert!(!run.poll(&view).is_empty(), "there is news"));
        let lines = frame(&watched, &view, columns, 24);
        lines.iter().map(|line| line.iter().map(|(c, _)| *c).collect()).collect()
    }

    #[test]
    fn the_loss_stays_to_the_last_and_evaluations_are_marked() {
        let dir = tempfile::tempdir().expect("tempdir");
        let names = ["transformer-sweep-5fc1322b", "transformer-sweep-afaf88f1"];
        let runs: Vec<_> = names.iter().map(|name| run(dir.path(), name, 10.0)).collect();
        for columns in [40, 80, 120, 200] {
            let lines = shown(&runs, "loss", Axis::Step, columns);
            let text = lines.join("\n");
            assert!(lines.iter().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
            assert!(
                lines[..2].iter().all(|line| line.contains("loss 7.0100") && line.contains("300/400")),
                "{text}"
            );
            assert!(lines[0].contains("5fc1322b") && lines[1].contains("afaf88f1"), "{text}");
            assert_eq!(lines[0].contains("val 7.0000"), columns > 40, "{text}");
            assert_eq!(lines[0].contains("MFU"), columns > 80, "{text}");
            assert_eq!(
                lines[0].contains("created") || lines[0].contains("interrupted"),
                columns > 80,
                "{text}"
            );
            // three evaluations, the one run over the other, and the sign's meaning
            assert_eq!(text.matches(MARK).count(), 3 + 1, "{text}");
            assert!(text.contains("loss by step"), "{text}");
        }
        assert!(shown(&runs, "loss", Axis::Step, 14)[0].chars().count() <= 14);
    }

    #[test]
    fn nothing_that_acts_on_a_terminal_is_on_the_screen() {
        let dir = tempfile::tempdir().expect("tempdir");
        let runs = [run(dir.path(), "run-5fc1322b", 10.0)];
        let log = "step,tokens,val_loss,po\u{1b}]0;x\u{7}ems\n0,0,9,1\n150,76800,8,2\n";
        std::fs::write(runs[0].join("val.csv"), log).expect("a file");
        let text = shown(&runs, "po\u{1b}]0;x\u{7}ems", Axis::Step, 120).concat();
        assert!(text.contains("po?]0;x?ems by") && text.chars().all(is_tame), "{text:?}");
    }

    #[test]
    fn any_column_is_drawn_along_any_axis() {
        let dir = tempfile::tempdir().expect("tempdir");
        let runs = [run(dir.path(), "a-5fc1322b", 10.0)];
        let last = |y: &str, axis: Axis| {
            let lines = shown(&runs, y, axis, 80);
            (lines[0].clone(), lines[lines.len() - 2].trim().to_owned(), lines[lines.len() - 1].clone())
        };
        let (head, ends, foot) = last("loss_scale", Axis::Time);
        assert!(
            head.contains("loss_scale 7") && foot.starts_with("loss_scale by training time"),
            "{head} {foot}"
        );
        assert!(ends.starts_with('0') && ends.ends_with("29.9"), "{ends}");
        let (head, ends, foot) = last("poems", Axis::Tokens);
        assert!(head.contains("poems 3") && foot.contains("poems by tokens"), "{head} {foot}");
        assert!(ends.ends_with("154k"), "{ends}");
        let (_, ends, foot) = last("val_loss", Axis::Time);
        assert!(ends.ends_with("29.9") && foot.contains("◆ val_loss"), "{ends} {foot}");
        let problem = View::new("los", Axis::Step, &runs).err().expect("a mistyped name").to_string();
        assert!(problem.contains("`los` is no column") && problem.contains("grad_norm"), "{problem}");
    }
}
