//! Each kernel of the CUDA backend alone, in the emulator, against the CPU's kernel: one call on both, then a
//! comparison.
//!
//! Needs a C++ compiler: `cargo test --release --features cuda-emulator --test emulator_kernels`.

use runner::engine::Batch;
use runner::engine::cpu::{self, CpuEngine};
use runner::engine::cuda::CudaBackend;
use runner::engine::cuda::device::KernelConfig;
use runner::engine::cuda::emulator::{Behaviour, EmulatedDevice, ThreadOrder};
use runner::engine::fused::{
    self,
    backend::{
        AttentionBackward, AttentionShape, Backend, CrossEntropy, Epilogue, HeadBackward, InputGradient,
        LayerNormBackward, Linear, Norm, ResidualLayerNorm, WeightGradient,
    },
};
use runner::engine::memory::{Buffer, MemoryConfig, MemoryPlan, Mode, Span, Target};
use runner::engine::optimizer::adamw::AdamW;
use runner::engine::optimizer::{OptimizerKind, OptimizerStep, Rule};
use runner::model::Dims;
use runner::model::init::random_bits;
use runner::recipe::{Attention, Precision};
use std::path::Path;

const ROWS: usize = 3;
const PRECISIONS: [Precision; 4] = [Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16];
/// Ragged in every dimension; 31 tokens of 33, more rows than one slice of partial sums.
const DIMS: Dims =
    Dims { n_layer: 1, n_head: 3, n_embd: 60, block_size: 37, vocab_size: 301, padded_vocab: 304 };

/// A number near zero, small enough that sums stay within fp16.
fn random(key: u64, i: usize) -> f32 {
    (random_bits(key, i as u64) % 2001) as f32 * 1e-3 - 1.0
}

fn rounded(precision: Precision, x: f32) -> f32 {
    match precision {
        Precision::Fp32 => x,
        Precision::Tf32 => f32::from_bits(x.to_bits() & !0x1fff),
        Precision::Bf16 => half::bf16::from_f32(x).to_f32(),
        Precision::Fp16 => half::f16::from_f32(x).to_f32(),
    }
}

/// A CUDA backend and a CPU backend with equal memory.
struct Pair {
    precision: Precision,
    cuda: (CudaBackend<EmulatedDevice>, MemoryPlan),
    cpu: (CpuEngine, MemoryPlan),
    key: u64,
}

type Place<'a> = &'a dyn Fn(&MemoryPlan) -> Span;

impl Pair {
    fn new(dims: Dims, precision: Precision, attention: Attention, order: ThreadOrder) -> Self {
        let plan = |target| {
            let (micro_batch, mode) = (ROWS, Mode::Train(OptimizerKind::AdamW));
            MemoryPlan::new(MemoryConfig { dims, micro_batch, precision, attention, target, mode })
        };
        let (cuda, cpu) = (plan(Target::Cuda), plan(Target::Cpu { threads: 1 }));
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
        let config = KernelConfig { precision, head_size: dims.head_size() };
        let behaviour = Behaviour { order, fuses: false, records: false };
        let device = EmulatedDevice::new(&config, behaviour, &cache).expect("a C++ compiler");
        let backend = CudaBackend::new(&cuda, device).expect("host memory");
        let mut pair = Self {
            precision,
            cuda: (backend, cuda),
            cpu: (cpu::engine(cpu.clone()).expect("host memory"), cpu),
            key: 1,
        };
        let n = ROWS * dims.block_size;
        let inputs: Vec<u32> = (0..n).map(|i| (random_bits(9, i as u64) % 31) as u32).collect();
        let targets: Vec<u32> = inputs.iter().map(|token| token * 9 + 22).collect();
        pair.each(|backend, _| {
            let batch = Batch { inputs: &inputs, targets: &targets, rows: ROWS, cols: dims.block_size };
            backend.upload(&batch, 0.01);
        });
        for buffer in [Buffer::Parameters, Buffer::Gradients, Buffer::Optimizer(0)] {
            pair.fill(&|plan| plan.whole(buffer), false);
        }
        pair.each(|backend, _| backend.refresh_low());
        pair
    }

    fn each(&mut self, mut run: impl FnMut(&mut dyn Backend, &MemoryPlan)) {
        run(&mut self.cuda.0, &self.cuda.1);
        run(self.cpu.0.inner_mut().backend_mut(), &self.cpu.1);
    }

    /// Fills both sides with the same random numbers; `operands` are rounded.
    fn fill(&mut self, place: Place, operands: bool) {
        self.key += 1;
        let (key, precision) = (self.key, if operands { self.precision } else { Precision::Fp32 });
        self.each(|backend, plan| {
            let span = place(plan);
            let values: Vec<f32> = (0..span.len).map(|i| rounded(precision, random(key, i))).collect();
            backend.write(span, &values).expect("host memory");
        });
    }

    /// The contents of a CUDA buffer, and of the CPU's.
    fn read(&mut self, place: Place) -> [Vec<f32>; 2] {
        let mut found = Vec::new();
        self.each(|backend, plan| found.push(backend.download(place(plan)).expect("memory").into_owned()));
        found.try_into().expect("two sides")
    }

    /// Compares by the largest difference divided by the largest number.
    fn compare(&mut self, what: &str, place: Place, bound: f32) {
        let [a, b] = self.read(place);
        assert_eq!(a.len(), b.len(), "{what}");
        let largest = b.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        assert!(largest > 0.0 && b.iter().all(|x| x.is_finite()), "{what}: nothing to compare");
        let (at, off) = (a.iter().zip(&b).map(|(a, b)| (a - b).abs()).enumerate())
            .max_by(|x, y| x.1.total_cmp(&y.1))
            .expect("there are numbers");
        assert!(
            off <= bound * largest,
            "{:?}: {what}: {} instead of {} at {at} of {}, the bound is {:e}",
            self.precision,
            a[at],
            b[at],
            a.len(),
            bound * largest
        );
    }
}

/// One rounding step of the operands' precision, relative to the largest number: two neighbours may both be
/// right.
fn step(precision: Precision) -> f32 {
    match precision {
        Precision::Fp32 => 2e-6,
        Precision::Tf32 | Precision::Fp16 => 2f32.powi(-10),
        Precision::Bf16 => 2f32.powi(-7),
    }
}

fn layer(plan: &MemoryPlan) -> runner::engine::memory::LayerSpans {
    plan.arena.layers[0]
}

fn norm(plan: &MemoryPlan) -> Norm {
    let block = &plan.layout.blocks[0];
    let span = |range| plan.span(Buffer::Parameters, range);
    Norm { weight: span(&block.ln_1_weight), bias: span(&block.ln_1_bias), stats: layer(plan).ln_1 }
}

/// The MLP's first layer: C to 4C.
fn linear(plan: &MemoryPlan) -> Linear {
    let (block, c) = (&plan.layout.blocks[0], plan.config.dims.n_embd);
    Linear {
        name: "c_fc",
        weight: plan.span(plan.matrices(), &block.c_fc_weight),
        bias: plan.span(Buffer::Parameters, &block.c_fc_bias),
        inputs: c,
        outputs: 4 * c,
    }
}

fn gradient(plan: &MemoryPlan, range: &std::ops::Range<usize>) -> Span {
    plan.span(Buffer::Gradients, range)
}

fn for_each_pair(mut check: impl FnMut(&mut Pair, f32)) {
    // the second width is processed number by number, and its threads run in another order
    let ways =
        [(DIMS, ThreadOrder::Ascending), (Dims { n_head: 2, n_embd: 58, ..DIMS }, ThreadOrder::Shuffled(3))];
    for (dims, order) in ways {
        for precision in PRECISIONS {
            check(&mut Pair::new(dims, precision, Attention::Flash, order), step(precision));
        }
    }
}

#[test]
fn embeddings() {
    for_each_pair(|pair, _| {
        let tables = |plan: &MemoryPlan, buffer| {
            [&plan.layout.wte, &plan.layout.wpe].map(|range| plan.span(buffer, range))
        };
        pair.each(|backend, plan| {
            let [wte, wpe] = tables(plan, Buffer::Parameters);
            backend.embed(wte, wpe, layer(plan).x);
        });
        pair.compare("embed", &|plan| layer(plan).x, 1e-7);
        pair.fill(&|plan| plan.arena.dx.expect("training"), false);
        pair.each(|backend, plan| {
            let [wte, wpe] = tables(plan, Buffer::Gradients);
            backend.embed_backward(plan.arena.dx.expect("training"), wte, wpe);
        });
        pair.compare("dwte", &|plan| gradient(plan, &plan.layout.wte), 1e-6);
        pair.compare("dwpe", &|plan| gradient(plan, &plan.layout.wpe), 1e-6);
    });
}

#[test]
fn layernorms() {
    for_each_pair(|pair, step| {
        let bias = |plan: &MemoryPlan| plan.span(Buffer::Parameters, &plan.layout.blocks[0].attn_proj_bias);
        for place in [&(|plan: &MemoryPlan| layer(plan).x) as Place, &|plan| plan.arena.delta] {
            pair.fill(place, false);
        }
        pair.each(|backend, plan| backend.layernorm(layer(plan).x, norm(plan), plan.arena.ln));
        pair.compare("layernorm", &|plan| plan.arena.ln, step);
        pair.compare("its statistics", &|plan| layer(plan).ln_1, 1e-6);
        pair.each(|backend, plan| {
            let (x, delta, sum) = (layer(plan).x, plan.arena.delta, layer(plan).x_mid);
            backend.residual_layernorm(ResidualLayerNorm {
                x,
                delta,
                bias: bias(plan),
                sum,
                norm: norm(plan),
                out: plan.arena.ln,
            });
        });
        pair.compare("the sum", &|plan| layer(plan).x_mid, 1e-6);
        pair.compare("layernorm of the sum", &|plan| plan.arena.ln, step);
        pair.compare("its statistics", &|plan| layer(plan).ln_1, 1e-6);
        pair.fill(&|plan| plan.arena.ln, true);
        pair.each(|backend, plan| backend.layernorm_again(layer(plan).x_mid, norm(plan), plan.arena.ln));
        pair.compare("layernorm again", &|plan| plan.arena.ln, step);
        for accumulate in [false, true] {
            pair.each(|backend, plan| {
                let (dx, block) = (plan.arena.dx.expect("training"), &plan.layout.blocks[0]);
                let (dweight, dbias) = (gradient(plan, &block.ln_1_weight), gradient(plan, &block.ln_1_bias));
                let (dout, x, low) = (plan.arena.delta, layer(plan).x_mid, plan.arena.dx_low);
                backend.layernorm_backward(LayerNormBackward {
                    dout,
                    x,
                    norm: norm(plan),
                    dx,
                    accumulate,
                    dx_low: low,
                    dweight,
                    dbias,
                });
            });
            pair.compare("dx", &|plan| plan.arena.dx.expect("training"), 2e-6);
            if !matches!(pair.precision, Precision::Fp32 | Precision::Tf32) {
                pair.compare("dx as operand", &|plan| plan.arena.dx_low.expect("low precision"), step);
            }
        }
        pair.compare("dweight", &|plan| gradient(plan, &plan.layout.blocks[0].ln_1_weight), 2e-6);
        pair.compare("dbias", &|plan| gradient(plan, &plan.layout.blocks[0].ln_1_bias), 2e-6);
    });
}

#[test]
fn linear_layers() {
    for_each_pair(|pair, step| {
        pair.fill(&|plan| plan.arena.ln, true);
        let wide = |plan: &MemoryPlan| plan.arena.wide;
        pair.each(|backend, plan| backend.linear(plan.arena.ln, linear(plan), wide(plan), Epilogue::Bias));
        // the device rounds the product, and then its sum with the bias
        pair.compare("linear with bias", &wide, 2.0 * step);
        pair.each(|backend, plan| {
            backend.linear(plan.arena.ln, linear(plan), layer(plan).fc, Epilogue::BiasGelu(wide(plan)));
        });
        pair.compare("before GELU", &|plan| layer(plan).fc, 2.0 * step);
        pair.compare("GELU", &wide, 3.0 * step);
        pair.fill(&|plan| layer(plan).fc, true);
        pair.each(|backend, plan| backend.gelu_again(layer(plan).fc, wide(plan)));
        pair.compare("GELU again", &wide, step);
        // backward through the second layer, 4C to C, and GELU
        pair.fill(&|plan| plan.arena.ln, true);
        pair.each(|backend, plan| {
            let (block, c) = (&plan.layout.blocks[0], plan.config.dims.n_embd);
            let proj = Linear {
                name: "mlp_proj",
                weight: plan.span(plan.matrices(), &block.mlp_proj_weight),
                bias: plan.span(Buffer::Parameters, &block.mlp_proj_bias),
                inputs: 4 * c,
                outputs: c,
            };
            let (dweight, dbias) =
                (gradient(plan, &block.mlp_proj_weight), gradient(plan, &block.mlp_proj_bias));
            backend.linear_backward_weight(WeightGradient {
                x: wide(plan),
                dout: plan.arena.ln,
                linear: proj,
                dweight,
                dbias,
            });
            backend.linear_backward_input(InputGradient {
                dout: plan.arena.ln,
                linear: proj,
                dx: wide(plan),
                slope: Some(layer(plan).fc),
                is_operand: true,
            });
        });
        let block = |plan: &MemoryPlan| plan.layout.blocks[0].clone();
        let exact = pair.precision == Precision::Fp32;
        pair.compare(
            "dweight",
            &|plan| gradient(plan, &block(plan).mlp_proj_weight),
            if exact { 2e-6 } else { step },
        );
        pair.compare("dbias", &|plan| gradient(plan, &block(plan).mlp_proj_bias), 2e-6);
        pair.compare("dx through GELU", &wide, 3.0 * step);
        // backward through the first layer, to an unrounded gradient
        pair.fill(&wide, true);
        pair.each(|backend, plan| {
            backend.linear_backward_input(InputGradient {
                dout: wide(plan),
                linear: linear(plan),
                dx: plan.arena.delta,
                slope: None,
                is_operand: false,
            });
        });
        pair.compare("dx", &|plan| plan.arena.delta, 2e-6);
    });
}

#[test]
fn heads_and_losses() {
    for_each_pair(|pair, step| {
        pair.fill(&|plan| plan.arena.ln, true);
        let losses = |plan: &MemoryPlan| plan.arena.losses;
        // all but the first seven rows
        let (first, c) = (7, pair.cuda.1.config.dims.n_embd);
        let rows = ROWS * DIMS.block_size - first;
        let part = |span: Span, width: usize| span.slice(0, rows * width);
        let wte = |plan: &MemoryPlan| plan.span(plan.matrices(), &plan.layout.wte);
        for training in [false, true] {
            pair.each(|backend, plan| {
                let ln = plan.arena.ln.slice(first * c, rows * c);
                let logits = part(plan.arena.logits, DIMS.padded_vocab);
                let dlogits = training.then(|| part(plan.arena.dlogits, DIMS.padded_vocab));
                backend.head(ln, wte(plan), logits, c);
                backend.cross_entropy(CrossEntropy {
                    logits,
                    losses: losses(plan).slice(first, rows),
                    first,
                    vocab_size: DIMS.vocab_size,
                    dlogits,
                });
            });
            pair.compare("losses", &|plan| losses(plan).slice(first, rows), 2e-6);
        }
        pair.compare("dlogits", &|plan| part(plan.arena.dlogits, DIMS.padded_vocab), step);
        let [a, _] = pair.read(&|plan| part(plan.arena.dlogits, DIMS.padded_vocab));
        assert!(a.chunks(DIMS.padded_vocab).all(|row| row[DIMS.vocab_size..].iter().all(|x| *x == 0.0)));
        pair.fill(&|plan| part(plan.arena.dlogits, DIMS.padded_vocab), true);
        pair.each(|backend, plan| {
            let ln = plan.arena.ln.slice(first * c, rows * c);
            let (dlogits, dwte) =
                (part(plan.arena.dlogits, DIMS.padded_vocab), gradient(plan, &plan.layout.wte));
            backend.head_backward(HeadBackward {
                dlogits,
                x: ln,
                wte: wte(plan),
                dx: part(plan.arena.delta, c),
                dwte,
                width: c,
            });
            backend.add_loss(losses(plan).slice(first, rows));
            backend.add_loss(losses(plan).slice(first, rows - 1));
        });
        pair.compare("dx", &|plan| part(plan.arena.delta, c), 3e-6);
        pair.compare("dwte", &|plan| gradient(plan, &plan.layout.wte), 3e-6);
        let mut sums = Vec::new();
        pair.each(|backend, _| sums.push(backend.loss().expect("a sum")));
        assert!((sums[0] - sums[1]).abs() < 1e-6 * sums[1] && sums[1] > 1.0, "{sums:?}");
    });
}

#[test]
fn a_nan_among_the_logits_makes_the_loss_nan() {
    let mut pair = Pair::new(DIMS, Precision::Bf16, Attention::Flash, ThreadOrder::Ascending);
    pair.each(|backend, plan| {
        let logits = plan.arena.logits.head(DIMS.padded_vocab);
        let mut values = vec![0.5; DIMS.padded_vocab];
        values[77] = f32::NAN;
        backend.write(logits, &values).expect("host memory");
        backend.cross_entropy(CrossEntropy {
            logits,
            losses: plan.arena.losses.head(1),
            first: 0,
            vocab_size: DIMS.vocab_size,
            dlogits: None,
        });
    });
    let [a, b] = pair.read(&|plan| plan.arena.losses.head(1));
    assert!(a[0].is_nan() && b[0].is_nan());
}

#[test]
fn naive_and_flash_attention() {
    for attention in [Attention::Flash, Attention::Naive] {
        for precision in PRECISIONS {
            let mut pair = Pair::new(DIMS, precision, attention, ThreadOrder::Shuffled(5));
            let (n_head, head_size) = (DIMS.n_head, DIMS.head_size());
            let shape = AttentionShape { rows: ROWS, cols: DIMS.block_size, n_head, head_size };
            pair.fill(&|plan| layer(plan).qkv, true);
            pair.each(|backend, plan| {
                let l = layer(plan);
                backend.attention(l.qkv, l.softmax, l.att, shape);
            });
            let step = 2.0 * step(precision);
            pair.compare("attention", &|plan| layer(plan).att, step);
            // the CPU stores flash attention's log-sum-exp to base 2
            let unit = if attention == Attention::Flash { std::f32::consts::LN_2 } else { 1.0 };
            let [kept, on_cpu] = pair.read(&|plan| layer(plan).softmax);
            let largest = kept.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let off = kept.iter().zip(&on_cpu).map(|(a, b)| (a - b * unit).abs()).fold(0.0, f32::max);
            assert!(largest > 0.0 && off <= step * largest, "{precision:?}: what it keeps is off by {off}");
            let n = ROWS * DIMS.block_size * DIMS.n_embd;
            pair.fill(&|plan| plan.arena.ln, true);
            pair.each(|backend, plan| {
                let (l, dqkv) = (layer(plan), plan.arena.wide.head(3 * n));
                backend.attention_backward(AttentionBackward {
                    qkv: l.qkv,
                    softmax: l.softmax,
                    out: l.att,
                    dout: plan.arena.ln,
                    dqkv,
                    shape,
                });
            });
            pair.compare("dqkv", &|plan| plan.arena.wide.head(3 * n), 2.0 * step);
        }
    }
}

fn update(loss_scale: f64, t: u64) -> OptimizerStep {
    let (lr, betas, eps) = (1e-2, [0.9, 0.95], 1e-8);
    OptimizerStep {
        rule: Rule::AdamW(AdamW { betas, eps, weight_decay: 0.1 }),
        lr,
        clip_norm: 3.0,
        t,
        loss_scale,
    }
}

#[test]
fn updates() {
    for precision in PRECISIONS {
        let mut pair = Pair::new(DIMS, precision, Attention::Flash, ThreadOrder::Descending);
        // squares are not negative
        pair.each(|backend, plan| {
            let span = plan.whole(Buffer::Optimizer(1));
            let values: Vec<f32> = (0..span.len).map(|i| random(5, i).abs()).collect();
            backend.write(span, &values).expect("host memory");
        });
        let mut outcomes = Vec::new();
        pair.each(|backend, plan| {
            fused::update(backend, plan, &update(16.0, 3));
            outcomes.push(backend.outcome().expect("an outcome"));
        });
        assert!(outcomes.iter().all(|outcome| outcome.applied), "{outcomes:?}");
        let [a, b] = [outcomes[0].squares, outcomes[1].squares];
        assert!((a - b).abs() < 1e-12 * b && b.sqrt() > 16.0 * 3.0, "{a} {b}");
        for buffer in [Buffer::Parameters, Buffer::Optimizer(0), Buffer::Optimizer(1)] {
            pair.compare(&format!("{buffer:?}"), &|plan| plan.whole(buffer), 1e-6);
        }
        if !matches!(precision, Precision::Fp32 | Precision::Tf32) {
            let matrices = |plan: &MemoryPlan| plan.span(Buffer::Low, &(0..plan.layout.decayed));
            pair.compare("the low-precision copy", &matrices, step(precision));
        }
        assert!(pair.read(&|plan| plan.whole(Buffer::Gradients)).iter().flatten().all(|g| *g == 0.0));
    }
}

#[test]
fn an_update_that_is_not_finite_is_not_applied() {
    for (spoiled, value) in [(Buffer::Gradients, f32::INFINITY), (Buffer::Arena, f32::NAN)] {
        let mut pair = Pair::new(DIMS, Precision::Fp16, Attention::Flash, ThreadOrder::Ascending);
        let before = pair.read(&|plan| plan.whole(Buffer::Parameters));
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
        assert_eq!(pair.read(&|plan| plan.whole(Buffer::Parameters)), before);
        assert!(pair.read(&|plan| plan.whole(Buffer::Gradients)).iter().flatten().all(|g| *g == 0.0));
        let mut losses = Vec::new();
        pair.each(|backend, _| losses.push(backend.loss().expect("a sum")));
        assert_eq!(losses, [0.0, 0.0], "the next step begins anew");
    }
}

#[test]
fn a_discarded_step_clears_gradients_and_changes_nothing_else() {
    let mut pair = Pair::new(DIMS, Precision::Bf16, Attention::Flash, ThreadOrder::Descending);
    let kept = [Buffer::Parameters, Buffer::Optimizer(0), Buffer::Optimizer(1), Buffer::Low];
    let before = kept.map(|buffer| pair.read(&|plan| plan.whole(buffer)));
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
        assert_eq!(pair.read(&|plan| plan.whole(buffer)), before, "{buffer:?}");
    }
    assert!(pair.read(&|plan| plan.whole(Buffer::Gradients)).iter().flatten().all(|g| *g == 0.0));
}

#[test]
fn exactly_the_plan_is_allocated() {
    for precision in PRECISIONS {
        for attention in [Attention::Flash, Attention::Naive] {
            let mut pair = Pair::new(DIMS, precision, attention, ThreadOrder::Ascending);
            let planned = pair.cuda.1.total_bytes() - pair.cuda.1.device_bytes();
            assert_eq!(pair.cuda.0.device_mut().allocated_bytes(), planned);
        }
    }
}
