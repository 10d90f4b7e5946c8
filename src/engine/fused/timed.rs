//! A backend that keeps the time of every kernel: where a step's time goes.
//!
//! It wraps another one and changes nothing, so what is measured is what trains. A device with a clock of its own is
//! asked for a moment before and after each kernel and waited for once, at the end; on any other device each kernel is
//! waited for.

use super::backend::{
    AdamWTensors, AttentionBackward, AttentionShape, Backend, CrossEntropy, Epilogue, HeadBackward,
    InputGradient, LayerNormBackward, Linear, MuonKernels, MuonMomentum, MuonProduct, MuonUpdate,
    NextAttention, Norm, ResidualLayerNorm, StepOutcome, WeightGradient,
};
use super::{Gather, Packed};
use crate::engine::dropout::Site;
use crate::engine::memory::Span;
use crate::engine::optimizer::OptimizerStep;
use crate::engine::optimizer::adamw::Constants;
use crate::engine::optimizer::muon;
use crate::engine::traffic::{Mark, Noted};
use crate::engine::{Batch, EngineError, FastPaths, Next};
use crate::recipe::MuonPrecision;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What a kernel belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Token and position embedding, both ways.
    Embedding,
    /// LayerNorm with the residual sums, both ways.
    LayerNorm,
    /// A linear layer's product, bias and GELU.
    Forward(&'static str),
    /// Its input's gradient, with GELU's.
    BackwardInput(&'static str),
    /// Its weight's and bias's gradient.
    BackwardWeight(&'static str),
    /// GELU computed again for the backward pass.
    Gelu,
    /// Adding up the partial sums that are gradients of biases, scales and shifts.
    Sums,
    /// Attention forward.
    AttentionForward,
    /// Attention backward.
    AttentionBackward,
    /// Head and loss, both ways.
    Head,
    /// Adding up gradients over the ranks, and waiting for the slowest.
    Communication,
    /// Gradient norm and update.
    Optimizer,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Embedding => f.pad("embedding"),
            Self::LayerNorm => f.pad("layernorm"),
            Self::Forward(name) => f.pad(&format!("{name}_forward")),
            Self::BackwardInput(name) => f.pad(&format!("{name}_backward_input")),
            Self::BackwardWeight(name) => f.pad(&format!("{name}_backward_weight")),
            Self::Gelu => f.pad("gelu_again"),
            Self::Sums => f.pad("partial_sums"),
            Self::AttentionForward => f.pad("attention_forward"),
            Self::AttentionBackward => f.pad("attention_backward"),
            Self::Head => f.pad("head_and_loss"),
            Self::Communication => f.pad("communication"),
            Self::Optimizer => f.pad("optimizer"),
        }
    }
}

/// See the module.
pub struct Timed<B> {
    inner: B,
    times: BTreeMap<Phase, Duration>,
    /// Phases between two moments of the device's clock.
    marked: Vec<(Phase, (Mark, Mark))>,
}

/// Where the time went since the last look.
#[derive(Debug, Default)]
pub struct Times {
    /// The time of each phase.
    pub phases: BTreeMap<Phase, Duration>,
    /// Every launch, if the backend notes them.
    pub launches: Vec<Noted>,
}

impl<B: Backend> Timed<B> {
    /// Wraps a backend. No sequence of kernels is recorded.
    pub fn new(inner: B) -> Self {
        Self { inner, times: BTreeMap::new(), marked: Vec::new() }
    }

    /// The time of each phase since the last call, and every launch that the backend has noted. Waits for the device.
    ///
    /// # Errors
    /// Where the device has failed.
    pub fn take(&mut self) -> Result<Times, EngineError> {
        let (phases, pairs): (Vec<_>, Vec<_>) = self.marked.drain(..).unzip();
        let measured = self.inner.measured(&pairs)?;
        for (phase, seconds) in phases.into_iter().zip(measured.seconds) {
            *self.times.entry(phase).or_default() += Duration::from_secs_f64(seconds.max(0.0));
        }
        Ok(Times { phases: std::mem::take(&mut self.times), launches: measured.launches })
    }

    /// The backend underneath, to change.
    pub fn inner_mut(&mut self) -> &mut B {
        &mut self.inner
    }

    fn time<T>(&mut self, phase: Phase, run: impl FnOnce(&mut B) -> T) -> T {
        self.inner.annotate(Some(&phase));
        // sums over the ranks go on beside the kernels, so only waiting tells how long they take
        let begin = if phase == Phase::Communication { None } else { self.inner.mark() };
        let result = match begin {
            Some(begin) => {
                let result = run(&mut self.inner);
                self.marked.extend(self.inner.mark().map(|end| (phase, (begin, end))));
                result
            }
            None => {
                self.inner.wait();
                let start = Instant::now();
                let result = run(&mut self.inner);
                self.inner.wait();
                *self.times.entry(phase).or_default() += start.elapsed();
                result
            }
        };
        self.inner.annotate(None);
        result
    }
}

impl<B: Backend> Backend for Timed<B> {
    fn stage(&mut self, batch: &Batch) {
        self.inner.stage(batch);
    }

    fn upload(&mut self, batch: &Batch, weight: f32) {
        self.inner.upload(batch, weight);
    }

    fn upload_next(&mut self, next: &[Next]) {
        self.inner.upload_next(next);
    }

    fn upload_packed(&mut self, packed: &Packed) {
        self.inner.upload_packed(packed);
    }

    fn row_step(&self) -> usize {
        self.inner.row_step()
    }

    fn gather(&mut self, rows: Gather, from: Span, out: Span, width: usize) {
        let phase = if rows == Gather::Asked { Phase::Head } else { Phase::AttentionForward };
        self.time(phase, |b| b.gather(rows, from, out, width));
    }

    fn fast_paths(&self) -> Option<FastPaths> {
        self.inner.fast_paths()
    }

    fn memory_taken(&self) -> Option<u64> {
        self.inner.memory_taken()
    }

    fn is_immediate(&self) -> bool {
        self.inner.is_immediate()
    }

    fn wait(&mut self) {
        self.inner.wait();
    }

    fn download(&mut self, span: Span) -> Result<Cow<'_, [f32]>, EngineError> {
        self.inner.download(span)
    }

    fn write(&mut self, span: Span, values: &[f32]) -> Result<(), EngineError> {
        self.inner.write(span, values)
    }

    fn refresh_low(&mut self) {
        self.time(Phase::Optimizer, |b| b.refresh_low());
    }

    fn embed(&mut self, wte: Span, wpe: Span, out: Span) {
        self.time(Phase::Embedding, |b| b.embed(wte, wpe, out));
    }

    fn embed_layernorm(&mut self, wte: Span, wpe: Span, x: Span, norm: Norm, out: Span) {
        // on the host the two are apart, and so is their time
        if self.inner.is_immediate() {
            self.embed(wte, wpe, x);
            self.layernorm(x, norm, out);
        } else {
            self.time(Phase::Embedding, |b| b.embed_layernorm(wte, wpe, x, norm, out));
        }
    }

    fn embed_next(&mut self, wte: Span, wpe: Span, out: Span) {
        self.time(Phase::Embedding, |b| b.embed_next(wte, wpe, out));
    }

    fn sums_positions(&self) -> bool {
        self.inner.sums_positions()
    }

    fn embed_backward(&mut self, dx: Span, dx_low: Option<Span>, dwte: Span, dwpe: Option<Span>) {
        self.time(Phase::Embedding, |b| b.embed_backward(dx, dx_low, dwte, dwpe));
    }

    fn add_up_biases(&mut self, biases: &[Span], sums: Span) {
        self.time(Phase::LayerNorm, |b| b.add_up_biases(biases, sums));
    }

    fn drop_out(&mut self, x: Span, site: Site) {
        self.time(Phase::Embedding, |b| b.drop_out(x, site));
    }

    fn layernorm(&mut self, x: Span, norm: Norm, out: Span) {
        self.time(Phase::LayerNorm, |b| b.layernorm(x, norm, out));
    }

    fn residual_layernorm(&mut self, tensors: ResidualLayerNorm) {
        self.time(Phase::LayerNorm, |b| b.residual_layernorm(tensors));
    }

    fn layernorm_again(&mut self, x: Span, norm: Norm, out: Span) {
        self.time(Phase::LayerNorm, |b| b.layernorm_again(x, norm, out));
    }

    fn layernorm_backward(&mut self, tensors: LayerNormBackward) {
        self.time(Phase::LayerNorm, |b| {
            b.layernorm_backward(tensors);
        });
    }

    fn linear(&mut self, x: Span, linear: Linear, out: Span, epilogue: Epilogue) {
        self.time(Phase::Forward(linear.name), |b| b.linear(x, linear, out, epilogue));
    }

    fn linear_backward_weight(&mut self, tensors: WeightGradient) {
        self.time(Phase::BackwardWeight(tensors.linear.name), |b| {
            b.linear_backward_weight(tensors);
        });
    }

    fn linear_backward_input(&mut self, tensors: InputGradient) {
        self.time(Phase::BackwardInput(tensors.linear.name), |b| {
            b.linear_backward_input(tensors);
        });
    }

    fn gelu_again(&mut self, fc: Span, out: Span) {
        self.time(Phase::Gelu, |b| b.gelu_again(fc, out));
    }

    fn sums_columns(&self) -> bool {
        self.inner.sums_columns()
    }

    fn add_sums(&mut self, gradients: Span) {
        // otherwise there is nothing to add up, and no phase
        if self.inner.sums_columns() {
            self.time(Phase::Sums, |b| b.add_sums(gradients));
        }
    }

    fn attention(
        &mut self,
        qkv: Span,
        softmax: Span,
        out: Span,
        shape: AttentionShape,
        dropout: Option<Site>,
    ) {
        self.time(Phase::AttentionForward, |b| b.attention(qkv, softmax, out, shape, dropout));
    }

    fn attention_next(&mut self, tensors: NextAttention) {
        self.time(Phase::AttentionForward, |b| b.attention_next(tensors));
    }

    fn attention_backward(&mut self, tensors: AttentionBackward) {
        self.time(Phase::AttentionBackward, |b| {
            b.attention_backward(tensors);
        });
    }

    fn head(&mut self, x: Span, wte: Span, logits: Span, width: usize) {
        self.time(Phase::Head, |b| b.head(x, wte, logits, width));
    }

    fn cross_entropy(&mut self, tensors: CrossEntropy) {
        self.time(Phase::Head, |b| b.cross_entropy(tensors));
    }

    fn head_backward(&mut self, tensors: HeadBackward) {
        self.time(Phase::Head, |b| b.head_backward(tensors));
    }

    fn add_loss(&mut self, losses: Span) {
        self.time(Phase::Head, |b| b.add_loss(losses));
    }

    fn loss(&mut self) -> Result<f64, EngineError> {
        self.inner.loss()
    }

    fn reduces_alone(&self) -> bool {
        self.inner.reduces_alone()
    }

    fn reduce(&mut self, gradients: Span) {
        self.time(Phase::Communication, |b| b.reduce(gradients));
    }

    fn reduced(&mut self) {
        self.time(Phase::Communication, |b| b.reduced());
    }

    fn measure(&mut self, step: &OptimizerStep) {
        self.time(Phase::Optimizer, |b| b.measure(step));
    }

    fn adamw(&mut self, tensors: AdamWTensors, constants: &Constants) {
        self.time(Phase::Optimizer, |b| b.adamw(tensors, constants));
    }

    fn muon(&mut self) -> &mut dyn MuonKernels {
        self
    }

    fn all_gather_parameters(&mut self) {
        self.time(Phase::Optimizer, |b| b.all_gather_parameters());
    }

    fn discard(&mut self) {
        self.time(Phase::Optimizer, |b| b.discard());
    }

    fn outcome(&mut self) -> Result<StepOutcome, EngineError> {
        self.inner.outcome()
    }
}

impl<B: Backend> Timed<B> {
    fn time_muon(&mut self, run: impl FnOnce(&mut dyn MuonKernels)) {
        self.time(Phase::Optimizer, |b| run(b.muon()));
    }
}

impl<B: Backend> MuonKernels for Timed<B> {
    fn muon_momentum(&mut self, tensors: MuonMomentum, constants: &muon::Constants) {
        self.time_muon(|kernels| kernels.muon_momentum(tensors, constants));
    }

    fn muon_normalize(&mut self, x: Span, precision: MuonPrecision) {
        self.time_muon(|kernels| kernels.muon_normalize(x, precision));
    }

    fn muon_product(&mut self, product: MuonProduct, precision: MuonPrecision) {
        self.time_muon(|kernels| kernels.muon_product(product, precision));
    }

    fn muon_apply(&mut self, tensors: MuonUpdate, constants: &muon::Constants) {
        self.time_muon(|kernels| kernels.muon_apply(tensors, constants));
    }
}

#[cfg(test)]
mod tests;
