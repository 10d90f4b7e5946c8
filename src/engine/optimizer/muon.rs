//! Muon (Jordan et al., 2024): the running mean of a matrix's gradients, made nearly orthogonal, as `torch.optim.Muon`
//! computes it. AdamW updates everything that is no hidden matrix.
//!
//! ```text
//! m  += (g - m) · (1 - momentum)
//! u   = m + (g - m) · (1 - momentum) with Nesterov, else m
//! X   = u / max(‖u‖, 1e-7), transposed if it has more rows than columns, then ns_steps times:
//!       A = X·Xᵀ    B = b·A + c·A·A    X = a·X + B·X
//! p   = p · (1 - lr · weight_decay) - lr · adjust(out, in) · X
//! ```
//!
//! The learning rate's factor and the transposition are those of matrices as `torch.nn.Linear` has them, `[out, in]`;
//! the parameters here are their transposes, `[in, out]`. `c_attn` is one matrix.

use super::adamw::{self, AdamW};
use super::{OptimizerState, OptimizerStep};
use crate::model::{ParamLayout, Tensor};
use crate::recipe::{MuonAdjust, MuonPrecision};
use std::ops::Range;

/// The hyper-parameters of Muon, and of AdamW beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Muon {
    /// The rule of all tensors but hidden matrices.
    pub adamw: AdamW,
    /// Muon's learning rate over AdamW's, the same at each step.
    pub lr_ratio: f64,
    /// Decay rate of the running mean.
    pub momentum: f64,
    /// Whether the gradient moved towards the mean is orthogonalized, not the mean itself.
    pub nesterov: bool,
    /// Iterations of Newton and Schulz.
    pub ns_steps: u32,
    /// What they round their matrices to.
    pub ns_precision: MuonPrecision,
    /// Decoupled weight decay of hidden matrices.
    pub weight_decay: f64,
    /// The factor on the learning rate by shape.
    pub adjust: MuonAdjust,
}

/// a, b and c of the iteration, whose slope at zero is as steep as it can be (Jordan et al., 2024).
pub const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];
/// The least number that a matrix is divided by.
pub const LEAST_NORM: f32 = 1e-7;

fn is_other(tensor: &Tensor) -> bool {
    !tensor.hidden
}

/// The running mean of the gradients of hidden matrices.
pub const MOMENTUM_BUFFER: OptimizerState =
    OptimizerState { name: "momentum_buffer", label: "the momentum", covers: |tensor| tensor.hidden };

/// AdamW's moments of what is no hidden matrix, and the running mean of what is: one number per element of a matrix,
/// where AdamW has two.
pub(super) const STATES: [OptimizerState; 3] = [
    OptimizerState { covers: is_other, ..adamw::EXP_AVG },
    OptimizerState { covers: is_other, ..adamw::EXP_AVG_SQ },
    MOMENTUM_BUFFER,
];

/// What Muon's kernels compute with in one step on one matrix, before it is rounded to fp32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constants {
    /// 1 - momentum.
    pub one_minus_momentum: f64,
    /// Whether to look ahead.
    pub nesterov: bool,
    /// What the iteration rounds to.
    pub ns_precision: MuonPrecision,
    /// 1 - lr · weight decay.
    pub keep: f64,
    /// lr · adjust(out, in).
    pub step_size: f64,
}

impl Muon {
    /// The constants of a step for a matrix `[inputs, outputs]`.
    pub fn constants(&self, step: &OptimizerStep, [inputs, outputs]: [usize; 2]) -> Constants {
        let lr = step.lr * self.lr_ratio;
        let (inputs, outputs) = (inputs as f64, outputs as f64);
        let adjust = match self.adjust {
            MuonAdjust::MatchRmsAdamw => 0.2 * inputs.max(outputs).sqrt(),
            MuonAdjust::Original => (outputs / inputs).max(1.0).sqrt(),
        };
        Constants {
            one_minus_momentum: 1.0 - self.momentum,
            nesterov: self.nesterov,
            ns_precision: self.ns_precision,
            keep: 1.0 - lr * self.weight_decay,
            step_size: lr * adjust,
        }
    }
}

/// Which side of a matrix `[inputs, outputs]` the iteration multiplies: torch's transposition, seen from here. The
/// product of the matrix with its transpose is square, with as many rows as the smaller side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `G·Gᵀ`, and then `B·G`: there are more outputs than inputs.
    Left,
    /// `Gᵀ·G`, and then `G·B`.
    Right,
}

impl Side {
    /// That of a matrix `[inputs, outputs]`.
    pub fn of([inputs, outputs]: [usize; 2]) -> Self {
        if outputs > inputs { Self::Left } else { Self::Right }
    }
}

/// Operations of one iteration of Newton and Schulz on a matrix, two for each product of two numbers: for m rows and n
/// columns, the smaller number being m, `X·Xᵀ` and `B·X` take 2m²n each and `A·A` takes 2m³.
fn iteration_flops(shape: &[usize]) -> f64 {
    let &[rows, cols] = shape else { panic!("a hidden matrix has two dimensions, not {shape:?}") };
    let (m, n) = (rows.min(cols) as f64, rows.max(cols) as f64);
    4.0 * m * m * n + 2.0 * m * m * m
}

/// Operations of one iteration of Newton and Schulz on the matrices of the rank of `count` that has the most to do.
pub(crate) fn most_iteration_flops(layout: &ParamLayout, count: usize) -> f64 {
    shares(layout, count).iter().map(|share| share_flops(layout, share)).fold(0.0, f64::max)
}

/// The rank of `count` that has the most to do, the first of several.
pub(crate) fn busiest(layout: &ParamLayout, count: usize) -> usize {
    let flops: Vec<f64> = shares(layout, count).iter().map(|share| share_flops(layout, share)).collect();
    (0..flops.len()).rev().max_by(|&a, &b| flops[a].total_cmp(&flops[b])).unwrap_or(0)
}

/// Operations of one iteration on the matrices that begin in these elements of the layout.
fn share_flops(layout: &ParamLayout, owned: &Range<usize>) -> f64 {
    let matrices = layout.tensors.iter().filter(|tensor| tensor.hidden && owned.contains(&tensor.offset));
    matrices.map(|tensor| iteration_flops(&tensor.shape)).sum()
}

/// The cuts between the shares of `count` ranks with those inside a hidden matrix moved to its nearer end, for a matrix
/// is orthogonalized as a whole, by the rank that has it.
pub(super) fn shares(layout: &ParamLayout, count: usize) -> Vec<Range<usize>> {
    let matrices = layout.parts_each(|tensor| tensor.hidden);
    let moved = |cut: usize| match matrices.iter().find(|matrix| matrix.contains(&cut)) {
        Some(matrix) if cut - matrix.start < matrix.end - cut => matrix.start,
        Some(matrix) => matrix.end,
        None => cut,
    };
    let shares = crate::comm::shares(layout.len, count);
    shares.into_iter().map(|share| moved(share.start)..moved(share.end)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Dims;

    #[test]
    fn ranks_share_whole_matrices_and_miss_nothing() {
        for (n_layer, n_embd) in [(1, 16), (2, 24), (5, 33)] {
            let dims = Dims { n_layer, n_head: 1, n_embd, block_size: 8, vocab_size: 37, padded_vocab: 40 };
            let layout = ParamLayout::new(&dims);
            for count in 1..12 {
                let shares = shares(&layout, count);
                assert_eq!((shares.len(), shares[0].start, shares[count - 1].end), (count, 0, layout.len));
                assert!(shares.windows(2).all(|pair| pair[0].end == pair[1].start));
                for tensor in layout.tensors.iter().filter(|tensor| tensor.hidden) {
                    let range = tensor.range();
                    let whole = |share: &&Range<usize>| share.start <= range.start && range.end <= share.end;
                    assert_eq!(shares.iter().filter(whole).count(), 1, "{} of {count}", tensor.name);
                }
            }
        }
    }

    #[test]
    fn an_iteration_takes_56_c_cubed_operations_per_block() {
        let dims =
            |n_embd| Dims { n_layer: 3, n_head: 1, n_embd, block_size: 8, vocab_size: 37, padded_vocab: 40 };
        let flops = |n_embd: usize, count| most_iteration_flops(&ParamLayout::new(&dims(n_embd)), count);
        for c in [16, 33, 64] {
            assert_eq!(flops(c, 1), 3.0 * 56.0 * (c as f64).powi(3));
        }
        // of three ranks one has more than the third of it: the first one has the embeddings, too
        let blocks = flops(64, 3) / (56.0 * 64_f64.powi(3));
        assert!((1.0..2.0).contains(&blocks), "{blocks}");
    }

    #[test]
    fn adjustments_are_torch_s_of_the_transposed_matrix() {
        let adamw = AdamW::new([0.9, 0.95], 1e-8, 0.1);
        let rule = |adjust| Muon {
            adamw,
            lr_ratio: 2.0,
            momentum: 0.95,
            nesterov: true,
            ns_steps: 5,
            ns_precision: MuonPrecision::Bf16,
            weight_decay: 0.5,
            adjust,
        };
        let step_size = |adjust, shape| {
            let rule = rule(adjust);
            let step = OptimizerStep {
                rule: super::super::Rule::Muon(rule),
                lr: 0.1,
                clip_norm: 0.0,
                t: 1,
                loss_scale: 1.0,
            };
            let constants = rule.constants(&step, shape);
            assert!((constants.keep - 0.9).abs() < 1e-15);
            constants.step_size
        };
        // [in, out]: torch's rows are the outputs
        assert!((step_size(MuonAdjust::Original, [16, 64]) - 0.2 * 2.0).abs() < 1e-15);
        assert!((step_size(MuonAdjust::Original, [64, 16]) - 0.2).abs() < 1e-15);
        for shape in [[16, 64], [64, 16]] {
            assert!((step_size(MuonAdjust::MatchRmsAdamw, shape) - 0.2 * 1.6).abs() < 1e-15);
        }
        let sides = [[16, 64], [16, 16], [64, 16]].map(Side::of);
        assert_eq!(sides, [Side::Left, Side::Right, Side::Right]);
    }
}
