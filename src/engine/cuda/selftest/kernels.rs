//! Each kernel alone against the CPU's: one call on both with equal memory, then a comparison.

use super::pair::{Pair, step};
use super::{muon, next, residual};
use crate::engine::cuda::device::Device;
use crate::engine::dropout::{Dropout, Site};
use crate::engine::fused;
use crate::engine::fused::backend::{
    AttentionBackward, AttentionShape, Backend, CrossEntropy, Epilogue, HeadBackward, InputGradient, Linear,
    WeightGradient,
};
use crate::engine::memory::{Activations, Buffer, LayerSpans, MemoryPlan, Span};
use crate::engine::optimizer::adamw::AdamW;
use crate::engine::optimizer::{OptimizerStep, Rule};
use crate::model::init::random_bits;
use crate::recipe::{Precision, Residual};
use std::ops::Range;

/// One operation and its check; an error says what differs, or what failed.
pub type Check<D> = (&'static str, fn(&mut Pair<D>) -> Result<(), String>);

/// The checks of every kernel.
pub fn checks<D: Device>() -> [Check<D>; 8] {
    [
        ("embedding", residual::embedding),
        ("layernorm", residual::layernorm),
        ("linear layers", linear_layers),
        ("head and loss", head_and_loss),
        ("attention", attention),
        ("next tokens", next::tokens),
        ("update", update),
        ("muon", muon::matrices),
    ]
}

/// The settings under which a check runs.
pub fn ways(check: &str, precision: Precision) -> Vec<Activations> {
    let plain = Activations::default();
    let low = Activations { residual: Residual::Bf16, ..plain };
    let mut ways = match (check, precision) {
        ("embedding" | "layernorm" | "next tokens", Precision::Bf16) => vec![plain, low],
        _ => vec![plain],
    };
    if ["embedding", "layernorm", "attention"].contains(&check) {
        let dropout = Dropout::new(0.25, 0x0123_4567_89ab_cdef);
        ways.extend(ways.clone().into_iter().map(|way| Activations { dropout, ..way }));
    }
    ways
}

/// The bound of what is part of the residual stream, or of sums over it: `fp32` where it is stored so.
pub(super) fn streamed<D: Device>(pair: &Pair<D>, fp32: f32) -> f32 {
    if pair.residual == Residual::Fp32 { fp32 } else { step(pair.precision) }
}

/// The first block's arena.
pub(super) fn layer(plan: &MemoryPlan) -> LayerSpans {
    plan.arena.layers[0]
}

/// The MLP's first layer: C to 4C.
fn linear(plan: &MemoryPlan) -> Linear {
    let (block, c) = (&plan.layout.blocks[0], plan.config.dims.n_embd);
    Linear {
        name: "c_fc",
        weight: plan.span(plan.matrices(), &block.c_fc_weight),
        bias: plan.span(Buffer::Parameters, &block.c_fc_bias),
        inputs: c,
        outputs: 4 * c,
    }
}

/// A parameter's gradient.
pub(super) fn gradient(plan: &MemoryPlan, range: &Range<usize>) -> Span {
    plan.span(Buffer::Gradients, range)
}

/// The bound of what a device stores as operands, and the CPU in fp32.
fn stored(precision: Precision) -> f32 {
    if matches!(precision, Precision::Fp32 | Precision::Tf32) { 3e-6 } else { step(precision) }
}

/// Completes a bias gradient, the column sums of `from`: those that the kernel which wrote it has left, or sums on the
/// host for a backend whose kernels leave none.
pub(super) fn finish_sums(backend: &mut dyn Backend, from: Span, bias: Span) {
    if backend.sums_columns() {
        return backend.add_sums(bias);
    }
    let rows = backend.download(from).expect("host memory").into_owned();
    let mut sums = backend.download(bias).expect("host memory").into_owned();
    for row in rows.chunks_exact(bias.len) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    backend.write(bias, &sums).expect("host memory");
}

fn linear_layers<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
    let step = step(pair.precision);
    pair.fill(&|plan| plan.arena.ln, true)?;
    let wide = |plan: &MemoryPlan| plan.arena.wide;
    pair.each(|backend, plan| backend.linear(plan.arena.ln, linear(plan), wide(plan), Epilogue::Bias));
    // the device rounds the product, and then its sum with the bias
    pair.compare("linear with bias", &wide, 2.0 * step)?;
    pair.each(|backend, plan| {
        backend.linear(plan.arena.ln, linear(plan), layer(plan).fc, Epilogue::BiasGelu(wide(plan)));
    });
    pair.compare("before GELU", &|plan| layer(plan).fc, 2.0 * step)?;
    pair.compare("GELU", &wide, 3.0 * step)?;
    pair.fill(&|plan| layer(plan).fc, true)?;
    pair.each(|backend, plan| backend.gelu_again(layer(plan).fc, wide(plan)));
    pair.compare("GELU again", &wide, step)?;
    // backward through the second layer, 4C to C, and GELU
    pair.fill(&|plan| plan.arena.ln, true)?;
    pair.each(|backend, plan| {
        let (block, c) = (&plan.layout.blocks[0], plan.config.dims.n_embd);
        let proj = Linear {
            name: "mlp_proj",
            weight: plan.span(plan.matrices(), &block.mlp_proj_weight),
            bias: plan.span(Buffer::Parameters, &block.mlp_proj_bias),
            inputs: 4 * c,
            outputs: c,
        };
        let (dweight, dbias) = (gradient(plan, &block.mlp_proj_weight), gradient(plan, &block.mlp_proj_bias));
        backend.linear_backward_weight(WeightGradient {
            x: wide(plan),
            dout: plan.arena.ln,
            linear: proj,
            dweight,
            dbias: Some(dbias),
        });
        backend.add_sums(dbias);
        let before = gradient(plan, &block.c_fc_bias);
        backend.linear_backward_input(InputGradient {
            dout: plan.arena.ln,
            linear: proj,
            dx: wide(plan),
            slope: Some(layer(plan).fc),
            is_operand: true,
            dx_sums: backend.sums_columns().then_some(before),
        });
        finish_sums(backend, wide(plan), before);
    });
    let block = |plan: &MemoryPlan| plan.layout.blocks[0].clone();
    let exact = pair.precision == Precision::Fp32;
    pair.compare(
        "dweight",
        &|plan| gradient(plan, &block(plan).mlp_proj_weight),
        if exact { 2e-6 } else { step },
    )?;
    pair.compare("dbias", &|plan| gradient(plan, &block(plan).mlp_proj_bias), 2e-6)?;
    pair.compare("dx through GELU", &wide, 3.0 * step)?;
    pair.compare("its column sums", &|plan| gradient(plan, &block(plan).c_fc_bias), 3.0 * step)?;
    // backward through the first layer
    pair.fill(&wide, true)?;
    pair.each(|backend, plan| {
        backend.linear_backward_input(InputGradient {
            dout: wide(plan),
            linear: linear(plan),
            dx: plan.arena.delta,
            slope: None,
            is_operand: false,
            dx_sums: None,
        });
    });
    pair.compare("dx", &|plan| plan.arena.delta, stored(pair.precision))
}

fn head_and_loss<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
    let step = step(pair.precision);
    let (vocab_size, padded_vocab) = (pair.dims.vocab_size, pair.dims.padded_vocab);
    pair.fill(&|plan| plan.arena.ln, true)?;
    let losses = |plan: &MemoryPlan| plan.arena.losses;
    // all but the first seven rows
    let (first, c) = (7, pair.dims.n_embd);
    let rows = pair.tokens() - first;
    let part = |span: Span, width: usize| span.slice(0, rows * width);
    let wte = |plan: &MemoryPlan| plan.span(plan.matrices(), &plan.layout.wte);
    let logits = |plan: &MemoryPlan| part(plan.arena.logits, padded_vocab);
    pair.each(|backend, plan| {
        backend.head(plan.arena.ln.slice(first * c, rows * c), wte(plan), logits(plan), c);
    });
    pair.compare("logits", &logits, stored(pair.precision))?;
    for gradient in [false, true] {
        pair.fill(&logits, true)?;
        pair.each(|backend, plan| {
            let losses = losses(plan).slice(first, rows);
            let logits = logits(plan);
            backend.cross_entropy(CrossEntropy { logits, losses, first, vocab_size, gradient });
        });
        pair.compare("losses", &|plan| losses(plan).slice(first, rows), 2e-6)?;
    }
    pair.compare("dlogits", &logits, step)?;
    let [a, _] = pair.read(&logits)?;
    if a.chunks(padded_vocab).any(|row| row[vocab_size..].iter().any(|x| *x != 0.0)) {
        return Err("padded rows of the vocabulary have a gradient".to_owned());
    }
    pair.fill(&logits, true)?;
    pair.each(|backend, plan| {
        let ln = plan.arena.ln.slice(first * c, rows * c);
        let (dlogits, dwte) = (logits(plan), gradient(plan, &plan.layout.wte));
        backend.head_backward(HeadBackward {
            dlogits,
            x: ln,
            wte: wte(plan),
            dx: part(plan.arena.delta, c),
            dwte,
            width: c,
        });
        backend.add_loss(losses(plan).slice(first, rows));
        backend.add_loss(losses(plan).slice(first, rows - 1));
    });
    pair.compare("dx", &|plan| part(plan.arena.delta, c), stored(pair.precision))?;
    pair.compare("dwte", &|plan| gradient(plan, &plan.layout.wte), 3e-6)?;
    let [a, b] = pair.both(|backend, _| backend.loss())?;
    // a NaN is not close
    if !((a - b).abs() < 1e-6 * b && b > 1.0) {
        return Err(format!("the sum of the losses is {a} instead of {b}"));
    }
    Ok(())
}

fn attention<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
    let dims = pair.dims;
    let shape = AttentionShape {
        rows: pair.rows(),
        cols: dims.block_size,
        n_head: dims.n_head,
        head_size: dims.head_size(),
    };
    pair.fill(&|plan| layer(plan).qkv, true)?;
    let dropout = pair.drops_at(Site::Probabilities(0));
    pair.each(|backend, plan| {
        let l = layer(plan);
        backend.attention(l.qkv, l.softmax, l.att, shape, dropout);
    });
    let step = 2.0 * step(pair.precision);
    pair.compare("attention", &|plan| layer(plan).att, step)?;
    let [kept, on_cpu] = pair.read(&|plan| layer(plan).softmax)?;
    let largest = kept.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let off = kept.iter().zip(&on_cpu).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    if !(largest > 0.0 && off <= step * largest) {
        return Err(format!("what attention keeps for the backward pass is off by {off}"));
    }
    let n = pair.tokens() * dims.n_embd;
    let bias = |plan: &MemoryPlan| gradient(plan, &plan.layout.blocks[0].c_attn_bias);
    pair.fill(&|plan| plan.arena.ln, true)?;
    pair.each(|backend, plan| {
        let (l, dqkv) = (layer(plan), plan.arena.wide.head(3 * n));
        backend.attention_backward(AttentionBackward {
            qkv: l.qkv,
            softmax: l.softmax,
            out: l.att,
            dout: plan.arena.ln,
            dqkv,
            dqkv_sums: backend.sums_columns().then_some(bias(plan)),
            dropout,
            shape,
        });
        finish_sums(backend, dqkv, bias(plan));
    });
    pair.compare("its column sums", &bias, 2.0 * step)?;
    pair.compare("dqkv", &|plan| plan.arena.wide.head(3 * n), 2.0 * step)
}

fn update<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
    // squares are not negative
    let squares = |plan: &MemoryPlan| -> (Span, Vec<f32>) {
        let span = plan.whole(Buffer::Optimizer(1));
        (span, (0..span.len).map(|i| (random_bits(5, i as u64) % 2001) as f32 * 1e-3).collect())
    };
    pair.both(|backend, plan| {
        let (span, values) = squares(plan);
        backend.write(span, &values)
    })?;
    let (lr, betas, eps) = (1e-2, [0.9, 0.95], 1e-8);
    let rule = Rule::AdamW(AdamW::new(betas, eps, 0.1));
    let step_of = OptimizerStep { rule, lr, clip_norm: 3.0, t: 3, loss_scale: 16.0 };
    let [a, b] = pair.both(|backend, plan| {
        fused::update(backend, plan, &step_of);
        backend.outcome()
    })?;
    if !(a.applied && b.applied) {
        return Err(format!("the update was not applied: {a:?}, {b:?}"));
    }
    if !((a.squares - b.squares).abs() < 1e-12 * b.squares && b.squares.sqrt() > 16.0 * 3.0) {
        return Err(format!("the sum of squared gradients is {} instead of {}", a.squares, b.squares));
    }
    for buffer in [Buffer::Parameters, Buffer::Optimizer(0), Buffer::Optimizer(1)] {
        pair.compare(&format!("{buffer:?}"), &|plan| plan.whole(buffer), 1e-6)?;
    }
    if !matches!(pair.precision, Precision::Fp32 | Precision::Tf32) {
        let matrices = |plan: &MemoryPlan| plan.span(Buffer::Low, &(0..plan.layout.decayed));
        pair.compare("the low-precision copy", &matrices, step(pair.precision))?;
    }
    match pair.read(&|plan| plan.whole(Buffer::Gradients))?.iter().flatten().all(|g| *g == 0.0) {
        true => Ok(()),
        false => Err("the gradients are not cleared".to_owned()),
    }
}
