//! The optimizer's step as a sequence of kernels, written once over [`Backend`]: measure, decide, apply a rule.

use super::backend::{AdamWTensors, Backend, MuonKernels, MuonMomentum, MuonProduct, MuonUpdate};
use crate::engine::memory::{Buffer, MemoryPlan, MuonSpans};
use crate::engine::optimizer::adamw::AdamW;
use crate::engine::optimizer::muon::{COEFFICIENTS, Muon, Side};
use crate::engine::optimizer::{OptimizerStep, Rule};
use crate::model::Tensor;

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
        Rule::Muon(rule) => {
            adamw(backend, plan, &rule.adamw, step);
            muon(backend.muon(), plan, rule, step);
        }
    }
    if plan.is_sharded() {
        backend.all_gather_parameters();
    }
}

/// AdamW over this rank's elements that are under it. Embeddings and matrices lie side by side: under equal settings
/// they are one kernel.
fn adamw<B: Backend + ?Sized>(backend: &mut B, plan: &MemoryPlan, rule: &AdamW, step: &OptimizerStep) {
    let [mut embeddings, mut matrices, vectors] = plan.adamw_parts();
    if rule.settings(embeddings.1) == rule.settings(matrices.1) && embeddings.0.end == matrices.0.start {
        matrices.0.start = embeddings.0.start;
        embeddings.0.end = embeddings.0.start;
    }
    for (range, group) in [embeddings, matrices, vectors] {
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
        backend.adamw(tensors, &rule.constants(step, rule.settings(group)));
    }
}

/// Muon over this rank's hidden matrices, one after the other.
fn muon(kernels: &mut dyn MuonKernels, plan: &MemoryPlan, rule: &Muon, step: &OptimizerStep) {
    let spans = plan.arena.muon.expect("a plan for Muon has its scratch");
    let own = plan.owned();
    let is_own = |tensor: &&Tensor| tensor.hidden && own.contains(&tensor.offset);
    for tensor in plan.layout.tensors.iter().filter(is_own) {
        let shape = [tensor.shape[0], tensor.shape[1]];
        let (range, constants) = (tensor.range(), rule.constants(step, shape));
        let matrix = spans.matrix.map(|span| span.head(range.len()));
        kernels.muon_momentum(
            MuonMomentum {
                gradients: plan.span(Buffer::Gradients, &range),
                momentum: plan.state(2, &range),
                out: matrix[0],
            },
            &constants,
        );
        let last = orthogonalize(kernels, MuonSpans { matrix, ..spans }, shape, rule);
        let tensors = MuonUpdate {
            parameters: plan.span(Buffer::Parameters, &range),
            update: matrix[last],
            low: if plan.is_sharded() { None } else { plan.low(&range) },
        };
        kernels.muon_apply(tensors, &constants);
    }
}

/// Newton and Schulz's iteration on the first of the two matrices, `[inputs, outputs]`. Returns which of them has the
/// result.
fn orthogonalize(kernels: &mut dyn MuonKernels, spans: MuonSpans, shape: [usize; 2], rule: &Muon) -> usize {
    let [inputs, outputs] = shape;
    let (side, n, precision) = (Side::of(shape), inputs.min(outputs), rule.ns_precision);
    let [gram, polynomial] = spans.square.map(|span| span.head(n * n));
    let [a, b, c] = COEFFICIENTS;
    kernels.muon_normalize(spans.matrix[0], precision);
    let mut now = 0;
    for _ in 0..rule.ns_steps {
        let (x, next) = (spans.matrix[now], spans.matrix[1 - now]);
        kernels.muon_product(MuonProduct::Gram { x, shape, side, out: gram }, precision);
        let square = [n, n];
        kernels.muon_product(
            MuonProduct::Sum {
                left: gram,
                right: gram,
                shapes: [square; 2],
                factors: [c, b],
                plus: gram,
                out: polynomial,
            },
            precision,
        );
        let (left, right, shapes) = match side {
            Side::Left => (polynomial, x, [square, shape]),
            Side::Right => (x, polynomial, [shape, square]),
        };
        kernels.muon_product(
            MuonProduct::Sum { left, right, shapes, factors: [1.0, a], plus: x, out: next },
            precision,
        );
        now = 1 - now;
    }
    now
}
