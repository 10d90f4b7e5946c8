//! The fused engine: GPT-2's forward and backward pass as a fixed sequence of kernels over planned memory.
//!
//! Written once over [`Backend`], so CPU and CUDA differ in kernels only. Kept from forward to backward are the inputs of
//! each block's matrix products that cannot be recomputed cheaply; LayerNorm and GELU outputs are computed again in the
//! backward pass, which costs less than the memory traffic of keeping them.

pub mod backend;
mod optimizer;
mod sharded;
pub mod timed;

pub use optimizer::update;

use self::backend::{
    AttentionBackward, AttentionShape, Backend, Begun, CrossEntropy, Epilogue, HeadBackward, InputGradient,
    LayerNormBackward, Linear, Norm, ResidualLayerNorm, Sequence, WeightGradient,
};
use crate::comm::Comm;
use crate::engine::memory::{Arena, Buffer, MemoryPlan, Span};
use crate::engine::optimizer::{OptimizerState, OptimizerStep};
use crate::engine::{
    Applied, Batch, Engine, EngineError, State, first_not_finite, no_update, sum_of_squares_on_host,
};
use crate::model::{Block, ParamLayout};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A GPT-2 on a [`Backend`].
pub struct Fused<B> {
    plan: MemoryPlan,
    backend: B,
    /// The other ranks, which the backend knows too.
    comm: Arc<dyn Comm>,
    /// Where matrix products read the matrices: the low-precision copy, or the parameters themselves in fp32.
    matrices: Buffer,
    /// Micro-batches accumulated since the last update.
    accumulated: u32,
    /// How the last step was ended.
    ended: Option<Ended>,
}

/// The end of a step.
#[derive(Clone, Copy)]
struct Ended {
    /// Micro-batches that it had.
    micro_batches: u32,
    /// Its loss scale, unless it was discarded.
    loss_scale: Option<f64>,
}

/// The shape of the batch at hand, at most the planned one.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    cols: usize,
    /// Tokens, rows · cols.
    n: usize,
    /// Width of the residual stream.
    c: usize,
}

impl<B: Backend> Fused<B> {
    /// An engine over a backend that has allocated this plan, for one of the ranks that `comm` connects.
    pub fn new(plan: MemoryPlan, backend: B, comm: Arc<dyn Comm>) -> Self {
        let matrices = plan.matrices();
        Self { plan, backend, comm, matrices, accumulated: 0, ended: None }
    }

    /// The backend underneath.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The same, to change.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    fn check(&self, batch: &Batch) -> Shape {
        let Batch { rows, cols, inputs, targets } = *batch;
        let config = &self.plan.config;
        assert!(rows <= config.micro_batch && cols <= config.dims.block_size, "batch exceeds the plan");
        assert!(inputs.len() == rows * cols && targets.len() == rows * cols, "batch is not rows x cols");
        Shape { rows, cols, n: rows * cols, c: config.dims.n_embd }
    }

    /// Checks a batch and brings it to the device; `weight` is that of its mean loss.
    fn upload(&mut self, batch: &Batch, weight: f64) -> Shape {
        let shape = self.check(batch);
        self.backend.upload(batch, (weight / shape.n as f64) as f32);
        shape
    }

    fn parameter(&self, range: &Range<usize>) -> Span {
        self.plan.span(Buffer::Parameters, range)
    }

    fn gradient(&self, range: &Range<usize>) -> Span {
        self.plan.span(Buffer::Gradients, range)
    }

    fn linear(&self, name: &'static str, weight: &Range<usize>, bias: &Range<usize>) -> Linear {
        Linear {
            name,
            weight: self.plan.span(self.matrices, weight),
            bias: self.parameter(bias),
            inputs: weight.len() / bias.len(),
            outputs: bias.len(),
        }
    }

    fn norm(&self, weight: &Range<usize>, bias: &Range<usize>, stats: Span, n: usize) -> Norm {
        Norm { weight: self.parameter(weight), bias: self.parameter(bias), stats: stats.head(2 * n) }
    }

    fn attention_shape(&self, s: Shape) -> AttentionShape {
        let dims = &self.plan.config.dims;
        AttentionShape { rows: s.rows, cols: s.cols, n_head: dims.n_head, head_size: dims.head_size() }
    }

    /// The part of a planned softmax span that a batch of this shape uses.
    fn softmax(&self, span: Span, s: Shape) -> Span {
        let dims = &self.plan.config.dims;
        let planned = self.plan.config.micro_batch * dims.n_head * dims.block_size;
        let per_row = if span.len > planned { s.cols } else { 1 };
        span.head(s.n * dims.n_head * per_row)
    }

    /// Embedding, blocks and final LayerNorm; its output is left in `arena.ln`.
    fn forward(&mut self, s: Shape) {
        let (layout, arena) = (self.plan.layout.clone(), self.plan.arena.clone());
        let rows = |span: Span, width: usize| span.head(s.n * width);
        let (ln, delta, wide) = (rows(arena.ln, s.c), rows(arena.delta, s.c), rows(arena.wide, 4 * s.c));
        let mut x = rows(arena.layers.first().map_or(arena.x_out, |l| l.x), s.c);
        self.backend.embed(self.parameter(&layout.wte), self.parameter(&layout.wpe), x);
        let first = self.norm_into(&layout, &arena, 0, s);
        self.backend.layernorm(x, first, ln);
        for (l, (block, a)) in layout.blocks.iter().zip(&arena.layers).enumerate() {
            let (qkv, att, x_mid, fc) =
                (rows(a.qkv, 3 * s.c), rows(a.att, s.c), rows(a.x_mid, s.c), rows(a.fc, 4 * s.c));
            let c_attn = self.linear("c_attn", &block.c_attn_weight, &block.c_attn_bias);
            let attn_proj = self.linear("attn_proj", &block.attn_proj_weight, &block.attn_proj_bias);
            let c_fc = self.linear("c_fc", &block.c_fc_weight, &block.c_fc_bias);
            let mlp_proj = self.linear("mlp_proj", &block.mlp_proj_weight, &block.mlp_proj_bias);
            let ln_2 = self.norm(&block.ln_2_weight, &block.ln_2_bias, a.ln_2, s.n);
            let next = self.norm_into(&layout, &arena, l + 1, s);
            let x_next = rows(arena.layers.get(l + 1).map_or(arena.x_out, |next| next.x), s.c);
            let (softmax, shape) = (self.softmax(a.softmax, s), self.attention_shape(s));

            self.backend.linear(ln, c_attn, qkv, Epilogue::Bias);
            self.backend.attention(qkv, softmax, att, shape);
            self.backend.linear(att, attn_proj, delta, Epilogue::None);
            self.backend.residual_layernorm(ResidualLayerNorm {
                x,
                delta,
                bias: attn_proj.bias,
                sum: x_mid,
                norm: ln_2,
                out: ln,
            });
            self.backend.linear(ln, c_fc, fc, Epilogue::BiasGelu(wide));
            self.backend.linear(wide, mlp_proj, delta, Epilogue::None);
            self.backend.residual_layernorm(ResidualLayerNorm {
                x: x_mid,
                delta,
                bias: mlp_proj.bias,
                sum: x_next,
                norm: next,
                out: ln,
            });
            x = x_next;
        }
    }

    /// The LayerNorm that reads the residual stream entering block `l`: its `ln_1`, or `ln_f` after the last block.
    fn norm_into(&self, layout: &ParamLayout, arena: &Arena, l: usize, s: Shape) -> Norm {
        match (layout.blocks.get(l), arena.layers.get(l)) {
            (Some(b), Some(a)) => self.norm(&b.ln_1_weight, &b.ln_1_bias, a.ln_1, s.n),
            _ => self.norm(&layout.ln_f_weight, &layout.ln_f_bias, arena.ln_f, s.n),
        }
    }

    /// Language-model head and losses, a chunk of rows at a time so that all logits never exist together. When
    /// `training`, also the gradients of the head and, in `arena.delta`, of the final LayerNorm's output.
    fn head(&mut self, s: Shape, training: bool) {
        let (arena, dims) = (self.plan.arena.clone(), self.plan.config.dims);
        let wte = self.plan.span(self.matrices, &self.plan.layout.wte);
        let dwte = self.gradient(&self.plan.layout.wte);
        for first in (0..s.n).step_by(arena.chunk) {
            let rows = arena.chunk.min(s.n - first);
            let ln = arena.ln.slice(first * s.c, rows * s.c);
            let logits = arena.logits.head(rows * dims.padded_vocab);
            let losses = arena.losses.slice(first, rows);
            self.backend.head(ln, wte, logits, s.c);
            let dlogits = training.then(|| arena.dlogits.head(rows * dims.padded_vocab));
            self.backend.cross_entropy(CrossEntropy {
                logits,
                losses,
                first,
                vocab_size: dims.vocab_size,
                dlogits,
            });
            if let Some(dlogits) = dlogits {
                let dx = arena.delta.slice(first * s.c, rows * s.c);
                self.backend.head_backward(HeadBackward { dlogits, x: ln, wte, dx, dwte, width: s.c });
            }
        }
    }

    /// From the gradient of the final LayerNorm's output to that of every parameter. In the `last` pass of a step, each
    /// range of gradients that is complete begins to be added up over the ranks.
    fn backward(&mut self, s: Shape, last: bool) {
        let (layout, arena) = (self.plan.layout.clone(), self.plan.arena.clone());
        let rows = |span: Span, width: usize| span.head(s.n * width);
        let plan = self.plan.clone();
        let grad = |range: &Range<usize>| plan.span(Buffer::Gradients, range);
        let dx = rows(arena.dx.expect("a training plan has the residual gradient"), s.c);
        let dx_low = arena.dx_low.map(|span| rows(span, s.c));
        let operand = dx_low.unwrap_or(dx);
        let (ln, dln) = (rows(arena.ln, s.c), rows(arena.delta, s.c));
        let wide = rows(arena.wide, 4 * s.c);
        let (dqkv, datt) = (wide.slice(0, 3 * s.n * s.c), wide.slice(3 * s.n * s.c, s.n * s.c));

        let ln_f = self.norm_into(&layout, &arena, layout.blocks.len(), s);
        let (dw, db) = (grad(&layout.ln_f_weight), grad(&layout.ln_f_bias));
        self.backend.layernorm_backward(LayerNormBackward {
            dout: dln,
            x: rows(arena.x_out, s.c),
            norm: ln_f,
            dx,
            accumulate: false,
            dx_low,
            dweight: dw,
            dbias: db,
        });
        for (block, a) in layout.blocks.iter().zip(&arena.layers).rev() {
            let (x, qkv, att) = (rows(a.x, s.c), rows(a.qkv, 3 * s.c), rows(a.att, s.c));
            let (x_mid, fc) = (rows(a.x_mid, s.c), rows(a.fc, 4 * s.c));
            let ln_1 = self.norm(&block.ln_1_weight, &block.ln_1_bias, a.ln_1, s.n);
            let ln_2 = self.norm(&block.ln_2_weight, &block.ln_2_bias, a.ln_2, s.n);
            let c_attn = self.linear("c_attn", &block.c_attn_weight, &block.c_attn_bias);
            let attn_proj = self.linear("attn_proj", &block.attn_proj_weight, &block.attn_proj_bias);
            let c_fc = self.linear("c_fc", &block.c_fc_weight, &block.c_fc_bias);
            let mlp_proj = self.linear("mlp_proj", &block.mlp_proj_weight, &block.mlp_proj_bias);
            let (softmax, shape) = (self.softmax(a.softmax, s), self.attention_shape(s));
            let Block { c_attn_weight, c_attn_bias, attn_proj_weight, attn_proj_bias, .. } = block;
            let Block { c_fc_weight, c_fc_bias, mlp_proj_weight, mlp_proj_bias, .. } = block;
            let b = &mut self.backend;

            // MLP: x_next = x_mid + gelu(ln_2(x_mid) W_fc) W_proj
            b.gelu_again(fc, wide);
            b.linear_backward_weight(WeightGradient {
                x: wide,
                dout: operand,
                linear: mlp_proj,
                dweight: grad(mlp_proj_weight),
                dbias: grad(mlp_proj_bias),
            });
            b.linear_backward_input(InputGradient {
                dout: operand,
                linear: mlp_proj,
                dx: wide,
                slope: Some(fc),
                is_operand: true,
            });
            b.layernorm_again(x_mid, ln_2, ln);
            b.linear_backward_weight(WeightGradient {
                x: ln,
                dout: wide,
                linear: c_fc,
                dweight: grad(c_fc_weight),
                dbias: grad(c_fc_bias),
            });
            b.linear_backward_input(InputGradient {
                dout: wide,
                linear: c_fc,
                dx: dln,
                slope: None,
                is_operand: false,
            });
            let (dw, db) = (grad(&block.ln_2_weight), grad(&block.ln_2_bias));
            b.layernorm_backward(LayerNormBackward {
                dout: dln,
                x: x_mid,
                norm: ln_2,
                dx,
                accumulate: true,
                dx_low,
                dweight: dw,
                dbias: db,
            });

            // attention: x_mid = x + attend(ln_1(x) W_qkv) W_proj
            b.linear_backward_weight(WeightGradient {
                x: att,
                dout: operand,
                linear: attn_proj,
                dweight: grad(attn_proj_weight),
                dbias: grad(attn_proj_bias),
            });
            b.linear_backward_input(InputGradient {
                dout: operand,
                linear: attn_proj,
                dx: datt,
                slope: None,
                is_operand: true,
            });
            b.attention_backward(AttentionBackward { qkv, softmax, out: att, dout: datt, dqkv, shape });
            b.layernorm_again(x, ln_1, ln);
            b.linear_backward_weight(WeightGradient {
                x: ln,
                dout: dqkv,
                linear: c_attn,
                dweight: grad(c_attn_weight),
                dbias: grad(c_attn_bias),
            });
            b.linear_backward_input(InputGradient {
                dout: dqkv,
                linear: c_attn,
                dx: dln,
                slope: None,
                is_operand: false,
            });
            let (dw, db) = (grad(&block.ln_1_weight), grad(&block.ln_1_bias));
            b.layernorm_backward(LayerNormBackward {
                dout: dln,
                x,
                norm: ln_1,
                dx,
                accumulate: true,
                dx_low,
                dweight: dw,
                dbias: db,
            });
            if last {
                // the matrices of a block lie together
                b.reduce(grad(&(c_attn_weight.start..mlp_proj_weight.end)));
            }
        }
        self.backend.embed_backward(dx, grad(&layout.wte), grad(&layout.wpe));
        if last {
            let first_matrix =
                layout.blocks.first().map_or(layout.decayed, |block| block.c_attn_weight.start);
            self.backend.reduce(grad(&(0..first_matrix)));
            self.backend.reduce(grad(&(layout.decayed..layout.len)));
            self.backend.reduced();
        }
    }

    fn train(&mut self, batch: &Batch, weight: f64, last: bool) {
        assert!(self.plan.config.mode.is_training(), "an engine for inference cannot accumulate gradients");
        let last = last && (self.comm.size() > 1 || self.backend.reduces_alone());
        let shape = self.upload(batch, weight / self.comm.size() as f64);
        let sequence = Sequence::Train { rows: shape.rows, cols: shape.cols, last };
        while self.backend.begin(sequence) == Begun::Issue {
            self.forward(shape);
            self.head(shape, true);
            self.backend.add_loss(self.plan.arena.losses.head(shape.n));
            self.backward(shape, last);
            if self.backend.end(sequence) {
                break;
            }
        }
        self.accumulated += 1;
    }

    /// The buffer of a state, as far as this rank has it.
    fn whole(&self, state: State) -> Result<Span, EngineError> {
        let buffer = match state {
            State::Parameters => Some(Buffer::Parameters),
            State::Gradients => Some(Buffer::Gradients),
            State::Optimizer(state) => {
                self.plan.states().iter().position(|one| one == state).map(Buffer::Optimizer)
            }
        };
        match buffer.filter(|buffer| self.plan.elements(*buffer) > 0) {
            Some(buffer) => Ok(self.plan.whole(buffer)),
            None if self.plan.optimizer().is_some() => {
                Err(EngineError::Unsupported(format!("the optimizer of this engine has no {state}")))
            }
            None => Err(EngineError::Unsupported(format!("an engine for inference has no {state}"))),
        }
    }

    fn end_step(&mut self, loss_scale: Option<f64>) {
        self.ended = Some(Ended { micro_batches: std::mem::take(&mut self.accumulated), loss_scale });
    }
}

impl<B: Backend> Engine for Fused<B> {
    fn layout(&self) -> &ParamLayout {
        &self.plan.layout
    }

    fn optimizer_states(&self) -> &'static [OptimizerState] {
        self.plan.states()
    }

    fn read(&mut self, state: State) -> Result<Cow<'_, [f32]>, EngineError> {
        let span = self.whole(state)?;
        if self.is_sharded(state) {
            return Ok(Cow::Owned(self.collect(span)?));
        }
        self.backend.download(span)
    }

    fn write(&mut self, state: State, values: &[f32]) -> Result<(), EngineError> {
        let span = self.whole(state)?;
        let own = if self.is_sharded(state) { self.plan.owned() } else { 0..values.len() };
        self.backend.write(span, &values[own])?;
        if state == State::Parameters {
            self.backend.refresh_low();
        }
        Ok(())
    }

    fn stage(&mut self, batch: Batch) {
        self.check(&batch);
        self.backend.stage(&batch);
    }

    fn accumulate(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        self.train(&batch, weight, false);
        Ok(())
    }

    fn accumulate_last(&mut self, batch: Batch, weight: f64) -> Result<(), EngineError> {
        self.train(&batch, weight, true);
        Ok(())
    }

    fn loss(&mut self) -> Result<f64, EngineError> {
        Ok(self.backend.loss()? / (f64::from(self.accumulated) * self.comm.size() as f64))
    }

    fn grad_norm(&mut self, loss_scale: f64) -> Result<f64, EngineError> {
        let sharded = self.plan.shard.count > 1;
        let own = if sharded { self.plan.owned() } else { 0..self.plan.layout.len };
        let mut squares = sum_of_squares_on_host(&self.backend.download(self.gradient(&own))?);
        if sharded {
            squares = self.comm.sum(squares)?;
        }
        Ok(squares.sqrt() / loss_scale)
    }

    fn first_not_finite(&mut self, state: State) -> Result<Option<usize>, EngineError> {
        let span = self.whole(state)?;
        let found = first_not_finite(&self.backend.download(span)?);
        if !self.is_sharded(state) {
            return Ok(found);
        }
        let found = found.map_or(u64::MAX, |index| (self.plan.owned().start + index) as u64);
        let all = self.comm.exchange(&found.to_le_bytes())?;
        let all = all.iter().filter_map(|bytes| Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?)));
        Ok(all.min().filter(|&index| index < u64::MAX).map(|index| index as usize))
    }

    fn update(&mut self, step: &OptimizerStep) -> Result<(), EngineError> {
        update(&mut self.backend, &self.plan, step);
        self.end_step(Some(step.loss_scale));
        Ok(())
    }

    fn discard(&mut self) -> Result<(), EngineError> {
        self.backend.discard();
        self.end_step(None);
        Ok(())
    }

    fn applied(&mut self) -> Result<Applied, EngineError> {
        let Ended { micro_batches, loss_scale } = self.ended.ok_or_else(no_update)?;
        let outcome = self.backend.outcome()?;
        Ok(Applied {
            loss: outcome.loss / (f64::from(micro_batches) * self.comm.size() as f64),
            grad_norm: loss_scale.map_or(f64::NAN, |scale| outcome.squares.sqrt() / scale),
            applied: outcome.applied,
        })
    }

    fn evaluate(&mut self, batch: Batch) -> Result<f64, EngineError> {
        let shape = self.upload(&batch, 0.0);
        self.forward(shape);
        self.head(shape, false);
        let losses = self.backend.download(self.plan.arena.losses.head(shape.n))?;
        Ok(losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / shape.n as f64)
    }

    fn logits(&mut self, tokens: &[u32], last_only: bool) -> Result<Vec<f32>, EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::Input("logits need at least one token".into()));
        }
        let shape = self.upload(&Batch { inputs: tokens, targets: tokens, rows: 1, cols: tokens.len() }, 0.0);
        self.forward(shape);
        let (arena, dims) = (self.plan.arena.clone(), self.plan.config.dims);
        let wte = self.plan.span(self.matrices, &self.plan.layout.wte);
        let mut out = Vec::new();
        let start = if last_only { shape.n.saturating_sub(1) } else { 0 };
        for first in (start..shape.n).step_by(arena.chunk) {
            let rows = arena.chunk.min(shape.n - first);
            let logits = arena.logits.head(rows * dims.padded_vocab);
            self.backend.head(arena.ln.slice(first * shape.c, rows * shape.c), wte, logits, shape.c);
            for row in self.backend.download(logits)?.chunks_exact(dims.padded_vocab) {
                out.extend_from_slice(&row[..dims.vocab_size]);
            }
        }
        Ok(out)
    }
}
