//! Evaluations between the steps: sets of validation data and tasks, which the ranks divide among themselves.

use super::passes::over;
use super::ranks::Agreed;
use super::{Doing, Events, Rows, TrainConfig, TrainError};
use crate::engine::{Engine, EngineError};
use crate::eval::{self, Passes, Share, Tally, Task};
use std::ops::{ControlFlow, Range};

/// What each evaluation measures.
#[derive(Default)]
pub struct Evaluations<'a> {
    /// Sets of validation data. The loss on the first one decides what is best; without it nothing is evaluated.
    pub sets: Vec<ValidationSet<'a>>,
    /// Tasks that are scored as well.
    pub tasks: &'a [Task],
}

/// A set of validation data.
pub struct ValidationSet<'a> {
    /// What it is called, where there are several.
    pub name: Option<&'a str>,
    /// Its rows.
    pub rows: &'a dyn Rows,
    /// How many of them are evaluated, from the first one on.
    pub count: usize,
}

/// What an evaluation has measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// Mean losses of the sets in their order, in nats per token.
    pub losses: Vec<f64>,
    /// Sums over the examples of each task.
    pub tallies: Vec<Tally>,
}

impl Measured {
    /// The loss that decides what is best; not a number without any.
    pub fn val_loss(&self) -> f64 {
        self.losses.first().copied().unwrap_or(f64::NAN)
    }

    /// What is wrong with losses that are not finite.
    pub(super) fn not_finite(&self, evaluations: &Evaluations) -> Option<String> {
        let (loss, set) = self.losses.iter().zip(&evaluations.sets).find(|(loss, _)| !loss.is_finite())?;
        let of = set.name.map_or_else(String::new, |name| format!(" on `{name}`"));
        Some(format!("the validation loss{of} is {loss}"))
    }
}

impl<'a> Evaluations<'a> {
    /// One set without a name: the first `count` of these rows.
    pub fn of(rows: &'a dyn Rows, count: usize) -> Self {
        Self { sets: vec![ValidationSet { name: None, rows, count }], tasks: &[] }
    }

    /// Whether nothing is evaluated.
    pub(super) fn is_empty(&self) -> bool {
        self.sets.first().is_none_or(|set| set.count == 0)
    }

    /// What ranks must agree on, or one would wait for another.
    pub(super) fn outline(&self) -> String {
        let sets = self.sets.iter().map(|set| format!("{} rows of {:?}; ", set.count, set.name));
        let tasks = self.tasks.iter().map(|task| format!("`{}` {}; ", task.name, task.digest()));
        sets.chain(tasks).collect()
    }
}

/// Where this rank is in an evaluation, in passes.
struct Turns {
    done: u64,
    total: u64,
}

impl Turns {
    /// Before a pass of this rank.
    fn next<E: Events>(&self, events: &mut Agreed<E>) -> Result<ControlFlow<()>, TrainError<E::Error>> {
        let _ = events.onlooker().within(Doing::Evaluation, (self.done, self.total), 0.0);
        go_on(events)
    }
}

/// Whether to go on. All ranks ask at once: one with fewer passes asks as often as the others do.
fn go_on<E: Events>(events: &mut Agreed<E>) -> Result<ControlFlow<()>, TrainError<E::Error>> {
    Ok(if events.stop()?.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
}

/// Measures everything, or `None` if a stop was asked for. Each rank computes its share.
pub(super) fn evaluate_together<E: Events>(
    engine: &mut dyn Engine,
    evaluations: &Evaluations,
    config: &TrainConfig,
    events: &mut Agreed<E>,
) -> Result<Option<Measured>, TrainError<E::Error>> {
    let (rank, ranks) = (events.comm.rank(), events.comm.size());
    let share = Share { rank, ranks };
    let of_sets = evaluations.sets.iter().map(|set| own_passes(set.count, config, share));
    let of_tasks = evaluations.tasks.iter().map(|task| task.passes(config.micro_batch, share) as u64);
    let mut turns = Turns { done: 0, total: of_sets.chain(of_tasks).sum() };
    let mut measured = Measured::default();
    for set in &evaluations.sets {
        let Some(loss) = loss_on(engine, set, config, share, &mut turns, events)? else { return Ok(None) };
        measured.losses.push(loss);
    }
    for task in evaluations.tasks {
        let Some(tally) = score(engine, task, config.micro_batch, share, &mut turns, events)? else {
            return Ok(None);
        };
        measured.tallies.push(tally);
    }
    Ok(Some(measured))
}

/// The rows of a set that are a rank's.
fn own_rows(count: usize, Share { rank, ranks }: Share) -> Range<u64> {
    let size = count.div_ceil(ranks);
    let at = |rank: usize| (rank * size).min(count) as u64;
    at(rank)..at(rank + 1)
}

/// Forward passes over a rank's rows of a set.
fn own_passes(count: usize, config: &TrainConfig, share: Share) -> u64 {
    let own = own_rows(count, share);
    (own.end - own.start).div_ceil(config.micro_batch as u64)
}

/// Mean loss over the rows of a set.
fn loss_on<E: Events>(
    engine: &mut dyn Engine,
    set: &ValidationSet,
    config: &TrainConfig,
    share: Share,
    turns: &mut Turns,
    events: &mut Agreed<E>,
) -> Result<Option<f64>, TrainError<E::Error>> {
    let shape = (config.micro_batch, config.block_size);
    let loss = over(set.rows, own_rows(set.count, share), shape, |batch, _| {
        if turns.next(events)?.is_break() {
            return Ok(None);
        }
        let (onlooker, at) = (events.onlooker(), (turns.done, turns.total));
        let mean = engine.evaluate_watched(batch, &|part| onlooker.within(Doing::Evaluation, at, part))?;
        if mean.is_none() {
            events.stop()?;
        }
        turns.done += 1;
        Ok::<_, TrainError<E::Error>>(mean)
    })?;
    let Some(loss) = loss else { return Ok(None) };
    // the first rank has the most rows
    let most = own_passes(set.count, config, Share { rank: 0, ..share });
    for _ in own_passes(set.count, config, share)..most {
        if go_on(events)?.is_break() {
            return Ok(None);
        }
    }
    let total = events.comm.sum(loss.total).map_err(EngineError::from)?;
    Ok(Some(total / set.count as f64))
}

/// The sums over the examples of a task.
fn score<E: Events>(
    engine: &mut dyn Engine,
    task: &Task,
    micro_batch: usize,
    share: Share,
    turns: &mut Turns,
    events: &mut Agreed<E>,
) -> Result<Option<Tally>, TrainError<E::Error>> {
    let begun = turns.done;
    let before = |Passes { done, .. }: Passes| {
        turns.done = begun + done as u64;
        turns.next(events)
    };
    let Some(scored) = eval::score(engine, task, micro_batch, share, before)? else { return Ok(None) };
    let passes = |rank| task.passes(micro_batch, Share { rank, ..share });
    let (own, most) = (passes(share.rank), (0..share.ranks).map(passes).max().unwrap_or(0));
    turns.done = begun + own as u64;
    for _ in own..most {
        if go_on(events)?.is_break() {
            return Ok(None);
        }
    }
    let own = Tally::of(task, &scored);
    if share.ranks == 1 {
        return Ok(Some(own));
    }
    let mut all = Tally::default();
    for (rank, bytes) in events.comm.exchange(&own.to_bytes()).map_err(EngineError::from)?.iter().enumerate()
    {
        let one = Tally::of_bytes(bytes).ok_or_else(|| EngineError::from(garbled(rank)))?;
        all.add(&one);
    }
    Ok(Some(all))
}

fn garbled(rank: usize) -> crate::comm::CommError {
    crate::comm::CommError::Failed(format!("rank {rank} has sent something else than the sums of a task"))
}
