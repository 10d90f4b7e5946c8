//! What the CPU's kernels need beside activations: how large their tiles are, and the memory that follows from it.

use crate::engine::memory::{Element, MemoryConfig, Mode, Scratch};
use crate::model::Dims;
use crate::recipe::Attention;

/// Queries, and keys, of one tile of flash attention; a multiple of [`PANEL_COLS`].
pub(super) const SCORE_TILE: usize = 128;
/// Elements from one row of a tile of scores to the next. Not a power of two: columns are read as well, and would share
/// a few places in the cache.
pub(super) const SCORE_STRIDE: usize = SCORE_TILE + 16;
/// Keys that a few queries meet at a time in the forward pass of attention; a multiple of [`SCORE_TILE`].
pub(super) const KEY_STRIP: usize = 512;
/// Products per element of a result between two visits of it. A longer sum is cut at its multiples, so this is part of
/// the result. Few in Miri, which could not get to the second cut otherwise.
pub(super) const DEPTH: usize = if cfg!(miri) { 12 } else { 1024 };
/// Rows of a result that one task multiplies at most.
pub(super) const TASK_ROWS: usize = 96;
/// Rows of a result that are computed together.
pub(super) const TILE_ROWS: usize = 8;
/// Columns of a packed panel.
pub(super) const PANEL_COLS: usize = 32;
/// Elements of the panels that threads share at most, so many that they stay in the last-level cache.
const PANELS: usize = 1 << 20;
/// Column sums over rows are split into this many partial sums, whatever the number of threads, so that the order of
/// additions is fixed.
pub(super) const PARTIALS: usize = 32;
/// Elements of a cache line: a worker's scratch is a multiple of it, so that two workers never write to one line.
const LINE: usize = 64 / size_of::<f32>();

/// Elements of a packed matrix of `rows` x `cols`.
pub(super) fn panel_elements(rows: usize, cols: usize) -> usize {
    rows * cols.next_multiple_of(PANEL_COLS)
}

/// The scratch of a configuration with so many workers, where activations take so many words.
pub(in crate::engine) fn of(config: &MemoryConfig, threads: usize, activations: usize) -> Scratch {
    let chunk = chunk(config, activations);
    let worker = worker_scratch(config, chunk).next_multiple_of(LINE);
    Scratch {
        chunk,
        partials: PARTIALS * 4 * config.dims.n_embd,
        worker,
        workers: worker * threads,
        panels: panels(config, chunk),
        ..Scratch::default()
    }
}

/// Rows of the chunk of logits that exists at a time. Each chunk reads the embedding twice, and reads and writes its
/// gradient, so a large one is quicker. It takes little beside what is kept of a large model (`activations`, in words),
/// and more where that leaves room; 64 rows at least.
fn chunk(config: &MemoryConfig, activations: usize) -> usize {
    const LITTLE: usize = 64 << 20;
    const MUCH: usize = 256 << 20;
    let number = Element::F32.bytes();
    let bytes = match config.mode {
        Mode::Train(_) => MUCH.saturating_sub(activations * number).max(LITTLE),
        Mode::Infer | Mode::Generate => LITTLE,
    };
    let n = config.tokens();
    let most = (bytes / (config.dims.padded_vocab * number) / 64 * 64).max(64).min(n);
    // chunks of equal size, for a small one costs the most
    n.div_ceil(n.div_ceil(most)).next_multiple_of(64).min(n)
}

/// The products of a step as (products per element, columns of the second operand): each layer forward, its input's
/// gradient and its weight's; then those three of the head for a chunk of rows.
fn products(config: &MemoryConfig, chunk: usize) -> impl Iterator<Item = (usize, usize)> {
    let Dims { n_embd: c, padded_vocab: v, .. } = config.dims;
    let n = config.tokens();
    let layers = [(c, 3 * c), (c, c), (c, 4 * c), (4 * c, c)].into_iter();
    let layers = layers.flat_map(move |(inputs, outputs)| {
        [(inputs, outputs), (outputs, inputs), (n, outputs)].map(|(k, n)| (k.min(DEPTH), n))
    });
    layers.chain([(c.min(DEPTH), v), (v.min(DEPTH), c), (chunk.min(DEPTH), c)])
}

/// Elements of the panels of the largest product, as far as they are not cut.
fn panels(config: &MemoryConfig, chunk: usize) -> usize {
    let whole = products(config, chunk).map(|(depth, cols)| panel_elements(depth, cols)).max();
    whole.map_or(0, |elements| elements.min(PANELS))
}

/// Elements of scratch that one worker needs: of attention for a head, or of a product for its rows of the first
/// operand.
fn worker_scratch(config: &MemoryConfig, chunk: usize) -> usize {
    let (t, size) = (config.dims.block_size, config.dims.head_size());
    let training = config.mode.is_training();
    let heads = match training {
        // gradients of one head's queries, keys and values, and one number per row
        true => 3 * t * size + t,
        // one head's output
        false => t * size,
    };
    // keys transposed and values; keys, queries and the output's gradient, and values transposed
    let (wide, high) = (panel_elements(size, t), panel_elements(t, size));
    let attention = match config.attention {
        // scores of a few queries and their sums, or of a tile and their gradient; rows that fill no tile
        Attention::Flash => {
            let few = TILE_ROWS * KEY_STRIP + t;
            let (panels, scores) = match training {
                true => (2 * wide + 3 * high, few.max(2 * SCORE_TILE * SCORE_STRIDE)),
                false => (wide + high, few),
            };
            panels + scores + TILE_ROWS * KEY_STRIP.max(size)
        }
        Attention::Naive => t * t + wide.max(high) + TASK_ROWS * DEPTH.min(t.max(size)),
    };
    let deepest = products(config, chunk).map(|(depth, _)| depth).max().unwrap_or(0);
    (heads + attention).max(TASK_ROWS * deepest)
}
