//! What threads meet at: the standard library's locks and atomic numbers, or Loom's, which try every order of events.
//!
//! The thread team of the CPU engine and the ranks that are threads take theirs from here. Their models are tests:
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib models`.

#[cfg(all(loom, test))]
pub(crate) use loom::{
    hint::spin_loop,
    sync::{Arc, Condvar, Mutex, MutexGuard, atomic},
    thread,
};
#[cfg(not(all(loom, test)))]
pub(crate) use std::{
    hint::spin_loop,
    sync::{Arc, Condvar, Mutex, MutexGuard, atomic},
    thread,
};

#[cfg(all(loom, test))]
type Inner<T> = loom::cell::UnsafeCell<T>;
#[cfg(not(all(loom, test)))]
type Inner<T> = std::cell::UnsafeCell<T>;

/// What one thread did before this comes before what another one does after its own, or the other way round: as between
/// sequentially consistent accesses, which Loom takes for weaker ones than they are. Elsewhere they need no help.
#[inline(always)]
pub(crate) fn in_one_order() {
    #[cfg(all(loom, test))]
    atomic::fence(atomic::Ordering::SeqCst);
}

/// A value that threads read and write in turns which something else settles. Loom sees when two would overlap.
#[derive(Debug, Default)]
pub(crate) struct InTurns<T>(Inner<T>);

// SAFETY: every caller of `read` and `write` promises that nothing else writes meanwhile.
unsafe impl<T: Send> Sync for InTurns<T> {}

impl<T: Copy> InTurns<T> {
    /// The value.
    ///
    /// # Safety
    /// Nothing writes it meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn read(&self) -> T {
        #[cfg(all(loom, test))]
        // SAFETY: the caller's promise.
        return self.0.with(|value| unsafe { *value });
        #[cfg(not(all(loom, test)))]
        // SAFETY: the caller's promise.
        return unsafe { *self.0.get() };
    }

    /// Another value.
    ///
    /// # Safety
    /// Nothing reads or writes it meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, value: T) {
        #[cfg(all(loom, test))]
        // SAFETY: the caller's promise.
        self.0.with_mut(|place| unsafe { *place = value });
        #[cfg(not(all(loom, test)))]
        // SAFETY: the caller's promise.
        unsafe {
            *self.0.get() = value;
        }
    }
}
