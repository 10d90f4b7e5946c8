//! Threads: how many, flush-to-zero on each, and the ways in which kernels share work.
//!
//! Work is cut into pieces whose size depends on the problem only, never on the number of threads, so results do not
//! either.

use crate::engine::EngineError;
use rayon::prelude::*;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements of a row-wise kernel's piece, about.
const GRAIN: usize = 16 * 1024;

/// A pool of `threads` workers that flush denormal numbers to zero: AdamW's moments decay into them, and arithmetic on
/// denormals is many times slower.
pub(super) fn new(threads: usize) -> Result<rayon::ThreadPool, EngineError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("runner-cpu-{i}"))
        .start_handler(|_| flush_denormals())
        .build()
        .map_err(|e| EngineError::Unsupported(format!("could not start {threads} threads: {e}")))
}

fn flush_denormals() {
    #[cfg(target_arch = "x86_64")]
    {
        const FLUSH_TO_ZERO: u32 = 1 << 15;
        const DENORMALS_ARE_ZERO: u32 = 1 << 6;
        let mut control = 0u32;
        // SAFETY: reads and writes this thread's SSE control register through a live local; only the two flags that
        // concern denormals change, no exception is unmasked.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack));
            control |= FLUSH_TO_ZERO | DENORMALS_ARE_ZERO;
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, readonly));
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        const FLUSH_TO_ZERO: u64 = 1 << 24;
        let mut control: u64;
        // SAFETY: reads and writes this thread's floating-point control register; only the flush flag changes.
        unsafe {
            std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack));
            control |= FLUSH_TO_ZERO;
            std::arch::asm!("msr fpcr, {}", in(reg) control, options(nomem, nostack));
        }
    }
}

/// Elements of the pieces into which a matrix with rows of this width is cut: whole rows.
pub(super) fn piece(width: usize) -> usize {
    (GRAIN / width).max(1) * width
}

/// Runs `tasks` on the pool, each with scratch of `per_worker` elements that nothing else uses meanwhile.
pub(super) fn with_scratch(
    scratch: &mut [f32],
    per_worker: usize,
    tasks: usize,
    run: impl Fn(usize, &mut [f32]) + Sync,
) {
    let next = AtomicUsize::new(0);
    scratch.par_chunks_exact_mut(per_worker).for_each(|scratch| {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                break;
            }
            run(task, scratch);
        }
    });
}

/// A row-major matrix of which several tasks write different columns at once.
pub(super) struct Columns<'a> {
    start: *mut f32,
    len: usize,
    width: usize,
    lent: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is only used through `row`, whose contract keeps tasks apart.
unsafe impl Sync for Columns<'_> {}

impl<'a> Columns<'a> {
    pub(super) fn new(data: &'a mut [f32], width: usize) -> Self {
        Self { start: data.as_mut_ptr(), len: data.len(), width, lent: PhantomData }
    }

    /// Columns `first..first + count` of a row.
    ///
    /// # Safety
    /// No two slices that overlap may be alive at once: each task keeps to columns of its own.
    #[expect(clippy::mut_from_ref, reason = "the matrix is lent exclusively; tasks divide it by columns")]
    pub(super) unsafe fn row(&self, row: usize, first: usize, count: usize) -> &mut [f32] {
        let start = row * self.width + first;
        assert!(first + count <= self.width && start + count <= self.len, "columns exceed the matrix");
        // SAFETY: in bounds of the exclusively lent slice; the caller keeps slices disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), count) }
    }
}
