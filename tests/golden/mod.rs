//! Holds an engine against what PyTorch computed: logits, loss, every gradient, and 60 optimizer steps.
//!
//! `make.py` in this folder made the files and says what is in them. [`check`] is all that a test of an engine needs.
//! [`muon`] has the trajectories of another rule on the same models, [`groups`] those of AdamW with settings of their
//! own for embeddings, [`dropout`] those of a model of which something is left out.

pub(crate) mod dropout;
pub(crate) mod groups;
pub(crate) mod muon;

use runner::engine::optimizer::adamw::{AdamW, EXP_AVG, EXP_AVG_SQ};
use runner::engine::optimizer::{OptimizerStep, Rule};
use runner::engine::verify::determined;
use runner::engine::{Batch, Engine, EngineError, State};
use runner::model::{Dims, ParamLayout, Tensor};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// Largest absolute difference of a logit.
const LOGITS: f64 = 1e-4;
/// Relative difference of the first batch's loss.
const LOSS: f64 = 1e-5;
/// ‖a − b‖ / ‖b‖ of a tensor's gradient.
const GRADIENT: f64 = 1e-4;
/// Relative differences of the loss and of the gradient norm at each step of the trajectory.
const TRAJECTORY: [f64; 2] = [1e-4, 1e-3];
/// ‖a − b‖ / ‖b‖ of a tensor after the last step, as far as training determines it.
const FINAL: f64 = 1e-3;

/// One configuration with everything that PyTorch said about it.
#[derive(Clone)]
pub(crate) struct Golden {
    /// The dimensions, padded vocabulary included.
    pub(crate) dims: Dims,
    info: Info,
    /// The rule of the updates.
    rule: Rule,
    tensors: HashMap<String, Vec<f32>>,
    inputs: Vec<u32>,
    targets: Vec<u32>,
}

#[derive(Clone, Deserialize)]
struct Info {
    dims: ModelInfo,
    train: TrainInfo,
    first_loss: f64,
    trajectory: Vec<StepInfo>,
}

#[derive(Clone, Deserialize)]
struct ModelInfo {
    n_layer: usize,
    n_head: usize,
    n_embd: usize,
    block_size: usize,
    vocab_size: usize,
    vocab_multiple: usize,
    rows: usize,
    sequences: usize,
}

#[derive(Clone, Deserialize)]
struct TrainInfo {
    micro_steps: usize,
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
    clip_norm: f64,
}

#[derive(Clone, Deserialize)]
struct StepInfo {
    loss: f64,
    lr: f64,
    grad_norm: f64,
}

impl Golden {
    /// Reads `NAME.json` and `NAME.safetensors`.
    pub(crate) fn load(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let read = |extension: &str| {
            let path = folder.join(format!("{name}.{extension}"));
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        let info: Info = serde_json::from_slice(&read("json")).expect("golden JSON parses");
        let bytes = read("safetensors");
        let file = SafeTensors::deserialize(&bytes).expect("golden tensors parse");
        let tensors: HashMap<_, _> = file
            .tensors()
            .into_iter()
            .map(|(name, view)| (name, floats(view.dtype(), view.data())))
            .collect();
        let d = &info.dims;
        let dims = Dims {
            n_layer: d.n_layer,
            n_head: d.n_head,
            n_embd: d.n_embd,
            block_size: d.block_size,
            vocab_size: d.vocab_size,
            padded_vocab: d.vocab_size.next_multiple_of(d.vocab_multiple),
        };
        let sequences = tensors["tokens"].chunks(dims.block_size + 1);
        let ids = |row: &[f32]| row.iter().map(|&id| id as u32).collect::<Vec<_>>();
        let inputs = sequences.clone().flat_map(|row| ids(&row[..dims.block_size])).collect();
        let targets = sequences.flat_map(|row| ids(&row[1..])).collect();
        let TrainInfo { betas, eps, weight_decay, .. } = info.train;
        let rule = Rule::AdamW(AdamW::new(betas, eps, weight_decay));
        Self { dims, info, rule, tensors, inputs, targets }
    }

    /// The micro-batch that starts at a sequence.
    fn batch(&self, first: usize) -> Batch<'_> {
        let (rows, cols) = (self.info.dims.rows, self.dims.block_size);
        let first_row = first as u64;
        let first = first % self.info.dims.sequences;
        assert!(first + rows <= self.info.dims.sequences, "micro-batches do not wrap around");
        let tokens = first * cols..(first + rows) * cols;
        Batch { inputs: &self.inputs[tokens.clone()], targets: &self.targets[tokens], rows, cols, first_row }
    }

    fn update(&self, step: usize) -> OptimizerStep {
        let t = &self.info.train;
        OptimizerStep {
            rule: self.rule,
            lr: self.info.trajectory[step].lr,
            clip_norm: t.clip_norm,
            t: step as u64 + 1,
            loss_scale: 1.0,
        }
    }

    /// The stored tensors of one kind as a flat buffer, padding zero.
    fn flat(&self, kind: &str, layout: &ParamLayout) -> Vec<f32> {
        let mut flat = vec![0.0; layout.len];
        for tensor in &layout.tensors {
            let values = &self.tensors[&format!("{kind}.{}", tensor.name)];
            flat[tensor.offset..tensor.offset + values.len()].copy_from_slice(values);
        }
        flat
    }
}

fn floats(dtype: Dtype, data: &[u8]) -> Vec<f32> {
    let words = data.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
    match dtype {
        Dtype::F32 => words.map(f32::from_le_bytes).collect(),
        Dtype::I32 => words.map(|b| i32::from_le_bytes(b) as f32).collect(),
        Dtype::F16 => data.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        other => panic!("make.py stores no {other:?}"),
    }
}

/// Panics, naming what is off and by how much, unless a new engine of `golden.dims` computes what PyTorch did.
pub(crate) fn check(engine: &mut dyn Engine, golden: &Golden) {
    if let Err(message) = compare(engine, golden) {
        panic!("{message}");
    }
}

/// As [`check`], returning the message.
pub(crate) fn compare(engine: &mut dyn Engine, golden: &Golden) -> Result<(), String> {
    let layout = engine.layout().clone();
    if layout != ParamLayout::new(&golden.dims) {
        return Err("the engine was not made for this configuration".into());
    }
    let failed = |e: EngineError| format!("the engine failed: {e}");
    engine.write(State::Parameters, &golden.flat("params", &layout)).map_err(failed)?;
    forward_and_backward(engine, golden, &layout)?;
    trajectory(engine, golden, TRAJECTORY)?;
    let read = engine.read(State::Parameters).map_err(failed)?;
    tensors("after the last step", &read, &golden.flat("final", &layout), &layout, determined, FINAL)?;
    padding_is_zero("parameters", &read, &golden.dims, &layout)
}

fn forward_and_backward(
    engine: &mut dyn Engine,
    golden: &Golden,
    layout: &ParamLayout,
) -> Result<(), String> {
    let failed = |e: EngineError| format!("the engine failed: {e}");
    let (cols, vocab) = (golden.dims.block_size, golden.dims.vocab_size);
    let batch = golden.batch(0);
    for (row, expected) in golden.tensors["logits"].chunks(cols * vocab).enumerate() {
        let sequence = &batch.inputs[row * cols..(row + 1) * cols];
        let logits = engine.logits(sequence, false).map_err(failed)?;
        logits_match(&format!("logits of sequence {row}"), &logits, expected)?;
        let last = engine.logits(sequence, true).map_err(failed)?;
        logits_match(&format!("last logits of sequence {row}"), &last, &expected[(cols - 1) * vocab..])?;
        // A prefix's logits are the sequence's: nothing looks ahead, and short sequences are allowed.
        let prefix = engine.logits(&sequence[..cols / 2], false).map_err(failed)?;
        logits_match(&format!("logits of a prefix of {row}"), &prefix, &expected[..cols / 2 * vocab])?;
    }
    let evaluated = engine.evaluate(batch).map_err(failed)?;
    relative("the evaluated loss", evaluated, golden.info.first_loss, LOSS)?;
    engine.accumulate(batch, 1.0).map_err(failed)?;
    relative("the loss", engine.loss().map_err(failed)?, golden.info.first_loss, LOSS)?;
    let expected = golden.flat("grads", layout);
    let gradients = engine.read(State::Gradients).map_err(failed)?.into_owned();
    tensors("gradient", &gradients, &expected, layout, whole, GRADIENT)?;
    padding_is_zero("gradients", &gradients, &golden.dims, layout)?;
    // Weights 1 and 2 must add up to 3 times the gradient.
    engine.accumulate(batch, 2.0).map_err(failed)?;
    let tripled: Vec<_> = expected.iter().map(|g| 3.0 * g).collect();
    let gradients = engine.read(State::Gradients).map_err(failed)?;
    tensors("accumulated gradient", &gradients, &tripled, layout, whole, GRADIENT)?;
    start_over(engine, golden, layout).map_err(failed)
}

/// Back to the initial state: an update clears gradients and losses, the rest is written anew.
fn start_over(engine: &mut dyn Engine, golden: &Golden, layout: &ParamLayout) -> Result<(), EngineError> {
    engine.finish_step(&golden.update(0))?;
    let zeros = vec![0.0; layout.len];
    engine.write(State::Optimizer(&EXP_AVG), &zeros)?;
    engine.write(State::Optimizer(&EXP_AVG_SQ), &zeros)?;
    engine.write(State::Parameters, &golden.flat("params", layout))
}

fn trajectory(engine: &mut dyn Engine, golden: &Golden, [of_loss, of_norm]: [f64; 2]) -> Result<(), String> {
    let (rows, micro_steps) = (golden.info.dims.rows, golden.info.train.micro_steps);
    for (step, expected) in golden.info.trajectory.iter().enumerate() {
        let failed = |e: EngineError| format!("step {step}: the engine failed: {e}");
        for micro in 0..micro_steps {
            let batch = golden.batch((step * micro_steps + micro) * rows);
            engine.accumulate(batch, 1.0 / micro_steps as f64).map_err(failed)?;
        }
        let done = engine.finish_step(&golden.update(step)).map_err(failed)?;
        relative(&format!("step {step}: the loss"), done.loss, expected.loss, of_loss)?;
        let what = format!("step {step}: the gradient norm");
        relative(&what, done.grad_norm, expected.grad_norm, of_norm)?;
        if !done.applied {
            return Err(format!("step {step}: the update was skipped"));
        }
    }
    Ok(())
}

fn logits_match(what: &str, ours: &[f32], theirs: &[f32]) -> Result<(), String> {
    if ours.len() != theirs.len() {
        return Err(format!("{what}: {} values instead of {}", ours.len(), theirs.len()));
    }
    let off = |i: &usize| f64::from((ours[*i] - theirs[*i]).abs());
    match (0..ours.len()).find(|i| !within(off(i), LOGITS)) {
        None => Ok(()),
        Some(i) => Err(format!("{what}: element {i} is {} instead of {}", ours[i], theirs[i])),
    }
}

/// False for a NaN.
fn within(error: f64, bound: f64) -> bool {
    error <= bound
}

fn relative(what: &str, ours: f64, theirs: f64, bound: f64) -> Result<(), String> {
    let error = (ours - theirs).abs() / theirs.abs();
    if error <= bound {
        Ok(())
    } else {
        Err(format!("{what} is {ours} instead of {theirs}: off by {error:.1e}"))
    }
}

fn whole(tensor: &Tensor) -> [Range<usize>; 2] {
    let range = tensor.range();
    [range.clone(), range.end..range.end]
}

/// Compares the elements of every tensor that `part` selects.
fn tensors(
    what: &str,
    ours: &[f32],
    theirs: &[f32],
    layout: &ParamLayout,
    part: fn(&Tensor) -> [Range<usize>; 2],
    bound: f64,
) -> Result<(), String> {
    for tensor in &layout.tensors {
        let pairs = part(tensor).into_iter().flatten().map(|i| (ours[i], theirs[i]));
        near(what, &tensor.name, pairs, bound)?;
    }
    Ok(())
}

/// ‖a − b‖ / ‖b‖ of a tensor's elements is within a bound.
fn near(what: &str, tensor: &str, pairs: impl Iterator<Item = (f32, f32)>, bound: f64) -> Result<(), String> {
    let (mut difference, mut norm) = (0.0, 0.0);
    for (ours, theirs) in pairs {
        difference += f64::from(ours - theirs).powi(2);
        norm += f64::from(theirs).powi(2);
    }
    let error = (difference / norm).sqrt();
    if within(error, bound) {
        return Ok(());
    }
    Err(format!("{what}: {tensor} is off by {error:.1e} of its norm, allowed {bound:.0e}"))
}

/// Alignment gaps and padded rows of the embedding stay zero through every step.
fn padding_is_zero(what: &str, flat: &[f32], dims: &Dims, layout: &ParamLayout) -> Result<(), String> {
    let mut used = vec![false; layout.len];
    for tensor in &layout.tensors {
        used[tensor.range()].fill(true);
    }
    used[dims.vocab_size * dims.n_embd..layout.wte.end].fill(false);
    match (0..layout.len).find(|&i| !used[i] && flat[i] != 0.0) {
        None => Ok(()),
        Some(i) => Err(format!("{what}: padding element {i} is {} instead of 0", flat[i])),
    }
}
