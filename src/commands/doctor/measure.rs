//! Rates that are measured rather than looked up.

use crate::cuda::{DeviceInfo, Libraries};
use crate::engine::cpu::peak;
use serde::Serialize;

/// Of the processor, all threads together.
#[derive(Serialize)]
pub(super) struct CpuRates {
    /// Fused multiply-adds on registers.
    pub(super) fp32_peak: f64,
    /// A large matrix product.
    pub(super) matmul_fp32: f64,
    /// Copies in memory, each byte counted once.
    pub(super) copy: f64,
}

/// Of a device.
#[derive(Serialize)]
pub(super) struct GpuRates {
    /// Large matrix products.
    pub(super) matmul_bf16: f64,
    pub(super) matmul_tf32: f64,
    pub(super) matmul_fp32: f64,
    /// Copies, each byte counted once: from pinned memory to the device, back to ordinary memory, on the device.
    pub(super) copy_to: f64,
    pub(super) copy_from: f64,
    pub(super) copy_on: f64,
}

pub(super) fn cpu(threads: usize) -> CpuRates {
    CpuRates {
        fp32_peak: peak::measure(threads).0,
        matmul_fp32: peak::matmul_rate(threads),
        copy: peak::copy_bandwidth(threads),
    }
}

pub(super) fn gpu(_libraries: &Libraries, _info: &DeviceInfo) -> anyhow::Result<GpuRates> {
    anyhow::bail!("there is no engine for it yet")
}
