//! The thin layer through which the CUDA backend reaches a device.

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
