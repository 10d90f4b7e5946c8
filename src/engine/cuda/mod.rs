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

use super::EngineError;
use super::fused::Fused;
use super::timed::Timed;
use crate::comm::Solo;
use crate::cuda::Libraries;
use crate::plan::memory::MemoryPlan;
use crate::recipe::Attention;
use gpu::Gpu;
use std::path::Path;
use std::sync::Arc;

/// The fused engine on a CUDA device.
pub type CudaEngine = Fused<CudaBackend<Gpu>>;

/// Opens device `index`, compiles the kernels for it, and allocates everything that a plan for CUDA lists. Parameters are
/// zero. `cache` is a directory that keeps compiled kernels and chosen algorithms.
///
/// # Errors
/// When there is no such device, a library is missing, the head is too wide for flash attention, or memory is short.
pub fn engine(
    libraries: &Libraries,
    index: usize,
    plan: MemoryPlan,
    cache: Option<&Path>,
) -> Result<CudaEngine, EngineError> {
    let backend = backend(libraries, index, &plan, cache)?;
    Ok(Fused::new(plan, backend, Arc::new(Solo)))
}

/// The same engine with the time of every phase on record: each kernel is waited for.
pub fn timed_engine(
    libraries: &Libraries,
    index: usize,
    plan: MemoryPlan,
    cache: Option<&Path>,
) -> Result<Fused<Timed<CudaBackend<Gpu>>>, EngineError> {
    let backend = backend(libraries, index, &plan, cache)?;
    Ok(Fused::new(plan, Timed::new(backend), Arc::new(Solo)))
}

fn backend(
    libraries: &Libraries,
    index: usize,
    plan: &MemoryPlan,
    cache: Option<&Path>,
) -> Result<CudaBackend<Gpu>, EngineError> {
    let config =
        device::KernelConfig { precision: plan.config.precision, head_size: plan.config.dims.head_size() };
    if plan.config.attention == Attention::Flash && config.head_size > flash::LARGEST_HEAD {
        return Err(kernels::flash_attention::too_wide(config.head_size));
    }
    CudaBackend::new(plan, Gpu::open(libraries, index, &config, cache)?)
}
