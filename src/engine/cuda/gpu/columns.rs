//! A row-major product in the terms of cuBLASLt, which is column-major: its shape, its addresses, what they must be
//! aligned to, and what it overwrites.
//!
//! For the library, a row-major matrix is its transpose. The transpose of `a · b` is `bᵀ · aᵀ`, so only the factors
//! change places.

use super::super::device::{Fused, Operand, Product};
use crate::cuda::product::{Addresses, Epilogue, Matrix, Shape, Type};
use crate::engine::EngineError;
use crate::engine::memory::Element;
use crate::recipe::Precision;

/// The column-major product that computes a row-major one.
pub(super) fn by_columns(product: &Product, precision: Precision) -> Result<(Shape, Addresses), EngineError> {
    let Product { m, n, k, count, a, b, out, alpha: _, accumulate, fused, tf32 } = *product;
    let matrix = |operand: Operand| {
        Ok::<_, EngineError>(Matrix {
            kind: kind(operand.element, precision)?,
            stride: operand.stride as u64,
            // a choice must not depend on the stack of a single matrix
            stack: if count > 1 { operand.stack as u64 } else { 0 },
            transposed: operand.transposed,
            alignment: alignment(&operand, count),
        })
    };
    let (epilogue, bias, aux) = match fused {
        Fused::None => (Epilogue::None, 0, 0),
        Fused::Bias(bias) => (Epilogue::Bias, bias.0, 0),
        Fused::BiasGelu { bias, sum } => (Epilogue::BiasGelu, bias.0, sum.0),
        Fused::GeluSlope { at, sums } => (Epilogue::GeluSlope, sums.0, at.0),
        Fused::Residual(x) => (Epilogue::Add, 0, x.0),
    };
    if a.element != b.element || out.transposed {
        return Err(EngineError::Input(
            "factors of a matrix product are stored alike, its result by rows".into(),
        ));
    }
    // what is added is described as the result is
    let of_out = match fused {
        Fused::Residual(x) => alignment(&Operand { address: x, ..out }, count).min(alignment(&out, count)),
        _ => alignment(&out, count),
    };
    let shape = Shape {
        m: n as u64,
        n: m as u64,
        k: k as u64,
        count: u32::try_from(count)
            .map_err(|_| EngineError::Input(format!("a stack of {count} matrices")))?,
        a: matrix(b)?,
        b: matrix(a)?,
        out: Matrix { alignment: of_out, ..matrix(out)? },
        accumulate,
        tf32: tf32.unwrap_or(precision == Precision::Tf32) && a.element == Element::F32,
        epilogue,
    };
    let at = Addresses { a: b.address.0, b: a.address.0, out: out.address.0, bias, aux };
    Ok((shape, at))
}

fn kind(element: Element, precision: Precision) -> Result<Type, EngineError> {
    match (element, precision) {
        (Element::F32, _) => Ok(Type::F32),
        (Element::Half, Precision::Bf16) => Ok(Type::Bf16),
        (Element::Half, Precision::Fp16) => Ok(Type::F16),
        (Element::Half, _) => Err(EngineError::Unsupported("in fp32 and tf32 nothing has two bytes".into())),
    }
}

/// The largest power of two, at most 256, that divides all addresses of a stack.
fn alignment(operand: &Operand, count: usize) -> u32 {
    let apart = if count > 1 { operand.stack * operand.element.bytes() } else { 0 };
    let bits = operand.address.0 | apart as u64 | 256;
    1 << bits.trailing_zeros()
}

/// Whether addresses and rows are aligned as the epilogues require: biases, sums and auxiliary matrices to
/// 16 bytes, and in half precision the auxiliary rows to multiples of 8 elements
/// (`CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD`).
pub(super) fn is_aligned(shape: &Shape, at: &Addresses) -> bool {
    let half = shape.out.kind != Type::F32;
    let aux = at.aux.is_multiple_of(16) && (!half || shape.out.stride.is_multiple_of(8));
    match shape.epilogue {
        Epilogue::None | Epilogue::Add => true,
        Epilogue::Bias => at.bias.is_multiple_of(16),
        Epilogue::BiasGelu | Epilogue::GeluSlope => at.bias.is_multiple_of(16) && aux,
    }
}

/// Bytes from the first to the last element of a stack of matrices of (rows, cols), as they are read.
pub(super) fn extent(operand: &Operand, (rows, cols): (usize, usize), count: usize) -> usize {
    let (rows, cols) = if operand.transposed { (cols, rows) } else { (rows, cols) };
    ((count.max(1) - 1) * operand.stack + (rows.max(1) - 1) * operand.stride + cols) * operand.element.bytes()
}

/// Whether the result overwrites a factor, or the values that its epilogue reads or adds.
pub(super) fn is_in_place(product: &Product) -> bool {
    let Product { m, n, k, count, a, b, out, .. } = *product;
    let written = extent(&out, (m, n), count) as u64;
    let (begin, end) = (out.address.0, out.address.0 + written);
    let reads = |at: u64, bytes: u64| at < end && begin < at + bytes;
    let aux = matches!(
        product.fused,
        Fused::GeluSlope { at, .. } | Fused::Residual(at) if reads(at.0, written)
    );
    aux || reads(a.address.0, extent(&a, (m, k), count) as u64)
        || reads(b.address.0, extent(&b, (k, n), count) as u64)
}
