//! Engines that are ranks of one run against one engine alone: the same updates, whatever is divided among them.

mod comm_support;

use comm_support::{each, ends};
use runner::comm::Comm;
use runner::engine::memory::{MemoryConfig, MemoryPlan, Mode, OptimizerShard, Target};
use runner::engine::optimizer::adamw::{AdamW, EXP_AVG, EXP_AVG_SQ};
use runner::engine::optimizer::{OptimizerKind, OptimizerStep, Rule};
use runner::engine::{Applied, Batch, Engine, State, cpu};
use runner::model::{Dims, ParamLayout, init::initialize};
use runner::recipe::{Attention, Precision};
use std::sync::Arc;

const DIMS: Dims =
    Dims { n_layer: 2, n_head: 2, n_embd: 24, block_size: 8, vocab_size: 37, padded_vocab: 40 };
/// Rows of a step: 1 to 4 ranks get as many each.
const ROWS: usize = 12;
const STEPS: u64 = 6;

fn plan(precision: Precision, shard: OptimizerShard) -> MemoryPlan {
    MemoryPlan::new(MemoryConfig {
        dims: DIMS,
        micro_batch: 1,
        precision,
        attention: Attention::Flash,
        target: Target::Cpu { threads: 1 },
        mode: Mode::Train(OptimizerKind::AdamW),
    })
    .sharded(shard)
}

/// What a rank has at the end.
struct End {
    applied: Vec<Applied>,
    parameters: Vec<f32>,
    moments: [Vec<f32>; 2],
    norm: f64,
}

/// Trains one rank; it writes and reads whole states, as a resumed run does.
fn train(precision: Precision, comm: Arc<dyn Comm>, divide: bool) -> End {
    let (rank, size) = (comm.rank(), comm.size());
    let shard = if divide { OptimizerShard { index: rank, count: size } } else { OptimizerShard::WHOLE };
    let mut engine = cpu::ranked_engine(plan(precision, shard), comm).expect("a small engine");
    let layout = ParamLayout::new(&DIMS);
    let mut values = vec![0.0; layout.len];
    initialize(&DIMS, &layout, 7, &mut values);
    engine.write(State::Parameters, &values).expect("the layout's size");
    let moments: Vec<f32> = (0..layout.len).map(|i| (i % 11) as f32 * 1e-6).collect();
    engine.write(State::Optimizer(&EXP_AVG), &moments).expect("the layout's size");
    engine.write(State::Optimizer(&EXP_AVG_SQ), &moments).expect("the layout's size");
    let mut applied = Vec::new();
    let mut norm = 0.0;
    for step in 0..STEPS {
        let per_rank = ROWS / size;
        for micro_step in 0..per_rank {
            let row = step as usize * ROWS + rank * per_rank + micro_step;
            let tokens: Vec<u32> = (0..9).map(|i| ((row * 31 + i * 17) % DIMS.vocab_size) as u32).collect();
            let batch = Batch { inputs: &tokens[..8], targets: &tokens[1..], rows: 1, cols: 8 };
            let weight = 1.0 / per_rank as f64;
            match micro_step + 1 == per_rank {
                false => engine.accumulate(batch, weight).expect("a step"),
                true => engine.accumulate_last(batch, weight).expect("a step"),
            }
        }
        norm = engine.grad_norm(1.0).expect("gradients are there");
        let update = OptimizerStep {
            rule: Rule::AdamW(AdamW { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 }),
            lr: 1e-2,
            clip_norm: 0.5,
            t: step + 1,
            loss_scale: 1.0,
        };
        applied.push(engine.finish_step(&update).expect("an update"));
    }
    assert_eq!(engine.first_not_finite(State::Optimizer(&EXP_AVG_SQ)).expect("it can be read"), None);
    let mut read = |state| engine.read(state).expect("it can be read").into_owned();
    let parameters = read(State::Parameters);
    End {
        applied,
        parameters,
        moments: [read(State::Optimizer(&EXP_AVG)), read(State::Optimizer(&EXP_AVG_SQ))],
        norm,
    }
}

fn group(precision: Precision, size: usize, divide: bool) -> Vec<End> {
    let ends = ends(size, 60);
    let by_rank = &ends;
    each(&ends, |comm| Ok(train(precision, by_rank[comm.rank()].clone(), divide)))
        .into_iter()
        .map(|end| end.expect("no rank is lost"))
        .collect()
}

fn close(a: &[f32], b: &[f32], tolerance: f32) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance * (1.0 + b.abs()))
}

#[test]
fn any_number_of_ranks_trains_alike() {
    for (precision, tolerance) in [(Precision::Fp32, 2e-6), (Precision::Bf16, 2e-3)] {
        let alone = group(precision, 1, false).pop().expect("one rank");
        for (size, divide) in [(2, false), (3, false), (4, false), (2, true), (3, true), (4, true)] {
            let ranks = group(precision, size, divide);
            for rank in &ranks {
                for (one, other) in alone.applied.iter().zip(&rank.applied) {
                    assert!(other.applied);
                    assert!(
                        (one.loss - other.loss).abs() <= f64::from(tolerance) * one.loss,
                        "{one:?} {other:?}"
                    );
                    assert!(
                        (one.grad_norm - other.grad_norm).abs() <= f64::from(tolerance) * one.grad_norm * 4.0
                    );
                }
                assert_eq!(
                    rank.norm,
                    rank.applied[STEPS as usize - 1].grad_norm,
                    "measured ahead of the update"
                );
                assert_eq!(rank.applied, ranks[0].applied, "every rank learns the same");
                assert_eq!(rank.parameters, ranks[0].parameters, "every rank has the same weights");
            }
            assert!(close(&ranks[0].parameters, &alone.parameters, tolerance * 10.0));
            for (one, other) in alone.moments.iter().zip(&ranks[0].moments) {
                assert!(close(other, one, tolerance), "whole moments on rank 0");
            }
            assert!(ranks[1..].iter().all(|rank| rank.moments[0].is_empty() == divide));
        }
    }
}

#[test]
fn ranks_repeat_themselves_byte_for_byte() {
    for divide in [false, true] {
        let (once, again) = (group(Precision::Fp32, 3, divide), group(Precision::Fp32, 3, divide));
        assert_eq!(once[0].applied, again[0].applied);
        assert_eq!(once[2].parameters, again[2].parameters);
        assert_eq!(once[0].moments, again[0].moments);
    }
}

#[test]
fn divided_moments_take_a_rank_its_share_of_memory() {
    let bytes = |shard| {
        let kinds = plan(Precision::Fp32, shard).bytes();
        kinds.iter().find(|(kind, _)| *kind == "moments").map(|(_, bytes)| *bytes).expect("a kind")
    };
    let whole = bytes(OptimizerShard::WHOLE);
    let parts: Vec<usize> = (0..4).map(|index| bytes(OptimizerShard { index, count: 4 })).collect();
    assert_eq!(parts.iter().sum::<usize>(), whole);
    assert!(parts.iter().all(|&part| part < whole / 4 + 200));
}

#[test]
fn a_gradient_that_is_not_finite_on_one_rank_stops_the_update_on_all() {
    for divide in [false, true] {
        let ends = ends(2, 60);
        let by_rank = &ends;
        let results = each(&ends, |comm| {
            let comm = by_rank[comm.rank()].clone();
            let shard =
                if divide { OptimizerShard { index: comm.rank(), count: 2 } } else { OptimizerShard::WHOLE };
            let rank = comm.rank();
            let mut engine = cpu::ranked_engine(plan(Precision::Fp32, shard), comm).expect("a small engine");
            let layout = ParamLayout::new(&DIMS);
            let mut values = vec![0.0; layout.len];
            initialize(&DIMS, &layout, 7, &mut values);
            engine.write(State::Parameters, &values).expect("the layout's size");
            let mut gradients = vec![0.0; layout.len];
            if rank == 1 {
                gradients[3] = f32::INFINITY;
            }
            engine.write(State::Gradients, &gradients).expect("the layout's size");
            let batch = Batch { inputs: &[1; 8], targets: &[2; 8], rows: 1, cols: 8 };
            engine.accumulate_last(batch, 1.0).expect("a step");
            let (betas, eps, loss_scale) = ([0.9, 0.95], 1e-8, 1.0);
            let update = OptimizerStep {
                rule: Rule::AdamW(AdamW { betas, eps, weight_decay: 0.1 }),
                lr: 1e-2,
                clip_norm: 0.5,
                t: 1,
                loss_scale,
            };
            let applied = engine.finish_step(&update).expect("an answer");
            let unchanged = *engine.read(State::Parameters).expect("it can be read") == values;
            Ok((applied.applied, unchanged))
        });
        assert!(results.into_iter().all(|result| result == Ok((false, true))));
    }
}
