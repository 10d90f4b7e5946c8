//! Causal multi-head attention, both ways: `naive` materializes each head's T x T matrix, `flash` never does.
//!
//! One task is one head of one sequence. It gathers nothing: queries, keys and values are read in place from the packed
//! `[N, 3C]` matrix, results go through the worker's scratch to the head's own columns of the output.

mod flash;
mod naive;
mod next;

pub(super) use next::{Problem as NextProblem, attend as next};

use super::dropout::Drawn;
use super::matmul::Matrix;
use super::pool::{Columns, with_scratch};
use super::round;
use super::simd;
use super::team::Team;
use crate::engine::dropout::Draw;
use crate::engine::fused::backend::AttentionShape;
use crate::recipe::{Attention, Precision};

/// Which attention, how it rounds, and its sizes.
#[derive(Clone, Copy)]
pub(super) struct Problem {
    pub(super) kind: Attention,
    pub(super) precision: Precision,
    pub(super) shape: AttentionShape,
    /// What is drawn for probabilities, where they are dropped.
    pub(super) dropped: Option<Drawn>,
}

/// What the backward pass reads.
#[derive(Clone, Copy)]
pub(super) struct Saved<'a> {
    pub(super) qkv: &'a [f32],
    pub(super) softmax: &'a [f32],
    pub(super) out: &'a [f32],
    pub(super) dout: &'a [f32],
}

/// One head of one sequence.
#[derive(Clone, Copy)]
struct Head<'a> {
    precision: Precision,
    /// Tokens, T.
    cols: usize,
    /// Width of the head.
    size: usize,
    /// Queries, keys and values of this head, `[T, size]` each.
    qkv: [Matrix<'a>; 3],
    /// 1/√size (Vaswani et al., 2017, eq. 1).
    scale: f32,
    /// What is drawn for its probabilities, where they are dropped.
    draw: Option<Draw>,
}

impl<'a> Head<'a> {
    fn new(problem: &Problem, qkv: &'a [f32], task: usize) -> Self {
        let Problem { precision, shape, dropped, .. } = *problem;
        let AttentionShape { cols, n_head, head_size, .. } = shape;
        let c = n_head * head_size;
        let (row, head) = (task / n_head, task % n_head);
        let part =
            |which: usize| block(qkv, 3 * c, row * cols, which * c + head * head_size, cols, head_size);
        let qkv = [part(0), part(1), part(2)];
        let draw = dropped.map(|drawn| drawn.of_head(row, head));
        Self { precision, cols, size: head_size, qkv, scale: 1.0 / (head_size as f32).sqrt(), draw }
    }
}

/// `rows` x `cols` of a matrix `width` wide, from `(first_row, first_col)` on.
fn block(
    data: &[f32],
    width: usize,
    first_row: usize,
    first_col: usize,
    rows: usize,
    cols: usize,
) -> Matrix<'_> {
    Matrix::new(&data[first_row * width + first_col..], rows, cols, width)
}

/// See [`Backend::attention`](crate::engine::fused::backend::Backend::attention). The naive form keeps its
/// probabilities in `softmax` if they fit there.
pub(super) fn forward(
    team: &Team,
    problem: Problem,
    qkv: &[f32],
    softmax: &mut [f32],
    out: &mut [f32],
    workers: &mut [f32],
    worker: usize,
) {
    let Problem { kind, precision, shape, .. } = problem;
    let AttentionShape { rows, cols, n_head, head_size } = shape;
    let heads = rows * n_head;
    let per_head = softmax.len() / heads;
    let softmax = Columns::new(softmax, per_head);
    let out = Columns::new(out, n_head * head_size);
    with_scratch(team, workers, worker, heads, |task, scratch| {
        let head = Head::new(&problem, qkv, task);
        // SAFETY: row `task` belongs to this task alone.
        let kept = unsafe { softmax.row(task, 0, per_head) };
        let result = match kind {
            Attention::Flash => flash::forward(&head, kept, scratch),
            Attention::Naive => naive::forward(&head, kept, scratch),
        };
        round::slice(precision, result);
        for (t, result) in result.chunks_exact(head_size).enumerate() {
            // SAFETY: these rows and columns are this head's alone.
            let out = unsafe { out.row(task / n_head * cols + t, task % n_head * head_size, head_size) };
            out.copy_from_slice(result);
        }
    });
}

/// See [`Backend::attention_backward`](crate::engine::fused::backend::Backend::attention_backward).
pub(super) fn backward(
    team: &Team,
    problem: Problem,
    saved: Saved,
    dqkv: &mut [f32],
    workers: &mut [f32],
    worker: usize,
) {
    let Problem { kind, precision, shape, .. } = problem;
    let Saved { qkv, softmax, out, dout } = saved;
    let AttentionShape { rows, cols, n_head, head_size } = shape;
    let (heads, c) = (rows * n_head, n_head * head_size);
    let per_head = softmax.len() / heads;
    let dqkv = Columns::new(dqkv, 3 * c);
    with_scratch(team, workers, worker, heads, |task, scratch| {
        let head = Head::new(&problem, qkv, task);
        let (first_row, first_col) = (task / n_head * cols, task % n_head * head_size);
        let dout_head = block(dout, c, first_row, first_col, cols, head_size);
        let (gradients, scratch) = scratch.split_at_mut(3 * cols * head_size);
        let (row_dots, scratch) = scratch.split_at_mut(cols);
        // Σ_j dout·out of each row: what the softmax's gradient subtracts (Dao et al., 2022, eq. 4)
        for (t, dot) in row_dots.iter_mut().enumerate() {
            let start = (first_row + t) * c + first_col;
            *dot = simd::dot(&dout[start..][..head_size], &out[start..][..head_size]);
        }
        let kept = &softmax[task * per_head..][..per_head];
        match kind {
            Attention::Flash => flash::backward(&head, kept, dout_head, row_dots, gradients, scratch),
            Attention::Naive => naive::backward(&head, kept, dout_head, row_dots, gradients, scratch),
        }
        round::slice(precision, gradients);
        for (which, gradient) in gradients.chunks_exact(cols * head_size).enumerate() {
            for (t, gradient) in gradient.chunks_exact(head_size).enumerate() {
                // SAFETY: these rows and columns are this head's alone.
                let to = unsafe { dqkv.row(first_row + t, which * c + first_col, head_size) };
                to.copy_from_slice(gradient);
            }
        }
    });
}
