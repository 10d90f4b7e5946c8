//! The kernels that continue sequences whose keys and values are kept.

use super::kernels::streamed;
use super::pair::{Pair, step};
use crate::engine::Next;
use crate::engine::cuda::device::Device;
use crate::engine::fused::backend::NextAttention;
use crate::engine::memory::{Buffer, MemoryPlan};

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
    pair.compare("attention_next", &|plan| plan.arena.layers[0].att.head(rows * c), bound)
}
