//! The layout of the flat parameter buffer.
//!
//! Tensors with two or more dimensions (those under weight decay) come first, the others after them, so the
//! optimizer works on two ranges, the gradient norm is one reduction and an all-reduce takes one buffer.
//! Gradients, the optimizer's states and the low-precision copy share the layout. Names, shapes and element
//! order are those of Hugging Face's GPT-2 (Conv1D weights are `[in, out]`), so a checkpoint is a copy of
//! ranges.

use super::Dims;
use std::ops::Range;

/// Tensors start on multiples of this many elements (64 bytes), so that vector loads are aligned; gaps stay zero.
const ALIGN: usize = 16;

/// One named tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Hugging Face's name without the `transformer.` prefix, e.g. `h.0.attn.c_attn.weight`.
    pub name: String,
    /// Shape as stored; the first dimension of `wte.weight` is the padded vocabulary.
    pub shape: Vec<usize>,
    /// Index of the first element in the flat buffer.
    pub offset: usize,
    /// Whether weight decay applies to it: true for two or more dimensions.
    pub decayed: bool,
    /// Whether it is a matrix of a block, between two hidden layers: true for no embedding and no vector.
    pub hidden: bool,
}

impl Tensor {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Always false: a model has no empty tensor.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The range of the tensor's elements in the flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }
}

/// The tensors of one transformer block, as ranges of the flat buffer. C is `n_embd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// First LayerNorm's scale, `[C]`.
    pub ln_1_weight: Range<usize>,
    /// First LayerNorm's shift, `[C]`.
    pub ln_1_bias: Range<usize>,
    /// Query, key and value projection, `[C, 3C]`.
    pub c_attn_weight: Range<usize>,
    /// Bias of the query, key and value projection, `[3C]`.
    pub c_attn_bias: Range<usize>,
    /// Attention's output projection, `[C, C]`.
    pub attn_proj_weight: Range<usize>,
    /// Bias of attention's output projection, `[C]`.
    pub attn_proj_bias: Range<usize>,
    /// Second LayerNorm's scale, `[C]`.
    pub ln_2_weight: Range<usize>,
    /// Second LayerNorm's shift, `[C]`.
    pub ln_2_bias: Range<usize>,
    /// The MLP's first matrix, `[C, 4C]`.
    pub c_fc_weight: Range<usize>,
    /// Bias of the MLP's first matrix, `[4C]`.
    pub c_fc_bias: Range<usize>,
    /// The MLP's second matrix, `[4C, C]`.
    pub mlp_proj_weight: Range<usize>,
    /// Bias of the MLP's second matrix, `[C]`.
    pub mlp_proj_bias: Range<usize>,
}

/// The layout of the whole flat buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamLayout {
    /// Every tensor, in the order of the buffer.
    pub tensors: Vec<Tensor>,
    /// The blocks' tensors by role.
    pub blocks: Vec<Block>,
    /// Token embedding, tied with the language-model head, `[padded_vocab, C]`.
    pub wte: Range<usize>,
    /// Position embedding, `[block_size, C]`.
    pub wpe: Range<usize>,
    /// Final LayerNorm's scale, `[C]`.
    pub ln_f_weight: Range<usize>,
    /// Final LayerNorm's shift, `[C]`.
    pub ln_f_bias: Range<usize>,
    /// Elements `[0, decayed)` hold the decayed tensors.
    pub decayed: usize,
    /// The hidden matrices, which lie together, gaps included: `[hidden.start, decayed)`.
    pub hidden: Range<usize>,
    /// Length of the buffer in elements, alignment gaps included.
    pub len: usize,
}

impl ParamLayout {
    /// Lays out the parameters of a model.
    pub fn new(dims: &Dims) -> Self {
        let (c, v, t) = (dims.n_embd, dims.padded_vocab, dims.block_size);
        let mut b = Builder::default();
        let wte = b.add("wte.weight", &[v, c]);
        let wpe = b.add("wpe.weight", &[t, c]);
        let embedded = b.end;
        let matrices: Vec<_> = (0..dims.n_layer)
            .map(|l| {
                [
                    b.add_hidden(&format!("h.{l}.attn.c_attn.weight"), &[c, 3 * c]),
                    b.add_hidden(&format!("h.{l}.attn.c_proj.weight"), &[c, c]),
                    b.add_hidden(&format!("h.{l}.mlp.c_fc.weight"), &[c, 4 * c]),
                    b.add_hidden(&format!("h.{l}.mlp.c_proj.weight"), &[4 * c, c]),
                ]
            })
            .collect();
        let decayed = b.end;
        let blocks = matrices
            .into_iter()
            .enumerate()
            .map(|(l, [c_attn, attn_proj, c_fc, mlp_proj])| Block {
                ln_1_weight: b.add(&format!("h.{l}.ln_1.weight"), &[c]),
                ln_1_bias: b.add(&format!("h.{l}.ln_1.bias"), &[c]),
                c_attn_weight: c_attn,
                c_attn_bias: b.add(&format!("h.{l}.attn.c_attn.bias"), &[3 * c]),
                attn_proj_weight: attn_proj,
                attn_proj_bias: b.add(&format!("h.{l}.attn.c_proj.bias"), &[c]),
                ln_2_weight: b.add(&format!("h.{l}.ln_2.weight"), &[c]),
                ln_2_bias: b.add(&format!("h.{l}.ln_2.bias"), &[c]),
                c_fc_weight: c_fc,
                c_fc_bias: b.add(&format!("h.{l}.mlp.c_fc.bias"), &[4 * c]),
                mlp_proj_weight: mlp_proj,
                mlp_proj_bias: b.add(&format!("h.{l}.mlp.c_proj.bias"), &[c]),
            })
            .collect();
        let ln_f_weight = b.add("ln_f.weight", &[c]);
        let ln_f_bias = b.add("ln_f.bias", &[c]);
        let hidden = embedded..decayed;
        Self { blocks, wte, wpe, ln_f_weight, ln_f_bias, decayed, hidden, len: b.end, tensors: b.tensors }
    }

    /// Elements and tensors under weight decay (`true`) or without it (`false`), without alignment gaps.
    pub fn count(&self, decayed: bool) -> (usize, usize) {
        let group = || self.tensors.iter().filter(|t| t.decayed == decayed);
        (group().map(Tensor::len).sum(), group().count())
    }

    /// The vectors (biases, scales and shifts) of each block, and then of the final LayerNorm: those of one lie
    /// together, gaps included.
    pub fn vectors(&self) -> impl Iterator<Item = Range<usize>> {
        let starts =
            || self.blocks.iter().map(|block| block.ln_1_weight.start).chain([self.ln_f_weight.start]);
        starts().zip(starts().skip(1).chain([self.len])).map(|(start, end)| start..end)
    }

    /// The part of the buffer that belongs to each of these tensors, with the gap behind it, in order.
    pub fn parts_each(&self, of: impl Fn(&Tensor) -> bool) -> Vec<Range<usize>> {
        let ends = self.tensors.iter().skip(1).map(|next| next.offset).chain([self.len]);
        let each = self.tensors.iter().zip(ends).filter(|(tensor, _)| of(tensor));
        each.map(|(tensor, end)| tensor.offset..end).collect()
    }

    /// [`parts_each`](Self::parts_each), where parts that touch are one.
    pub fn parts(&self, of: impl Fn(&Tensor) -> bool) -> Vec<Range<usize>> {
        let mut parts: Vec<Range<usize>> = Vec::new();
        for part in self.parts_each(of) {
            match parts.last_mut().filter(|last| last.end == part.start) {
                Some(last) => last.end = part.end,
                None => parts.push(part),
            }
        }
        parts
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|t| t.name == name)
    }
}

#[derive(Default)]
struct Builder {
    tensors: Vec<Tensor>,
    end: usize,
}

impl Builder {
    fn add(&mut self, name: &str, shape: &[usize]) -> Range<usize> {
        let tensor = Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            offset: self.end,
            decayed: shape.len() >= 2,
            hidden: false,
        };
        let range = tensor.range();
        self.end = range.end.next_multiple_of(ALIGN);
        self.tensors.push(tensor);
        range
    }

    fn add_hidden(&mut self, name: &str, shape: &[usize]) -> Range<usize> {
        let range = self.add(name, shape);
        self.tensors.last_mut().expect("it was just added").hidden = true;
        range
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpt2_124m_has_the_published_parameter_counts() {
        let dims = Dims {
            n_layer: 12,
            n_head: 12,
            n_embd: 768,
            block_size: 1024,
            vocab_size: 50257,
            padded_vocab: 50257,
        };
        let layout = ParamLayout::new(&dims);
        assert_eq!(layout.count(true), (124_318_464, 50));
        assert_eq!(layout.count(false), (121_344, 98));
    }

    #[test]
    fn tensors_are_aligned_ordered_and_disjoint() {
        let dims =
            Dims { n_layer: 2, n_head: 3, n_embd: 33, block_size: 7, vocab_size: 11, padded_vocab: 13 };
        let layout = ParamLayout::new(&dims);
        for pair in layout.tensors.windows(2) {
            assert!(pair[0].range().end <= pair[1].offset);
            assert!(pair[0].decayed >= pair[1].decayed);
        }
        assert!(layout.tensors.iter().all(|t| t.offset % ALIGN == 0));
        assert!(layout.tensors.iter().all(|t| t.decayed == (t.offset < layout.decayed)));
    }

    #[test]
    fn hidden_matrices_lie_together_and_parts_miss_nothing() {
        let dims =
            Dims { n_layer: 2, n_head: 3, n_embd: 33, block_size: 7, vocab_size: 11, padded_vocab: 13 };
        let layout = ParamLayout::new(&dims);
        let hidden: Vec<_> = layout.tensors.iter().filter(|t| t.hidden).map(|t| &t.name[..]).collect();
        let matrices = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"];
        let of_block = |l: usize| matrices.map(|name| format!("h.{l}.{name}.weight"));
        assert_eq!(hidden, [of_block(0), of_block(1)].concat());
        assert_eq!(layout.parts(|_| true), std::slice::from_ref(&(0..layout.len)));
        assert_eq!(layout.parts(|t| t.hidden), std::slice::from_ref(&layout.hidden));
        assert_eq!(layout.parts(|t| !t.hidden), [0..layout.hidden.start, layout.decayed..layout.len]);
    }
}
