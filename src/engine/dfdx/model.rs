//! GPT-2 (Radford et al., 2019), line by line: the definition that every other engine is measured against.
//!
//! Plain tensor operations in fp32, nothing fused, the attention matrix of every head materialized; the backward pass
//! is dfdx's autograd. In the comments N is the number of tokens in the batch (rows x cols), C is `n_embd`, V
//! `vocab_size`.
//!
//! The type parameter `T` is dfdx's tape: `OwnedTape` records what the backward pass needs, `NoneTape` nothing. A
//! parameter that enters an operation as right operand is recorded by the left operand's tape; one that is
//! operated on first is `retaped`.

use crate::engine::dropout::{Dropout, Site};
use crate::model::{Block as Ranges, Dims, ParamLayout};
use dfdx::shapes::{Axes2, Axes4, Axis, HasShape, Shape};
use dfdx::tensor::{Gradients, NoneTape, Tape, Tensor};
use dfdx::tensor_ops::{
    BroadcastTo, Device, GatherTo, MaxTo, PermuteTo, ReshapeTo, SelectTo, TryAdd, TryMatMul, TryMul, TrySub,
};
use std::ops::Range;

/// A tensor of one run-time dimension.
pub(super) type Vector<D, T = NoneTape> = Tensor<(usize,), f32, D, T>;
/// A tensor of two run-time dimensions.
pub(super) type Matrix<D, T = NoneTape> = Tensor<(usize, usize), f32, D, T>;

/// `[rows, n_head, T, T]`.
type Scores<D, T> = Tensor<(usize, usize, usize, usize), f32, D, T>;

/// The variance's guard against division by zero in every LayerNorm.
const LAYER_NORM_EPS: f64 = 1e-5;

/// A parameter and its place in the flat buffer.
struct Param<S: Shape, D: Device<f32>> {
    tensor: Tensor<S, f32, D>,
    range: Range<usize>,
}

impl<S: Shape, D: Device<f32>> Param<S, D> {
    fn load(device: &D, flat: &[f32], range: &Range<usize>, shape: S) -> Result<Self, D::Err> {
        let tensor = device.try_tensor_from_vec(flat[range.clone()].to_vec(), shape)?;
        Ok(Self { tensor, range: range.clone() })
    }

    /// Adds `weight` x this parameter's gradient to its place in `flat`.
    fn collect(&self, gradients: &Gradients<f32, D>, weight: f32, flat: &mut [f32]) {
        let gradient = gradients.get(&self.tensor).as_vec();
        for (sum, g) in flat[self.range.clone()].iter_mut().zip(gradient) {
            *sum += weight * g;
        }
    }
}

/// y = (x - mean) / sqrt(variance + eps) * weight + bias, over the last axis.
struct LayerNorm<D: Device<f32>> {
    weight: Param<(usize,), D>,
    bias: Param<(usize,), D>,
}

impl<D: Device<f32>> LayerNorm<D> {
    fn load(device: &D, flat: &[f32], [weight, bias]: [&Range<usize>; 2]) -> Result<Self, D::Err> {
        Ok(Self {
            weight: Param::load(device, flat, weight, (weight.len(),))?,
            bias: Param::load(device, flat, bias, (bias.len(),))?,
        })
    }

    fn forward<T: Tape<f32, D>>(&self, x: Matrix<D, T>) -> Result<Matrix<D, T>, D::Err> {
        let shape = *x.shape();
        x.try_normalize::<Axis<1>>(LAYER_NORM_EPS)?
            .try_mul(self.weight.tensor.clone().try_broadcast_like::<_, Axis<0>>(&shape)?)?
            .try_add(self.bias.tensor.clone().try_broadcast_like::<_, Axis<0>>(&shape)?)
    }

    fn collect(&self, gradients: &Gradients<f32, D>, weight: f32, flat: &mut [f32]) {
        self.weight.collect(gradients, weight, flat);
        self.bias.collect(gradients, weight, flat);
    }
}

/// y = x W + b with W of shape `[in, out]`: what Hugging Face's GPT-2 calls Conv1D.
struct Linear<D: Device<f32>> {
    weight: Param<(usize, usize), D>,
    bias: Param<(usize,), D>,
}

impl<D: Device<f32>> Linear<D> {
    fn load(device: &D, flat: &[f32], [weight, bias]: [&Range<usize>; 2]) -> Result<Self, D::Err> {
        let outputs = bias.len();
        Ok(Self {
            weight: Param::load(device, flat, weight, (weight.len() / outputs, outputs))?,
            bias: Param::load(device, flat, bias, (outputs,))?,
        })
    }

    fn forward<T: Tape<f32, D>>(&self, x: Matrix<D, T>) -> Result<Matrix<D, T>, D::Err> {
        let y = x.try_matmul(self.weight.tensor.clone())?;
        let shape = *y.shape();
        y.try_add(self.bias.tensor.clone().try_broadcast_like::<_, Axis<0>>(&shape)?)
    }

    fn collect(&self, gradients: &Gradients<f32, D>, weight: f32, flat: &mut [f32]) {
        self.weight.collect(gradients, weight, flat);
        self.bias.collect(gradients, weight, flat);
    }
}

/// How the rows of an `[N, C]` matrix are divided into sequences and heads.
#[derive(Clone, Copy)]
struct Heads {
    rows: usize,
    cols: usize,
    heads: usize,
    head_size: usize,
}

/// What dropout leaves out of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Masks {
    pub(super) dropout: Dropout,
    /// The training row that the batch begins with.
    pub(super) first_row: u64,
}

/// Dropout in one block: a product with factors that are made one by one, and are constants to autograd.
struct Drops<'a, D> {
    device: &'a D,
    masks: Option<Masks>,
    /// Tokens per sequence.
    cols: usize,
    block: usize,
}

impl<D: Device<f32>> Drops<'_, D> {
    fn of_channels<T: Tape<f32, D>>(&self, x: Matrix<D, T>, site: Site) -> Result<Matrix<D, T>, D::Err> {
        let Some(Masks { dropout, first_row }) = self.masks else { return Ok(x) };
        let (n, c) = *x.shape();
        let factor = |i: usize| {
            let (row, position) = (i / c / self.cols, i / c % self.cols);
            dropout.draw(first_row + row as u64, site, 0).of_channel(position, i % c)
        };
        x.try_mul(self.device.try_tensor_from_vec((0..n * c).map(factor).collect(), (n, c))?)
    }

    fn of_probabilities<T: Tape<f32, D>>(&self, p: Scores<D, T>) -> Result<Scores<D, T>, D::Err> {
        let Some(Masks { dropout, first_row }) = self.masks else { return Ok(p) };
        let shape @ (rows, heads, queries, keys) = *p.shape();
        let factor = |i: usize| {
            let (row, head) = (i / keys / queries / heads, i / keys / queries % heads);
            let draw = dropout.draw(first_row + row as u64, Site::Probabilities(self.block), head);
            draw.of_probability(i / keys % queries, i % keys)
        };
        let count = rows * heads * queries * keys;
        p.try_mul(self.device.try_tensor_from_vec((0..count).map(factor).collect(), shape)?)
    }
}

/// One transformer block.
struct Block<D: Device<f32>> {
    ln_1: LayerNorm<D>,
    c_attn: Linear<D>,
    attn_proj: Linear<D>,
    ln_2: LayerNorm<D>,
    c_fc: Linear<D>,
    mlp_proj: Linear<D>,
}

impl<D: Device<f32>> Block<D> {
    fn load(device: &D, flat: &[f32], r: &Ranges) -> Result<Self, D::Err> {
        Ok(Self {
            ln_1: LayerNorm::load(device, flat, [&r.ln_1_weight, &r.ln_1_bias])?,
            c_attn: Linear::load(device, flat, [&r.c_attn_weight, &r.c_attn_bias])?,
            attn_proj: Linear::load(device, flat, [&r.attn_proj_weight, &r.attn_proj_bias])?,
            ln_2: LayerNorm::load(device, flat, [&r.ln_2_weight, &r.ln_2_bias])?,
            c_fc: Linear::load(device, flat, [&r.c_fc_weight, &r.c_fc_bias])?,
            mlp_proj: Linear::load(device, flat, [&r.mlp_proj_weight, &r.mlp_proj_bias])?,
        })
    }

    /// x + drop(attention(LayerNorm(x))), then x + drop(mlp(LayerNorm(x))): `[N, C]` -> `[N, C]`.
    fn forward<T: Tape<f32, D>>(
        &self,
        x: Matrix<D, T>,
        mask: &Matrix<D>,
        heads: Heads,
        drops: Drops<D>,
    ) -> Result<Matrix<D, T>, D::Err> {
        let attended = self.attention(self.ln_1.forward(x.retaped::<T>())?, mask, heads, &drops)?;
        let x = x.try_add(drops.of_channels(attended, Site::Attention(drops.block))?)?;
        let transformed = self.mlp(self.ln_2.forward(x.retaped::<T>())?)?;
        x.try_add(drops.of_channels(transformed, Site::Mlp(drops.block))?)
    }

    /// Causal multi-head attention: drop(softmax(q kᵀ / sqrt(head_size) + mask)) v for every head, then the projection.
    fn attention<T: Tape<f32, D>>(
        &self,
        x: Matrix<D, T>,
        mask: &Matrix<D>,
        h: Heads,
        drops: &Drops<D>,
    ) -> Result<Matrix<D, T>, D::Err> {
        let channels = h.heads * h.head_size;
        // [N, C] -> [rows, heads, cols, head_size]
        let split = |x: Matrix<D, T>| {
            x.try_reshape_like(&(h.rows, h.cols, h.heads, h.head_size))?.try_permute::<_, Axes4<0, 2, 1, 3>>()
        };
        let qkv = self.c_attn.forward(x)?;
        let q = split(qkv.retaped::<T>().try_slice((.., 0..channels))?)?;
        let k = split(qkv.retaped::<T>().try_slice((.., channels..2 * channels))?)?;
        let v = split(qkv.try_slice((.., 2 * channels..3 * channels))?)?;
        let scores = q
            .try_matmul(k.try_permute::<_, Axes4<0, 1, 3, 2>>()?)?
            .try_mul(1.0 / (h.head_size as f32).sqrt())?;
        let shape = *scores.shape();
        let weights = scores
            .try_add(mask.clone().try_broadcast_like::<_, Axes2<0, 1>>(&shape)?)?
            .try_softmax::<Axis<3>>()?;
        let y = drops
            .of_probabilities(weights)?
            .try_matmul(v)?
            .try_permute::<(usize, usize, usize, usize), Axes4<0, 2, 1, 3>>()?
            .try_reshape_like(&(h.rows * h.cols, channels))?;
        self.attn_proj.forward(y)
    }

    /// gelu(x W + b) W' + b' with gelu(x) = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    fn mlp<T: Tape<f32, D>>(&self, x: Matrix<D, T>) -> Result<Matrix<D, T>, D::Err> {
        self.mlp_proj.forward(self.c_fc.forward(x)?.try_fast_gelu()?)
    }

    fn collect(&self, gradients: &Gradients<f32, D>, weight: f32, flat: &mut [f32]) {
        self.ln_1.collect(gradients, weight, flat);
        self.c_attn.collect(gradients, weight, flat);
        self.attn_proj.collect(gradients, weight, flat);
        self.ln_2.collect(gradients, weight, flat);
        self.c_fc.collect(gradients, weight, flat);
        self.mlp_proj.collect(gradients, weight, flat);
    }
}

/// The network with one set of parameters.
pub(super) struct Gpt2<D: Device<f32>> {
    dims: Dims,
    device: D,
    wte: Param<(usize, usize), D>,
    wpe: Param<(usize, usize), D>,
    blocks: Vec<Block<D>>,
    ln_f: LayerNorm<D>,
}

impl<D: Device<f32>> Gpt2<D> {
    /// Copies the parameters in `flat` (laid out by `layout`) to the device.
    pub(super) fn load(device: &D, dims: &Dims, layout: &ParamLayout, flat: &[f32]) -> Result<Self, D::Err> {
        Ok(Self {
            dims: *dims,
            device: device.clone(),
            wte: Param::load(device, flat, &layout.wte, (dims.padded_vocab, dims.n_embd))?,
            wpe: Param::load(device, flat, &layout.wpe, (dims.block_size, dims.n_embd))?,
            blocks: layout.blocks.iter().map(|r| Block::load(device, flat, r)).collect::<Result<_, _>>()?,
            ln_f: LayerNorm::load(device, flat, [&layout.ln_f_weight, &layout.ln_f_bias])?,
        })
    }

    /// The last hidden states of `rows` sequences of `cols` tokens: `[N, C]`. With `masks`, dropout acts.
    pub(super) fn hidden<T: Tape<f32, D>>(
        &self,
        tokens: &[u32],
        rows: usize,
        cols: usize,
        masks: Option<Masks>,
    ) -> Result<Matrix<D, T>, D::Err> {
        let n = rows * cols;
        let drops = |block| Drops { device: &self.device, masks, cols, block };
        let token_ids = self.indices(tokens)?;
        let positions = self.device.try_tensor_from_vec((0..n).map(|i| i % cols).collect(), (n,))?;
        let token: Matrix<D, T> = self.wte.tensor.retaped::<T>().try_gather(token_ids)?;
        let position: Matrix<D, T> = self.wpe.tensor.retaped::<T>().try_gather(positions)?;
        let mut x = drops(0).of_channels(token.try_add(position)?, Site::Embedding)?;
        // 0 where the key is not after the query, else minus infinity, which softmax turns into weight 0.
        let mask = self.device.try_upper_tri_like(&(cols, cols), f32::NEG_INFINITY, 1)?;
        let heads = Heads { rows, cols, heads: self.dims.n_head, head_size: self.dims.head_size() };
        for (l, block) in self.blocks.iter().enumerate() {
            x = block.forward(x, &mask, heads, drops(l))?;
        }
        self.ln_f.forward(x)
    }

    /// The head, tied to the token embedding: `[M, C]` -> logits `[M, V]`. Padded rows of the embedding take no part.
    pub(super) fn head<T: Tape<f32, D>>(&self, hidden: Matrix<D, T>) -> Result<Matrix<D, T>, D::Err> {
        let rows = self.wte.tensor.retaped::<T>().try_slice((0..self.dims.vocab_size, ..))?;
        hidden.try_matmul(rows.try_permute::<_, Axes2<1, 0>>()?)
    }

    /// Cross-entropy of every token, -log softmax(logits)[target]: `[N, V]`, `[N]` -> `[N]`, in nats.
    ///
    /// Written as log(sum(exp(x - max))) - (x - max)[target]. The sum is a product with ones, because dfdx's own sum
    /// adds one number after the other: past the large ones of a trained model, the many small ones would be rounded
    /// away.
    pub(super) fn cross_entropy<T: Tape<f32, D>>(
        &self,
        logits: Matrix<D, T>,
        targets: &[u32],
    ) -> Result<Vector<D, T>, D::Err> {
        let shape = *logits.shape();
        let max: Vector<D> = logits.retaped::<NoneTape>().try_max::<_, Axis<1>>()?;
        let x = logits.try_sub(max.try_broadcast_like::<_, Axis<1>>(&shape)?)?;
        let ones: Matrix<D> = self.device.try_ones_like(&(shape.1, 1))?;
        let sums = x.retaped::<T>().try_exp()?.try_matmul(ones)?.try_reshape_like(&(shape.0,))?;
        sums.try_ln()?.try_sub(x.try_select(self.indices(targets)?)?)
    }

    /// Adds `weight` x every parameter's gradient to the flat buffer.
    pub(super) fn collect(&self, gradients: &Gradients<f32, D>, weight: f32, flat: &mut [f32]) {
        self.wte.collect(gradients, weight, flat);
        self.wpe.collect(gradients, weight, flat);
        self.blocks.iter().for_each(|block| block.collect(gradients, weight, flat));
        self.ln_f.collect(gradients, weight, flat);
    }

    fn indices(&self, ids: &[u32]) -> Result<Tensor<(usize,), usize, D>, D::Err> {
        self.device.try_tensor_from_vec(ids.iter().map(|&id| id as usize).collect(), (ids.len(),))
    }
}
