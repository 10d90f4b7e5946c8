//! The arena: one allocation for everything that a step computes, laid out span by span.

use super::{Buffer, Element, MemoryConfig, Mode, Recompute, Span, Target};
use crate::engine::optimizer::OptimizerKind;
use crate::engine::{cpu, cuda};
use crate::model::Dims;
use crate::recipe::Attention;

/// Spans of the arena start on multiples of this many bytes: a cache line, and what a CUDA device reads at once.
const ALIGN: usize = 64;

/// Activations of one block; N = B·T rows, C = n_embd. What the backward pass computes again lies in one place for all
/// blocks.
#[derive(Debug, Clone, Copy)]
pub struct LayerSpans {
    /// The block's input, `[N, C]`.
    pub x: Span,
    /// Mean and reciprocal deviation of the first LayerNorm, `[N, 2]`.
    pub ln_1: Span,
    /// Queries, keys and values, `[N, 3C]`; where they are kept of whole sequences, `[B, T, 3C]`.
    pub qkv: Span,
    /// Flash: log-sum-exp of each row of scores to the base 2, `[B, n_head, T]`. Naive: probabilities,
    /// `[B, n_head, T, T]`.
    pub softmax: Span,
    /// Attention's output before its projection, `[N, C]`.
    pub att: Span,
    /// The residual stream between attention and MLP, `[N, C]`.
    pub x_mid: Span,
    /// Statistics of the second LayerNorm, `[N, 2]`.
    pub ln_2: Span,
    /// The MLP's hidden layer before GELU, `[N, 4C]`.
    pub fc: Span,
    /// The outputs of its LayerNorms, where the backward pass need not compute them again.
    pub kept: Option<KeptSpans>,
    /// The MLP's hidden layer after GELU, `[N, 4C]`, where the backward pass takes it as the forward pass computes it.
    /// Otherwise it is computed again from `fc`.
    pub gelu: Option<Span>,
}

/// Outputs of one block's LayerNorms that are kept from the forward to the backward pass, where there is memory.
#[derive(Debug, Clone, Copy)]
pub struct KeptSpans {
    /// The first LayerNorm's output, `[N, C]`.
    pub ln_1: Span,
    /// The second LayerNorm's output, `[N, C]`.
    pub ln_2: Span,
}

/// What making a matrix orthogonal takes, for the largest matrix of a block. C = n_embd.
#[derive(Debug, Clone, Copy)]
pub struct MuonSpans {
    /// The matrix, before and after an iteration, `[C, 4C]` at most.
    pub matrix: [Span; 2],
    /// Its product with its transpose, and a polynomial of that, `[C, C]`.
    pub square: [Span; 2],
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
    /// CUDA: the biases that the residual stream [lacks](MemoryConfig::residual_lacks_biases) where each LayerNorm
    /// reads it, `[2 n_layer + 1, C]`.
    pub lacks: Option<Span>,
    /// Gradient of the residual stream, `[N, C]` (training). [In halves](MemoryConfig::halves_gradient), the second
    /// ones.
    pub dx: Option<Span>,
    /// `dx` through dropout and rounded, where it is no operand of matrix products itself. In halves, the first ones.
    pub dx_low: Option<Span>,
    /// One chunk of logits, and then their gradient, `[chunk, padded_vocab]`.
    pub logits: Span,
    /// Rows of `logits`.
    pub chunk: usize,
    /// Loss of each token, `[N]`.
    pub losses: Span,
    /// Partial sums of columns (training).
    pub partials: Span,
    /// Scratch of attention and, on the CPU, of products. CPU: `[threads, worker]`. CUDA: naive, one sequence's
    /// scores `[n_head, T, T]`; flash, what the kernels of the backward pass keep (training).
    pub workers: Span,
    /// CPU: elements of scratch per worker.
    pub worker: usize,
    /// CPU: panels of a packed operand.
    pub panels: Span,
    /// CUDA, naive: one sequence's scores as operands, `[n_head, T, T]`.
    pub scores: Span,
    /// CUDA: the batch at hand, as `cuda::batch` packs it.
    pub batch: Span,
    /// CUDA: what a step adds up and decides, as 64-bit numbers.
    pub sums: Span,
    /// What Muon needs for a matrix. It lies where activations do, for an update comes after the backward pass.
    pub muon: Option<MuonSpans>,
    /// Length in words of 4 bytes.
    pub len: usize,
    /// Words kept from the forward to the backward pass.
    pub activations: usize,
}

/// What the kernels of a device need beside activations, in elements. A device computes it from the configuration and
/// the words of 4 bytes that activations take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scratch {
    /// Rows of the chunk of logits that exists at a time.
    pub chunk: usize,
    /// Partial sums of columns, for training.
    pub partials: usize,
    /// Scratch of one worker, a multiple of a cache line.
    pub worker: usize,
    /// Scratch of attention and of all workers.
    pub workers: usize,
    /// Panels of a packed operand.
    pub panels: usize,
    /// One sequence's scores as operands.
    pub scores: usize,
    /// The batch at hand, in words of 4 bytes.
    pub batch: usize,
    /// What a step adds up and decides, in numbers of 64 bits.
    pub sums: usize,
}

impl Scratch {
    /// Asks the device that the buffers are for. `activations`: the words that they take where nothing is computed
    /// again.
    fn of(config: &MemoryConfig, activations: usize) -> Self {
        match config.target {
            Target::Cpu { threads } => cpu::scratch::of(config, threads, activations),
            Target::Cuda => cuda::scratch::of(config),
        }
    }
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

/// What is kept of every block.
struct Blocks {
    layers: Vec<LayerSpans>,
    x_out: Span,
    ln_f: Span,
    /// Where they end.
    space: Layout,
}

impl Blocks {
    fn new(config: &MemoryConfig, recompute: Recompute) -> Self {
        let Dims { n_layer, n_head, n_embd: c, block_size: t, .. } = config.dims;
        let n = config.tokens();
        let training = config.mode.is_training();
        let (operand, number, residual) = (config.operand(), Element::F32, config.residual());
        let (softmax, softmax_element) = match config.attention == Attention::Naive && training {
            true => (config.micro_batch * n_head * t * t, operand),
            false => (n * n_head, number),
        };
        let generates = config.mode == Mode::Generate;
        let keeps = config.keeps_outputs();
        let mut space = Layout { end: 0 };
        // what is computed again lies where it does for the `first` block
        let layer = |space: &mut Layout, first: Option<&LayerSpans>| {
            let mlp = first.filter(|_| recompute >= Recompute::Mlp);
            let block = first.filter(|_| recompute >= Recompute::Block);
            let mut take =
                |shared: Option<Span>, element, len| shared.unwrap_or_else(|| space.take(element, len));
            LayerSpans {
                x: take(None, residual, n * c),
                ln_1: take(None, number, 2 * n),
                qkv: take(block.map(|first| first.qkv), operand, if generates { 0 } else { 3 * n * c }),
                softmax: take(block.map(|first| first.softmax), softmax_element, softmax),
                att: take(block.map(|first| first.att), operand, n * c),
                x_mid: take(block.map(|first| first.x_mid), residual, n * c),
                ln_2: take(block.map(|first| first.ln_2), number, 2 * n),
                fc: take(mlp.map(|first| first.fc), operand, 4 * n * c),
                kept: (keeps && recompute < Recompute::Block).then(|| KeptSpans {
                    ln_1: take(None, operand, n * c),
                    ln_2: take(None, operand, n * c),
                }),
                gelu: (keeps && recompute < Recompute::Mlp).then(|| take(None, operand, 4 * n * c)),
            }
        };
        let mut layers: Vec<LayerSpans> = Vec::with_capacity(n_layer);
        if training {
            for _ in 0..n_layer {
                let next = layer(&mut space, layers.first());
                layers.push(next);
            }
        } else {
            // Two sets in turn: a block's output is the next one's input.
            let pair = [layer(&mut space, None), layer(&mut space, None)];
            layers.extend((0..n_layer).map(|l| pair[l % 2]));
        }
        if generates {
            // also those of every earlier token: nothing else of them is needed
            layers
                .iter_mut()
                .for_each(|layer| layer.qkv = space.take(operand, config.micro_batch * 3 * t * c));
        }
        let x_out = space.take(residual, n * c);
        let ln_f = space.take(number, 2 * n);
        Self { layers, x_out, ln_f, space }
    }
}

impl Arena {
    pub(super) fn new(config: &MemoryConfig) -> Self {
        let Dims { n_embd: c, padded_vocab: v, .. } = config.dims;
        let n = config.tokens();
        let training = config.mode.is_training();
        let (operand, number, residual) = (config.operand(), Element::F32, config.residual());
        let recompute = config.recompute();
        let Blocks { mut layers, x_out, ln_f, mut space } = Blocks::new(config, recompute);
        let activations = space.words();
        // the size of chunks is part of the result, which may not depend on what is computed again
        let of_all = match recompute {
            Recompute::None => activations,
            Recompute::Mlp | Recompute::Block => Blocks::new(config, Recompute::None).space.words(),
        };
        let muon = (config.mode.optimizer() == Some(OptimizerKind::Muon)).then(|| {
            let mut over = Layout { end: 0 };
            let mut spans = |len: usize| [(); 2].map(|()| over.take(number, len));
            let spans = MuonSpans { matrix: spans(4 * c * c), square: spans(c * c) };
            space.end = space.end.max(over.end);
            spans
        });
        let Scratch { chunk, partials, worker, workers, panels, scores, batch, sums } =
            Scratch::of(config, of_all);
        let [ln, delta] = [operand, operand].map(|element| space.take(element, n * c));
        let wide = space.take(operand, 4 * n * c);
        if config.keeps_outputs() && recompute != Recompute::None {
            // the forward pass leaves there that of the last block, and the backward pass writes those of the others
            layers.iter_mut().for_each(|layer| layer.gelu = Some(wide));
        }
        let biases = (2 * config.dims.n_layer + 1) * c;
        let lacks = config.residual_lacks_biases().then(|| space.take(number, biases));
        let gradient = if config.halves_gradient() { operand } else { residual };
        let dx = training.then(|| space.take(gradient, n * c));
        let is_stored = residual == Element::Half || !config.rounds_operands();
        let is_operand = is_stored && config.dropout().is_none();
        let dx_low = (training && !is_operand).then(|| space.take(operand, n * c));
        let logits = space.take(operand, chunk * v);
        Self {
            layers,
            x_out,
            ln_f,
            ln,
            delta,
            wide,
            lacks,
            dx,
            dx_low,
            logits,
            chunk,
            losses: space.take(number, n),
            partials: space.take(number, if training { partials } else { 0 }),
            workers: space.take(number, workers),
            worker,
            panels: space.take(number, panels),
            scores: space.take(operand, scores),
            batch: space.take(number, batch),
            sums: space.take(number, 2 * sums),
            muon,
            activations,
            len: space.words(),
        }
    }
}
