//! The modelled step on a CUDA device: which device is meant, and the table for people.

use crate::cli::RooflineDevice;
use crate::cuda::{DeviceInfo, Libraries};
use crate::plan::hardware::Hardware;
use crate::plan::roofline::{Assumed, KernelTime, Limits, Roofline};
use crate::plan::{Plan, gib};
use crate::recipe::{EngineKind, Recipe};
use crate::report::numbers::thousands;
use crate::session::UsageError;
use crate::wording::count;
use std::fmt::Write;

/// The model of a recipe's step on this device. `plan` is that of `host`: on the device at hand the step is the plan's,
/// and for a device by name what the recipe leaves open is chosen by that device's memory.
pub(super) fn model(
    recipe: &Recipe,
    (plan, host): (&Plan, &Hardware),
    device: RooflineDevice,
) -> Result<Roofline, UsageError> {
    if plan.engine == EngineKind::Dfdx {
        let message = "--roofline models the CUDA engine: use compute.engine = \"fused\"";
        return Err(UsageError(message.to_owned()));
    }
    let named =
        |name| Limits::named(name).ok_or_else(|| UsageError(format!("--roofline {name}: no data sheet")));
    let limits = match device {
        RooflineDevice::H100 => named("h100")?,
        RooflineDevice::H200 => named("h200")?,
        RooflineDevice::A100 => named("a100")?,
        RooflineDevice::Rtx4090 => named("rtx4090")?,
        RooflineDevice::Here => {
            let refused = |why: String| {
                UsageError(format!("--roofline here: {why}; name a device, as in --roofline h100"))
            };
            let info = Libraries::get().require_device(plan.cuda.unwrap_or(0));
            let info = info.map_err(|missing| refused(missing.to_string()))?;
            if info.memory_bandwidth == 0.0 {
                return Err(refused(format!("the driver does not tell the memory's clock of {}", info.name)));
            }
            limits_of(&info)
        }
    };
    let there = match device {
        RooflineDevice::Here => plan.clone(),
        _ => Plan::derive(recipe, &limits.hardware(host), plan.data.clone(), None)
            .map_err(|error| UsageError(format!("--roofline: {error}; {}", error.help)))?,
    };
    Roofline::new(&there, &limits).map_err(|error| UsageError(format!("--roofline: {error}")))
}

/// What a device at hand could do at most. The bandwidth is 0 where the driver does not tell the memory's clock.
pub(in crate::commands) fn limits_of(info: &DeviceInfo) -> Limits {
    Limits {
        device: info.name.clone(),
        major: info.compute_capability.0,
        memory: info.total_memory,
        shared_per_block: info.shared_per_block,
        bandwidth: info.memory_bandwidth,
        peaks: [info.peaks.half, info.peaks.tf32, info.peaks.fp32],
    }
}

/// The step and a line per kernel.
pub(super) fn text(roofline: &Roofline) -> String {
    let Roofline { device, assumed, micro_steps, micro_step_ms, update_ms, step_ms, .. } = roofline;
    let Assumed { bytes_per_s, product_flops, attention_forward_flops, .. } = assumed;
    let tera = |rate: f64| rate / 1e12;
    let mut out = format!(
        "{:<22}{device}: a model at assumed rates, not a measurement\n\
         {:<22}products {:.0} TFLOP/s, attention {:.0} forward and {:.0} backward, other kernels {:.0}\n\
         {:<22}memory {:.2} TB/s, {} us between two launches\n\
         {:<22}{}\n\
         {:<22}{step_ms:.2} ms = {} of {micro_step_ms:.2} ms and an update of {update_ms:.2} ms\n\
         {:<22}{} tokens/s{}\n",
        "roofline",
        "  assumed",
        tera(*product_flops),
        tera(*attention_forward_flops),
        tera(assumed.attention_backward_flops),
        tera(assumed.kernel_flops),
        "",
        tera(*bytes_per_s),
        assumed.gap_us,
        "  memory",
        memory_text(roofline),
        "  step",
        count(*micro_steps, "micro-step"),
        "",
        thousands(roofline.tokens_per_s as u64),
        if roofline.without_sums {
            " on each rank, without the time in which gradients are added up"
        } else {
            ""
        },
    );
    out.push_str(&table(&roofline.kernels));
    out
}

/// What the step takes of the device's memory, and what was chosen by it.
fn memory_text(roofline: &Roofline) -> String {
    let Roofline { micro_batch, recompute, total_bytes, device_bytes, fits, .. } = roofline;
    format!(
        "{} of {} for a micro_batch of {micro_batch}, recompute {}{}",
        gib(*total_bytes),
        gib(*device_bytes as usize),
        recompute.as_str(),
        if *fits { "" } else { ": the step does not fit on this device" }
    )
}

/// A line per kernel; with the measured times beside the model's, if there are any.
pub(in crate::commands) fn table(kernels: &[KernelTime]) -> String {
    let is_measured = kernels.iter().any(|kernel| kernel.measured_ms.is_some());
    let width = kernels.iter().map(|kernel| kernel.name.len()).max().unwrap_or(0).max("kernel".len());
    let mut out = format!("{:<width$} {:>8} {:>9} {:>9}", "kernel", "launches", "GB", "GFLOP");
    out.push_str(if is_measured { "  measured ms  model ms  model/measured" } else { "  model ms" });
    out.push_str("  bound by\n");
    for kernel in kernels {
        let KernelTime { name, launches, bytes, flops, ms, bound, measured_ms } = kernel;
        let (gb, gflop) = (*bytes as f64 / 1e9, *flops as f64 / 1e9);
        // Writing to a string cannot fail.
        let _ = write!(out, "{name:<width$} {launches:>8} {gb:>9.3} {gflop:>9.1}");
        if is_measured {
            let measured = measured_ms.unwrap_or(f64::NAN);
            let _ = write!(out, " {measured:>12.3} {ms:>9.3} {:>13.0} %", ms / measured * 100.0);
        } else {
            let _ = write!(out, " {ms:>9.3}");
        }
        let _ = writeln!(out, "  {}", format!("{bound:?}").to_lowercase());
    }
    out
}
