//! Muon's kernels: passes over a matrix, and the products of Newton and Schulz's iteration, which finish their results
//! in cache.

use super::CpuBackend;
use super::matmul::{Matrix, SET, matmul};
use super::optimizer::sum_of_squares;
use super::pool::pieces;
use super::round;
use super::simd::multiversion;
use super::step::Decision;
use crate::engine::fused::backend::{MuonKernels, MuonMomentum, MuonProduct, MuonUpdate};
use crate::engine::memory::Span;
use crate::engine::optimizer::muon::{Constants, LEAST_NORM, Side};
use crate::recipe::{MuonPrecision, Precision};

/// Elements per task.
const GRAIN: usize = 64 * 1024;

/// The numbers of [`momentum_slice`], rounded to f32 once.
#[derive(Clone, Copy)]
struct Mean {
    scale: f32,
    one_minus_momentum: f32,
    nesterov: bool,
}

multiversion! {
    // The running mean, and the gradient moved towards it or the mean itself; the gradient is cleared.
    fn momentum_slice(k: Mean, g: &mut [f32], m: &mut [f32], out: &mut [f32]) {
        let ahead = if k.nesterov { k.one_minus_momentum } else { 0.0 };
        for ((g, m), out) in g.iter_mut().zip(m).zip(out) {
            let gradient = *g * k.scale;
            *m += (gradient - *m) * k.one_minus_momentum;
            *out = *m + (gradient - *m) * ahead;
            *g = 0.0;
        }
    }
}

multiversion! {
    fn divide(x: &mut [f32], by: f32) {
        for x in x.iter_mut() {
            *x /= by;
        }
    }
}

multiversion! {
    // x = x · factor + plus · other
    fn combine(x: &mut [f32], factor: f32, plus: &[f32], other: f32) {
        for (x, plus) in x.iter_mut().zip(plus) {
            *x = *x * factor + plus * other;
        }
    }
}

multiversion! {
    fn apply_slice(keep: f32, step_size: f32, p: &mut [f32], update: &[f32]) {
        for (p, update) in p.iter_mut().zip(update) {
            *p = *p * keep - step_size * update;
        }
    }
}

impl MuonKernels for CpuBackend {
    fn muon_momentum(&mut self, tensors: MuonMomentum, constants: &Constants) {
        let MuonMomentum { gradients, momentum, out } = tensors;
        let scale = match self.decision {
            Decision::None => return,
            Decision::Clear => return self.clear(gradients),
            Decision::Apply(scale) => scale,
        };
        let mean = Mean {
            scale: scale as f32,
            one_minus_momentum: constants.one_minus_momentum as f32,
            nesterov: constants.nesterov,
        };
        let precision = constants.ns_precision.into();
        let ([], written) = self.memory.split([], [gradients, momentum, out]);
        let written = written.map(|buffer| (buffer, GRAIN));
        pieces(&self.team, [], written, |_, [], [g, m, out]| {
            momentum_slice(mean, g, m, out);
            round::slice(precision, out);
        });
    }

    fn muon_normalize(&mut self, x: Span, precision: MuonPrecision) {
        if !matches!(self.decision, Decision::Apply(_)) {
            return;
        }
        let precision = precision.into();
        let ([], [x]) = self.memory.split([], [x]);
        let mut norm = [sum_of_squares(&self.team, x).sqrt() as f32];
        round::slice(precision, &mut norm);
        let norm = norm[0].max(LEAST_NORM);
        pieces(&self.team, [], [(x, GRAIN)], |_, [], [x]| {
            divide(x, norm);
            round::slice(precision, x);
        });
    }

    fn muon_product(&mut self, product: MuonProduct, precision: MuonPrecision) {
        if !matches!(self.decision, Decision::Apply(_)) {
            return;
        }
        let precision: Precision = precision.into();
        match product {
            MuonProduct::Gram { x, shape: [rows, cols], side, out } => {
                let ([x], [out], mut scratch) = self.lend([x], [out]);
                let x = Matrix::new(x, rows, cols, cols);
                let (a, b, n) = match side {
                    Side::Left => (x, x.transposed(), rows),
                    Side::Right => (x.transposed(), x, cols),
                };
                matmul(out, n, a, b, SET, &mut scratch, |_, _, part| round::slice(precision, part));
            }
            MuonProduct::Sum { left, right, shapes: [[rows, depth], [_, cols]], factors, plus, out } => {
                let ([left, right, plus], [out], mut scratch) = self.lend([left, right, plus], [out]);
                let (a, b) = (Matrix::new(left, rows, depth, depth), Matrix::new(right, depth, cols, cols));
                let [factor, other] = factors;
                matmul(out, cols, a, b, SET, &mut scratch, |row, first, part| {
                    combine(part, factor, &plus[row * cols + first..], other);
                    round::slice(precision, part);
                });
            }
        }
    }

    fn muon_apply(&mut self, tensors: MuonUpdate, constants: &Constants) {
        if !matches!(self.decision, Decision::Apply(_)) {
            return;
        }
        let MuonUpdate { parameters, update, low } = tensors;
        let precision = self.precision;
        let [keep, step_size] = [constants.keep, constants.step_size].map(|x| x as f32);
        let low = low.unwrap_or(parameters.head(0));
        let ([update], [p, low]) = self.memory.split([update], [parameters, low]);
        let update = [(update, GRAIN)];
        if low.is_empty() {
            pieces(&self.team, update, [(p, GRAIN)], |_, [update], [p]| {
                apply_slice(keep, step_size, p, update);
            });
        } else {
            pieces(&self.team, update, [(p, GRAIN), (low, GRAIN)], |_, [update], [p, low]| {
                apply_slice(keep, step_size, p, update);
                low.copy_from_slice(p);
                round::slice(precision, low);
            });
        }
    }
}
