//! Matrix products in the terms of cuBLASLt.
//!
//! The library is column-major: `out[m, n] = a[m, k] · b[k, n]`, where each matrix is stored column by
//! column, with `stride` elements from one column to the next. For row-major matrices, swap the factors: a
//! row-major matrix is its transpose stored by columns.

/// How numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Type {
    /// fp32.
    F32,
    /// fp16.
    F16,
    /// bf16.
    Bf16,
}

/// One matrix of a product, or a stack of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// How its numbers are stored.
    pub kind: Type,
    /// Elements from one column to the next.
    pub stride: u64,
    /// Elements from one matrix of the stack to the next.
    pub stack: u64,
    /// Whether it is read transposed.
    pub transposed: bool,
    /// A power of two, at most 256, that divides the addresses.
    pub alignment: u32,
}

/// What is applied to the result before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// A bias of m elements, in the result's type, is added to each column.
    Bias,
    /// A bias of m elements, in the result's type, is added to each column. The sum is stored in an auxiliary
    /// matrix shaped like the result, and its GELU (tanh approximation) in the result.
    BiasGelu,
    /// The result is multiplied by the derivative of GELU at an auxiliary matrix shaped like the result. The sums of
    /// its rows, the gradient of a bias, are stored in the bias's place, as m elements in the result's type.
    GeluSlope,
    /// An auxiliary matrix shaped like the result is added. For the library this is a product with C and D in two
    /// places, and no epilogue.
    Add,
}

impl Epilogue {
    /// Whether there is a bias, or a gradient of one.
    pub fn has_bias(self) -> bool {
        matches!(self, Self::Bias | Self::BiasGelu | Self::GeluSlope)
    }
}

/// Everything that the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// Length of the sums.
    pub k: u64,
    /// Matrices in the stack.
    pub count: u32,
    /// Left factor.
    pub a: Matrix,
    /// Right factor.
    pub b: Matrix,
    /// The result, not transposed.
    pub out: Matrix,
    /// Whether the product is added to the previous contents of the result.
    pub accumulate: bool,
    /// Whether fp32 factors may be rounded to TF32.
    pub tf32: bool,
    /// What is applied to the result.
    pub epilogue: Epilogue,
}

/// The addresses of the matrices of one product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Left factor.
    pub a: u64,
    /// Right factor.
    pub b: u64,
    /// Result.
    pub out: u64,
    /// Bias or its gradient, if the epilogue has one.
    pub bias: u64,
    /// Auxiliary matrix, if the epilogue has one, or the matrix that is added.
    pub aux: u64,
}

/// An algorithm in the library's own encoding. It is valid for one version of the library and one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algorithm {
    /// The encoding.
    pub words: [u64; 8],
    /// Bytes of workspace that the algorithm needs.
    pub workspace: usize,
}

/// One line that contains every field; it is the key under which a choice is stored.
impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { m, n, k, count, a, b, out, accumulate, tf32, epilogue } = self;
        write!(f, "{m}x{n}x{k} a {a} b {b} out {out}")?;
        if *count > 1 {
            write!(f, " stack {count}")?;
        }
        if *accumulate {
            f.write_str(" accumulate")?;
        }
        if *tf32 {
            f.write_str(" tf32")?;
        }
        if *epilogue != Epilogue::None {
            write!(f, " {epilogue:?}")?;
        }
        Ok(())
    }
}

impl std::fmt::Display for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, stride, stack, transposed, alignment } = self;
        let transposed = if *transposed { " transposed" } else { "" };
        write!(f, "{kind:?} {stride}/{stack}@{alignment}{transposed}")
    }
}
