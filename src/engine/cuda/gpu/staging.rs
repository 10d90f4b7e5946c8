//! Copies the rows of the next step to the device while it computes this one.
//!
//! There are two slots, each with pinned memory on the host and a buffer on the device. Events tell both
//! sides when a copy is done: the host may refill pinned memory once it has been copied, and the copying
//! stream may overwrite the buffer once it has been taken.

use super::ranks::Awaits;
use crate::cuda::{Context, CudaError, Event, Memory, Pinned, Stream};
use std::rc::Rc;

/// Both slots, and the stream that fills them.
pub(super) struct Staging {
    slots: [Option<Slot>; 2],
    copies: Stream,
    context: Rc<Context>,
}

struct Slot {
    host: Pinned,
    device: Memory,
    /// Passed when the content of `host` has reached `device`.
    arrived: Event,
    /// Passed when the content of `device` has been taken.
    taken: Event,
    /// Bytes staged last.
    bytes: usize,
}

impl Staging {
    pub(super) fn new(context: &Rc<Context>) -> Result<Self, CudaError> {
        Ok(Self { slots: [None, None], copies: Stream::new(context)?, context: context.clone() })
    }

    /// What staging `bytes` bytes has to wait for.
    pub(super) fn awaits(&self, slot: usize, bytes: usize) -> Awaits<'_> {
        match self.slots.get(slot).and_then(Option::as_ref) {
            Some(slot) if slot.device.bytes() >= bytes => Awaits::Event(&slot.arrived),
            _ => Awaits::Stream,
        }
    }

    /// Starts the copy of words to a slot's buffer.
    pub(super) fn stage(&mut self, slot: usize, words: &[u32], stream: &Stream) -> Result<(), CudaError> {
        let bytes = size_of_val(words);
        let too_small = |slot: &Option<Slot>| slot.as_ref().is_none_or(|slot| slot.device.bytes() < bytes);
        let at = self.slots.get_mut(slot).ok_or_else(|| no_slot(slot))?;
        if too_small(at) {
            // the memory to be replaced may still be in use
            self.copies.synchronize()?;
            stream.synchronize()?;
            *at = None;
            *at = Some(Slot {
                host: Pinned::new(&self.context, bytes)?,
                device: Memory::new(&self.context, bytes, "staged rows")?,
                arrived: Event::new(&self.context)?,
                taken: Event::new(&self.context)?,
                bytes: 0,
            });
        }
        let Some(slot) = at else { return Err(no_slot(slot)) };
        slot.arrived.synchronize()?;
        for (to, word) in slot.host.bytes_mut().chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        self.copies.wait(&slot.taken)?;
        self.copies.upload(&slot.host, 0..bytes, slot.device.address())?;
        slot.arrived.record(&self.copies)?;
        slot.bytes = bytes;
        Ok(())
    }

    /// Copies what was staged to `to`, in the stream's order.
    pub(super) fn take(&mut self, slot: usize, to: u64, stream: &Stream) -> Result<(), CudaError> {
        let staged = self.slots.get_mut(slot).and_then(Option::as_mut);
        let staged = staged.ok_or_else(|| no_slot(slot))?;
        stream.wait(&staged.arrived)?;
        stream.copy(staged.device.address(), to, staged.bytes)?;
        staged.taken.record(stream)
    }

    /// Waits for all copies.
    pub(super) fn synchronize(&self) -> Result<(), CudaError> {
        self.copies.synchronize()
    }
}

fn no_slot(slot: usize) -> CudaError {
    CudaError::Unsupported(format!("nothing was staged in slot {slot}"))
}
