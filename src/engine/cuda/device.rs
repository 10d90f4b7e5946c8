//! The thin layer through which the CUDA backend reaches a device.
//!
//! There are two implementations: the real one, over the CUDA driver and cuBLASLt, and the emulator, which runs the same
//! kernel sources on the host. So buffers, launch configurations and the order of calls are tested without a GPU.
//!
//! Everything goes, in order, to one stream; only [`stage`](Device::stage) copies beside it, and what the devices of several
//! ranks do together ([`Collective`]) goes on beside it until [`join`](Device::join). Nothing waits for the device but
//! [`read`](Device::read) and [`synchronize`](Device::synchronize).

use crate::engine::EngineError;
use crate::engine::memory::Element;
use std::ops::Range;

/// An address in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address(pub u64);

impl Address {
    /// So many bytes further on.
    pub fn offset(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// An argument of a kernel, as its parameter's type in the source.
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
}

/// What is compiled in, for kernels are compiled for the run at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelConfig {
    /// How operands of matrix products are stored and rounded: `OPERAND_FP32`, `_TF32`, `_BF16` or `_FP16` is defined.
    pub precision: crate::recipe::Precision,
    /// Width of an attention head: `HEAD_SIZE`.
    pub head_size: usize,
}

/// One launch of a kernel.
#[derive(Debug, Clone)]
pub struct Launch<'a> {
    /// Its name in the source.
    pub kernel: &'static str,
    /// Blocks, x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Arguments in order.
    pub args: &'a [Arg],
}

/// A row-major matrix, or a stack of them, in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operand {
    /// First element.
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
    /// Read the other way round.
    pub fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }
}

/// What a matrix product does to its result before it is written, where the library can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fused {
    /// Nothing.
    None,
    /// Adds a bias (stored as the result is) to each row.
    Bias(Address),
    /// Adds a bias, writes the sum (stored as the result is, rows as far apart) to `sum` and GELU of it to the result.
    BiasGelu {
        /// The bias.
        bias: Address,
        /// Where the sum goes.
        sum: Address,
    },
    /// Multiplies by GELU's slope at these values (stored as the result is, rows as far apart).
    GeluSlope(Address),
}

/// `out[m, n] = alpha * a[m, k] · b[k, n]`, or `+=`, for each matrix of a stack.
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
    /// Factor.
    pub alpha: f32,
    /// Add to what is there.
    pub accumulate: bool,
    /// What follows.
    pub fused: Fused,
}

/// What the devices of all ranks do together, in place. Every rank asks for the same, in the same order. Ranges of owners
/// count elements from the address, one range for each rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Collective {
    /// Adds up floats.
    Sum {
        /// The first.
        at: Address,
        /// How many.
        len: usize,
    },
    /// Adds up doubles.
    SumDoubles {
        /// The first.
        at: Address,
        /// How many.
        len: usize,
    },
    /// Adds up floats, each on its owner only: elsewhere it is as good as lost.
    SumToOwners {
        /// The first.
        at: Address,
        /// Whose they are.
        owners: Vec<Range<usize>>,
    },
    /// Brings floats from their owners to all others.
    Gather {
        /// The first.
        at: Address,
        /// Whose they are.
        owners: Vec<Range<usize>>,
    },
}

/// A recorded sequence of launches, products and collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recording(pub usize);

/// Device memory, kernels and matrix products.
pub trait Device {
    /// Memory that begins as zeros and lives as long as the device.
    fn allocate(&mut self, bytes: usize, what: &'static str) -> Result<Address, EngineError>;

    /// Copies from the host, after everything before; the host's memory is free again on return.
    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), EngineError>;

    /// Copies to the host, waiting for everything before.
    fn read(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), EngineError>;

    /// Starts a copy of `words` into staging buffer `slot` (0 or 1) of the device, beside the stream. Waits only for
    /// the buffer's earlier content to have been taken.
    fn stage(&mut self, slot: usize, words: &[u32]) -> Result<(), EngineError>;

    /// Makes the stream copy what was staged in `slot` to `to`, once it has arrived.
    fn take(&mut self, slot: usize, to: Address) -> Result<(), EngineError>;

    /// Sets bytes to zero.
    fn clear(&mut self, at: Address, bytes: usize) -> Result<(), EngineError>;

    /// Starts a kernel.
    fn launch(&mut self, launch: &Launch) -> Result<(), EngineError>;

    /// Starts a matrix product. With `fused`, [`fuses`](Self::fuses) must have said yes.
    fn product(&mut self, product: &Product) -> Result<(), EngineError>;

    /// Whether the library can do this product with what is `fused` into it.
    fn fuses(&mut self, product: &Product) -> bool;

    /// Begins a collective once everything so far is done. What follows goes on beside it and must leave its numbers alone
    /// until [`join`](Self::join).
    fn collective(&mut self, collective: &Collective) -> Result<(), EngineError>;

    /// Makes what follows wait for the collectives that were begun.
    fn join(&mut self) -> Result<(), EngineError>;

    /// Whether collectives can be part of a recording; the same on all ranks.
    fn records_collectives(&self) -> bool;

    /// Begins to record: what is launched until [`end_recording`](Self::end_recording) is kept and not carried out.
    /// False where nothing can be recorded.
    fn begin_recording(&mut self) -> Result<bool, EngineError>;

    /// Ends the recording, ready to be [played](Self::play). `None` if it could not be kept: launch everything again.
    fn end_recording(&mut self) -> Result<Option<Recording>, EngineError>;

    /// Carries out a recording.
    fn play(&mut self, recording: Recording) -> Result<(), EngineError>;

    /// Waits for everything, and reports what failed.
    fn synchronize(&mut self) -> Result<(), EngineError>;
}
