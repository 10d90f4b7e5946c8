//! The note on what `auto` came to, where figures that depend on it are shown.

use super::super::basis::is_speed;
use super::super::compare::Comparison;
use super::super::runs::Run;
use super::{listed, names};
use std::collections::BTreeMap;

/// A key that may be `auto`, and what came of it.
type Choice = (&'static str, fn(&Run) -> Option<String>);

const MICRO_BATCH: &str = "batch.micro_batch";
const RECOMPUTE: &str = "compute.recompute";

const CHOICES: [Choice; 2] = [
    (MICRO_BATCH, |run| run.facts.micro_batch.map(|rows| rows.to_string())),
    (RECOMPUTE, |run| run.facts.recompute.clone()),
];

/// What `auto` came to by recipe and memory, where that differs between runs and speeds or memory are shown.
pub(super) fn chosen(comparison: &Comparison) -> Vec<String> {
    let is_shown = comparison.shown.iter().any(is_speed);
    let note = |(key, found): Choice| {
        let is_auto = |run: &&Run| {
            !run.recipe.is_empty() && run.value(key).is_none_or(|value| value.as_str() == Some("auto"))
        };
        let mut by_choice: BTreeMap<(usize, String), Vec<&Run>> = BTreeMap::new();
        for run in comparison.runs.iter().filter(is_auto) {
            if let Some(choice) = found(run) {
                // numbers by their size
                by_choice.entry((choice.len(), choice)).or_default().push(run);
            }
        }
        let differs = is_shown && by_choice.len() > 1;
        let said = by_choice
            .into_iter()
            .map(|((_, choice), of)| format!("{choice} ({})", names(&comparison.runs, of.into_iter())));
        differs.then(|| {
            format!(
                "{key} = auto came to {}, by the recipe and the memory that there was: speeds, seconds and memory may \
                 differ by that as well",
                listed(said.collect())
            )
        })
    };
    CHOICES.into_iter().filter_map(note).collect()
}
