//! The comparison behind `runner verify`: two engines, the same parameters, the same rows, what differs?
//!
//! The reference is the dfdx engine in fp32. Losses are compared at every step, gradients tensor by tensor at the first
//! (later ones start from different parameters), parameters after the last. Nothing is printed and nothing is shrunk
//! here: the caller chooses dimensions, rows and bounds, and shows the [`Report`].

use super::optimizer::{OptimizerStep, Rule};
use super::{Batch, Engine, EngineError, State};
use crate::model::{ParamLayout, Tensor};
use crate::recipe::{MuonPrecision, Precision};
use serde::Serialize;
use std::ops::Range;

/// One micro-batch, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MicroBatch {
    /// Input token ids, `[rows, cols]`.
    pub inputs: Vec<u32>,
    /// The id that follows each input.
    pub targets: Vec<u32>,
    /// Number of sequences.
    pub rows: usize,
    /// Tokens per sequence.
    pub cols: usize,
    /// The number of the first row among those of a training run.
    pub first_row: u64,
}

impl MicroBatch {
    fn batch(&self) -> Batch<'_> {
        Batch {
            inputs: &self.inputs,
            targets: &self.targets,
            rows: self.rows,
            cols: self.cols,
            first_row: self.first_row,
        }
    }
}

/// The largest differences that still count as the same result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tolerances {
    /// Relative difference of the first step's loss.
    pub loss: f64,
    /// Relative difference of later losses, which parameters that have drifted apart add to.
    pub later_loss: f64,
    /// ‖a − b‖ / ‖b‖ of a tensor's gradient; also the relative difference of the gradient norm.
    pub gradient: f64,
    /// ‖a − b‖ / ‖b‖ of a tensor's parameters after the last step, without [left out](TensorReport::left_out) elements.
    pub parameter: f64,
    /// ‖Δa − Δb‖ / ‖Δb‖ of what the steps changed in a tensor, without [left out](TensorReport::left_out) elements.
    /// Wider than the gradient's bound, because AdamW divides by the gradient's size.
    pub change: f64,
}

impl Tolerances {
    /// The bounds for an engine of this precision against fp32. Those of fp32 are a promise; the others are three to
    /// five times the worst that rounding was seen to do in `runner verify` over 20 steps of small models and 5 of
    /// the shipped recipes, from random and from trained weights, with both attention backends.
    pub fn new(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 => {
                Self { loss: 1e-5, later_loss: 1e-4, gradient: 1e-4, parameter: 1e-4, change: 1e-3 }
            }
            Precision::Tf32 | Precision::Fp16 => {
                Self { loss: 2e-5, later_loss: 2e-4, gradient: 4e-3, parameter: 1e-2, change: 5e-2 }
            }
            Precision::Bf16 => {
                Self { loss: 2e-4, later_loss: 5e-4, gradient: 4e-2, parameter: 4e-2, change: 0.2 }
            }
        }
    }
}

impl Tolerances {
    /// These bounds where a step follows this rule. Muon's iteration enlarges a difference of two gradients in the
    /// smallest directions of a matrix. In fp32 the engines agree as under AdamW. Where the iteration rounds to bf16,
    /// an element of an update goes by the last digit of a sum to the one or the other of two numbers 1/256 apart: in
    /// eight steps of small models, changes were seen to differ by 0.07 of themselves and matrices by 0.04. Where the
    /// products of the model are rounded, changes differed by 0.29 in the first steps, and matrices by 0.09.
    #[must_use]
    pub fn under(self, rule: &Rule) -> Self {
        let Rule::Muon(muon) = rule else { return self };
        let (parameter, change) = match muon.ns_precision {
            _ if self.is_rounded() => (0.2, 0.5),
            MuonPrecision::Bf16 => (0.1, 0.2),
            MuonPrecision::Fp32 => return self,
        };
        Self {
            later_loss: self.later_loss.max(5e-4),
            parameter: self.parameter.max(parameter),
            change: self.change.max(change),
            ..self
        }
    }

    /// Whether they are those of a precision that rounds the operands of products.
    fn is_rounded(self) -> bool {
        self.gradient > Self::new(Precision::Fp32).gradient
    }
}

/// What both engines said about one optimizer step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepReport {
    /// Counted from 0.
    pub step: usize,
    /// The engine's mean loss before the update.
    pub loss: f64,
    /// The reference's.
    pub reference_loss: f64,
    /// Relative difference of the two.
    pub loss_error: f64,
    /// The engine's gradient norm before clipping.
    pub grad_norm: f64,
    /// The reference's.
    pub reference_grad_norm: f64,
    /// Whether the engine applied the update; the reference always does.
    pub applied: bool,
    /// Whether the loss and, at step 0, the norm are within bounds and the update was applied.
    pub passed: bool,
}

/// How far apart the engines are on one tensor. Quantities that are not finite appear as `null` in JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorReport {
    /// The tensor's name in the layout.
    pub name: String,
    /// ‖a − b‖ / ‖b‖ of the gradient at step 0.
    pub gradient_error: f64,
    /// Cosine of the angle between the two gradients.
    pub gradient_cosine: f64,
    /// ‖a − b‖ / ‖b‖ of the parameters after the last step.
    pub parameter_error: f64,
    /// ‖Δa − Δb‖ / ‖Δb‖ of what the steps changed.
    pub change_error: f64,
    /// Whether the gradient is within bounds.
    pub gradient_passed: bool,
    /// Whether parameters and change are within bounds.
    pub parameter_passed: bool,
    /// Elements whose parameters are not compared. AdamW divides the first gradient by its own size, so where rounding
    /// makes up much of an element's, it decides the sign of a whole step. Such are those whose first gradients differ
    /// by more than a tenth, though by less than the tensor's may.
    pub left_out: usize,
}

/// The outcome of a verification.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Whether everything is within bounds.
    pub passed: bool,
    /// The bounds.
    pub tolerances: Tolerances,
    /// Every step.
    pub steps: Vec<StepReport>,
    /// Every tensor, in the order in which the forward pass reads them.
    pub tensors: Vec<TensorReport>,
    /// The first tensor in that order that is off: in its gradient, or in its parameters if all gradients are right.
    pub first_failure: Option<String>,
    /// The last tensor in that order whose gradient is off. The backward pass reaches it first, and it spoils what
    /// comes after it, so a fault in the backward pass alone is here or just above.
    pub last_gradient_failure: Option<String>,
}

/// Trains both engines from `initial` for `updates.len()` steps and compares them.
///
/// `rows` gives the micro-batches of a step, all of one size. Both engines must have the same layout. Fails when an
/// engine does, or when `updates` or a step is empty.
pub fn verify(
    engine: &mut dyn Engine,
    reference: &mut dyn Engine,
    initial: &[f32],
    mut rows: impl FnMut(usize) -> Vec<MicroBatch>,
    updates: &[OptimizerStep],
    tolerances: Tolerances,
) -> Result<Report, EngineError> {
    let layout = reference.layout().clone();
    if *engine.layout() != layout {
        return Err(EngineError::Input("the engines to compare were made for different models".into()));
    }
    let order = computation_order(&layout);
    prepare(engine, initial)?;
    prepare(reference, initial)?;
    let mut steps = Vec::with_capacity(updates.len());
    let mut first = (Vec::new(), Vec::new());
    for (step, update) in updates.iter().enumerate() {
        let batches = rows(step);
        let loss = accumulate(engine, &batches, update)?;
        let reference_loss = accumulate(reference, &batches, update)?;
        if step == 0 {
            let (a, b) = (engine.read(State::Gradients)?, reference.read(State::Gradients)?);
            first = (a.into_owned(), b.into_owned());
        }
        let (a, b) = (engine.finish_step(update)?, reference.finish_step(update)?);
        let loss_error = relative(loss, reference_loss);
        let norm_error = relative(a.grad_norm, b.grad_norm);
        steps.push(StepReport {
            step,
            loss,
            reference_loss,
            loss_error,
            grad_norm: a.grad_norm,
            reference_grad_norm: b.grad_norm,
            applied: a.applied,
            passed: match step {
                0 => loss_error <= tolerances.loss && norm_error <= tolerances.gradient,
                _ => loss_error <= tolerances.later_loss,
            } && a.applied,
        });
    }
    if steps.is_empty() {
        return Err(EngineError::Input("a verification needs at least one step".into()));
    }
    let (a, b) = (engine.read(State::Parameters)?, reference.read(State::Parameters)?);
    let tensors: Vec<_> = (order.into_iter())
        .map(|tensor| {
            let gradient = difference(&first.0, &first.1, None, tensor.range());
            let ranges = determined(tensor);
            let is_left_out = rounded_away(&first.0, &first.1, &ranges, tolerances.gradient);
            let compared = || ranges.iter().cloned().flatten().filter(|&i| !is_left_out(i));
            let parameter_error = difference(&a, &b, None, compared()).relative;
            let change_error = difference(&a, &b, Some(initial), compared()).relative;
            TensorReport {
                name: tensor.name.clone(),
                gradient_error: gradient.relative,
                gradient_cosine: gradient.cosine,
                parameter_error,
                change_error,
                gradient_passed: gradient.relative <= tolerances.gradient,
                parameter_passed: parameter_error <= tolerances.parameter
                    && change_error <= tolerances.change,
                left_out: ranges.iter().cloned().flatten().filter(|&i| is_left_out(i)).count(),
            }
        })
        .collect();
    Ok(conclude(tolerances, steps, tensors))
}

fn conclude(tolerances: Tolerances, steps: Vec<StepReport>, tensors: Vec<TensorReport>) -> Report {
    let name = |t: &TensorReport| t.name.clone();
    let gradient = || tensors.iter().filter(|t| !t.gradient_passed);
    let parameter = tensors.iter().find(|t| !t.parameter_passed);
    let first_failure = gradient().next().or(parameter).map(name);
    let last_gradient_failure = gradient().next_back().map(name);
    let passed = first_failure.is_none() && steps.iter().all(|s| s.passed);
    Report { passed, tolerances, steps, tensors, first_failure, last_gradient_failure }
}

/// Gives an engine the initial parameters and clears the rest of its state.
fn prepare(engine: &mut dyn Engine, initial: &[f32]) -> Result<(), EngineError> {
    engine.write(State::Parameters, initial)?;
    let zeros = vec![0.0; engine.layout().len];
    let states = engine.optimizer_states().iter().map(State::Optimizer);
    for state in [State::Gradients].into_iter().chain(states) {
        let len = state.len_in(engine.layout());
        engine.write(state, &zeros[..len])?;
    }
    Ok(())
}

/// Accumulates a step's micro-batches; returns their mean loss.
fn accumulate(
    engine: &mut dyn Engine,
    batches: &[MicroBatch],
    update: &OptimizerStep,
) -> Result<f64, EngineError> {
    if batches.is_empty() {
        return Err(EngineError::Input("a step to verify has no rows".into()));
    }
    for micro_batch in batches {
        engine.accumulate(micro_batch.batch(), update.loss_scale / batches.len() as f64)?;
    }
    engine.loss()
}

/// The tensors in the order in which the forward pass first reads them.
pub fn computation_order(layout: &ParamLayout) -> Vec<&Tensor> {
    let mut starts = vec![layout.wte.start, layout.wpe.start];
    for b in &layout.blocks {
        let ranges = [
            [&b.ln_1_weight, &b.ln_1_bias, &b.c_attn_weight, &b.c_attn_bias],
            [&b.attn_proj_weight, &b.attn_proj_bias, &b.ln_2_weight, &b.ln_2_bias],
            [&b.c_fc_weight, &b.c_fc_bias, &b.mlp_proj_weight, &b.mlp_proj_bias],
        ];
        starts.extend(ranges.into_iter().flatten().map(|r| r.start));
    }
    starts.extend([layout.ln_f_weight.start, layout.ln_f_bias.start]);
    let find = |start| layout.tensors.iter().find(|t| t.offset == start);
    starts.into_iter().map(|start| find(start).expect("every range of a layout is a tensor's")).collect()
}

/// The elements of a tensor that training determines, as up to two ranges of the flat buffer: all, except the keys'
/// bias.
///
/// It adds the same number to every score of a query, which softmax ignores, so its gradient is zero in exact
/// arithmetic. What rounding leaves of it is enlarged by AdamW, and no two engines agree on it, nor need they.
pub fn determined(tensor: &Tensor) -> [Range<usize>; 2] {
    let Range { start, end } = tensor.range();
    if tensor.name.ends_with(".attn.c_attn.bias") {
        let third = tensor.len() / 3;
        [start..start + third, start + 2 * third..end]
    } else {
        [start..end, end..end]
    }
}

/// Tells elements of a tensor, which has these ranges, whose gradients `a` and `b` say little about the sign of their
/// step; see [`TensorReport::left_out`]. `tolerance` is the bound on the tensor's gradient.
fn rounded_away<'a>(
    a: &'a [f32],
    b: &'a [f32],
    ranges: &[Range<usize>],
    tolerance: f64,
) -> impl Fn(usize) -> bool + use<'a> {
    const SHARE: f64 = 0.1;
    let squares = ranges.iter().cloned().flatten().map(|i| f64::from(b[i]) * f64::from(b[i]));
    let (sum, len) = squares.fold((0.0, 0.0), |(sum, len), square| (sum + square, len + 1.0));
    let allowed = tolerance * (sum / f64::max(len, 1.0)).sqrt();
    move |i| {
        let off = f64::from(a[i] - b[i]).abs();
        off > SHARE * f64::from(b[i]).abs() && off <= allowed
    }
}

struct Difference {
    relative: f64,
    cosine: f64,
}

/// How far `a` is from `b`, as a share of `b`. Both zero is agreement, as the losses of a vocabulary of one token are.
fn relative(a: f64, b: f64) -> f64 {
    let off = (a - b).abs();
    if off == 0.0 { 0.0 } else { off / b.abs() }
}

/// Compares `a` with `b` in some elements, both taken as differences from `origin` if there is one.
fn difference(
    a: &[f32],
    b: &[f32],
    origin: Option<&[f32]>,
    elements: impl IntoIterator<Item = usize>,
) -> Difference {
    let (mut off, mut aa, mut bb, mut ab) = (0.0, 0.0, 0.0, 0.0);
    for i in elements {
        let zero = origin.map_or(0.0, |o| f64::from(o[i]));
        let (x, y) = (f64::from(a[i]) - zero, f64::from(b[i]) - zero);
        off += (x - y) * (x - y);
        aa += x * x;
        bb += y * y;
        ab += x * y;
    }
    // Both zero is agreement; 0 / 0 would not be.
    let relative = if off == 0.0 { 0.0 } else { (off / bb).sqrt() };
    let cosine = if aa == 0.0 && bb == 0.0 { 1.0 } else { ab / (aa * bb).sqrt() };
    Difference { relative, cosine }
}

#[cfg(test)]
mod tests;
