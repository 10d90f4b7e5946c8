//! `runner doctor`: what this machine has, what is missing, and what that means. Succeeds whatever is missing.

mod measure;
mod show;

use super::exit::Exit;
use crate::cli::{DoctorArgs, Format};
use crate::cuda::found::Finding;
use crate::cuda::search::SearchDir;
use crate::cuda::{CudaMissing, DeviceInfo, Libraries};
use crate::engine::cpu;
use crate::plan::hardware::Hardware;
use measure::{CpuRates, GpuRates};
use serde::Serialize;

/// Everything that is shown; in JSON, under these names. Rates are operations or bytes per second, sizes bytes.
#[derive(Serialize)]
struct Report {
    /// This program's version.
    version: &'static str,
    cpu: Cpu,
    cuda: Cuda,
}

#[derive(Serialize)]
struct Cpu {
    model: String,
    architecture: &'static str,
    /// Hardware threads that this process may use.
    threads: usize,
    /// The widest vector instructions that kernels use here.
    vectors: &'static str,
    total_memory: Option<usize>,
    free_memory: Option<usize>,
    /// With `--measure`.
    measured: Option<CpuRates>,
}

#[derive(Serialize)]
struct Cuda {
    /// Whether the first device has everything that training on it needs.
    usable: bool,
    /// If not, why not.
    problem: Option<String>,
    /// And what to do about it.
    help: Option<String>,
    libraries: Vec<Finding>,
    /// Where they were looked for, in this order.
    searched: Vec<SearchDir>,
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Device {
    #[serde(flatten)]
    info: DeviceInfo,
    usable: bool,
    problem: Option<String>,
    /// Bytes that were free when it was asked.
    free_memory: Option<usize>,
    /// With `--measure`.
    measured: Option<GpuRates>,
    /// Why it was not measured although it was asked for.
    not_measured: Option<String>,
}

/// Prints the report.
pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<Exit> {
    let report = Report::new(Libraries::get(), args.measure);
    super::print(&match args.format {
        Format::Text => report.text(),
        Format::Json => format!("{}\n", serde_json::to_string_pretty(&report)?),
    })?;
    Ok(Exit::Finished)
}

impl Report {
    fn new(libraries: &Libraries, measure: bool) -> Self {
        let hardware = Hardware::detect();
        let known = |bytes| (bytes != usize::MAX).then_some(bytes);
        let cpu = Cpu {
            model: super::calibration::cpu_model(),
            architecture: std::env::consts::ARCH,
            threads: hardware.threads,
            vectors: cpu::peak::vectors(),
            total_memory: known(hardware.total_memory),
            free_memory: known(hardware.free_memory),
            measured: measure.then(|| measure::cpu(hardware.threads)),
        };
        let missing = libraries.require_device(0).err();
        let cuda = Cuda {
            usable: missing.is_none(),
            libraries: libraries.findings().into_iter().cloned().collect(),
            searched: libraries.places().to_vec(),
            devices: libraries.devices().into_iter().map(|info| device(libraries, info, measure)).collect(),
            help: missing.as_ref().map(|missing| missing.help.clone()),
            problem: missing.map(|missing| missing.message),
        };
        Self { version: env!("CARGO_PKG_VERSION"), cpu, cuda }
    }
}

fn device(libraries: &Libraries, info: DeviceInfo, measure: bool) -> Device {
    let problem = libraries.require_device(info.index).err().map(|CudaMissing { message, .. }| message);
    let free_memory = libraries.memory(info.index).ok().map(|(free, _)| free);
    let (measured, not_measured) = match measure {
        false => (None, None),
        true => match measure::gpu(libraries, &info) {
            Ok(rates) => (Some(rates), None),
            Err(error) => (None, Some(error.to_string())),
        },
    };
    Device { usable: problem.is_none(), info, problem, free_memory, measured, not_measured }
}
