//! Matrix products: from rows to cuBLASLt's columns, and the choice of an algorithm.
//!
//! For the library, a row-major matrix is its transpose. The transpose of `a · b` is `bᵀ · aᵀ`, so only the
//! factors change places.

use super::super::device::{Fused, Operand, Product};
use crate::cuda::choices::{Choice, Choices, Machine};
use crate::cuda::matmul::{Described, MatrixProducts};
use crate::cuda::product::{Addresses, Algorithm, Epilogue, Matrix, Shape, Type};
use crate::cuda::{Context, CudaError, DeviceInfo, Event, Libraries, Memory, Stream};
use crate::engine::EngineError;
use crate::engine::cuda::scratch::WORKSPACE_BYTES;
use crate::engine::memory::Element;
use crate::recipe::Precision;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

/// Runs of one algorithm that are timed together, after one untimed run.
const RUNS: u32 = 5;
/// An algorithm that was proposed later is chosen only if its time is below this fraction of the best one's.
const CLEARLY: f64 = 0.98;

/// The library, and what is known about each shape.
pub(super) struct Products {
    shapes: HashMap<Shape, Known>,
    choices: Option<Choices>,
    library: Rc<MatrixProducts>,
    workspace: Memory,
    context: Rc<Context>,
    precision: Precision,
}

struct Known {
    described: Described,
    /// The library's proposals; empty if it cannot compute this shape.
    proposed: Vec<Algorithm>,
    /// The chosen algorithm, once a product has run.
    chosen: Option<Algorithm>,
}

/// A product that failed, or that the library cannot compute.
pub(super) enum ProductError {
    Cuda(CudaError),
    Engine(EngineError),
}

impl From<CudaError> for ProductError {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

impl From<EngineError> for ProductError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl Products {
    pub(super) fn new(
        libraries: &Libraries,
        context: &Rc<Context>,
        info: &DeviceInfo,
        precision: Precision,
        cache: Option<&Path>,
    ) -> Result<Self, CudaError> {
        let [driver, _, cublaslt, _] = libraries.findings();
        let version = |found: Option<crate::cuda::found::Version>| {
            found.map(|version| version.to_string()).unwrap_or_default()
        };
        let machine = Machine {
            device: info.name.clone(),
            multiprocessors: info.multiprocessors,
            driver: version(driver.version),
            cublaslt: version(cublaslt.version),
        };
        Ok(Self {
            shapes: HashMap::new(),
            choices: cache.map(|directory| Choices::open(directory, machine)),
            library: Rc::new(MatrixProducts::new(libraries, context)?),
            workspace: Memory::new(context, WORKSPACE_BYTES, "cuBLASLt's workspace")?,
            context: context.clone(),
            precision,
        })
    }

    /// Whether a product of this shape has run.
    pub(super) fn has_run(&self, product: &Product) -> Result<bool, EngineError> {
        let (shape, _) = by_columns(product, self.precision)?;
        Ok(self.shapes.get(&shape).is_some_and(|known| known.chosen.is_some()))
    }

    /// Whether the library can compute this product.
    pub(super) fn fuses(&mut self, product: &Product) -> bool {
        let Ok((shape, at)) = by_columns(product, self.precision) else { return false };
        is_aligned(&shape, &at) && self.known(&shape, &at).is_ok_and(|known| !known.proposed.is_empty())
    }

    fn known(&mut self, shape: &Shape, at: &Addresses) -> Result<&mut Known, CudaError> {
        if !self.shapes.contains_key(shape) {
            let described = self.library.describe(shape)?;
            let proposed = described.algorithms(at, WORKSPACE_BYTES)?;
            self.shapes.insert(*shape, Known { described, proposed, chosen: None });
        }
        self.shapes.get_mut(shape).ok_or_else(|| CudaError::Unsupported("the shape was lost".to_owned()))
    }

    /// Starts a product. The first one of a shape also chooses the algorithm.
    pub(super) fn run(&mut self, product: &Product, stream: &Stream) -> Result<(), ProductError> {
        let (shape, at) = by_columns(product, self.precision)?;
        let chosen = match self.known(&shape, &at)?.chosen {
            Some(chosen) => chosen,
            None => {
                let chosen = self.choose(&shape, &at, product, stream)?;
                self.known(&shape, &at)?.chosen = Some(chosen);
                chosen
            }
        };
        let workspace = self.workspace.address();
        self.known(&shape, &at)?.described.run(&at, product.alpha, &chosen, workspace, stream)?;
        Ok(())
    }

    fn choose(
        &mut self,
        shape: &Shape,
        at: &Addresses,
        product: &Product,
        stream: &Stream,
    ) -> Result<Algorithm, ProductError> {
        let name = shape.to_string();
        let remembered = self.choices.as_ref().and_then(|choices| choices.get(&name)).and_then(Choice::words);
        let known = self.known(shape, at)?;
        let checked = remembered.and_then(|words| known.described.check(at, words, WORKSPACE_BYTES));
        if let Some(algorithm) = checked {
            return Ok(algorithm);
        }
        let Some(first) = known.proposed.first().copied() else {
            return Err(EngineError::Unsupported(format!(
                "cuBLASLt cannot compute the matrix product {name}"
            ))
            .into());
        };
        if self.choices.is_none() {
            return Ok(first);
        }
        let Some((fastest, seconds)) = self.fastest(shape, at, product, stream)? else { return Ok(first) };
        let choice = Choice::new(fastest.words, seconds * 1e6);
        let kept = match &mut self.choices {
            // the remembered choice does not work here any more
            Some(choices) if remembered.is_some() => {
                choices.replace(name, choice);
                None
            }
            Some(choices) => choices.keep(name, choice).words(),
            None => None,
        };
        let described = &self.known(shape, at)?.described;
        Ok(kept.and_then(|words| described.check(at, words, WORKSPACE_BYTES)).unwrap_or(fastest))
    }

    /// The fastest of the proposals and its time in seconds; `None` if there was no memory to try them.
    fn fastest(
        &mut self,
        shape: &Shape,
        at: &Addresses,
        product: &Product,
        stream: &Stream,
    ) -> Result<Option<(Algorithm, f64)>, CudaError> {
        // a trial must not change the result's memory: neither a sum nor a factor that is overwritten
        let mut at = *at;
        let mut scratch = None;
        if product.accumulate || is_in_place(product) {
            let bytes = extent(&product.out, (product.m, product.n), product.count);
            match Memory::new(&self.context, bytes, "trials of matrix products") {
                Ok(memory) => at.out = scratch.insert(memory).address(),
                Err(CudaError::OutOfMemory { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let (begin, end) = (Event::timed(&self.context)?, Event::timed(&self.context)?);
        let workspace = self.workspace.address();
        let mut best: Option<(Algorithm, f64)> = None;
        let known = self.known(shape, &at)?;
        for algorithm in &known.proposed {
            let run = || known.described.run(&at, product.alpha, algorithm, workspace, stream);
            // a proposal may still be refused when it runs
            if run().is_err() {
                continue;
            }
            begin.record(stream)?;
            for _ in 0..RUNS {
                run()?;
            }
            end.record(stream)?;
            end.synchronize()?;
            let seconds = begin.seconds_to(&end)? / f64::from(RUNS);
            if best.is_none_or(|(_, least)| seconds < least * CLEARLY) {
                best = Some((*algorithm, seconds));
            }
        }
        Ok(best)
    }
}

/// The column-major product that computes a row-major one.
fn by_columns(product: &Product, precision: Precision) -> Result<(Shape, Addresses), EngineError> {
    let Product { m, n, k, count, a, b, out, alpha: _, accumulate, fused } = *product;
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
        Fused::GeluSlope(at) => (Epilogue::GeluSlope, 0, at.0),
    };
    if a.element != b.element || out.transposed {
        return Err(EngineError::Input(
            "factors of a matrix product are stored alike, its result by rows".into(),
        ));
    }
    let shape = Shape {
        m: n as u64,
        n: m as u64,
        k: k as u64,
        count: u32::try_from(count)
            .map_err(|_| EngineError::Input(format!("a stack of {count} matrices")))?,
        a: matrix(b)?,
        b: matrix(a)?,
        out: matrix(out)?,
        accumulate,
        tf32: precision == Precision::Tf32 && a.element == Element::F32,
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

/// Whether addresses and rows are aligned as the epilogues require: biases and auxiliary matrices to 16
/// bytes, and in half precision the auxiliary rows to multiples of 8 elements
/// (`CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD`).
fn is_aligned(shape: &Shape, at: &Addresses) -> bool {
    let half = shape.out.kind != Type::F32;
    let aux = at.aux.is_multiple_of(16) && (!half || shape.out.stride.is_multiple_of(8));
    match shape.epilogue {
        Epilogue::None => true,
        Epilogue::Bias => at.bias.is_multiple_of(16),
        Epilogue::BiasGelu => at.bias.is_multiple_of(16) && aux,
        Epilogue::GeluSlope => aux,
    }
}

/// Bytes from the first to the last element of a stack of matrices of (rows, cols), as they are read.
fn extent(operand: &Operand, (rows, cols): (usize, usize), count: usize) -> usize {
    let (rows, cols) = if operand.transposed { (cols, rows) } else { (rows, cols) };
    ((count.max(1) - 1) * operand.stack + (rows.max(1) - 1) * operand.stride + cols) * operand.element.bytes()
}

/// Whether the result overwrites a factor, or the values that its epilogue reads.
fn is_in_place(product: &Product) -> bool {
    let Product { m, n, k, count, a, b, out, .. } = *product;
    let written = extent(&out, (m, n), count) as u64;
    let (begin, end) = (out.address.0, out.address.0 + written);
    let reads = |at: u64, bytes: u64| at < end && begin < at + bytes;
    let aux = matches!(product.fused, Fused::GeluSlope(at) if reads(at.0, written));
    aux || reads(a.address.0, extent(&a, (m, k), count) as u64)
        || reads(b.address.0, extent(&b, (k, n), count) as u64)
}
