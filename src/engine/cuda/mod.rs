//! The CUDA backend: cuBLASLt for matrix products, kernels in CUDA C++ for everything else.
//!
//! It reaches the device through one thin layer, [`device`]. Behind that layer is the GPU, or the emulator,
//! which runs the same kernels on the host.

mod backend;
mod batch;
pub mod device;
#[cfg(feature = "cuda-emulator")]
pub mod emulator;
pub mod gpu;
pub mod kernels;
pub mod paper;
pub(super) mod scratch;
pub mod selftest;
mod stream;

pub use backend::CudaBackend;

use super::EngineError;
use super::fused::Fused;
use super::fused::timed::Timed;
use crate::comm::{Comm, Solo};
use crate::cuda::Libraries;
use crate::engine::memory::MemoryPlan;
use crate::recipe::Attention;
use gpu::Gpu;
use std::path::Path;
use std::sync::Arc;

/// The fused engine on a CUDA device.
pub type CudaEngine = Fused<CudaBackend<Gpu>>;

/// The fused engine on a CUDA device, which also measures the time of each phase.
pub type TimedEngine = Fused<Timed<CudaBackend<Gpu>>>;

/// Opens device `index`, compiles the kernels for it, and allocates everything that a plan for CUDA lists.
/// Parameters are zero. `cache` is a directory for compiled kernels and chosen algorithms.
///
/// # Errors
/// When there is no such device, a library is missing, the head is too wide for flash attention, or memory is short.
pub fn engine(
    libraries: &Libraries,
    index: usize,
    plan: MemoryPlan,
    cache: Option<&Path>,
) -> Result<CudaEngine, EngineError> {
    let backend = backend(libraries, index, &plan, cache, None)?;
    Ok(Fused::new(plan, backend, Arc::new(Solo)))
}

/// Opens device `index` as one of the ranks that `comm` connects. Their devices are connected by NCCL, even
/// if there is only one rank. NCCL allocates memory of its own, which no plan lists.
///
/// # Errors
/// As for [`engine`], and when NCCL is missing or cannot connect the ranks. The other ranks are told.
pub fn ranked_engine(
    libraries: &Libraries,
    index: usize,
    plan: MemoryPlan,
    cache: Option<&Path>,
    comm: Arc<dyn Comm>,
) -> Result<CudaEngine, EngineError> {
    let backend = backend(libraries, index, &plan, cache, Some(comm.clone()))?;
    Ok(Fused::new(plan, backend, comm))
}

/// Opens device `index` with an engine that measures the time of each phase, by waiting for each kernel. With
/// `comm`, the device is one of several ranks, connected by NCCL.
pub fn timed_engine(
    libraries: &Libraries,
    index: usize,
    plan: MemoryPlan,
    cache: Option<&Path>,
    comm: Option<Arc<dyn Comm>>,
) -> Result<TimedEngine, EngineError> {
    let backend = backend(libraries, index, &plan, cache, comm.clone())?;
    Ok(Fused::new(plan, Timed::new(backend), comm.unwrap_or_else(|| Arc::new(Solo))))
}

fn backend(
    libraries: &Libraries,
    index: usize,
    plan: &MemoryPlan,
    cache: Option<&Path>,
    comm: Option<Arc<dyn Comm>>,
) -> Result<CudaBackend<Gpu>, EngineError> {
    let config = device::KernelConfig::of(&plan.config);
    if plan.config.attention == Attention::Flash && config.head_size > kernels::flash_attention::LARGEST_HEAD
    {
        return Err(kernels::flash_attention::too_wide(config.head_size));
    }
    let open = || Gpu::open(libraries, index, &config, cache);
    let Some(comm) = comm else { return CudaBackend::new(plan, open()?) };
    let joined = || {
        let mut gpu = open()?;
        gpu.join_ranks(libraries, comm.clone())?;
        CudaBackend::ranked(plan, gpu, comm.clone())
    };
    joined().inspect_err(|error: &EngineError| comm.abandon(&error.to_string()))
}
