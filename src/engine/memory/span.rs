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
    /// AdamW's first moment.
    FirstMoment,
    /// AdamW's second moment.
    SecondMoment,
    /// The parameters as operands of matrix products: rounded to the recipe's precision, on CUDA also stored in it.
    /// Absent where the products read the parameters themselves.
    Low,
    /// Activations and scratch.
    Arena,
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
        self.part(0, len)
    }

    /// `len` elements from `start` on, both relative to this span.
    pub fn part(self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len, "part {start}+{len} of a span of {}", self.len);
        Self { start: self.start + start, len, ..self }
    }

    /// Whether two spans share an element.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (a, b) = (self.byte_range(), other.byte_range());
        self.buffer == other.buffer && a.start < b.end && b.start < a.end
    }
}
