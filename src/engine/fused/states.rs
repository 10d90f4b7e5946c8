//! Parameters, gradients and optimizer states as whole buffers, whichever rank keeps which part of a state.

use super::Fused;
use super::backend::Backend;
use crate::engine::memory::{Buffer, MemoryPlan, Span};
use crate::engine::{EngineError, State, first_not_finite, flat_index};
use std::borrow::Cow;
use std::ops::Range;

/// Elements of these parts.
fn elements(parts: &[Range<usize>]) -> usize {
    parts.iter().map(ExactSizeIterator::len).sum()
}

/// The places that the ranks' elements of an optimizer's state have among those of all ranks, in the order of ranks:
/// the ranks' shares of the layout come in this order too.
fn places(plan: &MemoryPlan, state: usize) -> Vec<Range<usize>> {
    let whole = std::iter::once(0..plan.layout.len).collect();
    let mut end = 0;
    let place = |owned: Range<usize>| {
        let start = end;
        end += elements(&plan.parts_of(state, &owned));
        start..end
    };
    plan.owners().unwrap_or(whole).into_iter().map(place).collect()
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
        match self.buffer(state)? {
            Buffer::Optimizer(index) if self.plan.is_sharded() => Ok(Cow::Owned(self.collect(index)?)),
            buffer => self.download(self.plan.whole(buffer)),
        }
    }

    pub(super) fn write_state(&mut self, state: State, values: &[f32]) -> Result<(), EngineError> {
        let buffer = self.buffer(state)?;
        // states are equal by name; what this one covers, the engine's own rule says
        let own = match buffer {
            Buffer::Optimizer(index) => State::Optimizer(&self.plan.states()[index]),
            _ => state,
        };
        let len = own.len_in(&self.plan.layout);
        assert!(values.len() == len, "{} values for {state}, which has {len}", values.len());
        let span = self.plan.whole(buffer);
        match buffer {
            Buffer::Optimizer(index) => {
                let place = places(&self.plan, index)[self.plan.shard.index].clone();
                // a rank may have nothing of a state
                if span.len > 0 {
                    self.backend.write(span, &values[place])?;
                }
            }
            _ => self.backend.write(span, values)?,
        }
        if state == State::Parameters {
            self.backend.refresh_low();
        }
        Ok(())
    }

    pub(super) fn find_not_finite(&mut self, state: State) -> Result<Option<usize>, EngineError> {
        let buffer = self.buffer(state)?;
        let found = first_not_finite(&self.download(self.plan.whole(buffer))?);
        let found = match buffer {
            Buffer::Optimizer(state) => found.map(|index| flat_index(self.plan.parts(state), index)),
            _ => found,
        };
        if !self.is_sharded(state) {
            return Ok(found);
        }
        let found = found.map_or(u64::MAX, |index| index as u64);
        let all = self.comm.exchange(&found.to_le_bytes())?;
        let all = all.iter().filter_map(|bytes| Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?)));
        Ok(all.min().filter(|&index| index < u64::MAX).map(|index| index as usize))
    }

    /// All ranks' elements of a sharded state of the optimizer, on rank 0. They come in pieces.
    fn collect(&mut self, state: usize) -> Result<Vec<f32>, EngineError> {
        let piece = self.piece;
        let places = places(&self.plan, state);
        let longest = places.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let own = self.plan.whole(Buffer::Optimizer(state));
        let len = if self.comm.rank() == 0 { places.last().map_or(0, |last| last.end) } else { 0 };
        let mut whole = vec![0.0; len];
        for first in (0..longest).step_by(piece) {
            let mine = first.min(own.len)..(first + piece).min(own.len);
            let values = self.download(own.slice(mine.start, mine.len()))?;
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            for (place, bytes) in places.iter().zip(self.comm.gather(&bytes)?) {
                let to = whole[place.clone()].iter_mut().skip(first);
                for (to, value) in to.zip(bytes.as_chunks().0) {
                    *to = f32::from_le_bytes(*value);
                }
            }
        }
        Ok(whole)
    }
}
