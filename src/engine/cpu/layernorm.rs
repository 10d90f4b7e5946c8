//! LayerNorm forward and backward (Ba et al., 2016; `torch.nn.functional.layer_norm`, eps 1e-5).

use super::dropout::{self, Drawn};
use super::elementwise::{add_columns, partial_rows};
use super::pool::{piece, pieces};
use super::round;
use super::simd::{LANES, multiversion, reduce, sum};
use super::team::Team;
use crate::recipe::Precision;

const EPS: f32 = 1e-5;

multiversion! {
    fn forward_rows(x: &[f32], weight: &[f32], bias: &[f32], stats: &mut [f32], out: &mut [f32]) {
        let c = weight.len();
        let bias = &bias[..c];
        for ((x, out), stats) in x.chunks_exact(c).zip(out.chunks_exact_mut(c)).zip(stats.chunks_exact_mut(2)) {
            let mean = sum(x, |x| x) / c as f32;
            let variance = sum(x, |x| (x - mean) * (x - mean)) / c as f32;
            let rstd = 1.0 / (variance + EPS).sqrt();
            stats.copy_from_slice(&[mean, rstd]);
            for i in 0..c {
                out[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
            }
        }
    }
}

multiversion! {
    fn again_rows(x: &[f32], weight: &[f32], bias: &[f32], stats: &[f32], out: &mut [f32]) {
        let c = weight.len();
        let bias = &bias[..c];
        for ((x, out), stats) in x.chunks_exact(c).zip(out.chunks_exact_mut(c)).zip(stats.chunks_exact(2)) {
            let (mean, rstd) = (stats[0], stats[1]);
            for i in 0..c {
                out[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
            }
        }
    }
}

multiversion! {
    fn residual_rows(x: &[f32], delta: &[f32], bias: &[f32], total: &mut [f32]) {
        let c = bias.len();
        for ((x, delta), total) in x.chunks_exact(c).zip(delta.chunks_exact(c)).zip(total.chunks_exact_mut(c)) {
            for i in 0..c {
                total[i] = x[i] + (delta[i] + bias[i]);
            }
        }
    }
}

multiversion! {
    fn bias_rows(delta: &[f32], bias: &[f32], total: &mut [f32]) {
        let c = bias.len();
        for (delta, total) in delta.chunks_exact(c).zip(total.chunks_exact_mut(c)) {
            for i in 0..c {
                total[i] = delta[i] + bias[i];
            }
        }
    }
}

multiversion! {
    fn add_rows(x: &[f32], total: &mut [f32]) {
        for (total, x) in total.iter_mut().zip(x) {
            *total += x;
        }
    }
}

/// Σ g and Σ g·x̂ with g = dout·weight, x̂ = (x - mean)·rstd, in fixed lanes.
#[inline(always)]
fn weighted_sums(dout: &[f32], weight: &[f32], x: &[f32], mean: f32, rstd: f32) -> (f32, f32) {
    let (mut g_lanes, mut gx_lanes) = ([0.0; LANES], [0.0; LANES]);
    let mut add = |dout: &[f32], weight: &[f32], x: &[f32]| {
        let lanes = g_lanes.iter_mut().zip(&mut gx_lanes);
        for (((sum_g, sum_gx), (dout, weight)), x) in lanes.zip(dout.iter().zip(weight)).zip(x) {
            let g = dout * weight;
            *sum_g += g;
            *sum_gx += g * ((x - mean) * rstd);
        }
    };
    let (mut d, mut w, mut v) = (dout.chunks_exact(LANES), weight.chunks_exact(LANES), x.chunks_exact(LANES));
    for ((dout, weight), x) in (&mut d).zip(&mut w).zip(&mut v) {
        add(dout, weight, x);
    }
    add(d.remainder(), w.remainder(), v.remainder());
    (reduce(g_lanes), reduce(gx_lanes))
}

multiversion! {
    // With x̂ = (x - mean)·rstd and g = dout·weight: dx = rstd·(g - mean(g) - x̂·mean(g·x̂)).
    fn backward_rows(
        dout: &[f32], x: &[f32], weight: &[f32], stats: &[f32], dx: &mut [f32], keep: f32, partial: &mut [f32],
    ) {
        let c = weight.len();
        let (dweight, dbias) = partial.split_at_mut(c);
        let dbias = &mut dbias[..c];
        let rows = dout.chunks_exact(c).zip(x.chunks_exact(c)).zip(dx.chunks_exact_mut(c)).zip(stats.chunks_exact(2));
        for (((dout, x), dx), stats) in rows {
            let (mean, rstd) = (stats[0], stats[1]);
            let (sum_g, sum_gx) = weighted_sums(dout, weight, x, mean, rstd);
            let (mean_g, mean_gx) = (sum_g / c as f32, sum_gx / c as f32);
            for i in 0..c {
                let hat = (x[i] - mean) * rstd;
                dweight[i] += dout[i] * hat;
                dbias[i] += dout[i];
                // `keep` is 1 to accumulate and 0 to overwrite
                let before = if keep == 0.0 { 0.0 } else { dx[i] };
                dx[i] = before + (dout[i] * weight[i] - mean_g - hat * mean_gx) * rstd;
            }
        }
    }
}

pub(super) fn forward(
    team: &Team,
    precision: Precision,
    x: &[f32],
    (weight, bias): (&[f32], &[f32]),
    stats: &mut [f32],
    out: &mut [f32],
) {
    let c = weight.len();
    let piece = piece(c);
    pieces(team, [(x, piece)], [(out, piece), (stats, piece / c * 2)], |_, [x], [out, stats]| {
        forward_rows(x, weight, bias, stats, out);
        round::slice(precision, out);
    });
}

/// The terms of a residual sum: `x + drop(delta + bias)`, the bias in every row.
pub(super) struct Residual<'a> {
    pub(super) x: &'a [f32],
    pub(super) delta: &'a [f32],
    pub(super) bias: &'a [f32],
    pub(super) dropped: Option<Drawn>,
}

/// Writes the sum to `total` and its LayerNorm to `out`.
pub(super) fn residual_forward(
    team: &Team,
    precision: Precision,
    residual: &Residual,
    total: &mut [f32],
    (weight, bias): (&[f32], &[f32]),
    stats: &mut [f32],
    out: &mut [f32],
) {
    let Residual { x, delta, bias: delta_bias, dropped } = *residual;
    let c = weight.len();
    let piece = piece(c);
    let writes = [(total, piece), (out, piece), (stats, piece / c * 2)];
    pieces(team, [(x, piece), (delta, piece)], writes, |i, [x, delta], [total, out, stats]| {
        match &dropped {
            None => residual_rows(x, delta, delta_bias, total),
            Some(drawn) => {
                bias_rows(delta, delta_bias, total);
                dropout::rows(drawn, i * piece / c, total, c);
                add_rows(x, total);
            }
        }
        forward_rows(total, weight, bias, stats, out);
        round::slice(precision, out);
    });
}

pub(super) fn again(
    team: &Team,
    precision: Precision,
    x: &[f32],
    (weight, bias): (&[f32], &[f32]),
    stats: &[f32],
    out: &mut [f32],
) {
    let c = weight.len();
    let piece = piece(c);
    pieces(team, [(x, piece), (stats, piece / c * 2)], [(out, piece)], |_, [x, stats], [out]| {
        again_rows(x, weight, bias, stats, out);
        round::slice(precision, out);
    });
}

/// What the backward pass reads.
pub(super) struct Saved<'a> {
    pub(super) dout: &'a [f32],
    pub(super) x: &'a [f32],
    pub(super) weight: &'a [f32],
    pub(super) stats: &'a [f32],
}

/// What the backward pass writes.
pub(super) struct Gradients<'a> {
    pub(super) dx: &'a mut [f32],
    /// Whether the gradient is added to `dx`; otherwise it overwrites it.
    pub(super) accumulate: bool,
    /// `dx`, dropped and rounded, where it is not empty.
    pub(super) low: &'a mut [f32],
    pub(super) dropped: Option<Drawn>,
    /// Added to.
    pub(super) dweight: &'a mut [f32],
    /// Added to.
    pub(super) dbias: &'a mut [f32],
}

/// The gradients of the input, the scale and the shift, by way of `partials`.
pub(super) fn backward(
    team: &Team,
    precision: Precision,
    saved: &Saved,
    gradients: Gradients,
    partials: &mut [f32],
) {
    let Saved { dout, x, weight, stats } = *saved;
    let Gradients { dx, accumulate, low, dropped, dweight, dbias } = gradients;
    let c = weight.len();
    let rows = partial_rows(dout.len() / c);
    let piece = rows * c;
    let keep = if accumulate { 1.0 } else { 0.0 };
    let used = (dout.len() / c).div_ceil(rows);
    let partials = &mut partials[..used * 2 * c];
    let reads = [(dout, piece), (x, piece), (stats, rows * 2)];
    let writes = [(&mut *dx, piece), (&mut *partials, 2 * c)];
    pieces(team, reads, writes, |_, [dout, x, stats], [dx, partial]| {
        partial.fill(0.0);
        backward_rows(dout, x, weight, stats, dx, keep, partial);
    });
    if !low.is_empty() {
        match dropped {
            None => round::copy(team, precision, dx, low),
            Some(drawn) => dropout::copy(team, precision, &drawn, dx, low, c),
        }
    }
    add_columns(partials, 2 * c, 0, dweight);
    add_columns(partials, 2 * c, c, dbias);
}
