//! The kernels of each step of the choreography.

use super::{CudaBackend, Replay, packed};
use crate::engine::cuda::batch::Words;
use crate::engine::cuda::device::{Device, Fused, Product};
use crate::engine::cuda::kernels::layernorm::Biases;
use crate::engine::cuda::kernels::ready::Ready;
use crate::engine::cuda::kernels::{self, dropout, embedding, layernorm, linear, loss, next, optimizer};
use crate::engine::cuda::scratch::sums;
use crate::engine::dropout::Site;
use crate::engine::fused::backend::{
    AdamWTensors, AttentionBackward, AttentionShape, Backend, Begun, CrossEntropy, Epilogue, HeadBackward,
    InputGradient, LayerNormBackward, Linear, MuonKernels, NextAttention, Norm, ResidualLayerNorm, Sequence,
    StepOutcome, WeightGradient,
};
use crate::engine::fused::{Gather, Packed};
use crate::engine::memory::{Buffer, Span};
use crate::engine::optimizer::OptimizerStep;
use crate::engine::optimizer::adamw::Constants;
use crate::engine::traffic::{Mark, Measured, Traffic};
use crate::engine::{Batch, EngineError, FastPaths, Next};
use std::borrow::Cow;
use std::fmt::Display;

impl<D: Device> Backend for CudaBackend<D> {
    fn stage(&mut self, batch: &Batch) {
        self.uploads.stage(&mut self.stream, batch);
    }

    fn upload(&mut self, batch: &Batch, weight: f32) {
        (self.rows, self.cols) = (batch.rows, batch.cols);
        self.targets = Words::new(batch.rows * batch.cols).targets();
        let (to, weight_at) = (self.word(0), self.word(Words::WEIGHT));
        self.uploads.take(&mut self.stream, batch, to);
        loss::set(&mut self.stream, weight_at, weight);
    }

    fn upload_next(&mut self, next: &[Next]) {
        let to = self.word(0);
        self.uploads.take_words(&mut self.stream, next::pack(next), to);
        self.next.clear();
        self.next.extend_from_slice(next);
    }

    fn upload_packed(&mut self, packed: &Packed) {
        self.take_packed(packed);
    }

    fn row_step(&self) -> usize {
        packed::ROW_STEP
    }

    fn begin(&mut self, sequence: Sequence) -> Begun {
        self.begin_sequence(sequence)
    }

    fn end(&mut self, sequence: Sequence) -> bool {
        self.end_sequence(sequence)
    }

    fn is_immediate(&self) -> bool {
        // kernels are issued far ahead of the device, and again from a recording
        false
    }

    fn wait(&mut self) {
        self.stream.run(D::synchronize);
    }

    fn mark(&mut self) -> Option<Mark> {
        self.stream.run(D::mark).flatten()
    }

    fn measured(&mut self, pairs: &[(Mark, Mark)]) -> Result<Measured, EngineError> {
        self.stream.measured(pairs)
    }

    fn annotate(&mut self, name: Option<&dyn Display>) {
        self.stream.device_mut().annotate(name);
    }

    fn memory_taken(&self) -> Option<u64> {
        self.stream.device().memory_taken()
    }

    fn download(&mut self, span: Span) -> Result<Cow<'_, [f32]>, EngineError> {
        let (from, precision) = (self.at(span), self.plan.config.precision);
        let mut bytes = vec![0; span.len * span.element.bytes()];
        self.stream.checked(|device| device.read(from, &mut bytes))?;
        Ok(Cow::Owned(kernels::floats(&bytes, span.element, precision)))
    }

    fn write(&mut self, span: Span, values: &[f32]) -> Result<(), EngineError> {
        assert!(span.len == values.len(), "{span:?} for {} values", values.len());
        let to = self.at(span);
        let bytes = kernels::bytes(values, span.element, self.plan.config.precision);
        self.stream.checked(|device| device.write(to, &bytes))
    }

    fn refresh_low(&mut self) {
        let Some(low) = self.plan.low(&(0..self.plan.layout.len)) else { return };
        let (from, to) = (self.at(self.plan.whole(Buffer::Parameters)), self.at(low));
        optimizer::round(&mut self.stream, from, to, low.len);
    }

    fn embed(&mut self, wte: Span, wpe: Span, out: Span) {
        let c = out.len / (self.rows * self.cols);
        let spans = [wte, wpe, out].map(|span| self.at(span));
        let tokens = self.tokens();
        embedding::forward(&mut self.stream, tokens, spans, c);
    }

    fn embed_layernorm(&mut self, wte: Span, wpe: Span, x: Span, norm: Norm, out: Span) {
        let spans = [wte, wpe, x].map(|span| self.at(span));
        let (tokens, inner, to, c) = (self.tokens(), self.norm(norm), self.at(out), norm.weight.len);
        layernorm::embedded(self.plan.config.operand(), tokens, spans, inner, to, c).launch(&mut self.stream);
    }

    fn embed_next(&mut self, wte: Span, wpe: Span, out: Span) {
        let spans = [wte, wpe, out].map(|span| self.at(span));
        let tokens = next::Tokens { next: &self.next, words: self.word(0) };
        next::embed(&mut self.stream, tokens, spans, out.element, out.len / self.next.len());
    }

    fn gather(&mut self, rows: Gather, from: Span, out: Span, width: usize) {
        self.gather_rows(rows, from, out, width);
    }

    fn embed_backward(&mut self, dx: Span, dx_low: Option<Span>, dwte: Span, dwpe: Option<Span>) {
        let c = dx.len / (self.rows * self.cols);
        let dx = self.gradient(dx, dx_low);
        let (dwte, dwpe) = (self.at(dwte), dwpe.map(|span| self.at(span)));
        let tokens = self.tokens();
        embedding::backward(&mut self.stream, tokens, dx, dwte, dwpe, c);
    }

    fn sums_positions(&self) -> bool {
        self.plan.config.halves_gradient() && layernorm::sums_positions(self.rows * self.cols, self.cols)
    }

    fn add_up_biases(&mut self, biases: &[Span], sums: Span) {
        let Some(first) = biases.first() else { return };
        // the vectors of all blocks lie in one order, block after block
        let apart = |a: usize, b: usize| biases.get(b).map_or(0, |span| span.start - biases[a].start);
        let (between, stride) = (apart(0, 1), apart(0, 2));
        for (k, span) in biases.iter().enumerate() {
            assert!(span.start == first.start + k / 2 * stride + k % 2 * between, "{span:?} is elsewhere");
        }
        let biases = Biases { first: self.at(*first), between, stride, blocks: biases.len() / 2 };
        let sums = self.at(sums);
        layernorm::add_up_biases(&mut self.stream, biases, sums, first.len);
    }

    fn drop_out(&mut self, x: Span, site: Site) {
        let (at, c) = (self.at(x), self.plan.config.dims.n_embd);
        let draws = self.draws(Some(site));
        dropout::residual(&mut self.stream, at, x.element, [x.len / c, c], draws, self.cols);
    }

    fn layernorm(&mut self, x: Span, norm: Norm, out: Span) {
        let c = norm.weight.len;
        let (from, to, inner) = (self.at(x), self.at(out), self.norm(norm));
        layernorm::forward(self.plan.config.operand(), from, inner, to, x.len / c, c)
            .launch(&mut self.stream);
    }

    fn residual_layernorm(&mut self, tensors: ResidualLayerNorm) {
        if std::mem::take(&mut self.added) {
            self.layernorm(tensors.sum, tensors.norm, tensors.out);
        } else {
            self.residual(tensors).launch(&mut self.stream);
        }
    }

    fn layernorm_again(&mut self, x: Span, norm: Norm, out: Span) {
        let c = norm.weight.len;
        let (from, to, inner) = (self.at(x), self.at(out), self.norm(norm));
        layernorm::again(self.plan.config.operand(), from, inner, to, x.len / c, c).launch(&mut self.stream);
    }

    fn layernorm_backward(&mut self, tensors: LayerNormBackward) {
        let LayerNormBackward { dout, x, norm, dx, accumulate, dx_low, dropout, .. } = tensors;
        let LayerNormBackward { dweight, dbias, dx_sums, dwpe, .. } = tensors;
        let draws = (self.draws(dropout), self.cols);
        let c = norm.weight.len;
        let [dweight, dbias] = [dweight, dbias].map(|span| self.partial_sums(span));
        let dx_sums = dx_sums.map(|span| self.partial_sums(span));
        let dx = self.gradient(dx, dx_low);
        let dwpe = dwpe.map(|span| self.at(span));
        let gradients = layernorm::Gradients { dx, accumulate, dweight, dbias, dx_sums, dwpe };
        let (spans, inner) = ([dout, x].map(|span| self.at(span)), self.norm(norm));
        layernorm::backward(&mut self.stream, spans, inner, gradients, [x.len / c, c], draws);
    }

    fn sums_columns(&self) -> bool {
        true
    }

    fn add_sums(&mut self, gradients: Span) {
        let (sums, out) = (self.partial_sums(gradients), self.at(gradients));
        let summed = self.take_summed(gradients);
        let elsewhere = self.take_elsewhere(gradients);
        linear::add_partials(&mut self.stream, sums, out, gradients.len, summed, elsewhere);
    }

    fn linear(&mut self, x: Span, linear: Linear, out: Span, epilogue: Epilogue) {
        let Linear { weight, bias, inputs, outputs, .. } = linear;
        let rows = x.len / inputs;
        let sizes = [rows, outputs, inputs];
        let (x, weight) = (self.matrix(x, inputs), self.matrix(weight, outputs));
        let product = |result| self.product(sizes, x, weight, self.matrix(result, outputs), false);
        let (stored, sum) = (self.stored_bias(bias), self.at(out));
        match epilogue {
            Epilogue::Residual(tensors) => {
                let whole = Product { fused: Fused::Residual(self.at(tensors.x)), ..product(tensors.sum) };
                let alone = product(out);
                self.project(whole, alone, tensors);
            }
            Epilogue::Bias => {
                let whole = Product { fused: Fused::Bias(stored), ..product(out) };
                let pointers = [sum, self.at(bias)];
                let after = Ready::elementwise("add_bias", &pointers, [rows, outputs], out.element);
                self.followed(whole, product(out), after);
            }
            Epilogue::BiasGelu(after) => {
                let whole = Product { fused: Fused::BiasGelu { bias: stored, sum }, ..product(after) };
                let pointers = [sum, self.at(bias), self.at(after)];
                let after = Ready::elementwise("bias_gelu", &pointers, [rows, outputs], out.element);
                self.followed(whole, product(out), after);
            }
        }
    }

    fn linear_backward_weight(&mut self, tensors: WeightGradient) {
        let WeightGradient { x, dout, linear, dweight, dbias } = tensors;
        let Linear { inputs, outputs, .. } = linear;
        let rows = x.len / inputs;
        let (a, b) = (self.matrix(x, inputs).transposed(), self.matrix(dout, outputs));
        let product = self.product([inputs, outputs, rows], a, b, self.matrix(dweight, outputs), true);
        self.stream.product(&product);
        if let Some(dbias) = dbias {
            let (from, sums) = (self.at(dout), self.partial_sums(dbias));
            linear::column_sums(&mut self.stream, from, sums, [rows, outputs], dout.element);
        }
    }

    fn linear_backward_input(&mut self, tensors: InputGradient) {
        // a product rounds to 2 bytes as it stores; in tf32 it stores unrounded, and the next product rounds
        let InputGradient { dout, linear, dx, slope, is_operand: _, dx_sums } = tensors;
        let Linear { weight, inputs, outputs, .. } = linear;
        let rows = dout.len / outputs;
        let (a, b) = (self.matrix(dout, outputs), self.matrix(weight, outputs).transposed());
        let product = self.product([rows, inputs, outputs], a, b, self.matrix(dx, inputs), false);
        match (slope, dx_sums) {
            (None, None) => self.stream.product(&product),
            (Some(fc), Some(bias)) => {
                let (fc, sums) = (self.at(fc), self.partial_sums(bias));
                let left = self.partial(self.partials.sums());
                let whole = Product { fused: Fused::GeluSlope { at: fc, sums: left }, ..product };
                let after = Ready::gelu_slope([self.at(dx), fc], sums, [rows, inputs], dx.element);
                if self.followed(whole, product, after) {
                    self.summed = Some(bias);
                }
            }
            _ => panic!("a gradient through GELU comes with its column sums, and no other does"),
        }
    }

    fn gelu_again(&mut self, fc: Span, out: Span) {
        let width = 4 * self.plan.config.dims.n_embd;
        let pointers = [fc, out].map(|span| self.at(span));
        let after = Ready::elementwise("gelu_again", &pointers, [fc.len / width, width], fc.element);
        after.launch(&mut self.stream);
    }

    fn attention(
        &mut self,
        qkv: Span,
        softmax: Span,
        out: Span,
        shape: AttentionShape,
        dropout: Option<Site>,
    ) {
        self.attend([qkv, softmax, out], shape, dropout);
    }

    fn attention_next(&mut self, tensors: NextAttention) {
        let spans = [tensors.qkv, tensors.kept, tensors.out].map(|span| self.at(span));
        let tokens = next::Tokens { next: &self.next, words: self.word(0) };
        next::attention(&mut self.stream, tokens, &tensors, spans);
    }

    fn attention_backward(&mut self, tensors: AttentionBackward) {
        self.attend_backward(tensors);
    }

    fn head(&mut self, x: Span, wte: Span, logits: Span, width: usize) {
        let (rows, vocab) = (x.len / width, wte.len / width);
        let (a, b) = (self.matrix(x, width), self.matrix(wte, width).transposed());
        let product = self.product([rows, vocab, width], a, b, self.matrix(logits, vocab), false);
        self.stream.product(&product);
    }

    fn cross_entropy(&mut self, tensors: CrossEntropy) {
        let CrossEntropy { logits, losses, first, vocab_size, gradient } = tensors;
        let (targets, weight) = (self.word(self.targets + first), self.word(Words::WEIGHT));
        let pointers = [self.at(logits), targets, weight, self.at(losses)];
        let (rows, operand) = (losses.len, logits.element);
        let shape = loss::Shape { rows, width: logits.len / rows, vocab_size, operand };
        loss::cross_entropy(&mut self.stream, pointers, gradient, shape);
    }

    fn head_backward(&mut self, tensors: HeadBackward) {
        let HeadBackward { dlogits, x, wte, dx, dwte, width } = tensors;
        let (rows, vocab) = (x.len / width, wte.len / width);
        let (dlogits, x) = (self.matrix(dlogits, vocab), self.matrix(x, width));
        let (wte, dx, dwte) = (self.matrix(wte, width), self.matrix(dx, width), self.matrix(dwte, width));
        let products = [
            self.product([rows, width, vocab], dlogits, wte, dx, false),
            self.product([vocab, width, rows], dlogits.transposed(), x, dwte, true),
        ];
        products.iter().for_each(|product| self.stream.product(product));
    }

    fn add_loss(&mut self, losses: Span) {
        let (from, sum) = (self.at(losses), self.total(sums::LOSS));
        loss::add(&mut self.stream, from, sum, losses.len);
    }

    fn loss(&mut self) -> Result<f64, EngineError> {
        let [loss] = self.totals(sums::LOSS)?;
        Ok(loss)
    }

    fn reduces_alone(&self) -> bool {
        self.ranks.is_some()
    }

    fn reduce(&mut self, gradients: Span) {
        self.begin_sum(gradients);
    }

    fn reduced(&mut self) {
        self.end_sums();
    }

    fn measure(&mut self, step: &OptimizerStep) {
        self.meet();
        let gradients = self.plan.span(Buffer::Gradients, &self.plan.owned());
        let (from, totals) = (self.at(gradients), self.total(0));
        optimizer::squares(&mut self.stream, from, gradients.len, totals);
        self.add_up_squares();
        optimizer::decide(&mut self.stream, totals, step);
    }

    fn adamw(&mut self, tensors: AdamWTensors, constants: &Constants) {
        let AdamWTensors { parameters, gradients, exp_avg, exp_avg_sq, low } = tensors;
        let buffers = optimizer::AdamWBuffers {
            flat: [parameters, gradients, exp_avg, exp_avg_sq].map(|span| self.at(span)),
            low: low.map(|span| self.at(span)),
            len: parameters.len,
        };
        let totals = self.total(0);
        optimizer::adamw(&mut self.stream, buffers, totals, constants);
    }

    fn muon(&mut self) -> &mut dyn MuonKernels {
        self
    }

    fn all_gather_parameters(&mut self) {
        self.gather_parameters();
    }

    fn discard(&mut self) {
        self.meet();
        let gradients = self.plan.whole(Buffer::Gradients);
        let (at, bytes) = (self.at(gradients), gradients.byte_range().len());
        let traffic = Traffic::of_kernel().writes(bytes, 1);
        self.stream.noted(|| "clear".into(), traffic, |device| device.clear(at, bytes));
        let totals = self.total(0);
        optimizer::discard(&mut self.stream, totals);
    }

    fn fast_paths(&self) -> Option<FastPaths> {
        let recorded = |replay: &&Replay| matches!(replay, Replay::Recorded(_));
        let graphs = self.known.values().filter(recorded).count();
        Some(FastPaths { graphs, notes: self.stream.device().notes().to_vec() })
    }

    fn outcome(&mut self) -> Result<StepOutcome, EngineError> {
        let [loss, squares, applied] = self.totals(sums::OUTCOME)?;
        Ok(StepOutcome { loss, squares, applied: applied != 0.0 })
    }
}
