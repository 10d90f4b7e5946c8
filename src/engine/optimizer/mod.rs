//! Optimizers as rules: how a step changes the parameters, and what a rule keeps from one step to the next.
//!
//! The trainer names a rule and its numbers ([`OptimizerStep`]). An engine holds the rule's states in buffers that its
//! memory plan lists, and a checkpoint stores them under the names that the rule gives them. Trainer, checkpoints and
//! ranks do not know which rule it is.
//!
//! A further rule needs:
//!
//! - here: a variant of [`OptimizerKind`] and of [`Rule`], and the recipe that chooses it in [`Rule::new`];
//! - in the fused engine: its choreography in `fused/optimizer.rs`, methods of the trait `Backend` in
//!   `fused/backend.rs`, which `fused/timed.rs` forwards and the CPU's and CUDA's backends implement with their
//!   kernels; the scratch of these in `memory/arena.rs`;
//! - in the reference engine: the update in `dfdx/optimizer.rs`, called from `dfdx/mod.rs`;
//! - in the cache of measured rates: a name in `session/machine/calibration.rs`;
//! - in `engine/verify/tests.rs` and `tests/engines/golden_dfdx.rs`: the engines with faults, which change AdamW's
//!   numbers.
//!
//! Every match over the rules is exhaustive, so the compiler finds the places that a new variant concerns.

pub mod adamw;
pub mod muon;

use crate::comm;
use crate::model::{ParamLayout, Tensor};
use crate::recipe::{MuonAdjust, MuonPrecision, OptimizerConfig, OptimizerName};
use adamw::AdamW;
use muon::Muon;
use std::ops::Range;

/// Which rule updates the parameters: what decides the states that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptimizerKind {
    /// [`AdamW`] for every parameter.
    AdamW,
    /// [`Muon`] for hidden matrices, [`AdamW`] for everything else.
    Muon,
}

impl OptimizerKind {
    /// The rule that a recipe asks for.
    pub fn new(config: &OptimizerConfig) -> Self {
        Rule::new(config).kind()
    }

    /// The rule with the hyper-parameters of GPT-3 (Brown et al., 2020, appendix B), for measurements of speed.
    pub fn typical(self) -> Rule {
        let adamw = AdamW::new([0.9, 0.95], 1e-8, 0.1);
        match self {
            Self::AdamW => Rule::AdamW(adamw),
            Self::Muon => Rule::Muon(Muon {
                adamw,
                lr_ratio: 1.0,
                momentum: 0.95,
                nesterov: true,
                ns_steps: 5,
                ns_precision: MuonPrecision::Bf16,
                weight_decay: 0.1,
                adjust: MuonAdjust::MatchRmsAdamw,
            }),
        }
    }

    /// The states of the rule, in the order in which they are allocated, read and stored.
    pub fn states(self) -> &'static [OptimizerState] {
        match self {
            Self::AdamW => &adamw::STATES,
            Self::Muon => &muon::STATES,
        }
    }

    /// The elements of the flat layout that each of `count` ranks updates, where the states are sharded: in order, and
    /// about as many for each.
    pub fn shares(self, layout: &ParamLayout, count: usize) -> Vec<Range<usize>> {
        match self {
            Self::AdamW => comm::shares(layout.len, count),
            Self::Muon => muon::shares(layout, count),
        }
    }
}

/// One number per parameter that a rule keeps from step to step, in fp32: for the tensors that it covers, in the order
/// of the flat layout, and for no other.
#[derive(Debug, Clone, Copy)]
pub struct OptimizerState {
    /// Its name in a checkpoint, PyTorch's where PyTorch has one: no other state of the rule has it.
    pub name: &'static str,
    /// What messages call it, with its article.
    pub label: &'static str,
    /// Whether the rule keeps it for a tensor. For other tensors nothing is kept, read or stored.
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
    /// Momentum made orthogonal, for hidden matrices.
    Muon(Muon),
}

impl Rule {
    /// The rule that a recipe asks for, with the recipe's hyper-parameters.
    pub fn new(config: &OptimizerConfig) -> Self {
        let adamw = AdamW {
            embedding_lr_factor: config.embedding_lr_factor,
            weight_decay_embeddings: config.weight_decay_embeddings,
            ..AdamW::new(config.betas, config.eps, config.weight_decay)
        };
        match config.kind {
            OptimizerName::Adamw => Self::AdamW(adamw),
            OptimizerName::Muon => Self::Muon(Muon {
                adamw,
                lr_ratio: config.muon_lr / config.lr,
                momentum: config.muon_momentum,
                nesterov: config.muon_nesterov,
                ns_steps: config.muon_ns_steps,
                ns_precision: config.muon_ns_precision,
                weight_decay: config.muon_weight_decay,
                adjust: config.muon_adjust,
            }),
        }
    }

    /// Which rule it is.
    pub fn kind(&self) -> OptimizerKind {
        match self {
            Self::AdamW(_) => OptimizerKind::AdamW,
            Self::Muon(_) => OptimizerKind::Muon,
        }
    }

    /// AdamW's part of it: the whole rule, or that of all tensors but hidden matrices.
    pub fn adamw(&self) -> &AdamW {
        match self {
            Self::AdamW(rule) => rule,
            Self::Muon(rule) => &rule.adamw,
        }
    }

    /// [`adamw`](Self::adamw), to change.
    pub fn adamw_mut(&mut self) -> &mut AdamW {
        match self {
            Self::AdamW(rule) => rule,
            Self::Muon(rule) => &mut rule.adamw,
        }
    }
}

/// What one optimizer step needs besides the accumulated gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimizerStep {
    /// The rule.
    pub rule: Rule,
    /// AdamW's learning rate.
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
