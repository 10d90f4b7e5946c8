//! Small writes that wait for nothing.
//!
//! A learning rate or the weight of a loss goes to the device for every step. It is put into pinned memory, from which the
//! stream fetches it when its turn comes; only when the memory comes round again must the earlier letter have left.

use super::ranks::Awaits;
use crate::cuda::{Context, CudaError, Event, Pinned, Stream};
use std::rc::Rc;

/// Bytes of one half.
const HALF: usize = 64 << 10;

/// Pinned memory in two halves, filled in turn.
pub(super) struct Mailbox {
    letters: Pinned,
    /// Passed when everything from a half has left.
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

    /// What sending so many bytes has to wait for.
    pub(super) fn awaits(&self, bytes: usize) -> Awaits<'_> {
        match bytes {
            // by another way, which is waited for
            _ if bytes > Self::LARGEST => Awaits::Stream,
            _ if self.used + bytes > HALF => Awaits::Event(&self.left[1 - self.half]),
            _ => Awaits::Nothing,
        }
    }

    /// Sends bytes to an address, in the stream's order.
    pub(super) fn send(&mut self, bytes: &[u8], to: u64, stream: &Stream) -> Result<(), CudaError> {
        if self.used + bytes.len() > HALF {
            self.left[self.half].record(stream)?;
            self.half = 1 - self.half;
            self.used = 0;
            self.left[self.half].synchronize()?;
        }
        let start = self.half * HALF + self.used;
        let range = start..start + bytes.len();
        // the device may only read what is aligned fast
        self.used = (self.used + bytes.len()).next_multiple_of(16);
        self.letters.bytes_mut()[range.clone()].copy_from_slice(bytes);
        stream.upload(&self.letters, range, to)
    }
}
