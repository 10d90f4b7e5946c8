//! Optimizer states that are sharded over the ranks, read as one.

use super::Fused;
use super::backend::Backend;
use crate::engine::memory::Span;
use crate::engine::{EngineError, State};

impl<B: Backend> Fused<B> {
    /// Whether each rank keeps a part of this buffer only.
    pub(super) fn is_sharded(&self, state: State) -> bool {
        self.plan.is_sharded() && matches!(state, State::Optimizer(_))
    }

    /// All ranks' parts of a sharded buffer, on rank 0. They come in pieces, so that no other rank needs memory for the
    /// whole.
    pub(super) fn collect(&mut self, own: Span) -> Result<Vec<f32>, EngineError> {
        const PIECE: usize = 1 << 20;
        let parts = self.plan.owners().expect("a sharded plan has owners");
        let mut whole = if self.comm.rank() == 0 { vec![0.0; self.plan.layout.len] } else { Vec::new() };
        for first in (0..parts[0].len()).step_by(PIECE) {
            let piece = |len: usize| first.min(len)..(first + PIECE).min(len);
            let mine = piece(own.len);
            let values = self.backend.download(own.slice(mine.start, mine.len()))?;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            for (part, bytes) in parts.iter().zip(self.comm.gather(&bytes)?) {
                let (words, _) = bytes.as_chunks();
                for (to, word) in whole[part.clone()][piece(part.len())].iter_mut().zip(words) {
                    *to = f32::from_le_bytes(*word);
                }
            }
        }
        Ok(whole)
    }
}
