//! Muon's kernels, one after the other on a matrix of each kind of shape.

use super::pair::{Pair, Place, step};
use crate::engine::cuda::device::Device;
use crate::engine::fused::backend::{MuonMomentum, MuonProduct, MuonUpdate};
use crate::engine::memory::{Buffer, MemoryPlan, Span};
use crate::engine::optimizer::muon::{COEFFICIENTS, Muon, Side};
use crate::engine::optimizer::{OptimizerKind, OptimizerStep, Rule};
use crate::recipe::{MuonPrecision, Precision};

/// The spans of a matrix `[inputs, outputs]` of the first block. What the iteration writes takes the place of second
/// moments, which have nothing to do here.
struct Spans {
    gradients: Span,
    momentum: Span,
    parameters: Span,
    low: Option<Span>,
    matrix: [Span; 2],
    square: [Span; 2],
}

fn spans(plan: &MemoryPlan, [inputs, outputs]: [usize; 2], name: &str) -> Spans {
    let tensor =
        plan.layout.tensors.iter().find(|tensor| tensor.name == name).expect("a tensor of each model");
    let range = tensor.range();
    // behind the matrices, which are the longest
    let mut next = 0;
    let mut take = |len: usize| {
        let span = plan.whole(Buffer::Optimizer(1)).slice(next, len);
        next += len.next_multiple_of(16);
        span
    };
    let (len, n) = (inputs * outputs, inputs.min(outputs));
    Spans {
        gradients: plan.span(Buffer::Gradients, &range),
        momentum: plan.state(0, &range),
        parameters: plan.span(Buffer::Parameters, &range),
        low: plan.low(&range),
        matrix: [take(len), take(len)],
        square: [take(n * n), take(n * n)],
    }
}

/// Momentum, norm, both kinds of product and the update, with either precision of the iteration.
pub(super) fn matrices<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
    let c = pair.dims.n_embd;
    for (name, shape) in [("h.0.attn.c_attn.weight", [c, 3 * c]), ("h.0.mlp.c_proj.weight", [4 * c, c])] {
        for (precision, nesterov) in [(MuonPrecision::Fp32, true), (MuonPrecision::Bf16, false)] {
            matrix(pair, name, shape, precision, nesterov).map_err(|wrong| format!("{name}, {wrong}"))?;
        }
    }
    Ok(())
}

fn matrix<D: Device>(
    pair: &mut Pair<D>,
    name: &str,
    shape: [usize; 2],
    precision: MuonPrecision,
    nesterov: bool,
) -> Result<(), String> {
    let Rule::Muon(typical) = OptimizerKind::Muon.typical() else { panic!("Muon's rule") };
    let rule = Muon { ns_precision: precision, nesterov, ..typical };
    // so fast that decay and update are seen in every precision
    let step_of = OptimizerStep { rule: Rule::Muon(rule), lr: 1.0, clip_norm: 3.0, t: 3, loss_scale: 16.0 };
    let constants = rule.constants(&step_of, shape);
    let whole: Place = &|plan| plan.whole(Buffer::Gradients);
    pair.fill(whole, false)?;
    pair.each(|backend, _| backend.measure(&step_of));
    let (side, [inputs, outputs]) = (Side::of(shape), shape);
    let n = inputs.min(outputs);
    // sums of products in another order, and then a step of bf16
    let bound = if precision == MuonPrecision::Bf16 { step(Precision::Bf16) } else { 1e-5 };
    let at = |part: fn(&Spans) -> Span| move |plan: &MemoryPlan| part(&spans(plan, shape, name));

    pair.each(|backend, plan| {
        let Spans { gradients, momentum, matrix, .. } = spans(plan, shape, name);
        backend.muon().muon_momentum(MuonMomentum { gradients, momentum, out: matrix[0] }, &constants);
    });
    pair.compare("the momentum", &at(|spans| spans.momentum), 1e-6)?;
    pair.compare("what is made orthogonal", &at(|spans| spans.matrix[0]), bound)?;
    if pair.read(&at(|spans| spans.gradients))?.iter().flatten().any(|g| *g != 0.0) {
        return Err("the gradients are not cleared".to_owned());
    }

    pair.each(|backend, plan| {
        backend.muon().muon_normalize(spans(plan, shape, name).matrix[0], precision);
    });
    pair.compare("the matrix of norm 1", &at(|spans| spans.matrix[0]), bound)?;

    pair.each(|backend, plan| {
        let Spans { matrix: [x, _], square: [out, _], .. } = spans(plan, shape, name);
        backend.muon().muon_product(MuonProduct::Gram { x, shape, side, out }, precision);
    });
    pair.compare("the product with itself", &at(|spans| spans.square[0]), 2.0 * bound)?;

    let [a, b, c] = COEFFICIENTS;
    pair.each(|backend, plan| {
        let Spans { square: [gram, out], .. } = spans(plan, shape, name);
        let (shapes, factors) = ([[n, n]; 2], [c, b]);
        let product = MuonProduct::Sum { left: gram, right: gram, shapes, factors, plus: gram, out };
        backend.muon().muon_product(product, precision);
    });
    pair.compare("the polynomial", &at(|spans| spans.square[1]), 4.0 * bound)?;

    pair.each(|backend, plan| {
        let Spans { matrix: [x, out], square: [_, polynomial], .. } = spans(plan, shape, name);
        let (left, right, shapes) = match side {
            Side::Left => (polynomial, x, [[n, n], shape]),
            Side::Right => (x, polynomial, [shape, [n, n]]),
        };
        let product = MuonProduct::Sum { left, right, shapes, factors: [1.0, a], plus: x, out };
        backend.muon().muon_product(product, precision);
    });
    pair.compare("an iteration", &at(|spans| spans.matrix[1]), 4.0 * bound)?;

    pair.each(|backend, plan| {
        let Spans { parameters, low, matrix, .. } = spans(plan, shape, name);
        backend.muon().muon_apply(MuonUpdate { parameters, update: matrix[1], low }, &constants);
    });
    pair.compare("the parameters", &at(|spans| spans.parameters), bound)?;
    if matches!(pair.precision, Precision::Fp32 | Precision::Tf32) {
        return Ok(());
    }
    let low = |plan: &MemoryPlan| spans(plan, shape, name).low.expect("a copy in low precision");
    pair.compare("the low-precision copy", &low, step(pair.precision))
}
