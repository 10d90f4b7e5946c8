//! The gradient norm and AdamW, each one pass over the flat buffers.

use super::pool::{Columns, pieces};
use super::round;
use super::simd::{LANES, multiversion};
use super::team::Team;
use crate::engine::Update;
use crate::recipe::Precision;

/// Elements per task.
const GRAIN: usize = 64 * 1024;

multiversion! {
    fn squares(x: &[f32]) -> f64 {
        let mut lanes = [0.0f64; LANES];
        let mut chunks = x.chunks_exact(LANES);
        for chunk in &mut chunks {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(x) * f64::from(x);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(chunks.remainder()) {
            *lane += f64::from(x) * f64::from(x);
        }
        lanes.into_iter().sum()
    }
}

/// Sum of squares in f64: of single-precision numbers, it cannot overflow.
pub(super) fn sum_of_squares(team: &Team, x: &[f32]) -> f64 {
    // as many pieces as the buffer's length says, so that neither threads nor an allocation have a part in it
    let mut partial = [0.0; 256];
    let piece = x.len().div_ceil(partial.len()).max(GRAIN);
    let sums = Columns::new(&mut partial, 1);
    team.tasks(x.len().div_ceil(piece), |i, _| {
        // SAFETY: this sum is this task's alone.
        let sum = unsafe { sums.piece(i) };
        sum[0] = squares(&x[i * piece..x.len().min((i + 1) * piece)]);
    });
    partial.iter().sum()
}

/// Constants of one update, rounded to f32 once.
#[derive(Clone, Copy)]
struct Constants {
    scale: f32,
    keep: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    step_size: f32,
    rsqrt_correction: f32,
    eps: f32,
}

impl Constants {
    fn new(update: &Update, scale: f64, weight_decay: f64) -> Self {
        let [beta1, beta2] = update.betas;
        let correction = |beta: f64| 1.0 - beta.powf(update.t as f64);
        Self {
            scale: scale as f32,
            keep: (1.0 - update.lr * weight_decay) as f32,
            beta2: beta2 as f32,
            one_minus_beta1: (1.0 - beta1) as f32,
            one_minus_beta2: (1.0 - beta2) as f32,
            step_size: (update.lr / correction(beta1)) as f32,
            rsqrt_correction: (1.0 / correction(beta2).sqrt()) as f32,
            eps: update.eps as f32,
        }
    }
}

multiversion! {
    // Loshchilov and Hutter (2019), algorithm 2, as `torch.optim.AdamW` computes it; the gradient is cleared.
    fn adamw_slice(k: Constants, p: &mut [f32], g: &mut [f32], m: &mut [f32], v: &mut [f32]) {
        for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
            let gradient = *g * k.scale;
            *m += (gradient - *m) * k.one_minus_beta1;
            *v = *v * k.beta2 + gradient * gradient * k.one_minus_beta2;
            let denominator = v.sqrt() * k.rsqrt_correction + k.eps;
            *p = *p * k.keep - k.step_size * *m / denominator;
            *g = 0.0;
        }
    }
}

/// Parameters, gradients and moments of equal length.
pub(super) struct Buffers<'a> {
    pub(super) p: &'a mut [f32],
    pub(super) g: &'a mut [f32],
    pub(super) m: &'a mut [f32],
    pub(super) v: &'a mut [f32],
}

/// Updates elements `[0, decayed)` with weight decay and the others without; `low` gets the decayed ones rounded, where
/// it is not empty.
pub(super) fn adamw(
    team: &Team,
    precision: Precision,
    buffers: Buffers,
    low: &mut [f32],
    update: &Update,
    scale: f64,
    decayed: usize,
) {
    let Buffers { p, g, m, v } = buffers;
    let ((p, p_rest), (g, g_rest)) = (p.split_at_mut(decayed), g.split_at_mut(decayed));
    let ((m, m_rest), (v, v_rest)) = (m.split_at_mut(decayed), v.split_at_mut(decayed));
    let (with, without) =
        (Constants::new(update, scale, update.weight_decay), Constants::new(update, scale, 0.0));
    let all = |p, g, m, v| [(p, GRAIN), (g, GRAIN), (m, GRAIN), (v, GRAIN)];
    if low.is_empty() {
        pieces(team, [], all(p, g, m, v), |_, [], [p, g, m, v]| adamw_slice(with, p, g, m, v));
    } else {
        let [p, g, m, v] = all(p, g, m, v);
        pieces(team, [], [p, g, m, v, (low, GRAIN)], |_, [], [p, g, m, v, low]| {
            adamw_slice(with, p, g, m, v);
            low.copy_from_slice(p);
            round::slice(precision, low);
        });
    }
    pieces(team, [], all(p_rest, g_rest, m_rest, v_rest), |_, [], [p, g, m, v]| {
        adamw_slice(without, p, g, m, v);
    });
}
