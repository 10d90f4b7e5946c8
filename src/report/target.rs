//! When a run reached a target: the steps, tokens and seconds of training to the first evaluation that is as good.
//!
//! A run is evaluated every so many steps, so it mostly passes a target between two evaluations. The way there is then
//! interpolated linearly between them. It is exact where an evaluation hits the target, and of a column of `train.csv`,
//! which has a row for each step.

use super::gather::Results;
use super::metrics::{Metric, further, metrics};
use super::runs::Run;
use crate::run::column::{Aggregate, Better, Unit};
use crate::run::{RunStatus, dir};
use std::path::PathBuf;

/// A value of a loss or of an accuracy that runs are to reach.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// The column of the logs.
    pub column: String,
    /// The value.
    pub value: f64,
    /// Losses reach it from above, accuracies from below.
    pub better: Better,
    /// The metric that is the best value of the column.
    pub best: Metric,
}

/// What the way to a target is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Steps,
    Tokens,
    Seconds,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Steps, Self::Tokens, Self::Seconds];

    fn word(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Tokens => "tokens",
            Self::Seconds => "seconds",
        }
    }

    /// The name of the metric of the way to a value of a column.
    fn to(self, column: &str, value: f64) -> String {
        format!("{}_to_{column}={value}", self.word())
    }
}

/// The name and the value of a target that is spelled `NAME=VALUE`.
///
/// Errors: a phrase that says how to spell one.
pub fn parse(text: &str) -> Result<(&str, f64), String> {
    let parts = text.split_once('=').map(|(name, value)| (name.trim(), value.trim().parse::<f64>()));
    match parts {
        Some((name, Ok(value))) if !name.is_empty() && value.is_finite() => Ok((name, value)),
        _ => Err(format!("`{text}` is no target: write METRIC=VALUE, such as val_loss=3.28")),
    }
}

/// The name of a metric of the way to a target as [`Target::metrics`] has it; `name` may spell the number in another
/// way, as in `steps_to_val_loss=3.280`. `None` if it is no such name.
pub(super) fn metric_name(name: &str) -> Option<String> {
    let (word, target) = name.split_once("_to_")?;
    let way = Way::ALL.into_iter().find(|way| way.word() == word)?;
    let (column, value) = parse(target).ok()?;
    Some(way.to(column, value))
}

impl Target {
    /// The target that `metric`, of the logs of `runs`, is to reach. The best value stands for its column.
    ///
    /// Errors: a phrase that says why it cannot be one.
    pub fn new(runs: &[PathBuf], metric: &Metric, value: f64) -> Result<Self, String> {
        let is_accuracy = metric.unit == Unit::Fraction && metric.log != dir::TRAIN_CSV;
        if metric.unit != Unit::Loss && !is_accuracy {
            let name = &metric.name;
            return Err(format!(
                "`{name}` says how far or how fast a run is, not how good: a target is a loss or an accuracy"
            ));
        }
        if is_accuracy && !(0.0..=1.0).contains(&value) {
            return Err(format!(
                "`{}` cannot be {value}: an accuracy is a fraction from 0 to 1, such as 0.3",
                metric.name
            ));
        }
        let is_best = |other: &&Metric| {
            let is_extreme = matches!(other.aggregate, Aggregate::Min | Aggregate::Max);
            is_extreme && (other.log, &other.column) == (metric.log, &metric.column)
        };
        let best = match [metric].into_iter().chain(metrics()).find(is_best) {
            Some(best) => Some(best.clone()),
            None => further(runs, &format!("best_{}", metric.column)),
        };
        best.map(|best| Self { column: metric.column.clone(), value, better: metric.better, best })
            .ok_or_else(|| format!("`{}` has no best value", metric.name))
    }

    /// As options name it, such as `val_loss=3.28`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}={}", self.column, self.value)
    }

    /// As people read it, such as `val_loss <= 3.28`.
    #[must_use]
    pub fn shown(&self) -> String {
        format!("{} {} {}", self.column, if self.better == Better::Lower { "<=" } else { ">=" }, self.value)
    }

    /// The metrics of the way to it: steps, tokens and seconds. People read the column in their titles if `named`.
    #[must_use]
    pub fn metrics(&self, named: bool) -> [Metric; 3] {
        Way::ALL.map(|way| {
            let (unit, title, leaves, what) = match way {
                Way::Steps => (Unit::Number, "steps", 3, "optimizer steps"),
                Way::Tokens => (Unit::Count, "tokens", 1, "tokens trained on"),
                Way::Seconds => (Unit::Seconds, "time", 5, "seconds trained"),
            };
            let column = if named { format!("{} ", self.column) } else { String::new() };
            Metric {
                name: self.metric(way),
                title: format!("{title} to {column}{}", self.value),
                meaning: format!("{what} until {}", self.shown()),
                unit,
                better: Better::Lower,
                for_people: true,
                leaves,
                log: self.best.log,
                column: self.column.clone(),
                aggregate: Aggregate::Last,
                target: Some(Box::new(self.clone())),
            }
        })
    }

    pub(super) fn metric(&self, way: Way) -> String {
        way.to(&self.column, self.value)
    }

    /// Whether a run has not reached it and may do so yet: it trains, or was interrupted or failed before the end of
    /// what is compared.
    #[must_use]
    pub fn is_open(&self, run: &Run) -> bool {
        let has_ended = matches!(run.status, RunStatus::Finished | RunStatus::Diverged | RunStatus::Unknown);
        !has_ended && !run.complete && self.way(&run.results).is_none()
    }

    /// The steps, tokens and seconds to it; `None` for a run that did not reach it. Seconds that the logs do not tell
    /// are not a number.
    #[must_use]
    pub fn way(&self, results: &Results) -> Option<[f64; 3]> {
        let [steps, tokens, seconds] = Way::ALL.map(|way| results.get(&self.metric(way)));
        Some([steps?, tokens.unwrap_or(f64::NAN), seconds.unwrap_or(f64::NAN)])
    }

    /// Whether it is known if a run reaches it: one without such evaluations, or that was trained to its end after the
    /// last of them, may have, and one that was ended by a target of its own might have.
    #[must_use]
    pub fn is_known(&self, run: &Run) -> bool {
        let results = &run.results;
        let has_missed = self.ended_after(run).is_none() && !self.ended_before(run);
        self.way(results).is_some() || results.get(&self.best.name).is_some() && has_missed
    }

    /// Whether the target of a run's own recipe has ended it at its last evaluation, while it had not reached this one.
    #[must_use]
    pub fn ended_before(&self, run: &Run) -> bool {
        let is_missed = self.way(&run.results).is_none();
        run.results.at_target.is_some() && is_missed && self.ended_after(run).is_none()
    }

    /// The step of the last evaluation of a run that has finished later than that without having reached it before.
    #[must_use]
    pub fn ended_after(&self, run: &Run) -> Option<u64> {
        run.results.missed_until(&self.name()).filter(|_| run.status == RunStatus::Finished)
    }

    /// Whether the way to it is interpolated.
    #[must_use]
    pub fn is_interpolated(&self, results: &Results) -> bool {
        results.interpolated().contains(&self.metric(Way::Steps))
    }

    /// Whether a value is as good.
    fn is_reached_by(&self, value: f64) -> bool {
        match self.better {
            Better::Lower => value <= self.value,
            Better::Higher => value >= self.value,
        }
    }

    /// Where the first of these points that is as good was reached. A log that is appended to by hand may go back, so
    /// they come in the order of their steps.
    pub(super) fn crossing(&self, points: impl Iterator<Item = Point> + Clone) -> Option<Crossing> {
        let points = points.enumerate();
        let by_step = |(_, a): &(usize, Point), (_, b): &(usize, Point)| a.at[0].total_cmp(&b.at[0]);
        let good = points.clone().filter(|(_, point)| self.is_reached_by(point.value));
        let first = good.min_by(by_step)?;
        let (place, Point { at, value }) = first;
        let earlier = points.filter(|other| by_step(other, &first).then(other.0.cmp(&place)).is_lt());
        let before = earlier.max_by(by_step).map(|(_, before)| before);
        let is_evaluated = self.best.log != dir::TRAIN_CSV;
        let is_first = is_evaluated && before.is_none() && at[0] > 0.0;
        // of one that was not finite nothing leads here
        let before = before.filter(|before| before.value.is_finite() && value != self.value);
        let Some(before) = before.filter(|_| is_evaluated) else {
            return Some(Crossing { at, between: None, is_first });
        };
        // halves, for the difference of two huge numbers may be no number
        let half = if (before.value - value).is_finite() { 1.0 } else { 0.5 };
        let along = (half * before.value - half * self.value) / (half * before.value - half * value);
        let between = |i: usize| before.at[i] + along * (at[i] - before.at[i]);
        let at = [between(0), between(1), between(2)];
        Some(Crossing { at, between: Some([before.at, first.1.at]), is_first })
    }
}

/// A value of a log, with the steps, tokens and seconds until then.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) at: [f64; 3],
    pub(super) value: f64,
}

/// Where a target was reached.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Crossing {
    /// Steps, tokens and seconds until then.
    pub(super) at: [f64; 3],
    /// The two evaluations that it lies between, if it does.
    pub(super) between: Option<[[f64; 3]; 2]>,
    /// Whether the first evaluation was as good already, after some steps.
    pub(super) is_first: bool,
}

#[cfg(test)]
mod tests {
    use super::super::metrics;
    use super::*;
    use proptest::prelude::*;

    fn target(name: &str, value: f64) -> Target {
        let metric = metrics::find(name).expect("a metric");
        Target::new(&[], metric, value).expect("a target")
    }

    fn point(step: f64, value: f64) -> Point {
        Point { at: [step, step * 256.0, step * 0.5], value }
    }

    fn at(target: &Target, values: &[f64]) -> Option<(f64, bool)> {
        let points: Vec<Point> =
            values.iter().zip(0..).map(|(v, i)| point(f64::from(i) * 10.0, *v)).collect();
        target.crossing(points.into_iter()).map(|crossing| (crossing.at[0], crossing.between.is_some()))
    }

    #[test]
    fn the_first_evaluation_that_is_as_good_counts() {
        let three = target("val_loss", 3.0);
        assert_eq!(at(&three, &[5.0, 3.0, 2.0]), Some((10.0, false)), "hit exactly");
        assert_eq!(at(&three, &[5.0, 4.0, 2.0]), Some((15.0, true)));
        assert_eq!(at(&three, &[5.0, 1.0, 4.0, 0.5]), Some((5.0, true)), "the first time");
        assert_eq!(at(&three, &[2.5, 2.0]), Some((0.0, false)), "before the first step");
        assert_eq!(at(&three, &[5.0, 3.1]), None);
        assert_eq!(at(&three, &[]), None);
        assert_eq!(at(&three, &[5.0, f64::NAN, 2.0]), Some((20.0, false)), "nothing leads there");
        assert_eq!(at(&three, &[f64::INFINITY, 2.0]), Some((10.0, false)));
        assert_eq!(at(&three, &[f64::NAN, f64::NAN]), None);
        assert_eq!(at(&three, &[1.5e308, -1.5e308]), Some((5.0, true)));
        assert_eq!(
            at(&target("loss", 3.0), &[5.0, 2.0]),
            Some((10.0, false)),
            "nothing lies between two steps"
        );
        let accuracy = Target { better: Better::Higher, ..three };
        assert_eq!(at(&accuracy, &[1.0, 2.0, 4.0]), Some((15.0, true)), "from below");
        let late = [point(10.0, 2.0), point(20.0, 1.0)];
        assert!(target("val_loss", 3.0).crossing(late.into_iter()).is_some_and(|crossing| crossing.is_first));
    }

    #[test]
    fn a_target_is_a_loss_or_an_accuracy_with_a_value() {
        assert_eq!(parse("val_loss=3.28"), Ok(("val_loss", 3.28)));
        for text in ["val_loss", "=3", "val_loss=", "val_loss=low", "val_loss=nan", "val_loss=inf"] {
            assert!(parse(text).is_err_and(|error| error.contains(text) && error.contains("val_loss=3.28")));
        }
        for name in ["steps", "tokens_per_s", "mfu", "elapsed_s"] {
            let metric = metrics::find(name).expect("a metric");
            let refused = Target::new(&[], metric, 0.5).expect_err(name);
            assert!(refused.contains(name), "{refused}");
        }
        let of = |name: &str| {
            let target = target(name, 3.280);
            (target.name(), target.shown(), target.best.name)
        };
        let expected =
            ("val_loss=3.28".to_owned(), "val_loss <= 3.28".to_owned(), "best_val_loss".to_owned());
        assert_eq!(of("val_loss"), expected);
        assert_eq!(of("best_val_loss"), expected);
        assert_eq!(of("loss").2, "best_loss");
    }

    proptest! {
        #[test]
        fn of_a_falling_curve_the_point_lies_between_the_two_evaluations_and_a_hit_is_exact(
            first in 5.0..12.0_f64,
            falls in prop::collection::vec((1e-3..1.0_f64, 1.0..500.0_f64), 1..30),
            place in any::<prop::sample::Index>(),
            share in 0.0..1.0_f64,
        ) {
            let (mut points, mut step, mut value) = (vec![point(0.0, first)], 0.0, first);
            for (fall, steps) in falls {
                (step, value) = (step + steps, value - fall);
                points.push(point(step, value));
            }
            let i = place.index(points.len() - 1);
            let (before, after) = (points[i], points[i + 1]);
            let sought = target("val_loss", before.value + share * (after.value - before.value));
            let found = sought.crossing(points.iter().copied()).expect("reached");
            for way in 0..3 {
                prop_assert!((before.at[way]..=after.at[way]).contains(&found.at[way]), "{found:?}");
            }
            // where it lies is where a line between the two has the value
            let along = (found.at[0] - before.at[0]) / (after.at[0] - before.at[0]);
            prop_assert!((along - share).abs() < 1e-9, "{along} {share}");
            let hit = target("val_loss", after.value).crossing(points.iter().copied()).expect("reached");
            prop_assert_eq!((hit.at, hit.between), (after.at, None));
            // a lower one is never reached sooner
            let lower = target("val_loss", after.value).crossing(points.iter().copied()).expect("reached").at[0];
            prop_assert!(found.at[0] <= lower);
            // an accuracy that rises as the loss falls is reached at the same point
            let risen: Vec<Point> = points.iter().map(|p| Point { value: -p.value, ..*p }).collect();
            let rising = Target { better: Better::Higher, value: -sought.value, ..sought };
            prop_assert_eq!(rising.crossing(risen.into_iter()), Some(found));
        }
    }
}
