//! The CUDA backend without a GPU: every kernel source and every device call, on the host.
//!
//! Needs a C++ compiler: `cargo test --release --features cuda-emulator --test emulator`.

use runner::engine::cpu::{self, CpuEngine};
use runner::engine::cuda::CudaBackend;
use runner::engine::cuda::device::KernelConfig;
use runner::engine::cuda::emulator::{Behaviour, EmulatedDevice, ThreadOrder};
use runner::engine::dropout::Dropout;
use runner::engine::fused::Fused;
use runner::engine::memory::{Activations, MemoryConfig, MemoryPlan, Mode, Recompute, Target};
use runner::engine::optimizer::adamw::AdamW;
use runner::engine::optimizer::muon::Muon;
use runner::engine::optimizer::{OptimizerKind, OptimizerStep, Rule};
use runner::engine::{Batch, Engine, Next, State};
use runner::model::init::{initialize, random_bits};
use runner::model::{Dims, ParamLayout};
use runner::recipe::{Attention, MuonPrecision, Precision, Residual};
use std::path::Path;

type Emulated = Fused<CudaBackend<EmulatedDevice>>;

/// No size is a multiple of what a block of the kernels processes: heads of 12, rows of 36, 29 of 32 words.
const DIMS: Dims =
    Dims { n_layer: 2, n_head: 3, n_embd: 36, block_size: 21, vocab_size: 29, padded_vocab: 32 };
const PLAIN: Behaviour = Behaviour { order: ThreadOrder::Ascending, fuses: false, records: false };
const MICRO_BATCH: usize = 3;

fn emulated(dims: Dims, precision: Precision, attention: Attention, behaviour: Behaviour) -> Emulated {
    storing(Activations::default(), dims, precision, attention, behaviour)
}

fn storing(
    activations: Activations,
    dims: Dims,
    precision: Precision,
    attention: Attention,
    behaviour: Behaviour,
) -> Emulated {
    training(OptimizerKind::AdamW, activations, dims, precision, attention, behaviour)
}

fn training(
    optimizer: OptimizerKind,
    activations: Activations,
    dims: Dims,
    precision: Precision,
    attention: Attention,
    behaviour: Behaviour,
) -> Emulated {
    let (micro_batch, mode, target) = (MICRO_BATCH, Mode::Train(optimizer), Target::Cuda);
    let plan =
        MemoryPlan::new(MemoryConfig { dims, micro_batch, precision, attention, target, mode, activations });
    let config = KernelConfig::of(&plan.config);
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
    let device = EmulatedDevice::new(&config, behaviour, &cache);
    let backend = CudaBackend::new(&plan, device).expect("host memory");
    Fused::new(plan, backend, std::sync::Arc::new(runner::comm::Solo))
}

fn on_the_cpu(dims: Dims, precision: Precision, attention: Attention) -> CpuEngine {
    training_on_the_cpu(OptimizerKind::AdamW, Activations::default(), dims, precision, attention)
}

fn training_on_the_cpu(
    optimizer: OptimizerKind,
    activations: Activations,
    dims: Dims,
    precision: Precision,
    attention: Attention,
) -> CpuEngine {
    let (micro_batch, mode, target) = (MICRO_BATCH, Mode::Train(optimizer), Target::Cpu { threads: 1 });
    let plan =
        MemoryPlan::new(MemoryConfig { dims, micro_batch, precision, attention, target, mode, activations });
    cpu::engine(plan).expect("host memory")
}

fn initial(dims: &Dims) -> Vec<f32> {
    let layout = ParamLayout::new(dims);
    let mut values = vec![0.0; layout.len];
    initialize(dims, &layout, 1, &mut values);
    for tensor in &layout.tensors {
        for i in tensor.range() {
            // biases and scales that are not zero and one, and matrices large enough for every term to matter
            match tensor.decayed {
                true => values[i] *= 5.0,
                false => values[i] += (random_bits(2, i as u64) % 1000) as f32 * 1e-4 - 0.05,
            }
        }
    }
    values
}

fn tokens(key: u64, count: usize, vocab_size: usize) -> Vec<u32> {
    (0..count).map(|i| (random_bits(key, i as u64) % vocab_size as u64) as u32).collect()
}

/// The relative error ‖a − b‖ / ‖b‖ of each tensor.
fn errors(layout: &ParamLayout, a: &[f32], b: &[f32]) -> Vec<(String, f64)> {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let of = |range: std::ops::Range<usize>| {
        let pairs = || range.clone().map(|i| (f64::from(a[i]), f64::from(b[i])));
        norm(&mut pairs().map(|(a, b)| a - b)) / norm(&mut pairs().map(|(_, b)| b)).max(1e-30)
    };
    layout.tensors.iter().map(|t| (t.name.clone(), of(t.range()))).collect()
}

fn worst(layout: &ParamLayout, a: &[f32], b: &[f32], but: &str) -> (String, f64) {
    let errors = errors(layout, a, b).into_iter().filter(|(name, _)| !name.ends_with(but));
    errors.max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are tensors")
}

/// The largest allowed relative differences between the emulated device and the CPU.
struct Bounds {
    loss: f64,
    /// For the first step's gradients. Later steps start from parameters that have drifted apart: five times
    /// as much.
    gradient: f64,
    parameter: f64,
}

/// About three times the observed differences. In fp32 only the order of sums differs. Lower precisions also
/// round in other places: the device stores a product before the bias is added, keeps probabilities as
/// operands, and has tiles of other sizes.
fn bounds(precision: Precision) -> Bounds {
    match precision {
        Precision::Fp32 => Bounds { loss: 1e-7, gradient: 2e-6, parameter: 1e-6 },
        Precision::Tf32 | Precision::Fp16 => Bounds { loss: 1e-4, gradient: 3e-3, parameter: 5e-3 },
        Precision::Bf16 => Bounds { loss: 1e-3, gradient: 3e-2, parameter: 4e-2 },
    }
}

/// Three updates of two micro-batches on both engines; the second micro-batch is smaller and shorter.
fn follow(dims: Dims, precision: Precision, attention: Attention, behaviour: Behaviour) -> Emulated {
    follow_dropping(None, dims, precision, attention, behaviour)
}

/// [`follow`] of passes that leave something out.
fn follow_dropping(
    dropout: Option<Dropout>,
    dims: Dims,
    precision: Precision,
    attention: Attention,
    behaviour: Behaviour,
) -> Emulated {
    let activations = Activations { dropout, ..Activations::default() };
    let mut cuda = storing(activations, dims, precision, attention, behaviour);
    let mut cpu = training_on_the_cpu(OptimizerKind::AdamW, activations, dims, precision, attention);
    let (layout, start) = (ParamLayout::new(&dims), initial(&dims));
    let what = format!("{precision:?} {attention:?} {behaviour:?} {dropout:?}");
    let bounds = bounds(precision);
    // dropout makes some gradients smaller, and AdamW amplifies rounding in small gradients
    let of_parameters = bounds.parameter * if dropout.is_some() { 4.0 } else { 1.0 };
    let loss_scale = if precision == Precision::Fp16 { 1024.0 } else { 1.0 };
    let engines: [&mut dyn Engine; 2] = [&mut cuda, &mut cpu];
    let [cuda_engine, cpu_engine] = engines;
    for engine in [&mut *cuda_engine, &mut *cpu_engine] {
        engine.write(State::Parameters, &start).expect("the layout fits");
    }
    for step in 0..3 {
        for (micro, rows, cols) in [(0, MICRO_BATCH, dims.block_size), (1, 2, dims.block_size - 3)] {
            let inputs = tokens(step * 2 + micro, rows * cols, dims.vocab_size);
            let targets = tokens(100 + step * 2 + micro, rows * cols, dims.vocab_size);
            let batch =
                Batch { inputs: &inputs, targets: &targets, rows, cols, first_row: step * 8 + micro * 3 };
            for engine in [&mut *cuda_engine, &mut *cpu_engine] {
                engine.stage(batch);
                engine.accumulate(batch, loss_scale / 2.0).expect("a step");
            }
        }
        let [a, b] = [&mut *cuda_engine, &mut *cpu_engine].map(|e| e.loss().expect("a loss"));
        assert!((a - b).abs() <= bounds.loss * b, "{what}: step {step}: loss {a}, on the CPU {b}");
        let a = cuda_engine.read(State::Gradients).expect("gradients").into_owned();
        let b = cpu_engine.read(State::Gradients).expect("gradients");
        // the gradient of the keys' bias is zero except for rounding
        let (name, error) = worst(&layout, &a, &b, "c_attn.bias");
        let bound = bounds.gradient * if step == 0 { 1.0 } else { 5.0 };
        assert!(error <= bound, "{what}: step {step}: the gradient of {name} is off by {error:.1e}");
        let update = OptimizerStep {
            rule: Rule::AdamW(AdamW::new([0.9, 0.95], 1e-8, 0.1)),
            lr: 1e-3,
            clip_norm: 0.5,
            t: step + 1,
            loss_scale,
        };
        let [a, b] =
            [&mut *cuda_engine, &mut *cpu_engine].map(|e| e.finish_step(&update).expect("an update"));
        assert!(a.applied && b.applied && b.grad_norm > 0.5, "{what}: {a:?} {b:?}");
        assert!((a.grad_norm - b.grad_norm).abs() <= bound * b.grad_norm, "{what}: {a:?} {b:?}");
        assert!((a.loss - b.loss).abs() <= bounds.loss * b.loss, "{what}: {a:?} {b:?}");
    }
    let a = cuda_engine.read(State::Parameters).expect("parameters").into_owned();
    let b = cpu_engine.read(State::Parameters).expect("parameters");
    let (name, error) = worst(&layout, &a, &b, "c_attn.bias");
    assert!(error <= of_parameters, "{what}: {name} is off by {error:.1e} after the updates");
    assert!(cuda_engine.read(State::Gradients).expect("gradients").iter().all(|g| *g == 0.0));
    // what evaluation and sampling use
    let inputs = tokens(7, dims.block_size, dims.vocab_size);
    let batch = Batch { inputs: &inputs, targets: &inputs, rows: 1, cols: dims.block_size, first_row: 0 };
    let [x, y] = [&mut *cuda_engine, &mut *cpu_engine].map(|e| e.evaluate(batch).expect("a loss"));
    assert!((x - y).abs() <= 3.0 * bounds.loss * y, "{what}: evaluated {x}, on the CPU {y}");
    let [whole, theirs] =
        [&mut *cuda_engine, &mut *cpu_engine].map(|e| e.token_losses(batch).expect("losses"));
    assert_eq!(whole.len(), dims.block_size, "{what}");
    // more rows than the micro-batch has, the second of which shares its beginning
    let four: Vec<u32> = [&inputs[..5], &inputs[..3], &[1, 2], &inputs[1..6], &inputs[..5]].concat();
    let rows = Batch { inputs: &four, targets: &four, rows: 4, cols: 5, first_row: 0 };
    let at = [1, 4, 6, 9, 12];
    let [x, y] = [&mut *cuda_engine, &mut *cpu_engine].map(|e| e.losses_at(rows, &at, true).expect("losses"));
    assert_eq!((x.losses.len(), x.is_greedy.len(), x.computed), (5, 5, y.computed), "{what}");
    for (x, y) in x.losses.iter().zip(&y.losses).chain(whole.iter().zip(&theirs)) {
        // of one token, and not the mean of many
        assert!(
            f64::from((x - y).abs()) <= 10.0 * bounds.loss * f64::from(y.max(1.0)),
            "{what}: {x}, on the CPU {y}"
        );
    }
    let [x, y] = [cuda_engine, cpu_engine].map(|e| e.logits(&inputs[..5], true).expect("logits"));
    assert_eq!(x.len(), dims.vocab_size);
    let off = x.iter().zip(&y).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    // the device also rounds them to operands
    let unit = match precision {
        Precision::Fp32 | Precision::Tf32 => 0.0,
        Precision::Bf16 => 2f32.powi(-8),
        Precision::Fp16 => 2f32.powi(-11),
    };
    let rounding = unit * y.iter().fold(0.0f32, |most, y| most.max(y.abs()));
    assert!(f64::from(off - rounding) <= bounds.gradient, "{what}: logits are off by {off:.1e}");
    cuda
}

#[test]
fn dropout_follows_the_cpu() {
    let dropout = Dropout::new(0.3, 0x0001_0002_0003_0004);
    for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16] {
        for attention in [Attention::Flash, Attention::Naive] {
            follow_dropping(dropout, DIMS, precision, attention, PLAIN);
        }
    }
    let behaviour = Behaviour { records: true, fuses: true, ..PLAIN };
    follow_dropping(dropout, DIMS, Precision::Bf16, Attention::Flash, behaviour);
}

#[test]
fn steps_follow_the_cpu_in_every_precision() {
    for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16] {
        for attention in [Attention::Flash, Attention::Naive] {
            follow(DIMS, precision, attention, PLAIN);
        }
    }
}

#[test]
fn fused_products_are_the_same_arithmetic() {
    for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16] {
        follow(DIMS, precision, Attention::Flash, Behaviour { fuses: true, ..PLAIN });
    }
}

#[test]
fn recordings_are_replayed() {
    let mut engine = follow(DIMS, Precision::Bf16, Attention::Flash, Behaviour { records: true, ..PLAIN });
    // two shapes, three times each: launched, recorded and played, played
    assert_eq!(engine.backend_mut().device_mut().played(), 4);
}

#[test]
fn rows_whose_width_is_no_multiple_of_four_are_read_number_by_number() {
    let dims = Dims { n_head: 2, n_embd: 26, vocab_size: 31, padded_vocab: 31, ..DIMS };
    for precision in [Precision::Fp32, Precision::Bf16] {
        follow(dims, precision, Attention::Flash, PLAIN);
    }
}

#[test]
fn muon_follows_the_cpu() {
    let Rule::Muon(typical) = OptimizerKind::Muon.typical() else { panic!("Muon's rule") };
    let odd = Dims { n_head: 1, n_embd: 27, ..DIMS };
    for (dims, precision, ns_precision, bound) in [
        (DIMS, Precision::Fp32, MuonPrecision::Fp32, 1e-5),
        (odd, Precision::Fp32, MuonPrecision::Fp32, 1e-5),
        // the iteration keeps fp32 though the run's products do not
        (DIMS, Precision::Tf32, MuonPrecision::Fp32, 1e-2),
        // by the last digit of a sum, an element goes to the one or the other of two numbers 1/256 apart
        (DIMS, Precision::Fp32, MuonPrecision::Bf16, 1e-1),
        (DIMS, Precision::Bf16, MuonPrecision::Bf16, 1e-1),
    ] {
        let (attention, what) = (Attention::Flash, format!("{precision:?} {ns_precision:?}"));
        let mut cuda =
            training(OptimizerKind::Muon, Activations::default(), dims, precision, attention, PLAIN);
        let mut cpu =
            training_on_the_cpu(OptimizerKind::Muon, Activations::default(), dims, precision, attention);
        let (layout, start) = (ParamLayout::new(&dims), initial(&dims));
        let engines: [&mut dyn Engine; 2] = [&mut cuda, &mut cpu];
        let [a, b] = engines.map(|engine| {
            engine.write(State::Parameters, &start).expect("the layout fits");
            for t in 1..=3 {
                let count = MICRO_BATCH * dims.block_size;
                let [inputs, targets] = [t, 100 + t].map(|key| tokens(key, count, dims.vocab_size));
                let batch = Batch {
                    inputs: &inputs,
                    targets: &targets,
                    rows: MICRO_BATCH,
                    cols: dims.block_size,
                    first_row: 0,
                };
                engine.accumulate(batch, 1.0).expect("a step");
                let rule = Rule::Muon(Muon { ns_precision, ..typical });
                let update = OptimizerStep { rule, lr: 1e-3, clip_norm: 0.5, t, loss_scale: 1.0 };
                assert!(engine.finish_step(&update).expect("an update").applied);
            }
            // how far the training has come
            let after = engine.read(State::Parameters).expect("parameters").into_owned();
            let moved = after.iter().zip(&start).map(|(after, start)| after - start).collect::<Vec<f32>>();
            let states = OptimizerKind::Muon.states().iter().map(|state| {
                let values = engine.read(State::Optimizer(state)).expect("a state").into_owned();
                assert!(values.iter().any(|x| *x != 0.0), "{what}: {}", state.name);
                values
            });
            (moved, states.collect::<Vec<_>>())
        });
        let tensors = layout.tensors.iter().filter(|tensor| tensor.hidden).cloned().collect();
        let hidden = ParamLayout { tensors, ..layout };
        // no name ends so
        let (name, error) = worst(&hidden, &a.0, &b.0, "?");
        assert!(error <= bound, "{what}: the change of {name} is off by {error:.1e}");
    }
}

/// The gradients of one micro-batch.
fn gradients(engine: &mut dyn Engine, dims: &Dims) -> Vec<f32> {
    engine.write(State::Parameters, &initial(dims)).expect("the layout fits");
    let n = 2 * dims.block_size;
    let (inputs, targets) = (tokens(1, n, dims.vocab_size), tokens(2, n, dims.vocab_size));
    let batch = Batch { inputs: &inputs, targets: &targets, rows: 2, cols: dims.block_size, first_row: 0 };
    engine.stage(batch);
    engine.accumulate(batch, 1.0).expect("a step");
    engine.read(State::Gradients).expect("gradients").into_owned()
}

#[test]
fn what_is_kept_is_what_is_computed_again() {
    for precision in [Precision::Tf32, Precision::Bf16] {
        let [kept, again] = [true, false].map(|kept| {
            let activations = Activations { kept, ..Activations::default() };
            let mut engine = storing(activations, DIMS, precision, Attention::Flash, PLAIN);
            (gradients(&mut engine, &DIMS), engine.backend_mut().device_mut().allocated_bytes())
        });
        assert!(kept.0 == again.0, "{precision:?}: the gradients differ");
        assert!(kept.1 > again.1, "{precision:?}: something is kept");
    }
}

/// Every number of two steps of two passes of different shapes, by a device that records and one that does not.
fn numbers(
    activations: Activations,
    precision: Precision,
    attention: Attention,
    fuses: bool,
) -> Vec<Vec<f32>> {
    let mut engine =
        storing(activations, DIMS, precision, attention, Behaviour { fuses, records: fuses, ..PLAIN });
    engine.write(State::Parameters, &initial(&DIMS)).expect("the layout fits");
    let mut all = Vec::new();
    for t in 1..=2 {
        for (key, rows, cols) in [(t, MICRO_BATCH, DIMS.block_size), (10 + t, 2, DIMS.block_size - 3)] {
            let inputs = tokens(key, rows * cols, DIMS.vocab_size);
            let batch = Batch { inputs: &inputs, targets: &inputs, rows, cols, first_row: 0 };
            engine.stage(batch);
            engine.accumulate(batch, 0.5).expect("a pass");
        }
        all.push(vec![engine.loss().expect("a loss") as f32]);
        all.push(engine.read(State::Gradients).expect("gradients").into_owned());
        let rule = OptimizerKind::AdamW.typical();
        let update = OptimizerStep { rule, lr: 1e-3, clip_norm: 1.0, t, loss_scale: 1.0 };
        assert!(engine.finish_step(&update).expect("an update").applied);
    }
    for state in engine.saved_states() {
        all.push(engine.read(state).expect("a state").into_owned());
    }
    all
}

#[test]
fn no_bit_depends_on_what_is_computed_again() {
    for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16] {
        for attention in [Attention::Flash, Attention::Naive] {
            for (kept, fuses) in [(false, false), (true, true)] {
                let residual = if precision == Precision::Bf16 { Residual::Bf16 } else { Residual::Fp32 };
                // with dropout, where a device records, keeps and rounds everything
                let dropout = Dropout::new(0.2, 11).filter(|_| kept && precision == Precision::Bf16);
                let [none, mlp, block] = Recompute::ALL.map(|recompute| {
                    let activations = Activations { kept, residual, recompute, dropout };
                    numbers(activations, precision, attention, fuses)
                });
                assert!(none == mlp && none == block, "{precision:?} {attention:?} {kept}");
            }
        }
    }
}

#[test]
fn a_residual_stream_in_bf16_follows_the_cpu() {
    let activations = Activations { kept: true, residual: Residual::Bf16, ..Activations::default() };
    let narrow = Dims { n_head: 2, n_embd: 26, vocab_size: 31, padded_vocab: 31, ..DIMS };
    for dims in [DIMS, narrow] {
        let mut cuda = storing(activations, dims, Precision::Bf16, Attention::Flash, PLAIN);
        let mut cpu = on_the_cpu(dims, Precision::Bf16, Attention::Flash);
        let (a, b) = (gradients(&mut cuda, &dims), gradients(&mut cpu, &dims));
        let (name, error) = worst(&ParamLayout::new(&dims), &a, &b, "c_attn.bias");
        // each of the stream's five sums is rounded, and so is each of its gradient: 2^-8 of the largest number
        assert!(error <= 2.0 * bounds(Precision::Bf16).gradient, "{name} is off by {error:.1e}");
        let [x, y]: [&mut dyn Engine; 2] = [&mut cuda, &mut cpu];
        let [x, y] = [x, y].map(|engine| engine.loss().expect("a loss"));
        assert!((x - y).abs() <= 3.0 * bounds(Precision::Bf16).loss * y, "loss {x}, on the CPU {y}");
    }
}

/// Sequences that are continued a token at a time have the logits of whole sequences, on a device made for generating
/// text and, between two steps, on one that trains.
#[test]
fn kept_keys_and_values_give_the_logits_of_whole_sequences() {
    let generating = |precision, attention| {
        let plan = MemoryPlan::new(MemoryConfig {
            dims: DIMS,
            micro_batch: MICRO_BATCH,
            precision,
            attention,
            target: Target::Cuda,
            mode: Mode::Generate,
            activations: Activations::default(),
        });
        let config = KernelConfig { precision, head_size: DIMS.head_size(), dropout: false };
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
        let device = EmulatedDevice::new(&config, PLAIN, &cache);
        let backend = CudaBackend::new(&plan, device).expect("host memory");
        Fused::new(plan, backend, std::sync::Arc::new(runner::comm::Solo))
    };
    for precision in [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16] {
        for attention in [Attention::Flash, Attention::Naive] {
            for mut cuda in [generating(precision, attention), emulated(DIMS, precision, attention, PLAIN)] {
                let mut cpu = on_the_cpu(DIMS, precision, attention);
                for engine in [&mut cuda as &mut dyn Engine, &mut cpu] {
                    engine.write(State::Parameters, &initial(&DIMS)).expect("the layout fits");
                }
                let texts = [3, 4, 5].map(|key| tokens(key, DIMS.block_size, DIMS.vocab_size));
                // a batch that waits to be trained on stays as it is
                let waiting = tokens(9, 6, DIMS.vocab_size);
                cuda.stage(Batch { inputs: &waiting, targets: &waiting, rows: 2, cols: 3, first_row: 0 });
                let starts = [1, DIMS.block_size - 4, 7];
                for (sequence, start) in starts.into_iter().enumerate() {
                    let logits = cuda.begin_sequence(sequence, &texts[sequence][..start]).expect("logits");
                    close(precision, &logits, &cpu.logits(&texts[sequence][..start], true).expect("logits"));
                }
                for further in 0..4 {
                    let next = [2, 0, 1].map(|sequence| {
                        let position = starts[sequence] + further;
                        Next { sequence, position, token: texts[sequence][position] }
                    });
                    let logits = cuda.continue_sequences(&next).expect("logits");
                    for (next, logits) in next.iter().zip(logits.chunks(DIMS.vocab_size)) {
                        let whole = &texts[next.sequence][..=next.position];
                        close(precision, logits, &cpu.logits(whole, true).expect("logits"));
                    }
                }
            }
        }
    }
}

fn close(precision: Precision, logits: &[f32], want: &[f32]) {
    let largest = want.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let off = logits.iter().zip(want).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    assert_eq!(logits.len(), want.len());
    // the device rounds them to operands, too
    let bound = match precision {
        Precision::Fp32 => 2e-6,
        Precision::Tf32 | Precision::Fp16 => 3e-3,
        Precision::Bf16 => 3e-2,
    };
    assert!(largest > 0.1 && off <= bound * largest, "{precision:?}: off by {off:e} of {largest}");
}
