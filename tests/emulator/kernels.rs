//! Each kernel of the CUDA backend alone, in the emulator, against the CPU's kernel, by the checks of
//! `runner doctor --selftest`.
//!
//! Needs a C++ compiler: `cargo test --release --features cuda-emulator --test emulator kernels::`.

use runner::engine::cuda::device::KernelConfig;
use runner::engine::cuda::emulator::{Behaviour, EmulatedDevice, ThreadOrder};
use runner::engine::cuda::kernels::flash_attention::Flash;
use runner::engine::cuda::selftest::{EVEN, LONG, MANY_HEADS, PRECISIONS, RAGGED};
use runner::engine::cuda::selftest::{kernels, pair::Pair, stream_gradient};
use runner::engine::fused;
use runner::engine::fused::backend::{AttentionShape, CrossEntropy, LayerNormBackward, Norm};
use runner::engine::memory::{Activations, Buffer};
use runner::engine::optimizer::adamw::AdamW;
use runner::engine::optimizer::{OptimizerStep, Rule};
use runner::model::Dims;
use runner::recipe::{Attention, Precision};
use std::path::Path;

/// Both backends, the CUDA one in the emulator with its threads in this order.
fn pair(dims: Dims, precision: Precision, attention: Attention, order: ThreadOrder) -> Pair<EmulatedDevice> {
    let device = device(dims, precision, false, order);
    Pair::new(dims, precision, attention, Activations::default(), device, 1.0).expect("host memory")
}

fn device(dims: Dims, precision: Precision, dropout: bool, order: ThreadOrder) -> EmulatedDevice {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
    let config = KernelConfig { precision, head_size: dims.head_size(), dropout };
    let behaviour = Behaviour { order, fuses: false, records: false };
    EmulatedDevice::new(&config, behaviour, &cache)
}

/// Runs one of the checks in every precision, with even and with ragged sizes and several orders of threads.
fn holds(name: &str, attentions: &[Attention]) {
    let (_, check) = kernels::checks().into_iter().find(|(known, _)| *known == name).expect("a check");
    // the third width is processed number by number
    let ways = [
        (RAGGED, ThreadOrder::Ascending),
        (EVEN, ThreadOrder::Descending),
        (Dims { n_head: 2, n_embd: 58, ..RAGGED }, ThreadOrder::Shuffled(3)),
    ];
    for (dims, order) in ways {
        for precision in PRECISIONS {
            for &attention in attentions {
                for activations in kernels::ways(name, precision) {
                    let device = device(dims, precision, activations.dropout.is_some(), order);
                    let pair = Pair::new(dims, precision, attention, activations, device, 1.0);
                    if let Err(wrong) = check(&mut pair.expect("host memory")) {
                        panic!(
                            "{precision:?}, {attention:?} attention, {activations:?}, {dims:?}, {order:?}: {wrong}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn no_check_is_left_out() {
    let names = kernels::checks::<EmulatedDevice>().map(|(name, _)| name);
    let known = [
        "embedding",
        "layernorm",
        "linear layers",
        "head and loss",
        "attention",
        "next tokens",
        "update",
        "muon",
    ];
    assert_eq!(names, known);
}

#[test]
fn embeddings() {
    holds("embedding", &[Attention::Flash]);
}

#[test]
fn next_tokens() {
    holds("next tokens", &[Attention::Flash]);
    // heads of several parts for each lane, one and a half, and less than a part
    let (_, check) =
        kernels::checks().into_iter().find(|(known, _)| *known == "next tokens").expect("a check");
    for (n_head, n_embd) in [(1, 96), (2, 96), (1, 256), (3, 15)] {
        let dims = Dims { n_head, n_embd, ..RAGGED };
        for order in [ThreadOrder::Ascending, ThreadOrder::Descending, ThreadOrder::Shuffled(5)] {
            check(&mut pair(dims, Precision::Fp32, Attention::Naive, order)).expect("as on the CPU");
        }
    }
}

#[test]
fn layernorms() {
    holds("layernorm", &[Attention::Flash]);
}

#[test]
fn layernorms_of_rows_that_several_warps_share() {
    let (_, check) = kernels::checks().into_iter().find(|(known, _)| *known == "layernorm").expect("a check");
    // 75 threads with four columns each, and 73 of which the last has two
    for (n_head, n_embd) in [(15, 300), (10, 290)] {
        let dims = Dims { n_head, n_embd, ..RAGGED };
        for order in [ThreadOrder::Ascending, ThreadOrder::Descending, ThreadOrder::Shuffled(4)] {
            for activations in kernels::ways("layernorm", Precision::Bf16) {
                let device = device(dims, Precision::Bf16, activations.dropout.is_some(), order);
                let pair = Pair::new(dims, Precision::Bf16, Attention::Flash, activations, device, 1.0);
                let wrong = check(&mut pair.expect("host memory"));
                wrong.unwrap_or_else(|wrong| panic!("{dims:?}, {activations:?}, {order:?}: {wrong}"));
            }
        }
    }
}

/// One, two and eight sequences have their positions within a slice of rows; three have not.
#[test]
fn positions_of_any_number_of_sequences() {
    let (_, check) = kernels::checks().into_iter().find(|(known, _)| *known == "embedding").expect("a check");
    for (rows, sums_positions) in [(1, true), (2, true), (3, false), (8, true)] {
        let (way, order) = (Activations::default(), ThreadOrder::Shuffled(6));
        let device = device(RAGGED, Precision::Bf16, false, order);
        let pair = Pair::of_rows(rows, RAGGED, Precision::Bf16, Attention::Flash, way, device, 1.0);
        let mut pair = pair.expect("host memory");
        let mut which = Vec::new();
        pair.each(|backend, _| which.push(backend.sums_positions()));
        assert_eq!(which, [sums_positions, false], "{rows} sequences");
        check(&mut pair).unwrap_or_else(|wrong| panic!("{rows} sequences: {wrong}"));
    }
}

/// What is added to it is zero, so what is read and written again must be the same.
#[test]
fn a_gradient_in_halves_is_kept_to_the_last_bit() {
    let middle = [0x3f80_8000, 0x3f81_8000, 0xbf80_8000, 0xbf81_8000];
    let others = [0x3f80_7fff, 0x3f80_8001, 0xbf81_7fff, 0xc1ff_ffff, 0x7f7f_8001, 0x0000_0001, 0x8012_3456];
    for n_embd in [36, 39] {
        let dims = Dims { n_embd, ..RAGGED };
        let mut pair = pair(dims, Precision::Bf16, Attention::Flash, ThreadOrder::Shuffled(7));
        let bits: Vec<u32> = middle.into_iter().chain(others).collect();
        let count = pair.tokens() * n_embd;
        let values: Vec<f32> = (0..count).map(|i| f32::from_bits(bits[i % bits.len()])).collect();
        pair.each(|backend, plan| {
            let (dx, x) = (plan.arena.dx.expect("training"), plan.arena.layers[0].x);
            if !plan.config.halves_gradient() {
                return;
            }
            stream_gradient::write(backend, plan, &values).expect("host memory");
            backend.write(plan.arena.delta, &vec![0.0; count]).expect("host memory");
            backend.write(x, &vec![0.5; count]).expect("host memory");
            let block = &plan.layout.blocks[0];
            let parameter = |range| plan.span(Buffer::Parameters, range);
            let (weight, bias) = (parameter(&block.ln_1_weight), parameter(&block.ln_1_bias));
            let norm = Norm { lacks: None, weight, bias, stats: plan.arena.layers[0].ln_1 };
            backend.layernorm(x, norm, plan.arena.ln);
            let gradient = |range| plan.span(Buffer::Gradients, range);
            backend.layernorm_backward(LayerNormBackward {
                dout: plan.arena.delta,
                x,
                norm,
                dx,
                accumulate: true,
                dx_low: plan.arena.dx_low,
                dropout: None,
                dweight: gradient(&block.ln_1_weight),
                dbias: gradient(&block.ln_1_bias),
                dx_sums: None,
                dwpe: None,
            });
        });
        let [kept, _] = pair.read_gradient().expect("memory");
        for (kept, value) in kept.iter().zip(&values) {
            // of a number in the middle between two operands, the last bit may be lost
            let lost = value.to_bits().wrapping_sub(kept.to_bits());
            assert!(lost <= u32::from(middle.contains(&value.to_bits())), "{value:e} becomes {kept:e}");
        }
        let [first, _] = pair.read(&|plan| plan.arena.dx_low.expect("operands")).expect("memory");
        let rounded = |value: &f32| half::bf16::from_f32(*value).to_f32();
        assert!(first.iter().zip(&values).all(|(first, value)| *first == rounded(value)));
    }
}

#[test]
fn linear_layers() {
    holds("linear layers", &[Attention::Flash]);
}

#[test]
fn heads_and_losses() {
    holds("head and loss", &[Attention::Flash]);
}

#[test]
fn rows_of_logits_that_do_not_fit_into_shared_memory_are_read_twice() {
    let (_, check) =
        kernels::checks().into_iter().find(|(known, _)| *known == "head and loss").expect("a check");
    for precision in PRECISIONS {
        let device = device(RAGGED, precision, false, ThreadOrder::Shuffled(5)).with_shared(512);
        let pair = Pair::new(RAGGED, precision, Attention::Flash, Activations::default(), device, 1.0);
        check(&mut pair.expect("host memory")).unwrap_or_else(|wrong| panic!("{precision:?}: {wrong}"));
    }
}

#[test]
fn naive_and_flash_attention() {
    holds("attention", &[Attention::Flash, Attention::Naive]);
}

#[test]
fn flash_attention_with_several_tiles_of_keys() {
    let parts = |precision, dims: Dims| {
        let config = KernelConfig { precision, head_size: dims.head_size(), dropout: false };
        let shape = AttentionShape {
            rows: 3,
            cols: dims.block_size,
            n_head: dims.n_head,
            head_size: dims.head_size(),
        };
        Flash::new(&config, shape).expect("narrow heads").parts
    };
    let (_, check) = kernels::checks().into_iter().find(|(name, _)| *name == "attention").expect("a check");
    for precision in PRECISIONS {
        assert!(parts(precision, LONG) >= 2 && parts(precision, MANY_HEADS) == 1);
        for activations in kernels::ways("attention", precision) {
            let device = device(LONG, precision, activations.dropout.is_some(), ThreadOrder::Shuffled(5));
            let pair = Pair::new(LONG, precision, Attention::Flash, activations, device, 1.0);
            check(&mut pair.expect("host memory"))
                .unwrap_or_else(|wrong| panic!("{precision:?}, {activations:?}: {wrong}"));
        }
    }
}

#[test]
fn updates() {
    holds("update", &[Attention::Flash]);
}

#[test]
fn muon() {
    holds("muon", &[Attention::Flash]);
}

#[test]
fn a_kernel_that_computes_something_else_is_found() {
    for (name, check) in kernels::checks() {
        let mut pair = pair(RAGGED, Precision::Fp32, Attention::Flash, ThreadOrder::Ascending);
        // the parameters of the emulated device alone
        let mut first = true;
        pair.each(|backend, plan| {
            if std::mem::take(&mut first) {
                let span = plan.whole(Buffer::Parameters);
                backend.write(span, &vec![0.25; span.len]).expect("host memory");
            }
        });
        // attention has no parameters
        assert_eq!(check(&mut pair).is_ok(), name == "attention", "{name}");
    }
}

fn update(loss_scale: f64, t: u64) -> OptimizerStep {
    let (lr, betas, eps) = (1e-2, [0.9, 0.95], 1e-8);
    OptimizerStep { rule: Rule::AdamW(AdamW::new(betas, eps, 0.1)), lr, clip_norm: 3.0, t, loss_scale }
}

#[test]
fn a_nan_among_the_logits_makes_the_loss_nan() {
    let mut pair = pair(RAGGED, Precision::Bf16, Attention::Flash, ThreadOrder::Ascending);
    pair.each(|backend, plan| {
        let logits = plan.arena.logits.head(RAGGED.padded_vocab);
        let mut values = vec![0.5; RAGGED.padded_vocab];
        values[77] = f32::NAN;
        backend.write(logits, &values).expect("host memory");
        backend.cross_entropy(CrossEntropy {
            logits,
            losses: plan.arena.losses.head(1),
            first: 0,
            vocab_size: RAGGED.vocab_size,
            gradient: false,
        });
    });
    let [a, b] = pair.read(&|plan| plan.arena.losses.head(1)).expect("memory");
    assert!(a[0].is_nan() && b[0].is_nan());
}

#[test]
fn an_update_that_is_not_finite_is_not_applied() {
    for (spoiled, value) in [(Buffer::Gradients, f32::INFINITY), (Buffer::Arena, f32::NAN)] {
        let mut pair = pair(RAGGED, Precision::Fp16, Attention::Flash, ThreadOrder::Ascending);
        let before = pair.read(&|plan| plan.whole(Buffer::Parameters)).expect("memory");
        let mut applied = Vec::new();
        pair.each(|backend, plan| {
            let span = match spoiled {
                Buffer::Gradients => plan.whole(Buffer::Gradients).slice(1000, 1),
                _ => plan.arena.losses.head(1),
            };
            backend.write(span, &[value]).expect("host memory");
            backend.add_loss(plan.arena.losses.head(1));
            fused::update(backend, plan, &update(16.0, 1));
            applied.push(backend.outcome().expect("an outcome").applied);
        });
        assert_eq!(applied, [false, false], "{spoiled:?}");
        assert_eq!(pair.read(&|plan| plan.whole(Buffer::Parameters)).expect("memory"), before);
        assert!(
            pair.read(&|plan| plan.whole(Buffer::Gradients))
                .expect("memory")
                .iter()
                .flatten()
                .all(|g| *g == 0.0)
        );
        let mut losses = Vec::new();
        pair.each(|backend, _| losses.push(backend.loss().expect("a sum")));
        assert_eq!(losses, [0.0, 0.0], "the next step begins anew");
    }
}

#[test]
fn a_discarded_step_clears_gradients_and_changes_nothing_else() {
    let mut pair = pair(RAGGED, Precision::Bf16, Attention::Flash, ThreadOrder::Descending);
    let kept = [Buffer::Parameters, Buffer::Optimizer(0), Buffer::Optimizer(1), Buffer::Low];
    let before = kept.map(|buffer| pair.read(&|plan| plan.whole(buffer)).expect("memory"));
    let mut outcomes = Vec::new();
    pair.each(|backend, plan| {
        backend.write(plan.arena.losses.head(1), &[2.5]).expect("host memory");
        backend.add_loss(plan.arena.losses.head(1));
        backend.discard();
        outcomes.push(backend.outcome().expect("an outcome"));
        assert_eq!(backend.loss().expect("a sum"), 0.0, "the next step begins anew");
    });
    assert!(outcomes.iter().all(|outcome| outcome.loss == 2.5 && !outcome.applied), "{outcomes:?}");
    for (buffer, before) in kept.into_iter().zip(before) {
        assert_eq!(pair.read(&|plan| plan.whole(buffer)).expect("memory"), before, "{buffer:?}");
    }
    assert!(
        pair.read(&|plan| plan.whole(Buffer::Gradients)).expect("memory").iter().flatten().all(|g| *g == 0.0)
    );
}

#[test]
fn exactly_the_plan_is_allocated() {
    for precision in PRECISIONS {
        for attention in [Attention::Flash, Attention::Naive] {
            let mut pair = pair(RAGGED, precision, attention, ThreadOrder::Ascending);
            let (device, plan) = pair.device_mut();
            assert_eq!(device.allocated_bytes(), plan.total_bytes() - plan.device_bytes());
        }
    }
}
