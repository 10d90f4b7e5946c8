//! Optimizers as rules: how a step changes the parameters, and what a rule keeps from one step to the next.
//!
//! The trainer names a rule and its numbers ([`OptimizerStep`]). An engine holds the rule's states in buffers that its
//! memory plan lists, and a checkpoint stores them under the names that the rule gives them. Trainer, checkpoints and
//! ranks do not know which rule it is.
//!
//! A further rule needs:
//!
//! - here: a variant of [`OptimizerKind`] and of [`Rule`], and the recipe that chooses it in [`Rule::new`];
//! - in the fused engine: its choreography in `fused/optimizer.rs`, a method of the trait `Backend` in
//!   `fused/backend.rs`, which `fused/timed.rs` forwards and the CPU's and CUDA's backends implement with their
//!   kernels;
//! - in the reference engine: the update in `dfdx/optimizer.rs`, called from `dfdx/mod.rs`;
//! - in the cache of measured rates: a name in `session/machine/calibration.rs`;
//! - in `engine/verify/tests.rs` and `tests/engines/golden_dfdx.rs`: the engines with faults, which change AdamW's
//!   numbers.
//!
//! Every match over the rules is exhaustive, so the compiler finds the places that a new variant concerns.

pub mod adamw;

use crate::model::Tensor;
use crate::recipe::OptimizerConfig;
use adamw::AdamW;

/// Which rule updates the parameters: what decides the states that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptimizerKind {
    /// [`AdamW`] for every parameter.
    AdamW,
}

impl OptimizerKind {
    /// The rule that a recipe asks for.
    pub fn new(config: &OptimizerConfig) -> Self {
        Rule::new(config).kind()
    }

    /// The rule with the hyper-parameters of GPT-3 (Brown et al., 2020, appendix B), for measurements of speed.
    pub fn typical(self) -> Rule {
        match self {
            Self::AdamW => Rule::AdamW(AdamW { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 }),
        }
    }

    /// The states of the rule, in the order in which they are allocated, read and stored.
    pub fn states(self) -> &'static [OptimizerState] {
        match self {
            Self::AdamW => &adamw::STATES,
        }
    }
}

/// One number per parameter that a rule keeps from step to step, in fp32 and in the flat layout of the parameters.
#[derive(Debug, Clone, Copy)]
pub struct OptimizerState {
    /// Its name in a checkpoint, PyTorch's where PyTorch has one: no other state of the rule has it.
    pub name: &'static str,
    /// What messages call it, with its article.
    pub label: &'static str,
    /// Whether the rule keeps it for a tensor. For other tensors it is zero, and checkpoints leave it out.
    pub covers: fn(&Tensor) -> bool,
}

impl PartialEq for OptimizerState {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for OptimizerState {}

/// A rule with the hyper-parameters that stay the same from step to step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
}

impl Rule {
    /// The rule that a recipe asks for, with the recipe's hyper-parameters.
    pub fn new(config: &OptimizerConfig) -> Self {
        let OptimizerConfig { betas, eps, weight_decay, .. } = *config;
        Self::AdamW(AdamW { betas, eps, weight_decay })
    }

    /// Which rule it is.
    pub fn kind(&self) -> OptimizerKind {
        match self {
            Self::AdamW(_) => OptimizerKind::AdamW,
        }
    }
}

/// What one optimizer step needs besides the accumulated gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerStep {
    /// The rule.
    pub rule: Rule,
    /// Learning rate.
    pub lr: f64,
    /// Maximal global norm of the gradients, 0 for no clipping.
    pub clip_norm: f64,
    /// Steps applied so far, this one included: the exponent of a bias correction.
    pub t: u64,
    /// The factor by which the accumulated gradients are too large.
    pub loss_scale: f64,
}

impl OptimizerStep {
    /// Step `t` of a recipe's optimizer at the learning rate `lr`.
    pub fn new(config: &OptimizerConfig, lr: f64, t: u64, loss_scale: f64) -> Self {
        Self { rule: Rule::new(config), lr, clip_norm: config.clip_norm, t, loss_scale }
    }

    /// What gradients of this global norm are multiplied by: `clip_norm / (norm + 1e-6)` above `clip_norm`, else 1
    /// (`torch.nn.utils.clip_grad_norm_`).
    pub fn clip_factor(&self, norm: f64) -> f64 {
        if self.clip_norm > 0.0 && norm > self.clip_norm { self.clip_norm / (norm + 1e-6) } else { 1.0 }
    }
}
