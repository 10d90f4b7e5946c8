//! The note on what `auto` came to, where figures that depend on it are shown.

use super::super::basis::is_speed;
use super::super::chosen::{CHOICES, Choice};
use super::super::compare::Comparison;
use super::super::metrics::Metric;
use super::super::runs::Run;
use super::{listed, names};
use std::collections::BTreeMap;

/// What `auto` came to by recipe and memory, where that differs between runs and speeds or memory are shown.
pub(super) fn chosen(comparison: &Comparison, shown: &[Metric]) -> Vec<String> {
    let is_shown = shown.iter().any(is_speed);
    let note = |(key, found): Choice| {
        let mut by_choice: BTreeMap<(usize, &str), Vec<&Run>> = BTreeMap::new();
        for run in &comparison.runs {
            if let Some(choice) = found(&run.chosen) {
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
