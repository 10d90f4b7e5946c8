//! What runs are called in a sentence.

use super::super::runs::Run;
use crate::wording::tame_line;

/// As many runs are named in a sentence.
const MOST_NAMES: usize = 6;

/// The runs by name, all or the first few and how many more.
pub(super) fn names<'a>(all: &[Run], runs: impl Iterator<Item = &'a Run>) -> String {
    first_of(runs, |run| name(all, run))
}

/// Some of these in words as one phrase, all or the first few and how many more.
pub(in crate::report) fn first_of<T>(
    mut items: impl Iterator<Item = T>,
    in_words: impl FnMut(T) -> String,
) -> String {
    let first: Vec<String> = items.by_ref().take(MOST_NAMES).map(in_words).collect();
    listed_of(first, items.count())
}

/// Names as one phrase, all or the first few and how many more.
pub(in crate::report) fn listed(mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    listed_of(names, more)
}

/// Names, and how many more there are, as one phrase.
fn listed_of(mut names: Vec<String>, more: usize) -> String {
    if more > 0 {
        names.push(format!("{more} more"));
    }
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// A run's id, or its path where another run has the same id.
pub(super) fn name(all: &[Run], run: &Run) -> String {
    name_among(all.iter(), run)
}

/// As [`name`], among runs wherever they are.
pub(super) fn name_among<'a>(all: impl Iterator<Item = &'a Run>, run: &Run) -> String {
    let name = match all.filter(|other| other.id == run.id).count() {
        0 | 1 => run.id.clone(),
        _ => run.path.display().to_string(),
    };
    tame_line(&name)
}
