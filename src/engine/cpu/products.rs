//! The products of linear layers and of the head, with what happens to a result while it is in cache.

use super::CpuBackend;
use super::elementwise;
use super::matmul::{ADD, Matrix, Packing, SET, matmul, matmul_with_sums};
use super::pool::Columns;
use super::round;
use crate::engine::fused::backend::{Epilogue, HeadBackward, InputGradient, Linear, WeightGradient};
use crate::engine::memory::Span;
use crate::recipe::Precision;

impl CpuBackend {
    /// Lends spans, and the scratch of products.
    pub(super) fn lend<const R: usize, const W: usize>(
        &mut self,
        reads: [Span; R],
        writes: [Span; W],
    ) -> ([&[f32]; R], [&mut [f32]; W], Packing<'_>) {
        let (worker, team) = (self.worker, &self.team);
        let (reads, writes, [panels, workers]) =
            self.memory.split_with(reads, writes, [self.panels, self.workers]);
        (reads, writes, Packing { panels, workers, worker, team })
    }

    /// See [`Backend::linear`](crate::engine::fused::backend::Backend::linear).
    pub(super) fn product(&mut self, x: Span, linear: Linear, out: Span, epilogue: Epilogue) {
        let Linear { weight, bias, inputs, outputs, .. } = linear;
        let rows = x.len / inputs;
        let after = if let Epilogue::BiasGelu(span) = epilogue { span } else { out.head(0) };
        let precision = self.precision;
        let ([x, weight, bias], [out, after], mut scratch) = self.lend([x, weight, bias], [out, after]);
        let (x, weight) =
            (Matrix::new(x, rows, inputs, inputs), Matrix::new(weight, inputs, outputs, outputs));
        let after = Columns::new(after, outputs);
        matmul(out, outputs, x, weight, SET, &mut scratch, |row, first, part| match epilogue {
            Epilogue::Residual(_) => {}
            Epilogue::Bias => elementwise::add_bias(precision, part, &bias[first..]),
            Epilogue::BiasGelu(_) => {
                // SAFETY: a product finishes each part of its result once, so nothing else has these columns.
                let after = unsafe { after.row(row, first, part.len()) };
                elementwise::bias_gelu(precision, part, &bias[first..], after);
            }
        });
    }

    /// See [`Backend::linear_backward_weight`](crate::engine::fused::backend::Backend::linear_backward_weight).
    pub(super) fn weight_gradient(&mut self, tensors: WeightGradient) {
        let WeightGradient { x, dout, linear, dweight, dbias } = tensors;
        let Linear { inputs, outputs, .. } = linear;
        let rows = x.len / inputs;
        let dbias = dbias.unwrap_or(dweight.head(0));
        let ([x, dout], [dweight, dbias], mut scratch) = self.lend([x, dout], [dweight, dbias]);
        let x = Matrix::new(x, rows, inputs, inputs).transposed();
        let dout = Matrix::new(dout, rows, outputs, outputs);
        matmul_with_sums(dweight, outputs, x, dout, ADD, dbias, &mut scratch, |_, _, _| {});
    }

    /// See [`Backend::linear_backward_input`](crate::engine::fused::backend::Backend::linear_backward_input).
    pub(super) fn input_gradient(&mut self, tensors: InputGradient) {
        let InputGradient { dout, linear, dx, slope, is_operand, dx_sums: _ } = tensors;
        let Linear { weight, inputs, outputs, .. } = linear;
        let rows = dout.len / outputs;
        let precision = if is_operand { self.precision } else { Precision::Fp32 };
        let has_slope = slope.is_some();
        let ([dout, weight, slope], [dx], mut scratch) =
            self.lend([dout, weight, slope.unwrap_or(dout)], [dx]);
        let weight = Matrix::new(weight, inputs, outputs, outputs).transposed();
        let dout = Matrix::new(dout, rows, outputs, outputs);
        matmul(dx, inputs, dout, weight, SET, &mut scratch, |row, first, part| {
            if has_slope {
                elementwise::multiply(part, &slope[row * inputs + first..]);
            }
            round::slice(precision, part);
        });
    }

    /// See [`Backend::head`](crate::engine::fused::backend::Backend::head).
    pub(super) fn head_product(&mut self, x: Span, wte: Span, logits: Span, width: usize) {
        let (rows, vocab) = (x.len / width, wte.len / width);
        let ([x, wte], [logits], mut scratch) = self.lend([x, wte], [logits]);
        let (x, wte) = (Matrix::new(x, rows, width, width), Matrix::new(wte, vocab, width, width));
        matmul(logits, vocab, x, wte.transposed(), SET, &mut scratch, |_, _, _| {});
    }

    /// See [`Backend::head_backward`](crate::engine::fused::backend::Backend::head_backward).
    pub(super) fn head_gradients(&mut self, tensors: HeadBackward) {
        let HeadBackward { dlogits, x, wte, dx, dwte, width } = tensors;
        let (rows, vocab) = (x.len / width, wte.len / width);
        let ([dlogits, x, wte], [dx, dwte], mut scratch) = self.lend([dlogits, x, wte], [dx, dwte]);
        let dlogits = Matrix::new(dlogits, rows, vocab, vocab);
        let (x, wte) = (Matrix::new(x, rows, width, width), Matrix::new(wte, vocab, width, width));
        matmul(dx, width, dlogits, wte, SET, &mut scratch, |_, _, _| {});
        matmul(dwte, width, dlogits.transposed(), x, ADD, &mut scratch, |_, _, _| {});
    }
}
