//! Generating text with kept keys and values: bit for bit as without them.

use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use runner::engine::optimizer::OptimizerKind;
use runner::engine::{Batch, Engine, Next, State, cpu};
use runner::model::init::{initialize, random_bits};
use runner::model::{Dims, ParamLayout};
use runner::recipe::{Attention, Precision};
use runner::train::sample::{Beginning, Sampling, generate};
use std::ops::ControlFlow;

/// Odd sizes, and a head of 12.
const DIMS: Dims =
    Dims { n_layer: 3, n_head: 3, n_embd: 36, block_size: 19, vocab_size: 61, padded_vocab: 64 };

/// Heads as wide as GPT-2's, a context beyond one strip of keys and one cut of a sum.
const LONG: Dims =
    Dims { n_layer: 1, n_head: 1, n_embd: 64, block_size: 1100, vocab_size: 37, padded_vocab: 37 };

/// An engine with initial weights, scaled up so that logits differ.
fn engine(dims: Dims, precision: Precision, attention: Attention, mode: Mode, rows: usize) -> cpu::CpuEngine {
    let plan = MemoryPlan::new(MemoryConfig {
        dims,
        micro_batch: rows,
        precision,
        attention,
        target: Target::Cpu { threads: 1 + rows % 2 },
        mode,
        activations: Activations::default(),
    });
    let mut engine = cpu::engine(plan).expect("host memory");
    let layout = ParamLayout::new(&dims);
    let mut parameters = vec![0.0; layout.len];
    initialize(&dims, &layout, 3, &mut parameters);
    parameters.iter_mut().for_each(|x| *x *= 4.0);
    engine.write(State::Parameters, &parameters).expect("the layout fits");
    engine
}

fn beginning(seed: u64, length: usize, dims: &Dims) -> Beginning {
    let token = |i: usize| (random_bits(seed, i as u64) % dims.vocab_size as u64) as u32;
    Beginning { prompt: (0..length).map(token).collect(), seed }
}

const MODES: [Mode; 2] = [Mode::Generate, Mode::Train(OptimizerKind::AdamW)];

#[test]
fn kept_keys_and_values_change_no_bit() {
    let all = [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16];
    for (precision, attention) in all.into_iter().flat_map(|p| [(p, Attention::Flash), (p, Attention::Naive)])
    {
        let mut plain = engine(DIMS, precision, attention, Mode::Infer, 1);
        assert_eq!(plain.sequences(), 0);
        for mode in MODES {
            let mut kept = engine(DIMS, precision, attention, mode, 3);
            assert_eq!(kept.sequences(), 3);
            let tokens = beginning(1, DIMS.block_size, &DIMS).prompt;
            for start in [1, 2, 8, 9, DIMS.block_size - 1] {
                let mut logits = kept.begin_sequence(2, &tokens[..start]).expect("logits");
                for position in start..DIMS.block_size {
                    let whole = plain.logits(&tokens[..position], true).expect("logits");
                    assert_eq!(logits, whole, "{precision:?} {attention:?} {mode:?} {start} {position}");
                    let next = Next { sequence: 2, position, token: tokens[position] };
                    logits = kept.continue_sequences(&[next]).expect("logits");
                }
                assert_eq!(logits, plain.logits(&tokens, true).expect("logits"));
            }
        }
    }
}

#[test]
fn a_long_context_is_cut_where_the_whole_pass_cuts_it() {
    for attention in [Attention::Flash, Attention::Naive] {
        let mut plain = engine(LONG, Precision::Fp32, attention, Mode::Infer, 1);
        let mut kept = engine(LONG, Precision::Fp32, attention, Mode::Generate, 1);
        let tokens = beginning(1, LONG.block_size, &LONG).prompt;
        for start in [510, 1022, LONG.block_size - 3] {
            kept.begin_sequence(0, &tokens[..start]).expect("logits");
            for position in start..start + 3 {
                let next = Next { sequence: 0, position, token: tokens[position] };
                let logits = kept.continue_sequences(&[next]).expect("logits");
                assert_eq!(logits, plain.logits(&tokens[..=position], true).expect("logits"), "{position}");
            }
        }
    }
}

#[test]
fn texts_are_the_same_alone_together_and_without_kept_keys() {
    let mut plain = engine(DIMS, Precision::Fp32, Attention::Flash, Mode::Infer, 1);
    let lengths = [1, DIMS.block_size - 1, 5, DIMS.block_size, DIMS.block_size + 7, 5, 2];
    let beginnings: Vec<_> =
        lengths.iter().enumerate().map(|(i, &length)| beginning(i as u64, length, &DIMS)).collect();
    for (temperature, top_p) in [(0.0, 1.0), (0.9, 1.0), (1.2, 0.8)] {
        let sampling = Sampling { tokens: 30, temperature, top_k: 20, top_p };
        let on = |_: usize, _: u32| ControlFlow::Continue(());
        let want = generate(&mut plain, DIMS.block_size, &beginnings, &sampling, on).expect("texts");
        assert!(want.iter().zip(lengths).all(|(text, length)| text.len() == length + 30));
        for (mode, rows) in MODES.into_iter().flat_map(|mode| [(mode, 1), (mode, 3), (mode, 8)]) {
            let mut kept = engine(DIMS, Precision::Fp32, Attention::Flash, mode, rows);
            let texts = generate(&mut kept, DIMS.block_size, &beginnings, &sampling, on).expect("texts");
            assert_eq!(texts, want, "{mode:?} {rows} {temperature}");
        }
    }
}

#[test]
fn a_text_that_is_ended_leaves_the_others_as_they_are() {
    let mut kept = engine(DIMS, Precision::Fp32, Attention::Flash, Mode::Generate, 3);
    let beginnings: Vec<_> = (0..5).map(|seed| beginning(seed, 3, &DIMS)).collect();
    let sampling = Sampling { tokens: 9, temperature: 1.0, top_k: 0, top_p: 1.0 };
    let mut until = |last: [usize; 5]| {
        let mut counts = [0; 5];
        let texts = generate(&mut kept, DIMS.block_size, &beginnings, &sampling, |text, _| {
            counts[text] += 1;
            if counts[text] == last[text] { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        texts.expect("texts")
    };
    let whole = until([9; 5]);
    let last = [2, 9, 1, 4, 9];
    for ((text, whole), last) in until(last).iter().zip(&whole).zip(last) {
        assert_eq!(*text, whole[..3 + last]);
    }
}

#[test]
fn tokens_that_continue_nothing_are_refused() {
    let mut kept = engine(DIMS, Precision::Fp32, Attention::Flash, Mode::Generate, 2);
    let next = |sequence, position| Next { sequence, position, token: 1 };
    for wrong in [&[][..], &[next(2, 1)], &[next(0, DIMS.block_size)], &[next(0, 1), next(0, 2)]] {
        let refused = kept.continue_sequences(wrong).expect_err("refused").to_string();
        assert!(refused.contains("2 sequences of 19 tokens"), "{refused}");
    }
    let mut plain = engine(DIMS, Precision::Fp32, Attention::Flash, Mode::Infer, 2);
    assert!(plain.continue_sequences(&[next(0, 1)]).is_err());
}

/// Generating text between two steps of training changes nothing of them.
#[test]
fn training_goes_on_as_if_no_text_had_been_generated() {
    let tokens = beginning(7, 2 * DIMS.block_size, &DIMS).prompt;
    let batch = Batch { inputs: &tokens, targets: &tokens, rows: 2, cols: DIMS.block_size, first_row: 0 };
    let gradients = [false, true].map(|generates| {
        let mut engine = engine(DIMS, Precision::Bf16, Attention::Flash, MODES[1], 2);
        if generates {
            let beginnings = [beginning(1, 4, &DIMS), beginning(2, 40, &DIMS)];
            let sampling = Sampling { tokens: 20, temperature: 1.0, top_k: 0, top_p: 1.0 };
            generate(&mut engine, DIMS.block_size, &beginnings, &sampling, |_, _| ControlFlow::Continue(()))
                .expect("texts");
        }
        engine.accumulate(batch, 1.0).expect("a pass");
        engine.read(State::Gradients).expect("gradients").into_owned()
    });
    assert_eq!(gradients[0], gradients[1]);
}
