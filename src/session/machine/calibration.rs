//! What this machine does with a small step of a recipe's shapes: measured once, then remembered.
//!
//! The cache is a convenience: if it cannot be read, the machine is measured again.

use super::cache_dir;
use crate::comm::{Comm, Threads};
use crate::engine::memory::{MemoryConfig, MemoryPlan};
use crate::engine::optimizer::{OptimizerKind, OptimizerStep};
use crate::engine::{Batch, Engine, EngineError, State};
use crate::model::init::initialize;
use crate::plan::Plan;
use crate::plan::predict::{self, Rates};
use crate::plan::scaling::wire_bytes;
use crate::recipe::EngineKind;
use crate::run::{facts, files};
use crate::session::engines;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Tokens of the reference engine's probe. It is slower, so its probe is smaller.
const REFERENCE_TOKENS: usize = 64;
/// Passes that are timed, after one that is not.
const PASSES: usize = 2;

/// Rates for a plan, and whether they were remembered.
///
/// # Errors
/// Where the engine cannot be opened or fails.
pub fn rates(plan: &Plan, engine: EngineKind) -> Result<(Rates, bool), EngineError> {
    let mut probe = predict::probe(&plan.memory);
    if engine == EngineKind::Dfdx {
        probe.dims.block_size = probe.dims.block_size.min(REFERENCE_TOKENS);
        probe.micro_batch = 1;
    }
    let (path, key) = (cache_path(), key(&probe, engine, &plan.device));
    let mut cache: BTreeMap<String, Rates> = path
        .as_ref()
        .and_then(|path| std::fs::read(path).ok())
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let is_plausible = |rates: &Rates| {
        [rates.seconds_per_flop, rates.seconds_per_parameter].iter().all(|r| r.is_finite() && *r > 0.0)
    };
    if let Some(rates) = cache.get(&key).copied().filter(is_plausible) {
        return Ok((rates, true));
    }
    let rates = measure(&probe, engine, plan.cuda)?;
    cache.insert(key, rates);
    if let (Some(path), Ok(text)) = (path, serde_json::to_string_pretty(&cache))
        && let Some(dir) = path.parent()
        && std::fs::create_dir_all(dir).is_ok()
    {
        // a machine without a writable cache measures each time
        let _ = files::write_atomic(&path, text.as_bytes(), "calibration");
    }
    Ok((rates, false))
}

/// Bytes per second at which ranks that are threads of this machine add up their gradients: what each would have had
/// to send, over the time of the sum.
pub fn link(ranks: usize) -> f64 {
    const ELEMENTS: usize = 1 << 22;
    let mut seconds = f64::INFINITY;
    let group = Threads::group(ranks, Duration::from_secs(60));
    thread::scope(|scope| {
        let threads: Vec<_> = group
            .into_iter()
            .map(|comm| {
                scope.spawn(move || {
                    let mut values = vec![1.0; ELEMENTS];
                    let mut seconds = f64::INFINITY;
                    for _ in 0..=PASSES {
                        let start = Instant::now();
                        // no rank gives up here
                        let _ = comm.all_reduce(&mut values);
                        seconds = seconds.min(start.elapsed().as_secs_f64());
                    }
                    seconds
                })
            })
            .collect();
        // the slowest rank's fastest pass
        seconds = threads.into_iter().filter_map(|thread| thread.join().ok()).fold(0.0, f64::max);
    });
    wire_bytes(ELEMENTS, ranks) as f64 / seconds
}

/// Times forward and backward pass and update of the probe.
fn measure(probe: &MemoryConfig, kind: EngineKind, cuda: Option<usize>) -> Result<Rates, EngineError> {
    let optimizer = probe.mode.optimizer();
    let optimizer = optimizer.ok_or_else(|| EngineError::Input("rates are those of training".into()))?;
    let mut engine: Box<dyn Engine> = match kind {
        EngineKind::Fused => engines::fused(MemoryPlan::new(*probe), cuda, &engines::solo())?,
        EngineKind::Dfdx => Box::new(engines::reference(probe.dims, optimizer, probe.threads())?),
    };
    let layout = engine.layout().clone();
    let mut parameters = vec![0.0; layout.len];
    initialize(&probe.dims, &layout, 1, &mut parameters);
    engine.write(State::Parameters, &parameters)?;
    let (rows, cols) = (probe.micro_batch, probe.dims.block_size);
    let tokens: Vec<u32> = (0..rows * cols).map(|i| (i * 31 % probe.dims.vocab_size) as u32).collect();
    let batch = Batch { inputs: &tokens, targets: &tokens, rows, cols };
    let (mut pass_s, mut update_s) = (f64::INFINITY, f64::INFINITY);
    for t in 0..=PASSES as u64 {
        let start = Instant::now();
        engine.accumulate(batch, 1.0)?;
        // waits for the device
        engine.loss()?;
        let passed = start.elapsed();
        let rule = optimizer.typical();
        engine.finish_step(&OptimizerStep { rule, lr: 1e-4, clip_norm: 1.0, t: t + 1, loss_scale: 1.0 })?;
        // the first touches memory that the later ones find at hand
        if t > 0 {
            pass_s = pass_s.min(passed.as_secs_f64());
            update_s = update_s.min((start.elapsed() - passed).as_secs_f64());
        }
    }
    Ok(predict::rates(probe, pass_s, update_s))
}

/// What a measurement is valid for: this machine, this build, these shapes, this optimizer.
fn key(probe: &MemoryConfig, engine: EngineKind, device: &str) -> String {
    let model = cpu_model();
    let dims = probe.dims;
    format!(
        "{} | {model} | {device} | {} threads | {} | {engine:?} {:?} {:?}{} | L{} H{} C{} V{} T{} B{}",
        facts::host(),
        probe.threads(),
        env!("CARGO_PKG_VERSION"),
        probe.precision,
        probe.attention,
        probe.mode.optimizer().map_or("", optimizer_in_key),
        dims.n_layer,
        dims.n_head,
        dims.n_embd,
        dims.padded_vocab,
        dims.block_size,
        probe.micro_batch
    )
}

/// What a key says about the optimizer, a space first: nothing for AdamW, so that rates measured before there was
/// another rule stay valid.
fn optimizer_in_key(kind: OptimizerKind) -> &'static str {
    match kind {
        OptimizerKind::AdamW => "",
    }
}

/// The processor's name, or its architecture where the system does not tell.
pub fn cpu_model() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or(std::env::consts::ARCH, |(_, model)| model.trim()).to_owned()
}

fn cache_path() -> Option<PathBuf> {
    Some(cache_dir()?.join("calibration.json"))
}
