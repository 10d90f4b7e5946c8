//! Host memory for kernels, with fences that show writes past its ends.

use crate::engine::cuda::device::Address;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The alignment that `cudaMalloc` guarantees.
const ALIGNMENT: usize = 256;
/// Bytes of a fence on either side of an allocation: a multiple of the alignment, and large enough for the
/// last tile of a kernel that ignores where the rows end.
const FENCE: usize = 64 << 10;
/// The content of fences: NaN in every floating-point format.
const POISON: u8 = 0xff;
/// A fence that no kernel has written to.
static INTACT: [u8; FENCE] = [POISON; FENCE];

/// A write outside an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("something wrote {distance} bytes {side} the {bytes} bytes of `{what}`")]
pub struct Overrun {
    /// What the allocation is for.
    pub what: &'static str,
    /// Its size.
    pub bytes: usize,
    /// "before" or "after".
    pub side: &'static str,
    /// The distance from that end, at least 1.
    pub distance: usize,
}

/// One allocation between two fences.
#[derive(Debug)]
struct Block {
    what: &'static str,
    bytes: usize,
    /// The first fence, the allocation, the second fence. Kernels write here too, so no Rust slice of it may
    /// outlive a call.
    storage: NonNull<u8>,
}

// SAFETY: a block is the only owner of its storage.
unsafe impl Send for Block {}

/// Allocations, which live as long as this.
#[derive(Debug, Default)]
pub struct Memory {
    blocks: Vec<Block>,
}

impl Memory {
    /// Allocates zeros, aligned to 256 bytes, with NaN on both sides.
    pub fn allocate(&mut self, bytes: usize, what: &'static str) -> Address {
        let block = Block::new(bytes, what);
        let address = block.address();
        self.blocks.push(block);
        address
    }

    /// The bytes from an address inside an allocation to its end; `None` for any other address. No kernel may
    /// run meanwhile.
    pub fn bytes(&self, at: Address) -> Option<&[u8]> {
        self.blocks.iter().find_map(|block| Some(&block.slice(FENCE, block.bytes)[block.offset(at)?..]))
    }

    /// The bytes from an address inside an allocation to its end, for writing; `None` for any other address.
    /// No kernel may run meanwhile.
    pub fn bytes_mut(&mut self, at: Address) -> Option<&mut [u8]> {
        self.blocks.iter_mut().find_map(|block| {
            let offset = block.offset(at)?;
            Some(&mut block.slice_mut(FENCE, block.bytes)[offset..])
        })
    }

    /// The address and the size of each allocation.
    pub fn ranges(&self) -> impl Iterator<Item = (Address, usize)> {
        self.blocks.iter().map(|block| (block.address(), block.bytes))
    }

    /// Checks all fences.
    ///
    /// # Errors
    /// The first write outside an allocation that is found.
    pub fn check(&self) -> Result<(), Overrun> {
        self.blocks.iter().try_for_each(Block::check)
    }
}

impl Block {
    fn new(bytes: usize, what: &'static str) -> Self {
        let layout = Self::layout(bytes);
        // SAFETY: the layout's size is not zero.
        let storage = unsafe { alloc(layout) };
        let Some(storage) = NonNull::new(storage) else { handle_alloc_error(layout) };
        // SAFETY: the storage is that large and not yet shared. From here on its bytes are initialized.
        unsafe { storage.write_bytes(POISON, layout.size()) };
        let mut block = Self { what, bytes, storage };
        block.slice_mut(FENCE, bytes).fill(0);
        block
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes + 2 * FENCE, ALIGNMENT).expect("a size that fits into memory")
    }

    fn address(&self) -> Address {
        Address(self.storage.as_ptr().expose_provenance() as u64 + FENCE as u64)
    }

    fn offset(&self, at: Address) -> Option<usize> {
        let offset = at.0.checked_sub(self.address().0)? as usize;
        (offset < self.bytes).then_some(offset)
    }

    fn slice(&self, start: usize, len: usize) -> &[u8] {
        assert!(start + len <= self.bytes + 2 * FENCE);
        // SAFETY: the range lies in the storage, whose bytes are all initialized; no kernel runs during a
        // call.
        unsafe { std::slice::from_raw_parts(self.storage.add(start).as_ptr(), len) }
    }

    fn slice_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        assert!(start + len <= self.bytes + 2 * FENCE);
        // SAFETY: the range lies in the storage, whose bytes are all initialized; no kernel runs during a
        // call, and the block is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.storage.add(start).as_ptr(), len) }
    }

    fn check(&self) -> Result<(), Overrun> {
        let Self { what, bytes, .. } = *self;
        let (before, after) = (self.slice(0, FENCE), self.slice(FENCE + bytes, FENCE));
        // comparing whole fences first makes this cheap enough to do after every launch
        if before == INTACT && after == INTACT {
            return Ok(());
        }
        let written = |byte: &u8| *byte != POISON;
        let (side, distance) = match before.iter().rposition(written) {
            Some(at) => ("before", FENCE - at),
            None => ("after", 1 + after.iter().position(written).unwrap_or(0)),
        };
        Err(Overrun { what, bytes, side, distance })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.storage.as_ptr(), Self::layout(self.bytes)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_outside_are_found_and_those_inside_are_not() {
        let mut memory = Memory::default();
        let a = memory.allocate(10, "a");
        let b = memory.allocate(16, "b");
        assert_eq!((a.0 % 256, b.0 % 256), (0, 0));
        memory.bytes_mut(b.offset(4)).expect("inside").fill(7);
        assert_eq!(memory.bytes(b).expect("inside"), [0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
        assert_eq!(memory.bytes(a.offset(10)), None);
        assert_eq!(memory.check(), Ok(()));
        for (at, side, distance) in [
            (FENCE - 3, "before", 3),
            (FENCE + 10, "after", 1),
            (FENCE + 250, "after", 241),
            (0, "before", FENCE),
        ] {
            memory.blocks[0].slice_mut(at, 1)[0] = 1;
            assert_eq!(memory.check(), Err(Overrun { what: "a", bytes: 10, side, distance }));
            memory.blocks[0].slice_mut(at, 1)[0] = POISON;
        }
    }
}
