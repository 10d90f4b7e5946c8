//! The engine that a recipe or a command asks for.

use super::{machine, ranks};
use crate::comm::{Comm, Solo};
use crate::cuda::Libraries;
use crate::engine::dropout::Dropout;
use crate::engine::memory::MemoryPlan;
use crate::engine::optimizer::OptimizerKind;
use crate::engine::{Engine, EngineError, cpu, cuda, dfdx, pooled::Pooled};
use crate::model::Dims;
use crate::plan::Plan;
use crate::recipe::{EngineKind, Recipe};
use std::sync::Arc;

/// The engine that a recipe asks for, with the plan's memory. Parameters are zero.
///
/// # Errors
/// Where memory cannot be had or the device fails.
pub fn engine(recipe: &Recipe, plan: &Plan, comm: &Arc<dyn Comm>) -> Result<Box<dyn Engine>, EngineError> {
    match recipe.compute.engine {
        EngineKind::Fused => fused(plan.memory_plan(), plan.cuda, comm),
        EngineKind::Dfdx => {
            let (optimizer, dropout) = (OptimizerKind::new(&recipe.optimizer), plan.memory.dropout());
            Ok(Box::new(reference(plan.memory.dims, optimizer, dropout, plan.threads)?))
        }
    }
}

/// The fused engine on the CPU, or on the CUDA device with index `cuda`, as one of the ranks that `comm` connects.
///
/// # Errors
/// Where memory cannot be had or the device fails.
pub fn fused(
    plan: MemoryPlan,
    cuda: Option<usize>,
    comm: &Arc<dyn Comm>,
) -> Result<Box<dyn Engine>, EngineError> {
    Ok(match cuda {
        None => Box::new(cpu::ranked_engine(plan, comm.clone())?),
        Some(index) => {
            let (libraries, cache) = (Libraries::get(), machine::own_cache_dir());
            match on_devices(comm) {
                None => Box::new(cuda::engine(libraries, index, plan, cache.as_deref())?),
                Some(comm) => Box::new(cuda::ranked_engine(libraries, index, plan, cache.as_deref(), comm)?),
            }
        }
    })
}

/// The fused engine on a CUDA device that records the time of every phase.
///
/// # Errors
/// Where memory cannot be had or the device fails.
pub fn timed_cuda(
    plan: MemoryPlan,
    index: usize,
    comm: &Arc<dyn Comm>,
) -> Result<cuda::TimedEngine, EngineError> {
    cuda::timed_engine(Libraries::get(), index, plan, machine::own_cache_dir().as_deref(), on_devices(comm))
}

/// The dfdx engine, the reference, on the CPU.
///
/// # Errors
/// Where its threads cannot be started.
pub fn reference(
    dims: Dims,
    optimizer: OptimizerKind,
    dropout: Option<Dropout>,
    threads: usize,
) -> Result<Pooled<dfdx::CpuEngine>, EngineError> {
    Pooled::new(threads, || Ok(dfdx::CpuEngine::new(dims, optimizer)?.with_dropout(dropout)))
}

/// The connection of a single rank.
pub fn solo() -> Arc<dyn Comm> {
    Arc::new(Solo)
}

/// The connection through which CUDA devices add up gradients by NCCL: that of several ranks, and that of one rank
/// which a launcher started, so that NCCL can be tried with one device.
fn on_devices(comm: &Arc<dyn Comm>) -> Option<Arc<dyn Comm>> {
    let launched = ranks::place().is_ok_and(|place| place.is_some());
    (comm.size() > 1 || launched).then(|| comm.clone())
}
