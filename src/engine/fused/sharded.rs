//! Buffers of which each rank keeps a part, as one.

use super::Fused;
use super::backend::Backend;
use crate::comm;
use crate::engine::memory::Span;
use crate::engine::{EngineError, State};

impl<B: Backend> Fused<B> {
    /// Whether the ranks keep a part each of this buffer.
    pub(super) fn is_divided(&self, state: State) -> bool {
        self.plan.shard.count > 1 && matches!(state, State::FirstMoment | State::SecondMoment)
    }

    /// All ranks' parts of a divided buffer, on rank 0. In pieces, so that nobody else needs memory for the whole.
    pub(super) fn collect(&mut self, own: Span) -> Result<Vec<f32>, EngineError> {
        const PIECE: usize = 1 << 20;
        let parts = comm::parts(self.plan.layout.len, self.comm.size());
        let mut whole = if self.comm.rank() == 0 { vec![0.0; self.plan.layout.len] } else { Vec::new() };
        for first in (0..parts[0].len()).step_by(PIECE) {
            let piece = |len: usize| first.min(len)..(first + PIECE).min(len);
            let mine = piece(own.len);
            let values = self.backend.download(own.part(mine.start, mine.len()))?;
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
