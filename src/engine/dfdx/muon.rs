//! Muon (Jordan et al., 2024) as plain loops and products of tensors, in the arithmetic of `torch.optim.Muon`:
//! hyperparameters in f64, elements in f32 or rounded to bf16.
//!
//! Torch's matrix is the transpose of the one here, as `torch.nn.Linear` has it: `[out, in]`. The iteration works on
//! the one of the two that has no more rows than columns.

use crate::engine::optimizer::OptimizerStep;
use crate::engine::optimizer::muon::{COEFFICIENTS, LEAST_NORM, Muon};
use crate::recipe::MuonPrecision;
use dfdx::tensor_ops::{Device, TryMatMul};

/// A hidden matrix `[inputs, outputs]`, its gradients and their running mean, of equal length.
pub(super) struct Matrix<'a> {
    pub(super) parameters: &'a mut [f32],
    pub(super) gradients: &'a [f32],
    pub(super) momentum: &'a mut [f32],
    pub(super) shape: &'a [usize],
}

/// One update of a matrix. `gradients` are multiplied by `scale` (unscaling and clipping) as they are read.
///
/// ```text
/// m += (1 - momentum) (g - m)
/// p *= 1 - lr * decay
/// p -= lr * adjust * orthogonalized(m + (1 - momentum) (g - m), or m without Nesterov)
/// ```
///
/// Fails where the device does.
pub(super) fn muon<D: Device<f32>>(
    device: &D,
    matrix: Matrix,
    rule: &Muon,
    step: &OptimizerStep,
    scale: f32,
) -> Result<(), D::Err> {
    let Matrix { parameters, gradients, momentum, shape } = matrix;
    let &[inputs, outputs] = shape else { panic!("a hidden matrix has two dimensions") };
    let lerp = (1.0 - rule.momentum) as f32;
    let mut update = vec![0.0; momentum.len()];
    for ((u, m), g) in update.iter_mut().zip(&mut *momentum).zip(gradients) {
        let g = g * scale;
        *m += lerp * (g - *m);
        *u = if rule.nesterov { *m + lerp * (g - *m) } else { *m };
    }
    let is_wide = outputs > inputs;
    let wide = if is_wide { update } else { transposed(&update, outputs) };
    let x = orthogonalized(device, wide, inputs.min(outputs), rule)?;
    let update = if is_wide { x } else { transposed(&x, inputs) };
    let constants = rule.constants(step, [inputs, outputs]);
    let (keep, step_size) = (constants.keep as f32, constants.step_size as f32);
    for (p, u) in parameters.iter_mut().zip(update) {
        *p *= keep;
        *p -= step_size * u;
    }
    Ok(())
}

/// Newton and Schulz's iteration on a matrix with so many rows and no fewer columns: its singular values move to 1.
fn orthogonalized<D: Device<f32>>(
    device: &D,
    x: Vec<f32>,
    rows: usize,
    rule: &Muon,
) -> Result<Vec<f32>, D::Err> {
    let [a, b, c] = COEFFICIENTS;
    let cols = x.len() / rows;
    let round = |x: f32| match rule.ns_precision {
        MuonPrecision::Bf16 => half::bf16::from_f32(x).to_f32(),
        MuonPrecision::Fp32 => x,
    };
    let sum = |factor: f32, x: &[f32], of: f32, y: &[f32]| -> Vec<f32> {
        x.iter().zip(y).map(|(x, y)| round(factor * x + of * y)).collect()
    };
    let mut x: Vec<f32> = x.into_iter().map(round).collect();
    let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let norm = round(squares.sqrt() as f32).max(LEAST_NORM);
    x.iter_mut().for_each(|x| *x = round(*x / norm));
    for _ in 0..rule.ns_steps {
        let mut gram = product(device, &x, &transposed(&x, cols), cols)?;
        gram.iter_mut().for_each(|x| *x = round(*x));
        let polynomial = sum(b, &gram, c, &product(device, &gram, &gram, rows)?);
        x = sum(a, &x, 1.0, &product(device, &polynomial, &x, rows)?);
    }
    Ok(x)
}

/// The transpose of a row-major matrix with so many columns.
fn transposed(x: &[f32], cols: usize) -> Vec<f32> {
    let rows = x.len() / cols;
    (0..x.len()).map(|i| x[i % rows * cols + i / rows]).collect()
}

/// The product of two row-major matrices, the first of which has `depth` columns.
fn product<D: Device<f32>>(device: &D, a: &[f32], b: &[f32], depth: usize) -> Result<Vec<f32>, D::Err> {
    let a = device.try_tensor_from_vec(a.to_vec(), (a.len() / depth, depth))?;
    let b = device.try_tensor_from_vec(b.to_vec(), (depth, b.len() / depth))?;
    Ok(a.try_matmul(b)?.as_vec())
}
