//! What the reference engine allocates, as an estimate: dfdx asks for memory as it goes, nothing is laid out
//! beforehand.
//!
//! The tape keeps what the backward pass reads and, until it is done, the gradient of every intermediate tensor. The
//! counts of tensors were found by measuring peaks over many shapes; `tests/verify_memory.rs` measures them again.

use crate::model::{Dims, ParamLayout};

/// Peak bytes of training by kind, for micro-batches of `rows` whole sequences and an optimizer with so many `states`,
/// with or without dropout. At most half too high where the model is large enough for memory to matter, and never too
/// low.
pub fn bytes(dims: &Dims, rows: usize, states: usize, dropout: bool) -> Vec<(&'static str, usize)> {
    let parameters = ParamLayout::new(dims).len * size_of::<f32>();
    let embedding = dims.padded_vocab * dims.n_embd * size_of::<f32>();
    vec![
        // the flat buffer and the tensors made of it
        ("parameters", 2 * parameters),
        // the flat buffer and what the backward pass returns
        ("gradients", 2 * parameters),
        ("moments", states * parameters),
        ("low_precision_copy", 0),
        ("activations", tape_elements(dims, rows, dropout) * size_of::<f32>()),
        // copies of the tied embedding: its used rows, their gradient, the gradient on its way to the flat buffer
        ("scratch", 3 * embedding + OVERHEAD),
    ]
}

/// Elements on the tape at its largest, gradients included: four tensors as large as the logits, and per layer
/// forty of the residual stream's size and five of the attention matrix's. Dropout adds, for each tensor that it acts
/// on, its factors, the product and two gradients.
pub fn tape_elements(dims: &Dims, rows: usize, dropout: bool) -> usize {
    let Dims { n_layer, n_head, n_embd, block_size, vocab_size, .. } = *dims;
    let dropped = if dropout { 4 } else { 0 };
    let per_layer = (40 + 2 * dropped) * n_embd + (5 + dropped) * n_head * block_size;
    rows * block_size * (4 * vocab_size + n_layer * per_layer + (10 + dropped) * n_embd)
}

/// Packing buffers of matrix products and the like.
const OVERHEAD: usize = 4 << 20;
