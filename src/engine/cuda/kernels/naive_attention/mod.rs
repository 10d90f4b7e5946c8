//! Attention that stores its probabilities: two stacked products around a softmax, one sequence at a time.

use super::dropout::{self, Draws};
use crate::engine::cuda::device::{Address, Arg, Device, Fused, Operand, Product};
use crate::engine::cuda::stream::{Stream, int, pointer};
use crate::engine::fused::backend::AttentionShape;
use crate::engine::memory::Element;
use crate::engine::traffic::{F32, Traffic};

/// Threads of a block; each warp has a row.
const THREADS: u32 = 128;
/// Rows of a block.
const ROWS: usize = THREADS as usize / 32;
/// What the source needs to know of these sizes, as macros.
pub(super) const DEFINES: &[(&str, u32)] = &[("SOFTMAX_THREADS", THREADS)];

/// Queries, keys, values and the matrices of scores of one attention problem.
#[derive(Clone, Copy)]
pub(in crate::engine::cuda) struct Problem {
    pub(in crate::engine::cuda) shape: AttentionShape,
    /// How operands are stored.
    pub(in crate::engine::cuda) operand: Element,
    /// `[N, 3C]` operands.
    pub(in crate::engine::cuda) qkv: Address,
    /// One sequence's scores, `[n_head, T, T]` fp32.
    pub(in crate::engine::cuda) scores: Address,
    /// Dropout of the probabilities.
    pub(in crate::engine::cuda) draws: Draws,
}

impl Problem {
    fn c(&self) -> usize {
        self.shape.n_head * self.shape.head_size
    }

    /// The operands of all heads of one sequence, side by side in rows of `width`: the heads form the stack.
    fn heads(&self, base: Address, row: usize, width: usize, first: usize) -> Operand {
        let elements = row * self.shape.cols * width + first;
        Operand {
            address: base.offset(elements * self.operand.bytes()),
            element: self.operand,
            stride: width,
            stack: self.shape.head_size,
            transposed: false,
        }
    }

    /// The queries, keys or values of a sequence.
    fn qkv_operand(&self, row: usize, which: usize) -> Operand {
        self.heads(self.qkv, row, 3 * self.c(), which * self.c())
    }

    /// One `[T, T]` matrix for each head.
    fn square(&self, address: Address, element: Element) -> Operand {
        let t = self.shape.cols;
        Operand { address, element, stride: t, stack: t * t, transposed: false }
    }

    /// The probabilities of sequence `row` in `[B, n_head, T, T]`.
    fn probabilities(&self, base: Address, row: usize) -> Operand {
        let AttentionShape { cols, n_head, .. } = self.shape;
        self.square(base.offset(row * n_head * cols * cols * self.operand.bytes()), self.operand)
    }

    fn product<D: Device>(
        &self,
        stream: &mut Stream<D>,
        [m, n, k]: [usize; 3],
        a: Operand,
        b: Operand,
        out: Operand,
        alpha: f32,
    ) {
        let count = self.shape.n_head;
        let (accumulate, fused, tf32) = (false, Fused::None, None);
        stream.product(&Product { m, n, k, count, a, b, out, alpha, accumulate, fused, tf32 });
    }

    fn softmax<D: Device>(
        &self,
        stream: &mut Stream<D>,
        kernel: &'static str,
        pointers: &[Address],
        scale: Option<f32>,
        row: usize,
    ) {
        let (rows, cols) = (self.shape.n_head * self.shape.cols, self.shape.cols);
        let sizes = [int(rows), int(cols)];
        let pointers = pointers.iter().copied().map(pointer);
        let args: Vec<Arg> = match scale {
            None => pointers.chain(sizes).collect(),
            Some(scale) => {
                let further = [Arg::Float(scale)].into_iter().chain(self.draws.args()).chain([int(row)]);
                pointers.chain(sizes).chain(further).collect()
            }
        };
        // a query sees the keys before it and its own
        let (seen, all, operand) =
            (self.shape.n_head * cols * (cols + 1) / 2, rows * cols, self.operand.bytes());
        let traffic = match scale {
            None => Traffic::of_kernel().computes(6 * seen),
            Some(_) => {
                let plain = Traffic::of_kernel().reads(seen, operand).computes(6 * seen);
                // the gradients that are left take the place of those that came
                let kept = if self.draws.at.is_some() { seen } else { 0 };
                self.draws.stated(plain.writes(kept, F32), seen)
            }
        };
        let stating = stream.stating(traffic.reads(seen, F32).writes(all, operand));
        stating.launch(kernel, [rows.div_ceil(ROWS), 1, 1], THREADS, &args);
    }

    /// These probabilities of a sequence as values are multiplied by them: dropped ones in `scratch`, or themselves.
    fn dropped<D: Device>(
        &self,
        stream: &mut Stream<D>,
        p: Operand,
        scratch: Address,
        row: usize,
    ) -> Operand {
        if self.draws.at.is_none() {
            return p;
        }
        dropout::probabilities(stream, [p.address, scratch], self.shape, self.draws, row);
        self.square(scratch, self.operand)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.shape.head_size as f32).sqrt()
    }

    /// Computes `out [N, C]`. Probabilities are stored in `kept` (all sequences) or else in `scratch` (one
    /// sequence). With dropout, `scratch` gets the dropped ones.
    pub(in crate::engine::cuda) fn forward<D: Device>(
        &self,
        stream: &mut Stream<D>,
        kept: Option<Address>,
        scratch: Address,
        out: Address,
    ) {
        let AttentionShape { rows, cols: t, head_size: d, .. } = self.shape;
        let scores = self.square(self.scores, Element::F32);
        for row in 0..rows {
            let p = kept.map_or(self.square(scratch, self.operand), |kept| self.probabilities(kept, row));
            let [q, k, v] = [0, 1, 2].map(|which| self.qkv_operand(row, which));
            self.product(stream, [t, t, d], q, k.transposed(), scores, self.scale());
            self.softmax(stream, "causal_softmax", &[self.scores, p.address], None, row);
            let p = self.dropped(stream, p, scratch, row);
            self.product(stream, [t, d, t], p, v, self.heads(out, row, self.c(), 0), 1.0);
        }
    }

    /// Computes `dqkv [N, 3C]` from `dout [N, C]`; `scratch` holds the gradient of one sequence's scores as
    /// operands.
    pub(in crate::engine::cuda) fn backward<D: Device>(
        &self,
        stream: &mut Stream<D>,
        kept: Address,
        scratch: Address,
        dout: Address,
        dqkv: Address,
    ) {
        let AttentionShape { rows, cols: t, head_size: d, .. } = self.shape;
        let (dp, ds) = (self.square(self.scores, Element::F32), self.square(scratch, self.operand));
        for row in 0..rows {
            let p = self.probabilities(kept, row);
            let [q, k, v] = [0, 1, 2].map(|which| self.qkv_operand(row, which));
            let [dq, dk, dv] = [0, 1, 2].map(|w| self.heads(dqkv, row, 3 * self.c(), w * self.c()));
            let dout = self.heads(dout, row, self.c(), 0);
            let dropped = self.dropped(stream, p, scratch, row);
            self.product(stream, [t, d, t], dropped.transposed(), dout, dv, 1.0);
            self.product(stream, [t, t, d], dout, v.transposed(), dp, 1.0);
            let pointers = [p.address, self.scores, scratch];
            self.softmax(stream, "causal_softmax_backward", &pointers, Some(self.scale()), row);
            self.product(stream, [t, d, t], ds, k, dq, 1.0);
            self.product(stream, [t, d, t], ds.transposed(), q, dk, 1.0);
        }
    }
}
