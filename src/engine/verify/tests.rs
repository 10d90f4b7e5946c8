use super::*;
use crate::engine::dfdx::CpuEngine;
use crate::engine::optimizer::adamw::AdamW;
use crate::engine::optimizer::{OptimizerKind, OptimizerState, OptimizerStep, Rule};
use crate::engine::{Applied, TokenLosses};
use crate::model::Dims;
use std::borrow::Cow;

const DIMS: Dims =
    Dims { n_layer: 3, n_head: 2, n_embd: 32, block_size: 11, vocab_size: 53, padded_vocab: 64 };
const STEPS: usize = 20;

/// GPT-2's initialization with a crude generator: matrices about 0.02, biases 0, LayerNorm weights 1.
fn initial(layout: &ParamLayout) -> Vec<f32> {
    let mut flat = vec![0.0; layout.len];
    let mut state = 1u32;
    for tensor in &layout.tensors {
        let used = if tensor.name == "wte.weight" { DIMS.vocab_size * DIMS.n_embd } else { tensor.len() };
        for value in &mut flat[tensor.offset..tensor.offset + used] {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *value = match tensor.name.contains("ln_") {
                _ if tensor.decayed => (state >> 8) as f32 / (1 << 24) as f32 * 0.07 - 0.035,
                true if tensor.name.ends_with("weight") => 1.0,
                _ => 0.0,
            };
        }
    }
    flat
}

/// Eight sequences per step, as `micro_steps` micro-batches.
fn rows(step: usize, micro_steps: usize) -> Vec<MicroBatch> {
    let cols = DIMS.block_size;
    let token = |row: usize, col: usize| (((step * 8 + row) * 7 + col * (1 + row % 3)) % 53) as u32;
    let rows = 8 / micro_steps;
    let ids = |micro: usize, shift: usize| {
        (0..rows * cols).map(|i| token(micro * rows + i / cols, i % cols + shift)).collect()
    };
    (0..micro_steps)
        .map(|micro| MicroBatch {
            inputs: ids(micro, 0),
            targets: ids(micro, 1),
            rows,
            cols,
            first_row: (step * 8 + micro * rows) as u64,
        })
        .collect()
}

fn updates() -> Vec<OptimizerStep> {
    (0..STEPS as u64)
        .map(|step| OptimizerStep {
            rule: Rule::AdamW(AdamW::new([0.9, 0.95], 1e-8, 0.1)),
            lr: 1e-3,
            clip_norm: 1.0,
            t: step + 1,
            loss_scale: 1.0,
        })
        .collect()
}

fn run(engine: &mut dyn Engine) -> Report {
    let mut reference = CpuEngine::new(DIMS, OptimizerKind::AdamW).expect("valid dimensions");
    let initial = initial(reference.layout());
    let tolerances = Tolerances::new(Precision::Fp32);
    verify(engine, &mut reference, &initial, |step| rows(step, 2), &updates(), tolerances)
        .expect("no failure")
}

/// What the wrapped reference does differently.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    /// Splits every micro-batch in single rows: the same mathematics, other rounding.
    Rounding,
    /// Scales the gradients of this tensor and of all before it in order of computation.
    Backward(&'static str),
    /// Loses a hundredth of this tensor's gradient, and of no other.
    Gradient(&'static str),
    /// Leaves the second micro-batch of every step out of the gradients, though not out of the loss.
    MicroStep,
    /// Forgets weight decay.
    Decay,
    /// Corrects the moments' bias as if this were the second update.
    Correction,
    /// Moves one tensor a little too far at the last update.
    Parameter(&'static str),
    /// Reports a loss that is a little too high.
    Loss,
    /// Never applies an update.
    Skip,
    /// Gradients are NaN.
    NotANumber,
}

/// The reference, the change, and the micro-batches so far.
struct Changed(CpuEngine, Change, usize);

impl Changed {
    fn new(change: Change) -> Self {
        Self(CpuEngine::new(DIMS, OptimizerKind::AdamW).expect("valid dimensions"), change, 0)
    }

    fn edit(&mut self, state: State, names: &[String], edit: fn(&mut f32)) -> Result<(), EngineError> {
        let mut values = self.read(state)?.into_owned();
        for name in names {
            let range = self.layout().tensor(name).expect("a tensor").range();
            values[range].iter_mut().for_each(edit);
        }
        self.write(state, &values)
    }
}

impl Engine for Changed {
    fn layout(&self) -> &ParamLayout {
        self.0.layout()
    }

    fn optimizer_states(&self) -> &'static [OptimizerState] {
        self.0.optimizer_states()
    }

    fn read(&mut self, state: State) -> Result<Cow<'_, [f32]>, EngineError> {
        self.0.read(state)
    }

    fn write(&mut self, state: State, values: &[f32]) -> Result<(), EngineError> {
        self.0.write(state, values)
    }

    fn accumulate(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        if self.1 == Change::Rounding {
            let (n, cols) = (batch.rows as f64, batch.cols);
            for (inputs, targets) in batch.inputs.chunks(cols).zip(batch.targets.chunks(cols)) {
                self.0.accumulate(Batch { inputs, targets, rows: 1, cols, first_row: 0 }, weight / n)?;
            }
            return Ok(());
        }
        self.2 += 1;
        if self.1 == Change::MicroStep && self.2.is_multiple_of(2) {
            return self.0.accumulate(batch, 0.0);
        }
        self.0.accumulate(batch, weight)?;
        match self.1 {
            Change::Backward(last) => {
                let order = computation_order(self.layout());
                let end = order.iter().position(|t| t.name == last).expect("a tensor");
                let names: Vec<_> = order[..=end].iter().map(|t| t.name.clone()).collect();
                self.edit(State::Gradients, &names, |g| *g *= 1.01)?;
            }
            Change::Gradient(name) => self.edit(State::Gradients, &[name.into()], |g| *g *= 0.99)?,
            Change::NotANumber => {
                self.edit(State::Gradients, &["wpe.weight".into()], |g| *g = f32::NAN)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn loss(&mut self) -> Result<f64, EngineError> {
        let loss = self.0.loss()?;
        Ok(if self.1 == Change::Loss { loss * 1.0001 } else { loss })
    }

    fn discard(&mut self) -> Result<(), EngineError> {
        self.0.discard()
    }

    fn update(&mut self, update: &OptimizerStep) -> Result<(), EngineError> {
        let mut update = *update;
        match self.1 {
            Change::Decay => {
                update.rule.adamw_mut().weight_decay = 0.0;
            }
            Change::Correction => update.t += 1,
            Change::Skip => update.lr = 0.0,
            _ => {}
        }
        self.0.update(&update)?;
        if let Change::Parameter(name) = self.1
            && update.t == STEPS as u64
        {
            self.edit(State::Parameters, &[name.into()], |p| *p *= 1.001)?;
        }
        Ok(())
    }

    fn applied(&mut self) -> Result<Applied, EngineError> {
        let applied = self.0.applied()?;
        Ok(Applied { applied: applied.applied && self.1 != Change::Skip, ..applied })
    }

    fn evaluate(&mut self, batch: Batch) -> Result<f64, EngineError> {
        self.0.evaluate(batch)
    }

    fn token_losses(&mut self, batch: Batch) -> Result<Vec<f32>, EngineError> {
        self.0.token_losses(batch)
    }

    fn losses_at(&mut self, batch: Batch, at: &[usize], greedy: bool) -> Result<TokenLosses, EngineError> {
        self.0.losses_at(batch, at, greedy)
    }

    fn logits(&mut self, tokens: &[u32], last_only: bool) -> Result<Vec<f32>, EngineError> {
        self.0.logits(tokens, last_only)
    }
}

fn changed(change: Change) -> Report {
    run(&mut Changed::new(change))
}

#[test]
fn rounding_alone_passes() {
    let report = changed(Change::Rounding);
    assert!(report.passed, "{report:?}");
    assert_eq!((report.first_failure, report.last_gradient_failure), (None, None));
    assert_eq!((report.steps.len(), report.tensors.len()), (STEPS, 2 + 12 * DIMS.n_layer + 2));
    // The comparison really compares: sums in another order differ in their last digits. (LayerNorm weights, near 1,
    // are too coarse to show it.)
    assert!(report.tensors.iter().all(|t| t.gradient_error > 0.0 && t.gradient_cosine > 0.999_999));
    assert!(report.tensors.iter().all(|t| t.change_error > 0.0 || t.name.contains("ln_")));
}

#[test]
fn a_backward_fault_is_named_where_the_backward_pass_meets_it() {
    let report = changed(Change::Backward("h.1.ln_2.weight"));
    assert!(!report.passed);
    assert_eq!(report.first_failure.as_deref(), Some("wte.weight"));
    assert_eq!(report.last_gradient_failure.as_deref(), Some("h.1.ln_2.weight"));
    // The first of two micro-batches is scaled twice.
    assert!((0.01..0.0202).contains(&report.tensors[0].gradient_error));
    assert!(report.steps[0].loss_error < 1e-12, "the forward pass was right");
}

#[test]
fn every_tensor_is_named_when_its_gradient_alone_is_off() {
    let layout = ParamLayout::new(&DIMS);
    for name in ["wte.weight", "wpe.weight", "h.0.attn.c_attn.bias", "h.2.mlp.c_fc.weight", "ln_f.bias"] {
        assert!(layout.tensor(name).is_some());
        let report = changed(Change::Gradient(name));
        assert!(!report.passed);
        assert_eq!(report.first_failure.as_deref(), Some(name));
        assert_eq!(report.last_gradient_failure.as_deref(), Some(name));
        let off: Vec<_> = report.tensors.iter().filter(|t| !t.gradient_passed).collect();
        assert_eq!(off.len(), 1, "{off:?}");
    }
}

#[test]
fn a_lost_micro_step_is_seen_in_every_gradient() {
    let report = changed(Change::MicroStep);
    assert!(!report.passed);
    assert!(report.steps[0].loss_error < 1e-12, "the losses were right");
    assert!(report.tensors.iter().all(|t| !t.gradient_passed), "{:?}", report.tensors);
    assert_eq!(report.first_failure.as_deref(), Some("wte.weight"));
}

#[test]
fn a_wrong_optimizer_is_seen_though_all_gradients_are_right() {
    for change in [Change::Decay, Change::Correction] {
        let report = changed(change);
        assert!(!report.passed, "{change:?}");
        assert_eq!(report.last_gradient_failure, None, "{change:?}");
        let first = report.first_failure.as_deref();
        assert_eq!(first, Some("wte.weight"), "{change:?}: decayed tensors come first");
    }
}

#[test]
fn a_wrong_update_of_one_tensor_is_named() {
    let report = changed(Change::Parameter("h.2.attn.c_proj.weight"));
    assert!(!report.passed);
    assert_eq!(report.first_failure.as_deref(), Some("h.2.attn.c_proj.weight"));
    assert_eq!(report.last_gradient_failure, None);
}

#[test]
fn a_wrong_loss_a_skipped_step_and_a_nan_do_not_pass() {
    let report = changed(Change::Loss);
    assert!(!report.passed && report.first_failure.is_none() && !report.steps[0].passed);
    let report = changed(Change::Skip);
    assert!(!report.passed && !report.steps[0].passed);
    let report = changed(Change::NotANumber);
    assert_eq!(report.first_failure.as_deref(), Some("wpe.weight"));
    assert!(!report.passed && !report.steps[0].applied);
    let json = serde_json::to_value(&report).expect("a report serializes");
    assert_eq!(json["tensors"][1]["name"], "wpe.weight");
    assert!(json["tensors"][1]["gradient_error"].is_null());
}

#[test]
fn the_order_is_that_of_the_forward_pass() {
    let layout = ParamLayout::new(&DIMS);
    let order = computation_order(&layout);
    let names: Vec<_> = order.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names[..4], ["wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias"]);
    assert_eq!(names[13..15], ["h.0.mlp.c_proj.bias", "h.1.ln_1.weight"]);
    assert_eq!(names[names.len() - 1], "ln_f.bias");
    assert_eq!(order.len(), layout.tensors.len());
}

#[test]
fn the_bias_of_the_keys_has_no_gradient_but_rounding() {
    let mut engine = CpuEngine::new(DIMS, OptimizerKind::AdamW).expect("valid dimensions");
    let initial = initial(engine.layout());
    engine.write(State::Parameters, &initial).expect("the buffer fits");
    engine.accumulate(rows(0, 1)[0].batch(), 1.0).expect("the batch fits");
    let tensor = engine.layout().tensor("h.1.attn.c_attn.bias").expect("a tensor").clone();
    let kept = determined(&tensor);
    let keys = kept[0].end..kept[1].start;
    assert_eq!(keys.len(), DIMS.n_embd);
    let gradients = engine.read(State::Gradients).expect("gradients");
    let norm = |r: Range<usize>| gradients[r].iter().map(|g| f64::from(g * g)).sum::<f64>().sqrt();
    assert!(norm(keys) < 1e-5 * norm(tensor.range()));
}

#[test]
fn engines_of_different_models_are_not_compared() {
    let mut other =
        CpuEngine::new(Dims { n_layer: 2, ..DIMS }, OptimizerKind::AdamW).expect("valid dimensions");
    let mut reference = CpuEngine::new(DIMS, OptimizerKind::AdamW).expect("valid dimensions");
    let initial = initial(reference.layout());
    let tolerances = Tolerances::new(Precision::Fp32);
    let result = verify(&mut other, &mut reference, &initial, |s| rows(s, 1), &updates(), tolerances);
    assert!(matches!(result, Err(EngineError::Input(_))));
    let mut same = CpuEngine::new(DIMS, OptimizerKind::AdamW).expect("valid dimensions");
    let none = verify(&mut same, &mut reference, &initial, |s| rows(s, 1), &[], tolerances);
    assert!(matches!(none, Err(EngineError::Input(_))));
    let empty = verify(&mut same, &mut reference, &initial, |_| Vec::new(), &updates(), tolerances);
    assert!(matches!(empty, Err(EngineError::Input(_))));
}

/// Rounding decides the sign of a step where it is larger than the gradient, and hides no fault elsewhere.
#[test]
fn a_gradient_that_is_all_rounding_is_left_out() {
    let b = [1.0, -1.0, 1e-6, 0.0, 1.0, 1e-6, 1.0];
    let a = [1.0, -1.0, -1e-6, 0.0, 0.5, 0.5, f32::NAN];
    let is_left_out = rounded_away(&a, &b, &[0..2, 2..7], 1e-2);
    let found: Vec<usize> = (0..7).filter(|&i| is_left_out(i)).collect();
    assert_eq!(found, [2], "not what agrees, nor what is off by more than the bound");
}

#[test]
fn zeros_agree_and_what_is_not_finite_does_not() {
    assert_eq!((relative(0.0, 0.0), relative(3.0, 2.0), relative(1.0, 0.0)), (0.0, 0.5, f64::INFINITY));
    assert!(relative(f64::INFINITY, f64::INFINITY).is_nan() && relative(f64::NAN, 1.0).is_nan());
}
