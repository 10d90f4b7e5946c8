//! Matrix products as cuBLASLt thinks of them.
//!
//! The library counts by columns: `out[m, n] = a[m, k] · b[k, n]`, each matrix stored column by column, `stride` elements
//! from one column to the next. Whoever has rows swaps the factors, for a row-major matrix is its transpose stored by
//! columns.

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
    /// A power of two, at most 256, by which the addresses can be divided.
    pub alignment: u32,
}

/// What is done to the result while it is at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    None,
    /// A bias of m elements, stored as the result is, is added to each column.
    Bias,
    /// The same; the sum goes to an auxiliary matrix like the result, GELU (by tanh) of it to the result.
    BiasGelu,
    /// The result is multiplied by GELU's slope at an auxiliary matrix like the result.
    GeluSlope,
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
    /// Whether the product is added to what is there.
    pub accumulate: bool,
    /// Whether fp32 factors may be rounded to TF32.
    pub tf32: bool,
    /// What follows.
    pub epilogue: Epilogue,
}

/// Where the matrices of one product lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Left factor.
    pub a: u64,
    /// Right factor.
    pub b: u64,
    /// Result.
    pub out: u64,
    /// Bias, if the epilogue has one.
    pub bias: u64,
    /// Auxiliary matrix, if the epilogue has one.
    pub aux: u64,
}

/// An algorithm, as the library describes it to itself. It holds for one version of the library and one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Algorithm {
    /// Opaque.
    pub words: [u64; 8],
    /// Bytes of workspace that it needs.
    pub workspace: usize,
}

/// One line that says everything, by which a choice is remembered.
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
