//! Notes on the learning rates that runs have where a comparison is cut.

use super::super::compare::Comparison;
use super::super::metrics::Metric;
use super::super::runs::Run;
use super::{listed, names, took_a_state};
use crate::run::column::{Aggregate, Better, Unit};
use crate::run::dir;
use std::collections::BTreeMap;

/// The key of the peak of the learning rate.
const PEAK: &str = "optimizer.lr";
/// Percent of peaks that differ by less say little about losses.
const NEAR: u32 = 5;

/// The learning rate of the last step before the point of comparison, and the highest up to there. No table shows them.
#[must_use]
pub fn learning_rates() -> [Metric; 2] {
    let of = |name: &str, meaning: &str, aggregate| Metric {
        name: name.to_owned(),
        title: "learning rate".to_owned(),
        meaning: meaning.to_owned(),
        unit: Unit::Number,
        better: Better::Lower,
        for_people: false,
        leaves: 0,
        log: dir::TRAIN_CSV,
        column: "lr".to_owned(),
        aggregate,
        target: None,
    };
    [
        of("lr_at_the_point", "learning rate of the last step", Aggregate::Last),
        of("highest_lr", "highest learning rate", Aggregate::Max),
    ]
}

/// Which parts of their peak learning rates runs have at the point of comparison, where those differ and some run is
/// not at its end: at the end of its own schedule each has what its recipe says.
pub(super) fn unequal(comparison: &Comparison) -> Option<String> {
    comparison.cut?;
    let runs = &comparison.runs;
    let rates = learning_rates();
    let percent = |run: &Run| {
        let peak = run.value(PEAK)?.as_f64().filter(|peak| *peak > 0.0)?;
        let [rate, highest] = [0, 1].map(|i| run.results.get(&rates[i].name));
        let (rate, highest) = (rate.filter(|_| run.complete)?, highest?);
        // a low rate of a warm-up is no decay
        let is_warming_up = rate >= highest && !took_a_state(run);
        Some((100.0 * rate / peak).round() as u32).filter(|percent| *percent >= 100 || !is_warming_up)
    };
    let mut by_percent: BTreeMap<u32, Vec<&Run>> = BTreeMap::new();
    for run in runs {
        percent(run).into_iter().for_each(|percent| by_percent.entry(percent).or_default().push(run));
    }
    let (least, most) = (by_percent.keys().next()?, by_percent.keys().next_back()?);
    let is_on_way =
        |run: &&Run| run.results.get("steps").is_some_and(|steps| steps < run.facts.total_steps as f64);
    let are_on_way = by_percent.values().flatten().any(is_on_way);
    (most - least > NEAR && are_on_way).then(|| {
        let of = |(percent, of): (&u32, &Vec<&Run>)| format!("{percent} % of {}", names(runs, of.iter().copied()));
        format!(
            "at the point of comparison, learning rates are not the same part of their peaks: {}; a loss falls as the \
             rate decays, which flatters runs with more of their decay behind them",
            listed(by_percent.iter().map(of).collect())
        )
    })
}
