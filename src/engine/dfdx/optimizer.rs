//! AdamW (Loshchilov and Hutter, 2019) as a plain loop, so that the reference has nothing clever to be wrong about.

use crate::engine::optimizer::OptimizerStep;
use crate::engine::optimizer::adamw::{AdamW, Settings};

/// Some parameters, their gradients and both moments, of equal length.
pub(super) struct Tensors<'a> {
    pub(super) parameters: &'a mut [f32],
    pub(super) gradients: &'a [f32],
    pub(super) first: &'a mut [f32],
    pub(super) second: &'a mut [f32],
}

/// One update of some parameters, in the arithmetic of `torch.optim.AdamW`: hyperparameters in f64, elements in f32.
///
/// ```text
/// p *= 1 - lr * decay
/// m  = m + (1 - beta1) (g - m)             v = beta2 v + (1 - beta2) g²
/// p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
/// ```
///
/// `gradients` are multiplied by `scale` (unscaling and clipping) as they are read; learning rate and decay are those
/// of the parameters' `group`.
pub(super) fn adamw(tensors: Tensors, rule: &AdamW, step: &OptimizerStep, group: Settings, scale: f32) {
    let Tensors { parameters, gradients, first, second } = tensors;
    let [beta1, beta2] = rule.betas;
    let (t, lr) = (step.t as f64, step.lr * group.lr_factor);
    let step_size = (lr / (1.0 - beta1.powf(t))) as f32;
    let correction = (1.0 - beta2.powf(t)).sqrt() as f32;
    let keep = (1.0 - lr * group.weight_decay) as f32;
    let (lerp, hold, take) = ((1.0 - beta1) as f32, beta2 as f32, (1.0 - beta2) as f32);
    let eps = rule.eps as f32;
    for (((p, g), m), v) in parameters.iter_mut().zip(gradients).zip(first).zip(second) {
        let g = g * scale;
        *p *= keep;
        *m += lerp * (g - *m);
        *v = hold * *v + take * g * g;
        *p -= step_size * *m / (v.sqrt() / correction + eps);
    }
}

/// The factor that turns accumulated gradients into those of the update, and the unscaled norm before clipping.
///
/// The norm is accumulated in f64; gradients whose norm exceeds `clip_norm` are scaled by clip_norm / (norm + 1e-6).
pub(super) fn scale_and_norm(gradients: &[f32], step: &OptimizerStep) -> (f32, f64) {
    let sum: f64 = gradients.iter().map(|&g| f64::from(g) * f64::from(g)).sum();
    let norm = sum.sqrt() / step.loss_scale;
    ((step.clip_factor(norm) / step.loss_scale) as f32, norm)
}
