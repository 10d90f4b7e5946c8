//! The fused engine against the reference over twenty steps: every precision, attention backend, padding, micro-batch and
//! number of threads.

use runner::engine::dfdx::CpuEngine;
use runner::engine::dropout::Dropout;
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use runner::engine::optimizer::adamw::AdamW;
use runner::engine::optimizer::muon::Muon;
use runner::engine::optimizer::{OptimizerKind, OptimizerStep, Rule};
use runner::engine::verify::{MicroBatch, Report, Tolerances, verify};
use runner::engine::{Batch, Engine, State, cpu};
use runner::model::init::{initialize, random_bits};
use runner::model::{Dims, ParamLayout};
use runner::recipe::{Attention, MuonAdjust, MuonPrecision, Precision};

/// Two tiles of queries, the second ragged; a vocabulary that 128 does not divide.
const DIMS: Dims =
    Dims { n_layer: 2, n_head: 3, n_embd: 48, block_size: 70, vocab_size: 97, padded_vocab: 97 };
const ROWS: usize = 4;
const STEPS: u64 = 20;

#[derive(Clone, Copy, Debug)]
struct Case {
    precision: Precision,
    attention: Attention,
    vocab_multiple: usize,
    micro_batch: usize,
    threads: usize,
    /// The share of activations that both engines drop.
    dropout: f64,
}

fn rows(step: usize, micro_batch: usize) -> Vec<MicroBatch> {
    let cols = DIMS.block_size;
    let token = |i: usize| (random_bits(step as u64, i as u64) % DIMS.vocab_size as u64) as u32;
    let ids = |first: usize| (first..first + micro_batch * cols).map(token).collect();
    (0..ROWS * cols)
        .step_by(micro_batch * cols)
        .map(|first| MicroBatch {
            inputs: ids(first),
            targets: ids(first + 1),
            rows: micro_batch,
            cols,
            first_row: (step * ROWS + first / cols) as u64,
        })
        .collect()
}

fn report(case: Case) -> Report {
    report_under(Rule::AdamW(AdamW::new([0.9, 0.95], 1e-8, 0.1)), case)
}

fn report_under(rule: Rule, case: Case) -> Report {
    let Case { precision, attention, vocab_multiple, micro_batch, threads, dropout } = case;
    let dropout = Dropout::new(dropout, 1337);
    let dims = Dims { padded_vocab: DIMS.vocab_size.next_multiple_of(vocab_multiple), ..DIMS };
    let (target, mode) = (Target::Cpu { threads }, Mode::Train(rule.kind()));
    let config = MemoryConfig {
        dims,
        micro_batch,
        precision,
        attention,
        target,
        mode,
        activations: Activations { dropout, ..Activations::default() },
    };
    let mut engine = cpu::engine(MemoryPlan::new(config)).expect("a small engine can be allocated");
    let reference = CpuEngine::new(dims, rule.kind()).expect("valid dimensions");
    let mut reference = reference.with_dropout(dropout);
    let layout = ParamLayout::new(&dims);
    let mut initial = vec![0.0; layout.len];
    initialize(&dims, &layout, 1, &mut initial);
    // off one and zero, which would hide a factor or a term left out
    for tensor in layout.tensors.iter().filter(|t| !t.decayed) {
        for i in tensor.range() {
            initial[i] += (random_bits(2, i as u64) % 1000) as f32 * 1e-4 - 0.05;
        }
    }
    let loss_scale = if precision == Precision::Fp16 { 65536.0 } else { 1.0 };
    let updates: Vec<_> = (1..=STEPS)
        .map(|t| OptimizerStep { rule, lr: 1e-4 * t as f64, clip_norm: 1.0, t, loss_scale })
        .collect();
    let tolerances = Tolerances::new(precision).under(&rule);
    verify(&mut engine, &mut reference, &initial, |step| rows(step, micro_batch), &updates, tolerances)
        .expect("no engine fails")
}

/// The promise of the fast engine in fp32, in numbers that do not depend on what [`Tolerances`] says.
#[test]
fn fp32_is_the_reference_to_the_last_digits() {
    for attention in [Attention::Flash, Attention::Naive] {
        for (vocab_multiple, micro_batch, threads, dropout) in
            [(1, 1, 1, 0.0), (1, 4, 2, 0.2), (128, 1, 2, 0.5), (128, 4, 1, 0.0), (128, 4, 3, 0.1)]
        {
            let case =
                Case { precision: Precision::Fp32, attention, vocab_multiple, micro_batch, threads, dropout };
            let report = report(case);
            assert!(report.passed, "{case:?}: {report:#?}");
            assert!(report.steps.iter().all(|s| s.loss_error < 1e-5), "{case:?}: {:?}", report.steps);
            for tensor in &report.tensors {
                assert!(tensor.gradient_error < 1e-4, "{case:?}: {tensor:?}");
                assert!(tensor.parameter_error < 1e-4, "{case:?}: {tensor:?}");
            }
        }
    }
}

/// Within its bounds, and on every tensor visibly not fp32: each one's gradient goes through rounded products.
#[test]
fn low_precisions_are_within_bounds_and_not_silently_fp32() {
    for (precision, least) in [(Precision::Tf32, 1e-4), (Precision::Fp16, 1e-4), (Precision::Bf16, 1e-3)] {
        for attention in [Attention::Flash, Attention::Naive] {
            for (vocab_multiple, micro_batch, threads, dropout) in
                [(1, 4, 1, 0.0), (128, 1, 2, 0.0), (1, 4, 2, 0.2), (128, 1, 1, 0.5)]
            {
                let case = Case { precision, attention, vocab_multiple, micro_batch, threads, dropout };
                let report = report(case);
                assert!(report.passed, "{case:?}: {report:#?}");
                for tensor in &report.tensors {
                    assert!(tensor.gradient_error > least, "{case:?}: {tensor:?}");
                    assert!(tensor.change_error > 0.0, "{case:?}: {tensor:?}");
                }
            }
        }
    }
}

/// Muon with its defaults, and with everything else: both engines are right, or wrong in the same way.
#[test]
fn muon_is_within_bounds_under_every_precision() {
    let Rule::Muon(rounding) = OptimizerKind::Muon.typical() else { panic!("Muon's rule") };
    let exact = Muon {
        ns_precision: MuonPrecision::Fp32,
        nesterov: false,
        ns_steps: 3,
        adjust: MuonAdjust::Original,
        lr_ratio: 5.0,
        ..rounding
    };
    for rule in [rounding, exact] {
        for (precision, threads) in [(Precision::Fp32, 1), (Precision::Fp32, 3), (Precision::Bf16, 2)] {
            let (attention, vocab_multiple, micro_batch, dropout) = (Attention::Flash, 128, 4, 0.1);
            let case = Case { precision, attention, vocab_multiple, micro_batch, threads, dropout };
            let report = report_under(Rule::Muon(rule), case);
            assert!(report.passed, "{rule:?} {case:?}: {report:#?}");
        }
    }
}

/// A rule that differs in one number between the engines must not pass: the bounds are narrow enough to see it.
#[test]
fn a_muon_that_is_a_little_off_is_seen() {
    let Rule::Muon(rule) = OptimizerKind::Muon.typical() else { panic!("Muon's rule") };
    let rule = Muon { ns_precision: MuonPrecision::Fp32, ..rule };
    let dims = DIMS;
    let engine_of = |rule: Muon| {
        let mut engine = CpuEngine::new(dims, OptimizerKind::Muon).expect("valid dimensions");
        let layout = ParamLayout::new(&dims);
        let mut values = vec![0.0; layout.len];
        initialize(&dims, &layout, 1, &mut values);
        engine.write(State::Parameters, &values).expect("the buffer fits");
        for t in 1..=5 {
            for micro_batch in rows(t as usize, ROWS) {
                let MicroBatch { inputs, targets, rows, cols, first_row } = &micro_batch;
                let batch = Batch { inputs, targets, rows: *rows, cols: *cols, first_row: *first_row };
                engine.accumulate(batch, 1.0).expect("the batch fits");
            }
            let rule = Rule::Muon(rule);
            engine
                .finish_step(&OptimizerStep { rule, lr: 1e-3, clip_norm: 1.0, t, loss_scale: 1.0 })
                .expect("an update");
        }
        let after = engine.read(State::Parameters).expect("it can be read").into_owned();
        layout
            .tensors
            .iter()
            .filter(|tensor| tensor.hidden)
            .flat_map(|tensor| tensor.range())
            .map(|i| f64::from(after[i] - values[i]))
            .collect::<Vec<_>>()
    };
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let right = engine_of(rule);
    for wrong in [
        Muon { momentum: 0.9, ..rule },
        Muon { nesterov: false, ..rule },
        Muon { ns_steps: 4, ..rule },
        Muon { weight_decay: 0.0, lr_ratio: 0.95, ..rule },
        Muon { adjust: MuonAdjust::Original, ..rule },
    ] {
        let off: Vec<_> = engine_of(wrong).iter().zip(&right).map(|(a, b)| a - b).collect();
        let bound = Tolerances::new(Precision::Fp32).under(&Rule::Muon(rule)).change;
        assert!(norm(&off) > 1.5 * bound * norm(&right), "{wrong:?}: {}", norm(&off) / norm(&right));
    }
}
