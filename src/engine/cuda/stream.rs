//! A device together with the first failure on it.
//!
//! Kernels are launched without looking at results. The next call that can report a failure does so, and
//! until then nothing more is launched.

use super::device::{Address, Arg, Device, Launch, Product};
use crate::comm::CommError;
use crate::engine::EngineError;

/// A device that launches nothing after its first failure.
pub(super) struct Stream<D> {
    device: D,
    failure: Option<Failure>,
}

/// A failure that can be reported again and again.
#[derive(Clone)]
enum Failure {
    Device(String),
    Ranks(CommError),
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Device(reason) => Self::Device(reason),
            EngineError::Comm(error) => Self::Ranks(error),
            other => Self::Device(other.to_string()),
        }
    }
}

impl From<Failure> for EngineError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Device(reason) => Self::Device(reason),
            Failure::Ranks(error) => Self::Comm(error),
        }
    }
}

impl<D: Device> Stream<D> {
    pub(super) fn new(device: D) -> Self {
        Self { device, failure: None }
    }

    pub(super) fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Does something that may fail, unless something has failed before.
    pub(super) fn run<T>(&mut self, run: impl FnOnce(&mut D) -> Result<T, EngineError>) -> Option<T> {
        if self.failure.is_some() {
            return None;
        }
        match run(&mut self.device) {
            Ok(result) => Some(result),
            Err(error) => {
                self.failure = Some(error.into());
                None
            }
        }
    }

    /// Does something that may fail, and reports any failure, an earlier one too.
    pub(super) fn checked<T>(
        &mut self,
        run: impl FnOnce(&mut D) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        match &self.failure {
            Some(failure) => Err(failure.clone().into()),
            None => run(&mut self.device),
        }
    }

    pub(super) fn launch(&mut self, kernel: &'static str, grid: [usize; 3], block: u32, args: &[Arg]) {
        self.launch_shared(kernel, grid, block, 0, args);
    }

    /// Launches a kernel with `shared` bytes of dynamic shared memory.
    pub(super) fn launch_shared(
        &mut self,
        kernel: &'static str,
        grid: [usize; 3],
        block: u32,
        shared: u32,
        args: &[Arg],
    ) {
        if grid.contains(&0) {
            return;
        }
        self.run(|device| {
            let grid = grid.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
            device.launch(&Launch { kernel, grid, block, shared, args })
        });
    }

    pub(super) fn product(&mut self, product: &Product) {
        self.run(|device| device.product(product));
    }

    /// Whether the library can compute this product with what is fused into it.
    pub(super) fn fuses(&mut self, product: &Product) -> bool {
        self.run(|device| Ok(device.fuses(product))).unwrap_or(false)
    }
}

/// A pointer argument.
pub(super) fn pointer(address: Address) -> Arg {
    Arg::Pointer(address)
}

/// The null pointer.
pub(super) const NULL: Arg = Arg::Pointer(Address(0));

/// A size as an `int` argument.
pub(super) fn int(size: usize) -> Arg {
    Arg::Int(i32::try_from(size).unwrap_or(i32::MAX))
}

/// A size as a `long long` argument.
pub(super) fn long(size: usize) -> Arg {
    Arg::Long(i64::try_from(size).unwrap_or(i64::MAX))
}
