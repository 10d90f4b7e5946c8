//! The dimensions that tensors show, of a file that states none.

use super::{Stated, contents, files};
use crate::regular;
use std::path::Path;

/// Embedding of tokens, `[vocab_size, n_embd]`, and that of positions, `[block_size, n_embd]`.
const TOKENS: &str = "wte.weight";
const POSITIONS: &str = "wpe.weight";

/// The dimensions that the shapes of a GPT-2's tensors show: all but the number of heads. `None` for weights in several
/// files, and for others.
#[must_use]
pub fn shown(path: &Path) -> Option<Stated> {
    let [file] = &files(path).ok()?[..] else { return None };
    let tensors = contents(file, &mut regular::open(file).ok()?).ok()??.tensors;
    let of_model =
        || tensors.iter().map(|(name, place)| (name.strip_prefix("transformer.").unwrap_or(name), place));
    let embedding = |wanted: &str| {
        let shape = of_model().find(|(name, _)| *name == wanted).map(|(_, place)| &place.shape[..]);
        shape.and_then(|shape| <[usize; 2]>::try_from(shape).ok())
    };
    let ([vocab_size, n_embd], [block_size, _]) = (embedding(TOKENS)?, embedding(POSITIONS)?);
    let block = |name: &str| name.strip_prefix("h.")?.split_once('.')?.0.parse::<u64>().ok();
    let last = of_model().filter_map(|(name, _)| block(name)).max()?;
    Some(Stated {
        file: file.clone(),
        n_layer: last.checked_add(1),
        n_head: None,
        n_embd: Some(n_embd as u64),
        block_size: Some(block_size as u64),
        vocab_size: Some(vocab_size as u64),
    })
}
