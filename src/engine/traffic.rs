//! What a launch on a device moves and computes: the terms of a roofline.
//!
//! Each launch states its [`Traffic`] beside its code, as a function of its shape. A roofline (Williams, Waterman and
//! Patterson, 2009) divides the bytes by the bandwidth of the memory and the operations by the rate of the unit that
//! carries them out; the longer of both times bounds the launch.

use std::borrow::Cow;

/// Bytes of an fp32 number, and of an index.
pub const F32: usize = 4;
/// Bytes of an fp64 number.
pub const F64: usize = 8;

/// What carries out the operations of a launch, and so bounds their rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// The fp32 cores, in kernels that do a few operations for each number that they read.
    Cores,
    /// The matrix products of the library.
    Products,
    /// Attention in tiles, forward.
    AttentionForward,
    /// Attention in tiles, backward.
    AttentionBackward,
    /// The connection between devices, whose rate no device tells.
    Link,
}

/// What one launch moves and computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes of global memory that are read; each counts once, and not if the launch itself has written it before.
    pub read: u64,
    /// Bytes of global memory that are written; each counts once.
    pub written: u64,
    /// Bytes that are read once more after so much else that no cache still holds them.
    pub again: u64,
    /// Floating-point operations. For products and attention they are exact; elsewhere a small number for each element.
    pub operations: u64,
    /// What carries them out.
    pub unit: Unit,
}

impl Traffic {
    /// Nothing yet, by this unit.
    pub fn by(unit: Unit) -> Self {
        Self { read: 0, written: 0, again: 0, operations: 0, unit }
    }

    /// Nothing yet, by the fp32 cores.
    pub fn of_kernel() -> Self {
        Self::by(Unit::Cores)
    }

    /// And reads so many numbers of `size` bytes.
    #[must_use]
    pub fn reads(self, numbers: usize, size: usize) -> Self {
        Self { read: self.read + (numbers * size) as u64, ..self }
    }

    /// And writes so many numbers of `size` bytes.
    #[must_use]
    pub fn writes(self, numbers: usize, size: usize) -> Self {
        Self { written: self.written + (numbers * size) as u64, ..self }
    }

    /// And reads so many numbers of `size` bytes once more.
    #[must_use]
    pub fn reads_again(self, numbers: usize, size: usize) -> Self {
        Self { again: self.again + (numbers * size) as u64, ..self }
    }

    /// And computes so many operations.
    #[must_use]
    pub fn computes(self, operations: usize) -> Self {
        Self { operations: self.operations + operations as u64, ..self }
    }

    /// Bytes between the device's memory and the launch.
    pub fn bytes(&self) -> u64 {
        self.read + self.written + self.again
    }
}

/// A launch that was noted.
#[derive(Debug, Clone, PartialEq)]
pub struct Noted {
    /// The kernel's name, or the shape of a product.
    pub name: Cow<'static, str>,
    /// What it states.
    pub traffic: Traffic,
    /// Its seconds by the device's clock, if it has one.
    pub seconds: Option<f64>,
}

/// A moment in the order of a device's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark(pub usize);

/// What a device's own clock tells.
#[derive(Debug, Default)]
pub struct Measured {
    /// The seconds between pairs of moments, in the order of the pairs.
    pub seconds: Vec<f64>,
    /// Every launch, in order.
    pub launches: Vec<Noted>,
}
