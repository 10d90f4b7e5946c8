//! Each kernel alone against the CPU's: one call on both with equal memory, then a comparison.

use super::pair::{Pair, Place, step};
use super::{muon, next};
use crate::engine::cuda::device::Device;
use crate::engine::dropout::{Dropout, Site};
use crate::engine::fused;
use crate::engine::fused::backend::{
    AttentionBackward, AttentionShape, Backend, CrossEntropy, Epilogue, HeadBackward, InputGradient,
    LayerNormBackward, Linear, Norm, ResidualLayerNorm, WeightGradient,
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
        ("embedding", embedding),
        ("layernorm", layernorm),
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

fn layer(plan: &MemoryPlan) -> LayerSpans {
    plan.arena.layers[0]
}

fn norm(plan: &MemoryPlan) -> Norm {
    let block = &plan.layout.blocks[0];
    let span = |range| plan.span(Buffer::Parameters, range);
    // of the stream after block 0's first projection
    let lacks = plan.arena.lacks.map(|sums| sums.slice(plan.config.dims.n_embd, plan.config.dims.n_embd));
    Norm { lacks, weight: span(&block.ln_1_weight), bias: span(&block.ln_1_bias), stats: layer(plan).ln_1 }
}

/// The same LayerNorm, of the stream before any projection.
fn first_norm(plan: &MemoryPlan) -> Norm {
    let lacks = plan.arena.lacks.map(|sums| sums.slice(0, plan.config.dims.n_embd));
    Norm { lacks, ..norm(plan) }
}

/// The bias of block 0's first projection.
fn projection_bias(plan: &MemoryPlan) -> Span {
    plan.span(Buffer::Parameters, &plan.layout.blocks[0].attn_proj_bias)
}

/// Adds the first projection's bias to a residual stream of the CPU, `factor` times, where that of the device lacks it.
fn complete<D: Device>(pair: &mut Pair<D>, stream: Place, factor: f32) -> Result<(), String> {
    let mut is_lacking = false;
    pair.both(|backend, plan| {
        is_lacking |= plan.arena.lacks.is_some();
        if !is_lacking || plan.arena.lacks.is_some() {
            return Ok(());
        }
        let bias = backend.download(projection_bias(plan))?.into_owned();
        let mut values = backend.download(stream(plan))?.into_owned();
        values.chunks_exact_mut(bias.len()).for_each(|row| {
            row.iter_mut().zip(&bias).for_each(|(x, bias)| *x += factor * bias);
        });
        backend.write(stream(plan), &values)
    })?;
    Ok(())
}

/// The sums of biases, against those of the host.
fn biases<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
    let sums = pair.both(|backend, plan| {
        let blocks = plan.layout.blocks.iter();
        let biases = blocks.flat_map(|block| [&block.attn_proj_bias, &block.mlp_proj_bias]);
        let biases: Vec<Span> = biases.map(|bias| plan.span(Buffer::Parameters, bias)).collect();
        if let Some(sums) = plan.arena.lacks {
            backend.add_up_biases(&biases, sums);
            return Ok(backend.download(sums)?.into_owned());
        }
        let mut sums = vec![vec![0.0f32; plan.config.dims.n_embd]];
        for bias in biases {
            let bias = backend.download(bias)?;
            let next = sums[sums.len() - 1].iter().zip(bias.iter()).map(|(a, b)| a + b).collect();
            sums.push(next);
        }
        Ok(sums.concat())
    })?;
    pair.are_close("sums of biases", sums, 1e-7)
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

fn gradient(plan: &MemoryPlan, range: &Range<usize>) -> Span {
    plan.span(Buffer::Gradients, range)
}

fn embedding<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
    let tables = |plan: &MemoryPlan, buffer| {
        [&plan.layout.wte, &plan.layout.wpe].map(|range| plan.span(buffer, range))
    };
    pair.each(|backend, plan| {
        let [wte, wpe] = tables(plan, Buffer::Parameters);
        backend.embed(wte, wpe, layer(plan).x);
    });
    pair.compare("embed", &|plan| layer(plan).x, streamed(pair, 1e-7))?;
    if pair.lacks_biases() {
        biases(pair)?;
    }
    pair.fill(&|plan| layer(plan).x, true)?;
    pair.each(|backend, plan| {
        let [wte, wpe] = tables(plan, Buffer::Parameters);
        backend.embed_layernorm(wte, wpe, layer(plan).x, first_norm(plan), plan.arena.ln);
    });
    pair.compare("embed with layernorm", &|plan| layer(plan).x, streamed(pair, 1e-7))?;
    pair.compare("its layernorm", &|plan| plan.arena.ln, streamed(pair, 0.0) + step(pair.precision))?;
    pair.compare("its statistics", &|plan| layer(plan).ln_1, streamed(pair, 1e-6))?;
    if let Some(site) = pair.drops_at(Site::Embedding) {
        pair.each(|backend, plan| backend.drop_out(layer(plan).x, site));
        pair.compare("what is left of it", &|plan| layer(plan).x, streamed(pair, 1e-7))?;
    }
    pair.fill_gradient(pair.residual == Residual::Bf16)?;
    pair.each(|backend, plan| {
        let [wte, wpe] = tables(plan, Buffer::Gradients);
        backend.embed_backward(plan.arena.dx.expect("training"), plan.arena.dx_low, wte, Some(wpe));
    });
    pair.compare("dwte", &|plan| gradient(plan, &plan.layout.wte), 1e-6)?;
    pair.compare("dwpe", &|plan| gradient(plan, &plan.layout.wpe), 1e-6)?;
    embedding_backward(pair)
}

/// The backward pass from the first LayerNorm on, which may sum positions.
fn embedding_backward<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
    // of one stream, whatever rounding has made of it
    pair.fill(&|plan| layer(plan).x, pair.residual == Residual::Bf16)?;
    pair.each(|backend, plan| backend.layernorm(layer(plan).x, first_norm(plan), plan.arena.ln));
    pair.fill(&|plan| plan.arena.delta, true)?;
    pair.fill_gradient(pair.residual == Residual::Bf16)?;
    pair.each(|backend, plan| {
        let (dx, dx_low, block) =
            (plan.arena.dx.expect("training"), plan.arena.dx_low, &plan.layout.blocks[0]);
        let [wte, wpe] = [&plan.layout.wte, &plan.layout.wpe].map(|range| gradient(plan, range));
        let sums_positions = backend.sums_positions();
        backend.layernorm_backward(LayerNormBackward {
            dout: plan.arena.delta,
            x: layer(plan).x,
            norm: first_norm(plan),
            dx,
            accumulate: true,
            dx_low,
            dropout: None,
            dweight: gradient(plan, &block.ln_1_weight),
            dbias: gradient(plan, &block.ln_1_bias),
            dx_sums: None,
            dwpe: sums_positions.then_some(wpe),
        });
        backend.add_sums(gradient(plan, &(block.ln_1_weight.start..block.ln_1_bias.end)));
        backend.embed_backward(dx, dx_low, wte, (!sums_positions).then_some(wpe));
    });
    let dx = pair.read_gradient()?;
    pair.are_close("the gradient of embeddings", dx, streamed(pair, 2e-6))?;
    let of = |range: fn(&MemoryPlan) -> &Range<usize>| move |plan: &MemoryPlan| gradient(plan, range(plan));
    pair.compare("dweight", &of(|plan| &plan.layout.blocks[0].ln_1_weight), streamed(pair, 2e-6))?;
    pair.compare("dbias", &of(|plan| &plan.layout.blocks[0].ln_1_bias), 2e-6)?;
    pair.compare("dwte through layernorm", &of(|plan| &plan.layout.wte), streamed(pair, 2e-6))?;
    pair.compare("dwpe through layernorm", &of(|plan| &plan.layout.wpe), streamed(pair, 2e-6))
}

/// The bound of what a device stores as operands, and the CPU in fp32.
fn stored(precision: Precision) -> f32 {
    if matches!(precision, Precision::Fp32 | Precision::Tf32) { 3e-6 } else { step(precision) }
}

/// Completes a bias gradient, the column sums of `from`: those that the kernel which wrote it has left, or sums on the
/// host for a backend whose kernels leave none.
fn finish_sums(backend: &mut dyn Backend, from: Span, bias: Span) {
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

fn layernorm<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
    let step = step(pair.precision);
    let stream = |plan: &MemoryPlan| layer(plan).x_mid;
    if pair.lacks_biases() {
        biases(pair)?;
    }
    pair.fill(&|plan| layer(plan).x, pair.residual == Residual::Bf16)?;
    complete(pair, &|plan| layer(plan).x, 1.0)?;
    pair.fill(&|plan| plan.arena.delta, true)?;
    pair.each(|backend, plan| backend.layernorm(layer(plan).x, norm(plan), plan.arena.ln));
    pair.compare("layernorm", &|plan| plan.arena.ln, step)?;
    pair.compare("its statistics", &|plan| layer(plan).ln_1, 1e-6)?;
    let [of_mlp, of_attention] = [Site::Mlp(0), Site::Attention(0)].map(|site| pair.drops_at(site));
    pair.fill(&|plan| layer(plan).x, pair.residual == Residual::Bf16)?;
    pair.each(|backend, plan| {
        let (x, delta, sum) = (layer(plan).x, plan.arena.delta, layer(plan).x_mid);
        backend.residual_layernorm(ResidualLayerNorm {
            x,
            delta,
            bias: projection_bias(plan),
            dropout: of_attention,
            sum,
            norm: norm(plan),
            out: plan.arena.ln,
        });
    });
    complete(pair, &stream, -1.0)?;
    pair.compare("the sum", &stream, streamed(pair, 1e-6))?;
    pair.compare("layernorm of the sum", &|plan| plan.arena.ln, streamed(pair, 0.0) + step)?;
    pair.compare("its statistics", &|plan| layer(plan).ln_1, streamed(pair, 1e-6))?;
    // of one stream, whatever rounding has made of it
    pair.fill(&stream, pair.residual == Residual::Bf16)?;
    complete(pair, &stream, 1.0)?;
    pair.fill(&|plan| plan.arena.ln, true)?;
    pair.each(|backend, plan| backend.layernorm_again(layer(plan).x_mid, norm(plan), plan.arena.ln));
    pair.compare("layernorm again", &|plan| plan.arena.ln, step)?;
    for accumulate in [false, true] {
        pair.each(|backend, plan| {
            let (dx, block) = (plan.arena.dx.expect("training"), &plan.layout.blocks[0]);
            let (dweight, dbias) = (gradient(plan, &block.ln_1_weight), gradient(plan, &block.ln_1_bias));
            let (dout, x, low) = (plan.arena.delta, layer(plan).x_mid, plan.arena.dx_low);
            backend.layernorm_backward(LayerNormBackward {
                dout,
                x,
                norm: norm(plan),
                dx,
                accumulate,
                dx_low: low,
                dropout: of_mlp,
                dweight,
                dbias,
                dx_sums: backend.sums_columns().then(|| gradient(plan, &block.mlp_proj_bias)),
                dwpe: None,
            });
            backend.add_sums(gradient(plan, &(block.ln_1_weight.start..block.ln_1_bias.end)));
            let of = low.filter(|_| of_mlp.is_some()).unwrap_or(dx);
            finish_sums(backend, of, gradient(plan, &block.mlp_proj_bias));
        });
        let dx = pair.read_gradient()?;
        pair.are_close("dx", dx, streamed(pair, 2e-6))?;
        let has_operand =
            !matches!(pair.precision, Precision::Fp32 | Precision::Tf32) && pair.residual == Residual::Fp32;
        if has_operand || pair.dropout.is_some() {
            pair.compare("dx as operand", &|plan| plan.arena.dx_low.expect("low precision"), step)?;
        }
    }
    pair.compare(
        "dweight",
        &|plan| gradient(plan, &plan.layout.blocks[0].ln_1_weight),
        streamed(pair, 2e-6),
    )?;
    pair.compare("dbias", &|plan| gradient(plan, &plan.layout.blocks[0].ln_1_bias), 2e-6)?;
    let before = |plan: &MemoryPlan| gradient(plan, &plan.layout.blocks[0].mlp_proj_bias);
    // with dropout the CPU adds up rounded operands
    let rounded = if pair.dropout.is_some() { step } else { 0.0 };
    pair.compare("column sums of dx", &before, streamed(pair, 2e-6).max(rounded))
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
