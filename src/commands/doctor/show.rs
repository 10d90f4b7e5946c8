//! The report of `runner doctor` for people.

use super::{Cpu, Cuda, Device, Report};
use crate::cuda::found::Finding;
use crate::plan::gib;
use std::fmt::Write;

impl Report {
    pub(super) fn text(&self) -> String {
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
            self.model, self.architecture, self.threads, self.vectors
        );
        if let Some(rates) = &self.measured {
            let _ = writeln!(
                text,
                "  measured   fp32 peak {}, matrix product {}, copies {}",
                flops(rates.fp32_peak),
                flops(rates.matmul_fp32),
                bandwidth(rates.copy)
            );
        }
        text
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
            "  cuda:{}     {}{slice} at {}\n             compute capability {major}.{minor}, {} multiprocessors at up to \
             {:.0} MHz, {}{free}, {} by its clock\n",
            info.index,
            info.name,
            info.pci_bus_id,
            info.multiprocessors,
            info.clock_hz / 1e6,
            gib(info.total_memory as usize),
            bandwidth(info.memory_bandwidth),
        );
        let peaks = &info.peaks;
        let _ = writeln!(
            text,
            "             peak: fp16 and bf16 {}, tf32 {}, fp32 {} ({})",
            flops(peaks.half),
            flops(peaks.tf32),
            flops(peaks.fp32),
            peaks.source
        );
        if let Some(rates) = &self.measured {
            let _ = writeln!(
                text,
                "             measured: matrix product bf16 {}, tf32 {}, fp32 {}; copies to the device {}, from it {}, on it {}",
                flops(rates.matmul_bf16),
                flops(rates.matmul_tf32),
                flops(rates.matmul_fp32),
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

fn flops(rate: f64) -> String {
    if rate >= 1e12 { format!("{:.1} TFLOP/s", rate / 1e12) } else { format!("{:.0} GFLOP/s", rate / 1e9) }
}

fn bandwidth(rate: f64) -> String {
    format!("{:.1} GB/s", rate / 1e9)
}
