//! The backward pass of GPT-2, block by block from the last.

use super::backend::{AttentionBackward, Backend, InputGradient, LayerNormBackward, WeightGradient};
use super::forward::{ln_2_into, ln_into};
use super::pace::Pace;
use super::{Fused, Shape};
use crate::engine::dropout::Site;
use crate::engine::memory::{Buffer, Recompute, Span};
use crate::model::Block;
use std::ops::{ControlFlow, Range};

impl<B: Backend> Fused<B> {
    /// From the gradient of the final LayerNorm's output to that of every parameter. In the `last` pass of a step, each
    /// range of gradients that is complete begins to be added up over the ranks.
    pub(super) fn backward(&mut self, s: Shape, last: bool, pace: &mut Pace) -> ControlFlow<()> {
        let (layout, arena) = (self.plan.layout.clone(), self.plan.arena.clone());
        let rows = |span: Span, width: usize| span.head(s.n * width);
        let plan = self.plan.clone();
        let grad = |range: &Range<usize>| plan.span(Buffer::Gradients, range);
        let dx = rows(arena.dx.expect("a training plan has the residual gradient"), s.c);
        let dx_low = arena.dx_low.map(|span| rows(span, s.c));
        let operand = dx_low.unwrap_or(dx);
        let dln = rows(arena.delta, s.c);
        let wide = rows(arena.wide, 4 * s.c);
        let (dqkv, datt) = (wide.slice(0, 3 * s.n * s.c), wide.slice(3 * s.n * s.c, s.n * s.c));

        // bias gradients come from the kernels that write the gradients of outputs, or from those that multiply them
        let early = self.backend.sums_columns();
        let written = |bias: &Range<usize>| early.then(|| grad(bias));
        let multiplied = |bias: &Range<usize>| (!early).then(|| grad(bias));
        let vectors =
            |l: usize| grad(&layout.vectors().nth(l).expect("every block has vectors, and so has the end"));
        let bias_before = |l: usize| l.checked_sub(1).and_then(|l| written(&layout.blocks[l].mlp_proj_bias));

        let sums_positions = !s.drops && self.backend.sums_positions();
        let dwpe_before = |l: usize| (l == 0 && sums_positions).then(|| grad(&layout.wpe));

        let dropped_before = |l: usize| l.checked_sub(1).and_then(|l| s.drops_at(Site::Mlp(l)));

        let ln_f = self.norm_into(&layout, &arena, layout.blocks.len(), s);
        let (dw, db) = (grad(&layout.ln_f_weight), grad(&layout.ln_f_bias));
        self.backend.layernorm_backward(LayerNormBackward {
            dout: dln,
            x: rows(arena.x_out, s.c),
            norm: ln_f,
            dx,
            accumulate: false,
            dx_low,
            dropout: dropped_before(layout.blocks.len()),
            dweight: dw,
            dbias: db,
            dx_sums: bias_before(layout.blocks.len()),
            dwpe: dwpe_before(layout.blocks.len()),
        });
        self.backend.add_sums(vectors(layout.blocks.len()));
        for (l, (block, a)) in layout.blocks.iter().zip(&arena.layers).enumerate().rev() {
            let (x, qkv, att) = (rows(a.x, s.c), rows(a.qkv, 3 * s.c), rows(a.att, s.c));
            let (x_mid, fc) = (rows(a.x_mid, s.c), rows(a.fc, 4 * s.c));
            let ln_1 = self.norm_into(&layout, &arena, l, s);
            let ln_2 = self.norm_2(&layout, &arena, l, s);
            let c_attn = self.linear("c_attn", &block.c_attn_weight, &block.c_attn_bias);
            let attn_proj = self.linear("attn_proj", &block.attn_proj_weight, &block.attn_proj_bias);
            let c_fc = self.linear("c_fc", &block.c_fc_weight, &block.c_fc_bias);
            let mlp_proj = self.linear("mlp_proj", &block.mlp_proj_weight, &block.mlp_proj_bias);
            let (softmax, shape) = (self.softmax(a.softmax, s), self.attention_shape(s));
            let Block { c_attn_weight, c_attn_bias, attn_proj_weight, attn_proj_bias, .. } = block;
            let Block { c_fc_weight, c_fc_bias, mlp_proj_weight, mlp_proj_bias, .. } = block;
            let is_ln_2_there = self.compute_again(l, s, pace)?;
            let b = &mut self.backend;

            // MLP: x_next = x_mid + drop(gelu(ln_2(x_mid) W_fc) W_proj)
            let gelu = a.gelu.map(|gelu| rows(gelu, 4 * s.c)).unwrap_or_else(|| {
                b.gelu_again(fc, wide);
                wide
            });
            b.linear_backward_weight(WeightGradient {
                x: gelu,
                dout: operand,
                linear: mlp_proj,
                dweight: grad(mlp_proj_weight),
                dbias: multiplied(mlp_proj_bias),
            });
            pace.did(mlp_proj_weight.len())?;
            b.linear_backward_input(InputGradient {
                dout: operand,
                linear: mlp_proj,
                dx: wide,
                slope: Some(fc),
                is_operand: true,
                dx_sums: written(c_fc_bias),
            });
            pace.did(mlp_proj_weight.len())?;
            let ln_2_out = ln_2_into(&arena, l, s);
            if !is_ln_2_there {
                b.layernorm_again(x_mid, ln_2, ln_2_out);
            }
            b.linear_backward_weight(WeightGradient {
                x: ln_2_out,
                dout: wide,
                linear: c_fc,
                dweight: grad(c_fc_weight),
                dbias: multiplied(c_fc_bias),
            });
            pace.did(c_fc_weight.len())?;
            b.linear_backward_input(InputGradient {
                dout: wide,
                linear: c_fc,
                dx: dln,
                slope: None,
                is_operand: false,
                dx_sums: None,
            });
            pace.did(c_fc_weight.len())?;
            let (dw, db) = (grad(&block.ln_2_weight), grad(&block.ln_2_bias));
            b.layernorm_backward(LayerNormBackward {
                dout: dln,
                x: x_mid,
                norm: ln_2,
                dx,
                accumulate: true,
                dx_low,
                dropout: s.drops_at(Site::Attention(l)),
                dweight: dw,
                dbias: db,
                dx_sums: written(attn_proj_bias),
                dwpe: None,
            });

            // attention: x_mid = x + drop(attend(ln_1(x) W_qkv) W_proj)
            b.linear_backward_weight(WeightGradient {
                x: att,
                dout: operand,
                linear: attn_proj,
                dweight: grad(attn_proj_weight),
                dbias: multiplied(attn_proj_bias),
            });
            b.linear_backward_input(InputGradient {
                dout: operand,
                linear: attn_proj,
                dx: datt,
                slope: None,
                is_operand: true,
                dx_sums: None,
            });
            pace.did(2 * attn_proj_weight.len())?;
            let dqkv_sums = written(c_attn_bias);
            b.attention_backward(AttentionBackward {
                qkv,
                softmax,
                out: att,
                dout: datt,
                dqkv,
                dqkv_sums,
                dropout: s.drops_at(Site::Probabilities(l)),
                shape,
            });
            pace.did(2 * s.attention_work())?;
            let ln_1_out = ln_into(&arena, l, s);
            if a.kept.is_none() {
                b.layernorm_again(x, ln_1, ln_1_out);
            }
            b.linear_backward_weight(WeightGradient {
                x: ln_1_out,
                dout: dqkv,
                linear: c_attn,
                dweight: grad(c_attn_weight),
                dbias: multiplied(c_attn_bias),
            });
            pace.did(c_attn_weight.len())?;
            b.linear_backward_input(InputGradient {
                dout: dqkv,
                linear: c_attn,
                dx: dln,
                slope: None,
                is_operand: false,
                dx_sums: None,
            });
            pace.did(c_attn_weight.len())?;
            let (dw, db) = (grad(&block.ln_1_weight), grad(&block.ln_1_bias));
            b.layernorm_backward(LayerNormBackward {
                dout: dln,
                x,
                norm: ln_1,
                dx,
                accumulate: true,
                dx_low,
                dropout: dropped_before(l),
                dweight: dw,
                dbias: db,
                dx_sums: bias_before(l),
                dwpe: dwpe_before(l),
            });
            b.add_sums(vectors(l));
            if last {
                // the matrices of a block lie together
                b.reduce(grad(&(c_attn_weight.start..mlp_proj_weight.end)));
            }
        }
        if s.drops {
            self.backend.drop_out(dx, Site::Embedding);
        }
        let dwpe = (!sums_positions).then(|| grad(&layout.wpe));
        self.backend.embed_backward(dx, dx_low, grad(&layout.wte), dwpe);
        if last {
            let first_matrix =
                layout.blocks.first().map_or(layout.decayed, |block| block.c_attn_weight.start);
            self.backend.reduce(grad(&(0..first_matrix)));
            self.backend.reduce(grad(&(layout.decayed..layout.len)));
            self.backend.reduced();
        }
        ControlFlow::Continue(())
    }

    /// What the backward pass needs of block `l` and the forward pass did not leave there, by the forward pass's own
    /// kernels and so with its results. Overwrites `arena.delta`, which is free between two blocks. Returns whether the
    /// output of the second LayerNorm is where it is kept or computed again.
    fn compute_again(&mut self, l: usize, s: Shape, pace: &mut Pace) -> ControlFlow<(), bool> {
        let (layout, arena) = (self.plan.layout.clone(), self.plan.arena.clone());
        let a = &arena.layers[l];
        let is_kept = a.kept.is_some();
        // nothing has overwritten the last block's
        if l + 1 == layout.blocks.len() {
            return ControlFlow::Continue(is_kept);
        }
        match self.plan.config.recompute() {
            Recompute::None => return ControlFlow::Continue(is_kept),
            Recompute::Mlp if is_kept => {}
            Recompute::Mlp => {
                let norm = self.norm_2(&layout, &arena, l, s);
                self.backend.layernorm_again(a.x_mid.head(s.n * s.c), norm, ln_2_into(&arena, l, s));
            }
            Recompute::Block => {
                let norm = self.norm_into(&layout, &arena, l, s);
                self.backend.layernorm_again(a.x.head(s.n * s.c), norm, ln_into(&arena, l, s));
                self.attend(l, s, pace)?;
            }
        }
        self.widen(l, s, pace)?;
        ControlFlow::Continue(true)
    }
}
