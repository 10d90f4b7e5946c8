//! The loop against an engine that only counts.

use super::*;
use crate::engine::Applied;
use crate::model::{Dims, ParamLayout};
use crate::recipe::{Precision, ScheduleConfig, ScheduleKind};
use std::borrow::Cow;

/// Adds up what it is given; loses (NaN) or overflows at chosen steps.
struct Counting {
    layout: ParamLayout,
    rows: Vec<u32>,
    weights: f64,
    updates: Vec<Update>,
    losses: Vec<f64>,
    applied: Option<Applied>,
    nan_loss_at: Option<usize>,
    overflow_at: Vec<usize>,
}

impl Counting {
    fn new() -> Self {
        let dims = Dims { n_layer: 0, n_head: 1, n_embd: 1, block_size: 2, vocab_size: 1, padded_vocab: 1 };
        let layout = ParamLayout::new(&dims);
        Self {
            layout,
            rows: vec![],
            weights: 0.0,
            updates: vec![],
            losses: vec![],
            applied: None,
            nan_loss_at: None,
            overflow_at: vec![],
        }
    }
}

impl Engine for Counting {
    fn layout(&self) -> &ParamLayout {
        &self.layout
    }
    fn read(&mut self, _: State) -> Result<Cow<'_, [f32]>, EngineError> {
        Ok(Cow::Owned(vec![0.0; self.layout.len]))
    }
    fn write(&mut self, _: State, _: &[f32]) -> Result<(), EngineError> {
        Ok(())
    }
    fn accumulate(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        self.rows.extend(batch.inputs.chunks(batch.cols).map(|row| row[0]));
        self.weights += weight;
        let nan = self.nan_loss_at == Some(self.updates.len());
        self.losses.push(if nan { f64::NAN } else { f64::from(batch.inputs[0]) });
        Ok(())
    }
    fn loss(&mut self) -> Result<f64, EngineError> {
        Ok(self.losses.iter().sum::<f64>() / self.losses.len() as f64)
    }
    fn update(&mut self, update: &Update) -> Result<(), EngineError> {
        assert!((self.weights - update.loss_scale).abs() < 1e-9 * update.loss_scale);
        self.weights = 0.0;
        let overflow = self.overflow_at.contains(&self.updates.len());
        self.updates.push(*update);
        let (loss, grad_norm) = (self.loss()?, if overflow { f64::INFINITY } else { 1.0 });
        self.losses.clear();
        self.applied = Some(Applied { loss, grad_norm, applied: !overflow && loss.is_finite() });
        Ok(())
    }
    fn applied(&mut self) -> Result<Applied, EngineError> {
        Ok(self.applied.expect("there was an update"))
    }
    fn evaluate(&mut self, batch: Batch) -> Result<f64, EngineError> {
        Ok(batch.inputs.chunks(batch.cols).map(|row| f64::from(row[0])).sum::<f64>() / batch.rows as f64)
    }
    fn logits(&mut self, _: &[u32], _: bool) -> Result<Vec<f32>, EngineError> {
        Ok(vec![0.0])
    }
}

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
}

#[derive(Default)]
struct Recorder {
    log: Vec<String>,
    reports: Vec<StepReport>,
    micro_steps: usize,
    stop_after_micro_steps: Option<usize>,
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
    fn evaluated(&mut self, val_loss: f64, progress: &Progress) -> Result<(), String> {
        self.log.push(format!("eval {} {val_loss}", progress.step));
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
        (self.stop_after_micro_steps? <= self.micro_steps).then_some(Stop::Terminate)
    }
}

fn config() -> TrainConfig {
    let schedule = ScheduleConfig {
        kind: ScheduleKind::Constant,
        max_steps: 5,
        warmup_steps: None,
        min_lr_ratio: None,
        decay_steps: None,
    };
    let optimizer =
        OptimizerConfig { lr: 0.1, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, clip_norm: 1.0 };
    TrainConfig {
        max_steps: 5,
        rows_per_step: 6,
        micro_batch: 2,
        block_size: 2,
        schedule: Schedule::new(&schedule, 0.1),
        optimizer,
        eval_every: 2,
        eval_rows: 3,
        checkpoint_every: 2,
        sample_every: 4,
    }
}

fn start(precision: Precision) -> Progress {
    Progress { step: 0, updates: 0, scaler: LossScaler::new(precision), best_val_loss: None }
}

fn run(engine: &mut Counting, progress: &mut Progress, events: &mut Recorder) -> Outcome {
    train(engine, &Numbered, Some(&Numbered), &config(), progress, events).expect("nothing fails here")
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
    assert_eq!(outcome, Outcome::Diverged { step: 3, what: "the loss is NaN".into() });
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
fn a_stop_within_a_step_saves_the_last_whole_one() {
    let (mut engine, mut progress) = (Counting::new(), start(Precision::Fp32));
    let mut events = Recorder { stop_after_micro_steps: Some(5), ..Recorder::default() };
    assert_eq!(run(&mut engine, &mut progress, &mut events), Outcome::Stopped(Stop::Terminate));
    assert_eq!(engine.updates.len(), 1);
    assert_eq!(events.log.join(","), "eval 0 1,sample 0,step 0,save 1");
}
