//! Ugly numbers: sizes with few factors of two leave parts of every tile of a matrix unit empty.

use super::{Remark, Subject};
use crate::model::{Dims, ParamLayout};
use crate::wording::count;

/// Widths and vocabularies should be multiples of this.
const TILE: usize = 64;
/// What a vocabulary is padded to.
const VOCAB: usize = 128;
/// The width of a head should be a multiple of this.
const HEAD: usize = 16;
/// Rows per step should be a multiple of this, so that they divide among micro-batches and ranks.
const ROWS: usize = 8;

/// An embedding whose rows are no multiple of the tile.
pub(super) fn vocab(subject: &Subject) -> Remark {
    let dims = subject.plan.memory.dims;
    if dims.padded_vocab.is_multiple_of(TILE) {
        return None;
    }
    let nice = dims.vocab_size.next_multiple_of(VOCAB);
    let cost = cost(&dims, Dims { padded_vocab: nice, ..dims });
    Some((
        "model.vocab_multiple",
        format!("the embedding has {} rows, not a multiple of {TILE}", dims.padded_vocab),
        format!("model.vocab_multiple = {VOCAB} pads it to {nice} rows: {cost}, and the loss stays the same"),
    ))
}

/// Whether the width and the heads come with weights, which no other ones fit.
fn is_given(subject: &Subject) -> bool {
    subject.recipe.model.init_from.is_some()
}

/// A residual stream whose width is no multiple of the tile.
pub(super) fn width(subject: &Subject) -> Remark {
    let dims = subject.plan.memory.dims;
    if dims.n_embd.is_multiple_of(TILE) || is_given(subject) {
        return None;
    }
    // the heads must still divide it
    let step = TILE / gcd(TILE, dims.n_head) * dims.n_head;
    let nice = nearest_multiple(dims.n_embd, step);
    let cost = cost(&dims, Dims { n_embd: nice, ..dims });
    Some((
        "model.n_embd",
        format!("model.n_embd = {} is not a multiple of {TILE}", dims.n_embd),
        format!(
            "the nearest width that is, and divides among {}, is {nice}: {cost}",
            count(dims.n_head, "head")
        ),
    ))
}

/// Heads whose width is no multiple of half a tile, or an odd number of them.
pub(super) fn heads(subject: &Subject) -> Remark {
    let Dims { n_head, n_embd, .. } = subject.plan.memory.dims;
    let is_nice = |heads: usize| {
        n_embd.is_multiple_of(heads)
            && (n_embd / heads).is_multiple_of(HEAD)
            && (heads == 1 || heads.is_multiple_of(2))
    };
    if is_nice(n_head) || is_given(subject) {
        return None;
    }
    let message = format!(
        "model.n_head = {n_head} and heads of {} have few factors of two",
        count(n_embd / n_head, "channel")
    );
    let help = match (1..=n_embd).filter(|&heads| is_nice(heads)).min_by_key(|heads| heads.abs_diff(n_head)) {
        Some(heads) => format!(
            "model.n_head = {heads} makes heads of {} channels, at no cost in parameters",
            n_embd / heads
        ),
        None => format!("choose a width that is a multiple of {HEAD} times an even number of heads"),
    };
    Some(("model.n_head", message, help))
}

/// A batch that does not divide well.
pub(super) fn batch(subject: &Subject) -> Remark {
    let (plan, dims) = (subject.plan, subject.plan.memory.dims);
    let rows = plan.batch.rows_per_step;
    if rows > ROWS && !rows.is_multiple_of(ROWS) {
        let nice = nearest_multiple(rows, ROWS);
        return Some((
            "batch.total_tokens",
            format!(
                "{} tokens per step are {rows} rows, not a multiple of {ROWS}",
                plan.batch.tokens_per_step
            ),
            format!(
                "batch.total_tokens = {} makes {nice} rows, at no cost in parameters",
                nice * dims.block_size
            ),
        ));
    }
    let tokens = plan.batch.micro_batch * dims.block_size;
    if tokens.is_multiple_of(TILE) {
        return None;
    }
    let nice = nearest_multiple(dims.block_size, TILE);
    let cost = cost(&dims, Dims { block_size: nice, ..dims });
    Some((
        "model.block_size",
        format!(
            "a forward pass takes {} x {} = {tokens} tokens, not a multiple of {TILE}",
            plan.batch.micro_batch, dims.block_size
        ),
        format!("the nearest context that is a multiple is model.block_size = {nice}: {cost}"),
    ))
}

/// What other dimensions cost in parameters, padding included.
pub(super) fn cost(old: &Dims, new: Dims) -> String {
    let count = |dims| {
        let layout = ParamLayout::new(dims);
        layout.count(true).0 + layout.count(false).0
    };
    let (old, new) = (count(old), count(&new));
    let percent = old.abs_diff(new) as f64 / old as f64 * 100.0;
    let more = if new >= old { "more" } else { "fewer" };
    format!("{} parameters {more} ({percent:.2} %)", old.abs_diff(new))
}

fn nearest_multiple(number: usize, of: usize) -> usize {
    ((number + of / 2) / of).max(1) * of
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
