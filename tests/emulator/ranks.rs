//! Several ranks with an emulated device each, against one rank alone: the updates must be equal, however
//! their states are sharded.
//!
//! The emulated device computes a sum only when it is waited for, and leaves NaN where another rank has the
//! sum. So a missing wait, or the use of another rank's numbers, changes the result.
//!
//! Needs a C++ compiler: `cargo test --release --features cuda-emulator --test emulator ranks::`.

use crate::comm_support;

use comm_support::{each, ends};
use runner::comm::{Comm, CommError, Solo};
use runner::engine::cuda::CudaBackend;
use runner::engine::cuda::device::KernelConfig;
use runner::engine::cuda::emulator::{Behaviour, EmulatedDevice, ThreadOrder};
use runner::engine::fused::Fused;
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, OptimizerShard, Target};
use runner::engine::optimizer::adamw::{AdamW, EXP_AVG, EXP_AVG_SQ};
use runner::engine::optimizer::{OptimizerKind, OptimizerStep, Rule};
use runner::engine::{Applied, Batch, Engine, EngineError, State};
use runner::model::init::initialize;
use runner::model::{Dims, ParamLayout};
use runner::recipe::{Attention, Precision};
use std::path::Path;
use std::sync::Arc;

type Emulated = Fused<CudaBackend<EmulatedDevice>>;

const DIMS: Dims =
    Dims { n_layer: 2, n_head: 2, n_embd: 24, block_size: 8, vocab_size: 37, padded_vocab: 40 };
/// Rows of a step; 1, 2 or 3 ranks get equally many.
const ROWS: usize = 6;
const STEPS: u64 = 4;

/// An engine of one rank of several, or of a run without ranks.
fn engine(precision: Precision, comm: Option<Arc<dyn Comm>>, sharded: bool, records: bool) -> Emulated {
    let (rank, size) = comm.as_ref().map_or((0, 1), |comm| (comm.rank(), comm.size()));
    let plan = MemoryPlan::new(MemoryConfig {
        dims: DIMS,
        micro_batch: 1,
        precision,
        attention: Attention::Flash,
        target: Target::Cuda,
        mode: Mode::Train(OptimizerKind::AdamW),
        activations: Activations::default(),
    })
    .sharded(if sharded { OptimizerShard { index: rank, count: size } } else { OptimizerShard::WHOLE });
    let config = KernelConfig { precision, head_size: DIMS.head_size(), dropout: false };
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
    let behaviour = Behaviour { order: ThreadOrder::Ascending, fuses: false, records };
    let device = EmulatedDevice::new(&config, behaviour, &cache);
    let Some(comm) = comm else {
        let backend = CudaBackend::new(&plan, device).expect("host memory");
        return Fused::new(plan, backend, Arc::new(Solo));
    };
    let backend =
        CudaBackend::ranked(&plan, device.with_ranks(comm.clone()), comm.clone()).expect("host memory");
    Fused::new(plan, backend, comm)
}

fn start() -> Vec<f32> {
    let layout = ParamLayout::new(&DIMS);
    let mut values = vec![0.0; layout.len];
    initialize(&DIMS, &layout, 7, &mut values);
    values
}

fn update(t: u64) -> OptimizerStep {
    let (betas, eps, loss_scale) = ([0.9, 0.95], 1e-8, 1.0);
    OptimizerStep { rule: Rule::AdamW(AdamW::new(betas, eps, 0.1)), lr: 1e-2, clip_norm: 0.5, t, loss_scale }
}

/// The state of a rank at the end.
#[derive(Debug, PartialEq)]
struct End {
    applied: Vec<Applied>,
    parameters: Vec<f32>,
    moments: [Vec<f32>; 2],
    played: usize,
}

/// Writes a rank's first parameters and moments.
fn begin(engine: &mut Emulated) -> Result<(), EngineError> {
    engine.write(State::Parameters, &start())?;
    let moments: Vec<f32> = (0..engine.layout().len).map(|i| (i % 11) as f32 * 1e-6).collect();
    engine.write(State::Optimizer(&EXP_AVG), &moments)?;
    engine.write(State::Optimizer(&EXP_AVG_SQ), &moments)
}

/// Forward and backward passes over a rank's rows of a step.
fn accumulate(engine: &mut Emulated, rank: usize, size: usize, step: u64) -> Result<(), EngineError> {
    let per_rank = ROWS / size;
    for micro_step in 0..per_rank {
        let row = step as usize * ROWS + rank * per_rank + micro_step;
        let tokens: Vec<u32> = (0..9).map(|i| ((row * 31 + i * 17) % DIMS.vocab_size) as u32).collect();
        let batch = Batch { inputs: &tokens[..8], targets: &tokens[1..], rows: 1, cols: 8, first_row: 0 };
        let weight = 1.0 / per_rank as f64;
        match micro_step + 1 == per_rank {
            false => engine.accumulate(batch, weight)?,
            true => engine.accumulate_last(batch, weight)?,
        }
    }
    Ok(())
}

/// The state of a rank after these steps.
fn end(mut engine: Emulated, applied: Vec<Applied>) -> Result<End, EngineError> {
    let mut read = |state| engine.read(state).map(|values| values.into_owned());
    assert!(read(State::Gradients)?.iter().all(|gradient| *gradient == 0.0), "cleared");
    let parameters = read(State::Parameters)?;
    let moments = [read(State::Optimizer(&EXP_AVG))?, read(State::Optimizer(&EXP_AVG_SQ))?];
    Ok(End { applied, parameters, moments, played: engine.backend_mut().device_mut().played() })
}

fn train(mut engine: Emulated, rank: usize, size: usize) -> Result<End, EngineError> {
    begin(&mut engine)?;
    let mut applied = Vec::new();
    for step in 0..STEPS {
        accumulate(&mut engine, rank, size, step)?;
        let norm = engine.grad_norm(1.0)?;
        applied.push(engine.finish_step(&update(step + 1))?);
        let measured = applied[step as usize].grad_norm;
        assert!((norm - measured).abs() <= 1e-12 * norm, "{norm} ahead of the update, {measured} in it");
    }
    end(engine, applied)
}

fn group(precision: Precision, size: usize, sharded: bool, records: bool) -> Vec<End> {
    let ends = ends(size, 60);
    let ranks = each(&ends, |comm| {
        let rank = comm.rank();
        Ok(train(engine(precision, Some(ends[rank].clone()), sharded, records), rank, size).expect("an end"))
    });
    ranks.into_iter().map(|end| end.expect("no rank is lost")).collect()
}

fn close(a: &[f32], b: &[f32], tolerance: f32) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance * (1.0 + b.abs()))
}

#[test]
fn any_number_of_devices_gives_the_same_training() {
    for (precision, tolerance) in [(Precision::Fp32, 2e-6), (Precision::Bf16, 4e-3)] {
        let alone = train(engine(precision, None, false, false), 0, 1).expect("an end");
        assert!(alone.applied.iter().all(|applied| applied.applied && applied.grad_norm > 0.5), "clipped");
        for (size, sharded, records) in
            [(1, false, false), (2, false, false), (2, true, true), (3, false, true), (3, true, false)]
        {
            let ranks = group(precision, size, sharded, records);
            let what = format!("{precision:?}, {size} ranks, sharded: {sharded}");
            for rank in &ranks {
                for (one, other) in alone.applied.iter().zip(&rank.applied) {
                    let within = |a: f64, b: f64| (a - b).abs() <= f64::from(tolerance) * 4.0 * b;
                    assert!(other.applied, "{what}");
                    assert!(within(other.loss, one.loss), "{what}: {other:?} {one:?}");
                    assert!(within(other.grad_norm, one.grad_norm), "{what}: {other:?} {one:?}");
                }
                assert_eq!(rank.applied, ranks[0].applied, "{what}: every rank learns the same");
                assert_eq!(rank.parameters, ranks[0].parameters, "{what}: every rank has the same weights");
                // there are two sequences: they are launched in the first step and recorded in the second; of
                // a step's micro-batches only the last one sums over the ranks
                let last = STEPS as usize - 1;
                let others = STEPS as usize * (ROWS / size - 1) - 1;
                assert_eq!(rank.played, if records { last + others } else { 0 }, "{what}");
            }
            assert!(close(&ranks[0].parameters, &alone.parameters, tolerance * 10.0), "{what}");
            for (one, other) in alone.moments.iter().zip(&ranks[0].moments) {
                assert!(close(other, one, tolerance), "{what}: whole moments on rank 0");
            }
            assert!(ranks[1..].iter().all(|rank| rank.moments[0].is_empty() == sharded), "{what}");
        }
    }
}

#[test]
fn one_rank_gives_the_same_bytes_with_collectives_as_without() {
    let alone = train(engine(Precision::Bf16, None, false, true), 0, 1).expect("an end");
    let [ranked] = &group(Precision::Bf16, 1, false, true)[..] else { panic!("one rank") };
    assert_eq!(
        (&ranked.applied, &ranked.parameters, &ranked.moments),
        (&alone.applied, &alone.parameters, &alone.moments)
    );
}

#[test]
fn ranks_give_the_same_bytes_again() {
    for sharded in [false, true] {
        assert_eq!(group(Precision::Fp32, 3, sharded, true), group(Precision::Fp32, 3, sharded, true));
    }
}

#[test]
fn a_device_allocates_what_its_plan_lists() {
    for (index, count) in [(0, 1), (0, 3), (2, 3)] {
        let plan = MemoryPlan::new(MemoryConfig {
            dims: DIMS,
            micro_batch: 1,
            precision: Precision::Bf16,
            attention: Attention::Flash,
            target: Target::Cuda,
            mode: Mode::Train(OptimizerKind::AdamW),
            activations: Activations::default(),
        })
        .sharded(OptimizerShard { index, count });
        let config = KernelConfig { precision: Precision::Bf16, head_size: DIMS.head_size(), dropout: false };
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
        let behaviour = Behaviour { order: ThreadOrder::Ascending, fuses: false, records: false };
        let device = EmulatedDevice::new(&config, behaviour, &cache);
        let comm = ends(count, 60).swap_remove(index);
        let mut backend =
            CudaBackend::ranked(&plan, device.with_ranks(comm.clone()), comm).expect("host memory");
        let planned = plan.total_bytes() - plan.device_bytes();
        assert_eq!(backend.device_mut().allocated_bytes(), planned, "part {index} of {count}");
    }
}

#[test]
fn a_gradient_that_is_not_finite_on_one_rank_stops_the_update_on_all() {
    for sharded in [false, true] {
        let ends = ends(2, 60);
        let results = each(&ends, |comm| {
            let rank = comm.rank();
            let mut engine = engine(Precision::Fp32, Some(ends[rank].clone()), sharded, false);
            let values = start();
            engine.write(State::Parameters, &values).expect("the layout's size");
            let mut gradients = vec![0.0; values.len()];
            if rank == 1 {
                gradients[3] = f32::INFINITY;
            }
            engine.write(State::Gradients, &gradients).expect("the layout's size");
            let batch = Batch { inputs: &[1; 8], targets: &[2; 8], rows: 1, cols: 8, first_row: 0 };
            engine.accumulate_last(batch, 1.0).expect("a step");
            let applied = engine.finish_step(&update(1)).expect("an answer");
            let unchanged = *engine.read(State::Parameters).expect("it can be read") == values;
            let cleared = engine.read(State::Gradients).expect("it can be read").iter().all(|g| *g == 0.0);
            Ok((applied.applied, unchanged, cleared))
        });
        assert!(results.into_iter().all(|result| result == Ok((false, true, true))));
    }
}

/// Two updates on one rank of three, with or without a discarded step between them, and what that one had: its loss
/// before the end, and how it ended.
fn discarding(
    mut engine: Emulated,
    rank: usize,
    discards: bool,
) -> Result<(End, Option<(f64, Applied)>), EngineError> {
    begin(&mut engine)?;
    accumulate(&mut engine, rank, 3, 0)?;
    let mut applied = vec![engine.finish_step(&update(1))?];
    let mut discarded = None;
    if discards {
        accumulate(&mut engine, rank, 3, 1)?;
        let loss = engine.loss()?;
        engine.discard()?;
        assert!(engine.read(State::Gradients)?.iter().all(|gradient| *gradient == 0.0), "cleared");
        discarded = Some((loss, engine.applied()?));
    }
    accumulate(&mut engine, rank, 3, 2)?;
    applied.push(engine.finish_step(&update(2))?);
    Ok((end(engine, applied)?, discarded))
}

#[test]
fn a_discarded_step_leaves_no_trace_on_any_rank() {
    for (sharded, records) in [(false, false), (false, true), (true, false), (true, true)] {
        let ends = ends(3, 60);
        let train = |discards| {
            let ranks = each(&ends, |comm| {
                let rank = comm.rank();
                let engine = engine(Precision::Fp32, Some(ends[rank].clone()), sharded, records);
                Ok(discarding(engine, rank, discards).expect("an end"))
            });
            ranks.into_iter().map(|rank| rank.expect("no rank is lost")).collect::<Vec<_>>()
        };
        let (with, without) = (train(true), train(false));
        let loss = with[0].1.expect("it was discarded").0;
        for (rank, ((end, discarded), (alone, _))) in with.iter().zip(&without).enumerate() {
            let what = format!("rank {rank}, sharded: {sharded}, records: {records}");
            assert_eq!(end.applied, alone.applied, "{what}");
            assert!(end.applied.iter().all(|step| step.applied), "{what}");
            assert_eq!((&end.parameters, &end.moments), (&alone.parameters, &alone.moments), "{what}");
            // the step between is played where the device records, and the update after it as well
            assert_eq!(end.played > alone.played, records, "{what}");
            let (measured, ended) = discarded.expect("it was discarded");
            assert!(
                loss.is_finite() && measured == loss && ended.loss == loss,
                "{what}: {measured} {ended:?}"
            );
            assert!(ended.grad_norm.is_nan() && !ended.applied, "{what}: {ended:?}");
        }
    }
}

/// The error of each of two ranks in a step in which the other takes no part.
fn left_alone(seconds: u64, leaves: impl Fn(&dyn Comm) + Sync) -> EngineError {
    let ends = ends(2, seconds);
    let results = each(&ends, |comm| {
        let rank = comm.rank();
        let mut engine = engine(Precision::Fp32, Some(ends[rank].clone()), false, false);
        comm.barrier()?;
        if rank == 1 {
            leaves(comm);
            return Ok(None);
        }
        let batch = Batch { inputs: &[1; 8], targets: &[2; 8], rows: 1, cols: 8, first_row: 0 };
        engine.accumulate_last(batch, 1.0).expect("it is reported later");
        engine.update(&update(1)).expect("it is reported later");
        let first = engine.applied().expect_err("the other is not there");
        assert_eq!(engine.applied().expect_err("for good").to_string(), first.to_string());
        Ok(Some(first))
    });
    results.into_iter().flatten().flatten().next().expect("rank 0 has an error")
}

#[test]
fn a_rank_that_is_gone_is_named_at_the_next_result() {
    match left_alone(60, |comm| comm.abandon("its disk is full")) {
        EngineError::Comm(CommError::Lost { rank, size, why }) => {
            assert_eq!((rank, size, why.as_str()), (1, 2, "its disk is full"));
        }
        other => panic!("{other}"),
    }
    match left_alone(5, |_| ()) {
        EngineError::Comm(CommError::Silent { ranks, size, .. }) => assert_eq!((ranks, size), (vec![1], 2)),
        other => panic!("{other}"),
    }
}
