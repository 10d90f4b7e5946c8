//! `runner doctor`: what this machine has, what is missing, and what that means. Succeeds whatever is missing, but for
//! `--selftest`, which fails where something that training needs does not hold.

use super::exit::Exit;
use super::voice::peak_text;
use crate::cli::{DoctorArgs, Format};
use crate::cuda::found::Finding;
use crate::cuda::search::SearchDir;
use crate::cuda::{CudaMissing, DeviceInfo, Libraries};
use crate::engine::cpu;
use crate::engine::cuda::selftest::{self, Trial};
use crate::plan::gib;
use crate::plan::hardware::Hardware;
use crate::report::numbers::{count, flop_rate};
use crate::run::record::Peak;
use crate::session::machine;
use crate::session::machine::rates::{self, CpuRates, GpuRates};
use crate::session::machine::{Cache, cpu_model, peaks};
use serde::Serialize;
use std::fmt::Write;

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
    /// The vector instructions that kernels use here: the widest, or those that `RUNNER_SIMD` forces.
    vectors: &'static str,
    /// The widest that the processor has.
    widest_vectors: &'static str,
    total_memory: Option<usize>,
    free_memory: Option<usize>,
    /// The peak that MFU is a fraction of, where one was measured.
    peak: Option<Peak>,
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
    if args.selftest {
        return selftest(args.format);
    }
    let report = Report::new(Libraries::get(), args.measure);
    super::print(&match args.format {
        Format::Text => report.text(),
        Format::Json => format!("{}\n", serde_json::to_string_pretty(&report)?),
    })?;
    Ok(Exit::Finished)
}

/// Tries everything that training does on the first device. A line is printed as soon as its trial is over,
/// since a fault may end the process.
fn selftest(format: Format) -> anyhow::Result<Exit> {
    let libraries = Libraries::get();
    if let Err(CudaMissing { message, help }) = libraries.require_device(0) {
        anyhow::bail!("{message}; {help}");
    }
    let temporary = tempfile::tempdir()?;
    let cache = machine::own_cache_dir().unwrap_or_else(|| temporary.path().to_owned());
    let (mut trials, mut failed) = (Vec::new(), 0);
    let holds = selftest::run(libraries, 0, &cache, &mut |trial: Trial| {
        failed += usize::from(!trial.ok);
        if format == Format::Text {
            let verdict = if trial.ok { "ok  " } else { "FAIL" };
            // stdout that is gone must not end the trials, which also fill the cache
            let _ = super::print(&format!("{verdict} {}: {}\n", trial.name, trial.detail));
        }
        trials.push(trial);
    });
    super::print(&match format {
        Format::Text => format!("{failed} of {} trials failed\n", trials.len()),
        Format::Json => format!("{}\n", serde_json::to_string_pretty(&trials)?),
    })?;
    Ok(if holds { Exit::Finished } else { Exit::Failure })
}

impl Report {
    fn new(libraries: &Libraries, measure: bool) -> Self {
        let (hardware, cache) = (Hardware::detect(), Cache::of_user());
        let known = |bytes| (bytes != usize::MAX).then_some(bytes);
        let cpu = Cpu {
            model: cpu_model(),
            architecture: std::env::consts::ARCH,
            threads: hardware.threads,
            vectors: cpu::level().name(),
            widest_vectors: cpu::best_level().name(),
            total_memory: known(hardware.total_memory),
            free_memory: known(hardware.free_memory),
            measured: measure.then(|| rates::cpu(hardware.threads, &cache)),
            peak: peaks::remembered(hardware.threads, &cache),
        };
        // what `compute.device = "auto"` would train on
        let is_usable = |device: &DeviceInfo| libraries.require_device(device.index).is_ok();
        let missing = match libraries.devices().iter().any(is_usable) {
            true => None,
            false => libraries.require_device(0).err(),
        };
        let cuda = Cuda {
            usable: missing.is_none(),
            libraries: libraries.findings().into_iter().cloned().collect(),
            searched: libraries.places().to_vec(),
            devices: libraries.devices().into_iter().map(|info| device(libraries, info, measure)).collect(),
            help: missing.as_ref().map(CudaMissing::help_beside_a_report),
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
        true => match rates::gpu(libraries, &info) {
            Ok(rates) => (Some(rates), None),
            Err(error) => (None, Some(error.to_string())),
        },
    };
    Device { usable: problem.is_none(), info, problem, free_memory, measured, not_measured }
}

impl Report {
    fn text(&self) -> String {
        format!("runner {}\n\n{}\n{}", self.version, self.cpu.text(), self.cuda.text())
    }
}

impl Cpu {
    fn text(&self) -> String {
        let memory = match (self.total_memory, self.free_memory) {
            (Some(total), Some(free)) => format!("{}, {} free", gib(total), gib(free)),
            _ => "of unknown size".to_owned(),
        };
        let mut text = format!(
            "CPU\n  processor  {} ({})\n  threads    {}\n  vectors    {}\n  memory     {memory}\n",
            self.model,
            self.architecture,
            self.threads,
            self.vectors_text()
        );
        let _ = match &self.peak {
            Some(peak) => writeln!(text, "  peak       {}", peak_text(peak)),
            None => {
                writeln!(text, "  peak       not measured yet: training, bench, plan and --measure do that")
            }
        };
        if let Some(rates) = &self.measured {
            let _ = writeln!(
                text,
                "  measured   fp32 peak {}, matrix product {}, copies {}",
                flop_rate(rates.fp32_peak),
                flop_rate(rates.matmul_fp32),
                bandwidth(rates.copy)
            );
        }
        text
    }
}

impl Cpu {
    fn vectors_text(&self) -> String {
        if self.vectors == self.widest_vectors {
            return self.vectors.to_owned();
        }
        format!(
            "{}, as {} says; the processor has {}",
            self.vectors,
            cpu::LEVEL_VARIABLE,
            self.widest_vectors
        )
    }
}

impl Cuda {
    fn text(&self) -> String {
        let mut text = "CUDA libraries\n".to_owned();
        for library in &self.libraries {
            text += &found(library);
        }
        if self.libraries.iter().any(|library| library.path.is_none()) {
            text += "  looked in\n";
            for place in &self.searched {
                let _ = writeln!(text, "             {place}");
            }
        }
        text += "\nCUDA devices\n";
        for device in &self.devices {
            text += &device.text();
        }
        if self.devices.is_empty() {
            text += "  none\n";
        }
        text += "\n";
        match (&self.problem, &self.help) {
            (None, _) => text += "CUDA can be used: everything that training on a device needs is there\n",
            (Some(problem), help) => {
                // where was looked is listed above
                let short = problem.split(": looked for").next().unwrap_or(problem);
                let _ = writeln!(text, "CUDA cannot be used: {short}");
                if let Some(help) = help.as_deref().filter(|help| !help.is_empty()) {
                    let _ = writeln!(text, "  {help}");
                }
            }
        }
        text
    }
}

fn found(library: &Finding) -> String {
    let name = library.name.trim_start_matches("the CUDA ");
    let version = library.version.map(|version| version.to_string()).unwrap_or_default();
    let mut text = match (&library.path, &library.because) {
        (Some(path), Some(because)) => {
            format!("  {name:<10} {version}, {} ({because})\n", path.display())
        }
        _ => format!(
            "  {name:<10} not found ({}); it {}\n             {}\n",
            library.looked_for.join(", "),
            library.purpose,
            library.meaning
        ),
    };
    if let Some(problem) = &library.problem {
        let _ = writeln!(text, "             cannot be used: {problem}");
    }
    for refused in &library.refused {
        let _ = writeln!(text, "             passed over {}: {}", refused.file, refused.reason);
    }
    text
}

impl Device {
    fn text(&self) -> String {
        let info = &self.info;
        let (major, minor) = info.compute_capability;
        let slice = if info.mig { ", a slice of a device" } else { "" };
        let free = self.free_memory.map(|free| format!(", {} free", gib(free))).unwrap_or_default();
        let mut text = format!(
            "  cuda:{}     {}{slice} at {}\n             compute capability {major}.{minor}, {} at \
             up to {:.0} MHz, {}{free}, {} by its clock\n",
            info.index,
            info.name,
            info.pci_bus_id,
            count(info.multiprocessors, "multiprocessor"),
            info.clock_hz / 1e6,
            gib(info.total_memory as usize),
            bandwidth(info.memory_bandwidth),
        );
        let peaks = &info.peaks;
        let _ = writeln!(
            text,
            "             peak: fp16 and bf16 {}, tf32 {}, fp32 {} ({})",
            flop_rate(peaks.half),
            flop_rate(peaks.tf32),
            flop_rate(peaks.fp32),
            peaks.source
        );
        if let Some(rates) = &self.measured {
            let _ = writeln!(
                text,
                "             measured: matrix product bf16 {}, tf32 {}, fp32 {}; copies to the device {}, \
                 from it {}, on it {}",
                flop_rate(rates.matmul_bf16),
                flop_rate(rates.matmul_tf32),
                flop_rate(rates.matmul_fp32),
                bandwidth(rates.copy_to),
                bandwidth(rates.copy_from),
                bandwidth(rates.copy_on)
            );
        }
        if let Some(why) = &self.not_measured {
            let _ = writeln!(text, "             not measured: {why}");
        }
        if let Some(problem) = &self.problem {
            let _ = writeln!(text, "             cannot be used: {problem}");
        }
        text
    }
}

fn bandwidth(rate: f64) -> String {
    format!("{:.1} GB/s", rate / 1e9)
}
