//! AdamW (Loshchilov and Hutter, 2019, algorithm 2), as `torch.optim.AdamW` computes it.

use super::{OptimizerState, OptimizerStep};

/// The hyper-parameters of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay of tensors with two or more dimensions.
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
    /// 1 - lr · weight decay.
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
    /// The constants of a step for tensors under this weight decay.
    pub fn constants(&self, step: &OptimizerStep, weight_decay: f64) -> Constants {
        let [beta1, beta2] = self.betas;
        let correction = |beta: f64| 1.0 - beta.powf(step.t as f64);
        Constants {
            keep: 1.0 - step.lr * weight_decay,
            one_minus_beta1: 1.0 - beta1,
            beta2,
            one_minus_beta2: 1.0 - beta2,
            step_size: step.lr / correction(beta1),
            rsqrt_correction: 1.0 / correction(beta2).sqrt(),
            eps: self.eps,
        }
    }
}
