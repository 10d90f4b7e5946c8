//! CUDA as it is found on a machine: libraries, devices, and the calls that the engine makes.
//!
//! One binary serves machines with and without CUDA, so nothing is linked: [`Libraries`] looks for the driver, the
//! run-time compiler, cuBLASLt and NCCL when it is asked to, says what it found, and never panics over what it did not.
//! The rest are owned handles over the driver's objects ([`Context`] and what lives in it), the compiler
//! ([`compile`]), matrix products ([`matmul`]) and NCCL ([`Communicator`]), none of which knows anything of GPT-2.

mod cache;
pub mod choices;
pub mod compile;
mod context;
mod cublaslt;
mod device;
mod driver;
pub mod found;
pub mod libraries;
pub mod matmul;
mod nccl;
mod nvrtc;
pub mod peak;
pub mod product;
pub mod search;
mod stream;
mod table;

pub use context::{Context, Function, Memory, Module, Pinned};
pub use device::DeviceInfo;
pub use libraries::{CudaMissing, Libraries};
pub use nccl::{Communicator, Number};
pub use stream::{Event, Graph, Stream};

use std::ffi::{CStr, c_char};

/// A call into one of CUDA's libraries that failed.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A function returned something else than success.
    #[error("{call}: {text}")]
    Call {
        /// The function.
        call: &'static str,
        /// What it returned.
        status: u32,
        /// That in the library's words.
        text: String,
    },
    /// Device memory could not be had.
    #[error(
        "out of memory on the device: {what} needs {} MiB, {} of {} MiB are free", .bytes.div_ceil(1 << 20), .free >> 20, .total >> 20
    )]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// How much was asked for.
        bytes: usize,
        /// How much the device had left.
        free: usize,
        /// How much it has.
        total: usize,
    },
    /// Kernels that do not compile.
    #[error("the kernels do not compile for {arch}:\n{log}")]
    Compile {
        /// The target, such as `sm_90`.
        arch: String,
        /// The compiler's messages.
        log: String,
    },
    /// Something that this machine or its libraries cannot do.
    #[error("{0}")]
    Unsupported(String),
}

/// A C string of a library's; `None` for a null pointer.
///
/// # Safety
///
/// The pointer is null or points to a string that ends in a zero and lives through the call.
unsafe fn c_text(text: *const c_char) -> Option<String> {
    // SAFETY: the caller vouches for a pointer that is not null.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
