//! Engines that are ranks of one run against one engine alone: the same updates, whatever is sharded among them.

use crate::comm_support;

use comm_support::{each, ends};
use runner::comm::{Comm, Solo};
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, OptimizerShard, Target};
use runner::engine::optimizer::adamw::{AdamW, EXP_AVG, EXP_AVG_SQ};
use runner::engine::optimizer::muon::MOMENTUM_BUFFER;
use runner::engine::optimizer::{OptimizerKind, OptimizerStep, Rule};
use runner::engine::{Applied, Batch, Engine, State, cpu};
use runner::model::{Dims, ParamLayout, Tensor, init::initialize};
use runner::recipe::{Attention, MuonPrecision, Precision};
use std::sync::Arc;

const DIMS: Dims =
    Dims { n_layer: 2, n_head: 2, n_embd: 24, block_size: 8, vocab_size: 37, padded_vocab: 40 };
/// Rows of a step: 1 to 4 ranks get as many each.
const ROWS: usize = 12;
const STEPS: u64 = 6;

fn plan(precision: Precision, shard: OptimizerShard) -> MemoryPlan {
    plan_for(OptimizerKind::AdamW, precision, shard)
}

fn plan_for(optimizer: OptimizerKind, precision: Precision, shard: OptimizerShard) -> MemoryPlan {
    MemoryPlan::new(MemoryConfig {
        dims: DIMS,
        micro_batch: 1,
        precision,
        attention: Attention::Flash,
        target: Target::Cpu { threads: 1 },
        mode: Mode::Train(optimizer),
        activations: Activations::default(),
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

/// The engine of one rank with its first parameters and moments, which it writes whole, as a resumed run does.
fn engine(precision: Precision, comm: Arc<dyn Comm>, sharded: bool) -> cpu::CpuEngine {
    let (index, count) = (comm.rank(), comm.size());
    let shard = if sharded { OptimizerShard { index, count } } else { OptimizerShard::WHOLE };
    let mut engine = cpu::ranked_engine(plan(precision, shard), comm).expect("a small engine");
    let layout = ParamLayout::new(&DIMS);
    let mut values = vec![0.0; layout.len];
    initialize(&DIMS, &layout, 7, &mut values);
    engine.write(State::Parameters, &values).expect("the layout's size");
    let moments: Vec<f32> = (0..layout.len).map(|i| (i % 11) as f32 * 1e-6).collect();
    engine.write(State::Optimizer(&EXP_AVG), &moments).expect("the layout's size");
    engine.write(State::Optimizer(&EXP_AVG_SQ), &moments).expect("the layout's size");
    engine
}

/// Forward and backward passes over a rank's rows of a step.
fn accumulate(engine: &mut dyn Engine, comm: &dyn Comm, step: u64) {
    let per_rank = ROWS / comm.size();
    for micro_step in 0..per_rank {
        let row = step as usize * ROWS + comm.rank() * per_rank + micro_step;
        let tokens: Vec<u32> = (0..9).map(|i| ((row * 31 + i * 17) % DIMS.vocab_size) as u32).collect();
        let batch = Batch { inputs: &tokens[..8], targets: &tokens[1..], rows: 1, cols: 8, first_row: 0 };
        let weight = 1.0 / per_rank as f64;
        match micro_step + 1 == per_rank {
            false => engine.accumulate(batch, weight).expect("a step"),
            true => engine.accumulate_last(batch, weight).expect("a step"),
        }
    }
}

fn update(t: u64) -> OptimizerStep {
    OptimizerStep {
        rule: Rule::AdamW(AdamW::new([0.9, 0.95], 1e-8, 0.1)),
        lr: 1e-2,
        clip_norm: 0.5,
        t,
        loss_scale: 1.0,
    }
}

/// Parameters and moments, whole on rank 0.
fn states(engine: &mut dyn Engine) -> (Vec<f32>, [Vec<f32>; 2]) {
    let mut read = |state| engine.read(state).expect("it can be read").into_owned();
    (read(State::Parameters), [read(State::Optimizer(&EXP_AVG)), read(State::Optimizer(&EXP_AVG_SQ))])
}

/// Trains one rank.
fn train(precision: Precision, comm: Arc<dyn Comm>, sharded: bool) -> End {
    let mut engine = engine(precision, comm.clone(), sharded);
    let mut applied = Vec::new();
    let mut norm = 0.0;
    for step in 0..STEPS {
        accumulate(&mut engine, comm.as_ref(), step);
        norm = engine.grad_norm(1.0).expect("gradients are there");
        applied.push(engine.finish_step(&update(step + 1)).expect("an update"));
    }
    assert_eq!(engine.first_not_finite(State::Optimizer(&EXP_AVG_SQ)).expect("it can be read"), None);
    let (parameters, moments) = states(&mut engine);
    End { applied, parameters, moments, norm }
}

fn group(precision: Precision, size: usize, sharded: bool) -> Vec<End> {
    let ends = ends(size, 60);
    let by_rank = &ends;
    each(&ends, |comm| Ok(train(precision, by_rank[comm.rank()].clone(), sharded)))
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
        for (size, sharded) in [(2, false), (3, false), (4, false), (2, true), (3, true), (4, true)] {
            let ranks = group(precision, size, sharded);
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
            assert!(ranks[1..].iter().all(|rank| rank.moments[0].is_empty() == sharded));
        }
    }
}

#[test]
fn ranks_repeat_themselves_byte_for_byte() {
    for sharded in [false, true] {
        let (once, again) = (group(Precision::Fp32, 3, sharded), group(Precision::Fp32, 3, sharded));
        assert_eq!(once[0].applied, again[0].applied);
        assert_eq!(once[2].parameters, again[2].parameters);
        assert_eq!(once[0].moments, again[0].moments);
    }
}

#[test]
fn sharded_moments_take_a_rank_its_share_of_memory() {
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
    for sharded in [false, true] {
        let ends = ends(2, 60);
        let by_rank = &ends;
        let results = each(&ends, |comm| {
            let mut engine = engine(Precision::Fp32, by_rank[comm.rank()].clone(), sharded);
            let values = engine.read(State::Parameters).expect("it can be read").into_owned();
            let mut gradients = vec![0.0; values.len()];
            if comm.rank() == 1 {
                gradients[3] = f32::INFINITY;
            }
            engine.write(State::Gradients, &gradients).expect("the layout's size");
            let batch = Batch { inputs: &[1; 8], targets: &[2; 8], rows: 1, cols: 8, first_row: 0 };
            engine.accumulate_last(batch, 1.0).expect("a step");
            let applied = engine.finish_step(&update(1)).expect("an answer");
            let unchanged = *engine.read(State::Parameters).expect("it can be read") == values;
            Ok((applied.applied, unchanged))
        });
        assert!(results.into_iter().all(|result| result == Ok((false, true))));
    }
}

#[test]
fn a_discarded_step_leaves_no_trace_on_any_rank() {
    for sharded in [false, true] {
        let ends = ends(3, 60);
        let by_rank = &ends;
        // what each rank has after two updates, with and without a discarded step between them
        let train = |discards: bool| {
            let ranks = each(&ends, |comm| {
                let mut engine = engine(Precision::Fp32, by_rank[comm.rank()].clone(), sharded);
                let mut applied = Vec::new();
                accumulate(&mut engine, comm, 0);
                applied.push(engine.finish_step(&update(1)).expect("an update"));
                let discarded = discards.then(|| {
                    accumulate(&mut engine, comm, 1);
                    let loss = engine.loss().expect("a loss");
                    engine.discard().expect("a step's end");
                    let gradients = engine.read(State::Gradients).expect("it can be read");
                    assert!(gradients.iter().all(|gradient| *gradient == 0.0), "cleared");
                    (loss, engine.applied().expect("a step has ended"))
                });
                accumulate(&mut engine, comm, 2);
                applied.push(engine.finish_step(&update(2)).expect("an update"));
                Ok((applied, states(&mut engine), discarded))
            });
            ranks.into_iter().map(|rank| rank.expect("no rank is lost")).collect::<Vec<_>>()
        };
        let (with, without) = (train(true), train(false));
        let loss = with[0].2.expect("it was discarded").0;
        for (rank, ((applied, states, discarded), alone)) in with.iter().zip(&without).enumerate() {
            let what = format!("rank {rank}, sharded: {sharded}");
            assert_eq!((applied, states), (&alone.0, &alone.1), "{what}");
            assert!(applied.iter().all(|step| step.applied), "{what}");
            let (measured, ended) = discarded.expect("it was discarded");
            assert!(
                loss.is_finite() && measured == loss && ended.loss == loss,
                "{what}: {measured} {ended:?}"
            );
            assert!(ended.grad_norm.is_nan() && !ended.applied, "{what}: {ended:?}");
        }
    }
}

#[test]
#[should_panic(expected = "the plan of rank 0 of 1 has")]
fn the_share_of_another_rank_is_refused() {
    let other = plan(Precision::Fp32, OptimizerShard { index: 1, count: 2 });
    let _ = cpu::ranked_engine(other, Arc::new(Solo));
}

/// What a rank has after a few steps of Muon: parameters, and the states of which it wrote all and read all.
fn train_muon(comm: Arc<dyn Comm>, sharded: bool) -> (Vec<f32>, Vec<Vec<f32>>, Option<usize>) {
    let (index, count) = (comm.rank(), comm.size());
    let shard = if sharded { OptimizerShard { index, count } } else { OptimizerShard::WHOLE };
    let plan = plan_for(OptimizerKind::Muon, Precision::Fp32, shard);
    let mut engine = cpu::ranked_engine(plan, comm.clone()).expect("a small engine");
    // many pieces, the last of them shorter, and of no share a whole number
    engine.inner_mut().send_at_a_time(61 + count);
    let layout = ParamLayout::new(&DIMS);
    let mut values = vec![0.0; layout.len];
    initialize(&DIMS, &layout, 7, &mut values);
    engine.write(State::Parameters, &values).expect("the layout's size");
    let mut rule = OptimizerKind::Muon.typical();
    if let Rule::Muon(muon) = &mut rule {
        muon.ns_precision = MuonPrecision::Fp32;
    }
    for step in 0..STEPS {
        accumulate(&mut engine, comm.as_ref(), step);
        engine.finish_step(&OptimizerStep { rule, ..update(step + 1) }).expect("an update");
    }
    let states = OptimizerKind::Muon.states();
    let mut read = |state| engine.read(state).expect("it can be read").into_owned();
    let parameters = read(State::Parameters);
    let found: Vec<_> = states.iter().map(|state| read(State::Optimizer(state))).collect();
    // what a resumed run does: all elements of a state, written by every rank
    let numbered = |state: State| (0..state.len_in(&layout)).map(|i| i as f32).collect::<Vec<_>>();
    for state in states {
        let (which, name) = (State::Optimizer(state), state.name);
        let values = numbered(which);
        let covered: usize = layout.tensors.iter().filter(|t| (state.covers)(t)).map(Tensor::len).sum();
        // with the gaps between vectors
        assert!((covered..layout.len).contains(&values.len()), "{name}: {}", values.len());
        engine.write(which, &values).expect("all elements");
        let read = engine.read(which).expect("it can be read").into_owned();
        if index == 0 || !sharded {
            assert_eq!(read, values, "{name}");
        } else {
            assert!(read.is_empty(), "{name}: rank {index} of {count} has {}", read.len());
        }
    }
    // a number that is not finite in the last hidden matrix, whichever rank has it
    let mut values = numbered(State::Optimizer(&MOMENTUM_BUFFER));
    *values.last_mut().expect("a matrix") = f32::NAN;
    engine.write(State::Optimizer(&MOMENTUM_BUFFER), &values).expect("all elements");
    let bad = engine.first_not_finite(State::Optimizer(&MOMENTUM_BUFFER)).expect("it can be read");
    let last = layout.tensors.iter().rfind(|tensor| tensor.hidden).expect("a matrix").range().end - 1;
    assert_eq!(bad, Some(last), "its place among all parameters");
    // and in the last vector, behind a gap that the matrices leave in this state
    let first_moment = State::Optimizer(&states[0]);
    let mut values = numbered(first_moment);
    let end = layout.tensors.iter().map(|tensor| tensor.range().end).max().expect("tensors");
    // the state ends with the gap that fills the layout up
    let at = values.len() - 1 - (layout.len - end);
    values[at] = f32::NAN;
    engine.write(first_moment, &values).expect("all elements");
    let bad = engine.first_not_finite(first_moment).expect("it can be read");
    assert_eq!(bad, Some(end - 1), "its place among all parameters");
    engine.write(first_moment, &numbered(first_moment)).expect("all elements");
    let fine = engine.first_not_finite(State::Optimizer(&EXP_AVG)).expect("it can be read");
    (parameters, found, fine)
}

#[test]
fn muon_s_matrices_belong_to_one_rank_each_and_all_ranks_train_alike() {
    let group = |size: usize, sharded: bool| {
        let ends = ends(size, 60);
        let by_rank = &ends;
        let ranks = each(&ends, |comm| Ok(train_muon(by_rank[comm.rank()].clone(), sharded)));
        ranks.into_iter().map(|end| end.expect("no rank is lost")).collect::<Vec<_>>()
    };
    let alone = group(1, false).pop().expect("one rank");
    for (size, sharded) in [(2, false), (2, true), (3, true), (4, true), (12, true)] {
        let ranks = group(size, sharded);
        for rank in &ranks {
            assert_eq!(rank.0, ranks[0].0, "every rank has the same weights");
            assert_eq!(rank.2, None);
        }
        assert!(close(&ranks[0].0, &alone.0, 1e-4), "{size} {sharded}");
        for (one, other) in alone.1.iter().zip(&ranks[0].1) {
            assert!(close(other, one, 1e-4), "whole states on rank 0");
        }
        assert!(ranks[1..].iter().all(|rank| rank.1.iter().all(|state| state.is_empty() == sharded)));
    }
}

#[test]
fn muon_s_states_are_shared_out_without_rest() {
    let bytes = |shard| {
        let kinds = plan_for(OptimizerKind::Muon, Precision::Fp32, shard).bytes();
        kinds.iter().find(|(kind, _)| *kind == "moments").map(|(_, bytes)| *bytes).expect("a kind")
    };
    let whole = bytes(OptimizerShard::WHOLE);
    let layout = ParamLayout::new(&DIMS);
    assert_eq!(whole, (2 * (layout.len - layout.hidden.len()) + layout.hidden.len()) * 4);
    for count in [2, 3, 7] {
        assert_eq!((0..count).map(|index| bytes(OptimizerShard { index, count })).sum::<usize>(), whole);
    }
}
