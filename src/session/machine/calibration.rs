//! What this machine does with a recipe's shapes: the median of a run's steps or, before there was a run, a small step
//! that is timed once. Both are remembered.
//!
//! A median over a run says more than one small step that may have met a busy moment, so it wins over timings, and the
//! newest run over those before it. Who distrusts what is remembered measures again, and that is all forgotten.

use super::cache::Cache;
use super::cpu_model;
use crate::comm::{Comm, Threads};
use crate::engine::memory::{Element, MemoryConfig, MemoryPlan, Recompute};
use crate::engine::optimizer::muon::Muon;
use crate::engine::optimizer::{OptimizerKind, OptimizerStep, Rule};
use crate::engine::{Batch, Engine, EngineError, State, cpu};
use crate::model::Dims;
use crate::model::init::initialize;
use crate::plan::Plan;
use crate::plan::hardware::available_threads;
use crate::plan::predict::{self, ITERATIONS, Rates, UpdateTimes};
use crate::plan::scaling::wire_bytes;
use crate::recipe::EngineKind;
use crate::run::facts;
use crate::session::engines;
use crate::wording::grouped;
use serde::{Deserialize, Serialize};
use std::thread;
use std::time::{Duration, Instant};

/// The file of the cache that remembers rates.
const FILE: &str = "calibration.json";
/// Tokens of the reference engine's probe. It is slower, so its probe is smaller.
const REFERENCE_TOKENS: usize = 64;
/// Passes that are timed, after one that is not.
const PASSES: usize = 3;
/// A run of fewer steps says too little about their time: the first ones fill caches and wake threads.
const STEPS: u64 = 10;

/// What rates come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Basis {
    /// A small step of the same shapes.
    Timed {
        /// When, RFC 3339 in UTC; absent for timings of earlier versions.
        on: Option<String>,
        /// Whether it was timed just now.
        #[serde(default, skip_deserializing)]
        now: bool,
    },
    /// A run of the same kind.
    Run {
        /// Its id.
        id: String,
        /// The steps whose median counts.
        steps: u64,
        /// When they were taken, RFC 3339 in UTC.
        on: String,
    },
}

/// In words that follow `from`.
impl std::fmt::Display for Basis {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Timed { now: true, .. } => f.write_str("a small step timed now"),
            Self::Timed { on: None, .. } => f.write_str("a small step timed earlier"),
            Self::Timed { on: Some(on), .. } => write!(f, "a small step timed on {}", day(on)),
            Self::Run { id, steps, on } => {
                write!(f, "the median of {} of {id} on {}", grouped(*steps, "step"), day(on))
            }
        }
    }
}

/// The day of a time.
pub fn day(time: &str) -> &str {
    time.split('T').next().unwrap_or(time)
}

/// An entry of the cache. Those of earlier versions have rates only.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Remembered {
    #[serde(flatten)]
    rates: Rates,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    basis: Option<Basis>,
}

impl Remembered {
    fn is_plausible(&self) -> bool {
        let Rates { seconds_per_flop, seconds_per_parameter, seconds_per_update_flop } = self.rates;
        let are_positive =
            [seconds_per_flop, seconds_per_parameter].iter().all(|r| r.is_finite() && *r > 0.0);
        are_positive && seconds_per_update_flop.is_finite() && seconds_per_update_flop >= 0.0
    }
}

/// Rates for a plan, and what they come from: what a cache remembers, or a small step that is timed now.
///
/// # Errors
/// Where the engine cannot be opened or fails.
pub fn rates(plan: &Plan, engine: EngineKind, cache: &Cache) -> Result<(Rates, Basis), EngineError> {
    remembered(plan, engine, cache).map_or_else(|| measured(plan, engine, cache), Ok)
}

/// Rates for a plan that a cache remembers.
pub fn remembered(plan: &Plan, engine: EngineKind, cache: &Cache) -> Option<(Rates, Basis)> {
    let mut all = cache.read::<Remembered>(FILE);
    let of_runs = if is_alone(plan) { all.remove(&key_of_runs(plan, engine)) } else { None };
    let found = of_runs.or_else(|| all.remove(&key_of_probe(plan, engine)));
    let Remembered { rates, basis } = found.filter(Remembered::is_plausible)?;
    Some((rates, basis.unwrap_or(Basis::Timed { on: None, now: false })))
}

/// Rates for a plan from a small step that is timed now. The cache remembers them in place of all that it would have
/// told of such a plan.
///
/// # Errors
/// Where the engine cannot be opened or fails.
pub fn measured(plan: &Plan, engine: EngineKind, cache: &Cache) -> Result<(Rates, Basis), EngineError> {
    let rates = measure(&probe(plan, engine), engine, plan.cuda)?;
    let basis = Basis::Timed { on: Some(facts::now()), now: true };
    cache.update(FILE, |all| {
        // a plan for several ranks does not go by runs, and says nothing about them
        if is_alone(plan) {
            all.remove(&key_of_runs(plan, engine));
        }
        all.insert(key_of_probe(plan, engine), Remembered { rates, basis: Some(basis.clone()) });
    });
    Ok((rates, basis))
}

/// Remembers what a run's steps took: `step_s` seconds are the median of `steps`. Runs of several ranks are
/// passed over, for their steps have the time in it in which gradients are added up, and so are runs of a few
/// steps.
pub fn learn(plan: &Plan, engine: EngineKind, id: &str, step_s: f64, steps: u64, cache: &Cache) {
    if !is_alone(plan) || steps < STEPS {
        return;
    }
    let basis = Basis::Run { id: id.to_owned(), steps, on: facts::now() };
    let entry = Remembered { rates: plan.rates_of_step(step_s), basis: Some(basis) };
    if entry.is_plausible() {
        cache.update(FILE, |all| drop(all.insert(key_of_runs(plan, engine), entry)));
    }
}

fn is_alone(plan: &Plan) -> bool {
    plan.ranks.world_size == 1
}

/// The small step that stands for a plan's.
fn probe(plan: &Plan, engine: EngineKind) -> MemoryConfig {
    let mut probe = predict::probe(&plan.memory);
    if engine == EngineKind::Dfdx {
        probe.dims.block_size = probe.dims.block_size.min(REFERENCE_TOKENS);
        probe.micro_batch = 1;
    }
    probe
}

/// Bytes per second at which ranks that are threads of this machine add up their gradients: what each would have had
/// to send, over the time of the sum. Ranks beyond the machine's threads are not started: they share its memory's
/// bandwidth, so each is slower by as much as there are more of them.
pub fn link(ranks: usize) -> f64 {
    const ELEMENTS: usize = 1 << 22;
    let started = ranks.min(available_threads().max(2));
    let mut seconds = f64::INFINITY;
    let group = Threads::group(started, Duration::from_secs(60));
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
    wire_bytes(ELEMENTS, started) as f64 / seconds * started as f64 / ranks as f64
}

/// Times forward and backward pass and update of the probe.
fn measure(probe: &MemoryConfig, kind: EngineKind, cuda: Option<usize>) -> Result<Rates, EngineError> {
    let optimizer = probe.mode.optimizer();
    let optimizer = optimizer.ok_or_else(|| EngineError::Input("rates are those of training".into()))?;
    let mut engine: Box<dyn Engine> = match kind {
        EngineKind::Fused => engines::fused(MemoryPlan::new(*probe), cuda, &engines::solo())?,
        EngineKind::Dfdx => {
            Box::new(engines::reference(probe.dims, optimizer, probe.dropout(), probe.threads())?)
        }
    };
    let layout = engine.layout().clone();
    let mut parameters = vec![0.0; layout.len];
    initialize(&probe.dims, &layout, 1, &mut parameters);
    engine.write(State::Parameters, &parameters)?;
    let (rows, cols) = (probe.micro_batch, probe.dims.block_size);
    let tokens: Vec<u32> = (0..rows * cols).map(|i| (i * 31 % probe.dims.vocab_size) as u32).collect();
    let batch = Batch { inputs: &tokens, targets: &tokens, rows, cols, first_row: 0 };
    let rules: Vec<Rule> = match optimizer.typical() {
        Rule::AdamW(rule) => vec![Rule::AdamW(rule)],
        Rule::Muon(rule) => ITERATIONS.map(|ns_steps| Rule::Muon(Muon { ns_steps, ..rule })).to_vec(),
    };
    let (mut pass_s, mut update_s) = (f64::INFINITY, [f64::INFINITY; 2]);
    for t in 0..=PASSES * rules.len() {
        let start = Instant::now();
        engine.accumulate(batch, 1.0)?;
        // waits for the device
        engine.loss()?;
        let passed = start.elapsed();
        let (which, t) = (t % rules.len(), t as u64);
        let rule = rules[which];
        engine.finish_step(&OptimizerStep { rule, lr: 1e-4, clip_norm: 1.0, t: t + 1, loss_scale: 1.0 })?;
        // the first touches memory that the later ones find at hand
        if t > 0 {
            pass_s = pass_s.min(passed.as_secs_f64());
            update_s[which] = update_s[which].min((start.elapsed() - passed).as_secs_f64());
        }
    }
    let updates = match optimizer {
        OptimizerKind::AdamW => UpdateTimes::Plain(update_s[0]),
        OptimizerKind::Muon => UpdateTimes::Iterated(update_s),
    };
    Ok(predict::rates(probe, pass_s, updates))
}

/// What a timed step is valid for: this machine and build, the probe's shapes, this optimizer.
fn key_of_probe(plan: &Plan, engine: EngineKind) -> String {
    key(&probe(plan, engine), engine, &plan.device, "")
}

/// What the steps of a run are valid for: this machine and build, the model's shapes and micro-batch, this optimizer.
fn key_of_runs(plan: &Plan, engine: EngineKind) -> String {
    key(&plan.memory, engine, &plan.device, "runs of ")
}

fn key(config: &MemoryConfig, engine: EngineKind, device: &str, what: &str) -> String {
    let Dims { n_layer, n_head, n_embd, padded_vocab, block_size, .. } = config.dims;
    format!(
        "{} | {} | {device} | {} threads{} | {} | {engine:?} {:?} {:?}{}{} | {what}L{n_layer} H{n_head} C{n_embd} \
         V{padded_vocab} T{block_size} B{}",
        facts::host(),
        cpu_model(),
        config.threads(),
        level_in_key(),
        env!("CARGO_PKG_VERSION"),
        config.precision,
        config.attention,
        config.mode.optimizer().map_or("", optimizer_in_key),
        activations_in_key(config),
        config.micro_batch
    )
}

/// What a key says about the optimizer, a space first: nothing for AdamW, so that rates measured before there was
/// another rule stay valid.
fn optimizer_in_key(kind: OptimizerKind) -> &'static str {
    match kind {
        OptimizerKind::AdamW => "",
        // rates of " muon" count the iterations as a part of the time per parameter
        OptimizerKind::Muon => " muon-products",
    }
}

/// What a key says about activations, a space first: nothing for what a CPU does.
fn activations_in_key(config: &MemoryConfig) -> String {
    let kept = if config.keeps_outputs() { " kept" } else { "" };
    let residual = if config.residual() == Element::F32 { "" } else { " bf16-residual" };
    let again = match config.recompute() {
        Recompute::None => "",
        Recompute::Mlp => " recompute-mlp",
        Recompute::Block => " recompute-block",
    };
    let dropped = if config.dropout().is_some() { " dropout" } else { "" };
    format!("{kept}{residual}{again}{dropped}")
}

/// What a key says about vector instructions, a space first: nothing for the processor's best, so that rates measured
/// before a lower level could be forced stay valid.
fn level_in_key() -> String {
    let level = cpu::level();
    if level == cpu::best_level() { String::new() } else { format!(" {}", level.word()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::DataSize;
    use crate::plan::hardware::Hardware;
    use crate::recipe::{EvalConfig, Overrides, load};

    fn plan(sets: &[&str]) -> Plan {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("r.toml");
        let text = "data.train = \"builtin:lipsum\"\nschedule.max_steps = 9\n[model]\nn_layer = 2\nn_head = 2\n\
                    n_embd = 64\nblock_size = 64\n[batch]\ntotal_tokens = 1024\nmicro_batch = 4\n";
        std::fs::write(&file, text).expect("written");
        let set = sets.iter().map(|set| (*set).to_owned()).collect();
        let resolved = load(&file, &Overrides { set, ..Overrides::default() }).expect("a recipe");
        let hardware =
            Hardware { threads: 2, total_memory: 1 << 40, free_memory: 1 << 40, ranks: 1, cuda: None };
        Plan::derive(&resolved.recipe, &hardware, DataSize::default(), None).expect("a plan")
    }

    #[test]
    fn the_newest_run_of_a_kind_counts() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (cache, kind) = (Cache::at(dir.path()), EngineKind::Fused);
        let ours = plan(&[]);
        let seconds = |plan: &Plan| {
            let (rates, basis) = remembered(plan, kind, &cache)?;
            Some((plan.predict(&rates, &EvalConfig::default()).step_s, basis.to_string()))
        };
        assert_eq!(seconds(&ours), None);
        learn(&ours, kind, "r-1", 2.0, 300, &cache);
        let (step_s, basis) = seconds(&ours).expect("learned");
        assert!(
            (step_s - 2.0).abs() < 1e-9 && basis.starts_with("the median of 300 steps of r-1 on 20"),
            "{basis}"
        );
        // slower or faster, and from fewer steps: the newest, unless it says too little
        learn(&ours, kind, "r-2", 3.0, 10, &cache);
        learn(&ours, kind, "r-3", 1.0, 9, &cache);
        assert!(seconds(&ours).is_some_and(|(s, basis)| (s - 3.0).abs() < 1e-9 && basis.contains("r-2")));
        learn(&ours, kind, "r-4", f64::NAN, 100, &cache);
        assert!(seconds(&ours).is_some_and(|(_, basis)| basis.contains("r-2")));
        // a longer step has more of the same passes, other kinds of run are not known
        let longer = seconds(&plan(&["batch.total_tokens=2048"])).expect("the same kind").0;
        assert!((4.0..6.0).contains(&longer), "{longer}");
        for other in ["batch.micro_batch=2", "model.n_layer=3", "compute.precision=bf16", "compute.threads=1"]
        {
            assert_eq!(seconds(&plan(&[other])), None, "{other}");
        }
        let ranks = plan(&["batch.world_size=2", "batch.micro_batch=4"]);
        learn(&ranks, kind, "r-5", 1.0, 100, &cache);
        assert_eq!(seconds(&ranks), None);
    }

    #[test]
    fn a_timing_of_an_earlier_version_is_read_and_a_run_wins_over_it() {
        let dir = tempfile::tempdir().expect("tempdir");
        let (cache, ours) = (Cache::at(dir.path()), plan(&[]));
        let old = serde_json::json!({ key_of_probe(&ours, EngineKind::Fused):
            { "seconds_per_flop": 1e-11, "seconds_per_parameter": 1e-9 } });
        std::fs::write(dir.path().join(FILE), old.to_string()).expect("written");
        let basis = || remembered(&ours, EngineKind::Fused, &cache).expect("remembered").1.to_string();
        assert_eq!(basis(), "a small step timed earlier");
        learn(&ours, EngineKind::Fused, "r-1", 2.0, 300, &cache);
        assert!(basis().contains("r-1"));
    }
}
