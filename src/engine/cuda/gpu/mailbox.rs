//! Small writes to the device that do not wait.
//!
//! For every step, numbers such as the learning rate or the weight of a loss are sent to the device. They are
//! put into pinned memory, from which the stream copies them in order. Only when a part of that memory is
//! used again must its earlier copies be done.

use super::ranks::Awaits;
use crate::cuda::{Context, CudaError, Event, Pinned, Stream};
use std::rc::Rc;

/// Bytes of each half.
const HALF: usize = 64 << 10;

/// Pinned memory in two halves, filled alternately.
pub(super) struct Mailbox {
    letters: Pinned,
    /// Passed when all copies from a half are done.
    left: [Event; 2],
    half: usize,
    used: usize,
}

impl Mailbox {
    /// The most bytes of one write.
    pub(super) const LARGEST: usize = 4 << 10;

    pub(super) fn new(context: &Rc<Context>) -> Result<Self, CudaError> {
        let left = [Event::new(context)?, Event::new(context)?];
        Ok(Self { letters: Pinned::new(context, 2 * HALF)?, left, half: 0, used: 0 })
    }

    /// What a write of `bytes` bytes has to wait for.
    pub(super) fn awaits(&self, bytes: usize) -> Awaits<'_> {
        match bytes {
            // a larger write goes another way, which waits for the stream
            _ if bytes > Self::LARGEST => Awaits::Stream,
            _ if self.used + bytes > HALF => Awaits::Event(&self.left[1 - self.half]),
            _ => Awaits::Nothing,
        }
    }

    /// Copies bytes to an address, in the stream's order.
    pub(super) fn send(&mut self, bytes: &[u8], to: u64, stream: &Stream) -> Result<(), CudaError> {
        if self.used + bytes.len() > HALF {
            self.left[self.half].record(stream)?;
            self.half = 1 - self.half;
            self.used = 0;
            self.left[self.half].synchronize()?;
        }
        let start = self.half * HALF + self.used;
        let range = start..start + bytes.len();
        // the device reads only aligned memory fast
        self.used = (self.used + bytes.len()).next_multiple_of(16);
        self.letters.bytes_mut()[range.clone()].copy_from_slice(bytes);
        stream.upload(&self.letters, range, to)
    }
}
