//! Suggestions: the valid name nearest to an unknown one.

use super::keys::{KEYS, Key, TABLES};
use strsim::damerau_levenshtein;

/// The candidate nearest to `word`, if one is near enough for a typing error.
pub(super) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    within(word, candidates, |length| (length / 3).max(1))
}

/// The candidate nearest to `word` within a distance that depends on the longer one's length.
fn within<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
    limit: impl Fn(usize) -> usize,
) -> Option<&'a str> {
    // Longer words are no typing errors, and the distance takes time quadratic in their length.
    if word.len() > 100 {
        return None;
    }
    let word = word.to_lowercase();
    candidates
        .map(|candidate| (damerau_levenshtein(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= limit(candidate.len().max(word.len())))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The table that `word` probably means.
pub(super) fn table(word: &str) -> Option<&'static str> {
    nearest(word, TABLES.iter().map(|table| table.name))
}

/// The key that `leaf`, written in `table`, probably means.
pub(super) fn key(table: &str, leaf: &str) -> Option<&'static Key> {
    let siblings = || KEYS.iter().filter(move |key| key.table() == table);
    let by_leaf = |leaf: &str| siblings().find(|key| key.leaf() == leaf);
    let stem = || siblings().find(|key| leaf.len() > 2 && key.leaf().starts_with(leaf));
    // what another program calls so is meant, even where a key of this table looks like it
    let elsewhere = KEYS.iter().find(|key| key.also_called.contains(&leaf));
    elsewhere
        .or_else(|| nearest(leaf, siblings().map(Key::leaf)).and_then(by_leaf))
        .or_else(stem)
        .or_else(|| KEYS.iter().find(|key| key.leaf() == leaf))
        .or_else(|| {
            // In another table, only a single typing error is plausible.
            let everywhere = within(leaf, KEYS.iter().map(Key::leaf), |length| usize::from(length > 3))?;
            KEYS.iter().find(|key| key.leaf() == everywhere)
        })
}

/// The key that a path with an unknown table probably means: its table is mistyped, or a dot stands for an
/// underscore.
pub(super) fn path(path: &str) -> Option<&'static Key> {
    let (table, rest) = path.split_once('.')?;
    let leaf = rest.replace('.', "_");
    let table = self::table(table)?;
    let siblings = || KEYS.iter().filter(|key| key.table() == table);
    let near = nearest(&leaf, siblings().map(Key::leaf))?;
    siblings().find(|key| key.leaf() == near)
}
