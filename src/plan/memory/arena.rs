//! The arena: one allocation for everything that a step computes, laid out span by span.

use super::{
    Buffer, CUDA_PARTIALS, DEPTH, Element, KEY_STRIP, MemoryConfig, MemoryPlan, Mode, PANELS, PARTIALS,
    SCORE_STRIDE, SCORE_TILE, Span, TASK_ROWS, TILE_ROWS, Target, panel_elements,
};
use crate::model::Dims;
use crate::recipe::{Attention, Precision};

/// Spans of the arena start on multiples of this many bytes: a cache line, and what a CUDA device reads at once.
const ALIGN: usize = 64;

/// Activations of one block; N = B·T rows, C = n_embd.
#[derive(Debug, Clone, Copy)]
pub struct LayerSpans {
    /// The block's input, `[N, C]`.
    pub x: Span,
    /// Mean and reciprocal deviation of the first LayerNorm, `[N, 2]`.
    pub ln_1: Span,
    /// Queries, keys and values, `[N, 3C]`.
    pub qkv: Span,
    /// Flash: log-sum-exp of each row of scores, `[B, n_head, T]`, on the CPU to the base 2. Naive: probabilities, `[B, n_head, T, T]`.
    pub softmax: Span,
    /// Attention's output before its projection, `[N, C]`.
    pub att: Span,
    /// The residual stream between attention and MLP, `[N, C]`.
    pub x_mid: Span,
    /// Statistics of the second LayerNorm, `[N, 2]`.
    pub ln_2: Span,
    /// The MLP's hidden layer before GELU, `[N, 4C]`.
    pub fc: Span,
}

/// The arena: what is kept between forward and backward pass, and the scratch that is used again and again.
#[derive(Debug, Clone)]
pub struct Arena {
    /// Per block.
    pub layers: Vec<LayerSpans>,
    /// The last block's output, `[N, C]`.
    pub x_out: Span,
    /// Statistics of the final LayerNorm, `[N, 2]`.
    pub ln_f: Span,
    /// A LayerNorm's output, `[N, C]`, overwritten by each.
    pub ln: Span,
    /// Forward: a projection's output. Backward: gradient of a LayerNorm's output. `[N, C]`.
    pub delta: Span,
    /// The MLP's hidden layer after GELU; in the backward pass its gradient, or those of qkv and att. `[N, 4C]`.
    pub wide: Span,
    /// Gradient of the residual stream, `[N, C]` (training).
    pub dx: Option<Span>,
    /// `dx` rounded, where it is an operand of a matrix product in low precision.
    pub dx_low: Option<Span>,
    /// One chunk of logits, `[chunk, padded_vocab]`.
    pub logits: Span,
    /// Their gradient: the same span where it is stored alike.
    pub dlogits: Span,
    /// Rows of `logits`.
    pub chunk: usize,
    /// Loss of each token, `[N]`.
    pub losses: Span,
    /// Partial column sums, `[PARTIALS or CUDA_PARTIALS, 4·C]`.
    pub partials: Span,
    /// Scratch of attention and, on the CPU, of products. CPU: `[threads, worker]`. CUDA: naive, one sequence's scores `[n_head, T, T]`; flash, one
    /// number per row and head (training).
    pub workers: Span,
    /// CPU: elements of scratch per worker.
    pub worker: usize,
    /// CPU: panels of a packed operand.
    pub panels: Span,
    /// CUDA, naive: one sequence's scores as operands, `[n_head, T, T]`.
    pub scores: Span,
    /// CUDA: the batch at hand, see [`MemoryPlan::batch_words`].
    pub batch: Span,
    /// CUDA: what a step adds up and decides, as 64-bit numbers.
    pub sums: Span,
    /// Length in words of 4 bytes.
    pub len: usize,
    /// Words kept from the forward to the backward pass.
    pub activations: usize,
}

/// Places in [`Arena::sums`], counted in 64-bit numbers.
pub mod sums {
    /// The sum of the micro-batches' mean losses.
    pub const LOSS: usize = 0;
    /// The last update: loss, sum of the squares of the gradients, whether it was applied, and the factor on gradients.
    pub const OUTCOME: usize = 1;
    /// The first of the partial sums of squares.
    pub const PARTIALS: usize = 8;
    /// How many partial sums there are.
    pub const PARTIAL_COUNT: usize = 1024;
}

/// Lays spans out one after the other.
struct Layout {
    /// Bytes so far.
    end: usize,
}

impl Layout {
    fn take(&mut self, element: Element, len: usize) -> Span {
        let start = self.end / element.bytes();
        self.end = (self.end + len * element.bytes()).next_multiple_of(ALIGN);
        Span { buffer: Buffer::Arena, element, start, len }
    }

    fn words(&self) -> usize {
        self.end / Element::F32.bytes()
    }
}

impl Arena {
    pub(super) fn new(config: &MemoryConfig) -> Self {
        let Dims { n_layer, n_head, n_embd: c, block_size: t, padded_vocab: v, .. } = config.dims;
        let n = config.micro_batch * t;
        let (training, cuda) = (config.mode == Mode::Train, config.target == Target::Cuda);
        let (operand, number) = (config.operand(), Element::F32);
        let naive = config.attention == Attention::Naive;
        let (softmax, softmax_element) = match naive && training {
            true => (config.micro_batch * n_head * t * t, operand),
            false => (config.micro_batch * n_head * t, number),
        };
        let mut space = Layout { end: 0 };
        let layer = |space: &mut Layout| LayerSpans {
            x: space.take(number, n * c),
            ln_1: space.take(number, 2 * n),
            qkv: space.take(operand, 3 * n * c),
            softmax: space.take(softmax_element, softmax),
            att: space.take(operand, n * c),
            x_mid: space.take(number, n * c),
            ln_2: space.take(number, 2 * n),
            fc: space.take(operand, 4 * n * c),
        };
        let layers: Vec<_> = if training {
            (0..n_layer).map(|_| layer(&mut space)).collect()
        } else {
            // Two sets in turn: a block's output is the next one's input.
            let pair = [layer(&mut space), layer(&mut space)];
            (0..n_layer).map(|l| pair[l % 2]).collect()
        };
        let x_out = space.take(number, n * c);
        let ln_f = space.take(number, 2 * n);
        let activations = space.words();
        let chunk = chunk(config, activations);
        let worker = worker_scratch(config, chunk).next_multiple_of(ALIGN / number.bytes());
        let (workers, scores) = match config.target {
            Target::Cpu { threads } => (worker * threads, 0),
            Target::Cuda if naive => (n_head * t * t, n_head * t * t),
            Target::Cuda => (if training { n * n_head } else { 0 }, 0),
        };
        let low = config.precision != Precision::Fp32 && !(cuda && config.precision == Precision::Tf32);
        let [ln, delta] = [operand, number].map(|element| space.take(element, n * c));
        let wide = space.take(operand, 4 * n * c);
        let dx = training.then(|| space.take(number, n * c));
        let dx_low = (training && low).then(|| space.take(operand, n * c));
        let logits = space.take(number, chunk * v);
        let dlogits = match operand {
            Element::F32 => logits,
            Element::Half => space.take(operand, if training { chunk * v } else { 0 }),
        };
        let partials = if cuda { CUDA_PARTIALS } else { PARTIALS };
        let batch = if cuda { MemoryPlan::batch_words(config.micro_batch, t) } else { 0 };
        let sums = if cuda { sums::PARTIALS + sums::PARTIAL_COUNT } else { 0 };
        Self {
            layers,
            x_out,
            ln_f,
            ln,
            delta,
            wide,
            dx,
            dx_low,
            logits,
            dlogits,
            chunk,
            losses: space.take(number, n),
            partials: space.take(number, if training { partials * 4 * c } else { 0 }),
            workers: space.take(number, workers),
            worker,
            panels: space.take(number, if cuda { 0 } else { panels(config, chunk) }),
            scores: space.take(operand, scores),
            batch: space.take(number, batch),
            sums: space.take(number, 2 * sums),
            activations,
            len: space.words(),
        }
    }
}

/// Rows of the chunk of logits that exists at a time: each chunk reads the embedding twice, and reads and writes its
/// gradient, so a large one is quicker. On CUDA it is as large as fills the device. On the CPU it takes little beside what is
/// kept of a large model (`activations`, in words), and more where that leaves room. 64 rows at least.
fn chunk(config: &MemoryConfig, activations: usize) -> usize {
    const LITTLE: usize = 64 << 20;
    const MUCH: usize = 256 << 20;
    let number = Element::F32.bytes();
    let bytes = match (config.target, config.mode) {
        (Target::Cpu { .. }, Mode::Train) => MUCH.saturating_sub(activations * number).max(LITTLE),
        (Target::Cpu { .. }, Mode::Infer) => LITTLE,
        (Target::Cuda, _) => 1 << 30,
    };
    let n = config.micro_batch * config.dims.block_size;
    let most = (bytes / (config.dims.padded_vocab * number) / 64 * 64).max(64).min(n);
    match config.target {
        // chunks of equal size, for a small one costs the most
        Target::Cpu { .. } => n.div_ceil(n.div_ceil(most)).next_multiple_of(64).min(n),
        Target::Cuda => most,
    }
}

/// The products of a step as (products per element, columns of the second operand): each layer forward, its input's
/// gradient and its weight's, and the same of the head for a chunk of rows.
fn products(config: &MemoryConfig, chunk: usize) -> impl Iterator<Item = (usize, usize)> {
    let Dims { n_embd: c, block_size: t, padded_vocab: v, .. } = config.dims;
    let n = config.micro_batch * t;
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

/// Elements of scratch that one worker needs: of attention for a head, or of a product for its rows of the first operand.
fn worker_scratch(config: &MemoryConfig, chunk: usize) -> usize {
    let (t, size) = (config.dims.block_size, config.dims.head_size());
    let training = config.mode == Mode::Train;
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
