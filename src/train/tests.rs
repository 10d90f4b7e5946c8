//! The loop against an engine that only counts.

mod blame;
mod evaluation;
pub(super) mod ramp;
mod watched;

use super::*;
use crate::comm::Solo;
use crate::engine::optimizer::adamw::EXP_AVG_SQ;
use crate::engine::optimizer::{OptimizerKind, OptimizerState};
use crate::engine::{Applied, Batch, State, TokenLosses, Watch};
use crate::model::{Dims, ParamLayout};
use crate::recipe::{Precision, ScheduleKind, WatchdogAction, WatchdogConfig};
use std::borrow::Cow;
use std::ops::Range;
use watchdog::Window;
use watched::Onlooker;

/// Adds up what it is given; loses (NaN) or overflows at chosen steps. The gradient of each element is 1 for each row,
/// and not finite in one tensor for a chosen row.
struct Counting {
    layout: ParamLayout,
    gradients: Vec<f32>,
    moments: Vec<f32>,
    bad_row: Option<u32>,
    rows: Vec<u32>,
    weights: f64,
    updates: Vec<OptimizerStep>,
    discarded: usize,
    losses: Vec<f64>,
    applied: Option<Applied>,
    nan_loss_at: Option<usize>,
    overflow_at: Vec<usize>,
    /// Shares of a pass at which a watched one looks up.
    looks: Vec<f64>,
}

impl Counting {
    fn new() -> Self {
        let dims = Dims { n_layer: 0, n_head: 1, n_embd: 1, block_size: 2, vocab_size: 1, padded_vocab: 1 };
        let layout = ParamLayout::new(&dims);
        Self {
            gradients: vec![0.0; layout.len],
            moments: vec![0.0; layout.len],
            bad_row: None,
            layout,
            rows: vec![],
            weights: 0.0,
            updates: vec![],
            discarded: 0,
            losses: vec![],
            applied: None,
            nan_loss_at: None,
            overflow_at: vec![],
            looks: vec![0.25, 1.0],
        }
    }

    /// Steps ended, in whichever way.
    fn steps(&self) -> usize {
        self.updates.len() + self.discarded
    }

    fn end(&mut self, grad_norm: f64, apply: bool) -> Result<(), EngineError> {
        let loss = self.loss()?;
        self.weights = 0.0;
        self.gradients.fill(0.0);
        self.losses.clear();
        self.applied = Some(Applied { loss, grad_norm, applied: apply && loss.is_finite() });
        Ok(())
    }
}

impl Engine for Counting {
    fn layout(&self) -> &ParamLayout {
        &self.layout
    }
    fn optimizer_states(&self) -> &'static [OptimizerState] {
        OptimizerKind::AdamW.states()
    }
    fn read(&mut self, state: State) -> Result<Cow<'_, [f32]>, EngineError> {
        Ok(match state {
            State::Gradients => Cow::Borrowed(&self.gradients),
            State::Optimizer(state) if *state == EXP_AVG_SQ => Cow::Borrowed(&self.moments),
            _ => Cow::Owned(vec![0.0; self.layout.len]),
        })
    }
    fn write(&mut self, state: State, values: &[f32]) -> Result<(), EngineError> {
        assert_eq!(state, State::Gradients);
        self.gradients.copy_from_slice(values);
        Ok(())
    }
    fn accumulate(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        self.rows.extend(batch.inputs.chunks(batch.cols).map(|row| row[0]));
        self.weights += weight;
        self.gradients.iter_mut().for_each(|gradient| *gradient += batch.rows as f32);
        if self.bad_row.is_some_and(|row| batch.inputs.contains(&row)) {
            let tensor = self.layout.tensors.iter().find(|tensor| tensor.name == "ln_f.weight");
            self.gradients[tensor.expect("a tensor").offset] = f32::INFINITY;
        }
        let nan = self.nan_loss_at == Some(self.steps());
        self.losses.push(if nan { f64::NAN } else { f64::from(batch.inputs[0]) });
        Ok(())
    }
    fn accumulate_watched(
        &mut self,
        batch: Batch,
        weight: f64,
        _last: bool,
        watch: &Watch,
    ) -> Result<ControlFlow<()>, EngineError> {
        // what it leaves behind where it is broken off is for a discard
        self.accumulate(batch, weight)?;
        Ok(self.looks.iter().try_for_each(|&done| watch(done)))
    }
    fn loss(&mut self) -> Result<f64, EngineError> {
        Ok(self.losses.iter().sum::<f64>() / self.losses.len() as f64)
    }
    fn update(&mut self, step: &OptimizerStep) -> Result<(), EngineError> {
        assert!((self.weights - step.loss_scale).abs() < 1e-9 * step.loss_scale);
        let overflow = self.overflow_at.contains(&self.steps())
            || self.gradients.iter().any(|gradient| !gradient.is_finite());
        self.updates.push(*step);
        self.end(if overflow { f64::INFINITY } else { 1.0 }, !overflow)
    }
    fn discard(&mut self) -> Result<(), EngineError> {
        self.discarded += 1;
        self.end(f64::NAN, false)
    }
    fn applied(&mut self) -> Result<Applied, EngineError> {
        Ok(self.applied.expect("there was an update"))
    }
    fn evaluate(&mut self, batch: Batch) -> Result<f64, EngineError> {
        let loss = |row: &[u32]| if row[0] == NO_NUMBER { f64::NAN } else { f64::from(row[0]) };
        Ok(batch.inputs.chunks(batch.cols).map(loss).sum::<f64>() / batch.rows as f64)
    }
    fn evaluate_watched(&mut self, batch: Batch, watch: &Watch) -> Result<Option<f64>, EngineError> {
        let loss = self.evaluate(batch)?;
        Ok(self.looks.iter().try_for_each(|&done| watch(done)).is_continue().then_some(loss))
    }
    fn token_losses(&mut self, batch: Batch) -> Result<Vec<f32>, EngineError> {
        Ok(batch.inputs.iter().map(|&token| token as f32).collect())
    }
    fn losses_at(&mut self, batch: Batch, at: &[usize], _: bool) -> Result<TokenLosses, EngineError> {
        let losses = at.iter().map(|&at| batch.inputs[at] as f32).collect();
        Ok(TokenLosses { losses, is_greedy: Vec::new(), computed: batch.inputs.len() })
    }
    fn logits(&mut self, _: &[u32], _: bool) -> Result<Vec<f32>, EngineError> {
        Ok(vec![0.0])
    }
}

/// A token without a loss.
const NO_NUMBER: u32 = u32::MAX;

/// Row g is full of g.
struct Numbered;

impl Rows for Numbered {
    fn fill(&self, first: u64, rows: usize, inputs: &mut [u32], targets: &mut [u32]) {
        let cols = inputs.len() / rows;
        for (i, row) in inputs.chunks_mut(cols).enumerate() {
            row.fill((first + i as u64) as u32);
        }
        targets.copy_from_slice(inputs);
    }
    fn locate(&self, row: u64) -> Option<String> {
        Some(format!("place {row}"))
    }
}

#[derive(Default)]
struct Recorder {
    log: Vec<String>,
    reports: Vec<StepReport>,
    micro_steps: usize,
    stop_after_micro_steps: Option<usize>,
    save_after_micro_steps: Vec<usize>,
    onlooker: Onlooker,
}

impl Events for Recorder {
    type Error = String;

    fn step(&mut self, report: &StepReport, _: &Progress) -> Result<(), String> {
        self.log.push(format!("step {}", report.step));
        self.reports.push(report.clone());
        Ok(())
    }
    fn micro_step(&mut self, _: usize) {
        self.micro_steps += 1;
    }
    fn evaluated(&mut self, measured: &Measured, progress: &Progress) -> Result<(), String> {
        self.log.push(format!("eval {} {}", progress.step, measured.val_loss()));
        Ok(())
    }
    fn sample(&mut self, _: &mut dyn Engine, progress: &Progress) -> Result<(), String> {
        self.log.push(format!("sample {}", progress.step));
        Ok(())
    }
    fn checkpoint(&mut self, _: &mut dyn Engine, progress: &Progress) -> Result<(), String> {
        self.log.push(format!("save {}", progress.step));
        Ok(())
    }
    fn stop(&mut self) -> Option<Stop> {
        let is_over = self.stop_after_micro_steps.is_some_and(|count| count <= self.micro_steps);
        (is_over || self.onlooker.is_breaking()).then_some(Stop::Terminate)
    }
    fn watcher(&self) -> Option<&dyn Watcher> {
        Some(&self.onlooker)
    }
    fn save_now(&mut self) -> bool {
        let due = self.save_after_micro_steps.first() == Some(&self.micro_steps);
        if due {
            self.save_after_micro_steps.remove(0);
        }
        due
    }
}

fn config() -> TrainConfig {
    let schedule = ramp::schedule(ScheduleKind::Constant, 5);
    let sizes = StepSizes::constant(6, 2);
    let optimizer = OptimizerConfig { lr: 0.1, ..OptimizerConfig::default() };
    TrainConfig {
        max_steps: 5,
        micro_batch: 2,
        block_size: 2,
        schedule: Schedule::new(&schedule, 0.1, &sizes),
        sizes,
        optimizer,
        eval_every: 2,
        stop_at_val_loss: None,
        checkpoint_every: 2,
        keep_best: false,
        sample_every: 4,
    }
}

fn unwatched() -> WatchdogConfig {
    let action = WatchdogAction::Skip;
    WatchdogConfig { max_loss_zscore: 0.0, max_grad_zscore: 0.0, window: 2, action }
}

fn start(precision: Precision) -> Progress {
    let watchdog = Watchdog::new(unwatched(), Window::default());
    let scaler = LossScaler::new(precision);
    let (best_val_loss, kept, evaluated, reached) = (None, None, false, None);
    Progress { step: 0, updates: 0, scaler, watchdog, best_val_loss, kept, evaluated, reached }
}

fn run(engine: &mut Counting, progress: &mut Progress, events: &mut Recorder) -> Outcome {
    let evaluations = Evaluations::of(&Numbered, 3);
    train(&Solo, engine, &Numbered, &evaluations, &config(), progress, events).expect("nothing fails here")
}

#[test]
fn rows_come_in_order_and_losses_are_means() {
    let (mut engine, mut events) = (Counting::new(), Recorder::default());
    let mut progress = start(Precision::Fp32);
    assert_eq!(run(&mut engine, &mut progress, &mut events), Outcome::Finished);
    assert_eq!(engine.rows, (0..30).collect::<Vec<_>>());
    assert_eq!(events.reports[1].loss, (6.0 + 8.0 + 10.0) / 3.0);
    assert_eq!(engine.updates.iter().map(|u| u.t).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let log = "eval 0 1,sample 0,step 0,step 1,save 2,eval 2 1,step 2,step 3,save 4,eval 4 1,sample 4,step 4,\
               eval 5 1,sample 5,save 5";
    assert_eq!(events.log.join(","), log);
}

#[test]
fn a_resumed_run_does_the_rest() {
    let (mut engine, mut events) = (Counting::new(), Recorder::default());
    let mut progress = Progress { step: 4, updates: 4, ..start(Precision::Fp32) };
    assert_eq!(run(&mut engine, &mut progress, &mut events), Outcome::Finished);
    assert_eq!(engine.rows, (24..30).collect::<Vec<_>>());
    assert_eq!(events.log.join(","), "eval 4 1,sample 4,step 4,eval 5 1,sample 5,save 5");
}

#[test]
fn a_nan_loss_is_never_applied() {
    let mut engine = Counting { nan_loss_at: Some(3), ..Counting::new() };
    let (mut events, mut progress) = (Recorder::default(), start(Precision::Fp32));
    let outcome = run(&mut engine, &mut progress, &mut events);
    let Outcome::Diverged { step: 3, what } = outcome else { panic!("{outcome:?}") };
    // computed again, it is not
    assert_eq!(what, "the loss is NaN; each of the rows 18 to 23 by itself is finite");
    // the engine is asked, and declines
    assert_eq!((engine.updates.len(), progress.step, progress.updates), (4, 3, 3));
    assert!(engine.applied.is_some_and(|a| !a.applied));
    assert_eq!(events.log.last().map(String::as_str), Some("step 2"));
}

#[test]
fn overflow_diverges_in_fp32_and_is_skipped_in_fp16() {
    let mut engine = Counting { overflow_at: vec![1], ..Counting::new() };
    let outcome = run(&mut engine, &mut start(Precision::Fp32), &mut Recorder::default());
    assert!(matches!(outcome, Outcome::Diverged { step: 1, .. }), "{outcome:?}");

    let mut engine = Counting { overflow_at: vec![1], ..Counting::new() };
    let (mut events, mut progress) = (Recorder::default(), start(Precision::Fp16));
    assert_eq!(run(&mut engine, &mut progress, &mut events), Outcome::Finished);
    let column = |f: fn(&StepReport) -> f64| events.reports.iter().map(f).collect::<Vec<_>>();
    assert_eq!(column(|r| f64::from(u8::from(r.skipped))), [0.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(column(|r| r.loss_scale), [65536.0, 65536.0, 32768.0, 32768.0, 32768.0]);
    // the skipped update does not count for the bias correction
    assert_eq!(engine.updates.iter().map(|u| u.t).collect::<Vec<_>>(), [1, 2, 2, 3, 4]);
    assert_eq!((progress.step, progress.updates), (5, 4));
}

#[test]
fn what_is_not_finite_is_traced_to_a_tensor_and_a_row() {
    let mut engine = Counting { bad_row: Some(9), ..Counting::new() };
    let outcome = run(&mut engine, &mut start(Precision::Fp32), &mut Recorder::default());
    let Outcome::Diverged { step: 1, what } = outcome else { panic!("{outcome:?}") };
    let blame = "the gradient of `ln_f.weight` is not finite, from row 9 (place 9)";
    assert_eq!(what, format!("the gradient norm is inf; {blame}"));
    // in fp16 the scale is blamed first, until it cannot be
    let mut engine = Counting { bad_row: Some(9), ..Counting::new() };
    let mut events = Recorder::default();
    assert_eq!(run(&mut engine, &mut start(Precision::Fp16), &mut events), Outcome::Finished);
    assert!(events.reports[1].skipped && !events.reports[2].skipped);
}

#[test]
fn moments_and_validation_losses_that_are_not_finite_end_the_run() {
    let mut engine = Counting::new();
    engine.moments[2] = f32::INFINITY;
    let mut events = Recorder::default();
    let outcome = run(&mut engine, &mut start(Precision::Fp32), &mut events);
    let Outcome::Diverged { step: 1, what } = outcome else { panic!("{outcome:?}") };
    assert!(
        what.starts_with("the second moment of `") && what.ends_with("is not finite after the update"),
        "{what}"
    );
    assert!(!events.log.iter().any(|line| line.starts_with("save")), "{:?}", events.log);

    /// Its rows have no loss.
    struct Broken;
    impl Rows for Broken {
        fn fill(&self, first: u64, rows: usize, inputs: &mut [u32], targets: &mut [u32]) {
            Numbered.fill(first, rows, inputs, targets);
            inputs.fill(NO_NUMBER);
        }
    }
    let (mut events, mut progress) = (Recorder::default(), start(Precision::Fp32));
    let (mut engine, evaluations) = (Counting::new(), Evaluations::of(&Broken, 3));
    let outcome = train(&Solo, &mut engine, &Numbered, &evaluations, &config(), &mut progress, &mut events);
    let what = "the validation loss is NaN".to_owned();
    assert_eq!(outcome.expect("nothing fails here"), Outcome::Diverged { step: 0, what });
    assert_eq!((events.log.len(), progress.best_val_loss), (0, None));
}

/// Counting's losses are 2, 8, 14, 20, 26.
fn watched(action: WatchdogAction) -> Progress {
    let config = WatchdogConfig { max_loss_zscore: 2.5, max_grad_zscore: 0.0, window: 2, action };
    Progress { watchdog: Watchdog::new(config, Window::default()), ..start(Precision::Fp32) }
}

#[test]
fn the_watchdog_skips_what_stands_out_and_stops_what_stays_out() {
    let (mut engine, mut events) = (Counting::new(), Recorder::default());
    let mut progress = watched(WatchdogAction::Skip);
    let outcome = run(&mut engine, &mut progress, &mut events);
    let Outcome::Diverged { step: 4, what } = outcome else { panic!("{outcome:?}") };
    assert!(what.contains("the 2 steps before, all skipped"), "{what}");
    // 14 is 3 spreads above the mean of 2 and 8, and is not taken in
    assert_eq!(events.reports.iter().map(|r| r.skipped).collect::<Vec<_>>(), [false, false, true, true]);
    assert_eq!(events.reports.iter().map(|r| r.loss).collect::<Vec<_>>(), [2.0, 8.0, 14.0, 20.0]);
    assert!(events.reports.iter().all(|r| r.grad_norm.is_finite()), "{:?}", events.reports);
    assert_eq!((progress.updates, progress.watchdog.window().losses.len()), (2, 2));
    assert_eq!((engine.updates.len(), engine.discarded), (2, 2));

    let (mut engine, mut events) = (Counting::new(), Recorder::default());
    let outcome = run(&mut engine, &mut watched(WatchdogAction::Stop), &mut events);
    let Outcome::Diverged { step: 2, what } = outcome else { panic!("{outcome:?}") };
    assert!(what.starts_with("the loss 14.0000 is 3.0 standard deviations above 5.0000"), "{what}");
    assert_eq!(engine.updates.len(), 2, "nothing is applied");
}

#[test]
fn a_checkpoint_that_is_asked_for_comes_within_the_step() {
    let (mut engine, mut progress) = (Counting::new(), start(Precision::Fp32));
    let mut events = Recorder { save_after_micro_steps: vec![4, 11], ..Recorder::default() };
    assert_eq!(run(&mut engine, &mut progress, &mut events), Outcome::Finished);
    let saves: Vec<_> = events.log.iter().filter(|line| line.starts_with("save")).cloned().collect();
    // after the fourth of three micro-steps each, one step is whole
    assert_eq!(saves, ["save 1", "save 2", "save 3", "save 4", "save 5"]);
    assert_eq!(engine.rows, (0..30).collect::<Vec<_>>(), "the rows go on as if nothing had been");
}

#[test]
fn a_stop_within_a_step_saves_the_last_whole_one() {
    let (mut engine, mut progress) = (Counting::new(), start(Precision::Fp32));
    let mut events = Recorder { stop_after_micro_steps: Some(5), ..Recorder::default() };
    assert_eq!(run(&mut engine, &mut progress, &mut events), Outcome::Stopped(Stop::Terminate));
    assert_eq!(engine.updates.len(), 1);
    assert_eq!(events.log.join(","), "eval 0 1,sample 0,step 0,save 1");
}
