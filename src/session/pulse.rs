//! Where a run is at this moment, for threads that look while it works: a bar, the answer to a signal.

use crate::plan::predict::Prediction;
use crate::recipe::StepSizes;
use crate::train::{Doing, Within};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Steps over which the speed is averaged, about.
const MEMORY: f64 = 20.0;
/// The share of a run's first step after which the speed within it says more than a prediction.
const TELLING: f64 = 0.1;
/// Bytes per second that a disk is taken to write until it has written a checkpoint.
const DISK: f64 = 200e6;
/// Shares of a pass that differ by less are one.
const ROUNDING: f64 = 1e-6;

/// What does not change while a run is trained.
#[derive(Debug, Clone)]
pub struct Course {
    /// Optimizer steps of the run.
    pub steps: u64,
    /// The first step that the run takes itself.
    pub first_step: u64,
    /// The size of each step, over all ranks.
    pub sizes: StepSizes,
    /// Steps between two evaluations; 0 if there are none.
    pub eval_every: u64,
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: u64,
    /// What is expected of the whole run.
    pub prediction: Option<Prediction>,
}

/// The pulse of a run; see the module.
#[derive(Debug)]
pub struct Pulse {
    course: Course,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Optimizer steps taken.
    step: u64,
    at: Within,
    /// When that was begun.
    since: Instant,
    /// When the loop last looked whether it is to stop; `None` if the time since does not count.
    looked: Option<Instant>,
    longest: Option<Duration>,
    /// Whether it looks inside passes, and not between them only.
    looks_inside: bool,
    /// Whether a step has begun and not ended.
    in_step: bool,
    /// The share of the last pass of a step at which it looks for the last time, as far as was seen.
    last_look: f64,
    steps_timed: u32,
    /// Seconds of a row of a step.
    row_s: Option<f64>,
    evaluation_s: Option<f64>,
    /// The step of the last checkpoint.
    saved: Option<u64>,
    save_s: Option<f64>,
}

/// Where a run is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    /// Optimizer steps taken.
    pub step: u64,
    /// Optimizer steps of the run.
    pub steps: u64,
    /// What is going on, and how much of it is done.
    pub at: Within,
    /// For how long it has been going on.
    pub elapsed: Duration,
    /// Tokens per second of the step under way; `None` where too little of it is done.
    pub tokens_per_s: Option<f64>,
    /// The time until the end of the run, checkpoints and samples not counted; `None` while nothing is known of it.
    pub left: Option<Duration>,
}

/// What a stop would mean now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stopping {
    /// Optimizer steps taken, which is what remains.
    pub step: u64,
    /// Whether one more may be taken first: the run may not look again before the step at hand is finished.
    pub may_finish: bool,
    /// About how long it takes until the run can stop; `None` while that is not known: it looks when the kernel or the
    /// pass at hand ends.
    pub within: Option<Duration>,
    /// The bytes of the checkpoint that follows, and about how long it takes; `None` if the step is on the disk.
    pub saving: Option<(u64, Duration)>,
}

impl Pulse {
    /// Of a run that has taken `step` steps, all of them in a checkpoint.
    pub fn new(course: Course, step: u64) -> Self {
        let now = Instant::now();
        let at = Within { doing: Doing::Step, pass: 0, passes: 1, done: 0.0, may_break: false };
        let state = State {
            step,
            at,
            since: now,
            looked: Some(now),
            longest: None,
            looks_inside: false,
            in_step: false,
            last_look: 0.0,
            steps_timed: 0,
            row_s: None,
            evaluation_s: None,
            saved: (step > 0).then_some(step),
            save_s: None,
        };
        Self { course, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run is inside a step or an evaluation, and looks whether it is to stop.
    pub(super) fn within(&self, at: Within) {
        let state = &mut *self.state();
        let now = Instant::now();
        if at.done == 0.0 {
            state.since = now;
        }
        state.at = at;
        state.in_step = at.doing == Doing::Step;
        if at.may_break {
            state.look(now);
            let part = part_of_pass(at);
            state.looks_inside |= part > ROUNDING;
            if state.in_last_pass() {
                state.last_look = state.last_look.max(part);
            }
        }
    }

    /// The run looks whether it is to stop.
    pub(super) fn look(&self) {
        self.state().look(Instant::now());
    }

    /// Something has begun during which the run does not look whether it is to stop.
    pub(super) fn begin(&self, doing: Doing) {
        let state = &mut *self.state();
        state.at = Within { doing, pass: 0, passes: 1, done: 0.0, may_break: false };
        state.in_step = false;
        state.since = Instant::now();
        state.looked = None;
    }

    /// A step was done.
    pub(super) fn stepped(&self, step: u64, time: Duration) {
        let state = &mut *self.state();
        state.step = step;
        state.in_step = false;
        state.at = Within { doing: Doing::Step, pass: 0, done: 0.0, ..state.at };
        state.since = Instant::now();
        state.steps_timed = state.steps_timed.saturating_add(1);
        let weight = 1.0 / f64::from(state.steps_timed).min(MEMORY);
        let rows = self.course.sizes.rows(step.saturating_sub(1));
        let (now, before) = (time.as_secs_f64() / rows as f64, state.row_s);
        state.row_s = Some(before.map_or(now, |before| before + weight * (now - before)));
    }

    /// An evaluation was done.
    pub(super) fn evaluated(&self) {
        let state = &mut *self.state();
        state.evaluation_s = Some(state.since.elapsed().as_secs_f64());
        state.at.done = 1.0;
    }

    /// The last checkpoint on the disk, if this session has written one, is of this step and took this long.
    pub(super) fn saved(&self, last: Option<(u64, Duration)>) {
        if let Some((step, took)) = last {
            let state = &mut *self.state();
            (state.saved, state.save_s) = (Some(step), Some(took.as_secs_f64()));
        }
    }

    /// Where the run is now.
    pub fn moment(&self) -> Moment {
        let state = self.state();
        let elapsed = state.since.elapsed();
        let in_step = if state.at.doing == Doing::Step { state.at.done } else { 0.0 };
        let tokens = in_step * self.course.sizes.tokens(state.step) as f64;
        Moment {
            step: state.step,
            steps: self.course.steps,
            at: state.at,
            elapsed,
            tokens_per_s: (in_step > 0.0 && !elapsed.is_zero()).then(|| tokens / elapsed.as_secs_f64()),
            left: self.left(&state, elapsed.as_secs_f64()),
        }
    }

    fn left(&self, state: &State, elapsed_s: f64) -> Option<Duration> {
        let Course { steps, first_step, eval_every, prediction, ref sizes, .. } = self.course;
        let at = state.at;
        let in_step = if at.doing == Doing::Step { at.done } else { 0.0 };
        let rows = sizes.rows(state.step) as f64;
        let of_part = (in_step > 0.0).then(|| elapsed_s / (in_step * rows));
        let of_part_early = of_part.filter(|_| in_step >= TELLING);
        let row_s = state.row_s.or(of_part_early).or(self.predicted_row_s()).or(of_part)?;
        let left = sizes.rows_before(steps) - sizes.rows_before(state.step.min(steps));
        let training = left as f64 - in_step * rows;

        // before every step that is a multiple, and after the last
        let count = |steps: u64| if eval_every == 0 { 0 } else { steps.div_ceil(eval_every) };
        let all = count(steps) + u64::from(eval_every > 0);
        let own = all.saturating_sub(count(first_step));
        let evaluation_s = state.evaluation_s.or(prediction.map(|p| p.evaluation_s / own.max(1) as f64));
        let is_evaluating = at.doing == Doing::Evaluation;
        // the one before the step at hand is done, unless it is what is going on
        let done = count(if is_evaluating { state.step } else { state.step + 1 });
        let evaluations = all.saturating_sub(done) as f64 - if is_evaluating { at.done } else { 0.0 };
        let evaluations = evaluations.max(0.0) * evaluation_s.unwrap_or(0.0);
        Duration::try_from_secs_f64(training * row_s + evaluations).ok()
    }

    /// The seconds that a row is predicted to take.
    fn predicted_row_s(&self) -> Option<f64> {
        let Course { steps, first_step, prediction, ref sizes, .. } = self.course;
        let rows = sizes.rows_before(steps).saturating_sub(sizes.rows_before(first_step));
        prediction.map(|p| p.training_s / rows.max(1) as f64)
    }

    /// What a stop would mean now.
    pub fn stopping(&self) -> Stopping {
        let state = self.state();
        let bytes = self.course.checkpoint_bytes;
        let save = Duration::from_secs_f64(state.save_s.unwrap_or(bytes as f64 / DISK));
        let row_s = state.row_s.or(self.predicted_row_s());
        let rows = self.course.sizes.rows(state.step) as f64;
        let pass_s = row_s.map(|seconds| seconds * rows / state.at.passes as f64);
        let within = match state.at.doing {
            Doing::Checkpoint => Some(save.saturating_sub(state.since.elapsed())),
            // the longest kernel may come later in the first step
            _ if state.looks_inside && state.steps_timed == 0 => None,
            _ if state.looks_inside => state.longest,
            _ => pass_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        };
        let is_saved = state.saved == Some(state.step);
        // of several ranks and other engines the run looks before a pass only
        let looks_again = state.at.may_break && part_of_pass(state.at) + ROUNDING < state.last_look;
        let may_finish = state.in_last_pass() && !looks_again;
        Stopping { step: state.step, may_finish, within, saving: (!is_saved).then_some((bytes, save)) }
    }
}

/// The share of the pass at hand that is done.
fn part_of_pass(at: Within) -> f64 {
    at.done * at.passes as f64 - at.pass as f64
}

impl State {
    fn in_last_pass(&self) -> bool {
        self.in_step && self.at.pass + 1 >= self.at.passes
    }

    fn look(&mut self, now: Instant) {
        if let Some(looked) = self.looked.replace(now) {
            self.longest = self.longest.max(Some(now - looked));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(prediction: Option<Prediction>) -> Course {
        let sizes = StepSizes::constant(10, 10);
        Course { steps: 10, first_step: 0, sizes, eval_every: 5, checkpoint_bytes: 400_000_000, prediction }
    }

    fn predicted() -> Prediction {
        Prediction {
            step_s: 3600.0,
            tokens_per_s: 1.0,
            training_s: 36_000.0,
            evaluation_s: 180.0,
            total_s: 36_180.0,
        }
    }

    fn in_step(done: f64) -> Within {
        Within { doing: Doing::Step, pass: 0, passes: 4, done, may_break: true }
    }

    #[test]
    fn the_time_left_is_unknown_predicted_or_measured() {
        let pulse = Pulse::new(course(None), 0);
        assert_eq!(pulse.moment().left, None, "nothing is known of it");
        let seconds = |pulse: &Pulse| pulse.moment().left.expect("known").as_secs_f64().round();
        let pulse = Pulse::new(course(Some(predicted())), 0);
        // ten steps, and the evaluations before step 5 and after the last of three
        assert_eq!(seconds(&pulse), 36_000.0 + 120.0);
        pulse.within(in_step(0.0));
        pulse.within(in_step(0.05));
        assert_eq!(seconds(&pulse), 36_000.0 - 180.0 + 120.0, "too little is done to tell");
        pulse.within(in_step(0.5));
        assert!(seconds(&pulse) < 1000.0, "the speed within the step counts, not the prediction");
        pulse.stepped(1, Duration::from_secs(10));
        assert_eq!(seconds(&pulse), 90.0 + 120.0);
        pulse.stepped(2, Duration::from_secs(20));
        assert_eq!(seconds(&pulse), 8.0 * 15.0 + 120.0);
        pulse.within(Within { doing: Doing::Evaluation, ..in_step(0.5) });
        pulse.evaluated();
        assert!(seconds(&pulse) <= 8.0 * 15.0 + 1.0, "evaluations take no time here");
    }

    #[test]
    fn a_branch_is_predicted_by_its_own_steps() {
        // two steps, and the evaluation after the last
        let predicted = Prediction { training_s: 7_200.0, evaluation_s: 60.0, ..predicted() };
        let pulse = Pulse::new(Course { first_step: 8, ..course(Some(predicted)) }, 8);
        assert_eq!(pulse.moment().left, Some(Duration::from_secs(7_260)));
    }

    #[test]
    fn a_run_without_evaluations_expects_none() {
        let course =
            Course { eval_every: 0, ..course(Some(Prediction { evaluation_s: 0.0, ..predicted() })) };
        let pulse = Pulse::new(course, 9);
        assert_eq!(pulse.moment().left, Some(Duration::from_secs(3600)));
        pulse.stepped(10, Duration::from_secs(1));
        assert_eq!(pulse.moment().left, Some(Duration::ZERO));
    }

    #[test]
    fn a_run_that_looks_between_passes_only_stops_after_one() {
        let pulse = Pulse::new(course(Some(predicted())), 0);
        let at = |done, may_break| Within { may_break, ..in_step(done) };
        for at in [at(0.0, true), at(0.0, false), at(0.1, false)] {
            pulse.within(at);
            pulse.look();
            assert_eq!(pulse.stopping().within, Some(Duration::from_secs(900)), "a fourth of a step");
        }
        pulse.stepped(1, Duration::from_secs(40));
        assert_eq!(pulse.stopping().within, Some(Duration::from_secs(10)));
    }

    #[test]
    fn a_stop_saves_what_is_not_saved() {
        let pulse = Pulse::new(course(None), 3);
        let stopping = pulse.stopping();
        assert_eq!(
            (stopping.step, stopping.within, stopping.saving),
            (3, None, None),
            "it was resumed there"
        );
        pulse.within(in_step(0.0));
        assert_eq!(pulse.stopping().within, None, "how long a pass takes is not known");
        pulse.within(in_step(0.01));
        assert_eq!(pulse.stopping().within, None, "the longest kernel may still come");
        pulse.stepped(4, Duration::from_secs(1));
        assert!(pulse.stopping().within.is_some_and(|time| time.as_secs() < 100), "it looks inside passes");
        assert_eq!(pulse.stopping().saving, Some((400_000_000, Duration::from_secs(2))));
        pulse.begin(Doing::Checkpoint);
        let stopping = pulse.stopping();
        assert!(stopping.saving.is_some() && stopping.within.is_some_and(|time| time.as_secs() < 3));
        pulse.saved(None);
        assert!(pulse.stopping().saving.is_some(), "it is being written");
        pulse.saved(Some((4, Duration::from_secs(7))));
        assert_eq!(pulse.stopping().saving, None);
        pulse.stepped(5, Duration::from_secs(1));
        assert_eq!(pulse.stopping().saving, Some((400_000_000, Duration::from_secs(7))));
        let fresh = Pulse::new(course(None), 0);
        assert!(fresh.stopping().saving.is_some(), "the initial state of a new run is saved");
    }
    #[test]
    fn a_step_after_whose_last_look_a_stop_comes_may_be_finished_first() {
        let pulse = Pulse::new(course(None), 3);
        let may_finish = |pass: u64, part: f64, may_break: bool| {
            pulse.within(Within { pass, done: (pass as f64 + part) / 4.0, may_break, ..in_step(0.0) });
            pulse.stopping().may_finish
        };
        assert!(!pulse.stopping().may_finish, "no step has begun");
        assert!(!may_finish(0, 0.5, true));
        assert!(may_finish(3, 0.0, true) && may_finish(3, 0.9, true), "where it looks last is not known yet");
        pulse.stepped(4, Duration::from_secs(1));
        assert!(!pulse.stopping().may_finish);
        assert!(!may_finish(2, 0.9, true) && !may_finish(3, 0.5, true));
        assert!(may_finish(3, 0.9, true));
        // of several ranks none breaks a pass off
        assert!(!may_finish(2, 0.5, false) && may_finish(3, 0.5, false));
        pulse.begin(Doing::Sample);
        assert!(!pulse.stopping().may_finish);
    }
}
