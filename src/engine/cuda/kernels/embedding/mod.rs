//! Launches of the embedding kernels.

use super::{Gradient, for_residual};
use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::stream::{Stream, int, pointer};
use crate::engine::memory::Element;
use crate::engine::traffic::{F32, Traffic};

/// Threads of a block.
const THREADS: usize = 128;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] = &[("EMBED_THREADS", THREADS as u32)];

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
    /// Rows of the table of embeddings that a token may name.
    pub(in crate::engine::cuda) vocab: usize,
    /// How the residual stream is stored.
    pub(in crate::engine::cuda) residual: Element,
}

impl Tokens {
    /// Tokens of the batch.
    pub(super) fn count(&self) -> usize {
        self.rows * self.cols
    }

    /// What it takes to add the embeddings of all tokens into a residual stream of `c` columns.
    pub(super) fn sums_of_embeddings(&self, c: usize) -> Traffic {
        let read =
            Traffic::of_kernel().reads(self.count(), F32).reads((self.most_distinct() + self.cols) * c, F32);
        read.writes(self.count() * c, self.residual.bytes()).computes(self.count() * c)
    }

    /// The most distinct tokens that there can be. Only the device knows how many there are.
    fn most_distinct(&self) -> usize {
        self.count().min(self.vocab)
    }
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
    let kernel = for_residual(tokens.residual, ["embed", "embed_low"]);
    let stream = stream.stating(tokens.sums_of_embeddings(c));
    stream.launch(kernel, [tokens.count(), 1, 1], THREADS as u32, &[a, b, d, e, int(tokens.cols), int(c)]);
}

/// Adds the gradient of the tokens' embeddings from `dx [rows * cols, c]`, and of the positions' where it is asked for.
pub(in crate::engine::cuda) fn backward<D: Device>(
    stream: &mut Stream<D>,
    tokens: Tokens,
    dx: Gradient,
    dwte: Address,
    dwpe: Option<Address>,
    c: usize,
) {
    let Tokens { inputs, distinct, order, begins, rows, cols, residual, .. } = tokens;
    let (n, most, stored) = (tokens.count(), tokens.most_distinct(), residual.bytes());
    let [inputs, distinct, order, begins] = [inputs, distinct, order, begins].map(pointer);
    let first = dx.low.filter(|_| dx.halves).map(pointer);
    let words_of = [inputs, distinct, order, begins];
    let gradient = || first.into_iter().chain([pointer(dx.at)]);
    let args: Vec<Arg> = words_of.into_iter().chain(gradient()).chain([pointer(dwte), int(c)]).collect();
    // the words: how many distinct tokens, where each begins, their order, and each token once
    let words = Traffic::of_kernel().reads(2 + 2 * most + n, F32);
    let traffic = words.reads(n * c, stored).reads(most * c, F32).writes(most * c, F32).computes(n * c);
    let kernel = match dx.halves {
        true => "embed_backward_tokens_halves",
        false => for_residual(residual, ["embed_backward_tokens", "embed_backward_tokens_low"]),
    };
    // only the device knows the number of distinct tokens
    let grid = [n, c.div_ceil(THREADS), 1];
    stream.stating(traffic).launch(kernel, grid, THREADS as u32, &args);
    let Some(dwpe) = dwpe else { return };
    let rest = [pointer(dwpe), int(rows), int(cols), int(c)];
    let args: Vec<Arg> = gradient().chain(rest).collect();
    let sums = Traffic::of_kernel().reads(cols * c, F32).writes(cols * c, F32);
    let kernel = match dx.halves {
        true => "embed_backward_positions_halves",
        false => for_residual(residual, ["embed_backward_positions", "embed_backward_positions_low"]),
    };
    let stream = stream.stating(sums.reads(n * c, stored).computes(n * c));
    stream.launch(kernel, [cols, 1, 1], THREADS as u32, &args);
}
