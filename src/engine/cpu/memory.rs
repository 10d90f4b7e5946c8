//! The CPU's buffers: one anonymous mapping for each allocation of the plan, handed out as slices.
//!
//! Kernels read some spans and write others. [`Memory::split`] checks that no written span overlaps another one and
//! then lends all of them at once; it is the only place where that takes `unsafe`.

use crate::engine::EngineError;
use crate::engine::memory::{Buffer, Element, MemoryPlan, Span};
use memmap2::{MmapMut, MmapRaw};

/// All allocations of a plan, zero at first; pages are taken from the system when they are first written.
pub(super) struct Memory {
    /// By [`Buffer::index`]; none where the plan has no elements.
    slabs: Vec<Option<Slab>>,
}

/// Spans lent for writing.
type Written<'a, const N: usize> = [&'a mut [f32]; N];

struct Slab {
    /// Raw, for a pointer for writing must not come from a shared view of the same bytes.
    map: MmapRaw,
    len: usize,
}

impl Slab {
    fn new(elements: usize, what: &'static str) -> Result<Option<Self>, EngineError> {
        if elements == 0 {
            return Ok(None);
        }
        let bytes = elements * size_of::<f32>();
        let map = MmapMut::map_anon(bytes).map_err(|_| EngineError::Allocation { what, bytes })?;
        // Large pages save address translations; where they are not to be had, nothing is lost.
        #[cfg(all(target_os = "linux", not(miri)))]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Some(Self { map: map.into(), len: elements }))
    }
}

impl Memory {
    pub(super) fn new(plan: &MemoryPlan) -> Result<Self, EngineError> {
        let buffers = plan.buffers();
        let mut slabs: Vec<_> = buffers.iter().map(|_| None).collect();
        for (buffer, what) in buffers {
            slabs[buffer.index()] = Slab::new(plan.elements(buffer), what)?;
        }
        Ok(Self { slabs })
    }

    /// Bytes of all mappings.
    pub(super) fn bytes(&self) -> usize {
        self.slabs.iter().flatten().map(|slab| slab.map.len()).sum()
    }

    /// Elements of a buffer, 0 where the plan has none.
    pub(super) fn len(&self, buffer: Buffer) -> usize {
        self.slab(buffer).map_or(0, |slab| slab.len)
    }

    fn slab(&self, buffer: Buffer) -> Option<&Slab> {
        self.slabs.get(buffer.index())?.as_ref()
    }

    /// The whole of a buffer.
    pub(super) fn whole(&self, buffer: Buffer) -> Span {
        Span { buffer, element: Element::F32, start: 0, len: self.len(buffer) }
    }

    pub(super) fn read(&self, span: Span) -> &[f32] {
        let start = self.checked(span);
        // SAFETY: `checked` found the span inside its live mapping, which is page-aligned, initialized (anonymous
        // memory is zero) and borrowed shared for as long as the slice.
        unsafe { std::slice::from_raw_parts(start, span.len) }
    }

    /// Lends spans for reading and for writing at once. Panics if a written span overlaps any other: kernels never
    /// work in place except through a single written span.
    pub(super) fn split<const R: usize, const W: usize>(
        &mut self,
        reads: [Span; R],
        writes: [Span; W],
    ) -> ([&[f32]; R], [&mut [f32]; W]) {
        let (reads, writes, []) = self.split_with(reads, writes, []);
        (reads, writes)
    }

    /// Lends spans as [`split`](Self::split) does, with further ones to write.
    pub(super) fn split_with<const R: usize, const W: usize, const S: usize>(
        &mut self,
        reads: [Span; R],
        writes: [Span; W],
        further: [Span; S],
    ) -> ([&[f32]; R], Written<'_, W>, Written<'_, S>) {
        let written = || writes.iter().chain(&further);
        for (i, write) in written().enumerate() {
            let clash = reads.iter().chain(written().take(i)).find(|other| write.overlaps(other));
            assert!(clash.is_none(), "{write:?} is written while {clash:?} is in use");
        }
        let reads = reads.map(|span| {
            let start = self.checked(span);
            // SAFETY: inside a live, initialized mapping; disjoint from every written span (asserted above); the
            // mapping is borrowed mutably for as long as the slices.
            unsafe { std::slice::from_raw_parts(start, span.len) }
        });
        let lend = |span: Span| {
            let start = self.checked(span);
            // SAFETY: inside a live, initialized mapping; disjoint from every other span lent here (asserted above);
            // the mapping is borrowed mutably for as long as the slice.
            unsafe { std::slice::from_raw_parts_mut(start, span.len) }
        };
        (reads, writes.map(lend), further.map(lend))
    }

    /// The address of a span's first element, after a bounds check.
    fn checked(&self, span: Span) -> *mut f32 {
        assert!(span.element == Element::F32, "{span:?}: the CPU computes in fp32");
        let slab = self.slab(span.buffer);
        let slab = slab.unwrap_or_else(|| panic!("{:?} is not part of this plan", span.buffer));
        let end = span.start.checked_add(span.len);
        assert!(end.is_some_and(|end| end <= slab.len), "{span:?} exceeds its buffer of {}", slab.len);
        // Only ever written through slices that `split` makes from an exclusive borrow.
        slab.map.as_mut_ptr().cast::<f32>().wrapping_add(span.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::{Activations, MemoryConfig, Mode, Target};
    use crate::engine::optimizer::OptimizerKind;
    use crate::model::Dims;
    use crate::recipe::{Attention, Precision};

    fn memory() -> Memory {
        let dims =
            Dims { n_layer: 1, n_head: 1, n_embd: 16, block_size: 8, vocab_size: 10, padded_vocab: 10 };
        let (precision, attention) = (Precision::Fp32, Attention::Flash);
        let mode = Mode::Train(OptimizerKind::AdamW);
        let config = MemoryConfig {
            dims,
            micro_batch: 1,
            precision,
            attention,
            target: Target::Cpu { threads: 1 },
            mode,
            activations: Activations::default(),
        };
        Memory::new(&MemoryPlan::new(config)).expect("small buffers can be allocated")
    }

    fn span(start: usize, len: usize) -> Span {
        Span { buffer: Buffer::Parameters, element: Element::F32, start, len }
    }

    #[test]
    fn disjoint_spans_are_lent_together() {
        let mut memory = memory();
        let ([a], [b, c]) = memory.split([span(0, 4)], [span(4, 4), span(8, 4)]);
        b.copy_from_slice(&[1.0; 4]);
        c.copy_from_slice(a);
        assert_eq!(memory.read(span(2, 4)), [0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    #[should_panic(expected = "is written while")]
    fn overlapping_writes_are_refused() {
        memory().split([span(0, 5)], [span(4, 4)]);
    }

    #[test]
    #[should_panic(expected = "is not part of this plan")]
    fn absent_buffers_are_refused() {
        memory().read(Span { buffer: Buffer::Low, element: Element::F32, start: 0, len: 1 });
    }
}
