//! The GPT-2 kernels on an NVIDIA device, and what runs the same sources on the host.

pub mod device;
#[cfg(feature = "cuda-emulator")]
pub mod emulator;
pub mod flash;
pub mod kernels;
