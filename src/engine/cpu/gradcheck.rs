//! Every kernel's backward pass against central differences, in f64, of an independent forward formula.

use super::attention;
use super::dropout::{self, Drawn};
use super::team::Team;
use super::{elementwise, embedding, layernorm, loss, optimizer};
use crate::engine::dropout::{Dropout, Site};
use crate::engine::fused::backend::AttentionShape;
use crate::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use crate::engine::optimizer::adamw::{AdamW, Group};
use crate::engine::optimizer::{OptimizerKind, OptimizerStep, Rule};
use crate::model::Dims;
use crate::model::init::random_bits;
use crate::recipe::{Attention, Precision};

const FP32: Precision = Precision::Fp32;

fn team() -> Team {
    Team::new(2).expect("two threads can start")
}

/// Numbers in (-1, 1).
pub(super) fn random(key: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| (random_bits(key, i as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// The gradient of `f` at `x` by central differences.
fn numeric(x: &[f32], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    const H: f64 = 1e-5;
    let mut x = wide(x);
    (0..x.len())
        .map(|i| {
            let at = x[i];
            x[i] = at + H;
            let above = f(&x);
            x[i] = at - H;
            let below = f(&x);
            x[i] = at;
            (above - below) / (2.0 * H)
        })
        .collect()
}

/// ‖a - b‖ / ‖b‖ must be small.
#[track_caller]
fn close(what: &str, got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let off: f64 = got.iter().zip(want).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum();
    let size: f64 = want.iter().map(|b| b * b).sum();
    assert!(size > 0.0, "{what}: the expected gradient is zero, which tests nothing");
    let error = (off / size).sqrt();
    assert!(error < 5e-6, "{what}: relative error {error:.2e}");
}

fn dot(a: impl IntoIterator<Item = f64>, b: &[f32]) -> f64 {
    a.into_iter().zip(b).map(|(a, &b)| a * f64::from(b)).sum()
}

fn layernorm64(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let c = weight.len();
    x.chunks(c)
        .flat_map(|row| {
            let mean = row.iter().sum::<f64>() / c as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / c as f64;
            (0..c).map(move |i| (row[i] - mean) / (variance + 1e-5).sqrt() * weight[i] + bias[i])
        })
        .collect()
}

#[test]
fn layernorm_forward_and_backward() {
    for (n, c) in [(5, 33), (70, 16), (3, 100)] {
        let (x, weight, bias, dout) = (random(1, n * c), random(2, c), random(3, c), random(4, n * c));
        let (mut out, mut stats) = (vec![0.0; n * c], vec![0.0; 2 * n]);
        layernorm::forward(&team(), FP32, &x, (&weight, &bias), &mut stats, &mut out);
        let formula = |x: &[f64], w: &[f64], b: &[f64]| dot(layernorm64(x, w, b), &dout);
        close("out", &out, &layernorm64(&wide(&x), &wide(&weight), &wide(&bias)));
        let mut again = vec![0.0; n * c];
        layernorm::again(&team(), FP32, &x, (&weight, &bias), &stats, &mut again);
        assert_eq!(again, out);

        let (mut dx, mut dweight, mut dbias) = (vec![f32::NAN; n * c], vec![0.0; c], vec![0.0; c]);
        let mut partials = vec![f32::NAN; 32 * 4 * c];
        let saved = layernorm::Saved { dout: &dout, x: &x, weight: &weight, stats: &stats };
        let gradients = layernorm::Gradients {
            dx: &mut dx,
            accumulate: false,
            low: &mut [],
            dropped: None,
            dweight: &mut dweight,
            dbias: &mut dbias,
        };
        layernorm::backward(&team(), FP32, &saved, gradients, &mut partials);
        close("dx", &dx, &numeric(&x, |x| formula(x, &wide(&weight), &wide(&bias))));
        close("dweight", &dweight, &numeric(&weight, |w| formula(&wide(&x), w, &wide(&bias))));
        close("dbias", &dbias, &numeric(&bias, |b| formula(&wide(&x), &wide(&weight), b)));

        // accumulating twice doubles, and the rounded copy is the rounded sum
        let (once, mut low) = (dx.clone(), vec![0.0; n * c]);
        let gradients = layernorm::Gradients {
            dx: &mut dx,
            accumulate: true,
            low: &mut low,
            dropped: None,
            dweight: &mut dweight,
            dbias: &mut dbias,
        };
        layernorm::backward(&team(), Precision::Bf16, &saved, gradients, &mut partials);
        assert!(once.iter().zip(&dx).all(|(a, b)| (2.0 * a - b).abs() <= 1e-6 * b.abs()));
        assert!(low.iter().zip(&dx).all(|(a, &b)| *a == half::bf16::from_f32(b).to_f32()));
    }
}

#[test]
fn residual_layernorm_adds_and_normalizes() {
    let (n, c) = (9, 20);
    let (x, delta, shift) = (random(1, n * c), random(2, n * c), random(3, c));
    let (weight, bias) = (random(4, c), random(5, c));
    let (mut total, mut stats, mut out) = (vec![0.0; n * c], vec![0.0; 2 * n], vec![0.0; n * c]);
    let affine = (&weight[..], &bias[..]);
    for dropped in ways(Site::Mlp(1), 4) {
        let residual = layernorm::Residual { x: &x, delta: &delta, bias: &shift, dropped };
        layernorm::residual_forward(&team(), FP32, &residual, &mut total, affine, &mut stats, &mut out);
        let added = |i: usize| f64::from(delta[i]) + f64::from(shift[i % c]);
        let want: Vec<f64> =
            (0..n * c).map(|i| f64::from(x[i]) + added(i) * of_channel(dropped, i / c, i % c)).collect();
        close("sum", &total, &want);
        close("out", &out, &layernorm64(&want, &wide(&weight), &wide(&bias)));
        // the gradient of what was added
        let (gradient, mut through) = (random(6, n * c), vec![0.0; n * c]);
        let Some(drawn) = dropped else { continue };
        dropout::copy(&team(), FP32, &drawn, &gradient, &mut through, c);
        let factors = (0..n * c).map(|i| of_channel(dropped, i / c, i % c));
        let want: Vec<f64> = wide(&gradient).into_iter().zip(factors).map(|(g, factor)| g * factor).collect();
        close("its gradient", &through, &want);
    }
}

#[test]
fn gelu_and_bias() {
    let (rows, c) = (7, 19);
    let (x, bias) = (random(1, rows * c), random(2, c));
    let gelu = |x: f64| {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        0.5 * x * (1.0 + u.tanh())
    };
    let (mut fc, mut out) = (x.clone(), vec![0.0; rows * c]);
    for (fc, out) in fc.chunks_mut(c).zip(out.chunks_mut(c)) {
        elementwise::bias_gelu(FP32, fc, &bias, out);
    }
    let sums: Vec<f64> = (0..rows * c).map(|i| f64::from(x[i]) + f64::from(bias[i % c])).collect();
    close("gelu", &out, &sums.iter().map(|&x| gelu(x)).collect::<Vec<_>>());
    let (before, mut again) = (fc.clone(), vec![0.0; rows * c]);
    elementwise::gelu_again(&team(), FP32, &mut fc, &mut again);
    assert_eq!(again, out);
    close("slope", &fc, &numeric(&before, |x| x.iter().map(|&x| gelu(x)).sum()));
}

#[test]
fn cross_entropy_over_the_real_vocabulary() {
    let (rows, vocab_size, width) = (4, 37, 48);
    let logits: Vec<f32> = random(1, rows * width).iter().map(|x| x * 6.0).collect();
    let targets = [0, 36, 5, 5];
    let loss = |x: &[f64]| {
        let rows = x.chunks(width).zip(targets);
        rows.map(|(row, t)| row[..vocab_size].iter().map(|x| x.exp()).sum::<f64>().ln() - row[t as usize])
            .sum::<f64>()
    };
    let (mut losses, mut gradient) = (vec![0.0; rows], logits.clone());
    let columns = loss::LogitColumns { width, vocab_size };
    loss::cross_entropy(&team(), FP32, &mut gradient, columns, &targets, &mut losses, Some(1.0));
    close("loss", &[losses.iter().sum()], &[loss(&wide(&logits))]);
    close("dlogits", &gradient, &numeric(&logits, loss));
    assert!(gradient.chunks(width).all(|row| row[vocab_size..].iter().all(|&x| x == 0.0)));
    let (mut untouched, mut again) = (logits.clone(), vec![0.0; rows]);
    loss::cross_entropy(&team(), FP32, &mut untouched, columns, &targets, &mut again, None);
    assert_eq!((untouched, again), (logits, losses));
}

#[test]
fn cross_entropy_of_a_nan_is_a_nan() {
    let mut logits = vec![0.0, f32::NAN, 1.0, 0.0];
    let mut losses = [0.0];
    let columns = loss::LogitColumns { width: 4, vocab_size: 3 };
    loss::cross_entropy(&team(), FP32, &mut logits, columns, &[0], &mut losses, Some(1.0));
    assert!(losses[0].is_nan());
}

#[test]
fn embedding_forward_and_backward() {
    let (cols, c, vocab) = (5, 70, 6);
    let tokens = [0, 3, 3, 1, 5, 3, 3, 0, 0, 2];
    let (wte, wpe, dx) = (random(1, vocab * c), random(2, 8 * c), random(3, 10 * c));
    let sum = |wte: &[f64], wpe: &[f64]| -> Vec<f64> {
        (0..10 * c).map(|i| wte[tokens[i / c] as usize * c + i % c] + wpe[i / c % cols * c + i % c]).collect()
    };
    let mut out = vec![0.0; 10 * c];
    embedding::forward(&team(), &tokens, cols, &wte, &wpe, &mut out, c);
    close("out", &out, &sum(&wide(&wte), &wide(&wpe)));
    let (mut dwte, mut dwpe) = (vec![0.0; vocab * c], vec![0.0; 8 * c]);
    embedding::backward(&team(), &tokens, cols, &dx, &mut dwte, &mut dwpe, c);
    close("dwte", &dwte, &numeric(&wte, |w| dot(sum(w, &wide(&wpe)), &dx)));
    close("dwpe", &dwpe, &numeric(&wpe, |w| dot(sum(&wide(&wte), w), &dx)));
}

/// What is drawn for rows of `cols` tokens: nothing, or what the number of the row changes in both halves of.
fn ways(site: Site, cols: usize) -> [Option<Drawn>; 2] {
    let dropout = Dropout::new(0.3, 0x0123_4567_89ab_cdef);
    [None, dropout.map(|dropout| Drawn { dropout, site, first_row: (2 << 32) - 1, cols })]
}

/// The factor of a channel of token `n`.
fn of_channel(drawn: Option<Drawn>, n: usize, channel: usize) -> f64 {
    let factor = |drawn: Drawn| drawn.of_head(n / drawn.cols, 0).of_channel(n % drawn.cols, channel);
    drawn.map_or(1.0, |drawn| f64::from(factor(drawn)))
}

fn attention64(qkv: &[f64], s: AttentionShape, drawn: Option<Drawn>) -> Vec<f64> {
    let AttentionShape { rows, cols, n_head, head_size: d } = s;
    let c = n_head * d;
    let mut out = vec![0.0; rows * cols * c];
    for (row, head) in (0..rows).flat_map(|r| (0..n_head).map(move |h| (r, h))) {
        let at = |t: usize, which: usize, i: usize| qkv[(row * cols + t) * 3 * c + which * c + head * d + i];
        for t in 0..cols {
            let scores: Vec<f64> = (0..=t)
                .map(|j| (0..d).map(|i| at(t, 0, i) * at(j, 1, i)).sum::<f64>() / (d as f64).sqrt())
                .collect();
            let total: f64 = scores.iter().map(|s| s.exp()).sum();
            let factor = |j: usize| match drawn {
                None => 1.0,
                Some(drawn) => f64::from(drawn.of_head(row, head).of_probability(t, j)),
            };
            let p: Vec<f64> = (0..=t).map(|j| scores[j].exp() / total * factor(j)).collect();
            for i in 0..d {
                out[(row * cols + t) * c + head * d + i] = (0..=t).map(|j| p[j] * at(j, 2, i)).sum();
            }
        }
    }
    out
}

#[test]
fn attention_forward_and_backward() {
    let shapes = [(2, 7, 3, 5), (1, 1, 2, 4), (1, 17, 1, 8)];
    // long enough for several tiles, and for several strips of keys; too long for differences in every element
    let long = [(1, 300, 2, 36), (1, 600, 1, 8)];
    for kind in [Attention::Flash, Attention::Naive] {
        let sizes = shapes.into_iter().chain(long);
        for ((rows, cols, n_head, head_size), dropped) in
            sizes.flat_map(|size| ways(Site::Probabilities(3), size.1).map(|drawn| (size, drawn)))
        {
            let shape = AttentionShape { rows, cols, n_head, head_size };
            let (n, c) = (rows * cols, n_head * head_size);
            let qkv: Vec<f32> = random(1, n * 3 * c).iter().map(|x| x * 2.0).collect();
            let dout = random(2, n * c);
            let kept = if kind == Attention::Flash { n * n_head } else { n * n_head * cols };
            let dims =
                Dims { n_layer: 1, n_head, n_embd: c, block_size: cols, vocab_size: 2, padded_vocab: 2 };
            let (target, mode) = (Target::Cpu { threads: 2 }, Mode::Train(OptimizerKind::AdamW));
            let config = MemoryConfig {
                dims,
                micro_batch: rows,
                precision: FP32,
                attention: kind,
                target,
                mode,
                activations: Activations::default(),
            };
            let worker = MemoryPlan::new(config).arena.worker;
            let (mut out, mut softmax) = (vec![f32::NAN; n * c], vec![f32::NAN; kept]);
            let mut workers = vec![f32::NAN; 2 * worker];
            let problem = attention::Problem { kind, precision: FP32, shape, dropped };
            attention::forward(&team(), problem, &qkv, &mut softmax, &mut out, &mut workers, worker);
            close("out", &out, &attention64(&wide(&qkv), shape, dropped));
            let mut dqkv = vec![f32::NAN; n * 3 * c];
            let saved = attention::Saved { qkv: &qkv, softmax: &softmax, out: &out, dout: &dout };
            attention::backward(&team(), problem, saved, &mut dqkv, &mut workers, worker);
            assert!(dqkv.iter().all(|x| x.is_finite()));
            if long.contains(&(rows, cols, n_head, head_size)) {
                for direction in 0..4 {
                    let v = random(10 + direction, qkv.len());
                    let along = |h: f64| {
                        let x: Vec<f64> =
                            qkv.iter().zip(&v).map(|(&x, &v)| f64::from(x) + h * f64::from(v)).collect();
                        dot(attention64(&x, shape, dropped), &dout)
                    };
                    let want = (along(1e-5) - along(-1e-5)) / 2e-5;
                    let got = dot(wide(&dqkv), &v);
                    assert!(
                        (got - want).abs() < 1e-5 * want.abs().max(1.0),
                        "{kind:?}, {dropped:?}: {got} {want}"
                    );
                }
            } else {
                close("dqkv", &dqkv, &numeric(&qkv, |x| dot(attention64(x, shape, dropped), &dout)));
            }
        }
    }
}

#[test]
fn adamw_matches_the_formula_in_f64() {
    let len = 100;
    let (start, decayed) = (random(1, len), 64);
    let (mut p, mut m, mut v) = (start.clone(), vec![0.0; len], vec![0.0; len]);
    let (mut p64, mut m64, mut v64) = (wide(&start), vec![0.0; len], vec![0.0; len]);
    for t in 1..=20u64 {
        let mut g = random(t + 1, len);
        let g64: Vec<f64> = wide(&g).iter().map(|g| g * 0.5).collect();
        let rule = AdamW::new([0.9, 0.95], 1e-8, 0.1);
        let step = OptimizerStep { rule: Rule::AdamW(rule), lr: 1e-2, clip_norm: 0.0, t, loss_scale: 1.0 };
        for (range, group) in [(0..decayed, Group::Matrices), (decayed..len, Group::Vectors)] {
            let [p, g, m, v] = [&mut p, &mut g, &mut m, &mut v].map(|buffer| &mut buffer[range.clone()]);
            let buffers = optimizer::Buffers { p, g, m, v, low: &mut [] };
            let constants = rule.constants(&step, rule.settings(group));
            optimizer::adamw(&team(), FP32, buffers, 0.5, &constants);
        }
        assert!(g.iter().all(|&g| g == 0.0));
        for i in 0..len {
            if i < decayed {
                p64[i] *= 1.0 - 1e-2 * 0.1;
            }
            m64[i] = 0.9 * m64[i] + 0.1 * g64[i];
            v64[i] = 0.95 * v64[i] + 0.05 * g64[i] * g64[i];
            let (m_hat, v_hat) =
                (m64[i] / (1.0 - 0.9f64.powi(t as i32)), v64[i] / (1.0 - 0.95f64.powi(t as i32)));
            p64[i] -= 1e-2 * m_hat / (v_hat.sqrt() + 1e-8);
        }
    }
    close("parameters", &p, &p64);
    close("first moment", &m, &m64);
    close("second moment", &v, &v64);
    let norm: f64 = wide(&start).iter().map(|x| x * x).sum();
    assert!((optimizer::sum_of_squares(&team(), &start) - norm).abs() < 1e-12 * norm);
}
