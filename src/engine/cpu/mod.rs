//! The CPU backend: matrix products that finish their results in cache, everything else in as few passes over memory as
//! possible.
//!
//! Precisions that a CPU lacks are emulated: the kernel that writes an operand of a matrix product rounds it.

mod attention;
mod dropout;
mod elementwise;
mod embedding;
#[cfg(test)]
mod gradcheck;
mod layernorm;
mod loss;
mod matmul;
mod memory;
mod muon;
mod optimizer;
pub mod peak;
mod pool;
mod products;
mod round;
pub(super) mod scratch;
mod simd;
mod step;
mod team;

use super::fused::backend::{
    AdamWTensors, AttentionBackward, AttentionShape, Backend, CrossEntropy, Epilogue, HeadBackward,
    InputGradient, LayerNormBackward, Linear, MuonKernels, NextAttention, Norm, ResidualLayerNorm,
    StepOutcome, WeightGradient,
};
use super::fused::timed::Timed;
use super::fused::{Fused, Gather, Packed};
use super::optimizer::OptimizerStep;
use super::optimizer::adamw::Constants;
use super::pooled::{Here, Pooled};
use super::{Batch, EngineError, Next};
use crate::comm::{Comm, CommError, Solo};
use crate::engine::dropout::{Dropout, Site};
use crate::engine::memory::{Buffer, MemoryPlan, Span, Target};

use crate::recipe::{Attention, Precision};
use dropout::Drawn;
use memory::Memory;
pub use simd::{Level, VARIABLE as LEVEL_VARIABLE, best as best_level, chosen as chosen_level, level};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use step::Decision;
use team::Team;

/// The fused engine on the CPU, with threads of its own.
pub type CpuEngine = Pooled<Fused<CpuBackend>, Here>;

/// Allocates everything that a plan lists and starts its threads. Parameters are zero.
pub fn engine(plan: MemoryPlan) -> Result<CpuEngine, EngineError> {
    ranked_engine(plan, Arc::new(Solo))
}

/// [`engine`] for one of the ranks that `comm` connects. Errors: memory or threads that cannot be had.
pub fn ranked_engine(plan: MemoryPlan, comm: Arc<dyn Comm>) -> Result<CpuEngine, EngineError> {
    let backend = CpuBackend::new(&plan, comm.clone())?;
    Ok(Pooled::here(Fused::new(plan, backend, comm)))
}

/// [`ranked_engine`] with the time of every phase on record.
pub fn timed_engine(
    plan: MemoryPlan,
    comm: Arc<dyn Comm>,
) -> Result<Pooled<Fused<Timed<CpuBackend>>, Here>, EngineError> {
    let backend = CpuBackend::new(&plan, comm.clone())?;
    Ok(Pooled::here(Fused::new(plan, Timed::new(backend), comm)))
}

/// Buffers and kernels of the CPU.
pub struct CpuBackend {
    memory: Memory,
    precision: Precision,
    attention: Attention,
    team: Team,
    worker: usize,
    workers: Span,
    panels: Span,
    partials: Span,
    inputs: Vec<u32>,
    targets: Vec<u32>,
    cols: usize,
    /// The next tokens of some sequences, or those of a batch that are computed.
    next: Vec<Next>,
    packed: Packed,
    /// The training row that the batch begins with.
    first_row: u64,
    /// Which activations are left out.
    dropout: Option<Dropout>,
    /// What each token's loss counts in the gradient.
    weight: f32,
    /// The sum of the step's losses.
    loss: f64,
    /// What was decided about the last step.
    decision: Decision,
    outcome: Option<StepOutcome>,
    comm: Arc<dyn Comm>,
    /// The elements of the flat buffers that this rank updates.
    owned: Range<usize>,
    /// The elements that each rank updates; `None` if each updates all of them.
    owners: Option<Vec<Range<usize>>>,
    /// Why the ranks cannot go on.
    failed: Option<CommError>,
}

impl CpuBackend {
    fn new(plan: &MemoryPlan, comm: Arc<dyn Comm>) -> Result<Self, EngineError> {
        chosen_level().map_err(EngineError::Unsupported)?;
        let Target::Cpu { threads } = plan.config.target else {
            panic!("the CPU engine got a plan for a CUDA device")
        };
        let team = Team::new(threads)?;
        let tokens = plan.config.micro_batch * plan.config.dims.block_size;
        Ok(Self {
            memory: Memory::new(plan)?,
            precision: plan.config.precision,
            attention: plan.config.attention,
            team,
            worker: plan.arena.worker,
            workers: plan.arena.workers,
            panels: plan.arena.panels,
            partials: plan.arena.partials,
            inputs: Vec::with_capacity(tokens),
            targets: Vec::with_capacity(tokens),
            cols: 0,
            next: Vec::new(),
            packed: Packed::default(),
            first_row: 0,
            dropout: plan.config.dropout(),
            weight: 0.0,
            loss: 0.0,
            decision: Decision::None,
            outcome: None,
            owned: plan.owned(),
            owners: plan.owners(),
            comm,
            failed: None,
        })
    }

    /// What is drawn for the batch at a site.
    fn drawn(&self, site: Option<Site>) -> Option<Drawn> {
        let (first_row, cols) = (self.first_row, self.cols);
        site.zip(self.dropout).map(|(site, dropout)| Drawn { dropout, site, first_row, cols })
    }

    fn attention_problem(&self, shape: AttentionShape, dropout: Option<Site>) -> attention::Problem {
        let (kind, precision, dropped) = (self.attention, self.precision, self.drawn(dropout));
        attention::Problem { kind, precision, shape, dropped }
    }

    /// Bytes of the buffers in which everything is computed, as the system gave them: what a plan promises. The token
    /// ids of the batch at hand, 8 bytes per token, are not among them.
    pub fn allocated_bytes(&self) -> usize {
        self.memory.bytes()
    }
}

impl Backend for CpuBackend {
    fn upload(&mut self, batch: &Batch, weight: f32) {
        self.weight = weight;
        self.inputs.clear();
        self.inputs.extend_from_slice(batch.inputs);
        self.targets.clear();
        self.targets.extend_from_slice(batch.targets);
        (self.cols, self.first_row) = (batch.cols, batch.first_row);
    }

    fn upload_next(&mut self, next: &[Next]) {
        self.next.clear();
        self.next.extend_from_slice(next);
    }

    fn upload_packed(&mut self, packed: &Packed) {
        self.upload_next(&packed.computed);
        self.targets.clone_from(&packed.targets);
        self.packed.clone_from(packed);
    }

    fn gather(&mut self, rows: Gather, from: Span, out: Span, width: usize) {
        let ([from], [out]) = self.memory.split([from], [out]);
        embedding::gather(&self.team, self.packed.rows(rows), from, out, width);
    }

    fn download(&mut self, span: Span) -> Result<Cow<'_, [f32]>, EngineError> {
        Ok(Cow::Borrowed(self.memory.read(span)))
    }

    fn write(&mut self, span: Span, values: &[f32]) -> Result<(), EngineError> {
        let ([], [to]) = self.memory.split([], [span]);
        to.copy_from_slice(values);
        Ok(())
    }

    fn refresh_low(&mut self) {
        let low = self.memory.whole(Buffer::Low);
        if low.len > 0 {
            let matrices = Span { buffer: Buffer::Parameters, ..low };
            let ([matrices], [low]) = self.memory.split([matrices], [low]);
            round::copy(&self.team, self.precision, matrices, low);
        }
    }

    fn embed(&mut self, wte: Span, wpe: Span, out: Span) {
        let c = out.len / self.inputs.len();
        let ([wte, wpe], [out]) = self.memory.split([wte, wpe], [out]);
        embedding::forward(&self.team, &self.inputs, self.cols, wte, wpe, out, c);
    }

    fn embed_next(&mut self, wte: Span, wpe: Span, out: Span) {
        let c = out.len / self.next.len();
        let ([wte, wpe], [out]) = self.memory.split([wte, wpe], [out]);
        embedding::next(&self.next, wte, wpe, out, c);
    }

    fn embed_backward(&mut self, dx: Span, _: Option<Span>, dwte: Span, dwpe: Option<Span>) {
        let c = dx.len / self.inputs.len();
        let dwpe = dwpe.expect("no LayerNorm sums positions here");
        let ([dx], [dwte, dwpe]) = self.memory.split([dx], [dwte, dwpe]);
        embedding::backward(&self.team, &self.inputs, self.cols, dx, dwte, dwpe, c);
    }

    fn drop_out(&mut self, x: Span, site: Site) {
        let Some(drawn) = self.drawn(Some(site)) else { return };
        let c = x.len / self.inputs.len();
        let ([], [x]) = self.memory.split([], [x]);
        dropout::in_place(&self.team, &drawn, x, c);
    }

    fn layernorm(&mut self, x: Span, norm: Norm, out: Span) {
        let ([x, weight, bias], [stats, out]) =
            self.memory.split([x, norm.weight, norm.bias], [norm.stats, out]);
        layernorm::forward(&self.team, self.precision, x, (weight, bias), stats, out);
    }

    fn residual_layernorm(&mut self, tensors: ResidualLayerNorm) {
        let ResidualLayerNorm { x, delta, bias, dropout, sum, norm, out } = tensors;
        let dropped = self.drawn(dropout);
        let reads = [x, delta, bias, norm.weight, norm.bias];
        let ([x, delta, delta_bias, weight, bias], [sum, stats, out]) =
            self.memory.split(reads, [sum, norm.stats, out]);
        let residual = layernorm::Residual { x, delta, bias: delta_bias, dropped };
        let (team, affine) = (&self.team, (weight, bias));
        layernorm::residual_forward(team, self.precision, &residual, sum, affine, stats, out);
    }

    fn layernorm_again(&mut self, x: Span, norm: Norm, out: Span) {
        let ([x, weight, bias, stats], [out]) =
            self.memory.split([x, norm.weight, norm.bias, norm.stats], [out]);
        layernorm::again(&self.team, self.precision, x, (weight, bias), stats, out);
    }

    fn layernorm_backward(&mut self, tensors: LayerNormBackward) {
        let LayerNormBackward { dout, x, norm, dx, accumulate, dx_low, dropout, dweight, dbias, .. } =
            tensors;
        let dropped = self.drawn(dropout);
        let low = dx_low.unwrap_or(dx.head(0));
        let ([dout, x, weight, stats], [dx, low, partials, dweight, dbias]) =
            self.memory.split([dout, x, norm.weight, norm.stats], [dx, low, self.partials, dweight, dbias]);
        let saved = layernorm::Saved { dout, x, weight, stats };
        let gradients = layernorm::Gradients { dx, accumulate, low, dropped, dweight, dbias };
        layernorm::backward(&self.team, self.precision, &saved, gradients, partials);
    }

    fn linear(&mut self, x: Span, linear: Linear, out: Span, epilogue: Epilogue) {
        self.product(x, linear, out, epilogue);
    }

    fn linear_backward_weight(&mut self, tensors: WeightGradient) {
        self.weight_gradient(tensors);
    }

    fn linear_backward_input(&mut self, tensors: InputGradient) {
        self.input_gradient(tensors);
    }

    fn gelu_again(&mut self, fc: Span, out: Span) {
        let ([], [fc, out]) = self.memory.split([], [fc, out]);
        elementwise::gelu_again(&self.team, self.precision, fc, out);
    }

    fn attention(
        &mut self,
        qkv: Span,
        softmax: Span,
        out: Span,
        shape: AttentionShape,
        dropout: Option<Site>,
    ) {
        let problem = self.attention_problem(shape, dropout);
        let ([qkv], [softmax, out, workers]) = self.memory.split([qkv], [softmax, out, self.workers]);
        attention::forward(&self.team, problem, qkv, softmax, out, workers, self.worker);
    }

    fn attention_next(&mut self, tensors: NextAttention) {
        let NextAttention { qkv, kept, out, n_head, head_size, block_size } = tensors;
        let ([qkv], [kept, out, workers]) = self.memory.split([qkv], [kept, out, self.workers]);
        let problem = attention::NextProblem {
            kind: self.attention,
            precision: self.precision,
            next: &self.next,
            n_head,
            head_size,
            block_size,
        };
        attention::next(&self.team, problem, qkv, kept, out, workers, self.worker);
    }

    fn attention_backward(&mut self, tensors: AttentionBackward) {
        let AttentionBackward { qkv, softmax, out, dout, dqkv, dqkv_sums: _, dropout, shape } = tensors;
        let problem = self.attention_problem(shape, dropout);
        let ([qkv, softmax, out, dout], [dqkv, workers]) =
            self.memory.split([qkv, softmax, out, dout], [dqkv, self.workers]);
        let saved = attention::Saved { qkv, softmax, out, dout };
        attention::backward(&self.team, problem, saved, dqkv, workers, self.worker);
    }

    fn head(&mut self, x: Span, wte: Span, logits: Span, width: usize) {
        self.head_product(x, wte, logits, width);
    }

    fn cross_entropy(&mut self, tensors: CrossEntropy) {
        let CrossEntropy { logits, losses, first, vocab_size, gradient } = tensors;
        let weight = gradient.then_some(self.weight);
        let (width, targets) = (logits.len / losses.len, &self.targets[first..][..losses.len]);
        let ([], [logits, losses]) = self.memory.split([], [logits, losses]);
        let columns = loss::LogitColumns { width, vocab_size };
        loss::cross_entropy(&self.team, self.precision, logits, columns, targets, losses, weight);
    }

    fn head_backward(&mut self, tensors: HeadBackward) {
        self.head_gradients(tensors);
    }

    fn add_loss(&mut self, losses: Span) {
        let losses = self.memory.read(losses);
        self.loss += losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len() as f64;
    }

    fn loss(&mut self) -> Result<f64, EngineError> {
        self.check_ranks()?;
        Ok(self.loss)
    }

    // `reduce` is left alone: nothing goes on beside anything else here, so one sum at the end waits less often
    fn reduced(&mut self) {
        self.sum_over_ranks();
    }

    fn measure(&mut self, step: &OptimizerStep) {
        self.measure_gradients(step);
    }

    fn adamw(&mut self, tensors: AdamWTensors, constants: &Constants) {
        self.apply_adamw(tensors, constants);
    }

    fn muon(&mut self) -> &mut dyn MuonKernels {
        self
    }

    fn all_gather_parameters(&mut self) {
        self.gather_parameters();
    }

    fn discard(&mut self) {
        self.discard_gradients();
    }

    fn outcome(&mut self) -> Result<StepOutcome, EngineError> {
        self.step_outcome()
    }
}
