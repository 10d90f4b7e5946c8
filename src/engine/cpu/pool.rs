//! The ways in which kernels share work between threads.
//!
//! Work is cut into pieces whose size depends on the problem only, never on the number of threads, so results do not
//! either.

use super::team::Team;
use std::marker::PhantomData;

/// Elements of a row-wise kernel's piece, about.
const GRAIN: usize = 16 * 1024;

/// Elements of the pieces into which a matrix with rows of this width is cut: whole rows.
pub(super) fn piece(width: usize) -> usize {
    (GRAIN / width).max(1) * width
}

/// Runs `tasks` on the team, each with scratch of `per_worker` elements that nothing else uses meanwhile.
pub(super) fn with_scratch(
    team: &Team,
    scratch: &mut [f32],
    per_worker: usize,
    tasks: usize,
    run: impl Fn(usize, &mut [f32]) + Sync,
) {
    assert!(scratch.len() >= team.threads() * per_worker, "scratch for fewer workers than the team has");
    let scratch = Columns::new(scratch, per_worker);
    team.tasks(tasks, |task, worker| {
        // SAFETY: no two tasks at a time have the same worker.
        run(task, unsafe { scratch.row(worker, 0, per_worker) });
    });
}

/// Cuts each slice into pieces of the given size, all into as many, and runs a task for each set of them.
pub(super) fn pieces<const R: usize, const W: usize>(
    team: &Team,
    reads: [(&[f32], usize); R],
    writes: [(&mut [f32], usize); W],
    run: impl Fn(usize, [&[f32]; R], [&mut [f32]; W]) + Sync,
) {
    let writes = writes.map(|(data, size)| Columns::new(data, size));
    let count = writes[0].pieces();
    assert!(writes.iter().all(|columns| columns.pieces() == count), "slices of unequal numbers of pieces");
    let equal = reads.iter().all(|(data, size)| data.len().div_ceil(*size) == count);
    assert!(equal, "slices of unequal numbers of pieces");
    team.tasks(count, |task, _| {
        let reads = reads.map(|(data, size)| &data[task * size..data.len().min((task + 1) * size)]);
        // SAFETY: piece `task` of each slice is this task's alone.
        run(task, reads, std::array::from_fn(|i| unsafe { writes[i].piece(task) }));
    });
}

/// A row-major matrix that several tasks write at once, each its own columns or rows.
pub(super) struct Columns<'a, T = f32> {
    start: *mut T,
    len: usize,
    width: usize,
    lent: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer is only used through `row` and `piece`, whose contracts keep tasks apart.
unsafe impl<T: Send> Sync for Columns<'_, T> {}

impl<'a, T> Columns<'a, T> {
    pub(super) fn new(data: &'a mut [T], width: usize) -> Self {
        Self { start: data.as_mut_ptr(), len: data.len(), width, lent: PhantomData }
    }

    /// Columns `first..first + count` of a row.
    ///
    /// # Safety
    /// No two slices that overlap may be alive at once: each task keeps to columns of its own.
    #[expect(clippy::mut_from_ref, reason = "the matrix is lent exclusively; tasks divide it by columns")]
    pub(super) unsafe fn row(&self, row: usize, first: usize, count: usize) -> &mut [T] {
        let start = row * self.width + first;
        assert!(first + count <= self.width && start + count <= self.len, "columns exceed the matrix");
        // SAFETY: in bounds of the exclusively lent slice; the caller keeps slices disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), count) }
    }

    /// A row; the last one may be shorter.
    ///
    /// # Safety
    /// As [`row`](Self::row).
    #[expect(clippy::mut_from_ref, reason = "the matrix is lent exclusively; tasks divide it by rows")]
    pub(super) unsafe fn piece(&self, row: usize) -> &mut [T] {
        // SAFETY: the caller's promise.
        unsafe { self.row(row, 0, self.width.min(self.len - row * self.width)) }
    }

    /// The number of rows; the last one may be shorter.
    pub(super) fn pieces(&self) -> usize {
        self.len.div_ceil(self.width)
    }

    /// Elements from one row to the next.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// The address of element `(row, col)`, with a block of this size behind it: to be used as [`row`](Self::row) is.
    pub(super) fn block(&self, row: usize, col: usize, (rows, cols): (usize, usize)) -> *mut T {
        let start = row * self.width + col;
        let end = start + (rows - 1) * self.width + cols;
        assert!(col + cols <= self.width && end <= self.len, "block exceeds the matrix");
        self.start.wrapping_add(start)
    }
}
