//! A pass that is watched is the same pass, and one that is broken off anywhere leaves nothing behind once it is
//! discarded.

use runner::engine::dfdx::DfdxEngine;
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use runner::engine::optimizer::adamw::{AdamW, EXP_AVG, EXP_AVG_SQ};
use runner::engine::optimizer::{OptimizerKind, OptimizerStep, Rule};
use runner::engine::{Batch, Engine, State, cpu};
use runner::model::{Dims, init::initialize};
use runner::recipe::{Attention, Precision};
use std::ops::ControlFlow::{Break, Continue};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const DIMS: Dims =
    Dims { n_layer: 3, n_head: 2, n_embd: 24, block_size: 16, vocab_size: 37, padded_vocab: 40 };

/// Looks per pass: five per block forward and eight backward, and one at the head.
const LOOKS: usize = 3 * 5 + 1 + 3 * 8;
const EVALUATION_LOOKS: usize = 3 * 5 + 1;

fn engine(precision: Precision, attention: Attention) -> cpu::CpuEngine {
    let (target, mode) = (Target::Cpu { threads: 2 }, Mode::Train(OptimizerKind::AdamW));
    let plan = MemoryPlan::new(MemoryConfig {
        dims: DIMS,
        micro_batch: 2,
        precision,
        attention,
        target,
        mode,
        activations: Activations::default(),
    });
    let mut engine = cpu::engine(plan).expect("a small engine");
    write_initial(&mut engine);
    engine
}

fn write_initial(engine: &mut dyn Engine) {
    let layout = engine.layout().clone();
    let mut values = vec![0.0; layout.len];
    initialize(&DIMS, &layout, 7, &mut values);
    engine.write(State::Parameters, &values).expect("the layout's size");
}

fn tokens(seed: u32) -> Vec<u32> {
    (0..32).map(|i| (i * 7 + seed * 5) % 37).collect()
}

fn batch(tokens: &[u32]) -> Batch<'_> {
    Batch { inputs: tokens, targets: tokens, rows: 2, cols: 16, first_row: 0 }
}

fn update(t: u64) -> OptimizerStep {
    let rule = Rule::AdamW(AdamW::new([0.9, 0.95], 1e-8, 0.1));
    OptimizerStep { rule, lr: 1e-2, clip_norm: 1.0, t, loss_scale: 1.0 }
}

/// A step of two passes; its loss and norm.
fn step(engine: &mut dyn Engine, t: u64) -> (u64, u64) {
    for seed in 0..2 {
        engine.accumulate(batch(&tokens(t as u32 * 2 + seed)), 0.5).expect("the batch fits");
    }
    let applied = engine.finish_step(&update(t)).expect("an update");
    (applied.loss.to_bits(), applied.grad_norm.to_bits())
}

fn states(engine: &mut dyn Engine) -> Vec<Vec<u32>> {
    [State::Parameters, State::Optimizer(&EXP_AVG), State::Optimizer(&EXP_AVG_SQ)]
        .map(|state| engine.read(state).expect("it is kept").iter().map(|value| value.to_bits()).collect())
        .into()
}

#[test]
fn a_pass_tells_how_far_it_is_and_is_the_pass_that_nothing_watches() {
    let kinds = [(Precision::Fp32, Attention::Flash), (Precision::Bf16, Attention::Naive)];
    for (precision, attention) in kinds {
        let (mut plain, mut watched) = (engine(precision, attention), engine(precision, attention));
        let told = Mutex::new(Vec::new());
        let watch = |done| {
            told.lock().expect("no panic").push(done);
            Continue(())
        };
        for (seed, last) in [(0, false), (1, true)] {
            plain.accumulate(batch(&tokens(seed)), 0.5).expect("the batch fits");
            let flow = watched.accumulate_watched(batch(&tokens(seed)), 0.5, last, &watch);
            assert!(flow.expect("the batch fits").is_continue());
            let told = std::mem::take(&mut *told.lock().expect("no panic"));
            assert_eq!(told.len(), LOOKS);
            assert!(told.iter().zip(&told[1..]).all(|(a, b)| a < b) && told[0] > 0.0, "{told:?}");
            assert!((told[LOOKS - 1] - 1.0).abs() < 1e-9, "{told:?}");
        }
        let ended = plain.finish_step(&update(1)).expect("an update");
        assert_eq!(ended, watched.finish_step(&update(1)).expect("an update"));
        assert!(states(&mut plain) == states(&mut watched));
        let loss = plain.evaluate(batch(&tokens(3))).expect("the batch fits");
        let watched = watched.evaluate_watched(batch(&tokens(3)), &watch).expect("the batch fits");
        assert_eq!(watched.map(f64::to_bits), Some(loss.to_bits()));
        let told = told.lock().expect("no panic");
        assert_eq!(
            (told.len(), told.last().map(|done| (done - 1.0).abs() < 1e-9)),
            (EVALUATION_LOOKS, Some(true))
        );
    }
}

#[test]
fn a_pass_that_is_broken_off_anywhere_leaves_nothing_once_it_is_discarded() {
    let kind = (Precision::Fp32, Attention::Flash);
    let mut whole = engine(kind.0, kind.1);
    let steps = [step(&mut whole, 1), step(&mut whole, 2)];
    let expected = states(&mut whole);
    for look in 1..=LOOKS {
        let mut engine = engine(kind.0, kind.1);
        assert_eq!(step(&mut engine, 1), steps[0]);
        let looks = AtomicUsize::new(0);
        let watch = |_| if looks.fetch_add(1, Relaxed) + 1 == look { Break(()) } else { Continue(()) };
        engine.accumulate(batch(&tokens(4)), 0.5).expect("the batch fits");
        let flow = engine.accumulate_watched(batch(&tokens(5)), 0.5, true, &watch).expect("the batch fits");
        assert!(flow.is_break(), "at look {look}");
        assert_eq!(looks.load(Relaxed), look, "nothing follows the break");
        engine.discard().expect("there is something to discard");
        let zero = engine.read(State::Gradients).expect("it trains").iter().all(|value| *value == 0.0);
        assert!(zero, "gradients are left after look {look}");
        assert_eq!(step(&mut engine, 2), steps[1], "after look {look}");
        assert!(states(&mut engine) == expected, "after look {look}");
    }
    for look in 1..=EVALUATION_LOOKS {
        let looks = AtomicUsize::new(0);
        let watch = |_| if looks.fetch_add(1, Relaxed) + 1 == look { Break(()) } else { Continue(()) };
        let loss = whole.evaluate_watched(batch(&tokens(9)), &watch).expect("the batch fits");
        assert_eq!((loss, looks.load(Relaxed)), (None, look));
        assert!(states(&mut whole) == expected);
    }
}

#[test]
fn an_engine_that_cannot_be_watched_finishes_its_passes() {
    let mut engine =
        DfdxEngine::<dfdx::tensor::Cpu>::new(DIMS, OptimizerKind::AdamW).expect("a small engine");
    write_initial(&mut engine);
    let stop = |_| Break(());
    let flow = engine.accumulate_watched(batch(&tokens(0)), 1.0, true, &stop).expect("the batch fits");
    assert!(flow.is_continue());
    assert!(engine.evaluate_watched(batch(&tokens(0)), &stop).expect("the batch fits").is_some());
    assert!(engine.loss().expect("a pass was done").is_finite());
}
