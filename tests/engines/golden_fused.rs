//! The fused CPU engine against PyTorch.

use crate::golden;

use golden::Golden;
use runner::engine::cpu;
use runner::engine::dropout::Dropout;
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Target};
use runner::engine::optimizer::OptimizerKind;
use runner::engine::{Batch, Engine, State};
use runner::model::Dims;
use runner::recipe::{Attention, Precision};

fn engine(dims: Dims, optimizer: OptimizerKind, attention: Attention, threads: usize) -> cpu::CpuEngine {
    dropping(None, dims, optimizer, attention, threads)
}

fn dropping(
    dropout: Option<Dropout>,
    dims: Dims,
    optimizer: OptimizerKind,
    attention: Attention,
    threads: usize,
) -> cpu::CpuEngine {
    let config = MemoryConfig {
        dims,
        micro_batch: 4,
        precision: Precision::Fp32,
        attention,
        target: Target::Cpu { threads },
        mode: Mode::Train(optimizer),
        activations: Activations { dropout, ..Activations::default() },
    };
    cpu::engine(MemoryPlan::new(config)).expect("a small engine can be allocated")
}

fn check(name: &str, attention: Attention, threads: usize) {
    let golden = Golden::load(name);
    golden::check(&mut engine(golden.dims, OptimizerKind::AdamW, attention, threads), &golden);
}

#[test]
fn flash_attention_follows_pytorch() {
    check("a", Attention::Flash, 2);
    check("b", Attention::Flash, 1);
}

#[test]
fn naive_attention_follows_pytorch() {
    check("a", Attention::Naive, 1);
    check("b", Attention::Naive, 3);
}

#[test]
fn muon_follows_pytorch_on_any_number_of_threads() {
    for case in golden::muon::cases() {
        for threads in [1, 3] {
            let mut engine = engine(case.1.dims, OptimizerKind::Muon, Attention::Flash, threads);
            golden::muon::check(&mut engine, &case);
        }
    }
}

#[test]
fn dropout_follows_pytorch() {
    for case in golden::dropout::cases() {
        for (attention, threads) in [(Attention::Flash, 3), (Attention::Naive, 1)] {
            let of = |dropout| dropping(dropout, case.golden.dims, OptimizerKind::AdamW, attention, threads);
            assert_eq!(golden::dropout::compare(&mut of(case.dropout), &case), Ok(()), "{attention:?}");
            let rate = case.dropout.expect("something is left out").rate();
            for wrong in [None, Dropout::new(rate, 1), Dropout::new(rate + 0.01, 1337)] {
                golden::dropout::compare(&mut of(wrong), &case).expect_err("another dropout");
            }
        }
    }
}

/// Dropout is a function of the training row: rows alone, in any order and on any number of threads, leave out what
/// they do together.
#[test]
fn what_is_left_out_depends_on_the_training_row_alone() {
    let dims = Dims { n_layer: 2, n_head: 2, n_embd: 24, block_size: 37, vocab_size: 31, padded_vocab: 32 };
    let dropout = Dropout::new(0.3, 5);
    for attention in [Attention::Flash, Attention::Naive] {
        let inputs: Vec<u32> = (0..4 * 37).map(|i| (i * i % 31) as u32).collect();
        let losses = |rows: usize, threads: usize, order: &[usize]| {
            let mut engine = dropping(dropout, dims, OptimizerKind::AdamW, attention, threads);
            let layout = engine.layout().clone();
            let mut values = vec![0.0; layout.len];
            runner::model::init::initialize(&dims, &layout, 3, &mut values);
            values.iter_mut().for_each(|value| *value *= 8.0);
            engine.write(State::Parameters, &values).expect("the layout's size");
            let mut of_rows = Vec::new();
            for &first in order {
                let inputs = &inputs[first * 37..(first + rows) * 37];
                let first_row = (1 << 32) - 2 + first as u64;
                let batch = Batch { inputs, targets: inputs, rows, cols: 37, first_row };
                engine.accumulate(batch, 1.0).expect("a pass");
                of_rows.push(engine.loss().expect("a loss"));
                engine.discard().expect("a step without update");
            }
            of_rows
        };
        let together = losses(4, 1, &[0])[0];
        assert_eq!(together.to_bits(), losses(4, 3, &[0])[0].to_bits());
        let [alone, backwards] = [losses(1, 2, &[0, 1, 2, 3]), losses(1, 2, &[3, 2, 1, 0])];
        assert!(alone.iter().eq(backwards.iter().rev()), "{alone:?} {backwards:?}");
        assert!((alone.iter().sum::<f64>() / 4.0 - together).abs() < 1e-6 * together, "{alone:?} {together}");
        assert!((alone[0] - alone[1]).abs() > 1e-3);
    }
}

#[test]
fn embeddings_have_settings_of_their_own() {
    for case in golden::groups::cases() {
        for threads in [1, 3] {
            let mut engine = engine(case.1.dims, OptimizerKind::AdamW, Attention::Flash, threads);
            assert_eq!(golden::groups::compare(&mut engine, &case), Ok(()), "{}", case.0);
        }
        for (what, wrong) in golden::groups::wrong(&case) {
            let mut engine = engine(wrong.1.dims, OptimizerKind::AdamW, Attention::Flash, 1);
            golden::groups::compare(&mut engine, &wrong).expect_err(what);
        }
    }
}
