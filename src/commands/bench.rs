//! `runner bench RECIPE`: how fast this recipe's step is here, and where its time goes. Writes no run.

use super::build;
use super::device;
use super::exit::Exit;
use super::ranks;
use super::terminal::say;
use crate::cli::{BenchArgs, Format};
use crate::comm::{Comm, Threads};
use crate::engine::fused::timed::Phase;
use crate::engine::optimizer::{OptimizerKind, OptimizerStep};
use crate::engine::{Batch, Engine, State, cpu};
use crate::model::init::{initialize, random_bits};
use crate::plan::{DataSize, Plan, PlanError, gib};
use crate::recipe::{self, EngineKind, Recipe};
use crate::train::scaler::LossScaler;
use crate::train::schedule::Schedule;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Steps that are run and not counted: caches fill, pages are taken from the system, threads wake up.
const WARM_UP: u32 = 2;

/// Medians over the counted steps.
struct Measured {
    step_ms: f64,
    /// Milliseconds by phase, in the order of a step.
    phases: Vec<(String, f64)>,
}

impl Measured {
    /// How fast a rank sent what it had to; `None` for one rank. The wait for the slowest rank counts as sending.
    fn wire_bytes_per_s(&self, plan: &Plan) -> Option<f64> {
        let (_, ms) = self.phases.iter().find(|(phase, _)| phase == "communication")?;
        Some(plan.wire_bytes_per_step as f64 / ms * 1e3).filter(|_| plan.ranks.world_size > 1)
    }
}

/// Prints the median speed and the time by phase.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<Exit> {
    let resolved = recipe::load(&args.recipe, &super::overrides(&args.overrides))?;
    build::check_supported(&resolved)?;
    let recipe = &resolved.recipe;
    // rows are random tokens, as many as are needed
    let data = DataSize { train_tokens: u64::MAX, train_rows: u64::MAX, val_rows: 0 };
    let blame = |error: PlanError| resolved.complain(error.key, &error.message, &error.help);
    let hardware = device::hardware(recipe).map_err(blame)?;
    let plan = Plan::new(recipe, &hardware, data, None).map_err(blame)?;
    let joined = ranks::join()?;
    if let Some(comm) = &joined {
        // the peak is measured while the others wait
        comm.set_working(true);
    }
    let leads = joined.as_ref().is_none_or(|comm| comm.rank() == 0);
    let (peak, how) = if leads { device::peak(&plan) } else { (0.0, String::new()) };
    let (measured, name) = match joined {
        Some(comm) => {
            comm.set_timeout(Duration::from_secs(plan.ranks.timeout_s));
            ranks::same(Some(comm.as_ref()), recipe, &format!("--steps {}", args.steps))?;
            comm.barrier()?;
            comm.set_working(false);
            let own = plan.of_launched_rank(comm.rank());
            (one_rank(recipe, &own, args.steps, &comm)?, comm.name())
        }
        None if plan.ranks.world_size == 1 => (one_rank(recipe, &plan, args.steps, &build::solo())?, "solo"),
        None => (threads(recipe, &plan, args.steps)?, "threads"),
    };
    if !leads {
        return Ok(Exit::Finished);
    }
    let tokens_per_s = plan.batch.tokens_per_step as f64 / measured.step_ms * 1e3;
    let mfu = tokens_per_s * plan.flops_per_token as f64 / peak;
    super::print(&match args.format {
        Format::Json => {
            let phases: serde_json::Map<_, _> =
                measured.phases.iter().map(|(phase, ms)| (phase.clone(), json!(ms))).collect();
            let output = json!({
                "recipe": recipe.name,
                "tokens_per_s": tokens_per_s,
                "step_ms": measured.step_ms,
                "mfu": mfu,
                "peak_flops": peak,
                "peak_flops_source": how,
                "flops_per_token": plan.flops_per_token,
                "device": plan.device,
                "world_size": plan.ranks.world_size,
                "ranks_by": name,
                "wire_bytes_per_step": plan.wire_bytes_per_step,
                "wire_bytes_per_s": measured.wire_bytes_per_s(&plan),
                "peak_memory_bytes": device::memory_bytes(&plan),
                "planned_memory_bytes": plan.bytes.total,
                "steps": args.steps,
                "phases": phases,
            });
            format!("{output:#}\n")
        }
        Format::Text => text(&measured, tokens_per_s, mfu, &how, &plan, name),
    })?;
    Ok(Exit::Finished)
}

/// Steps that are timed phase by phase on a CUDA device.
const PHASE_STEPS: u32 = 3;

/// Ranks that are threads of this process; what rank 0 measures.
fn threads(recipe: &Recipe, plan: &Plan, steps: u32) -> anyhow::Result<Measured> {
    let mut ranks =
        Threads::group(plan.ranks.world_size, Duration::from_secs(plan.ranks.timeout_s)).into_iter();
    let first = ranks.next().expect("a world has a rank");
    let run = |comm: Threads| {
        let plan = plan.of_rank(comm.rank());
        let comm: Arc<dyn Comm> = Arc::new(comm);
        one_rank(recipe, &plan, steps, &comm).inspect_err(|error| comm.abandon(&format!("{error:#}")))
    };
    thread::scope(|scope| {
        for comm in ranks {
            // what goes wrong reaches rank 0
            scope.spawn(move || run(comm).map(drop));
        }
        run(first).inspect_err(ranks::end_if_hung)
    })
}

/// One rank's steps, with the others that `comm` connects. On a CUDA device the whole step as it trains, and then its
/// phases: to time them, each kernel has to be waited for, so together they take longer than the step.
fn one_rank(recipe: &Recipe, plan: &Plan, steps: u32, comm: &Arc<dyn Comm>) -> anyhow::Result<Measured> {
    let milliseconds = |times: BTreeMap<Phase, Duration>| {
        times.into_iter().map(|(phase, time)| (phase.to_string(), time.as_secs_f64() * 1e3)).collect()
    };
    match (recipe.compute.engine, plan.cuda) {
        (EngineKind::Fused, Some(index)) => {
            let mut whole = build::fused(plan.memory_plan(), plan.cuda, comm)?;
            let whole = measure(recipe, plan, steps, comm.as_ref(), whole.as_mut(), |_| Vec::new())?;
            let mut engine = build::timed_cuda(plan.memory_plan(), index, comm)?;
            let parts = measure(recipe, plan, PHASE_STEPS, comm.as_ref(), &mut engine, |engine| {
                milliseconds(engine.backend_mut().take())
            })?;
            Ok(Measured { step_ms: whole.step_ms, phases: parts.phases })
        }
        (EngineKind::Fused, None) => {
            let mut engine = cpu::timed_engine(plan.memory_plan(), comm.clone())?;
            measure(recipe, plan, steps, comm.as_ref(), &mut engine, |engine| {
                milliseconds(engine.inner_mut().backend_mut().take())
            })
        }
        (EngineKind::Dfdx, _) => {
            let mut engine =
                build::reference(plan.memory.dims, OptimizerKind::new(&recipe.optimizer), plan.threads)?;
            measure(recipe, plan, steps, comm.as_ref(), &mut engine, |_| Vec::new())
        }
    }
}

fn text(measured: &Measured, tokens_per_s: f64, mfu: f64, how: &str, plan: &Plan, name: &str) -> String {
    let mut out = format!(
        "{tokens_per_s:.0} tokens/s, {:.1} ms per step of {} tokens, MFU {:.1} % of {:.0} GFLOP/s ({how})\n\
         peak memory {}, planned {}\n",
        measured.step_ms,
        plan.batch.tokens_per_step,
        mfu * 100.0,
        plan.flops_per_token as f64 * tokens_per_s / mfu / 1e9,
        gib(device::memory_bytes(plan) as usize),
        gib(plan.bytes.total)
    );
    if let Some(rate) = measured.wire_bytes_per_s(plan) {
        let _ = writeln!(
            out,
            "{} ranks by {name}, {} each, which sent {:.1} MB per step at {:.2} GB/s",
            plan.ranks.world_size,
            gib(plan.bytes.total),
            plan.wire_bytes_per_step as f64 / 1e6,
            rate / 1e9
        );
    }
    for (phase, ms) in &measured.phases {
        let _ = writeln!(out, "{phase:<28} {ms:>10.2} ms {:>5.1} %", ms / measured.step_ms * 100.0);
    }
    out
}

fn measure<E: Engine + ?Sized>(
    recipe: &Recipe,
    plan: &Plan,
    steps: u32,
    comm: &dyn Comm,
    engine: &mut E,
    mut phases: impl FnMut(&mut E) -> Vec<(String, f64)>,
) -> anyhow::Result<Measured> {
    let layout = engine.layout().clone();
    let mut parameters = vec![0.0; layout.len];
    initialize(&plan.memory.dims, &layout, recipe.seed, &mut parameters);
    engine.write(State::Parameters, &parameters)?;
    drop(parameters);
    let schedule = Schedule::new(&recipe.schedule, recipe.optimizer.lr);
    let loss_scale = LossScaler::new(recipe.compute.precision).scale();
    let (rows, cols) = (plan.batch.micro_batch, plan.memory.dims.block_size);
    let (mut inputs, mut targets) = (vec![0; rows * cols], vec![0; rows * cols]);
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut order = Vec::new();
    let mut totals = Vec::new();
    for step in 0..WARM_UP + steps {
        let start = Instant::now();
        let mut data_ms = 0.0;
        for micro_step in 0..plan.batch.micro_steps {
            let place = comm.rank() * plan.batch.micro_steps + micro_step;
            let key = random_bits(recipe.seed, u64::from(step) << 32 | place as u64);
            let token = |i: usize| (random_bits(key, i as u64) % plan.memory.dims.vocab_size as u64) as u32;
            let begun = Instant::now();
            inputs.iter_mut().enumerate().for_each(|(i, t)| *t = token(i));
            targets.iter_mut().enumerate().for_each(|(i, t)| *t = token(i + 1));
            data_ms += begun.elapsed().as_secs_f64() * 1e3;
            let batch = Batch { inputs: &inputs, targets: &targets, rows, cols };
            let weight = loss_scale / plan.batch.micro_steps as f64;
            match micro_step + 1 == plan.batch.micro_steps {
                false => engine.accumulate(batch, weight)?,
                true => engine.accumulate_last(batch, weight)?,
            }
        }
        let (lr, t) = (schedule.lr(u64::from(step)), u64::from(step) + 1);
        engine.finish_step(&OptimizerStep::new(&recipe.optimizer, lr, t, loss_scale))?;
        let total = start.elapsed().as_secs_f64() * 1e3;
        let mut parts = phases(engine);
        if step < WARM_UP && comm.rank() > 0 {
            continue;
        }
        if step < WARM_UP {
            say(&format!("warm-up step {}/{WARM_UP}: {total:.1} ms", step + 1));
            continue;
        }
        let known: f64 = parts.iter().map(|(_, ms)| ms).sum::<f64>() + data_ms;
        parts.push(("data".to_owned(), data_ms));
        parts.push(("other".to_owned(), total - known));
        totals.push(total);
        for (phase, ms) in parts {
            if !samples.contains_key(&phase) {
                order.push(phase.clone());
            }
            samples.entry(phase).or_default().push(ms);
        }
    }
    let phases = order
        .into_iter()
        .map(|phase| {
            let ms = median(samples.get_mut(&phase).map(Vec::as_mut_slice).unwrap_or_default());
            (phase, ms)
        })
        .collect();
    Ok(Measured { step_ms: median(&mut totals), phases })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
