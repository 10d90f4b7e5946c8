//! Which device a recipe trains on here, how fast that can be, and where what is found out about it is kept.

use super::terminal::say;
use crate::cuda::{CudaMissing, Libraries};
use crate::engine::cpu;
use crate::plan::hardware::{CudaDevice, Hardware, peak_resident_bytes};
use crate::plan::{Plan, PlanError};
use crate::recipe::{Device, EngineKind, Precision, Recipe};
use std::path::PathBuf;
use std::sync::Once;

/// This machine, with the CUDA device that the recipe asks for or, under `auto`, the first one that can be used.
///
/// # Errors
/// When the recipe names a CUDA device and there is none to be used: what was looked for, and where.
pub(super) fn hardware(recipe: &Recipe) -> Result<Hardware, PlanError> {
    let mut hardware = Hardware::detect();
    let missing = |CudaMissing { message, help }: CudaMissing| PlanError {
        key: "compute.device",
        message: format!("compute.device = \"{}\": {message}", String::from(recipe.compute.device)),
        help,
    };
    hardware.cuda = match (recipe.compute.device, recipe.compute.engine) {
        (Device::Cpu, _) | (Device::Auto, EngineKind::Dfdx) => None,
        (Device::Auto, EngineKind::Fused) => cuda_device(0).inspect_err(explain_cpu).ok(),
        (Device::Cuda(index), EngineKind::Fused) => Some(cuda_device(index).map_err(missing)?),
        (Device::Cuda(_), EngineKind::Dfdx) => {
            return Err(PlanError {
                key: "compute.device",
                message: "the dfdx engine trains on the CPU in this build".to_owned(),
                help: "use compute.engine = \"fused\", or compute.device = \"cpu\"".to_owned(),
            });
        }
    };
    Ok(hardware)
}

/// Says once why `auto` takes the CPU where there is a CUDA device.
fn explain_cpu(missing: &CudaMissing) {
    static SAID: Once = Once::new();
    if !Libraries::get().devices().is_empty() {
        SAID.call_once(|| {
            say(&format!("warning: the CUDA device is not used: {missing}; {}", missing.help));
        });
    }
}

fn cuda_device(index: usize) -> Result<CudaDevice, CudaMissing> {
    let libraries = Libraries::get();
    let name = libraries.require_device(index)?.name;
    let (free_memory, total_memory) = libraries.memory(index)?;
    Ok(CudaDevice { index, name, total_memory, free_memory })
}

/// The most operations per second that a plan's device could do, and how that is known: measured on the CPU, looked up for
/// a CUDA device.
pub(super) fn peak(plan: &Plan) -> (f64, String) {
    let info = plan.cuda.and_then(|index| Libraries::get().require_device(index).ok());
    let Some(info) = info else { return cpu::peak::measure(plan.threads) };
    let (flops, unit) = match plan.memory.precision {
        Precision::Bf16 | Precision::Fp16 => (info.peaks.half, "tensor cores on 16-bit operands"),
        Precision::Tf32 => (info.peaks.tf32, "tensor cores on tf32"),
        Precision::Fp32 => (info.peaks.fp32, "fp32 without tensor cores"),
    };
    (flops, format!("{}, {unit}: {}", info.name, info.peaks.source))
}

/// Bytes of the memory that computes: the peak that this process had resident, or what it has allocated on a CUDA device,
/// which is what the plan says.
pub(super) fn memory_bytes(plan: &Plan) -> u64 {
    if plan.cuda.is_some() { plan.total_bytes as u64 } else { peak_resident_bytes() }
}

/// `$XDG_CACHE_HOME/runner`, or the same under `~/.cache`: what is quicker to remember than to find out again. `None` if
/// neither can be told.
pub(super) fn cache_dir() -> Option<PathBuf> {
    let dir = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    let base = dir("XDG_CACHE_HOME").or_else(|| Some(dir("HOME")?.join(".cache")))?;
    Some(base.join("runner"))
}
