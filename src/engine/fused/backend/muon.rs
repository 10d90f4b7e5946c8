//! Muon's kernels and their tensors. Matrices are `[inputs, outputs]`, row-major, in fp32.

use crate::engine::memory::Span;
use crate::engine::optimizer::muon::{Constants, Side};
use crate::recipe::MuonPrecision;

/// The part of a [`Backend`](super::Backend) that Muon needs.
pub trait MuonKernels {
    /// The running mean of a matrix's gradients, and what is made orthogonal of both, rounded, if the backend has
    /// [decided](super::Backend::measure) to apply the step; clears the gradients either way. Gradients are unscaled
    /// and clipped as they are read.
    fn muon_momentum(&mut self, tensors: MuonMomentum, constants: &Constants);

    /// Divides a matrix by its Frobenius norm, or by [`LEAST_NORM`](crate::engine::optimizer::muon::LEAST_NORM) if that
    /// is more, and rounds it.
    fn muon_normalize(&mut self, x: Span, precision: MuonPrecision);

    /// A product of Newton and Schulz's iteration, rounded.
    fn muon_product(&mut self, product: MuonProduct, precision: MuonPrecision);

    /// Weight decay of a matrix and its orthogonal update, if the step is applied.
    fn muon_apply(&mut self, tensors: MuonUpdate, constants: &Constants);
}

/// The tensors of Muon's running mean, all of one length.
#[derive(Debug, Clone, Copy)]
pub struct MuonMomentum {
    /// Accumulated gradients of the matrix.
    pub gradients: Span,
    /// Their running mean.
    pub momentum: Span,
    /// What is to be made orthogonal.
    pub out: Span,
}

/// A product of the iteration; no operand overlaps its result.
#[derive(Debug, Clone, Copy)]
pub enum MuonProduct {
    /// `out[n, n] = x · xᵀ` ([`Side::Left`]) or `xᵀ · x` ([`Side::Right`]), where n is the side's length.
    Gram {
        /// The matrix.
        x: Span,
        /// Its rows and columns.
        shape: [usize; 2],
        /// Which of the two products.
        side: Side,
        /// The result.
        out: Span,
    },
    /// `out = factors[0] · left · right + factors[1] · plus`, rounded once.
    Sum {
        /// The first operand.
        left: Span,
        /// The second operand.
        right: Span,
        /// Rows and columns of both.
        shapes: [[usize; 2]; 2],
        /// The factor of the product, and that of what is added.
        factors: [f32; 2],
        /// What is added, of the result's shape.
        plus: Span,
        /// The result.
        out: Span,
    },
}

/// The tensors of Muon's update, all of one length.
#[derive(Debug, Clone, Copy)]
pub struct MuonUpdate {
    /// The matrix.
    pub parameters: Span,
    /// What is subtracted from it, times the step's size.
    pub update: Span,
    /// The parameters as operands of matrix products, where they are to be written as well.
    pub low: Option<Span>,
}
