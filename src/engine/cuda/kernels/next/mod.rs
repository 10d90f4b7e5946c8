//! Launches of the kernels that continue sequences whose keys and values are kept.

use super::for_residual;
use crate::engine::Next;
use crate::engine::cuda::device::{Address, Arg, Device};
use crate::engine::cuda::stream::{Stream, int, pointer};
use crate::engine::fused::backend::NextAttention;
use crate::engine::memory::Element;
use crate::engine::traffic::{F32, Traffic};
use std::collections::BTreeSet;

/// Threads of a block.
const THREADS: usize = 128;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] = &[("NEXT_THREADS", THREADS as u32)];

/// The arrays of the next tokens in words, one after the other: tokens, positions, sequences.
pub(in crate::engine::cuda) fn pack(next: &[Next]) -> Vec<u32> {
    let tokens = next.iter().map(|next| next.token);
    let positions = next.iter().map(|next| next.position as u32);
    tokens.chain(positions).chain(next.iter().map(|next| next.sequence as u32)).collect()
}

/// The next tokens, on the host and as [`pack`] brought them to the device.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Tokens<'a> {
    pub(in crate::engine::cuda) next: &'a [Next],
    pub(in crate::engine::cuda) words: Address,
}

impl Tokens<'_> {
    /// One of the arrays.
    fn array(&self, which: usize) -> Arg {
        pointer(self.words.offset(which * self.next.len() * F32))
    }
}

/// Adds token and position embeddings into `out [rows, c]`, a residual stream that is stored as `residual` says.
pub(in crate::engine::cuda) fn embed<D: Device>(
    stream: &mut Stream<D>,
    tokens: Tokens,
    [wte, wpe, out]: [Address; 3],
    residual: Element,
    c: usize,
) {
    let n = tokens.next.len();
    let distinct = |of: fn(&Next) -> usize| tokens.next.iter().map(of).collect::<BTreeSet<_>>().len();
    let rows = distinct(|next| next.token as usize) + distinct(|next| next.position);
    let traffic = Traffic::of_kernel().reads(2 * n, F32).reads(rows * c, F32).writes(n * c, residual.bytes());
    let args = [tokens.array(0), tokens.array(1), pointer(wte), pointer(wpe), pointer(out), int(c)];
    let kernel = for_residual(residual, ["embed_next", "embed_next_low"]);
    stream.stating(traffic.computes(n * c)).launch(kernel, [n, 1, 1], THREADS as u32, &args);
}

/// `out[r] = from[numbers[r]]`, rows of `width`; the numbers are at the first address.
pub(in crate::engine::cuda) fn gather<D: Device>(
    stream: &mut Stream<D>,
    numbers: &[u32],
    [at, from, out]: [Address; 3],
    element: Element,
    width: usize,
) {
    let (rows, stored) = (numbers.len(), element.bytes());
    let read = numbers.iter().collect::<BTreeSet<_>>().len();
    let traffic = Traffic::of_kernel().reads(rows, F32).reads(read * width, stored);
    let args = [pointer(at), pointer(from), pointer(out), int(width)];
    let stream = stream.stating(traffic.writes(rows * width, stored));
    stream.launch("gather_rows", [rows, 1, 1], THREADS as u32, &args);
}

/// Attention of the next tokens; the spans of `tensors` begin at these addresses.
pub(in crate::engine::cuda) fn attention<D: Device>(
    stream: &mut Stream<D>,
    tokens: Tokens,
    tensors: &NextAttention,
    [qkv, kept, out]: [Address; 3],
) {
    let NextAttention { n_head, head_size, block_size, .. } = *tensors;
    let (n, c, operand) = (tokens.next.len(), n_head * head_size, tensors.qkv.element.bytes());
    let earlier: usize = tokens.next.iter().map(|next| next.position).sum();
    let traffic = Traffic::of_kernel().reads(2 * n, F32).reads((3 * n + 2 * earlier) * c, operand);
    let traffic = traffic.writes(3 * n * c, operand).computes(4 * (earlier + n) * c);
    let scale = Arg::Float(1.0 / (head_size as f32).sqrt());
    let arrays = [tokens.array(2), tokens.array(1)];
    let args =
        [arrays[0], arrays[1], pointer(qkv), pointer(kept), pointer(out), int(block_size), int(c), scale];
    stream.stating(traffic).launch("attention_next", [n, n_head, 1], THREADS as u32, &args);
}
