//! A device together with the first failure on it.
//!
//! Kernels are launched without looking at results. The next call that can report a failure does so, and
//! until then nothing more is launched. Each launch states its [`Traffic`], which the stream notes on request.

use super::device::{Address, Arg, Device, Launch, Product, Way};
use super::kernels::ready::Ready;
use crate::comm::CommError;
use crate::engine::EngineError;
use crate::engine::memory::Element;
use crate::engine::traffic::{Mark, Measured};
use crate::engine::traffic::{Noted, Traffic};
use std::borrow::Cow;

/// A device that launches nothing after its first failure.
pub(super) struct Stream<D> {
    device: D,
    failure: Option<Failure>,
    /// How operands of matrix products are stored.
    operand: Element,
    /// What was started, if it is noted.
    ledger: Option<Vec<Entry>>,
}

/// Something that was started, between two moments of the device's clock.
struct Entry {
    name: Cow<'static, str>,
    traffic: Traffic,
    between: Option<(Mark, Mark)>,
}

/// A stream and what the next launch states.
pub(super) struct Stating<'a, D> {
    stream: &'a mut Stream<D>,
    traffic: Traffic,
}

impl<D: Device> Stating<'_, D> {
    /// Launches a kernel.
    pub(super) fn launch(self, kernel: &'static str, grid: [usize; 3], block: u32, args: &[Arg]) {
        self.launch_shared(kernel, grid, block, 0, args);
    }

    /// Launches a kernel with `shared` bytes of dynamic shared memory.
    pub(super) fn launch_shared(
        self,
        kernel: &'static str,
        grid: [usize; 3],
        block: u32,
        shared: u32,
        args: &[Arg],
    ) {
        if grid.contains(&0) {
            return;
        }
        self.stream.noted(
            || kernel.into(),
            self.traffic,
            |device| {
                let grid = fitting(kernel, grid, args)?;
                device.launch(&Launch { kernel, grid, block, shared, args })
            },
        );
    }
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
    /// Work on a device whose kernels store operands so.
    pub(super) fn new(device: D, operand: Element) -> Self {
        Self { device, failure: None, operand, ledger: None }
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

    /// The next launch, with what it moves and computes.
    pub(super) fn stating(&mut self, traffic: Traffic) -> Stating<'_, D> {
        Stating { stream: self, traffic }
    }

    /// Starts something, unless something has failed before, and notes it if that is asked for.
    pub(super) fn noted<T>(
        &mut self,
        name: impl FnOnce() -> Cow<'static, str>,
        traffic: Traffic,
        start: impl FnOnce(&mut D) -> Result<T, EngineError>,
    ) -> Option<T> {
        if self.ledger.is_none() {
            return self.run(start);
        }
        let begin = self.run(D::mark).flatten();
        let started = self.run(start)?;
        let between = begin.zip(self.run(D::mark).flatten());
        if let Some(ledger) = &mut self.ledger {
            ledger.push(Entry { name: name(), traffic, between });
        }
        Some(started)
    }

    /// Notes from now on what is started, if `on`, and forgets what was noted before.
    pub(super) fn note(&mut self, on: bool) {
        self.ledger = on.then(Vec::new);
    }

    /// The seconds between pairs of moments, and what was noted since the last call, in order. Waits for the device
    /// once, if it has a clock.
    pub(super) fn measured(&mut self, pairs: &[(Mark, Mark)]) -> Result<Measured, EngineError> {
        let entries = self.ledger.as_mut().map(std::mem::take).unwrap_or_default();
        let between = entries.iter().filter_map(|entry| entry.between);
        let all: Vec<(Mark, Mark)> = pairs.iter().copied().chain(between).collect();
        let mut seconds = self.checked(|device| device.seconds(&all))?;
        let mut rest = seconds.split_off(pairs.len()).into_iter();
        let noted = entries.into_iter().map(|Entry { name, traffic, between }| {
            let seconds = between.and_then(|_| rest.next());
            Noted { name, traffic, seconds }
        });
        Ok(Measured { seconds, launches: noted.collect() })
    }

    /// Bytes of an operand of matrix products.
    pub(super) fn operand(&self) -> usize {
        self.operand.bytes()
    }

    pub(super) fn product(&mut self, product: &Product) {
        self.noted(|| product.to_string().into(), product.traffic(), |device| device.product(product));
    }

    /// Whether to compute the product `whole`, with what is fused into it, and the kernel `then`, if any, instead of
    /// the product `alone` and the kernel `after`.
    pub(super) fn fuses(
        &mut self,
        (whole, then): (&Product, Option<&Ready>),
        (alone, after): (&Product, &Ready),
    ) -> bool {
        let fuses = self.run(|device| {
            let (then, after) = (then.map(Ready::as_launch).transpose()?, after.as_launch()?);
            let fused = Way { product: whole, then: then.as_ref() };
            Ok(device.fuses(fused, Way { product: alone, then: Some(&after) }))
        });
        fuses.unwrap_or(false)
    }

    pub(super) fn device(&self) -> &D {
        &self.device
    }
}

/// The grid of a launch, if it and all arguments fit into their types.
pub(super) fn fitting(kernel: &'static str, grid: [usize; 3], args: &[Arg]) -> Result<[u32; 3], EngineError> {
    let too_large = |size: usize| {
        EngineError::Input(format!(
            "the kernel {kernel} cannot count to {size}; use a smaller micro-batch or model"
        ))
    };
    if let Some(size) =
        args.iter().find_map(|arg| if let Arg::TooLarge(size) = arg { Some(*size) } else { None })
    {
        return Err(too_large(size));
    }
    let [x, y, z] = grid.map(|size| u32::try_from(size).map_err(|_| too_large(size)));
    Ok([x?, y?, z?])
}

/// A pointer argument.
pub(super) fn pointer(address: Address) -> Arg {
    Arg::Pointer(address)
}

/// The null pointer.
pub(super) const NULL: Arg = Arg::Pointer(Address(0));

/// A size as an `int` argument.
pub(super) fn int(size: usize) -> Arg {
    i32::try_from(size).map_or(Arg::TooLarge(size), Arg::Int)
}

/// A size as a `long long` argument.
pub(super) fn long(size: usize) -> Arg {
    i64::try_from(size).map_or(Arg::TooLarge(size), Arg::Long)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_beyond_its_type_is_an_error_and_not_cut_off() {
        let most = i32::MAX as usize;
        assert_eq!(fitting("add_bias", [1, 2, 3], &[int(most), long(most + 1)]).expect("fits"), [1, 2, 3]);
        let error = fitting("add_bias", [1; 3], &[int(most + 1)]).expect_err("too large").to_string();
        assert!(error.contains("add_bias cannot count to 2147483648"), "{error}");
        let error = fitting("add_bias", [1, 1 << 32, 1], &[]).expect_err("too large").to_string();
        assert!(error.contains("4294967296"), "{error}");
    }
}
