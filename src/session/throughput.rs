//! How fast a recipe's training step is on this machine, and where its time goes. Writes no run.

use super::machine::Cache;
use super::supported::at_its_key;
use super::{engines, machine, ranks};
use crate::comm::{Comm, Threads};
use crate::engine::fused::timed::{Phase, Times};
use crate::engine::optimizer::{OptimizerKind, OptimizerStep};
use crate::engine::traffic::Noted;
use crate::engine::{Batch, Engine, EngineError, FastPaths, State, cpu};
use crate::model::init::{initialize, random_bits};
use crate::plan::{DataSize, Plan};
use crate::recipe::{EngineKind, Recipe, Resolved};
use crate::report::stats::median;
use crate::run::record::Peak;
use crate::train::scaler::LossScaler;
use crate::train::schedule::Schedule;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Steps that are run and not counted: caches fill, pages are taken from the system, threads wake up.
pub const WARM_UP: u32 = 2;
/// Steps that are timed phase by phase on a CUDA device.
const PHASE_STEPS: u32 = 3;

/// How fast a recipe's step is.
#[derive(Debug)]
pub struct Throughput {
    /// What a step does.
    pub plan: Plan,
    /// How the ranks are connected: `solo`, `threads`, `tcp`, ...
    pub ranks_by: &'static str,
    /// What the device could do at most.
    pub peak: Peak,
    /// Median milliseconds of a step.
    pub step_ms: f64,
    /// Median milliseconds by phase, in the order of a step. `other` is what they leave of the step, with what it
    /// waited for the processor, and 0 where medians of phases add up to more than the median of steps.
    pub phases: Vec<(String, f64)>,
    /// Every launch of a step on a CUDA device, with its seconds: of the step whose launches took their median.
    pub launches: Vec<Noted>,
    /// Bytes of memory: those that were seen to be taken on a CUDA device, else the peak of the process.
    pub memory_bytes: u64,
    /// Which ways to be faster the engine used in whole steps; `None` for a device without choice.
    pub fast_paths: Option<FastPaths>,
}

impl Throughput {
    /// Measures `steps` steps on random tokens. In a rank that a launcher started, all ranks measure together, and
    /// those other than rank 0 return `None`. `cache` remembers the machine's peak.
    ///
    /// # Errors
    /// Where the recipe cannot be trained here, or the ranks cannot go on together.
    pub fn measure(
        resolved: &Resolved,
        steps: u32,
        cache: &Cache,
        tell: &Tell,
    ) -> anyhow::Result<Option<Self>> {
        let recipe = &resolved.recipe;
        // rows are random tokens, as many as are needed
        let data = DataSize { train_tokens: u64::MAX, train_rows: u64::MAX, ..DataSize::default() };
        let blame = at_its_key(resolved);
        let hardware = machine::hardware(recipe).map_err(&blame)?;
        let plan = Plan::new(recipe, &hardware, data, None).map_err(&blame)?;
        let joined = ranks::join(&|text| tell(Progress::TurnedAway(text)))?;
        if let Some(comm) = &joined {
            // the peak is measured while the others wait
            comm.set_working(true);
        }
        let leads = joined.as_ref().is_none_or(|comm| comm.rank() == 0);
        let peak = if leads { machine::peaks::peak(&plan, cache) } else { Peak::default() };
        let bench = Bench { recipe, plan: &plan, steps, tell };
        let (measured, ranks_by) = match joined {
            Some(comm) => {
                let measured = bench.launched_rank(&comm);
                let say = |error: &anyhow::Error| tell(Progress::Failed(error));
                (ranks::part(Some(comm.as_ref()), measured, say)?, comm.name())
            }
            None if plan.ranks.world_size == 1 => (bench.one_rank(&engines::solo())?, "solo"),
            None => (bench.threads()?, "threads"),
        };
        let Measured { step_ms, phases, launches, memory_taken, fast_paths } = measured;
        let memory_bytes = memory_taken.unwrap_or_else(|| machine::memory_bytes(&plan));
        Ok(leads.then_some(Self {
            plan,
            ranks_by,
            peak,
            step_ms,
            phases,
            launches,
            memory_bytes,
            fast_paths,
        }))
    }

    /// Tokens per second, over all ranks.
    pub fn tokens_per_s(&self) -> f64 {
        self.plan.batch.tokens_per_step as f64 / self.step_ms * 1e3
    }

    /// The share of the peak that the model's operations make up.
    pub fn mfu(&self) -> f64 {
        self.tokens_per_s() * self.plan.flops_per_token as f64 / self.peak.flops
    }

    /// Bytes per second that a rank sent; `None` for one rank. The wait for the slowest rank counts as sending.
    pub fn wire_bytes_per_s(&self) -> Option<f64> {
        let (_, ms) = self.phases.iter().find(|(phase, _)| phase == "communication")?;
        Some(self.plan.wire_bytes_per_step as f64 / ms * 1e3).filter(|_| self.plan.ranks.world_size > 1)
    }
}

/// Told what happens meanwhile; only rank 0 tells of steps.
pub type Tell<'a> = dyn Fn(Progress) + Sync + 'a;

/// What happens while a throughput is measured.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A step of the warm-up was done.
    WarmUp {
        /// The step, from 1 to [`WARM_UP`].
        step: u32,
        /// Its milliseconds.
        ms: f64,
    },
    /// Ranks cannot meet as they should; see [`Event::TurnedAway`](super::Event::TurnedAway).
    TurnedAway(&'a str),
    /// Why the ranks that a launcher has started cannot measure. The call says nothing more of it.
    Failed(&'a anyhow::Error),
    /// A rank that is a thread of this process hangs; see [`Event::Hung`](super::Event::Hung).
    Hung(&'a anyhow::Error),
}

/// Medians over the counted steps of one rank.
struct Measured {
    step_ms: f64,
    phases: Vec<(String, f64)>,
    launches: Vec<Noted>,
    memory_taken: Option<u64>,
    fast_paths: Option<FastPaths>,
}

/// Where the time of one step went, as far as the engine tells.
#[derive(Default)]
struct Parts {
    /// Milliseconds by phase.
    phases: Vec<(String, f64)>,
    launches: Vec<Noted>,
}

impl From<Times> for Parts {
    fn from(times: Times) -> Self {
        let milliseconds = |(phase, time): (Phase, Duration)| (phase.to_string(), time.as_secs_f64() * 1e3);
        Self { phases: times.phases.into_iter().map(milliseconds).collect(), launches: times.launches }
    }
}

/// What one rank measures.
#[derive(Clone, Copy)]
struct Bench<'a> {
    recipe: &'a Recipe,
    plan: &'a Plan,
    steps: u32,
    tell: &'a Tell<'a>,
}

impl Bench<'_> {
    /// Ranks that are threads of this process. Returns what rank 0 measures.
    fn threads(&self) -> anyhow::Result<Measured> {
        let timeout = Duration::from_secs(self.plan.ranks.timeout_s);
        let mut ranks = Threads::group(self.plan.ranks.world_size, timeout).into_iter();
        let first = ranks.next().expect("a world has a rank");
        let run = |comm: Threads| {
            let plan = &self.plan.of_rank(comm.rank());
            let comm: Arc<dyn Comm> = Arc::new(comm);
            let measured = Bench { plan, ..*self }.one_rank(&comm);
            measured.inspect_err(|error| comm.abandon(&format!("{error:#}")))
        };
        thread::scope(|scope| {
            for comm in ranks {
                // what goes wrong reaches rank 0
                scope.spawn(move || run(comm).map(drop));
            }
            run(first).inspect_err(|error| {
                if ranks::is_hung(error) {
                    (self.tell)(Progress::Hung(error));
                }
            })
        })
    }

    /// Measures the rank that this process is, with those that a launcher has started beside it.
    fn launched_rank(&self, comm: &Arc<dyn Comm>) -> anyhow::Result<Measured> {
        comm.set_timeout(Duration::from_secs(self.plan.ranks.timeout_s));
        ranks::same_task(comm.as_ref(), "time its steps")?;
        ranks::same(Some(comm.as_ref()), self.recipe, ("--steps", &self.steps.to_string()))?;
        comm.barrier()?;
        comm.set_working(false);
        let own = self.plan.of_launched_rank(comm.rank());
        Bench { plan: &own, ..*self }.one_rank(comm)
    }

    /// Measures one rank's steps, with the others that `comm` connects. A CUDA device is measured twice: whole steps
    /// as it trains, then phases and launches by its own clock, without CUDA graphs. So the phases add up to more than
    /// the step.
    fn one_rank(&self, comm: &Arc<dyn Comm>) -> anyhow::Result<Measured> {
        let plan = self.plan;
        match (self.recipe.compute.engine, plan.cuda) {
            (EngineKind::Fused, Some(index)) => {
                // one engine at a time: the device's memory may not hold two
                let whole = {
                    let mut engine = engines::fused(plan.memory_plan(), plan.cuda, comm)?;
                    self.measure(comm.as_ref(), engine.as_mut(), |_| Ok(Parts::default()))?
                };
                let mut engine = engines::timed_cuda(plan.memory_plan(), index, comm)?;
                engine.backend_mut().inner_mut().note_launches(true);
                let by_phase = Bench { steps: PHASE_STEPS, ..*self };
                let parts = by_phase
                    .measure(comm.as_ref(), &mut engine, |engine| Ok(engine.backend_mut().take()?.into()))?;
                Ok(Measured { phases: parts.phases, launches: parts.launches, ..whole })
            }
            (EngineKind::Fused, None) => {
                let mut engine = cpu::timed_engine(plan.memory_plan(), comm.clone())?;
                self.measure(comm.as_ref(), &mut engine, |engine| {
                    Ok(engine.inner_mut().backend_mut().take()?.into())
                })
            }
            (EngineKind::Dfdx, _) => {
                let mut engine = engines::reference(
                    plan.memory.dims,
                    OptimizerKind::new(&self.recipe.optimizer),
                    plan.memory.dropout(),
                    plan.threads,
                )?;
                self.measure(comm.as_ref(), &mut engine, |_| Ok(Parts::default()))
            }
        }
    }

    fn measure<E: Engine + ?Sized>(
        &self,
        comm: &dyn Comm,
        engine: &mut E,
        mut parts_of: impl FnMut(&mut E) -> Result<Parts, EngineError>,
    ) -> anyhow::Result<Measured> {
        let Self { recipe, plan, steps, tell } = *self;
        let layout = engine.layout().clone();
        let mut parameters = vec![0.0; layout.len];
        initialize(&plan.memory.dims, &layout, recipe.seed, &mut parameters);
        engine.write(State::Parameters, &parameters)?;
        drop(parameters);
        let schedule = Schedule::new(&recipe.schedule, recipe.optimizer.lr, &plan.sizes);
        let loss_scale = LossScaler::new(recipe.compute.precision).scale();
        let (rows, cols) = (plan.batch.micro_batch, plan.memory.dims.block_size);
        let (mut inputs, mut targets) = (vec![0; rows * cols], vec![0; rows * cols]);
        let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let mut order = Vec::new();
        let mut totals = Vec::new();
        let mut launches: Vec<Vec<Noted>> = Vec::new();
        for step in 0..WARM_UP + steps {
            let start = Instant::now();
            let mut data_ms = 0.0;
            for micro_step in 0..plan.batch.micro_steps {
                let place = comm.rank() * plan.batch.micro_steps + micro_step;
                let key = random_bits(recipe.seed, u64::from(step) << 32 | place as u64);
                let token =
                    |i: usize| (random_bits(key, i as u64) % plan.memory.dims.vocab_size as u64) as u32;
                let begun = Instant::now();
                inputs.iter_mut().enumerate().for_each(|(i, t)| *t = token(i));
                targets.iter_mut().enumerate().for_each(|(i, t)| *t = token(i + 1));
                data_ms += begun.elapsed().as_secs_f64() * 1e3;
                let batch = Batch { inputs: &inputs, targets: &targets, rows, cols, first_row: 0 };
                let weight = loss_scale / plan.batch.micro_steps as f64;
                match micro_step + 1 == plan.batch.micro_steps {
                    false => engine.accumulate(batch, weight)?,
                    true => engine.accumulate_last(batch, weight)?,
                }
            }
            let (lr, t) = (schedule.lr(u64::from(step)), u64::from(step) + 1);
            engine.finish_step(&OptimizerStep::new(&recipe.optimizer, lr, t, loss_scale))?;
            let total = start.elapsed().as_secs_f64() * 1e3;
            let Parts { phases: mut parts, launches: launched } = parts_of(engine)?;
            if step < WARM_UP && comm.rank() > 0 {
                continue;
            }
            if step < WARM_UP {
                tell(Progress::WarmUp { step: step + 1, ms: total });
                continue;
            }
            parts.push(("data".to_owned(), data_ms));
            totals.push(total);
            launches.push(launched);
            for (phase, ms) in parts {
                if !samples.contains_key(&phase) {
                    order.push(phase.clone());
                }
                samples.entry(phase).or_default().push(ms);
            }
        }
        let mut phases: Vec<(String, f64)> = order
            .into_iter()
            .map(|phase| {
                let ms = samples.get_mut(&phase).and_then(|ms| median(ms)).unwrap_or(f64::NAN);
                (phase, ms)
            })
            .collect();
        let step_ms = median(&mut totals).unwrap_or(f64::NAN);
        let known: f64 = phases.iter().map(|(_, ms)| ms).sum();
        let other = if step_ms < known { 0.0 } else { step_ms - known };
        phases.push(("other".to_owned(), other));
        let seconds = |step: &Vec<Noted>| step.iter().filter_map(|noted| noted.seconds).sum::<f64>();
        launches.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let launches = launches.swap_remove(launches.len() / 2);
        let (fast_paths, memory_taken) = (engine.fast_paths(), engine.memory_taken());
        Ok(Measured { step_ms, phases, launches, memory_taken, fast_paths })
    }
}
