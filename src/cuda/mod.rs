//! CUDA on the machine at hand: libraries, devices, and the calls that the engine makes.
//!
//! One binary serves machines with and without CUDA, so nothing is linked: [`Libraries`] looks for the
//! driver, the run-time compiler, cuBLASLt and NCCL on demand, reports what it found, and never panics over a
//! missing library. The rest are owned handles for the driver's objects ([`Context`] and what lives in it),
//! the compiler ([`compile`]), matrix products ([`matmul`]) and NCCL ([`Communicator`]). None of them knows
//! GPT-2.

mod cache;
pub mod choices;
mod communicator;
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
pub mod nvtx;
pub mod peak;
pub mod product;
pub mod search;
mod stream;
mod table;

pub use communicator::{Communicator, Number};
pub use context::{Context, Function, Memory, Module, Pinned};
pub use device::DeviceInfo;
pub use libraries::{CudaMissing, Libraries};

pub use stream::{Event, Graph, Stream};

use crate::wording::items;
use std::ffi::{CStr, c_char};

/// A failed call into one of CUDA's libraries.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A function returned a status other than success.
    #[error("{call}: {text}")]
    Call {
        /// The function.
        call: &'static str,
        /// The status that it returned.
        status: u32,
        /// The status in the library's words.
        text: String,
    },
    /// Device memory could not be allocated.
    #[error(
        "out of memory on the device: {what} needs {} MiB, {} of {} MiB are free",
        .bytes.div_ceil(1 << 20), .free >> 20, .total >> 20
    )]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// The bytes that were requested.
        bytes: usize,
        /// The bytes that were free.
        free: usize,
        /// The device's memory in bytes.
        total: usize,
    },
    /// The kernels do not compile.
    #[error("the kernels do not compile for {arch}:{}", items(log.lines()))]
    Compile {
        /// The target, such as `sm_90`.
        arch: String,
        /// The compiler's messages.
        log: String,
    },
    /// This machine or its libraries cannot do what was asked.
    #[error("{0}")]
    Unsupported(String),
}

/// Copies a C string that a library owns; `None` for a null pointer.
///
/// # Safety
///
/// The pointer must be null, or point to a zero-terminated string that stays valid during the call.
unsafe fn c_text(text: *const c_char) -> Option<String> {
    // SAFETY: the caller vouches for a pointer that is not null.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
