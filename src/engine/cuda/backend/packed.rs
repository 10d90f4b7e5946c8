//! Packed tokens on the device: their arrays, and the rows that are gathered by them.

use super::CudaBackend;
use crate::engine::cuda::batch::PackedWords;
use crate::engine::cuda::device::Device;
use crate::engine::cuda::kernels::next;
use crate::engine::fused::{Gather, Packed};
use crate::engine::memory::Span;

/// Packed rows come in multiples of this, for the library looks for an algorithm for each number of rows.
pub(super) const ROW_STEP: usize = 128;

impl<D: Device> CudaBackend<D> {
    /// See [`Backend::upload_packed`](crate::engine::fused::backend::Backend::upload_packed).
    pub(super) fn take_packed(&mut self, packed: &Packed) {
        let (to, words) = (self.word(0), PackedWords::of(packed));
        self.uploads.take_words(&mut self.stream, words.pack(packed), to);
        self.targets = words.targets();
        self.next.clone_from(&packed.computed);
        self.packed.clone_from(packed);
    }

    /// See [`Backend::gather`](crate::engine::fused::backend::Backend::gather).
    pub(super) fn gather_rows(&mut self, rows: Gather, from: Span, out: Span, width: usize) {
        let addresses = [self.word(PackedWords::of(&self.packed).rows(rows)), self.at(from), self.at(out)];
        next::gather(&mut self.stream, self.packed.rows(rows), addresses, out.element, width);
    }
}
