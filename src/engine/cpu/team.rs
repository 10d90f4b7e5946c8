//! The engine's own threads, and how a kernel hands work to them.
//!
//! A step of a small model is a hundred kernels of some tens of microseconds, so handing over has to cost less than
//! one of them. Helpers therefore look for the next job without sleeping, first closely, then giving way to whatever
//! else runs, and sleep only when a step is over. The caller works too, and waits only for
//! helpers that have begun: where others are kept from running, it does their share.

#[cfg(all(loom, test))]
mod models;
#[cfg(all(not(loom), test))]
mod tests;

use crate::engine::EngineError;
use crate::engine::pooled::flush_denormals;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Condvar, InTurns, Mutex, MutexGuard, in_one_order, spin_loop};
use crate::wording::count;
use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;

/// Looks at the gate without a pause in which others run; some tens of microseconds.
const CLOSELY: u32 = if cfg!(any(loom, miri)) { 0 } else { 2_000 };
/// Looks between which others may run, after that; about a millisecond where nothing else wants to run.
const PATIENTLY: u32 = if cfg!(any(loom, miri)) { 1 } else { 2_000 };

// The gate, one word: how many helpers are inside, whether it is open, whether the team is dismissed, and the job's
// number.
const INSIDE: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const DISMISSED: u64 = 1 << 17;
const JOB: u64 = 1 << 18;

/// What is to be done: called by each who takes part, with its number.
type Job = *const (dyn Fn(usize) + Sync + 'static);

/// A number with cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicUsize);

#[derive(Default)]
struct Shared {
    gate: AtomicU64,
    /// Written while the gate is closed and no helper is inside, read by the helpers inside.
    job: InTurns<Option<Job>>,
    /// The next task of each worker's share.
    next: Vec<Padded>,
    asleep: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
    panicked: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the job, a pointer to something `Sync`, is the one field that is not shared by itself; the gate orders who
// writes and who reads it.
unsafe impl Send for Shared {}
// SAFETY: the gate orders the accesses to the one field that is not `Sync`, as above.
unsafe impl Sync for Shared {}

/// Threads that work on one kernel at a time. The one that calls is worker 0.
pub(super) struct Team {
    /// Where there are helpers.
    shared: Option<Arc<Shared>>,
    helpers: Vec<JoinHandle<()>>,
    /// One caller at a time: a team cannot be shared, so no task can hand work to the team that runs it.
    alone: PhantomData<Cell<()>>,
}

impl Team {
    /// Starts `threads - 1` helpers, which flush denormal numbers to zero.
    pub(super) fn new(threads: usize) -> Result<Self, EngineError> {
        let next = (0..threads).map(|_| Padded::default()).collect();
        let shared = Arc::new(Shared { next, ..Shared::default() });
        let mut team = Self::solo();
        team.shared = (threads > 1).then(|| Arc::clone(&shared));
        for number in 1..threads {
            let shared = Arc::clone(&shared);
            let helper = thread::Builder::new().name(format!("runner-cpu-{number}"));
            let help = move || {
                flush_denormals();
                shared.help(number);
            };
            let failed =
                |e| EngineError::Unsupported(format!("could not start {}: {e}", count(threads, "thread")));
            team.helpers.push(helper.spawn(help).map_err(failed)?);
        }
        Ok(team)
    }

    /// The caller on its own.
    pub(super) fn solo() -> Self {
        Self { shared: None, helpers: Vec::new(), alone: PhantomData }
    }

    /// Threads, the caller among them.
    pub(super) fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs tasks `0..count`, each with the number of the worker that runs it; no two at a time have the same.
    ///
    /// Each worker begins with a share of its own, the same part of the whole in every kernel, for what one kernel
    /// wrote lies in that processor's cache when the next one reads it; then it takes what others have not begun.
    pub(super) fn tasks(&self, count: usize, run: impl Fn(usize, usize) + Sync) {
        let Some(shared) = self.shared.as_ref().filter(|_| count > 1) else {
            return (0..count).for_each(|task| run(task, 0));
        };
        let threads = self.threads();
        let end = |owner: usize| (owner + 1) * count / threads;
        for (owner, next) in shared.next.iter().enumerate() {
            next.0.store(owner * count / threads, Relaxed);
        }
        shared.run(&|worker| {
            for owner in (worker..threads).chain(0..worker) {
                loop {
                    let task = shared.next[owner].0.fetch_add(1, Relaxed);
                    if task >= end(owner) {
                        break;
                    }
                    run(task, worker);
                }
            }
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.gate.fetch_or(DISMISSED, SeqCst);
            drop(shared.lock());
            shared.bell.notify_all();
        }
        for helper in self.helpers.drain(..) {
            // what panicked was a job, and that was handed on
            let _ = helper.join();
        }
    }
}

/// Closes the gate and waits until everybody has left.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.gate.fetch_and(!OPEN, SeqCst);
        let mut looks = 0;
        while self.0.gate.load(Acquire) & INSIDE > 0 {
            looks += 1;
            if looks < CLOSELY { spin_loop() } else { thread::yield_now() }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.bed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job here and on every helper that comes before this one is through.
    fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        let gate = self.gate.load(Relaxed);
        debug_assert!(gate & (OPEN | INSIDE) == 0, "one job at a time");
        // SAFETY: the gate is closed and no helper is inside, so none reads. The lifetime is not used up: `Closing`
        // waits until no helper is inside again, also when this thread panics.
        unsafe { self.job.write(Some(std::mem::transmute::<*const (dyn Fn(usize) + Sync), Job>(job))) };
        self.gate.store(((gate & !(JOB - 1)) + JOB) | OPEN, SeqCst);
        in_one_order();
        // either this sees who is asleep, or who goes to sleep sees the gate
        if self.asleep.load(SeqCst) > 0 {
            drop(self.lock());
            self.bell.notify_all();
        }
        let closing = Closing(self);
        job(0);
        drop(closing);
        if self.panicked.swap(false, Relaxed) {
            let payload = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
            resume_unwind(payload.unwrap_or_else(|| Box::new("a helper panicked")));
        }
    }

    /// Takes part in every job that it finds, until the team is dismissed.
    fn help(&self, number: usize) {
        let mut last = 0;
        loop {
            let gate = self.wait(last);
            if gate & DISMISSED > 0 {
                return;
            }
            if self.gate.compare_exchange_weak(gate, gate + 1, SeqCst, Relaxed).is_err() {
                continue;
            }
            last = gate / JOB;
            // SAFETY: written before the gate was opened, and not again while this thread is inside.
            let job = unsafe { self.job.read() };
            if let Some(job) = job {
                // SAFETY: the thread that lent the job waits until no helper is inside.
                let run = AssertUnwindSafe(|| unsafe { (*job)(number) });
                if let Err(payload) = catch_unwind(run) {
                    *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
                    self.panicked.store(true, Relaxed);
                }
            }
            self.gate.fetch_sub(1, SeqCst);
        }
    }

    /// Waits for a job other than the last one, or the end.
    fn wait(&self, last: u64) -> u64 {
        let ready = |gate: u64| gate & DISMISSED > 0 || (gate & OPEN > 0 && gate / JOB != last);
        for look in 0..CLOSELY + PATIENTLY {
            let gate = self.gate.load(Acquire);
            if ready(gate) {
                return gate;
            }
            if look < CLOSELY { spin_loop() } else { thread::yield_now() }
        }
        let mut bed = self.lock();
        self.asleep.fetch_add(1, SeqCst);
        in_one_order();
        loop {
            let gate = self.gate.load(SeqCst);
            if ready(gate) {
                self.asleep.fetch_sub(1, SeqCst);
                return gate;
            }
            bed = self.bell.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
