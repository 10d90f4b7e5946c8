//! AdamW (Loshchilov and Hutter, 2019, algorithm 2), as `torch.optim.AdamW` computes it.

use super::{OptimizerState, OptimizerStep};
use crate::model::Tensor;

/// The hyper-parameters of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of tensors with two or more dimensions.
    pub weight_decay: f64,
    /// The learning rate of embeddings over that of everything else.
    pub embedding_lr_factor: f64,
    /// Decoupled weight decay of embeddings, if it is another one.
    pub weight_decay_embeddings: Option<f64>,
}

/// The tensors that settings are made for: PyTorch's parameter groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Token and position embedding; the former is the head, too.
    Embeddings,
    /// The matrices of the blocks.
    Matrices,
    /// Biases and LayerNorms, which do not decay.
    Vectors,
}

impl Group {
    /// The group of a tensor.
    pub fn of(tensor: &Tensor) -> Self {
        match (tensor.decayed, tensor.hidden) {
            (_, true) => Self::Matrices,
            (true, false) => Self::Embeddings,
            (false, false) => Self::Vectors,
        }
    }
}

/// What AdamW has for one group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The factor on the step's learning rate.
    pub lr_factor: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

/// The running mean of the gradients.
pub const EXP_AVG: OptimizerState =
    OptimizerState { name: "exp_avg", label: "the first moment", covers: |_| true };

/// The running mean of the squared gradients.
pub const EXP_AVG_SQ: OptimizerState =
    OptimizerState { name: "exp_avg_sq", label: "the second moment", covers: |_| true };

/// Both moments.
pub(super) const STATES: [OptimizerState; 2] = [EXP_AVG, EXP_AVG_SQ];

/// What AdamW's kernels compute with in one step, before it is rounded to fp32:
///
/// ```text
/// m += (g - m) · one_minus_beta1
/// v  = v · beta2 + g² · one_minus_beta2
/// p  = p · keep - step_size · m / (√v · rsqrt_correction + eps)
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// 1 - lr · weight decay, with the lr of the group.
    pub keep: f64,
    /// 1 - β₁.
    pub one_minus_beta1: f64,
    /// β₂.
    pub beta2: f64,
    /// 1 - β₂.
    pub one_minus_beta2: f64,
    /// lr / (1 - β₁ᵗ).
    pub step_size: f64,
    /// 1 / √(1 - β₂ᵗ).
    pub rsqrt_correction: f64,
    /// ε.
    pub eps: f64,
}

impl AdamW {
    /// AdamW with one learning rate, and one weight decay for all tensors of two or more dimensions.
    pub const fn new(betas: [f64; 2], eps: f64, weight_decay: f64) -> Self {
        Self { betas, eps, weight_decay, embedding_lr_factor: 1.0, weight_decay_embeddings: None }
    }

    /// The settings of a group.
    pub fn settings(&self, group: Group) -> Settings {
        match group {
            Group::Embeddings => Settings {
                lr_factor: self.embedding_lr_factor,
                weight_decay: self.weight_decay_embeddings.unwrap_or(self.weight_decay),
            },
            Group::Matrices => Settings { lr_factor: 1.0, weight_decay: self.weight_decay },
            Group::Vectors => Settings { lr_factor: 1.0, weight_decay: 0.0 },
        }
    }

    /// The constants of a step for tensors under these settings.
    pub fn constants(&self, step: &OptimizerStep, settings: Settings) -> Constants {
        let ([beta1, beta2], lr) = (self.betas, step.lr * settings.lr_factor);
        let correction = |beta: f64| 1.0 - libm::pow(beta, step.t as f64);
        Constants {
            keep: 1.0 - lr * settings.weight_decay,
            one_minus_beta1: 1.0 - beta1,
            beta2,
            one_minus_beta2: 1.0 - beta2,
            step_size: lr / correction(beta1),
            rsqrt_correction: 1.0 / correction(beta2).sqrt(),
            eps: self.eps,
        }
    }
}
