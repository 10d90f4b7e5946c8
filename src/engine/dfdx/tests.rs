use super::*;
use crate::engine::optimizer::adamw::{AdamW, EXP_AVG};

const DIMS: Dims = Dims { n_layer: 2, n_head: 2, n_embd: 8, block_size: 6, vocab_size: 11, padded_vocab: 16 };

const RULE: AdamW = AdamW::new([0.9, 0.95], 1e-8, 0.1);
const STEP: OptimizerStep =
    OptimizerStep { rule: Rule::AdamW(RULE), lr: 1e-2, clip_norm: 1.0, t: 1, loss_scale: 1.0 };

/// An engine with parameters that are all different and padding that is zero.
fn engine(dims: Dims) -> CpuEngine {
    let mut engine = CpuEngine::new(dims, OptimizerKind::AdamW).expect("valid dimensions");
    let mut values = vec![0.0; engine.layout.len];
    for tensor in &engine.layout.tensors {
        let used = if tensor.name == "wte.weight" { dims.vocab_size * dims.n_embd } else { tensor.len() };
        for i in 0..used {
            values[tensor.offset + i] = ((i * 37 + tensor.name.len() * 11) % 101) as f32 / 200.0 - 0.25;
        }
    }
    engine.write(State::Parameters, &values).expect("the buffer fits");
    engine
}

fn batch<'a>(tokens: &'a [u32], rows: usize) -> Batch<'a> {
    Batch { inputs: tokens, targets: tokens, rows, cols: tokens.len() / rows, first_row: 0 }
}

/// The state of another rule.
static MOMENTUM: OptimizerState =
    OptimizerState { name: "momentum_buffer", label: "the momentum", covers: |_| true };

#[test]
fn a_state_of_another_rule_is_refused_by_its_name() {
    let refused = engine(DIMS).read(State::Optimizer(&MOMENTUM)).expect_err("no such state").to_string();
    assert_eq!(refused, "the optimizer of this engine does not keep the momentum");
}

fn read(engine: &mut CpuEngine, state: State) -> Vec<f32> {
    engine.read(state).expect("host memory").into_owned()
}

/// The definition of a derivative, on every element that a batch can reach: (loss(p + h) - loss(p - h)) / 2h.
#[test]
fn gradients_are_slopes_of_the_loss() {
    let mut engine = engine(DIMS);
    let tokens = [1, 5, 9, 2, 10, 0, 3, 3];
    let batch =
        Batch { inputs: &tokens, targets: &[5, 9, 2, 10, 0, 3, 3, 1], rows: 2, cols: 4, first_row: 0 };
    engine.accumulate(batch, 1.0).expect("a valid batch");
    let gradients = read(&mut engine, State::Gradients);
    let original = read(&mut engine, State::Parameters);
    let h = 5e-3;
    for tensor in engine.layout.tensors.clone() {
        let (mut off, mut norm) = (0.0, 0.0);
        for i in tensor.range() {
            let mut loss_at = |delta: f32| {
                let mut moved = original.clone();
                moved[i] += delta;
                engine.write(State::Parameters, &moved).expect("the buffer fits");
                engine.evaluate(batch).expect("a valid batch")
            };
            let slope = (loss_at(h) - loss_at(-h)) / f64::from(2.0 * h);
            off += (slope - f64::from(gradients[i])).powi(2);
            norm += slope * slope;
        }
        // Five millionths per element are the rounding of an fp32 loss divided by 2h.
        let allowed = 0.01 * norm.sqrt() + 5e-6 * (tensor.len() as f64).sqrt();
        assert!(off.sqrt() < allowed, "{}: {} of {}", tensor.name, off.sqrt(), norm.sqrt());
        assert!(norm.sqrt() > 3.0 * allowed, "{}: a slope of {} shows nothing", tensor.name, norm.sqrt());
    }
}

#[test]
fn padding_the_vocabulary_changes_nothing() {
    let (mut padded, mut exact) = (engine(DIMS), engine(Dims { padded_vocab: 11, ..DIMS }));
    let tokens = [1, 5, 9, 2, 10, 0];
    for engine in [&mut padded, &mut exact] {
        engine.accumulate(batch(&tokens, 1), 1.0).expect("a valid batch");
        assert!(engine.finish_step(&STEP).expect("a step").applied);
    }
    assert_eq!(padded.evaluate(batch(&tokens, 2)).ok(), exact.evaluate(batch(&tokens, 2)).ok());
    assert_eq!(padded.logits(&tokens, false).ok(), exact.logits(&tokens, false).ok());
    let wte = padded.layout.wte.clone();
    assert!(read(&mut padded, State::Parameters)[wte][11 * 8..].iter().all(|&p| p == 0.0));
}

#[test]
fn the_loss_scale_cancels() {
    let (mut plain, mut scaled) = (engine(DIMS), engine(DIMS));
    let tokens = [1, 5, 9, 2, 10, 0];
    plain.accumulate(batch(&tokens, 1), 1.0).expect("a valid batch");
    scaled.accumulate(batch(&tokens, 1), 1024.0).expect("a valid batch");
    let a = plain.finish_step(&STEP).expect("a step");
    let b = scaled.finish_step(&OptimizerStep { loss_scale: 1024.0, ..STEP }).expect("a step");
    assert_eq!(a, b);
    assert_eq!(read(&mut plain, State::Parameters), read(&mut scaled, State::Parameters));
}

#[test]
fn a_step_that_is_not_finite_changes_nothing_but_clears_the_gradients() {
    let mut engine = engine(DIMS);
    let before = read(&mut engine, State::Parameters);
    let mut gradients = vec![0.0; engine.layout.len];
    gradients[3] = f32::INFINITY;
    engine.write(State::Gradients, &gradients).expect("the buffer fits");
    let done = engine.finish_step(&STEP).expect("a step");
    assert!(!done.applied && !done.grad_norm.is_finite());
    assert_eq!(read(&mut engine, State::Parameters), before);
    assert!(read(&mut engine, State::Gradients).iter().all(|&g| g == 0.0));
    assert!(read(&mut engine, State::Optimizer(&EXP_AVG)).iter().all(|&m| m == 0.0));
}

/// Worked by hand: one decayed element of 1.0 and gradient 3; the bias-corrected first step is lr * sign(g).
#[test]
fn the_first_adamw_step_is_the_learning_rate() {
    let mut p = [1.0];
    let (mut m, mut v) = ([0.0], [0.0]);
    let (scale, norm) = optimizer::scale_and_norm(&[3.0], &STEP);
    assert_eq!(norm, 3.0);
    assert!((f64::from(scale) - 1.0 / (3.0 + 1e-6)).abs() < 1e-7);
    let tensors = optimizer::Tensors { parameters: &mut p, gradients: &[3.0], first: &mut m, second: &mut v };
    optimizer::adamw(tensors, &RULE, &STEP, RULE.settings(Group::Matrices), scale);
    assert!((p[0] - (1.0 - 1e-2 * 0.1 - 1e-2)).abs() < 1e-6, "{}", p[0]);
    assert!((m[0] - 0.1).abs() < 1e-6 && (v[0] - 0.05).abs() < 1e-6);
    let unclipped = OptimizerStep { clip_norm: 0.0, loss_scale: 2.0, ..STEP };
    assert_eq!(optimizer::scale_and_norm(&[3.0], &unclipped), (0.5, 1.5));
}

#[test]
fn what_does_not_fit_is_an_error() {
    let mut engine = engine(DIMS);
    let message = |e: EngineError| e.to_string();
    let long = engine.logits(&[1; 7], false).map_err(message);
    assert_eq!(long, Err("a sequence of 7 tokens is longer than block_size = 6".into()));
    let outside = engine.evaluate(batch(&[1, 11], 1)).map_err(message);
    assert_eq!(outside, Err("token 11 is outside the vocabulary of 11 ids".into()));
    assert!(engine.logits(&[], true).is_err());
    let short = Batch { inputs: &[1, 2], targets: &[1], rows: 1, cols: 2, first_row: 0 };
    assert!(engine.accumulate(short, 1.0).is_err());
    assert!(engine.write(State::Parameters, &[0.0]).is_err());
    assert!(CpuEngine::new(Dims { n_head: 3, ..DIMS }, OptimizerKind::AdamW).is_err());
    assert!(CpuEngine::new(Dims { n_head: 0, ..DIMS }, OptimizerKind::AdamW).is_err());
    assert!(check_precision(Precision::Fp32).is_ok());
    let refused = check_precision(Precision::Bf16).map_err(message);
    assert!(refused.is_err_and(|m| m.contains("no bf16")));
}

/// A model that is nearly sure of token 0, and 29,999 others that together have a chance of one in six hundred. Added
/// one by one in fp32 to the first's 1.0, each would be rounded away; the one lane of a product that the first is in
/// may lose its share.
#[test]
fn a_long_tail_of_unlikely_tokens_is_not_lost() {
    let dims =
        Dims { n_layer: 1, n_head: 1, n_embd: 2, block_size: 2, vocab_size: 30_000, padded_vocab: 30_000 };
    let mut engine = CpuEngine::new(dims, OptimizerKind::AdamW).expect("valid dimensions");
    let mut values = vec![0.0; engine.layout.len];
    // the last hidden state is (1, 0), so the logits are the first column of the embedding
    values[engine.layout.ln_f_bias.start] = 1.0;
    values[engine.layout.wte.start] = 16.7;
    engine.write(State::Parameters, &values).expect("the buffer fits");
    let tail = 29_999.0 * f64::exp(-f64::from(16.7f32));
    engine.accumulate(batch(&[0, 0], 1), 1.0).expect("a valid batch");
    let loss = engine.loss().expect("a loss");
    assert!((loss - tail.ln_1p()).abs() < 0.03 * tail, "{loss} instead of {}", tail.ln_1p());
    // d loss / d logit of the target is its probability less one
    let bias = engine.layout.ln_f_bias.start;
    let slope = f64::from(read(&mut engine, State::Gradients)[bias]) / 16.7;
    let expected = -tail / (1.0 + tail);
    assert!((slope - expected).abs() < 0.03 * tail, "{slope} instead of {expected}");
}
