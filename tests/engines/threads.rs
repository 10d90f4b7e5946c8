//! Work is divided among any number of threads, more than the machine has too, and not a bit of the results changes.

use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use runner::engine::optimizer::OptimizerStep;
use runner::engine::optimizer::adamw::AdamW;
use runner::engine::optimizer::{OptimizerKind, Rule};
use runner::engine::{Batch, Engine, State, cpu};
use runner::model::Dims;
use runner::model::init::{initialize, random_bits};
use runner::recipe::{Attention, Precision};

/// Several tiles of queries, and a vocabulary that no tile divides.
const DIMS: Dims =
    Dims { n_layer: 2, n_head: 3, n_embd: 96, block_size: 150, vocab_size: 1003, padded_vocab: 1003 };
const ROWS: usize = 5;

/// The bits of loss, weights and moments after two steps.
fn trained(precision: Precision, attention: Attention, threads: usize) -> Vec<u32> {
    let config = MemoryConfig {
        dims: DIMS,
        micro_batch: ROWS,
        precision,
        attention,
        target: Target::Cpu { threads },
        mode: Mode::Train(OptimizerKind::AdamW),
        activations: Activations::default(),
    };
    let mut engine = cpu::engine(MemoryPlan::new(config)).expect("a small engine can be allocated");
    let layout = engine.layout().clone();
    let mut values = vec![0.0; layout.len];
    initialize(&DIMS, &layout, 7, &mut values);
    engine.write(State::Parameters, &values).expect("the layout's size");
    let mut bits = Vec::new();
    for t in 1..=2 {
        let tokens: Vec<u32> = (0..ROWS * DIMS.block_size + 1)
            .map(|i| (random_bits(t, i as u64) % DIMS.vocab_size as u64) as u32)
            .collect();
        let (inputs, targets) = (&tokens[..tokens.len() - 1], &tokens[1..]);
        let batch = Batch { inputs, targets, rows: ROWS, cols: DIMS.block_size, first_row: 0 };
        engine.accumulate(batch, 1.0).expect("a pass");
        bits.push((engine.loss().expect("a loss") as f32).to_bits());
        let rule = Rule::AdamW(AdamW::new([0.9, 0.95], 1e-8, 0.1));
        let update = OptimizerStep { rule, lr: 1e-3, clip_norm: 1.0, t, loss_scale: 1.0 };
        engine.finish_step(&update).expect("an update");
    }
    let moments = engine.optimizer_states().iter().map(State::Optimizer);
    for state in [State::Parameters].into_iter().chain(moments) {
        bits.extend(engine.read(state).expect("it can be read").iter().map(|x| x.to_bits()));
    }
    bits
}

#[test]
fn sixteen_threads_compute_what_one_does() {
    for (precision, attention) in [
        (Precision::Fp32, Attention::Flash),
        (Precision::Fp32, Attention::Naive),
        (Precision::Bf16, Attention::Flash),
    ] {
        let one = trained(precision, attention, 1);
        assert!(one.iter().any(|bits| *bits != one[0]));
        for threads in [2, 4, 8, 16] {
            assert!(
                trained(precision, attention, threads) == one,
                "{precision:?} {attention:?} on {threads}"
            );
        }
    }
}
