//! `runner bench RECIPE`: how fast this recipe's step is here, and where its time goes. Writes no run.

use super::exit::Exit;
use super::named::Named;
use super::plan::roofline::{limits_of, table};
use super::signals;
use super::terminal::{report, say};
use super::voice::{Voice, peak_text};
use crate::cli::{BenchArgs, Format};
use crate::cuda::Libraries;
use crate::engine::FastPaths;
use crate::plan::gib;
use crate::plan::roofline::{Assumed, KernelTime};
use crate::recipe::{self, Resolved};
use crate::session::generation::Generation;
use crate::session::machine::Cache;
use crate::session::supported;
use crate::session::throughput::{Progress, Throughput, WARM_UP};
use crate::wording::count;
use serde_json::json;
use std::fmt::Write;

/// Prints the median speed and the time by phase.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Exit> {
    let (recipe, overrides) = Named::here(&args.recipe).one("bench")?;
    let resolved = recipe::load_among(&recipe, &overrides, &args.runs.runs_dir)?;
    supported::check(&resolved, &Voice::default())?;
    if let Some(tokens) = args.sample {
        return sample(&resolved, tokens as usize, args.format);
    }
    let tell = |progress: Progress| match progress {
        Progress::WarmUp { step, ms } => say(&format!("warm-up step {step}/{WARM_UP}: {ms:.1} ms")),
        Progress::TurnedAway(text) => say(&format!("warning: {text}")),
        Progress::Failed(error) => report(error),
        Progress::Hung(error) => signals::end_hung(error),
    };
    let Some(measured) = Throughput::measure(&resolved, args.steps, &Cache::of_user(), &tell)? else {
        return Ok(Exit::Finished);
    };
    let plan = &measured.plan;
    let kernels = beside_the_model(&measured);
    super::print(&match args.format {
        Format::Json => {
            let phases: serde_json::Map<_, _> =
                measured.phases.iter().map(|(phase, ms)| (phase.clone(), json!(ms))).collect();
            let output = json!({
                "recipe": resolved.recipe.name,
                "tokens_per_s": measured.tokens_per_s(),
                "step_ms": measured.step_ms,
                "mfu": measured.mfu(),
                "peak_flops": measured.peak.flops,
                "peak_flops_source": measured.peak.how,
                "peak_flops_measured": measured.peak.measured,
                "flops_per_token": plan.flops_per_token,
                "device": plan.device,
                "precision": plan.memory.precision,
                "emulated": plan.emulated,
                "world_size": plan.ranks.world_size,
                "ranks_by": measured.ranks_by,
                "wire_bytes_per_step": plan.wire_bytes_per_step,
                "wire_bytes_per_s": measured.wire_bytes_per_s(),
                "peak_memory_bytes": measured.memory_bytes,
                "planned_memory_bytes": plan.bytes.total,
                "fast_paths": measured.fast_paths,
                "steps": args.steps,
                "phases": phases,
                "kernels": kernels,
            });
            format!("{output:#}\n")
        }
        Format::Text => text(&measured) + &kernels.map(|kernels| table(&kernels)).unwrap_or_default(),
    })?;
    Ok(Exit::Finished)
}

/// Prints how fast one text grows.
fn sample(resolved: &Resolved, tokens: usize, format: Format) -> anyhow::Result<Exit> {
    let measured = Generation::measure(resolved, tokens)?;
    let (tokens_per_s, share) = (measured.tokens_per_s(), measured.bandwidth_share());
    super::print(&match format {
        Format::Json => {
            let output = json!({
                "recipe": resolved.recipe.name,
                "tokens_per_s": tokens_per_s,
                "token_ms": measured.token_ms,
                "tokens": measured.tokens,
                "bytes_per_token": measured.bytes_per_token,
                "bandwidth_bytes_per_s": measured.bandwidth,
                "bandwidth_share": share,
                "device": measured.device,
            });
            format!("{output:#}\n")
        }
        Format::Text => format!(
            "{tokens_per_s:.1} tokens/s of one text, {:.2} ms per token, median of {}\n\
             reads {:.1} MB per token, {:.2} GB/s, {:.1} % of the {:.2} GB/s that memory gives here\n",
            measured.token_ms,
            count(measured.tokens, "token"),
            measured.bytes_per_token / 1e6,
            measured.bytes_per_token * tokens_per_s / 1e9,
            share * 100.0,
            measured.bandwidth / 1e9,
        ),
    })?;
    Ok(Exit::Finished)
}

/// What each kernel took on a CUDA device, beside the roofline of the device; `None` on any other device.
fn beside_the_model(measured: &Throughput) -> Option<Vec<KernelTime>> {
    let info = Libraries::get().require_device(measured.plan.cuda?).ok()?;
    let assumed = Assumed::of(&limits_of(&info), measured.plan.memory.precision);
    let mut kernels = KernelTime::by_name(&[(&measured.launches, 1)], &assumed);
    if info.memory_bandwidth == 0.0 {
        // the driver does not tell the memory's clock: what was measured stands without a model
        kernels.iter_mut().for_each(|kernel| kernel.ms = f64::NAN);
    }
    Some(kernels)
}

fn text(measured: &Throughput) -> String {
    let (plan, tokens_per_s, mfu) = (&measured.plan, measured.tokens_per_s(), measured.mfu());
    let mut out = format!(
        "{tokens_per_s:.0} tokens/s, {:.1} ms per step of {}, MFU {:.1} % of {}\n\
         peak memory {}, planned {}\n",
        measured.step_ms,
        count(plan.batch.tokens_per_step, "token"),
        mfu * 100.0,
        peak_text(&measured.peak),
        gib(measured.memory_bytes as usize),
        gib(plan.bytes.total)
    );
    let precision = plan.memory.precision;
    let _ = match plan.emulated {
        true => writeln!(
            out,
            "{} emulated by rounding: the numerics of this format, not its speed",
            precision.as_str()
        ),
        false => writeln!(out, "in {}", precision.as_str()),
    };
    if let Some(rate) = measured.wire_bytes_per_s() {
        let _ = writeln!(
            out,
            "{} ranks by {}, {} each, which sent {:.1} MB per step at {:.2} GB/s",
            plan.ranks.world_size,
            measured.ranks_by,
            gib(plan.bytes.total),
            plan.wire_bytes_per_step as f64 / 1e6,
            rate / 1e9
        );
    }
    if let Some(FastPaths { graphs, notes }) = &measured.fast_paths {
        let _ = writeln!(out, "graph: {}", if *graphs > 0 { "yes" } else { "no" });
        for note in notes {
            let _ = writeln!(out, "  {note}");
        }
    }
    for (phase, ms) in &measured.phases {
        let _ = writeln!(out, "{phase:<28} {ms:>10.2} ms {:>5.1} %", ms / measured.step_ms * 100.0);
    }
    out
}
