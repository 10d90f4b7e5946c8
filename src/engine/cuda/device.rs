//! The thin layer through which the CUDA backend reaches a device.
//!
//! It has two implementations: the GPU, over the CUDA driver and cuBLASLt, and the emulator, which runs the
//! same kernel sources on the host. So buffers, launch configurations and the order of calls are tested
//! without a GPU.
//!
//! All work goes to one stream, in order, with two exceptions: [`stage`](Device::stage) copies beside it, and
//! collectives among the devices of several ranks ([`Collective`]) run beside it until
//! [`join`](Device::join). Only [`read`](Device::read) and [`synchronize`](Device::synchronize) wait for the
//! device.

use crate::engine::EngineError;
use crate::engine::memory::{Element, MemoryConfig};
use crate::engine::traffic::Mark;
use crate::engine::traffic::{Traffic, Unit};
use std::fmt;
use std::ops::Range;

/// An address in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address(pub u64);

impl Address {
    /// The address `bytes` further on.
    pub fn offset(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// A kernel argument, by the type of its parameter in the source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arg {
    /// A pointer.
    Pointer(Address),
    /// `int`.
    Int(i32),
    /// `long long`.
    Long(i64),
    /// `float`.
    Float(f32),
    /// `double`.
    Double(f64),
    /// A size beyond the range of its parameter. Nothing is launched with it: it becomes an error.
    TooLarge(usize),
}

/// The compile-time configuration of the kernels, which are compiled for each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelConfig {
    /// How operands of matrix products are stored and rounded: defines `OPERAND_FP32`, `_TF32`, `_BF16` or
    /// `_FP16`.
    pub precision: crate::recipe::Precision,
    /// Width of an attention head: defines `HEAD_SIZE`.
    pub head_size: usize,
    /// Whether kernels can drop activations: defines `DROPOUT`.
    pub dropout: bool,
}

impl KernelConfig {
    /// What an engine with these buffers launches.
    pub fn of(config: &MemoryConfig) -> Self {
        let (precision, head_size) = (config.precision, config.dims.head_size());
        Self { precision, head_size, dropout: config.dropout().is_some() }
    }
}

/// One launch of a kernel.
#[derive(Debug, Clone)]
pub struct Launch<'a> {
    /// The kernel's name in the source.
    pub kernel: &'static str,
    /// Number of blocks: x, y, z.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The arguments, in order.
    pub args: &'a [Arg],
}

/// A row-major matrix, or a stack of them, in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Address of the first element.
    pub address: Address,
    /// How elements are stored.
    pub element: Element,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Elements from one matrix of a stack to the next.
    pub stack: usize,
    /// Whether it is read transposed.
    pub transposed: bool,
}

impl Operand {
    /// The transpose of this operand.
    pub fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }
}

/// What a matrix product applies to its result before it is stored, if the library can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fused {
    /// Nothing.
    None,
    /// Adds a bias, stored like the result, to each row.
    Bias(Address),
    /// Adds a bias, stores the sum (with the result's type and row stride) in `sum` and its GELU in the
    /// result.
    BiasGelu {
        /// The bias.
        bias: Address,
        /// Address of the sum.
        sum: Address,
    },
    /// Multiplies by the derivative of GELU, and sums the columns of the result.
    GeluSlope {
        /// Where GELU's derivative is taken, with the result's type and row stride.
        at: Address,
        /// Where the sums go, one for each column, with the result's type.
        sums: Address,
    },
    /// Adds a matrix that is stored like the result, with the same row stride.
    Residual(Address),
}

/// `out[m, n] = alpha * a[m, k] · b[k, n]`, or `+=` if `accumulate`, for each matrix of a stack.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// Matrices in the stack.
    pub count: usize,
    /// Left factor.
    pub a: Operand,
    /// Right factor.
    pub b: Operand,
    /// The result, not transposed.
    pub out: Operand,
    /// Factor of the product.
    pub alpha: f32,
    /// Whether to add to the previous contents of the result.
    pub accumulate: bool,
    /// What is applied to the result.
    pub fused: Fused,
    /// Whether factors of 32 bits may be cut to the 10 mantissa bits of TF32; `None` follows the run's precision.
    pub tf32: Option<bool>,
}

impl Product {
    /// The bytes of both factors, of the result, and of what is fused into it; 2 m n k operations for each matrix of
    /// the stack.
    pub fn traffic(&self) -> Traffic {
        let Self { m, n, k, count, a, b, out, accumulate, fused, .. } = *self;
        let result = count * m * n;
        let stated = Traffic::by(Unit::Products)
            .reads(count * m * k, a.element.bytes())
            .reads(count * k * n, b.element.bytes())
            .reads(if accumulate { result } else { 0 }, out.element.bytes())
            .writes(result, out.element.bytes())
            .computes(2 * result * k);
        match fused {
            Fused::None => stated,
            Fused::Bias(_) => stated.reads(n, out.element.bytes()),
            Fused::BiasGelu { .. } => {
                stated.reads(n, out.element.bytes()).writes(result, out.element.bytes())
            }
            Fused::GeluSlope { .. } => {
                stated.reads(result, out.element.bytes()).writes(n, out.element.bytes())
            }
            Fused::Residual(_) => stated.reads(result, out.element.bytes()),
        }
    }
}

/// The shape for people: `product 64x768x3072 16>32 += gelu` multiplies `[64, 3072]` and `[3072, 768]` of 16 bits each
/// and adds the result to numbers of 32 bits.
impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { m, n, k, count, a, out, accumulate, fused, .. } = *self;
        write!(f, "product {m}x{n}x{k}")?;
        if count > 1 {
            write!(f, " of {count}")?;
        }
        write!(f, " {}>{}", 8 * a.element.bytes(), 8 * out.element.bytes())?;
        if accumulate {
            f.write_str(" +=")?;
        }
        f.write_str(match fused {
            Fused::None => "",
            Fused::Bias(_) => " bias",
            Fused::BiasGelu { .. } => " bias gelu",
            Fused::GeluSlope { .. } => " gelu' and sums",
            Fused::Residual(_) => " residual",
        })
    }
}

/// One way to compute something: a product, and the kernel that has to follow it, if any.
#[derive(Debug, Clone, Copy)]
pub struct Way<'a> {
    /// The product.
    pub product: &'a Product,
    /// The kernel.
    pub then: Option<&'a Launch<'a>>,
}

/// A collective operation among the devices of all ranks, in place. Every rank must request the same ones in
/// the same order. The owners' ranges, one for each rank, count elements from the address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collective {
    /// Sums floats.
    Sum {
        /// Address of the first.
        at: Address,
        /// Number of floats.
        len: usize,
    },
    /// Sums doubles.
    SumDoubles {
        /// Address of the first.
        at: Address,
        /// Number of doubles.
        len: usize,
    },
    /// Sums floats, each on its owner only; elsewhere they are undefined afterwards.
    SumToOwners {
        /// Address of the first.
        at: Address,
        /// The range of each rank.
        owners: Vec<Range<usize>>,
    },
    /// Copies floats from their owners to all other ranks.
    Gather {
        /// Address of the first.
        at: Address,
        /// The range of each rank.
        owners: Vec<Range<usize>>,
    },
}

/// A recorded sequence of launches, products and collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recording(pub usize);

/// Device memory, kernels and matrix products.
pub trait Device {
    /// Allocates memory filled with zeros, which lives as long as the device. `what` names its purpose in
    /// errors.
    fn allocate(&mut self, bytes: usize, what: &'static str) -> Result<Address, EngineError>;

    /// Copies from the host, after all earlier work. The bytes may be reused on return.
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), EngineError>;

    /// Copies to the host, after waiting for all earlier work.
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), EngineError>;

    /// Starts a copy of `words` to staging buffer `slot` (0 or 1) of the device, beside the stream. Waits
    /// only until the buffer's earlier content has been taken.
    fn stage(&mut self, slot: usize, words: &[u32]) -> Result<(), EngineError>;

    /// Makes the stream copy what was staged in `slot` to `to`, once it has arrived.
    fn take(&mut self, slot: usize, to: Address) -> Result<(), EngineError>;

    /// Sets `bytes` bytes to zero.
    fn clear(&mut self, at: Address, bytes: usize) -> Result<(), EngineError>;

    /// Bytes of shared memory that a block can have.
    fn shared_per_block(&self) -> u32;

    /// Launches a kernel.
    fn launch(&mut self, launch: &Launch) -> Result<(), EngineError>;

    /// Starts a matrix product. If something is `fused` into it, [`fuses`](Self::fuses) must have returned
    /// true.
    fn product(&mut self, product: &Product) -> Result<(), EngineError>;

    /// Whether to compute something as `fused`, by a product with something fused into it, and not as `apart`, by a
    /// product without: the library must be able to do it, have done it right when it was tried, and not take longer.
    fn fuses(&mut self, fused: Way, apart: Way) -> bool;

    /// Begins a collective after all earlier work. Later work runs beside it and must not touch its numbers
    /// until [`join`](Self::join).
    fn collective(&mut self, collective: &Collective) -> Result<(), EngineError>;

    /// Makes later work wait for the collectives that have begun.
    fn join(&mut self) -> Result<(), EngineError>;

    /// Whether collectives can be part of a recording; the answer is the same on all ranks.
    fn records_collectives(&self) -> bool;

    /// Begins a recording: launches until [`end_recording`](Self::end_recording) are recorded and not
    /// executed. Returns false if the device cannot record.
    fn begin_recording(&mut self) -> Result<bool, EngineError>;

    /// Ends the recording. Returns `None` if it cannot be [played](Self::play), so that everything must be
    /// launched again; [`notes`](Self::notes) then has the reason.
    fn end_recording(&mut self) -> Result<Option<Recording>, EngineError>;

    /// Executes a recording.
    fn play(&mut self, recording: Recording) -> Result<(), EngineError>;

    /// Waits for all work, and reports what failed.
    fn synchronize(&mut self) -> Result<(), EngineError>;

    /// The ways to be faster that were left out, each with the reason, as one line of text.
    fn notes(&self) -> &[String];

    /// A moment in the order of the work, by the device's own clock; `None` for a device without one.
    fn mark(&mut self) -> Result<Option<Mark>, EngineError> {
        Ok(None)
    }

    /// The seconds between pairs of moments. Waits for all work, and forgets all moments.
    fn seconds(&mut self, pairs: &[(Mark, Mark)]) -> Result<Vec<f64>, EngineError> {
        match pairs.is_empty() {
            true => Ok(Vec::new()),
            false => Err(EngineError::Device("this device has no clock".to_owned())),
        }
    }

    /// Begins a range of work with this name for a profiler, or ends the last one. Does nothing without a profiler.
    fn annotate(&mut self, _name: Option<&dyn fmt::Display>) {}

    /// Bytes of the device's memory that this process was seen to take; `None` where they cannot be measured.
    fn memory_taken(&self) -> Option<u64> {
        None
    }
}
