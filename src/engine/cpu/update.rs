//! The update of a rank: its part of the flat buffers, and the others' parts from them.

use super::{CpuBackend, optimizer};
use crate::comm::CommError;
use crate::engine::Update;
use crate::engine::fused::backend::Backend;
use crate::engine::memory::{Buffer, Span};
use std::ops::Range;

impl CpuBackend {
    /// What the ranks made of a call. After a failure there are no results.
    pub(super) fn note<T>(&mut self, result: Result<T, CommError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.failed.get_or_insert(error);
                None
            }
        }
    }

    /// The sum of the squares of all gradients.
    pub(super) fn squares(&mut self) -> Result<f64, CommError> {
        let gradients = self.memory.read(self.within(Buffer::Gradients, &self.owned()));
        let squares = optimizer::sum_of_squares(&self.team, gradients);
        if self.owners.is_some() { self.comm.sum(squares) } else { Ok(squares) }
    }

    /// AdamW with the gradients times `scale`, and zeros for the gradients.
    pub(super) fn apply(&mut self, update: &Update, scale: f64, decayed: usize) {
        let own = self.owned();
        let p = self.within(Buffer::Parameters, &own);
        let g = self.within(Buffer::Gradients, &own);
        let [m, v] = [Buffer::FirstMoment, Buffer::SecondMoment].map(|buffer| self.memory.whole(buffer));
        let decayed = decayed.clamp(own.start, own.end) - own.start;
        let low = match self.memory.len(Buffer::Low).min(decayed) {
            0 => p.head(0),
            _ => Span { buffer: Buffer::Low, ..p.head(decayed) },
        };
        let ([], [p, g, m, v, low]) = self.memory.split([], [p, g, m, v, low]);
        let buffers = optimizer::Buffers { p, g, m, v };
        optimizer::adamw(&self.team, self.precision, buffers, low, update, scale, decayed);
        let Some(owners) = &self.owners else { return };
        let [p, g] = [Buffer::Parameters, Buffer::Gradients].map(|buffer| self.memory.whole(buffer));
        let ([], [p, g]) = self.memory.split([], [p, g]);
        g.fill(0.0);
        let gathered = self.comm.all_gather(p, owners);
        self.note(gathered);
        self.refresh_low();
    }

    /// The elements that this rank updates.
    fn owned(&self) -> Range<usize> {
        match &self.owners {
            None => 0..self.memory.len(Buffer::Parameters),
            Some(owners) => owners[self.comm.rank()].clone(),
        }
    }

    fn within(&self, buffer: Buffer, range: &Range<usize>) -> Span {
        self.memory.whole(buffer).part(range.start, range.len())
    }
}
