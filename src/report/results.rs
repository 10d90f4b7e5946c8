//! The figures of a run that reports show, by the names of metrics.

use super::basis::{Asked, Basis};
use super::fold::Fold;
use super::runs::Run;
use super::target;

/// What a run's logs say: a number for each metric that they know.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Results {
    pub(super) values: Vec<(String, f64)>,
    /// Metrics of evaluations whose value at the cut, and of ways to targets whose end, lies between two evaluations.
    pub(super) interpolated: Vec<String>,
    /// The ends of ways to targets that lie between two evaluations: where these are.
    pub(super) between: Vec<(String, [f64; 2])>,
    /// Targets that the first evaluation had reached already.
    pub(super) reached_before: Vec<String>,
    /// Targets that rows of `eval.csv` have reached and those of `val.csv` have not, with the step.
    pub(super) reached_elsewhere: Vec<(String, u64)>,
    /// Metrics of evaluations that the log has, but with no evaluation at the cut or on both sides of it.
    pub(super) unknown: Vec<String>,
    /// Targets that are not reached, whose column was last measured at an earlier step than the last one trained, with
    /// that step.
    pub(super) missed_until: Vec<(String, u64)>,
    /// Metrics of evaluations whose last value is of an earlier step than the last one trained, with that step.
    pub(super) earlier: Vec<(String, u64)>,
    /// Columns of `val.csv` whose last value is of an earlier step than the last one trained.
    pub(super) behind: Vec<String>,
    /// The step of the evaluation that ended the run before its last step, unless the logs are cut.
    pub(super) at_target: Option<u64>,
    /// Between which values those of evaluations at a cut lie, the lower first: both are the value itself where an
    /// evaluation is at the cut.
    pub(super) ranges: Vec<(String, [f64; 2])>,
    /// Whether the logs are cut at a time, so that how fast the run was decides all values.
    pub(super) is_cut_by_time: bool,
    /// Of how many evaluations the best value of a metric is.
    pub(super) best_of: Vec<(String, u64)>,
    /// The metrics that not every evaluation of the run measured, or others than its own.
    pub(super) scattered: Vec<String>,
    /// What metrics of `eval.csv` were measured on, and how.
    pub(super) asked: Vec<(String, Asked)>,
}

impl Results {
    /// The value of a metric; `None` if the logs do not say it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// How many metrics have a value, but for the ways to targets, which a good run alone has.
    pub(super) fn known(&self) -> usize {
        self.values.iter().filter(|(name, _)| target::metric_name(name).is_none()).count()
    }

    /// Takes this for the value of a metric, if it has a smaller one.
    pub(super) fn raise(&mut self, name: &str, to: Option<f64>) {
        let value = self.values.iter_mut().find(|(known, _)| known == name);
        if let Some(((_, value), to)) = value.zip(to) {
            *value = value.max(to);
        }
    }

    /// What a metric was measured on, where its log says that row by row.
    #[must_use]
    pub fn basis(&self, name: &str) -> Option<&Basis> {
        self.asked(name).map(|asked| &asked.basis)
    }

    fn asked(&self, name: &str) -> Option<&Asked> {
        self.asked.iter().find(|(known, _)| known == name).map(|(_, asked)| asked)
    }

    /// What the operands of matrix products were rounded to when a metric was measured, where its log says that row by
    /// row.
    #[must_use]
    pub fn precision(&self, name: &str) -> Option<&str> {
        self.asked(name).map(|asked| asked.precision.as_str()).filter(|precision| !precision.is_empty())
    }

    /// Whether a metric was measured on data that the model is known to have been trained on: `eval.csv` says so, or in
    /// a row of an earlier version the digest of the data does.
    #[must_use]
    pub fn is_seen(&self, name: &str, run: &Run) -> bool {
        self.asked(name).is_some_and(|asked| asked.is_seen || asked.basis.is_of_training_data(run))
    }

    /// The step of a metric's last value, where the run was trained further than that.
    #[must_use]
    pub fn earlier(&self, name: &str) -> Option<u64> {
        self.earlier.iter().find(|(known, _)| known == name).map(|(_, step)| *step)
    }

    /// The metrics whose value is interpolated linearly between the evaluations before and after the cut or the target.
    #[must_use]
    pub fn interpolated(&self) -> &[String] {
        &self.interpolated
    }

    /// The names of the targets that the first evaluation of the run, after some steps, had reached already.
    #[must_use]
    pub fn before_first(&self) -> &[String] {
        &self.reached_before
    }

    /// Whether a metric was measured by other evaluations than all of the run's own.
    #[must_use]
    pub fn is_scattered(&self, name: &str) -> bool {
        self.scattered.iter().any(|known| known == name)
    }

    /// Of how many evaluations the value of a metric is the best; `None` where it is not the best of any.
    #[must_use]
    pub fn best_of(&self, name: &str) -> Option<u64> {
        self.best_of.iter().find(|(known, _)| known == name).map(|(_, evaluations)| *evaluations)
    }

    /// Forgets a metric of which a later value was found.
    pub(super) fn forget(&mut self, name: &str) {
        self.values.retain(|(known, _)| known != name);
        self.earlier.retain(|(known, _)| known != name);
        self.best_of.retain(|(known, _)| known != name);
        self.scattered.retain(|known| known != name);
    }

    /// Counts the evaluations of which metrics are the best, where the run itself made so many.
    pub(super) fn count_best(&mut self, folds: &[Fold], made: u64) {
        for (name, evaluations) in folds.iter().filter_map(Fold::best_of) {
            if evaluations != made {
                self.scattered.push(name.clone());
            }
            self.best_of.push((name, evaluations));
        }
    }

    /// Counts the evaluations of a log that has no better value of a metric, where it has further ones: those may come
    /// to the end of a run of so many steps.
    pub(super) fn count_again(&mut self, fold: &Fold, steps: f64) {
        if fold.comes_to(steps) {
            self.earlier.retain(|(known, _)| *known != fold.metric.name);
        }
        let Some((name, evaluations)) = fold.best_of() else { return };
        if let Some((_, known)) = self.best_of.iter_mut().find(|(known, _)| *known == name)
            && *known != evaluations
        {
            *known = evaluations;
            self.scattered.push(name);
        }
    }

    /// The step of a row of `eval.csv` that has reached a target which the rows of `val.csv`, whose column it is, have
    /// not.
    #[must_use]
    pub fn reached_elsewhere(&self, target: &str) -> Option<u64> {
        self.reached_elsewhere.iter().find(|(known, _)| known == target).map(|(_, step)| *step)
    }

    /// The last step at which the column of a target that is not reached was measured, where the run was trained
    /// further than that.
    #[must_use]
    pub fn missed_until(&self, target: &str) -> Option<u64> {
        self.missed_until.iter().find(|(known, _)| known == target).map(|(_, step)| *step)
    }

    /// The evaluations between which the end of a way to a target lies: the end itself where it was evaluated.
    #[must_use]
    pub fn between(&self, way: &str) -> Option<[f64; 2]> {
        let found = self.between.iter().find(|(known, _)| known == way).map(|(_, between)| *between);
        found.or_else(|| self.get(way).map(|at| [at, at]))
    }

    /// Between which values that of a metric of evaluations at a cut lies, the lower first.
    #[must_use]
    pub fn range(&self, name: &str) -> Option<[f64; 2]> {
        self.ranges.iter().find(|(known, _)| known == name).map(|(_, range)| *range)
    }

    /// Takes the end of the way to a target, which may lie between two evaluations.
    pub(super) fn reached(&mut self, metric: String, at: f64, between: Option<[f64; 2]>) {
        self.interpolated.extend(between.map(|_| metric.clone()));
        self.between.extend(between.map(|between| (metric.clone(), between)));
        self.values.push((metric, at));
    }

    /// Takes note that the end of the way to a target lies at this point or before, at the beginning too.
    pub(super) fn reached_by(&mut self, metric: String, at: f64) {
        self.between.push((metric, [f64::NEG_INFINITY, at]));
    }

    /// Takes note of a target that the first evaluation had reached already.
    pub(super) fn reached_before(&mut self, target: String) {
        self.reached_before.push(target);
    }

    /// The metrics of evaluations that have no value, because no evaluation is at the cut or on both sides of it.
    #[must_use]
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }
}
