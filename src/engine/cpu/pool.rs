//! The ways in which kernels share work between threads.
//!
//! Work is cut into pieces whose size depends on the problem only, never on the number of threads, so results do not
//! either.

use rayon::prelude::*;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements of a row-wise kernel's piece, about.
const GRAIN: usize = 16 * 1024;

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
    if scratch.len() == per_worker {
        return (0..tasks).for_each(|task| run(task, scratch));
    }
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

/// Runs a task for each piece of `size` elements, with its index.
pub(super) fn chunks(threads: usize, data: &mut [f32], size: usize, run: impl Fn(usize, &mut [f32]) + Sync) {
    if threads == 1 || data.len() <= size {
        data.chunks_mut(size).enumerate().for_each(|(i, piece)| run(i, piece));
    } else {
        data.par_chunks_mut(size).enumerate().for_each(|(i, piece)| run(i, piece));
    }
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

    /// Elements from one row to the next.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// The address of element `(row, col)`, with a block of this size behind it: to be used as [`row`](Self::row) is.
    pub(super) fn block(&self, row: usize, col: usize, (rows, cols): (usize, usize)) -> *mut f32 {
        let start = row * self.width + col;
        let end = start + (rows - 1) * self.width + cols;
        assert!(col + cols <= self.width && end <= self.len, "block exceeds the matrix");
        self.start.wrapping_add(start)
    }
}
