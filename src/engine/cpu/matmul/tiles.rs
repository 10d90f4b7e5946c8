//! Small products on one thread, with a second operand that was packed before: the tiles of attention.

use super::kernel::{self, COLS, Left, Out, ROWS};
use super::{Matrix, Scaled, pack};
use crate::engine::cpu::pool::Columns;
use std::ops::Range;

/// A packed second operand.
#[derive(Clone, Copy)]
pub(in crate::engine::cpu) struct Panels<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
}

impl<'a> Panels<'a> {
    /// Packs a matrix at the beginning of `scratch` and returns what is left of that: see
    /// [`panel_elements`](crate::engine::cpu::scratch::panel_elements).
    pub(in crate::engine::cpu) fn pack(from: Matrix, scratch: &'a mut [f32]) -> (Self, &'a mut [f32]) {
        let (data, rest) = scratch.split_at_mut(from.cols.next_multiple_of(COLS) * from.rows);
        pack::pack::<COLS>(from.transposed(), data);
        (Self { data, rows: from.rows, cols: from.cols }, rest)
    }
}

/// `out (+)= scale · a · b[rows, cols]`, rows of `out` `stride` apart; `cols` begins at a multiple of a panel's
/// width. `spare` holds [`ROWS`] rows of `a`.
#[expect(clippy::too_many_arguments, reason = "three matrices, and the parts of one of them")]
pub(in crate::engine::cpu) fn multiply(
    out: &mut [f32],
    stride: usize,
    a: Matrix,
    b: Panels,
    rows: Range<usize>,
    cols: Range<usize>,
    how: Scaled,
    spare: &mut [f32],
) {
    let depth = rows.len();
    assert!(a.cols == depth && rows.end <= b.rows && cols.end <= b.cols && cols.start.is_multiple_of(COLS));
    let out = Columns::new(out, stride);
    for first in (0..a.rows).step_by(ROWS) {
        let part = a.rows(first, ROWS.min(a.rows - first));
        let left = if part.rows == ROWS {
            Left { start: part.data.as_ptr(), row: part.row_stride, step: part.col_stride }
        } else {
            pack::pack::<ROWS>(part, spare);
            Left { start: spare.as_ptr(), row: 1, step: ROWS }
        };
        for col in cols.clone().step_by(COLS) {
            let panel = &b.data[col * b.rows..][..COLS * b.rows][rows.start * COLS..rows.end * COLS];
            let size = (part.rows, COLS.min(cols.end - col));
            let out = Out { start: out.block(first, col - cols.start, size), stride, how };
            // SAFETY: `left` has all rows of a tile, in place or padded; the panel has `depth` rows; `block` found the
            // tile inside the result, which is lent exclusively.
            unsafe { kernel::product(depth, left, panel.as_ptr(), out, size) };
        }
    }
}
