//! Launches of the embedding kernels.

use super::for_residual;
use crate::engine::cuda::device::{Address, Device};
use crate::engine::cuda::stream::{Stream, int, pointer};
use crate::engine::memory::Element;

/// `EMBED_THREADS` of the source.
const THREADS: usize = 128;

/// Rows of tokens in device memory.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Tokens {
    pub(in crate::engine::cuda) inputs: Address,
    pub(in crate::engine::cuda) distinct: Address,
    pub(in crate::engine::cuda) order: Address,
    pub(in crate::engine::cuda) begins: Address,
    /// Number of sequences.
    pub(in crate::engine::cuda) rows: usize,
    /// Tokens per sequence.
    pub(in crate::engine::cuda) cols: usize,
    /// How the residual stream is stored.
    pub(in crate::engine::cuda) residual: Element,
}

/// Adds token and position embeddings into `out [rows * cols, c]`.
pub(in crate::engine::cuda) fn forward<D: Device>(
    stream: &mut Stream<D>,
    tokens: Tokens,
    [wte, wpe, out]: [Address; 3],
    c: usize,
) {
    let args = [tokens.inputs, wte, wpe, out].map(pointer);
    let [a, b, d, e] = args;
    let grid = [tokens.rows * tokens.cols, 1, 1];
    let kernel = for_residual(tokens.residual, ["embed", "embed_low"]);
    stream.launch(kernel, grid, THREADS as u32, &[a, b, d, e, int(tokens.cols), int(c)]);
}

/// Adds the gradients of both embeddings, from `dx [rows * cols, c]`.
pub(in crate::engine::cuda) fn backward<D: Device>(
    stream: &mut Stream<D>,
    tokens: Tokens,
    [dx, dwte, dwpe]: [Address; 3],
    c: usize,
) {
    let Tokens { inputs, distinct, order, begins, rows, cols, residual } = tokens;
    let [inputs, distinct, order, begins] = [inputs, distinct, order, begins].map(pointer);
    let args = [inputs, distinct, order, begins, pointer(dx), pointer(dwte), int(c)];
    // only the device knows the number of distinct tokens
    let kernel = for_residual(residual, ["embed_backward_tokens", "embed_backward_tokens_low"]);
    stream.launch(kernel, [rows * cols, c.div_ceil(THREADS), 1], THREADS as u32, &args);
    let args = [pointer(dx), pointer(dwpe), int(rows), int(cols), int(c)];
    let kernel = for_residual(residual, ["embed_backward_positions", "embed_backward_positions_low"]);
    stream.launch(kernel, [cols, 1, 1], THREADS as u32, &args);
}
