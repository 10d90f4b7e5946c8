//! The kernels that read or write the residual stream: embeddings and LayerNorm, in both directions.

use super::kernels::{finish_sums, gradient, layer, streamed};
use super::pair::{Pair, Place, step};
use crate::engine::cuda::device::Device;
use crate::engine::dropout::Site;
use crate::engine::fused::backend::{LayerNormBackward, Norm, ResidualLayerNorm};
use crate::engine::memory::{Buffer, MemoryPlan, Span};
use crate::recipe::{Precision, Residual};
use std::ops::Range;

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

/// The embeddings' sum, alone and with the first LayerNorm, and its gradients.
pub(super) fn embedding<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
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

/// LayerNorm, alone and with the sum of the stream before it, and its gradients.
pub(super) fn layernorm<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
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
