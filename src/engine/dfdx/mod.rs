//! The reference engine: GPT-2 in plain `dfdx` tensors and autograd.
//!
//! It exists to be read and believed: `model` defines the network, `optimizer` the update, and this file only
//! moves numbers between them and the flat buffers of [`ParamLayout`], which stay on the host. It is the eager rung
//! of the speed ladder and the oracle of `runner verify`. The crate offers no bf16 and no TF32, so it computes in
//! fp32.

pub mod memory;
mod model;
mod muon;
mod optimizer;

use super::dropout::Dropout;
use super::optimizer::adamw::Group;
use super::optimizer::{OptimizerKind, OptimizerState, OptimizerStep, Rule};
use super::{Applied, Batch, Engine, EngineError, State, TokenLosses, is_greedy, no_update};
use crate::model::{Dims, ParamLayout};
use crate::recipe::Precision;
use dfdx::tensor::{NoneTape, OwnedTape};
use dfdx::tensor_ops::{Backward, Device, MeanTo};
use model::{Gpt2, Masks};
use std::borrow::Cow;
use std::fmt::Display;

/// The reference engine on the CPU.
pub type CpuEngine = DfdxEngine<dfdx::tensor::Cpu>;

/// The reference engine on dfdx's own CUDA device (feature `dfdx-cuda`, which needs nvcc and nvidia-smi to build).
#[cfg(feature = "dfdx-cuda")]
pub type CudaEngine = DfdxEngine<dfdx::tensor::Cuda>;

/// Refuses every precision but fp32, with the reason. dfdx has an fp16, but a reference that rounds would be none.
pub fn check_precision(precision: Precision) -> Result<(), EngineError> {
    let reason = match precision {
        Precision::Fp32 => return Ok(()),
        Precision::Tf32 => "its crate has no tf32",
        Precision::Bf16 => "its crate has no bf16",
        Precision::Fp16 => "a reference must not round to fp16",
    };
    Err(EngineError::Unsupported(format!(
        "the dfdx engine computes in fp32 only, {reason}: set compute.precision = \"fp32\" or compute.engine = \
         \"fused\""
    )))
}

/// A GPT-2 on a dfdx device, with its training state in flat host buffers.
///
/// Attention is always materialized: memory for the tape grows with rows x n_head x cols² x n_layer, see [`memory`].
pub struct DfdxEngine<D: Device<f32>> {
    dims: Dims,
    layout: ParamLayout,
    device: D,
    model: Gpt2<D>,
    parameters: Vec<f32>,
    gradients: Vec<f32>,
    /// The optimizer's states, in its order.
    states: Vec<Vec<f32>>,
    optimizer: OptimizerKind,
    /// Which activations passes that train leave out.
    dropout: Option<Dropout>,
    /// Mean losses of the micro-batches since the last update.
    losses: Vec<f64>,
    applied: Option<Applied>,
}

impl<D: Device<f32>> DfdxEngine<D> {
    /// An engine of all-zero parameters on the default device of its kind.
    ///
    /// Fails when `n_head` does not divide `n_embd`, a dimension is zero, or memory is short.
    pub fn new(dims: Dims, optimizer: OptimizerKind) -> Result<Self, EngineError> {
        Self::on(D::default(), dims, optimizer)
    }

    /// An engine of all-zero parameters on this device. Errors: those of [`new`](Self::new).
    pub fn on(device: D, dims: Dims, optimizer: OptimizerKind) -> Result<Self, EngineError> {
        check_dims(&dims)?;
        let layout = ParamLayout::new(&dims);
        let parameters = zeros("parameters", layout.len)?;
        let model = Gpt2::load(&device, &dims, &layout, &parameters).map_err(failed)?;
        Ok(Self {
            gradients: zeros("gradients", layout.len)?,
            states: optimizer
                .states()
                .iter()
                .map(|s| zeros(s.label, layout.len))
                .collect::<Result<_, _>>()?,
            optimizer,
            dropout: None,
            dims,
            layout,
            device,
            model,
            parameters,
            losses: Vec::new(),
            applied: None,
        })
    }

    /// This engine with dropout in passes that train.
    #[must_use]
    pub fn with_dropout(self, dropout: Option<Dropout>) -> Self {
        Self { dropout, ..self }
    }

    fn buffer(&mut self, state: State) -> Result<&mut Vec<f32>, EngineError> {
        let missing =
            || EngineError::Unsupported(format!("the optimizer of this engine does not keep {state}"));
        match state {
            State::Parameters => Ok(&mut self.parameters),
            State::Gradients => Ok(&mut self.gradients),
            State::Optimizer(state) => {
                let index = self.optimizer.states().iter().position(|one| one == state);
                index.and_then(|index| self.states.get_mut(index)).ok_or_else(missing)
            }
        }
    }

    fn reload(&mut self) -> Result<(), EngineError> {
        self.model = Gpt2::load(&self.device, &self.dims, &self.layout, &self.parameters).map_err(failed)?;
        Ok(())
    }

    fn end_step(&mut self, applied: Applied) {
        self.gradients.fill(0.0);
        self.losses.clear();
        self.applied = Some(applied);
    }

    fn check_batch(&self, batch: &Batch) -> Result<(), EngineError> {
        let n = batch.rows * batch.cols;
        if n == 0 || batch.inputs.len() != n || batch.targets.len() != n {
            return Err(EngineError::Input(format!(
                "{} inputs and {} targets do not fill a batch of {} x {} tokens",
                batch.inputs.len(),
                batch.targets.len(),
                batch.rows,
                batch.cols
            )));
        }
        self.check_tokens(batch.inputs, batch.cols)?;
        self.check_tokens(batch.targets, batch.cols)
    }

    fn check_tokens(&self, tokens: &[u32], cols: usize) -> Result<(), EngineError> {
        if cols > self.dims.block_size {
            return Err(EngineError::Input(format!(
                "a sequence of {cols} tokens is longer than block_size = {}",
                self.dims.block_size
            )));
        }
        match tokens.iter().find(|&&id| id as usize >= self.dims.vocab_size) {
            None => Ok(()),
            Some(id) => Err(EngineError::Input(format!(
                "token {id} is outside the vocabulary of {} ids",
                self.dims.vocab_size
            ))),
        }
    }
}

#[cfg(feature = "dfdx-cuda")]
impl CudaEngine {
    /// An engine of all-zero parameters on the CUDA device with this ordinal.
    pub fn cuda(ordinal: usize, dims: Dims, optimizer: OptimizerKind) -> Result<Self, EngineError> {
        // dfdx seeds its random numbers with the second argument; nothing here draws any.
        let device = dfdx::tensor::Cuda::try_build(ordinal, 0).map_err(failed)?;
        Self::on(device, dims, optimizer)
    }
}

impl<D: Device<f32>> Engine for DfdxEngine<D> {
    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn optimizer_states(&self) -> &'static [OptimizerState] {
        self.optimizer.states()
    }

    fn read(&mut self, state: State) -> Result<Cow<'_, [f32]>, EngineError> {
        let parts = state.parts(&self.layout);
        let whole = &*self.buffer(state)?;
        Ok(match &parts[..] {
            [part] => Cow::Borrowed(&whole[part.clone()]),
            // the engine keeps an element for every parameter, whatever the state covers
            parts => Cow::Owned(parts.iter().flat_map(|part| &whole[part.clone()]).copied().collect()),
        })
    }

    fn write(&mut self, state: State, values: &[f32]) -> Result<(), EngineError> {
        let len = state.len_in(&self.layout);
        if values.len() != len {
            let message = format!("{} values do not fill a buffer of {len}", values.len());
            return Err(EngineError::Input(message));
        }
        let mut rest = values;
        for part in state.parts(&self.layout) {
            let (these, after) = rest.split_at(part.len());
            self.buffer(state)?[part].copy_from_slice(these);
            rest = after;
        }
        if state == State::Parameters { self.reload() } else { Ok(()) }
    }

    fn accumulate(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        self.check_batch(&batch)?;
        let masks = self.dropout.map(|dropout| Masks { dropout, first_row: batch.first_row });
        let (losses, gradients) = (|| {
            let hidden =
                self.model.hidden::<OwnedTape<f32, D>>(batch.inputs, batch.rows, batch.cols, masks)?;
            let losses = self.model.cross_entropy(self.model.head(hidden)?, batch.targets)?;
            let per_token = losses.as_vec();
            Ok::<_, D::Err>((per_token, losses.try_mean()?.try_backward()?))
        })()
        .map_err(failed)?;
        self.model.collect(&gradients, weight as f32, &mut self.gradients);
        self.losses.push(mean(&losses));
        Ok(())
    }

    fn loss(&mut self) -> Result<f64, EngineError> {
        Ok(self.losses.iter().sum::<f64>() / self.losses.len() as f64)
    }

    fn update(&mut self, step: &OptimizerStep) -> Result<(), EngineError> {
        assert!(self.optimizer == step.rule.kind(), "the engine has no states for {:?}", step.rule);
        let (scale, grad_norm) = optimizer::scale_and_norm(&self.gradients, step);
        let loss = self.loss()?;
        let applied = grad_norm.is_finite() && !self.losses.iter().any(|loss| !loss.is_finite());
        if applied {
            let [first, second, further @ ..] = &mut self.states[..] else { panic!("AdamW has two moments") };
            for tensor in &self.layout.tensors {
                let (range, shape) = (tensor.range(), &tensor.shape[..]);
                let (parameters, gradients) =
                    (&mut self.parameters[range.clone()], &self.gradients[range.clone()]);
                if let (Rule::Muon(rule), true) = (&step.rule, tensor.hidden) {
                    let momentum = &mut further[0][range];
                    let matrix = muon::Matrix { parameters, gradients, momentum, shape };
                    muon::muon(&self.device, matrix, rule, step, scale).map_err(failed)?;
                    continue;
                }
                let (first, second) = (&mut first[range.clone()], &mut second[range]);
                let tensors = optimizer::Tensors { parameters, gradients, first, second };
                let rule = step.rule.adamw();
                let group = rule.settings(Group::of(tensor));
                optimizer::adamw(tensors, rule, step, group, scale);
            }
            self.reload()?;
        }
        self.end_step(Applied { loss, grad_norm, applied });
        Ok(())
    }

    fn discard(&mut self) -> Result<(), EngineError> {
        let loss = self.loss()?;
        self.end_step(Applied { loss, grad_norm: f64::NAN, applied: false });
        Ok(())
    }

    fn applied(&mut self) -> Result<Applied, EngineError> {
        self.applied.ok_or_else(no_update)
    }

    fn evaluate(&mut self, batch: Batch) -> Result<f64, EngineError> {
        self.check_batch(&batch)?;
        let losses = (|| {
            let hidden = self.model.hidden::<NoneTape>(batch.inputs, batch.rows, batch.cols, None)?;
            self.model.cross_entropy(self.model.head(hidden)?, batch.targets)
        })()
        .map_err(failed)?;
        Ok(mean(&losses.as_vec()))
    }

    fn token_losses(&mut self, batch: Batch) -> Result<Vec<f32>, EngineError> {
        let all: Vec<usize> = (0..batch.inputs.len()).collect();
        Ok(self.losses_at(batch, &all, false)?.losses)
    }

    fn losses_at(&mut self, batch: Batch, at: &[usize], greedy: bool) -> Result<TokenLosses, EngineError> {
        self.check_batch(&batch)?;
        let (logits, losses) = (|| {
            let hidden = self.model.hidden::<NoneTape>(batch.inputs, batch.rows, batch.cols, None)?;
            let logits = self.model.head(hidden)?;
            let asked_of = if greedy { logits.as_vec() } else { Vec::new() };
            Ok::<_, D::Err>((asked_of, self.model.cross_entropy(logits, batch.targets)?))
        })()
        .map_err(failed)?;
        let width = self.dims.vocab_size;
        let is_greedy = |&at: &usize| is_greedy(&logits[at * width..][..width], batch.targets[at]);
        let losses = losses.as_vec();
        Ok(TokenLosses {
            losses: at.iter().map(|&at| losses[at]).collect(),
            is_greedy: at.iter().filter(|_| greedy).map(is_greedy).collect(),
            computed: losses.len(),
        })
    }

    fn logits(&mut self, tokens: &[u32], last_only: bool) -> Result<Vec<f32>, EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::Input("logits need at least one token".into()));
        }
        self.check_tokens(tokens, tokens.len())?;
        let first = if last_only { tokens.len() - 1 } else { 0 };
        let logits = (|| {
            let hidden = self.model.hidden::<NoneTape>(tokens, 1, tokens.len(), None)?;
            let rows = hidden.try_slice((first..tokens.len(), 0..self.dims.n_embd))?;
            self.model.head(rows)
        })()
        .map_err(failed)?;
        Ok(logits.as_vec())
    }
}

fn check_dims(dims: &Dims) -> Result<(), EngineError> {
    let Dims { n_layer, n_head, n_embd, block_size, vocab_size, padded_vocab } = *dims;
    if [n_layer, n_head, n_embd, block_size, vocab_size].contains(&0)
        || n_embd % n_head != 0
        || padded_vocab < vocab_size
    {
        return Err(EngineError::Unsupported(format!(
            "{dims:?} is no GPT-2: dimensions must be positive, n_head must divide n_embd, and \
             padded_vocab cannot be less than vocab_size"
        )));
    }
    Ok(())
}

fn zeros(what: &'static str, len: usize) -> Result<Vec<f32>, EngineError> {
    let mut buffer = Vec::new();
    let bytes = len.saturating_mul(size_of::<f32>());
    buffer.try_reserve_exact(len).map_err(|_| EngineError::Allocation { what, bytes })?;
    buffer.resize(len, 0.0);
    Ok(buffer)
}

/// The mean, summed in f64: a plain f32 sum over a large batch would lose digits that `train.csv` shows.
fn mean(losses: &[f32]) -> f64 {
    losses.iter().copied().map(f64::from).sum::<f64>() / losses.len() as f64
}

fn failed(error: impl Display) -> EngineError {
    EngineError::Device(format!("dfdx: {error}"))
}

#[cfg(test)]
mod tests;
