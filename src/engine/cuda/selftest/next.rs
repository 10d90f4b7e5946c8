//! The kernels that continue sequences whose keys and values are kept, and that gather rows of packed tokens.

use super::kernels::streamed;
use super::pair::{Pair, step};
use crate::engine::cuda::device::Device;
use crate::engine::fused::backend::NextAttention;
use crate::engine::fused::{Gather, Packed};
use crate::engine::memory::{Buffer, MemoryPlan};
use crate::engine::{Batch, Next};

/// Embedding and attention of one more token of each sequence: the first token, one in the middle, the last one.
pub(super) fn tokens<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
    let dims = pair.dims;
    let (t, c) = (dims.block_size, dims.n_embd);
    let next = [(2, t - 1, 7), (0, 0, 3), (1, t / 2, 7)];
    let next = next.map(|(sequence, position, token)| Next { sequence, position, token });
    let rows = next.len();
    pair.each(|backend, plan| {
        backend.upload_next(&next);
        let [wte, wpe] =
            [&plan.layout.wte, &plan.layout.wpe].map(|range| plan.span(Buffer::Parameters, range));
        backend.embed_next(wte, wpe, plan.arena.layers[0].x.head(rows * c));
    });
    pair.compare("embed_next", &|plan| plan.arena.layers[0].x.head(rows * c), streamed(pair, 1e-7))?;
    let (new, kept) = (
        |plan: &MemoryPlan| plan.arena.wide.head(rows * 3 * c),
        |plan: &MemoryPlan| plan.arena.layers[0].qkv,
    );
    pair.fill(&new, true)?;
    pair.fill(&kept, true)?;
    pair.each(|backend, plan| {
        backend.attention_next(NextAttention {
            qkv: new(plan),
            kept: kept(plan),
            out: plan.arena.layers[0].att.head(rows * c),
            n_head: dims.n_head,
            head_size: dims.head_size(),
            block_size: t,
        });
    });
    for Next { sequence, position, .. } in next {
        // nothing needs the query again
        let place = 3 * c * (sequence * t + position) + c;
        pair.compare("kept keys and values", &|plan| kept(plan).slice(place, 2 * c), 0.0)?;
    }
    let bound = 2.0 * step(pair.precision);
    pair.compare("attention_next", &|plan| plan.arena.layers[0].att.head(rows * c), bound)?;
    packed_rows(pair)
}

/// Rows of packed tokens, spread over the places of a batch and taken where losses are asked for.
fn packed_rows<D: Device>(pair: &mut Pair<D>) -> Result<(), String> {
    let (inputs, c) = ([1, 2, 3, 1, 2, 4], pair.dims.n_embd);
    let batch = Batch { inputs: &inputs, targets: &inputs, rows: 2, cols: 3, first_row: 0 };
    let packed = Packed::new(&batch, &[1, 2, 5], 1, inputs.len());
    let (tokens, asked) = (packed.computed.len(), packed.asked.len());
    let from = |plan: &MemoryPlan| plan.arena.wide.head(tokens * 3 * c);
    let spread = |plan: &MemoryPlan| plan.arena.layers[0].qkv.head(inputs.len() * 3 * c);
    let taken = |plan: &MemoryPlan| plan.arena.delta.head(asked * 3 * c);
    pair.fill(&from, true)?;
    pair.each(|backend, plan| {
        backend.upload_packed(&packed);
        backend.gather(Gather::Places, from(plan), spread(plan), 3 * c);
        backend.gather(Gather::Asked, from(plan), taken(plan), 3 * c);
    });
    pair.compare("rows of packed tokens", &spread, 0.0)?;
    pair.compare("rows that are asked for", &taken, 0.0)
}
