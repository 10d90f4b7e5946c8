//! Matrix products by cuBLASLt, and the choice of an algorithm for each shape.

use super::super::device::Product;
use super::columns::{by_columns, extent, is_aligned, is_in_place};
use crate::cuda::choices::{Choice, Choices, Machine, Way};
use crate::cuda::matmul::{Described, MatrixProducts};
use crate::cuda::product::{Addresses, Algorithm, Shape};
use crate::cuda::{Context, CudaError, DeviceInfo, Event, Libraries, Memory, Stream};
use crate::engine::EngineError;
use crate::engine::cuda::scratch::WORKSPACE_BYTES;
use crate::recipe::Precision;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

/// Runs of one algorithm that are timed together, after one untimed run.
pub(super) const RUNS: u32 = 5;
/// More than the second-level cache of any device: 126 MB on B200.
const CACHE_BYTES: usize = 256 << 20;
/// An algorithm that was proposed later is chosen only if its time is below this fraction of the best one's.
const CLEARLY: f64 = 0.98;

/// The library, and what is known about each shape.
pub(super) struct Products {
    shapes: HashMap<Shape, Known>,
    /// Whether products with an epilogue are computed as one, as far as it is decided.
    fused: HashMap<Shape, bool>,
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
#[derive(Debug)]
pub(super) enum ProductError {
    Cuda(CudaError),
    Engine(EngineError),
}

impl std::fmt::Display for ProductError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cuda(error) => error.fmt(f),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

/// What came of trying the library's proposals.
enum Trial {
    /// The fastest and its time in seconds; without a cache the first that ran, with a time of 0.
    Best(Algorithm, f64),
    /// There was no memory to try them.
    NoMemory,
    /// The library proposed nothing, or refused all that it proposed.
    Refused(Option<CudaError>),
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
        let library = Rc::new(MatrixProducts::new(libraries, context)?);
        let [driver, ..] = libraries.findings();
        let machine = Machine {
            device: info.name.clone(),
            multiprocessors: info.multiprocessors,
            driver: driver.version.map(|version| version.to_string()).unwrap_or_default(),
            cublaslt: library.release(),
        };
        Ok(Self {
            shapes: HashMap::new(),
            fused: HashMap::new(),
            choices: cache.map(|directory| Choices::open(directory, machine)),
            library,
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

    /// Whether a product with an epilogue is computed as one; `None` as long as that is not decided.
    pub(super) fn decided(&self, product: &Product) -> Option<bool> {
        let (shape, _) = by_columns(product, self.precision).ok()?;
        self.fused.get(&shape).copied()
    }

    /// Decides that products of this shape are computed with their epilogue as one, or not.
    pub(super) fn decide(&mut self, product: &Product, fused: bool) {
        if let Ok((shape, _)) = by_columns(product, self.precision) {
            self.fused.insert(shape, fused);
        }
    }

    pub(super) fn precision(&self) -> Precision {
        self.precision
    }

    /// How messages name a product.
    pub(super) fn name(&self, product: &Product) -> String {
        match by_columns(product, self.precision) {
            Ok((shape, _)) => shape.to_string(),
            Err(_) => format!("{product:?}"),
        }
    }

    /// Whether the library proposes an algorithm for this product.
    pub(super) fn proposes(&mut self, product: &Product) -> Result<bool, ProductError> {
        let (shape, at) = by_columns(product, self.precision)?;
        Ok(!self.known(&shape, &at)?.proposed.is_empty())
    }

    /// Whether addresses and rows are aligned as the library requires for this product's epilogue.
    pub(super) fn is_aligned(&self, product: &Product) -> bool {
        by_columns(product, self.precision).is_ok_and(|(shape, at)| is_aligned(&shape, &at))
    }

    /// Whether choices are remembered on disk, so that it is worth measuring them.
    pub(super) fn remembers(&self) -> bool {
        self.choices.is_some()
    }

    /// The faster way for this product, as it was measured at first.
    pub(super) fn way(&self, product: &Product) -> Option<Way> {
        let (shape, _) = by_columns(product, self.precision).ok()?;
        self.choices.as_ref()?.way(&shape.to_string()).cloned()
    }

    /// Stores the faster way for this product unless another process was first. Returns the one that holds.
    pub(super) fn keep_way(&mut self, product: &Product, way: Way) -> Way {
        match (&mut self.choices, by_columns(product, self.precision)) {
            (Some(choices), Ok((shape, _))) => choices.keep_way(shape.to_string(), way),
            _ => way,
        }
    }

    /// Starts a product with the library's first proposal that runs; nothing is timed or remembered.
    pub(super) fn run_first(&mut self, product: &Product, stream: &Stream) -> Result<(), ProductError> {
        let (shape, at) = by_columns(product, self.precision)?;
        let workspace = self.workspace.address();
        let known = self.known(&shape, &at)?;
        let mut refused = None;
        for algorithm in &known.proposed {
            match known.described.run(&at, product.alpha, algorithm, workspace, stream) {
                Ok(()) => return Ok(()),
                Err(error) => refused = Some(error),
            }
        }
        Err(impossible(&shape, refused))
    }

    fn known(&mut self, shape: &Shape, at: &Addresses) -> Result<&mut Known, CudaError> {
        if !self.shapes.contains_key(shape) {
            let described = self.library.describe(shape)?;
            let proposed = described.algorithms(at, WORKSPACE_BYTES)?;
            self.shapes.insert(*shape, Known { described, proposed, chosen: None });
        }
        self.shapes.get_mut(shape).ok_or_else(|| CudaError::Unsupported("the shape was lost".to_owned()))
    }

    /// Chooses the algorithm of a product unless one is chosen for its shape; changes no memory of the product but its
    /// result, and not that either if it is added to or overwrites a factor.
    pub(super) fn prepare(&mut self, product: &Product, stream: &Stream) -> Result<Algorithm, ProductError> {
        let (shape, at) = by_columns(product, self.precision)?;
        if let Some(chosen) = self.known(&shape, &at)?.chosen {
            return Ok(chosen);
        }
        let chosen = self.choose(&shape, &at, product, stream)?;
        self.known(&shape, &at)?.chosen = Some(chosen);
        Ok(chosen)
    }

    /// Starts a product. The first one of a shape also chooses the algorithm.
    pub(super) fn run(&mut self, product: &Product, stream: &Stream) -> Result<(), ProductError> {
        let chosen = self.prepare(product, stream)?;
        let (shape, at) = by_columns(product, self.precision)?;
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
        let first = known.proposed.first().copied().ok_or_else(|| impossible(shape, None))?;
        let (fastest, seconds) = match self.fastest(shape, at, product, stream)? {
            Trial::Best(fastest, seconds) => (fastest, seconds),
            // kept like a timed one: with more memory free, a later start would choose another and change the bits
            Trial::NoMemory => (first, 0.0),
            Trial::Refused(last) => return Err(impossible(shape, last)),
        };
        if self.choices.is_none() {
            return Ok(fastest);
        }
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

    /// Tries the proposals. Without a cache nothing is timed, and the first one that runs is taken, so that all
    /// runs use the same one.
    fn fastest(
        &mut self,
        shape: &Shape,
        at: &Addresses,
        product: &Product,
        stream: &Stream,
    ) -> Result<Trial, CudaError> {
        // a trial must not change the result's memory: neither a sum nor a factor that is overwritten
        let mut at = *at;
        let mut scratch = None;
        if product.accumulate || is_in_place(product) {
            let bytes = extent(&product.out, (product.m, product.n), product.count);
            match Memory::new(&self.context, bytes, "trials of matrix products") {
                Ok(memory) => at.out = scratch.insert(memory).address(),
                Err(CudaError::OutOfMemory { .. }) => return Ok(Trial::NoMemory),
                Err(error) => return Err(error),
            }
        }
        let (begin, end) = (Event::timed(&self.context)?, Event::timed(&self.context)?);
        let workspace = self.workspace.address();
        let copies = match self.choices {
            Some(_) => self.copies(&at, product, stream)?,
            None => Vec::new(),
        };
        let places: Vec<Addresses> = [at].into_iter().chain(copies.iter().map(|(at, _)| *at)).collect();
        let mut best: Option<(Algorithm, f64)> = None;
        let timed = self.choices.is_some();
        let known = self.known(shape, &at)?;
        let mut refused = None;
        for algorithm in &known.proposed {
            let run = |at| known.described.run(at, product.alpha, algorithm, workspace, stream);
            // a proposal may still be refused when it runs
            if let Err(error) = run(&at) {
                refused = Some(error);
                continue;
            }
            if !timed {
                // the trial may still write to the scratch memory, which is freed on return
                stream.synchronize()?;
                return Ok(Trial::Best(*algorithm, 0.0));
            }
            begin.record(stream)?;
            for at in places.iter().cycle().skip(1).take(RUNS as usize) {
                run(at)?;
            }
            end.record(stream)?;
            end.synchronize()?;
            let seconds = begin.seconds_to(&end)? / f64::from(RUNS);
            if best.is_none_or(|(_, least)| seconds < least * CLEARLY) {
                best = Some((*algorithm, seconds));
            }
        }
        // the copies may still be in use
        stream.synchronize()?;
        Ok(best.map_or(Trial::Refused(refused), |(algorithm, seconds)| Trial::Best(algorithm, seconds)))
    }
}

impl Products {
    /// Copies of a product's matrices for trials in turn, as many as it takes that the cache has forgotten a matrix
    /// when its turn comes again: in a step, others have been there meanwhile. Fewer, or none, where memory is short.
    fn copies(
        &self,
        at: &Addresses,
        product: &Product,
        stream: &Stream,
    ) -> Result<Vec<(Addresses, [Memory; 3])>, CudaError> {
        let Product { m, n, k, count, a, b, out, .. } = *product;
        // the library's first factor is the second of the product by rows
        let bytes = [extent(&b, (k, n), count), extent(&a, (m, k), count), extent(&out, (m, n), count)];
        let turns = CACHE_BYTES.div_ceil(bytes.iter().sum::<usize>().max(1)).min(RUNS as usize - 1);
        let mut copies = Vec::new();
        for _ in 0..turns {
            let copied = bytes.map(|bytes| Memory::new(&self.context, bytes, "trials of matrix products"));
            let [Ok(a), Ok(b), Ok(out)] = copied else { break };
            stream.copy(at.a, a.address(), bytes[0])?;
            stream.copy(at.b, b.address(), bytes[1])?;
            stream.clear(out.address(), bytes[2])?;
            let places = Addresses { a: a.address(), b: b.address(), out: out.address(), ..*at };
            copies.push((places, [a, b, out]));
        }
        Ok(copies)
    }
}

/// A product for which there is no algorithm, or of which the library refused the last one so.
fn impossible(shape: &Shape, refused: Option<CudaError>) -> ProductError {
    let why = refused.map(|error| format!(": {error}")).unwrap_or_default();
    EngineError::Unsupported(format!("cuBLASLt cannot compute the matrix product {shape}{why}")).into()
}
