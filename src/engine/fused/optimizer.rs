//! The optimizer's step as a sequence of kernels, written once over [`Backend`]: measure, decide, apply a rule.

use super::backend::{AdamWTensors, Backend};
use crate::engine::memory::{Buffer, MemoryPlan};
use crate::engine::optimizer::adamw::AdamW;
use crate::engine::optimizer::{OptimizerStep, Rule};

/// Measures the accumulated gradients; if their norm and the loss are finite, applies the step's rule. Clears gradients
/// and loss either way. Where the optimizer's states are sharded, each rank updates its part of the parameters and gets
/// the others'.
///
/// Panics if the plan has the states of another rule.
pub fn update<B: Backend + ?Sized>(backend: &mut B, plan: &MemoryPlan, step: &OptimizerStep) {
    assert!(plan.optimizer() == Some(step.rule.kind()), "the plan has no states for {:?}", step.rule);
    backend.measure(step);
    match &step.rule {
        Rule::AdamW(rule) => adamw(backend, plan, rule, step),
    }
    if plan.is_sharded() {
        backend.all_gather_parameters();
    }
}

/// AdamW over this rank's elements: matrices and embeddings with weight decay, everything else without.
fn adamw<B: Backend + ?Sized>(backend: &mut B, plan: &MemoryPlan, rule: &AdamW, step: &OptimizerStep) {
    let own = plan.owned();
    let cut = plan.layout.decayed.clamp(own.start, own.end);
    for (range, weight_decay) in [(own.start..cut, rule.weight_decay), (cut..own.end, 0.0)] {
        if range.is_empty() {
            continue;
        }
        let tensors = AdamWTensors {
            parameters: plan.span(Buffer::Parameters, &range),
            gradients: plan.span(Buffer::Gradients, &range),
            exp_avg: plan.state(0, &range),
            exp_avg_sq: plan.state(1, &range),
            // with parts on other ranks, the whole copy is refreshed once they are here
            low: if plan.is_sharded() { None } else { plan.low(&range) },
        };
        backend.adamw(tensors, &rule.constants(step, weight_decay));
    }
}
