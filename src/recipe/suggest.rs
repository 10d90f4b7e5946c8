//! The valid name that was probably meant.

use super::keys::{KEYS, Key, TABLES};
use strsim::damerau_levenshtein;

/// Names of other trainers' options, for people who come from there.
const ELSEWHERE: &[(&str, &str)] = &[
    ("learning_rate", "optimizer.lr"),
    ("max_lr", "optimizer.lr"),
    ("min_lr", "schedule.min_lr_ratio"),
    ("grad_clip", "optimizer.clip_norm"),
    ("gradient_clip", "optimizer.clip_norm"),
    ("beta1", "optimizer.betas"),
    ("beta2", "optimizer.betas"),
    ("batch_size", "batch.micro_batch"),
    ("total_batch_size", "batch.total_tokens"),
    ("gradient_accumulation_steps", "batch.total_tokens"),
    ("dtype", "compute.precision"),
    ("n_ctx", "model.block_size"),
    ("context_length", "model.block_size"),
    ("max_iters", "schedule.max_steps"),
    ("warmup_iters", "schedule.warmup_steps"),
    ("lr_decay_iters", "schedule.max_steps"),
    ("eval_interval", "eval.every"),
    ("eval_iters", "eval.batches"),
    ("hidden_size", "model.n_embd"),
    ("d_model", "model.n_embd"),
    ("num_layers", "model.n_layer"),
    ("num_heads", "model.n_head"),
];

/// The candidate nearest to `word`, if one is near enough to be a slip of the keyboard.
pub(super) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    within(word, candidates, |length| (length / 3).max(1))
}

/// The candidate nearest to `word` within a distance that depends on the longer one's length.
fn within<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str>,
    limit: impl Fn(usize) -> usize,
) -> Option<&'a str> {
    // Longer words are no slips, and the distance costs their length squared.
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

/// The table that was probably meant.
pub(super) fn table(word: &str) -> Option<&'static str> {
    nearest(word, TABLES.iter().copied())
}

/// The key that was probably meant by `leaf` written in `table`.
pub(super) fn key(table: &str, leaf: &str) -> Option<&'static Key> {
    let siblings = || KEYS.iter().filter(move |key| key.table() == table);
    let by_leaf = |leaf: &str| siblings().find(|key| key.leaf() == leaf);
    let stem = || siblings().find(|key| leaf.len() > 2 && key.leaf().starts_with(leaf));
    nearest(leaf, siblings().map(Key::leaf))
        .and_then(by_leaf)
        .or_else(stem)
        .or_else(|| KEYS.iter().find(|key| key.leaf() == leaf))
        .or_else(|| {
            ELSEWHERE.iter().find(|(name, _)| *name == leaf).and_then(|(_, path)| super::keys::find(path))
        })
        .or_else(|| {
            // Far from home, only a single slip is plausible.
            let everywhere = within(leaf, KEYS.iter().map(Key::leaf), |length| usize::from(length > 3))?;
            KEYS.iter().find(|key| key.leaf() == everywhere)
        })
}

/// The key that was probably meant by a path whose table does not exist: a mistyped table, or an underscore taken for
/// the end of one.
pub(super) fn path(path: &str) -> Option<&'static Key> {
    let (table, rest) = path.split_once('.')?;
    let leaf = rest.replace('.', "_");
    let table = self::table(table)?;
    let siblings = || KEYS.iter().filter(|key| key.table() == table);
    let near = nearest(&leaf, siblings().map(Key::leaf))?;
    siblings().find(|key| key.leaf() == near)
}
