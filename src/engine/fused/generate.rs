//! Logits, of whole sequences and of one more token of some: a layer's queries, keys and values are kept where the pass
//! over a whole sequence leaves them, and the pass over the next token finds them there.

use super::backend::Backend;
use super::pace::Pace;
use super::{Fused, Shape, Tokens};
use crate::engine::{Batch, EngineError, Next};

impl<B: Backend> Fused<B> {
    /// Checks one sequence and brings it to the device.
    pub(super) fn upload_sequence(&mut self, sequence: usize, tokens: &[u32]) -> Result<Shape, EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::Input("logits need at least one token".into()));
        }
        let shape = self.upload(
            &Batch { inputs: tokens, targets: tokens, rows: 1, cols: tokens.len(), first_row: 0 },
            0.0,
        );
        Ok(Shape { tokens: Tokens::Whole { sequence }, ..shape })
    }

    /// Checks the next tokens of some sequences and brings them to the device.
    pub(super) fn upload_next(&mut self, next: &[Next]) -> Result<Shape, EngineError> {
        let (config, n) = (&self.plan.config, next.len());
        let has_room =
            |one: &Next| one.sequence < config.sequences() && one.position < config.dims.block_size;
        let is_first = |i: usize| next[..i].iter().all(|before| before.sequence != next[i].sequence);
        if n == 0 || !next.iter().all(has_room) || !(0..n).all(is_first) {
            let (sequences, block_size) = (config.sequences(), config.dims.block_size);
            let kept = format!("{sequences} sequences of {block_size} tokens are kept");
            return Err(EngineError::Input(format!("{kept}, which these tokens do not continue: {next:?}")));
        }
        let shape = Shape { tokens: Tokens::Next, rows: n, cols: 1, n, c: config.dims.n_embd, drops: false };
        self.backend.upload_next(next);
        Ok(shape)
    }

    /// The forward pass over the tokens at hand, and the logits after each from row `start` on, without the padding.
    pub(super) fn rows_logits(&mut self, shape: Shape, start: usize) -> Result<Vec<f32>, EngineError> {
        let _ = self.forward(shape, &mut Pace::unwatched());
        let (arena, dims) = (self.plan.arena.clone(), self.plan.config.dims);
        let wte = self.head_matrix();
        let mut out = Vec::with_capacity((shape.n - start) * dims.vocab_size);
        for first in (start..shape.n).step_by(arena.chunk) {
            let rows = arena.chunk.min(shape.n - first);
            let logits = arena.logits.head(rows * dims.padded_vocab);
            self.backend.head(arena.ln.slice(first * shape.c, rows * shape.c), wte, logits, shape.c);
            for row in self.backend.download(logits)?.chunks_exact(dims.padded_vocab) {
                out.extend_from_slice(&row[..dims.vocab_size]);
            }
        }
        Ok(out)
    }
}
