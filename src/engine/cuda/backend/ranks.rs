//! Collectives of several ranks: gradients and losses are summed while the backward pass goes on, and each
//! rank may update only its share of the parameters.

use super::CudaBackend;
use crate::comm::Comm;
use crate::engine::cuda::device::{Collective, Device, Recording};
use crate::engine::cuda::kernels::optimizer;
use crate::engine::cuda::scratch::sums;
use crate::engine::fused::backend::{Backend, Sequence};
use crate::engine::memory::{Buffer, Element, MemoryPlan, Span};
use crate::engine::traffic::{F32, F64, Traffic, Unit};
use std::ops::Range;
use std::sync::Arc;

/// The ranks that train together.
pub(super) struct RankGroup {
    comm: Arc<dyn Comm>,
    /// The range of the flat buffers that each rank updates; `None` if each rank updates all of them.
    owners: Option<Vec<Range<usize>>>,
}

impl RankGroup {
    pub(super) fn new(plan: &MemoryPlan, comm: Arc<dyn Comm>) -> Self {
        Self { comm, owners: plan.owners() }
    }
}

/// The part of each owner's range that lies in `within`, counted from the beginning of `within`.
fn inside(owners: &[Range<usize>], within: &Range<usize>) -> Vec<Range<usize>> {
    let place = |element: usize| element.clamp(within.start, within.end) - within.start;
    owners.iter().map(|owner| place(owner.start)..place(owner.end)).collect()
}

/// Elements of all owners together.
fn all(owners: &[Range<usize>]) -> usize {
    owners.iter().map(ExactSizeIterator::len).sum()
}

impl<D: Device> CudaBackend<D> {
    fn owners(&self) -> Option<&[Range<usize>]> {
        self.ranks.as_ref()?.owners.as_deref()
    }

    fn together(&mut self, collective: &Collective) {
        let (name, bytes) = match collective {
            Collective::Sum { len, .. } => ("sum over ranks", len * F32),
            Collective::SumDoubles { len, .. } => ("sum over ranks", len * F64),
            Collective::SumToOwners { owners, .. } => ("sum to owners", all(owners) * F32),
            Collective::Gather { owners, .. } => ("gather from owners", all(owners) * F32),
        };
        let traffic = Traffic::by(Unit::Link).reads(bytes, 1).writes(bytes, 1);
        self.stream.noted(|| name.into(), traffic, |device| device.collective(collective));
    }

    fn join(&mut self) {
        self.stream.run(D::join);
    }

    /// Begins to sum a range of the gradients over all ranks.
    pub(super) fn begin_sum(&mut self, gradients: Span) {
        if self.ranks.is_none() {
            return;
        }
        let (at, len) = (self.at(gradients), gradients.len);
        let collective = match self.owners() {
            None => Collective::Sum { at, len },
            Some(owners) => {
                let owners = inside(owners, &(gradients.start..gradients.start + len));
                Collective::SumToOwners { at, owners }
            }
        };
        self.together(&collective);
    }

    /// Begins to sum the losses too, and makes later work wait for all sums.
    pub(super) fn end_sums(&mut self) {
        if self.ranks.is_some() {
            let at = self.total(sums::LOSS);
            self.together(&Collective::SumDoubles { at, len: 1 });
            self.join();
        }
    }

    /// Waits for the hosts of the other ranks, not for any device. All of them have then requested the
    /// collectives of this step, so a device can only wait for the work of another, and a rank that has not
    /// arrived is known by name.
    pub(super) fn meet(&mut self) {
        if let Some(RankGroup { comm, .. }) = &self.ranks {
            self.stream.run(|_| Ok(comm.barrier()?));
        }
    }

    /// Completes the sum of squares if each rank has only the squares of its share.
    pub(super) fn add_up_squares(&mut self) {
        if self.plan.is_sharded() {
            let at = optimizer::partials(self.total(0));
            self.together(&Collective::SumDoubles { at, len: sums::PARTIAL_COUNT });
            self.join();
        }
    }

    /// Copies the other ranks' parameters to this rank, and clears their gradients.
    pub(super) fn gather_parameters(&mut self) {
        let own = self.plan.owned();
        let Some(owners) = self.owners().map(<[_]>::to_vec) else { return };
        let [parameters, gradients] =
            [Buffer::Parameters, Buffer::Gradients].map(|buffer| self.bases[buffer.index()]);
        self.together(&Collective::Gather { at: parameters, owners });
        let size = Element::F32.bytes();
        for rest in [0..own.start, own.end..self.plan.layout.len] {
            let at = gradients.offset(rest.start * size);
            let traffic = Traffic::of_kernel().writes(rest.len(), size);
            self.stream.noted(|| "clear".into(), traffic, |device| device.clear(at, rest.len() * size));
        }
        self.join();
        self.refresh_low();
    }

    /// Whether a sequence contains collectives.
    fn adds_up(&self, sequence: Sequence) -> bool {
        matches!(sequence, Sequence::Train { last: true, .. }) && self.ranks.is_some()
    }

    pub(super) fn can_record(&mut self, sequence: Sequence) -> bool {
        !self.adds_up(sequence) || self.stream.device_mut().records_collectives()
    }

    /// Returns this rank's recording only if all ranks have one, because a collective must come from
    /// recordings on all ranks or on none.
    pub(super) fn kept_by_all(&mut self, sequence: Sequence, mine: Option<Recording>) -> Option<Recording> {
        let ranks = self.ranks.as_ref().filter(|_| self.adds_up(sequence));
        let Some(comm) = ranks.map(|ranks| ranks.comm.clone()) else { return mine };
        let answers = self.stream.run(|_| Ok(comm.exchange(&[u8::from(mine.is_some())])?));
        mine.filter(|_| answers.is_some_and(|all| all.iter().all(|answer| answer[..] == [1])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_divided_among_its_owners() {
        let owners = [0..32, 32..64, 64..70];
        assert_eq!(inside(&owners, &(0..70)), owners);
        assert_eq!(inside(&owners, &(10..40)), [0..22, 22..30, 30..30]);
        assert_eq!(inside(&owners, &(65..70)), [0..0, 0..0, 0..5]);
    }
}
