//! The forward pass of GPT-2: embedding, blocks, head and losses.

use super::backend::{
    AttentionShape, Backend, CrossEntropy, Epilogue, HeadBackward, Linear, NextAttention, Norm,
    ResidualLayerNorm,
};
use super::pace::Pace;
use super::{Fused, Gather, Shape, Tokens};
use crate::engine::dropout::Site;
use crate::engine::memory::{Arena, Buffer, Span};
use crate::model::ParamLayout;
use std::ops::{ControlFlow, Range};

impl<B: Backend> Fused<B> {
    pub(super) fn parameter(&self, range: &Range<usize>) -> Span {
        self.plan.span(Buffer::Parameters, range)
    }

    pub(super) fn gradient(&self, range: &Range<usize>) -> Span {
        self.plan.span(Buffer::Gradients, range)
    }

    pub(super) fn linear(&self, name: &'static str, weight: &Range<usize>, bias: &Range<usize>) -> Linear {
        Linear {
            name,
            weight: self.plan.span(self.matrices, weight),
            bias: self.parameter(bias),
            inputs: weight.len() / bias.len(),
            outputs: bias.len(),
        }
    }

    /// The LayerNorm of the residual stream after `added` projections.
    fn norm(&self, weight: &Range<usize>, bias: &Range<usize>, stats: Span, added: usize, n: usize) -> Norm {
        let c = weight.len();
        let lacks = self.plan.arena.lacks.map(|sums| sums.slice(added * c, c));
        Norm { lacks, weight: self.parameter(weight), bias: self.parameter(bias), stats: stats.head(2 * n) }
    }

    pub(super) fn attention_shape(&self, s: Shape) -> AttentionShape {
        let dims = &self.plan.config.dims;
        AttentionShape { rows: s.rows, cols: s.cols, n_head: dims.n_head, head_size: dims.head_size() }
    }

    /// The part of a planned softmax span that a batch of this shape uses.
    pub(super) fn softmax(&self, span: Span, s: Shape) -> Span {
        let dims = &self.plan.config.dims;
        let planned = self.plan.config.micro_batch * dims.n_head * dims.block_size;
        let per_row = if span.len > planned { s.cols } else { 1 };
        span.head(s.rows * s.cols * dims.n_head * per_row)
    }

    /// Embedding, blocks and final LayerNorm; its output is left in `arena.ln`.
    pub(super) fn forward(&mut self, s: Shape, pace: &mut Pace) -> ControlFlow<()> {
        let (layout, arena) = (self.plan.layout.clone(), self.plan.arena.clone());
        let rows = |span: Span, width: usize| span.head(s.n * width);
        let delta = rows(arena.delta, s.c);
        let x = rows(arena.layers.first().map_or(arena.x_out, |l| l.x), s.c);
        let tables = [&layout.wte, &layout.wpe].map(|table| self.parameter(table));
        if let Some(sums) = arena.lacks {
            let biases = layout.blocks.iter().flat_map(|block| [&block.attn_proj_bias, &block.mlp_proj_bias]);
            let biases: Vec<Span> = biases.map(|bias| self.parameter(bias)).collect();
            self.backend.add_up_biases(&biases, sums);
        }
        let (first, ln) = (self.norm_into(&layout, &arena, 0, s), ln_into(&arena, 0, s));
        match s.tokens {
            Tokens::Whole { .. } if s.drops => {
                self.backend.embed(tables[0], tables[1], x);
                self.backend.drop_out(x, Site::Embedding);
                self.backend.layernorm(x, first, ln);
            }
            Tokens::Whole { .. } => self.backend.embed_layernorm(tables[0], tables[1], x, first, ln),
            Tokens::Next | Tokens::Packed => {
                self.backend.embed_next(tables[0], tables[1], x);
                self.backend.layernorm(x, first, ln);
            }
        }
        for (l, (block, a)) in layout.blocks.iter().zip(&arena.layers).enumerate() {
            self.attend(l, s, pace)?;
            let gelu = self.widen(l, s, pace)?;
            let mlp_proj = self.linear("mlp_proj", &block.mlp_proj_weight, &block.mlp_proj_bias);
            let added = ResidualLayerNorm {
                x: rows(a.x_mid, s.c),
                delta,
                bias: mlp_proj.bias,
                dropout: s.drops_at(Site::Mlp(l)),
                sum: rows(arena.layers.get(l + 1).map_or(arena.x_out, |next| next.x), s.c),
                norm: self.norm_into(&layout, &arena, l + 1, s),
                out: ln_into(&arena, l + 1, s),
            };
            self.backend.linear(gelu, mlp_proj, delta, Epilogue::Residual(added));
            pace.did(block.mlp_proj_weight.len())?;
            self.backend.residual_layernorm(added);
        }
        ControlFlow::Continue(())
    }

    /// Block `l` from its first LayerNorm's output to its second one's: `x_mid = x + drop(attend(ln_1(x))
    /// W_proj)`.
    pub(super) fn attend(&mut self, l: usize, s: Shape, pace: &mut Pace) -> ControlFlow<()> {
        let (layout, arena) = (self.plan.layout.clone(), self.plan.arena.clone());
        let (block, a) = (&layout.blocks[l], &arena.layers[l]);
        let block_size = self.plan.config.dims.block_size;
        let rows = |span: Span, width: usize| span.head(s.n * width);
        let (att, delta) = (rows(a.att, s.c), rows(arena.delta, s.c));
        let qkv = match s.tokens {
            Tokens::Whole { sequence } => a.qkv.slice(3 * s.c * sequence * block_size, 3 * s.c * s.n),
            // which the MLP does not use yet
            Tokens::Next | Tokens::Packed => rows(arena.wide, 3 * s.c),
        };
        let c_attn = self.linear("c_attn", &block.c_attn_weight, &block.c_attn_bias);
        let attn_proj = self.linear("attn_proj", &block.attn_proj_weight, &block.attn_proj_bias);
        let (softmax, shape) = (self.softmax(a.softmax, s), self.attention_shape(s));
        self.backend.linear(ln_into(&arena, l, s), c_attn, qkv, Epilogue::Bias);
        pace.did(block.c_attn_weight.len())?;
        match s.tokens {
            Tokens::Whole { .. } => {
                let dropout = s.drops_at(Site::Probabilities(l));
                self.backend.attention(qkv, softmax, att, shape, dropout);
            }
            Tokens::Next => {
                let AttentionShape { n_head, head_size, .. } = shape;
                let kept = a.qkv;
                let tensors = NextAttention { qkv, kept, out: att, n_head, head_size, block_size };
                self.backend.attention_next(tensors);
            }
            Tokens::Packed => {
                let places = s.rows * s.cols;
                let (whole, out) = (a.qkv.head(3 * s.c * places), arena.delta.head(s.c * places));
                self.backend.gather(Gather::Places, qkv, whole, 3 * s.c);
                self.backend.attention(whole, softmax, out, shape, None);
                self.backend.gather(Gather::Computed, out, att, s.c);
            }
        }
        pace.did(s.attention_work())?;
        let added = ResidualLayerNorm {
            x: rows(a.x, s.c),
            delta,
            bias: attn_proj.bias,
            dropout: s.drops_at(Site::Attention(l)),
            sum: rows(a.x_mid, s.c),
            norm: self.norm_2(&layout, &arena, l, s),
            out: ln_2_into(&arena, l, s),
        };
        self.backend.linear(att, attn_proj, delta, Epilogue::Residual(added));
        pace.did(block.attn_proj_weight.len())?;
        self.backend.residual_layernorm(added);
        ControlFlow::Continue(())
    }

    /// The hidden layer of block `l`'s MLP from its second LayerNorm's output: where it lies after GELU.
    pub(super) fn widen(&mut self, l: usize, s: Shape, pace: &mut Pace) -> ControlFlow<(), Span> {
        let (layout, arena) = (self.plan.layout.clone(), self.plan.arena.clone());
        let (block, a) = (&layout.blocks[l], &arena.layers[l]);
        let c_fc = self.linear("c_fc", &block.c_fc_weight, &block.c_fc_bias);
        let [fc, gelu] = [a.fc, a.gelu.unwrap_or(arena.wide)].map(|span| span.head(s.n * 4 * s.c));
        self.backend.linear(ln_2_into(&arena, l, s), c_fc, fc, Epilogue::BiasGelu(gelu));
        pace.did(block.c_fc_weight.len())?;
        ControlFlow::Continue(gelu)
    }

    /// The LayerNorm that reads the residual stream entering block `l`: its `ln_1`, or `ln_f` after the last block.
    pub(super) fn norm_into(&self, layout: &ParamLayout, arena: &Arena, l: usize, s: Shape) -> Norm {
        match (layout.blocks.get(l), arena.layers.get(l)) {
            (Some(b), Some(a)) => self.norm(&b.ln_1_weight, &b.ln_1_bias, a.ln_1, 2 * l, s.n),
            _ => self.norm(&layout.ln_f_weight, &layout.ln_f_bias, arena.ln_f, 2 * l, s.n),
        }
    }

    /// Block `l`'s second LayerNorm.
    pub(super) fn norm_2(&self, layout: &ParamLayout, arena: &Arena, l: usize, s: Shape) -> Norm {
        let (b, a) = (&layout.blocks[l], &arena.layers[l]);
        self.norm(&b.ln_2_weight, &b.ln_2_bias, a.ln_2, 2 * l + 1, s.n)
    }

    /// Language-model head and losses, a chunk of rows at a time so that all logits never exist together. When
    /// `training`, also the gradients of the head and, in `arena.delta`, of the final LayerNorm's output.
    pub(super) fn head(&mut self, s: Shape, training: bool, pace: &mut Pace) -> ControlFlow<()> {
        let (chunk, vocabulary) = (self.plan.arena.chunk, self.plan.layout.wte.len());
        let input = self.plan.arena.ln.head(s.n * s.c);
        for first in (0..s.n).step_by(chunk) {
            let HeadChunk { ln, logits, losses } = self.chunk_of_head(input, first, training);
            let rows = losses.len;
            if training {
                let (wte, dwte) = (self.head_matrix(), self.gradient(&self.plan.layout.wte));
                let dx = self.plan.arena.delta.slice(first * s.c, rows * s.c);
                self.backend.head_backward(HeadBackward {
                    dlogits: logits,
                    x: ln,
                    wte,
                    dx,
                    dwte,
                    width: s.c,
                });
            }
            pace.did(vocabulary * if training { 3 } else { 1 } * rows / s.n)?;
        }
        ControlFlow::Continue(())
    }

    /// Logits and losses of one chunk of `input`'s rows, which begins with row `first`. With a `gradient` that of the
    /// logits takes their place; otherwise they stay until the next chunk.
    pub(super) fn chunk_of_head(&mut self, input: Span, first: usize, gradient: bool) -> HeadChunk {
        let (arena, dims) = (&self.plan.arena, self.plan.config.dims);
        let c = dims.n_embd;
        let rows = arena.chunk.min(input.len / c - first);
        let ln = input.slice(first * c, rows * c);
        let logits = arena.logits.head(rows * dims.padded_vocab);
        let losses = arena.losses.slice(first, rows);
        self.backend.head(ln, self.head_matrix(), logits, c);
        let vocab_size = dims.vocab_size;
        self.backend.cross_entropy(CrossEntropy { logits, losses, first, vocab_size, gradient });
        HeadChunk { ln, logits, losses }
    }

    /// The token embedding, as the head's product reads it.
    pub(super) fn head_matrix(&self) -> Span {
        self.plan.span(self.matrices, &self.plan.layout.wte)
    }
}

/// Where the LayerNorm's output goes that block `l` reads, or the head.
pub(super) fn ln_into(arena: &Arena, l: usize, s: Shape) -> Span {
    let kept = arena.layers.get(l).and_then(|layer| layer.kept);
    kept.map_or(arena.ln, |kept| kept.ln_1).head(s.n * s.c)
}

/// Where the output of block `l`'s second LayerNorm goes.
pub(super) fn ln_2_into(arena: &Arena, l: usize, s: Shape) -> Span {
    arena.layers[l].kept.map_or(arena.ln, |kept| kept.ln_2).head(s.n * s.c)
}

/// Where the head works on a chunk of rows.
pub(super) struct HeadChunk {
    /// Its input.
    ln: Span,
    /// `[rows, padded_vocab]`.
    pub(super) logits: Span,
    /// `[rows]`.
    pub(super) losses: Span,
}
