//! Every call, kernel and product shape of a training step, each tried alone on the device at hand.
//!
//! A first run on a new device, driver or library shows here what fails, instead of ending at the first fault. The
//! kernels are compared with the CPU's on any implementation of [`Device`](super::device::Device), so the same checks
//! run in the emulator.

mod calls;
pub mod kernels;
mod muon;
mod next;
pub mod pair;
mod products;
mod residual;
pub mod stream_gradient;

use super::device::KernelConfig;
use super::gpu::Gpu;
use super::kernels as sources;
use crate::cuda::Libraries;
use crate::engine::EngineError;
use crate::engine::memory::Activations;
use crate::model::Dims;
use crate::recipe::{Attention, Precision, Residual};
use pair::Pair;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// The precisions that kernels are compiled for.
pub const PRECISIONS: [Precision; 4] = [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16];

/// Ragged in every dimension; 31 tokens of 33, more rows than one slice of partial sums.
pub const RAGGED: Dims =
    Dims { n_layer: 1, n_head: 3, n_embd: 60, block_size: 37, vocab_size: 301, padded_vocab: 304 };

/// GPT-2's heads of 64 and full tiles.
pub const EVEN: Dims =
    Dims { n_layer: 1, n_head: 2, n_embd: 128, block_size: 64, vocab_size: 301, padded_vocab: 384 };

/// Three tiles of keys in the backward pass of flash attention, which two blocks for each head share.
pub const LONG: Dims =
    Dims { n_layer: 1, n_head: 2, n_embd: 128, block_size: 300, vocab_size: 301, padded_vocab: 384 };

/// So many heads that each has one block, which walks through all tiles of its keys.
pub const MANY_HEADS: Dims = Dims { n_head: 140, n_embd: 560, ..LONG };

/// How many times the emulator's bounds a real device may be off: its exponentials and the order of its sums differ.
const SLACK: f32 = 8.0;

/// One thing that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct Trial {
    /// What was tried.
    pub name: String,
    /// Whether it holds.
    pub ok: bool,
    /// What was found or measured; for a failure, the call, its status and what that means.
    pub detail: String,
    /// Seconds that the trial took.
    pub seconds: f64,
}

/// Gets each trial as soon as it is over.
pub type Tell<'a> = dyn FnMut(Trial) + 'a;

/// Tries one thing and tells what came of it.
fn attempt(tell: &mut Tell, name: impl Into<String>, run: impl FnOnce() -> Result<String, String>) {
    let begun = Instant::now();
    let outcome = run();
    let seconds = begun.elapsed().as_secs_f64();
    let (ok, detail) = match outcome {
        Ok(detail) => (true, detail),
        Err(detail) => (false, detail),
    };
    tell(Trial { name: name.into(), ok, detail, seconds });
}

/// An error as a trial tells it.
fn text(error: impl Into<EngineError>) -> String {
    error.into().to_string()
}

/// Tries everything on device `index`, in the order in which a training step needs it; a failure does not stop
/// the rest. `cache` is a directory for machine code and for the algorithms of products, which later commands
/// use.
///
/// Returns whether everything holds.
pub fn run(libraries: &Libraries, index: usize, cache: &Path, tell: &mut Tell) -> bool {
    let mut all = true;
    let mut tell = |trial: Trial| {
        all &= trial.ok;
        tell(trial);
    };
    calls::run(libraries, index, &mut tell);
    let with_dropout = [Precision::Fp32, Precision::Bf16].map(|precision| (precision, true));
    for kernels in PRECISIONS.map(|precision| (precision, false)).into_iter().chain(with_dropout) {
        let (precision, dropout) = kernels;
        let with = if dropout { " with dropout" } else { "" };
        let name = format!("compile and load the kernels, {}{with}", precision.as_str());
        attempt(&mut tell, name, || compiled(libraries, index, kernels, cache));
    }
    calls::recording(libraries, index, cache, &mut tell);
    products::run(libraries, index, cache, &mut tell);
    for (dims, shape) in
        [(EVEN, "heads of 64"), (RAGGED, "ragged sizes"), (LONG, "300 tokens"), (MANY_HEADS, "many heads")]
    {
        // the other kernels know neither tokens nor heads
        let longer = dims.block_size == LONG.block_size;
        for precision in PRECISIONS {
            for (check, run) in kernels::checks() {
                let attentions: &[_] = match check {
                    "attention" if longer => &[Attention::Flash],
                    "attention" => &[Attention::Flash, Attention::Naive],
                    _ if longer => &[],
                    _ => &[Attention::Flash],
                };
                for (&attention, activations) in attentions
                    .iter()
                    .flat_map(|one| kernels::ways(check, precision).into_iter().map(move |way| (one, way)))
                {
                    let kind =
                        if check == "attention" { format!("{} ", attention.as_str()) } else { String::new() };
                    let Activations { residual, dropout, .. } = activations;
                    // each is compiled anew: one of each width is enough of dropout
                    if dropout.is_some() && !matches!(precision, Precision::Fp32 | Precision::Bf16) {
                        continue;
                    }
                    let stream = if residual == Residual::Bf16 { ", residual stream in bf16" } else { "" };
                    let dropped = if dropout.is_some() { ", with dropout" } else { "" };
                    let name = format!("{kind}{check}, {}{stream}{dropped}, {shape}", precision.as_str());
                    attempt(&mut tell, name, || {
                        let config = KernelConfig {
                            precision,
                            head_size: dims.head_size(),
                            dropout: dropout.is_some(),
                        };
                        let gpu = Gpu::open(libraries, index, &config, Some(cache)).map_err(text)?;
                        run(&mut Pair::new(dims, precision, attention, activations, gpu, SLACK)
                            .map_err(text)?)?;
                        Ok("as on the CPU".to_owned())
                    });
                }
            }
        }
    }
    all
}

/// Compiles the kernels of a precision for heads of 64, loads them, and looks at their registers.
fn compiled(
    libraries: &Libraries,
    index: usize,
    (precision, dropout): (Precision, bool),
    cache: &Path,
) -> Result<String, String> {
    let config = KernelConfig { precision, head_size: 64, dropout };
    let begun = Instant::now();
    let mut gpu = Gpu::open(libraries, index, &config, Some(cache)).map_err(text)?;
    let seconds = begun.elapsed().as_secs_f64();
    let names = sources::names(&config);
    let mut most = (0, "");
    let mut spills = Vec::new();
    for name in &names {
        let (registers, local) = gpu.resources(name).map_err(text)?;
        most = most.max((registers, name));
        if local > 0 {
            spills.push(format!("{name} uses {local} bytes of local memory"));
        }
    }
    if !spills.is_empty() {
        return Err(spills.join(", "));
    }
    let (registers, name) = most;
    Ok(format!(
        "{} kernels in {seconds:.1} s, at most {registers} registers ({name}), no spills",
        names.len()
    ))
}
