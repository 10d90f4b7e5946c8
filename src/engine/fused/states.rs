//! Parameters, gradients and optimizer states as whole flat buffers, whatever parts of a state exist and whichever rank
//! keeps them.

use super::Fused;
use super::backend::Backend;
use crate::engine::memory::{Buffer, MemoryPlan, Span};
use crate::engine::{EngineError, State, first_not_finite};
use std::borrow::Cow;
use std::ops::Range;

/// Where the elements of a buffer lie in the flat layout.
fn parts(plan: &MemoryPlan, buffer: Buffer) -> Vec<Range<usize>> {
    match buffer {
        Buffer::Optimizer(state) => plan.parts(state).to_vec(),
        _ => std::iter::once(0..plan.elements(buffer)).collect(),
    }
}

/// Copies what a buffer holds of some parts of the flat layout, its elements from `first` on, to their places there.
fn place(whole: &mut [f32], parts: &[Range<usize>], mut first: usize, mut values: &[f32]) {
    for part in parts {
        if first >= part.len() {
            first -= part.len();
            continue;
        }
        let count = values.len().min(part.len() - first);
        let (here, rest) = values.split_at(count);
        whole[part.start + first..][..count].copy_from_slice(here);
        (first, values) = (0, rest);
    }
}

/// The place in the flat layout of an element of a buffer that holds these parts.
fn flat_index(parts: &[Range<usize>], mut index: usize) -> usize {
    for part in parts {
        if index < part.len() {
            return part.start + index;
        }
        index -= part.len();
    }
    panic!("the buffer has no element {index} behind its last part")
}

impl<B: Backend> Fused<B> {
    /// Whether each rank keeps a part of this buffer only.
    fn is_sharded(&self, state: State) -> bool {
        self.plan.is_sharded() && matches!(state, State::Optimizer(_))
    }

    /// The buffer of a state, of which this rank may have a part only, or nothing.
    fn buffer(&self, state: State) -> Result<Buffer, EngineError> {
        let buffer = match state {
            State::Parameters => Some(Buffer::Parameters),
            State::Gradients => Some(Buffer::Gradients),
            State::Optimizer(state) => {
                self.plan.states().iter().position(|one| one == state).map(Buffer::Optimizer)
            }
        };
        let exists = |buffer: &Buffer| match buffer {
            Buffer::Optimizer(_) => true,
            _ => self.plan.elements(*buffer) > 0,
        };
        match buffer.filter(exists) {
            Some(buffer) => Ok(buffer),
            None if self.plan.optimizer().is_some() => {
                Err(EngineError::Unsupported(format!("the optimizer of this engine does not keep {state}")))
            }
            None => Err(EngineError::Unsupported(format!("an engine for inference does not keep {state}"))),
        }
    }

    /// What a span holds; a rank may have nothing of a state.
    fn download(&mut self, span: Span) -> Result<Cow<'_, [f32]>, EngineError> {
        if span.len == 0 { Ok(Cow::Borrowed(&[])) } else { self.backend.download(span) }
    }

    pub(super) fn read_state(&mut self, state: State) -> Result<Cow<'_, [f32]>, EngineError> {
        let buffer = self.buffer(state)?;
        if self.is_sharded(state) {
            return Ok(Cow::Owned(self.collect(buffer)?));
        }
        let (parts, len) = (parts(&self.plan, buffer), self.plan.layout.len);
        let values = self.download(self.plan.whole(buffer))?;
        if parts.len() == 1 && parts[0] == (0..len) {
            return Ok(values);
        }
        let mut whole = vec![0.0; len];
        place(&mut whole, &parts, 0, &values);
        Ok(Cow::Owned(whole))
    }

    pub(super) fn write_state(&mut self, state: State, values: &[f32]) -> Result<(), EngineError> {
        match self.buffer(state)? {
            Buffer::Optimizer(index) => {
                for part in self.plan.parts(index).to_vec() {
                    self.backend.write(self.plan.state(index, &part), &values[part])?;
                }
            }
            buffer => self.backend.write(self.plan.whole(buffer), values)?,
        }
        if state == State::Parameters {
            self.backend.refresh_low();
        }
        Ok(())
    }

    pub(super) fn find_not_finite(&mut self, state: State) -> Result<Option<usize>, EngineError> {
        let buffer = self.buffer(state)?;
        let found = first_not_finite(&self.download(self.plan.whole(buffer))?);
        let found = found.map(|index| flat_index(&parts(&self.plan, buffer), index));
        if !self.is_sharded(state) {
            return Ok(found);
        }
        let found = found.map_or(u64::MAX, |index| index as u64);
        let all = self.comm.exchange(&found.to_le_bytes())?;
        let all = all.iter().filter_map(|bytes| Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?)));
        Ok(all.min().filter(|&index| index < u64::MAX).map(|index| index as usize))
    }

    /// All ranks' parts of a sharded state, on rank 0. They come in pieces, so that no other rank needs memory for the
    /// whole.
    fn collect(&mut self, buffer: Buffer) -> Result<Vec<f32>, EngineError> {
        const PIECE: usize = 1 << 20;
        let Buffer::Optimizer(state) = buffer else { panic!("{buffer:?} is not sharded") };
        let owners = self.plan.owners().expect("a sharded plan has owners");
        let parts: Vec<_> = owners.iter().map(|owned| self.plan.parts_of(state, owned)).collect();
        let len = |parts: &Vec<Range<usize>>| parts.iter().map(ExactSizeIterator::len).sum::<usize>();
        let longest = parts.iter().map(len).max().unwrap_or(0);
        let own = self.plan.whole(buffer);
        let mut whole = if self.comm.rank() == 0 { vec![0.0; self.plan.layout.len] } else { Vec::new() };
        for first in (0..longest).step_by(PIECE) {
            let mine = first.min(own.len)..(first + PIECE).min(own.len);
            let values = self.download(own.slice(mine.start, mine.len()))?;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            for (parts, bytes) in parts.iter().zip(self.comm.gather(&bytes)?) {
                let values: Vec<f32> = bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect();
                place(&mut whole, parts, first, &values);
            }
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_buffer_find_their_places() {
        let parts = [2..5, 7..8, 10..14];
        let held: Vec<f32> = (0..8).map(|i| i as f32 + 1.0).collect();
        for piece in 1..9 {
            let mut whole = [0.0; 15];
            for (i, values) in held.chunks(piece).enumerate() {
                place(&mut whole, &parts, i * piece, values);
            }
            let expected = [0., 0., 1., 2., 3., 0., 0., 4., 0., 0., 5., 6., 7., 8., 0.];
            assert_eq!(whole, expected, "in pieces of {piece}");
        }
        let places: Vec<_> = (0..8).map(|i| flat_index(&parts, i)).collect();
        assert_eq!(places, [2, 3, 4, 7, 10, 11, 12, 13]);
    }
}
