//! Ranks as threads of one process: each sums its share of all ranks' buffers, in place.

#[cfg(all(loom, test))]
mod models;
#[cfg(all(not(loom), test))]
mod tests;

use super::patience::Patience;
use super::{Comm, CommError, share};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::ops::Range;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Elements summed at a time: a block stays in cache while every rank's values are added.
const BLOCK: usize = 4096;
/// How long a rank waits before it looks at the time: short, so that a stop of the process shows.
const WAIT: Duration = Duration::from_millis(250);

/// One rank of several, each of which is a thread.
pub struct Threads {
    rank: usize,
    hub: Arc<Hub>,
}

/// What the threads share.
struct Hub {
    size: usize,
    timeout: Duration,
    state: Mutex<HubState>,
    changed: Condvar,
}

struct HubState {
    /// Which ranks have arrived at the current meeting.
    arrived: Vec<bool>,
    /// Which ranks are doing something slow.
    working: Vec<bool>,
    /// The number of meetings that have ended.
    held: u64,
    /// What each rank brought to the current meeting.
    messages: Vec<Vec<u8>>,
    /// Each rank's values, lent until the next meeting.
    lent: Vec<Lent>,
    failed: Option<CommError>,
}

/// The memory of a rank's values.
#[derive(Clone, Copy)]
struct Lent {
    start: *mut f32,
    len: usize,
}

// SAFETY: the pointer is used between two meetings only, while its owner waits in the call that lent it.
unsafe impl Send for Lent {}
// SAFETY: the pointer is used between two meetings only, and ranks write disjoint elements.
unsafe impl Sync for Lent {}

impl Lent {
    const NOTHING: Self = Self { start: std::ptr::null_mut(), len: 0 };

    /// Elements `range` of the values.
    ///
    /// # Safety
    /// Must be called between the two meetings of a call; no other thread may write these elements meanwhile.
    unsafe fn read<'a>(self, range: Range<usize>) -> &'a [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "a range exceeds the values");
        // SAFETY: in bounds (asserted) of a slice that its owner lent; the caller ensures the rest.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// Elements `range` of the values, for writing.
    ///
    /// # Safety
    /// Must be called between the two meetings of a call; no other thread may access these elements
    /// meanwhile.
    unsafe fn write<'a>(self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "a range exceeds the values");
        // SAFETY: in bounds (asserted) of a slice that its owner lent; the caller ensures the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

impl Threads {
    /// The connections of `size` ranks, one for each thread. A rank that does not arrive at a meeting within
    /// `timeout` counts as hung.
    pub fn group(size: usize, timeout: Duration) -> Vec<Self> {
        let state = HubState {
            arrived: vec![false; size],
            working: vec![false; size],
            held: 0,
            messages: vec![Vec::new(); size],
            lent: vec![Lent::NOTHING; size],
            failed: None,
        };
        let hub = Arc::new(Hub { size, timeout, state: Mutex::new(state), changed: Condvar::new() });
        (0..size).map(|rank| Self { rank, hub: hub.clone() }).collect()
    }

    /// Arrives at a meeting with what `bring` puts into the state, and waits for all others.
    fn meet(&self, bring: impl FnOnce(&mut HubState)) -> Result<MutexGuard<'_, HubState>, CommError> {
        let hub = &*self.hub;
        let mut patience = Patience::new(hub.timeout);
        let mut state = hub.lock();
        let held = state.held;
        if state.failed.is_none() {
            bring(&mut state);
            state.arrived[self.rank] = true;
            hub.count(&mut state);
        }
        while state.held == held {
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            if state.working.contains(&true) {
                patience.renew();
            }
            if patience.is_over() {
                let ranks = (0..hub.size).filter(|&rank| !state.arrived[rank]).collect();
                let silent = CommError::Silent { ranks, size: hub.size, seconds: hub.timeout.as_secs() };
                return Err(hub.fail(state, silent));
            }
            let begun = Instant::now();
            state = hub.changed.wait_timeout(state, WAIT).unwrap_or_else(PoisonError::into_inner).0;
            patience.waited(begun, WAIT);
        }
        Ok(state)
    }

    /// The meeting that ends the lending of values. It has no deadline and cannot fail: a rank that returned
    /// early would free memory that another one still uses. Between the two meetings there is only
    /// arithmetic, so it ends.
    fn end_lending(&self) {
        let mut ended = self.hub.lock();
        let held = ended.held;
        ended.arrived[self.rank] = true;
        self.hub.count(&mut ended);
        while ended.held == held {
            ended = self.hub.changed.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lends `values` to the other ranks and runs `work` with all ranks' values.
    fn together(&self, values: &mut [f32], work: impl FnOnce(&[Lent])) -> Result<(), CommError> {
        let lent = Lent { start: values.as_mut_ptr(), len: values.len() };
        let all = self.meet(|state| state.lent[self.rank] = lent)?.lent.clone();
        if all.iter().any(|other| other.len != lent.len) {
            // every rank sees this before any of them has touched another's values
            let error = CommError::Failed("ranks passed values of different sizes".to_owned());
            return Err(self.hub.fail(self.hub.lock(), error));
        }
        let lending = Lending;
        work(&all);
        std::mem::forget(lending);
        self.end_lending();
        Ok(())
    }
}

/// While it exists, other ranks access this rank's memory, so unwinding must abort the process.
struct Lending;

impl Drop for Lending {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Hub {
    /// Locks the state. A rank that panicked while it held the lock left the state valid, since it only sets
    /// fields.
    fn lock(&self) -> MutexGuard<'_, HubState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the meeting if all ranks have arrived.
    fn count(&self, state: &mut HubState) {
        if state.arrived.iter().all(|&arrived| arrived) {
            state.arrived.fill(false);
            state.held += 1;
            self.changed.notify_all();
        }
    }

    fn fail(&self, mut state: MutexGuard<HubState>, error: CommError) -> CommError {
        let failed = state.failed.get_or_insert(error).clone();
        self.changed.notify_all();
        failed
    }
}

impl Comm for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.hub.size
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        let mine = mine.to_vec();
        let mut state = self.meet(|state| state.messages[self.rank] = mine)?;
        let all =
            if self.rank == 0 { state.messages.iter_mut().map(std::mem::take).collect() } else { Vec::new() };
        drop(state);
        // rank 0 must have taken the messages before another rank brings its next one
        self.meet(|_| ()).map(|_| all)
    }

    fn broadcast(&self, message: &mut Vec<u8>) -> Result<(), CommError> {
        let mine = if self.rank == 0 { std::mem::take(message) } else { Vec::new() };
        let state = self.meet(|state| {
            if self.rank == 0 {
                state.messages[0] = mine;
            }
        })?;
        message.clone_from(&state.messages[0]);
        drop(state);
        self.meet(|_| ()).map(drop)
    }

    fn all_reduce(&self, values: &mut [f32]) -> Result<(), CommError> {
        let own = share(values.len(), self.rank, self.hub.size);
        self.together(values, |all| {
            blocks(own).for_each(|block| {
                // SAFETY: the block lies in this rank's share, which no other rank touches; sums are copied
                // to every rank.
                let (first, others) = unsafe { (all[0].write(block.clone()), &all[1..]) };
                add_up(first, others, &block);
                for other in others {
                    // SAFETY: the block lies in this rank's share, which no other rank touches.
                    unsafe { other.write(block.clone()) }.copy_from_slice(first);
                }
            });
        })
    }

    fn reduce_scatter(&self, values: &mut [f32], owners: &[Range<usize>]) -> Result<(), CommError> {
        let own = owners[self.rank].clone();
        self.together(values, |all| {
            blocks(own).for_each(|block| {
                let mut sum = [0.0; BLOCK];
                let sum = &mut sum[..block.len()];
                // SAFETY: elements of this rank's range, which no other rank touches.
                sum.copy_from_slice(unsafe { all[0].read(block.clone()) });
                add_up(sum, &all[1..], &block);
                // SAFETY: elements of this rank's range, which no other rank touches.
                unsafe { all[self.rank].write(block) }.copy_from_slice(sum);
            });
        })
    }

    fn all_gather(&self, values: &mut [f32], owners: &[Range<usize>]) -> Result<(), CommError> {
        self.together(values, |all| {
            for (rank, owner) in owners.iter().enumerate().filter(|(rank, _)| *rank != self.rank) {
                blocks(owner.clone()).for_each(|block| {
                    // SAFETY: all ranks read a rank's own range and none writes it; only this rank accesses
                    // the other ranges of its own values.
                    let (to, from) = unsafe { (all[self.rank].write(block.clone()), all[rank].read(block)) };
                    to.copy_from_slice(from);
                });
            }
        })
    }

    fn check(&self) -> Result<(), CommError> {
        self.hub.lock().failed.clone().map_or(Ok(()), Err)
    }

    fn abandon(&self, why: &str) {
        let lost = CommError::Lost { rank: self.rank, size: self.hub.size, why: why.to_owned() };
        self.hub.fail(self.hub.lock(), lost);
    }

    fn set_working(&self, working: bool) {
        self.hub.lock().working[self.rank] = working;
    }

    fn timeout(&self) -> Duration {
        self.hub.timeout
    }

    fn name(&self) -> &'static str {
        "threads"
    }
}

/// Divides a range into blocks.
fn blocks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = range;
    (0..range.len().div_ceil(BLOCK)).map(move |i| {
        let first = start + i * BLOCK;
        first..(first + BLOCK).min(end)
    })
}

/// Adds a block of these ranks' values to `sum`, in the order of ranks.
fn add_up(sum: &mut [f32], ranks: &[Lent], block: &Range<usize>) {
    for rank in ranks {
        // SAFETY: called between two meetings, on a block that no other rank touches.
        let values = unsafe { rank.read(block.clone()) };
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += value;
        }
    }
}
