//! What each launch states of its bytes, against the bytes that the emulator sees its kernel touch.
//!
//! The statements are what `runner plan --roofline` and `runner bench` go by. A roofline counts each byte of memory
//! once per launch, however often caches serve it again, and once more where the statement says that the kernel streams
//! it again.
//!
//! Needs a C++ compiler: `cargo test --release --features cuda-emulator --test emulator traffic::`.

use runner::engine::cuda::CudaBackend;
use runner::engine::cuda::device::KernelConfig;
use runner::engine::cuda::emulator::{Behaviour, Counted, EmulatedDevice, ThreadOrder, Touched};
use runner::engine::cuda::kernels;
use runner::engine::dropout::Dropout;
use runner::engine::fused::Fused;
use runner::engine::fused::backend::Backend;
use runner::engine::fused::timed::{Phase, Timed};
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Recompute, Target};
use runner::engine::optimizer::{OptimizerKind, OptimizerStep};
use runner::engine::traffic::Noted;
use runner::engine::{Batch, Engine, Next, State};
use runner::model::init::initialize;
use runner::model::{Dims, ParamLayout};
use runner::recipe::{Attention, Precision, Residual};
use std::collections::BTreeSet;
use std::path::Path;

/// No size is a multiple of what a block processes; heads of 12.
const RAGGED: Dims =
    Dims { n_layer: 1, n_head: 3, n_embd: 36, block_size: 77, vocab_size: 61, padded_vocab: 64 };
/// Rows that are read number by number, a vocabulary without padding.
const ODD: Dims =
    Dims { n_layer: 1, n_head: 2, n_embd: 26, block_size: 21, vocab_size: 31, padded_vocab: 31 };
/// Whole tiles, and heads of 64 as in GPT-2.
const EVEN: Dims =
    Dims { n_layer: 1, n_head: 2, n_embd: 128, block_size: 64, vocab_size: 101, padded_vocab: 128 };
/// Enough tokens that several blocks share a head in attention's backward pass.
const LONG: Dims =
    Dims { n_layer: 1, n_head: 2, n_embd: 32, block_size: 150, vocab_size: 31, padded_vocab: 32 };

/// Sequences of a batch. Of three, no slice of rows holds whole positions, so a kernel of its own sums them.
fn micro_batch(dims: Dims) -> usize {
    if dims == RAGGED { 3 } else { 2 }
}

/// What the backward pass needs is computed again, and the residual stream is fp32.
const AGAIN: Activations =
    Activations { kept: false, residual: Residual::Fp32, recompute: Recompute::None, dropout: None };
/// What the backward pass needs is kept, and the residual stream has 16 bits.
const KEPT: Activations =
    Activations { kept: true, residual: Residual::Bf16, recompute: Recompute::None, dropout: None };
/// The MLP's hidden layer is computed again, too.
const MORE: Activations =
    Activations { kept: false, residual: Residual::Fp32, recompute: Recompute::Mlp, dropout: None };
/// It is computed again, from a residual stream of 16 bits.
const LOW: Activations =
    Activations { kept: false, residual: Residual::Bf16, recompute: Recompute::None, dropout: None };

fn plan(dims: Dims, precision: Precision, attention: Attention, activations: Activations) -> MemoryPlan {
    // Muon has AdamW's kernels, too
    let (micro_batch, mode, target) = (micro_batch(dims), Mode::Train(OptimizerKind::Muon), Target::Cuda);
    MemoryPlan::new(MemoryConfig { dims, micro_batch, precision, attention, target, mode, activations })
}

fn device(plan: &MemoryPlan) -> EmulatedDevice {
    let config = KernelConfig::of(&plan.config);
    let behaviour = Behaviour { order: ThreadOrder::Ascending, fuses: false, records: false };
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
    EmulatedDevice::counting(&config, behaviour, &cache)
}

fn update() -> OptimizerStep {
    OptimizerStep { rule: OptimizerKind::Muon.typical(), lr: 1e-3, clip_norm: 1.0, t: 1, loss_scale: 1.0 }
}

/// Every launch of two passes of different shapes, an update, a discarded step, an evaluation and a further token: what it states, and
/// what its kernel touches.
fn launches(
    dims: Dims,
    precision: Precision,
    attention: Attention,
    activations: Activations,
) -> Vec<(Noted, Touched)> {
    let plan = plan(dims, precision, attention, activations);
    let device = match attention {
        Attention::Flash => device(&plan),
        // as on a device whose shared memory holds no row of logits
        Attention::Naive => device(&plan).with_shared(200),
    };
    let backend = CudaBackend::new(&plan, device).expect("host memory");
    let mut engine = Fused::new(plan, backend, std::sync::Arc::new(runner::comm::Solo));
    engine.backend_mut().note_launches(true);
    let layout = ParamLayout::new(&dims);
    let mut parameters = vec![0.0; layout.len];
    initialize(&dims, &layout, 1, &mut parameters);
    engine.write(State::Parameters, &parameters).expect("the layout fits");
    // as many distinct tokens as there can be: only the device knows how many there are
    let tokens: Vec<u32> =
        (0..micro_batch(dims) * dims.block_size).map(|i| (i * 7 % dims.vocab_size) as u32).collect();
    let batch = |rows: usize, cols: usize| {
        let tokens = &tokens[..rows * cols];
        Batch { inputs: tokens, targets: tokens, rows, cols, first_row: 0 }
    };
    engine.accumulate(batch(micro_batch(dims), dims.block_size), 0.5).expect("a pass");
    engine.accumulate(batch(1, dims.block_size - 3), 0.5).expect("a pass");
    assert!(engine.finish_step(&update()).expect("an update").applied);
    engine.discard().expect("a step without update");
    engine.evaluate(batch(1, dims.block_size)).expect("a loss");
    for (sequence, length) in [(0, 2), (1, dims.block_size - 1)] {
        engine.begin_sequence(sequence, &tokens[..length]).expect("logits");
    }
    let next = [(1, dims.block_size - 1, 5), (0, 2, 5)];
    let next = next.map(|(sequence, position, token)| Next { sequence, position, token });
    engine.continue_sequences(&next).expect("logits");
    // two rows that begin alike
    let cols = dims.block_size / 2;
    let pair = [&tokens[..cols], &tokens[..cols - 1], &[3]].concat();
    let alike = Batch { inputs: &pair, targets: &pair, rows: 2, cols, first_row: 0 };
    engine.losses_at(alike, &[cols - 1, 2 * cols - 1], false).expect("losses");
    let names = kernels::names(&KernelConfig { precision, head_size: dims.head_size(), dropout: false });
    let noted = engine.backend_mut().measured(&[]).expect("nothing failed").launches;
    let noted: Vec<Noted> = noted.into_iter().filter(|noted| names.contains(&&*noted.name)).collect();
    let counted = engine.backend_mut().device_mut().take_counted();
    assert_eq!(noted.len(), counted.len());
    let pair = |(noted, Counted { kernel, touched }): (Noted, Counted)| {
        assert_eq!(noted.name, kernel);
        (noted, touched)
    };
    noted.into_iter().zip(counted).map(pair).collect()
}

/// Whether a statement is within 5 % of what was counted.
fn holds(stated: u64, counted: u64) -> bool {
    stated.abs_diff(counted) as f64 <= 0.05 * counted as f64
}

fn wrong((noted, touched): &(Noted, Touched)) -> Option<String> {
    let stated = noted.traffic;
    let streams = stated.again == 0 || holds(stated.read + stated.again, touched.streamed);
    let right = holds(stated.read, touched.read) && holds(stated.written, touched.written) && streams;
    (!right).then(|| format!("{} states {stated:?}, and touches {touched:?}", noted.name))
}

/// Holds every launch, and returns the kernels that were launched.
fn hold(
    dims: Dims,
    precision: Precision,
    attention: Attention,
    activations: Activations,
) -> BTreeSet<String> {
    let launches = launches(dims, precision, attention, activations);
    let wrong: BTreeSet<String> = launches.iter().filter_map(wrong).collect();
    let list: Vec<_> = wrong.into_iter().collect();
    assert!(list.is_empty(), "{precision:?}, {attention:?} attention, {dims:?}:\n{}", list.join("\n"));
    launches.into_iter().map(|(noted, _)| noted.name.into_owned()).collect()
}

#[test]
fn every_kernel_touches_the_bytes_that_its_launch_states() {
    let mut launched = BTreeSet::new();
    let dropout = Dropout::new(0.1, 1);
    for (dims, precision, attention, activations) in [
        (RAGGED, Precision::Bf16, Attention::Flash, AGAIN),
        (RAGGED, Precision::Bf16, Attention::Naive, LOW),
        (EVEN, Precision::Bf16, Attention::Flash, KEPT),
        (EVEN, Precision::Tf32, Attention::Flash, AGAIN),
        (ODD, Precision::Fp16, Attention::Flash, AGAIN),
        (ODD, Precision::Fp32, Attention::Naive, AGAIN),
        (LONG, Precision::Fp32, Attention::Flash, AGAIN),
        (Dims { n_layer: 2, ..RAGGED }, Precision::Fp16, Attention::Flash, MORE),
        (RAGGED, Precision::Bf16, Attention::Naive, Activations { dropout, ..LOW }),
        (EVEN, Precision::Bf16, Attention::Flash, Activations { dropout, ..KEPT }),
        (ODD, Precision::Fp32, Attention::Flash, Activations { dropout, ..AGAIN }),
    ] {
        launched.extend(hold(dims, precision, attention, activations));
    }
    let names = kernels::names(&KernelConfig { precision: Precision::Bf16, head_size: 64, dropout: false });
    let missing: Vec<_> = names.into_iter().filter(|name| !launched.contains(*name)).collect();
    assert!(missing.is_empty(), "no step launches {missing:?}");
}

#[test]
fn a_wrong_statement_is_found() {
    let mut launches = launches(ODD, Precision::Fp32, Attention::Flash, AGAIN);
    for (noted, _) in &mut launches {
        match &*noted.name {
            // the sums forgotten, a row too few, and no gradient
            "layernorm_backward" => noted.traffic.written = noted.traffic.written * 8 / 10,
            "embed_layernorm" => noted.traffic.read = noted.traffic.read * 9 / 10,
            "cross_entropy_kept" => noted.traffic.written /= 2,
            _ => {}
        }
    }
    let found: BTreeSet<&str> =
        launches.iter().filter(|launch| wrong(launch).is_some()).map(|(noted, _)| &*noted.name).collect();
    assert!(
        ["layernorm_backward", "embed_layernorm", "cross_entropy_kept"]
            .iter()
            .all(|name| found.contains(name)),
        "{found:?}"
    );
    assert_eq!(found.len(), 3);
}

/// The emulated clock ticks a second at each look, so a launch takes one, and a phase as many as it has looks.
#[test]
fn phases_and_launches_are_measured_by_the_device_s_clock() {
    let plan = plan(ODD, Precision::Fp32, Attention::Flash, AGAIN);
    let mut backend = CudaBackend::new(&plan, device(&plan)).expect("host memory");
    backend.note_launches(true);
    let comm = std::sync::Arc::new(runner::comm::Solo);
    let mut engine = Fused::new(plan, Timed::new(backend), comm);
    let tokens: Vec<u32> = (0..ODD.block_size).map(|i| i as u32).collect();
    let batch = Batch { inputs: &tokens, targets: &tokens, rows: 1, cols: ODD.block_size, first_row: 0 };
    for _ in 0..2 {
        engine.accumulate(batch, 1.0).expect("a pass");
        engine.update(&update()).expect("an update");
        let times = engine.backend_mut().take().expect("times");
        assert!(times.launches.len() > 30, "{}", times.launches.len());
        assert!(times.launches.iter().all(|noted| noted.seconds == Some(1.0)));
        // before and after the phase, and before and after each of its launches
        let embedding = ["embed_layernorm", "embed_backward_tokens", "embed_backward_positions"];
        let launched = times.launches.iter().filter(|noted| embedding.contains(&&*noted.name)).count();
        assert_eq!(launched, 3);
        // forward one launch, backward two
        assert_eq!(times.phases[&Phase::Embedding].as_secs(), (2 + 1) + (2 * 2 + 1));
        let sum: f64 = times.phases.values().map(std::time::Duration::as_secs_f64).sum();
        assert!(sum > times.launches.len() as f64);
    }
}
