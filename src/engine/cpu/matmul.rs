//! Matrix products through the `gemm` crate.
//!
//! It splits a product over rows and columns of the result only, so each element's sum has the same order whatever the
//! number of threads.

use gemm::Parallelism;

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
        assert!(self.col_stride == 1 && first + count <= self.rows, "rows exceed the matrix");
        Self { data: &self.data[first * self.row_stride..], rows: count, ..self }
    }

    /// The same elements with rows and columns exchanged.
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

/// `out = scale · a · b`, or `out += scale · a · b`; `out` is row-major with rows `stride` elements apart.
pub(super) fn matmul(
    out: &mut [f32],
    stride: usize,
    a: Matrix,
    b: Matrix,
    scale: f32,
    accumulate: bool,
    threads: usize,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert!(b.rows == k, "inner dimensions differ: {k} and {}", b.rows);
    assert!(m == 0 || (m - 1) * stride + n <= out.len(), "result exceeds its slice");
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // SAFETY: the strides and sizes of all three matrices were checked against their slices, and `out` is borrowed
    // exclusively, so the operands do not alias it.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride as isize,
            accumulate,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}
