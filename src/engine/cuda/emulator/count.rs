//! What a kernel touches in global memory, as the emulator counts it (`count.h`).

use super::Memory;

/// Bytes of global memory that one launch touches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Touched {
    /// Bytes that are read before the launch has written them, each counted once.
    pub read: u64,
    /// Bytes that are written, each counted once.
    pub written: u64,
    /// Bytes that each block reads between two of its barriers: a byte counts once for each block, and again when the
    /// block reads it after a barrier.
    pub streamed: u64,
}

/// What one launch has touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// The kernel's name.
    pub kernel: &'static str,
    /// The bytes.
    pub touched: Touched,
}

/// `emulator::Watched` of `count.h`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Watched {
    first: u64,
    bytes: u64,
    marks: *mut u64,
}

/// All allocations of a [`Memory`], with the marks that counting needs.
#[derive(Debug)]
pub struct Watch {
    pub(super) ranges: Vec<Watched>,
    /// What `ranges` points to.
    _marks: Vec<Vec<u64>>,
}

impl Watch {
    /// Watches what is allocated now.
    pub fn new(memory: &Memory) -> Self {
        let ranges: Vec<_> = memory.ranges().collect();
        let mut marks: Vec<Vec<u64>> = ranges.iter().map(|&(_, bytes)| vec![0; bytes]).collect();
        let watched = ranges.iter().zip(&mut marks).map(|(&(first, bytes), marks)| Watched {
            first: first.0,
            bytes: bytes as u64,
            marks: marks.as_mut_ptr(),
        });
        let ranges = watched.collect();
        Self { ranges, _marks: marks }
    }
}
