//! The gradient norm and AdamW, each one pass over the flat buffers.

use super::pool::{Columns, pieces};
use super::round;
use super::simd::{LANES, multiversion};
use super::team::Team;
use crate::engine::optimizer::adamw;
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

/// Sum of squares in f64: of single-precision numbers, it cannot overflow. Threads share the work, so its order, and
/// its last digits, differ from those of the sum on the host that the watchdog's gradient norm comes from.
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

/// Constants of one step, rounded to f32 once.
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
    fn new(scale: f64, from: &adamw::Constants) -> Self {
        Self {
            scale: scale as f32,
            keep: from.keep as f32,
            beta2: from.beta2 as f32,
            one_minus_beta1: from.one_minus_beta1 as f32,
            one_minus_beta2: from.one_minus_beta2 as f32,
            step_size: from.step_size as f32,
            rsqrt_correction: from.rsqrt_correction as f32,
            eps: from.eps as f32,
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

/// Parameters, gradients and moments of equal length; `low` has that length too, or none.
pub(super) struct Buffers<'a> {
    pub(super) p: &'a mut [f32],
    pub(super) g: &'a mut [f32],
    pub(super) m: &'a mut [f32],
    pub(super) v: &'a mut [f32],
    pub(super) low: &'a mut [f32],
}

/// AdamW with the gradients times `scale`, and zeros for the gradients; `low` gets the parameters rounded.
pub(super) fn adamw(
    team: &Team,
    precision: Precision,
    buffers: Buffers,
    scale: f64,
    constants: &adamw::Constants,
) {
    let Buffers { p, g, m, v, low } = buffers;
    let constants = Constants::new(scale, constants);
    let [p, g, m, v] = [p, g, m, v].map(|buffer| (buffer, GRAIN));
    if low.is_empty() {
        pieces(team, [], [p, g, m, v], |_, [], [p, g, m, v]| adamw_slice(constants, p, g, m, v));
    } else {
        pieces(team, [], [p, g, m, v, (low, GRAIN)], |_, [], [p, g, m, v, low]| {
            adamw_slice(constants, p, g, m, v);
            low.copy_from_slice(p);
            round::slice(precision, low);
        });
    }
}
