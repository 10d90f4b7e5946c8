//! This machine: which device trains here, how fast it can be, and where what is found out about it is kept.

pub mod cache;
pub mod calibration;
pub mod peaks;
pub mod rates;

pub use cache::{Cache, cache_dir, is_own, own_cache_dir};

use super::ranks;
use crate::comm::launch::Placement;
use crate::cuda::{CudaMissing, Libraries};
use crate::plan::hardware::{self, CudaDevice, Hardware, peak_resident_bytes};
use crate::plan::{Plan, PlanError};
use crate::recipe::{Device, EngineKind, Recipe};
use crate::wording::count;
use std::ops::Range;

/// This machine, with the CUDA device that the recipe asks for or, under `auto`, the first one that can be used.
///
/// # Errors
/// When the recipe names a CUDA device and there is none to be used: what was looked for, and where.
pub fn hardware(recipe: &Recipe) -> Result<Hardware, PlanError> {
    hardware_of(recipe, None)
}

/// [`hardware()`] for `here` of the recipe's ranks, if that many are to share this machine.
///
/// # Errors
/// Those of [`hardware()`]; more ranks here than there are.
pub fn hardware_of(recipe: &Recipe, here: Option<usize>) -> Result<Hardware, PlanError> {
    let mut hardware = Hardware::detect();
    let missing = |CudaMissing { message, help }: CudaMissing| PlanError {
        key: "compute.device",
        message: format!("compute.device = \"{}\": {message}", String::from(recipe.compute.device)),
        help,
    };
    let ranks = recipe.batch.world_size;
    // problems with the launcher are reported where the recipe is checked
    let place = ranks::place().unwrap_or(None);
    hardware.ranks = here.unwrap_or_else(|| place.map_or(ranks, |place| place.local_size.unwrap_or(1)));
    if hardware.ranks > ranks && here.is_some() {
        return Err(PlanError {
            key: "batch.world_size",
            message: format!(
                "{} cannot share this machine: batch.world_size is {ranks}",
                count(hardware.ranks, "rank")
            ),
            help: format!("use --ranks-here {ranks} at most"),
        });
    }
    let binds = place.is_some_and(|place| place.binds);
    if here.is_none() && binds && hardware.threads < hardware::online_threads() {
        // the launcher has given each rank threads of its own
        hardware.threads *= hardware.ranks;
    }
    let compute = &recipe.compute;
    hardware.cuda = match (compute.device, compute.engine) {
        (Device::Cpu | Device::Auto, EngineKind::Dfdx) => None,
        (Device::Cuda(_), EngineKind::Dfdx) => {
            return Err(PlanError {
                key: "compute.device",
                message: "the dfdx engine trains on the CPU in this build".to_owned(),
                help: "use compute.engine = \"fused\", or compute.device = \"cpu\"".to_owned(),
            });
        }
        (Device::Cuda(index), EngineKind::Fused) if index > 0 && hardware.ranks > 1 => {
            return Err(PlanError {
                key: "compute.device",
                message: format!("{} ranks cannot all train on cuda:{index}", hardware.ranks),
                help: "use compute.device = \"cuda\": each rank takes a device of its own".to_owned(),
            });
        }
        (named, EngineKind::Fused) => device(named, choice(named, hardware.ranks)).map_err(missing)?,
    };
    let ranks = hardware.ranks;
    if hardware.cuda.is_some() && place.is_none() && ranks > Libraries::get().devices().len() {
        let devices = Libraries::get().devices().len();
        return Err(PlanError {
            key: "batch.world_size",
            message: format!("{ranks} ranks need as many CUDA devices, and this machine has {devices}"),
            help: format!(
                "use {}, or start ranks on several machines with torchrun or srun",
                count(devices, "rank")
            ),
        });
    }
    Ok(hardware)
}

/// Which CUDA devices a process may choose from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// This one only: the others belong to other ranks.
    Own(usize),
    /// All of them.
    Any,
}

impl Choice {
    /// The device that `"cuda"` means.
    fn first(self) -> usize {
        if let Self::Own(index) = self { index } else { 0 }
    }

    /// Indices of the devices, in the order in which they are tried.
    fn indices(self) -> Range<usize> {
        match self {
            Self::Own(index) => index..index + 1,
            Self::Any => 0..Libraries::get().devices().len(),
        }
    }
}

/// The CUDA device that is meant, or `None` for the CPU: under `"auto"` the first one of the choice that can be used,
/// under `"cuda"` the first one.
///
/// # Errors
/// Where a CUDA device is named and cannot be used.
pub fn device(named: Device, choice: Choice) -> Result<Option<CudaDevice>, CudaMissing> {
    let index = match named {
        Device::Cpu => return Ok(None),
        Device::Auto => return Ok(choice.indices().find_map(|index| cuda_device(index).ok())),
        Device::Cuda(0) => choice.first(),
        Device::Cuda(index) => index,
    };
    cuda_device(index).map(Some).map_err(|CudaMissing { message, help }| {
        let others = choice.indices().filter(|other| *other != index);
        let another = others.into_iter().find_map(|other| cuda_device(other).ok());
        let instead =
            another.map(|CudaDevice { index, name, .. }| format!("\"cuda:{index}\" ({name}) can be used; "));
        CudaMissing { message, help: instead.unwrap_or_default() + &help }
    })
}

/// Why `"auto"` means the CPU although there is a CUDA device, or a driver that does not start.
pub fn passed_over(named: Device, choice: Choice) -> Option<CudaMissing> {
    let libraries = Libraries::get();
    let is_there = named == Device::Auto && (libraries.driver_fails() || !libraries.devices().is_empty());
    is_there.then(|| cuda_device(choice.first()).err())?
}

/// The CUDA devices that this process may choose from, where so many ranks share the machine: that of its place among
/// them or, if it is alone, all.
pub(super) fn choice(named: Device, ranks: usize) -> Choice {
    let place = match ranks::place() {
        Ok(None) if ranks == 1 => return Choice::Any,
        place => place.unwrap_or(None),
    };
    // a launcher that shows each rank one device only has chosen already
    let several = |_: &&Placement| Libraries::get().devices().len() != 1;
    let place = place.filter(|place| named != Device::Cpu && several(place));
    Choice::Own(place.map_or(0, |place| place.local_rank))
}

/// The CUDA device with this index, if it can be used.
fn cuda_device(index: usize) -> Result<CudaDevice, CudaMissing> {
    let libraries = Libraries::get();
    let name = libraries.require_device(index)?.name;
    let (free_memory, total_memory) = libraries.memory(index)?;
    Ok(CudaDevice { index, name, total_memory, free_memory })
}

/// Bytes of memory used: the peak of this process's resident memory or, on a CUDA device, the bytes that it has
/// allocated there, which are those of the plan.
pub fn memory_bytes(plan: &Plan) -> u64 {
    if plan.cuda.is_some() { plan.bytes.total as u64 } else { peak_resident_bytes() }
}

/// The processor's name, or its architecture where the system does not tell.
pub fn cpu_model() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or(std::env::consts::ARCH, |(_, model)| model.trim()).to_owned()
}
