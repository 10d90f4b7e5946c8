//! Notes on the learning rates that runs have where a comparison is cut.

use super::super::compare::Comparison;
use super::super::metrics::Metric;
use super::super::runs::Run;
use super::{listed, names};
use crate::recipe::keys::{SCHEDULE_KIND, find};
use crate::run::column::{Aggregate, Better, Unit};
use crate::run::{RunStatus, dir};
use std::collections::BTreeMap;

/// The key of the peak of the learning rate.
const PEAK: &str = "optimizer.lr";
/// The keys of the length of the warm-up.
const WARMUP_STEPS: &str = "schedule.warmup_steps";
const WARMUP_TOKENS: &str = "schedule.warmup_tokens";
/// The key of the loss at which a run ends.
pub(super) const TARGET: &str = "schedule.stop_at_val_loss";
/// Percent of a peak that is all of it.
const WHOLE: u32 = 100;
/// Percent of peaks that differ by less say little about losses.
const NEAR: u32 = 5;

/// The learning rate of the last step before the point of comparison. No table shows it.
#[must_use]
pub fn learning_rate() -> Metric {
    Metric {
        name: "lr_at_the_point".to_owned(),
        title: "learning rate".to_owned(),
        meaning: "learning rate of the last step".to_owned(),
        unit: Unit::Number,
        better: Better::Lower,
        for_people: false,
        leaves: 0,
        log: dir::TRAIN_CSV,
        column: "lr".to_owned(),
        aggregate: Aggregate::Last,
        target: None,
    }
}

/// Whether a run has not come to the end of its warm-up at the point of comparison.
fn is_warming_up(run: &Run) -> bool {
    let is_before = |length: &str, way: &str| {
        let length = run.value(length).and_then(serde_json::Value::as_f64);
        length.zip(run.results.get(way)).is_some_and(|(length, way)| way < length)
    };
    is_before(WARMUP_STEPS, "steps") || is_before(WARMUP_TOKENS, "tokens")
}

/// Which parts of their peak learning rates runs have at the point of comparison, where those differ and some run is
/// not at its end: at the end of its own schedule each has what its recipe says.
pub(super) fn unequal(comparison: &Comparison) -> Option<String> {
    if comparison.cut.is_none() {
        return of_earlier(comparison);
    }
    let runs = &comparison.runs;
    let name = learning_rate().name;
    // a run that warms up has a low rate, and no decay behind it
    let place = |run: &Run| {
        let peak = run.value(PEAK)?.as_f64().filter(|peak| *peak > 0.0)?;
        let rate = run.results.get(&name).filter(|_| run.complete)?;
        let is_warming_up = is_warming_up(run);
        let percent = if is_warming_up { WHOLE } else { (100.0 * rate / peak).round() as u32 };
        Some((percent, is_warming_up))
    };
    let mut by_place: BTreeMap<(u32, bool), Vec<&Run>> = BTreeMap::new();
    for run in runs {
        place(run).into_iter().for_each(|place| by_place.entry(place).or_default().push(run));
    }
    let ((least, _), (most, _)) = (by_place.keys().next()?, by_place.keys().next_back()?);
    let is_on_way =
        |run: &&Run| run.results.get("steps").is_some_and(|steps| steps < run.facts.total_steps as f64);
    let are_on_way = by_place.values().flatten().any(is_on_way);
    (most - least > NEAR && are_on_way).then(|| {
        let of = |(place, of): (&(u32, bool), &Vec<&Run>)| {
            let of = names(runs, of.iter().copied());
            match place {
                (_, true) => format!("that of a warm-up of {of}"),
                (percent, false) => format!("{percent} % of {of}"),
            }
        };
        format!(
            "at the point of comparison, learning rates are not the same part of their peaks: {}; a loss falls as the \
             rate decays, which flatters runs with more of their decay behind them",
            listed(by_place.iter().map(of).collect())
        )
    })
}

/// Whether a key is one of the schedule's table.
fn is_of_schedule(key: &str) -> bool {
    let table = |key: &str| find(key).map(|known| known.table());
    table(key).is_some_and(|of| Some(of) == table(SCHEDULE_KIND))
}

/// Whether values are shown of steps before the ends of runs whose schedules differ.
fn of_earlier(comparison: &Comparison) -> Option<String> {
    let metrics: Vec<&Metric> = comparison.shown.iter().map(Metric::measured).collect();
    let is_earlier = |run: &Run| {
        let is_measured = metrics.iter().any(|metric| run.results.earlier(&metric.name).is_some());
        let has_ended = run.status == RunStatus::Finished;
        has_ended && (is_measured || run.facts.reached_target.is_some())
    };
    let of_schedule = comparison.differences.differing.iter();
    // where it ends changes no rate on the way
    let of_schedule = of_schedule.filter(|key| is_of_schedule(key) && *key != TARGET);
    let differing: Vec<String> = of_schedule.cloned().collect();
    (!differing.is_empty() && comparison.runs.iter().any(is_earlier)).then(|| {
        format!(
            "runs differ in {}: at a step before their ends, learning rates may not be the same part of their peaks; a \
             loss falls as the rate decays, which flatters runs with more of their decay behind them",
            listed(differing)
        )
    })
}
