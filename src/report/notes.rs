//! What a reader must know before believing a comparison, one sentence each.

use super::compare::Comparison;
use super::export::tame;
use super::runs::Run;

/// As many runs are named in a sentence.
const MOST_NAMES: usize = 6;

/// All notes on a comparison.
pub(super) fn notes(comparison: &Comparison) -> Vec<String> {
    let mut notes: Vec<String> = comparison.footing.note(&comparison.judge).into_iter().collect();
    notes.extend(copies(comparison));
    notes.extend(interpolated(comparison));
    let runs = &comparison.runs;
    let mut known: Vec<&String> = Vec::new();
    for note in runs.iter().flat_map(|run| &run.notes) {
        if !known.contains(&note) {
            known.push(note);
            let of = runs.iter().filter(|run| run.notes.contains(note));
            notes.push(format!("{}: {note}", names(runs, of)));
        }
    }
    notes
}

fn copies(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let mut notes = Vec::new();
    for group in &comparison.groups {
        for counted in group.counted() {
            let copies: Vec<&Run> =
                group.copies.iter().filter(|(_, of)| *of == counted).map(|&(copy, _)| &runs[copy]).collect();
            if !copies.is_empty() {
                let is_are = if copies.len() == 1 { "has" } else { "have" };
                notes.push(format!(
                    "{} {is_are} the recipe and the seed of {}: that is no further seed, and counts once",
                    names(runs, copies.into_iter()),
                    name(runs, &runs[counted])
                ));
            }
        }
    }
    notes
}

fn interpolated(comparison: &Comparison) -> Vec<String> {
    let runs = &comparison.runs;
    let mut notes = Vec::new();
    if runs.iter().any(|run| !run.results.interpolated().is_empty()) {
        notes.push(
            "~ interpolated linearly between the evaluations before and after the point of comparison"
                .to_owned(),
        );
    }
    let unknown = || runs.iter().filter(|run| !run.results.unknown().is_empty());
    if unknown().next().is_some() {
        notes.push(format!(
            "{}: no evaluation at the point of comparison or on both sides of it, so there is no validation loss",
            names(runs, unknown())
        ));
    }
    notes
}

/// The runs by name, all or the first few and how many more.
fn names<'a>(all: &[Run], runs: impl Iterator<Item = &'a Run>) -> String {
    let mut names: Vec<String> = runs.map(|run| name(all, run)).collect();
    let more = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// A run's id, or its path where another run has the same id.
fn name(all: &[Run], run: &Run) -> String {
    let name = match all.iter().filter(|other| other.id == run.id).count() {
        0 | 1 => run.id.clone(),
        _ => run.path.display().to_string(),
    };
    tame(&name)
}
