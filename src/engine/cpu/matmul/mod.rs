//! Matrix products: Goto and van de Geijn's algorithm (2008) on all threads.
//!
//! The second operand is packed once into panels that all threads share; each thread then takes blocks of rows of the
//! result, packs its part of the first operand, and hands finished rows on while they are in its cache. A sum over k
//! is cut at multiples of [`DEPTH`] only, so it has the same order whatever the number of threads.

mod few;
mod kernel;
mod pack;
#[cfg(test)]
mod tests;
mod tiles;

pub(super) use few::{add_rows, dots};
pub(super) use tiles::{Panels, multiply};

use super::pool::{Columns, pieces, with_scratch};
use super::simd::multiversion;
use super::team::Team;
use crate::engine::cpu::scratch::{DEPTH, TASK_ROWS};
use kernel::{COLS, Left, Out, ROWS};
use std::ops::Range;

/// Elements of the panels that are packed at a time, about: they had better not leave the second-level cache before
/// they are used.
const NEAR: usize = 192 << 10;
/// Columns of the result for which a packed first operand is used at least, while there are so many.
const WIDTH: usize = 1024;
/// With fewer columns than these, rows of the first operand are read where they are.
const WORTH_PACKING: usize = 384;
/// Columns of the result that are finished together: with the rows of a task they stay in the second-level cache. Few
/// in Miri, which could not get to more than these otherwise.
const FINISHED: usize = if cfg!(miri) { 32 } else { 512 };

/// A row-major matrix somewhere in memory, perhaps transposed, perhaps a block of a wider one.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `rows` x `cols`, rows `stride` elements apart.
    pub(super) fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(rows == 0 || (rows - 1) * stride + cols <= data.len(), "matrix exceeds its slice");
        Self { data, rows, cols, row_stride: stride, col_stride: 1 }
    }

    /// `count` rows from `first` on.
    pub(super) fn rows(self, first: usize, count: usize) -> Self {
        assert!(count > 0 && first + count <= self.rows, "rows exceed the matrix");
        Self { data: &self.data[first * self.row_stride..], rows: count, ..self }
    }

    /// `count` columns from `first` on.
    pub(super) fn cols(self, first: usize, count: usize) -> Self {
        self.transposed().rows(first, count).transposed()
    }

    /// The transposed matrix: rows and columns are exchanged, no element moves.
    pub(super) fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }
}

/// Memory for packed operands: the panels that threads share, and what each has for itself.
pub(super) struct Packing<'a> {
    pub(super) panels: &'a mut [f32],
    pub(super) workers: &'a mut [f32],
    pub(super) worker: usize,
    pub(super) team: &'a Team,
}

/// What becomes of a product.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Scaled {
    /// A factor on the product.
    pub(super) scale: f32,
    /// Whether it is added to what is there.
    pub(super) accumulate: bool,
}

/// The result is the product.
pub(super) const SET: Scaled = Scaled { scale: 1.0, accumulate: false };
/// The product is added to the result.
pub(super) const ADD: Scaled = Scaled { scale: 1.0, accumulate: true };

/// `out (+)= scale · a · b`; `out` is row-major with rows `stride` elements apart. `finish` gets each part of a row
/// of the result when it is complete, with its row and its first column.
pub(super) fn matmul(
    out: &mut [f32],
    stride: usize,
    a: Matrix,
    b: Matrix,
    how: Scaled,
    scratch: &mut Packing,
    finish: impl Fn(usize, usize, &mut [f32]) + Sync,
) {
    matmul_with_sums(out, stride, a, b, how, &mut [], scratch, finish);
}

/// [`matmul`] that also adds the sums of `b`'s columns to `sums`, if that is not empty: they are at hand.
#[expect(clippy::too_many_arguments, reason = "one argument per tensor")]
pub(super) fn matmul_with_sums(
    out: &mut [f32],
    stride: usize,
    a: Matrix,
    b: Matrix,
    how: Scaled,
    sums: &mut [f32],
    scratch: &mut Packing,
    finish: impl Fn(usize, usize, &mut [f32]) + Sync,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert!(sums.is_empty() || sums.len() == n, "{} sums of {n} columns", sums.len());
    assert!(b.rows == k, "inner dimensions differ: {k} and {}", b.rows);
    assert!(m == 0 || (m - 1) * stride + n <= out.len(), "result exceeds its slice");
    if sums.is_empty() && how == SET && few::suits(a, b, scratch) {
        return few::multiply(out, stride, a, b, scratch, finish);
    }
    let out = Columns::new(out, stride);
    for depth in cuts(0..k, DEPTH) {
        let width = (NEAR / depth.len()).max(WIDTH).min(scratch.panels.len() / depth.len());
        for cols in cuts(0..n, (width / COLS * COLS).max(COLS)) {
            let how = Scaled { accumulate: how.accumulate || depth.start > 0, ..how };
            let last = depth.end == k;
            let (a, b) = (a.cols(depth.start, depth.len()), b.rows(depth.start, depth.len()));
            let sums = if sums.is_empty() { &mut [] } else { &mut sums[cols.clone()] };
            let block = Block { out: &out, how, rows: 0..m, cols };
            block.multiply(a, b, sums, scratch, |row, first, part| {
                if last {
                    finish(row, first, part);
                }
            });
        }
    }
}

multiversion! {
    // Adds the columns of panels `depth` rows deep, a few rows at a time so that rounding errors stay small.
    fn add_panel_sums(panels: &[f32], depth: usize, sums: &mut [f32]) {
        for (panel, sums) in panels.chunks_exact(COLS * depth).zip(sums.chunks_mut(COLS)) {
            for rows in panel.chunks(32 * COLS) {
                let mut lanes = [0.0; COLS];
                for row in rows.chunks_exact(COLS) {
                    for (lane, x) in lanes.iter_mut().zip(row) {
                        *lane += x;
                    }
                }
                for (sum, lane) in sums.iter_mut().zip(lanes) {
                    *sum += lane;
                }
            }
        }
    }
}

/// `range` in pieces of at most `size`.
fn cuts(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(size).map(move |start| start..end.min(start + size))
}

/// How the rows and columns of a result are divided among threads.
#[derive(Clone, Copy)]
struct Tasks {
    rows: usize,
    cols: usize,
    /// Rows and columns of one task; the last ones may have fewer.
    task_rows: usize,
    task_cols: usize,
}

impl Tasks {
    /// Enough tasks that `threads` end together, and no more than the work is worth; at most `most` rows in each.
    fn new(rows: usize, cols: usize, most: usize, threads: usize) -> Self {
        let wanted = if threads > 1 { 4 * threads } else { 1 };
        let task_rows = rows.div_ceil(wanted).next_multiple_of(ROWS).clamp(ROWS, most);
        // as many for each thread, for the others would wait for one that has one more
        let row_tasks = rows.div_ceil(task_rows);
        let row_tasks = if row_tasks > threads { row_tasks.next_multiple_of(threads) } else { row_tasks };
        let task_rows = rows.div_ceil(row_tasks).next_multiple_of(ROWS);
        let row_tasks = rows.div_ceil(task_rows);
        let task_cols = cols.div_ceil(wanted.div_ceil(row_tasks)).next_multiple_of(COLS);
        Self { rows, cols, task_rows, task_cols }
    }

    fn count(&self) -> usize {
        self.rows.div_ceil(self.task_rows) * self.cols.div_ceil(self.task_cols)
    }

    /// The rows and columns of a task.
    fn part(&self, task: usize) -> (Range<usize>, Range<usize>) {
        let across = self.cols.div_ceil(self.task_cols);
        let (row, col) = (task / across * self.task_rows, task % across * self.task_cols);
        (row..self.rows.min(row + self.task_rows), col..self.cols.min(col + self.task_cols))
    }
}

/// A part of a result.
struct Block<'a> {
    out: &'a Columns<'a>,
    how: Scaled,
    rows: Range<usize>,
    cols: Range<usize>,
}

impl Block<'_> {
    /// `a` has all rows of the result, `b` all columns; at most [`DEPTH`] products per element.
    fn multiply(
        &self,
        a: Matrix,
        b: Matrix,
        sums: &mut [f32],
        scratch: &mut Packing,
        finish: impl Fn(usize, usize, &mut [f32]) + Sync,
    ) {
        let (depth, team) = (a.cols, scratch.team);
        let (panels, _) = scratch.panels.split_at_mut(self.cols.len().div_ceil(COLS) * COLS * depth);
        let share = self.cols.len().div_ceil(2 * team.threads()).next_multiple_of(COLS);
        let sums = Columns::new(sums, sums.len());
        pieces(team, [], [(&mut *panels, share * depth)], |i, [], [panels]| {
            let first = self.cols.start + i * share;
            let count = share.min(self.cols.end - first);
            pack::pack::<COLS>(b.cols(first, count).transposed(), panels);
            if sums.width() > 0 {
                // SAFETY: these columns are this task's alone.
                add_panel_sums(panels, depth, unsafe { sums.row(0, i * share, count) });
            }
        });
        // short sums leave room for more rows, and those of a transposed operand are read in longer runs
        let most = (scratch.worker / depth / ROWS * ROWS).min(4 * TASK_ROWS);
        let tasks = Tasks::new(self.rows.len(), self.cols.len(), most, team.threads());
        let panels = &*panels;
        with_scratch(team, scratch.workers, scratch.worker, tasks.count(), |task, packed| {
            let (rows, cols) = tasks.part(task);
            let first = self.rows.start + rows.start;
            let rows = first..first + rows.len();
            let a = a.rows(rows.start, rows.len());
            let in_place = a.col_stride == 1 && a.rows.is_multiple_of(ROWS) && cols.len() < WORTH_PACKING;
            let left = if in_place {
                Left { start: a.data.as_ptr(), row: a.row_stride, step: 1 }
            } else {
                pack::pack::<ROWS>(a, packed);
                Left { start: packed.as_ptr(), row: 1, step: ROWS }
            };
            let next = if in_place { ROWS * a.row_stride } else { ROWS * depth };
            // rows that are read where they are come once from wherever that is, while the few panels stay in a cache
            let at_once = if in_place { ROWS } else { rows.len() };
            for cols in cuts(cols, FINISHED) {
                for rows in cuts(rows.clone(), at_once) {
                    let left =
                        Left { start: left.start.wrapping_add((rows.start - first) / ROWS * next), ..left };
                    // SAFETY: the first operand's rows are in memory one after the other, `next` elements from tile to
                    // tile; this part of the result is this task's alone.
                    unsafe { self.tiles(&rows, cols.clone(), depth, left, next, panels) };
                    for row in rows {
                        let first = self.cols.start + cols.start;
                        // SAFETY: these rows and columns are this task's alone.
                        finish(row, first, unsafe { self.out.row(row, first, cols.len()) });
                    }
                }
            }
        });
    }

    /// The tiles of some rows and columns (counted from the block's first).
    ///
    /// # Safety
    /// `left` is the first of the tiles that the rows need, `next` elements apart and `depth` deep. Nothing else uses
    /// this part of the result meanwhile.
    unsafe fn tiles(
        &self,
        rows: &Range<usize>,
        cols: Range<usize>,
        depth: usize,
        left: Left,
        next: usize,
        panels: &[f32],
    ) {
        for col in cols.clone().step_by(COLS) {
            let panel = &panels[col * depth..][..COLS * depth];
            for (i, row) in rows.clone().step_by(ROWS).enumerate() {
                let left = Left { start: left.start.wrapping_add(i * next), ..left };
                let size = (ROWS.min(rows.end - row), COLS.min(cols.end - col));
                let start = self.out.block(row, self.cols.start + col, size);
                let out = Out { start, stride: self.out.width(), how: self.how };
                // SAFETY: the caller's promise for `left` and the result, in which `block` found the tile; the panel
                // has `depth` rows.
                unsafe { kernel::product(depth, left, panel.as_ptr(), out, size) };
            }
        }
    }
}
