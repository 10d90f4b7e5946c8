//! A run on one line of the screen: what matters least goes first where the line is short, the loss stays to the last.

use super::Watched;
use super::view::View;
use crate::report::shorten::{Keep, shorten};

/// A figure of the line.
pub(super) struct Figure {
    /// How soon a short line leaves it out: the lowest stays longest, and 0 for good.
    pub(super) leaves: u32,
    /// Its name and value.
    pub(super) text: String,
}

/// The share of a line that a run's id may take, and the characters that it may always have.
const SHARE: usize = 3;
const LEAST: usize = 10;

/// The lines of runs, each of at most `columns` characters as far as a loss has room in so many. The value that is
/// drawn stays as the loss does.
pub(super) fn lines(runs: &[Watched], view: &View, columns: usize) -> Vec<String> {
    let whole: Vec<String> = runs.iter().map(|run| run.whole_line(view)).collect();
    if whole.iter().all(|line| line.chars().count() <= columns) {
        return whole;
    }
    let ids: Vec<String> = runs.iter().map(|run| run.id.clone()).collect();
    let ids = shorten(&ids, (columns / SHARE).max(LEAST), Keep::Ends);
    runs.iter().zip(&ids).map(|(run, id)| line(run, id, columns, view.latest(run))).collect()
}

fn line(run: &Watched, id: &str, columns: usize, drawn: Option<String>) -> String {
    let of = |steps: String| Figure { leaves: 25, text: steps };
    let mut figures = vec![
        Figure { leaves: 40, text: run.stands.clone() },
        of(format!("step {}/{}", run.steps(), run.total_steps)),
    ];
    figures.extend(run.figures());
    if let Some(problem) = &run.problem {
        let room = columns.saturating_sub(id.chars().count() + 2);
        figures.push(Figure { leaves: 1, text: problem.chars().take(room).collect() });
    }
    figures.extend(drawn.map(|text| Figure { leaves: 0, text }));
    loop {
        let texts = figures.iter().map(|figure| figure.text.as_str());
        let line = std::iter::once(id).chain(texts).collect::<Vec<_>>().join("  ");
        if line.chars().count() <= columns {
            return line;
        }
        let least = figures.iter_mut().enumerate().max_by_key(|(_, figure)| figure.leaves);
        match least {
            Some((_, figure)) if figure.text.starts_with("step ") => {
                *figure = Figure { leaves: 5, text: figure.text.replacen("step ", "", 1) };
            }
            Some((place, figure)) if figure.leaves > 0 => drop(figures.remove(place)),
            _ => return line,
        }
    }
}
