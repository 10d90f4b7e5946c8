//! Collectives of emulated devices, on the host's memory, by [`Comm`].
//!
//! A collective runs as late as possible: when it is waited for. So code that does not wait, or that touches
//! the numbers meanwhile, computes a wrong result. Sums that belong to another rank become NaN here.

use super::Memory;
use super::device::failed;
use crate::comm::Comm;
use crate::engine::EngineError;
use crate::engine::cuda::device::{Address, Collective};
use std::ops::Range;
use std::sync::Arc;

/// The other ranks, and the collectives that have begun.
#[derive(Default)]
pub(super) struct EmulatedRanks {
    comm: Option<Arc<dyn Comm>>,
    begun: Vec<Collective>,
}

impl EmulatedRanks {
    pub(super) fn new(comm: Arc<dyn Comm>) -> Self {
        Self { comm: Some(comm), begun: Vec::new() }
    }

    pub(super) fn begin(&mut self, collective: Collective) {
        self.begun.push(collective);
    }

    /// Fails if a collective has begun and was not waited for.
    pub(super) fn idle(&self) -> Result<(), EngineError> {
        match self.begun.first() {
            None => Ok(()),
            Some(collective) => Err(failed(format!("{collective:?} was not waited for"))),
        }
    }

    /// Runs the collectives that have begun.
    pub(super) fn join(&mut self, memory: &mut Memory) -> Result<(), EngineError> {
        let comm = self.comm.clone().ok_or_else(|| failed("there are no other ranks"))?;
        self.begun.drain(..).try_for_each(|collective| carry_out(&*comm, &collective, memory))
    }
}

fn carry_out(comm: &dyn Comm, collective: &Collective, memory: &mut Memory) -> Result<(), EngineError> {
    match collective {
        &Collective::Sum { at, len } => {
            let mut values = load(memory, at, len, f32::from_ne_bytes)?;
            comm.all_reduce(&mut values)?;
            store(memory, at, &values, f32::to_ne_bytes)
        }
        &Collective::SumDoubles { at, len } => {
            let mine = load(memory, at, len, f64::from_ne_bytes)?;
            let bytes: Vec<u8> = mine.iter().flat_map(|value| value.to_ne_bytes()).collect();
            let mut sums = vec![0.0; len];
            for rank in comm.exchange(&bytes)? {
                let values = rank.as_chunks().0.iter().copied().map(f64::from_ne_bytes);
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
            store(memory, at, &sums, f64::to_ne_bytes)
        }
        Collective::SumToOwners { at, owners } => {
            let mut values = load(memory, *at, end(owners), f32::from_ne_bytes)?;
            comm.reduce_scatter(&mut values, owners)?;
            let mine = &owners[comm.rank()];
            values[..mine.start].fill(f32::NAN);
            values[mine.end..].fill(f32::NAN);
            store(memory, *at, &values, f32::to_ne_bytes)
        }
        Collective::Gather { at, owners } => {
            let mut values = load(memory, *at, end(owners), f32::from_ne_bytes)?;
            comm.all_gather(&mut values, owners)?;
            store(memory, *at, &values, f32::to_ne_bytes)
        }
    }
}

/// Number of elements that the owners have together.
fn end(owners: &[Range<usize>]) -> usize {
    owners.iter().map(|owner| owner.end).max().unwrap_or(0)
}

fn load<const SIZE: usize, T>(
    memory: &Memory,
    at: Address,
    len: usize,
    number: impl Fn([u8; SIZE]) -> T,
) -> Result<Vec<T>, EngineError> {
    let bytes = memory.bytes(at).and_then(|bytes| bytes.get(..len * SIZE)).ok_or_else(|| outside(at, len))?;
    Ok(bytes.as_chunks().0.iter().copied().map(number).collect())
}

fn store<const SIZE: usize, T: Copy>(
    memory: &mut Memory,
    at: Address,
    values: &[T],
    bytes: impl Fn(T) -> [u8; SIZE],
) -> Result<(), EngineError> {
    let len = values.len();
    let to = memory.bytes_mut(at).and_then(|to| to.get_mut(..len * SIZE)).ok_or_else(|| outside(at, len))?;
    to.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, &value)| *to = bytes(value));
    Ok(())
}

fn outside(at: Address, len: usize) -> EngineError {
    failed(format!("a collective over {len} numbers at {:#x} leaves its allocation", at.0))
}
