//! What the backward pass computes again is what the forward pass computed: `compute.recompute` changes no bit.

use runner::engine::cpu::{self, CpuEngine};
use runner::engine::dropout::Dropout;
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Recompute, Target};
use runner::engine::optimizer::{OptimizerKind, OptimizerStep};
use runner::engine::{Batch, Engine, Next, State};
use runner::model::{Dims, init};
use runner::recipe::{Attention, Precision};
use runner::train::sample::{Beginning, Sampling, generate};
use std::ops::ControlFlow;
use std::sync::Mutex;

/// Several blocks, and sizes that are multiples of nothing.
const DIMS: Dims =
    Dims { n_layer: 4, n_head: 3, n_embd: 36, block_size: 21, vocab_size: 61, padded_vocab: 64 };
const ROWS: usize = 3;

fn config(recompute: Recompute, precision: Precision, attention: Attention, threads: usize) -> MemoryConfig {
    MemoryConfig {
        dims: DIMS,
        micro_batch: ROWS,
        precision,
        attention,
        target: Target::Cpu { threads },
        mode: Mode::Train(OptimizerKind::AdamW),
        activations: Activations { recompute, ..Activations::default() },
    }
}

fn engine(config: MemoryConfig) -> CpuEngine {
    let mut engine = cpu::engine(MemoryPlan::new(config)).expect("a small engine");
    let layout = engine.layout().clone();
    let mut values = vec![0.0; layout.len];
    init::initialize(&config.dims, &layout, 3, &mut values);
    engine.write(State::Parameters, &values).expect("the layout's size");
    engine
}

fn tokens(seed: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * 7 + seed * 5 + i * i) % 61).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Every number of two steps of two passes, the second of each over a smaller batch, and of what follows them.
fn numbers(engine: &mut dyn Engine, kind: OptimizerKind) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for t in 1..=2 {
        for (seed, rows, cols) in [(0, ROWS, DIMS.block_size), (1, 2, DIMS.block_size - 4)] {
            let (inputs, targets) = (tokens(seed + 2 * t as u32, rows * cols), tokens(9 + seed, rows * cols));
            engine
                .accumulate(Batch { inputs: &inputs, targets: &targets, rows, cols, first_row: 0 }, 0.5)
                .expect("a pass");
            all.push(bits(&[engine.loss().expect("a loss") as f32]));
        }
        all.push(bits(&engine.read(State::Gradients).expect("gradients")));
        let step = OptimizerStep { rule: kind.typical(), lr: 1e-2, clip_norm: 1.0, t, loss_scale: 1.0 };
        let applied = engine.finish_step(&step).expect("an update");
        assert!(applied.applied && applied.grad_norm > 0.01, "{applied:?}");
    }
    for state in engine.saved_states() {
        all.push(bits(&engine.read(state).expect("a state")));
    }
    let inputs = tokens(4, ROWS * DIMS.block_size);
    let batch = Batch { inputs: &inputs, targets: &inputs, rows: ROWS, cols: DIMS.block_size, first_row: 0 };
    all.push(bits(&engine.token_losses(batch).expect("losses")));
    all.push(bits(&engine.losses_at(batch, &[0, 3], false).expect("losses").losses));
    all.push(bits(&engine.logits(&inputs[..9], false).expect("logits")));
    all
}

#[test]
fn no_bit_depends_on_what_is_computed_again() {
    for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16] {
        for attention in [Attention::Flash, Attention::Naive] {
            for dropout in [None, Dropout::new(0.2, 11)] {
                let of = |recompute, threads| {
                    let config = config(recompute, precision, attention, threads);
                    let activations = Activations { dropout, ..config.activations };
                    let mut engine = engine(MemoryConfig { activations, ..config });
                    numbers(&mut engine, OptimizerKind::AdamW)
                };
                let kept = of(Recompute::None, 1);
                for recompute in [Recompute::Mlp, Recompute::Block] {
                    for threads in [1, 3] {
                        let again = of(recompute, threads);
                        let what = format!("{precision:?} {attention:?} {recompute:?} {dropout:?}");
                        assert!(again == kept, "{what}, {threads} threads");
                    }
                }
            }
        }
    }
}

#[test]
fn nor_do_those_of_muon_and_of_a_single_block() {
    for (kind, n_layer) in [(OptimizerKind::Muon, 4), (OptimizerKind::AdamW, 1)] {
        let dims = Dims { n_layer, ..DIMS };
        let of = |recompute| {
            let config = config(recompute, Precision::Bf16, Attention::Flash, 2);
            numbers(&mut engine(MemoryConfig { dims, mode: Mode::Train(kind), ..config }), kind)
        };
        let kept = of(Recompute::None);
        assert!(of(Recompute::Mlp) == kept && of(Recompute::Block) == kept, "{kind:?} {n_layer}");
    }
}

/// Where a chunk of logits is small because the activations are large, it stays small: its size is part of the result.
#[test]
fn chunks_of_logits_stay_as_they_are() {
    let dims = Dims {
        n_layer: 24,
        n_head: 16,
        n_embd: 1024,
        block_size: 1024,
        vocab_size: 50257,
        padded_vocab: 50304,
    };
    let chunk = |n_layer, recompute| {
        let config = config(recompute, Precision::Fp32, Attention::Flash, 2);
        MemoryPlan::new(MemoryConfig { dims: Dims { n_layer, ..dims }, micro_batch: 1, ..config }).arena.chunk
    };
    assert!(chunk(1, Recompute::None) > chunk(24, Recompute::None), "it depends on the activations");
    for n_layer in [1, 3, 24] {
        for recompute in Recompute::ALL {
            assert_eq!(chunk(n_layer, recompute), chunk(n_layer, Recompute::None), "{n_layer} {recompute:?}");
        }
    }
}

#[test]
fn the_buffers_are_those_of_the_plan_and_smaller() {
    for attention in [Attention::Flash, Attention::Naive] {
        let bytes = Recompute::ALL.map(|recompute| {
            let config = config(recompute, Precision::Fp32, attention, 2);
            let planned = MemoryPlan::new(config).total_bytes();
            assert_eq!(engine(config).inner().backend().allocated_bytes(), planned, "{recompute:?}");
            planned
        });
        let n = ROWS * DIMS.block_size;
        // each span begins on a cache line
        let line = |numbers: usize| (4 * numbers).next_multiple_of(64);
        let again = DIMS.n_layer - 1;
        assert_eq!(bytes[0] - bytes[1], again * line(4 * n * DIMS.n_embd));
        let scores = if attention == Attention::Flash { 1 } else { DIMS.block_size };
        let [qkv, narrow] = [3, 1].map(|width| line(width * n * DIMS.n_embd));
        let block = qkv + line(n * DIMS.n_head * scores) + 2 * narrow + line(2 * n);
        assert_eq!(bytes[1] - bytes[2], again * block);
    }
}

#[test]
fn a_pass_that_computes_again_tells_how_far_it_is() {
    for recompute in Recompute::ALL {
        let mut engine = engine(config(recompute, Precision::Fp32, Attention::Flash, 2));
        let inputs = tokens(1, ROWS * DIMS.block_size);
        let batch =
            Batch { inputs: &inputs, targets: &inputs, rows: ROWS, cols: DIMS.block_size, first_row: 0 };
        let told = Mutex::new(Vec::new());
        let watch = |done| {
            told.lock().expect("no panic").push(done);
            ControlFlow::Continue(())
        };
        assert!(engine.accumulate_watched(batch, 1.0, false, &watch).expect("a pass").is_continue());
        let told = told.into_inner().expect("no panic");
        assert!(told.windows(2).all(|two| two[0] < two[1]), "{recompute:?}: {told:?}");
        let last = told.last().expect("looks");
        assert!((last - 1.0).abs() < 1e-9, "{recompute:?}: ends at {last}");
    }
}

/// Text between two steps is the same whether keys and values are kept or not.
#[test]
fn texts_between_steps_are_the_same() {
    let sampling = Sampling { tokens: 30, temperature: 0.9, top_k: 20, top_p: 1.0 };
    let beginnings: Vec<_> =
        (0..4).map(|seed| Beginning { prompt: tokens(seed, 5), seed: u64::from(seed) }).collect();
    let texts = Recompute::ALL.map(|recompute| {
        let mut engine = engine(config(recompute, Precision::Fp32, Attention::Flash, 2));
        let sequences = if recompute == Recompute::Block { 0 } else { ROWS };
        assert_eq!(engine.sequences(), sequences);
        let next = [Next { sequence: 0, position: 1, token: 1 }];
        assert_eq!(engine.continue_sequences(&next).is_ok(), sequences > 0);
        let on = |_: usize, _: u32| ControlFlow::Continue(());
        generate(&mut engine, DIMS.block_size, &beginnings, &sampling, on).expect("texts")
    });
    assert!(texts[0] == texts[1] && texts[0] == texts[2]);
}
