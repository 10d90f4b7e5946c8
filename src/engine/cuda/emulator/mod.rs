//! Runs the CUDA kernels on the CPU, so that they are tested without a GPU.
//!
//! The system's C++ compiler compiles the sources into a library, beside C++ headers that supply CUDA's
//! keywords and functions; every CUDA thread becomes a fiber (`machine.h`). The emulation is slow and strict.
//! It finds missing barriers, waits and bounds, deadlocks and races; it tells nothing about speed, and its
//! sums round like the host's.

mod build;
mod count;
mod device;
mod error;
mod memory;
mod product;
mod ranks;
#[cfg(test)]
mod tests;

pub use count::{Counted, Touched, Watch};
pub use device::{Behaviour, EmulatedDevice};
pub use error::EmulatorError;
pub use memory::{Memory, Overrun};

use super::device::{Arg, KernelConfig, Launch};
use super::kernels;
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The order in which threads run where no barrier determines it. If results differ between orders, there is
/// a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadOrder {
    /// Blocks, warps and lanes by number.
    Ascending,
    /// Blocks, warps and lanes by number, the last first.
    Descending,
    /// Shuffled anew at each step, with this seed.
    Shuffled(u64),
}

/// `emulator::Argument` of `launcher.h`.
#[repr(C)]
struct Argument {
    kind: u32,
    bits: u64,
}

impl Argument {
    fn new(arg: &Arg) -> Self {
        let (kind, bits) = match *arg {
            Arg::Pointer(address) => (0, address.0),
            Arg::Int(x) => (1, u64::from(x as u32)),
            Arg::Long(x) => (2, x as u64),
            Arg::Float(x) => (3, u64::from(x.to_bits())),
            Arg::Double(x) => (4, x.to_bits()),
            Arg::TooLarge(size) => panic!("{size} was not refused before the launch"),
        };
        Self { kind, bits }
    }
}

/// `emulator::Request` of `launcher.h`.
#[repr(C)]
struct Request {
    kernel: *const c_char,
    arguments: *const Argument,
    argument_count: u64,
    seed: u64,
    grid: [u32; 3],
    threads: u32,
    dynamic_bytes: u32,
    order: u32,
    /// Only kernels that are compiled to count look at these.
    watched: *const count::Watched,
    watched_count: u64,
    touched: *mut Touched,
}

/// `emulator_launch` of `launcher.h`.
type LaunchFunction = unsafe extern "C" fn(*const Request, *mut c_char, usize) -> c_int;

/// The kernels of one configuration. A file with kernels is compiled when the first of them is launched.
#[derive(Debug)]
pub struct Emulator {
    config: KernelConfig,
    headers: Vec<(String, String)>,
    sources: Vec<Source>,
    cache: PathBuf,
    counts: bool,
}

/// A file with kernels.
#[derive(Debug)]
struct Source {
    name: String,
    text: String,
    kernels: Vec<String>,
    loaded: OnceLock<Loaded>,
}

/// The compiled kernels of a file.
#[derive(Debug)]
struct Loaded {
    launch: LaunchFunction,
    // keeps the code loaded that `launch` points to
    _library: Library,
}

impl Emulator {
    /// All kernels; `cache` is the directory in which their libraries are kept for later calls, created if missing.
    ///
    /// The compiler is the environment's `CXX`, or else `c++`; it must support C++17.
    pub fn new(config: &KernelConfig, cache: &Path) -> Self {
        Self::of_program(config, cache, false)
    }

    /// All kernels, which also count what they touch; `cache` is as of [`new`](Self::new).
    pub fn counting(config: &KernelConfig, cache: &Path) -> Self {
        Self::of_program(config, cache, true)
    }

    /// Other headers and kernels than the program's, given by names and texts: what a test has changed, for instance.
    pub fn of_files(
        config: &KernelConfig,
        headers: &[(&str, &str)],
        sources: &[(&str, &str)],
        cache: &Path,
    ) -> Self {
        Self::build(config, headers, sources, cache, false)
    }

    fn of_program(config: &KernelConfig, cache: &Path, counts: bool) -> Self {
        let sources: Vec<_> = kernels::sources(config).copied().collect();
        Self::build(config, kernels::HEADERS, &sources, cache, counts)
    }

    fn build(
        config: &KernelConfig,
        headers: &[(&str, &str)],
        sources: &[(&str, &str)],
        cache: &Path,
        counts: bool,
    ) -> Self {
        let headers = headers.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
        let source = |&(name, text): &(&str, &str)| {
            let kernels = kernels::kernel_names(text).map(str::to_owned).collect();
            Source { name: name.to_owned(), text: text.to_owned(), kernels, loaded: OnceLock::new() }
        };
        let sources = sources.iter().map(source).collect();
        Self { config: *config, headers, sources, cache: cache.to_owned(), counts }
    }

    /// The function that launches the kernels of a file.
    fn launcher(&self, source: &Source) -> Result<LaunchFunction, EmulatorError> {
        if let Some(loaded) = source.loaded.get() {
            return Ok(loaded.launch);
        }
        let headers: Vec<_> =
            self.headers.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let path =
            build::library(&self.config, &headers, (&source.name, &source.text), &self.cache, self.counts)?;
        let failed = |error| EmulatorError::Library { path: path.clone(), error };
        // SAFETY: the library is built from our sources; loading it runs only constructors of plain data.
        let library = unsafe { Library::new(&path) }.map_err(failed)?;
        // SAFETY: launcher.h declares the function with this type.
        let launch = *unsafe { library.get::<LaunchFunction>(b"emulator_launch\0") }.map_err(failed)?;
        Ok(source.loaded.get_or_init(|| Loaded { launch, _library: library }).launch)
    }

    /// Runs one kernel from beginning to end on this thread; launches of kernels of one library wait for each
    /// other. Addresses are host addresses that [`Memory`] has allocated.
    ///
    /// # Errors
    /// When there is no compiler, when it refuses the kernel's file, or when the cache or the library cannot be used;
    /// when there is no such kernel, when its arguments have other types, or when it does what a kernel must
    /// not do. What it has written until then stays.
    pub fn launch(&self, launch: &Launch, order: ThreadOrder) -> Result<(), EmulatorError> {
        self.launch_watched(launch, order, None).map(drop)
    }

    /// [`launch`](Self::launch), and what the kernel touches in the watched memory: nothing unless the kernels were
    /// [made to count](Self::counting).
    ///
    /// # Errors
    /// Those of [`launch`](Self::launch).
    pub fn launch_watched(
        &self,
        launch: &Launch,
        order: ThreadOrder,
        watch: Option<&Watch>,
    ) -> Result<Touched, EmulatorError> {
        let failed = |reason| EmulatorError::Launch { kernel: launch.kernel, reason };
        let source =
            self.sources.iter().find(|source| source.kernels.iter().any(|name| name == launch.kernel));
        let function = self.launcher(source.ok_or_else(|| failed("there is no such kernel".to_owned()))?)?;
        let name = CString::new(launch.kernel).map_err(|_| failed("its name contains a zero byte".into()))?;
        let arguments: Vec<Argument> = launch.args.iter().map(Argument::new).collect();
        let (order, seed) = match order {
            ThreadOrder::Ascending => (0, 0),
            ThreadOrder::Descending => (1, 0),
            ThreadOrder::Shuffled(seed) => (2, seed),
        };
        let watched = watch.map_or(&[][..], |watch| if self.counts { &watch.ranges } else { &[] });
        let mut touched = Touched::default();
        let request = Request {
            kernel: name.as_ptr(),
            arguments: arguments.as_ptr(),
            argument_count: arguments.len() as u64,
            seed,
            grid: launch.grid,
            threads: launch.block,
            dynamic_bytes: launch.shared,
            order,
            watched: watched.as_ptr(),
            watched_count: watched.len() as u64,
            touched: &raw mut touched,
        };
        let mut message: [c_char; 512] = [0; 512];
        // SAFETY: the request and what it points to outlive the call, and at most the message's capacity is
        // written. The kernel itself accesses the addresses in its arguments, for which the caller is
        // responsible.
        let code = unsafe { function(&request, message.as_mut_ptr(), message.len()) };
        if code == 0 {
            return Ok(touched);
        }
        // SAFETY: the message ends in a zero, either its initial one or one that the call has written.
        let reason = unsafe { CStr::from_ptr(message.as_ptr()) };
        Err(failed(reason.to_string_lossy().into_owned()))
    }
}
