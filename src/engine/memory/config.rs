//! What the size of an engine's buffers depends on.

use super::Element;
use crate::engine::dropout::Dropout;
use crate::engine::optimizer::OptimizerKind;
use crate::model::Dims;
use crate::recipe::{Attention, Precision, Residual};
use serde::Serialize;

/// Whether an engine trains or computes forward passes only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Activations of every layer are kept for the backward pass, and the states of this optimizer.
    Train(OptimizerKind),
    /// Layers share one set of activations; there are no gradients and no optimizer.
    Infer,
    /// As [`Infer`](Self::Infer) for one sequence at a time, but each layer keeps the keys and values of as many
    /// sequences as the micro-batch has: text is generated without computing them again.
    Generate,
}

impl Mode {
    /// The optimizer that parameters are trained with, if they are.
    pub fn optimizer(self) -> Option<OptimizerKind> {
        match self {
            Self::Train(kind) => Some(kind),
            Self::Infer | Self::Generate => None,
        }
    }

    /// Whether there is a backward pass.
    pub fn is_training(self) -> bool {
        self.optimizer().is_some()
    }
}

/// What the buffers are laid out for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The CPU, with so many workers that have scratch of their own. Lower precisions are emulated in fp32.
    Cpu {
        /// Workers.
        threads: usize,
    },
    /// A CUDA device. Operands of bf16 and fp16 products are stored in 2 bytes.
    Cuda,
}

/// How activations are stored, and which of them training drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Activations {
    /// Whether training on a CUDA device keeps the outputs of each block's LayerNorms and GELU, and takes the logits in
    /// large chunks. Otherwise the backward pass computes the outputs again, which takes less memory and more time.
    pub kept: bool,
    /// How a CUDA device stores the residual stream and its gradient.
    pub residual: Residual,
    /// What else the backward pass computes again.
    pub recompute: Recompute,
    /// Dropout in passes that train, if any. Buffers depend on whether there is any.
    pub dropout: Option<Dropout>,
}

/// What the backward pass computes again instead of finding it kept, on any device; Chen et al., 2016, "Training deep
/// nets with sublinear memory cost". The last block's activations are still there when the backward pass begins, so it
/// computes nothing of that block again. No result depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Nothing but the outputs of LayerNorm and GELU.
    #[default]
    None,
    /// The MLP's hidden layer, which all blocks write to one place.
    Mlp,
    /// Everything inside a block, from its input: all blocks write to one place.
    Block,
}

impl Recompute {
    /// From the quickest to the one that takes the least memory.
    pub const ALL: [Self; 3] = [Self::None, Self::Mlp, Self::Block];

    /// The word for it in a recipe.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mlp => "mlp",
            Self::Block => "block",
        }
    }
}

/// What the size of the buffers depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryConfig {
    /// The model.
    pub dims: Dims,
    /// Sequences per forward pass, B.
    pub micro_batch: usize,
    /// Precision of matrix-product operands.
    pub precision: Precision,
    /// Attention backend.
    pub attention: Attention,
    /// Which device they are for.
    pub target: Target,
    /// Training or inference.
    pub mode: Mode,
    /// How activations are stored.
    pub activations: Activations,
}

impl MemoryConfig {
    /// Tokens of a pass at most.
    pub fn tokens(&self) -> usize {
        match self.mode {
            // a whole sequence, or one token of each
            Mode::Generate => self.dims.block_size.max(self.micro_batch),
            Mode::Train(_) | Mode::Infer => self.micro_batch * self.dims.block_size,
        }
    }

    /// Sequences whose keys and values are kept until the next pass of another kind. Training keeps those of its batch
    /// for the backward pass, so that generating text between two steps takes no further memory; where it computes
    /// whole blocks again, it keeps none.
    pub fn sequences(&self) -> usize {
        match self.mode {
            Mode::Infer => 0,
            Mode::Train(_) if self.recompute() == Recompute::Block => 0,
            Mode::Train(_) | Mode::Generate => self.micro_batch,
        }
    }

    /// CPU threads that compute; 1 where a CUDA device does.
    pub fn threads(&self) -> usize {
        if let Target::Cpu { threads } = self.target { threads } else { 1 }
    }

    /// How operands of matrix products are stored.
    pub fn operand(&self) -> Element {
        match (self.target, self.precision) {
            (Target::Cuda, Precision::Bf16 | Precision::Fp16) => Element::Half,
            _ => Element::F32,
        }
    }

    /// Whether there is memory to keep the outputs of each block's LayerNorms and GELU for the backward pass. It then
    /// takes them as the forward pass computes them, as far as [`recompute`](Self::recompute) leaves them there.
    pub fn keeps_outputs(&self) -> bool {
        self.activations.kept && self.target == Target::Cuda && self.mode.is_training()
    }

    /// What the backward pass computes again; nothing where there is no backward pass.
    pub fn recompute(&self) -> Recompute {
        if self.mode.is_training() { self.activations.recompute } else { Recompute::None }
    }

    /// This configuration under another choice of what is computed again.
    #[must_use]
    pub fn recomputing(self, recompute: Recompute) -> Self {
        Self { activations: Activations { recompute, ..self.activations }, ..self }
    }

    /// How the residual stream and its gradient are stored.
    pub fn residual(&self) -> Element {
        match (self.target, self.activations.residual) {
            (Target::Cuda, Residual::Bf16) => self.operand(),
            _ => Element::F32,
        }
    }

    /// Whether the residual stream is stored without the biases of the projections that were added to it. A matrix
    /// product alone can then add to it, and what reads the stream adds the biases' sum. With dropout the biases are
    /// dropped along with the products.
    pub fn residual_lacks_biases(&self) -> bool {
        self.target == Target::Cuda && self.residual() == Element::F32 && self.dropout().is_none()
    }

    /// Whether the gradient of the residual stream is stored in halves: rounded to an operand of matrix products, and
    /// what is left. That takes fewer bytes than fp32 and a rounded copy.
    pub fn halves_gradient(&self) -> bool {
        self.residual_lacks_biases() && self.precision == Precision::Bf16 && self.mode.is_training()
    }

    /// Which activations are left out; none where there is no backward pass.
    pub fn dropout(&self) -> Option<Dropout> {
        self.activations.dropout.filter(|_| self.mode.is_training())
    }

    /// Whether operands of matrix products are rounded copies of what is computed in fp32; tf32 on a CUDA device rounds
    /// inside the product.
    pub fn rounds_operands(&self) -> bool {
        match self.precision {
            Precision::Fp32 => false,
            Precision::Tf32 => self.target != Target::Cuda,
            Precision::Bf16 | Precision::Fp16 => true,
        }
    }

    /// Roughly what a step needs, in bytes, for sizes of any magnitude.
    pub(super) fn about_bytes(&self) -> f64 {
        let Dims { n_layer, n_head, n_embd, block_size, padded_vocab, .. } = self.dims;
        let [l, h, c, t, v] = [n_layer, n_head, n_embd, block_size, padded_vocab].map(|size| size as f64);
        let n = self.micro_batch as f64 * t;
        let parameters = v * c + t * c + 12.0 * l * c * c;
        let naive = if self.attention == Attention::Naive { n * h * t * l } else { n * h * l };
        let workers = self.threads() as f64 * (t * t + 9.0 * t * c / h);
        // beside the optimizer's states: the parameters, their gradients and the low-precision copy
        let buffers = 3.0 + self.mode.optimizer().map_or(0, |kind| kind.states().len()) as f64;
        4.0 * (buffers * parameters + (10.0 * l + 8.0) * n * c + naive + workers + 64.0 * v)
    }
}
