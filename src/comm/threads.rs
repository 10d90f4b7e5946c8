//! Ranks as threads of one process: they add up each other's buffers in place, each a part of them.

use super::{Comm, CommError, part};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Elements that are added up at a time: they stay in cache while every rank's are read.
const BLOCK: usize = 4096;

/// One of several threads.
pub struct Threads {
    rank: usize,
    hub: Arc<Hub>,
}

/// Where they meet.
struct Hub {
    size: usize,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Who has come to the meeting that is under way.
    arrived: Vec<bool>,
    /// Who works on something that takes its time.
    working: Vec<bool>,
    /// Meetings held.
    held: u64,
    /// What each rank brought.
    messages: Vec<Vec<u8>>,
    /// Where each rank's values are, lent until the next meeting.
    lent: Vec<Lent>,
    failed: Option<CommError>,
}

/// A rank's values.
#[derive(Clone, Copy)]
struct Lent {
    start: *mut f32,
    len: usize,
}

// SAFETY: the pointer is used between two meetings only, during which its owner waits in the call that lent it.
unsafe impl Send for Lent {}
// SAFETY: as above; ranks write disjoint elements.
unsafe impl Sync for Lent {}

impl Lent {
    const NOTHING: Self = Self { start: std::ptr::null_mut(), len: 0 };

    /// A part of the values.
    ///
    /// # Safety
    /// Between the two meetings of a call, and nobody else may write these elements meanwhile.
    unsafe fn read<'a>(self, range: Range<usize>) -> &'a [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "a range exceeds the values");
        // SAFETY: in bounds (asserted) of a slice that its owner lent; the caller sees to the rest.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// A part of the values, to change.
    ///
    /// # Safety
    /// Between the two meetings of a call, and nobody else may touch these elements meanwhile.
    unsafe fn write<'a>(self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "a range exceeds the values");
        // SAFETY: in bounds (asserted) of a slice that its owner lent; the caller sees to the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

impl Threads {
    /// The ends of `size` ranks, each for a thread of its own. Who does not come to a meeting within `timeout` counts as
    /// hung.
    pub fn group(size: usize, timeout: Duration) -> Vec<Self> {
        let state = State {
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

    /// Comes to a meeting, after `bring`ing something to it, and waits for all others.
    fn meet(&self, bring: impl FnOnce(&mut State)) -> Result<MutexGuard<'_, State>, CommError> {
        let hub = &*self.hub;
        let mut deadline = Instant::now() + hub.timeout;
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
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() && state.working.contains(&true) {
                deadline = Instant::now() + hub.timeout;
                continue;
            }
            if left.is_zero() {
                let ranks = (0..hub.size).filter(|&rank| !state.arrived[rank]).collect();
                let silent = CommError::Silent { ranks, size: hub.size, seconds: hub.timeout.as_secs() };
                return Err(hub.fail(state, silent));
            }
            state = hub.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }

    /// The meeting that ends the lending of values. Between the two there is only arithmetic, so it needs no deadline, and
    /// may not have one: whoever returned would take back memory in which another one still works.
    fn part_again(&self) {
        let mut ended = self.hub.lock();
        let held = ended.held;
        ended.arrived[self.rank] = true;
        self.hub.count(&mut ended);
        while ended.held == held {
            ended = self.hub.changed.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lends `values` to the others and lets `work` have everybody's.
    fn together(&self, values: &mut [f32], work: impl FnOnce(&[Lent])) -> Result<(), CommError> {
        let lent = Lent { start: values.as_mut_ptr(), len: values.len() };
        let all = self.meet(|state| state.lent[self.rank] = lent)?.lent.clone();
        if all.iter().any(|other| other.len != lent.len) {
            // seen by every rank, before anyone has touched another one's values
            let error = CommError::Failed("ranks brought values of different sizes".to_owned());
            return Err(self.hub.fail(self.hub.lock(), error));
        }
        let lending = Lending;
        work(&all);
        std::mem::forget(lending);
        self.part_again();
        Ok(())
    }
}

/// While it lives, others work on this rank's memory: to unwind would take it from under them.
struct Lending;

impl Drop for Lending {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl Hub {
    /// The state; a rank that panicked while it held the lock has left it whole, for it only sets fields.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the meeting if all have come.
    fn count(&self, state: &mut State) {
        if state.arrived.iter().all(|&arrived| arrived) {
            state.arrived.fill(false);
            state.held += 1;
            self.changed.notify_all();
        }
    }

    fn fail(&self, mut state: MutexGuard<State>, error: CommError) -> CommError {
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
        // until rank 0 has taken them, nobody may bring the next
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
        let own = part(values.len(), self.rank, self.hub.size);
        self.together(values, |all| {
            blocks(own).for_each(|block| {
                // SAFETY: this block is of this rank's part, which no other rank touches; sums are copied to every rank.
                let (first, others) = unsafe { (all[0].write(block.clone()), &all[1..]) };
                add_up(first, others, &block);
                for other in others {
                    // SAFETY: as above.
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
                // SAFETY: as above.
                unsafe { all[self.rank].write(block) }.copy_from_slice(sum);
            });
        })
    }

    fn all_gather(&self, values: &mut [f32], owners: &[Range<usize>]) -> Result<(), CommError> {
        self.together(values, |all| {
            for (rank, owner) in owners.iter().enumerate().filter(|(rank, _)| *rank != self.rank) {
                blocks(owner.clone()).for_each(|block| {
                    // SAFETY: a rank's own range is read by all and written by none; the others' ranges of this rank's
                    // values are touched by this rank only.
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

/// A range in blocks.
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
        // SAFETY: called between two meetings, on a block of which no other rank touches an element.
        let values = unsafe { rank.read(block.clone()) };
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += value;
        }
    }
}
