//! A device together with the first thing that failed on it.
//!
//! Kernels are started without looking at results; the failure is reported by the next call that can, and nothing more is
//! started until then.

use super::device::{Address, Arg, Device, Launch, Product};
use crate::comm::CommError;
use crate::engine::EngineError;

/// See the module.
pub(super) struct Stream<D> {
    device: D,
    failure: Option<Failure>,
}

/// What is reported again and again.
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

    /// Does something that may fail, unless something has.
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

    /// As [`run`](Self::run), reporting also what failed before.
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

    /// With so many bytes of dynamic shared memory.
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

    /// Whether the library can do this product together with what follows it.
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

/// A size as a kernel's `int`.
pub(super) fn int(size: usize) -> Arg {
    Arg::Int(i32::try_from(size).unwrap_or(i32::MAX))
}

/// A size as a kernel's `long long`.
pub(super) fn long(size: usize) -> Arg {
    Arg::Long(i64::try_from(size).unwrap_or(i64::MAX))
}
