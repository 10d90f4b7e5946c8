//! The CUDA backend: cuBLASLt for matrix products, kernels in CUDA C++ for everything else.
//!
//! It reaches the device through one thin layer, [`device`]. Behind it is the GPU, or the emulator, which runs the same
//! kernels on the host.

mod backend;
mod batch;
pub mod device;
#[cfg(feature = "cuda-emulator")]
pub mod emulator;
pub mod flash;
pub mod gpu;
pub mod kernels;
mod stream;

pub use backend::CudaBackend;
