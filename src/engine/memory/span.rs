//! Runs of elements inside the buffers of an engine.

use std::ops::Range;

/// How one number is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// 4 bytes: fp32, also where a lower precision is emulated by rounding; or a word of 32 bits.
    F32,
    /// 2 bytes: bf16 or fp16, as the precision says.
    Half,
}

impl Element {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Half => 2,
        }
    }
}

/// One allocation of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// fp32 master weights.
    Parameters,
    /// fp32 gradients.
    Gradients,
    /// A state of the optimizer, by its place in the rule's list.
    Optimizer(usize),
    /// The parameters as operands of matrix products: rounded to the recipe's precision, on CUDA also stored in it.
    /// Absent where the products read the parameters themselves.
    Low,
    /// Activations and scratch.
    Arena,
}

impl Buffer {
    /// A number for each buffer of an engine, counted from 0.
    pub fn index(self) -> usize {
        match self {
            Self::Parameters => 0,
            Self::Gradients => 1,
            Self::Low => 2,
            Self::Arena => 3,
            Self::Optimizer(state) => 4 + state,
        }
    }
}

/// A run of elements inside one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The allocation.
    pub buffer: Buffer,
    /// How its elements are stored.
    pub element: Element,
    /// First element: a buffer begins at element 0 of either kind.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl Span {
    /// Bytes from the start of the buffer.
    pub fn byte_range(&self) -> Range<usize> {
        let size = self.element.bytes();
        self.start * size..(self.start + self.len) * size
    }

    /// The first `len` elements.
    pub fn head(self, len: usize) -> Self {
        self.slice(0, len)
    }

    /// `len` elements from `start` on, both relative to this span.
    pub fn slice(self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len, "slice {start}+{len} of a span of {}", self.len);
        Self { start: self.start + start, len, ..self }
    }

    /// Whether two spans share an element.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.byte_range(), other.byte_range());
        self.buffer == other.buffer && a.start < b.end && b.start < a.end
    }
}
