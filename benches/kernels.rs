//! Time of each CPU kernel, as the engine calls it, against what the processor could do: `cargo bench --bench kernels`.
//!
//! One block of GPT-2 124M over a row of 1024 tokens, and its head; with `model=small` or `model=tiny` those of the small
//! models of `compare_torch.py`, over 8 rows. Products are held against the measured peak of fused
//! multiply-adds, everything else against the measured rate of a copy. The best of several runs counts, for whatever else the
//! machine does only adds to it. Words given after `--` select kernels by their beginning; `threads=N` sets the threads.
#![expect(clippy::print_stdout, reason = "a benchmark's table is its output")]

use runner::engine::cpu::{self, CpuBackend};
use runner::engine::fused::{
    self,
    backend::{
        AttentionBackward, AttentionShape, Backend, CrossEntropy, Epilogue, HeadBackward, InputGradient,
        LayerNormBackward, Linear, Norm, ResidualLayerNorm, WeightGradient,
    },
};
use runner::engine::memory::{Activations, Arena, Buffer, Element, MemoryConfig, MemoryPlan, Mode, Target};
use runner::engine::optimizer::{OptimizerKind, OptimizerStep};
use runner::engine::{Batch, Engine, EngineError, State};
use runner::model::{Dims, init};
use runner::recipe::{Attention, Precision};
use std::ops::Range;
use std::time::Instant;

/// A model of one block, and the rows of a batch.
fn model(name: &str) -> Option<(Dims, usize)> {
    let (n_head, n_embd, block_size, vocab_size, padded_vocab, rows) = match name {
        "124m" => (12, 768, 1024, 50257, 50304, 1),
        "small" => (4, 128, 128, 50257, 50304, 8),
        "tiny" => (2, 64, 64, 1000, 1000, 8),
        _ => return None,
    };
    Some((Dims { n_layer: 1, n_head, n_embd, block_size, vocab_size, padded_vocab }, rows))
}

/// Runs of each kernel, after one that is not counted.
const RUNS: usize = 7;

/// What bounds a kernel.
enum Work {
    Flops(usize),
    Bytes(usize),
}

type Kernel = Box<dyn Fn(&mut CpuBackend) + Sync>;

fn main() -> Result<(), EngineError> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let asked = words.iter().find_map(|word| word.strip_prefix("threads=")).and_then(|n| n.parse().ok());
    let threads: usize = asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let named = words.iter().find_map(|word| word.strip_prefix("model=")).unwrap_or("124m");
    let Some((dims, rows)) = model(named) else {
        return Err(EngineError::Input(format!("no model is called {named}: 124m, small or tiny")));
    };
    let filters: Vec<&String> = words.iter().filter(|word| !word.contains('=')).collect();
    let config = MemoryConfig {
        dims,
        micro_batch: rows,
        precision: Precision::Fp32,
        attention: Attention::Flash,
        target: Target::Cpu { threads },
        mode: Mode::Train(OptimizerKind::AdamW),
        activations: Activations::default(),
    };
    let plan = MemoryPlan::new(config);
    let mut engine = cpu::engine(plan.clone())?;
    let mut parameters = vec![0.0; engine.layout().len];
    init::initialize(&dims, &plan.layout, 1, &mut parameters);
    engine.write(State::Parameters, &parameters)?;
    // a whole step, so that every activation is what it is in training
    let (cols, vocabulary) = (dims.block_size, dims.vocab_size as u32);
    let tokens: Vec<u32> = (0..(rows * cols) as u32).map(|i| i * 48_271 % vocabulary).collect();
    engine.accumulate(Batch { inputs: &tokens, targets: &tokens, rows, cols, first_row: 0 }, 1.0)?;

    let flops = cpu::peak::measure(threads, 4);
    let how = format!("measured: {} fp32 FMA loop on {threads} threads", cpu::level().name());
    let bytes = copy_rate(threads);
    println!(
        "{:.0} GFLOP/s ({how}), {:.1} GB/s (measured: copy on {threads} threads)",
        flops / 1e9,
        bytes / 1e9
    );
    println!("{:<24} {:>9}  {:>14}  {:>7}", "kernel", "ms", "rate", "of peak");
    for (name, work, kernel) in kernels(&plan) {
        if !filters.is_empty() && !filters.iter().any(|filter| name.starts_with(*filter)) {
            continue;
        }
        let seconds = (0..=RUNS).map(|_| engine.run(|fused| time(|| kernel(fused.backend_mut())))).skip(1);
        let seconds = seconds.fold(f64::INFINITY, f64::min);
        let (rate, unit, peak) = match work {
            Work::Flops(count) => (count as f64 / seconds, "GFLOP/s", flops),
            Work::Bytes(count) => (count as f64 / seconds, "GB/s", bytes),
        };
        let (ms, share) = (seconds * 1e3, rate / peak * 100.0);
        println!("{name:<24} {ms:>9.3}  {:>6.1} {unit:<7}  {share:>5.1} %", rate / 1e9);
    }
    Ok(())
}

fn time(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// Bytes read and written per second when all threads copy what no cache holds.
fn copy_rate(threads: usize) -> f64 {
    let len = 16 << 20;
    let (from, mut to) = (vec![1.0f32; len], vec![0.0f32; len]);
    let share = len.div_ceil(threads);
    let mut copy = || {
        std::thread::scope(|scope| {
            for (to, from) in to.chunks_mut(share).zip(from.chunks(share)) {
                scope.spawn(|| to.copy_from_slice(from));
            }
        });
    };
    let best = (0..5).map(|_| time(&mut copy)).fold(f64::INFINITY, f64::min);
    (2 * size_of::<f32>() * len) as f64 / best
}

/// Every kernel of a step with what it has to do at least: operations, or bytes that go through memory.
fn kernels(plan: &MemoryPlan) -> Vec<(&'static str, Work, Kernel)> {
    let (arena, layout) = (plan.arena.as_ref(), plan.layout.as_ref());
    let (dims, rows) = (plan.config.dims, plan.config.micro_batch);
    let (c, v, t, block) = (dims.n_embd, dims.padded_vocab, dims.block_size, &layout.blocks[0]);
    let n = rows * t;
    let Arena { ln, delta, wide, logits, losses, chunk, .. } = *arena;
    let layer = arena.layers[0];
    let dx = arena.dx.expect("a training plan has it");
    let parameter = |range: &Range<usize>| plan.span(Buffer::Parameters, range);
    let gradient = |range: &Range<usize>| plan.span(Buffer::Gradients, range);
    let linear = |name, weight: &Range<usize>, bias: &Range<usize>| {
        let (inputs, outputs) = (weight.len() / bias.len(), bias.len());
        Linear { name, weight: parameter(weight), bias: parameter(bias), inputs, outputs }
    };
    let c_fc = linear("c_fc", &block.c_fc_weight, &block.c_fc_bias);
    let mlp_proj = linear("mlp_proj", &block.mlp_proj_weight, &block.mlp_proj_bias);
    let (dfc, dfc_bias) = (gradient(&block.c_fc_weight), gradient(&block.c_fc_bias));
    let norm = Norm {
        lacks: None,
        weight: parameter(&block.ln_2_weight),
        bias: parameter(&block.ln_2_bias),
        stats: layer.ln_2,
    };
    let (dln, dln_bias) = (gradient(&block.ln_2_weight), gradient(&block.ln_2_bias));
    let shape = AttentionShape { rows, cols: t, n_head: dims.n_head, head_size: dims.head_size() };
    let (dqkv, datt) = (wide.slice(0, 3 * n * c), wide.slice(3 * n * c, n * c));
    let (wte, dwte) = (parameter(&layout.wte), gradient(&layout.wte));
    let (head_x, head_dx, head_losses) = (ln.head(chunk * c), delta.head(chunk * c), losses.head(chunk));
    let (qkv, softmax, att, x, x_mid, fc) =
        (layer.qkv, layer.softmax, layer.att, layer.x, layer.x_mid, layer.fc);
    let residual =
        ResidualLayerNorm { dropout: None, x, delta, bias: mlp_proj.bias, sum: x_mid, norm, out: ln };
    let product = |m: usize, n: usize, k: usize| Work::Flops(2 * m * n * k);
    let floats = |count: usize| Work::Bytes(count * Element::F32.bytes());
    // each pair of a query and a key that it sees, once per product of the forward (2) or the backward pass (5)
    let pairs = rows * t * (t + 1) / 2;
    let table: Vec<(&'static str, Work, Kernel)> = vec![
        (
            "c_fc_forward",
            product(n, 4 * c, c),
            boxed(move |b| b.linear(ln, c_fc, fc, Epilogue::BiasGelu(wide))),
        ),
        (
            "mlp_proj_forward",
            product(n, 4 * c, c),
            boxed(move |b| b.linear(wide, mlp_proj, delta, Epilogue::Residual(residual))),
        ),
        ("c_fc_backward_weight", product(n, 4 * c, c), {
            boxed(move |b| {
                b.linear_backward_weight(WeightGradient {
                    x: ln,
                    dout: wide,
                    linear: c_fc,
                    dweight: dfc,
                    dbias: Some(dfc_bias),
                })
            })
        }),
        ("c_fc_backward_input", product(n, 4 * c, c), {
            boxed(move |b| {
                b.linear_backward_input(InputGradient {
                    dout: wide,
                    linear: c_fc,
                    dx: delta,
                    slope: None,
                    is_operand: false,
                    dx_sums: None,
                })
            })
        }),
        ("mlp_proj_backward_input", product(n, 4 * c, c), {
            boxed(move |b| {
                b.linear_backward_input(InputGradient {
                    dout: dx,
                    linear: mlp_proj,
                    dx: wide,
                    slope: Some(fc),
                    is_operand: true,
                    dx_sums: None,
                })
            })
        }),
        ("attention_forward", Work::Flops(2 * 2 * pairs * c), {
            boxed(move |b| b.attention(qkv, softmax, att, shape, None))
        }),
        ("attention_backward", Work::Flops(5 * 2 * pairs * c), {
            boxed(move |b| {
                let dqkv_sums = None;
                b.attention_backward(AttentionBackward {
                    dropout: None,
                    qkv,
                    softmax,
                    out: att,
                    dout: datt,
                    dqkv,
                    dqkv_sums,
                    shape,
                })
            })
        }),
        ("head", product(chunk, v, c), boxed(move |b| b.head(head_x, wte, logits.head(chunk * v), c))),
        ("cross_entropy", floats(2 * chunk * v), {
            boxed(move |b| {
                b.cross_entropy(CrossEntropy {
                    logits,
                    losses: head_losses,
                    first: 0,
                    vocab_size: dims.vocab_size,
                    gradient: true,
                })
            })
        }),
        ("head_backward", product(chunk, v, 2 * c), {
            boxed(move |b| {
                b.head_backward(HeadBackward { dlogits: logits, x: head_x, wte, dx: head_dx, dwte, width: c })
            })
        }),
        ("residual_layernorm", floats(4 * n * c), { boxed(move |b| b.residual_layernorm(residual)) }),
        ("layernorm_backward", floats(4 * n * c), {
            boxed(move |b| {
                b.layernorm_backward(LayerNormBackward {
                    dropout: None,
                    dout: delta,
                    x: x_mid,
                    norm,
                    dx,
                    accumulate: true,
                    dx_low: None,
                    dweight: dln,
                    dbias: dln_bias,
                    dx_sums: None,
                    dwpe: None,
                })
            })
        }),
        ("gelu_again", floats(4 * n * 4 * c), boxed(move |b| b.gelu_again(fc, wide))),
        ("update", floats(9 * layout.len), {
            let (rule, plan) = (OptimizerKind::AdamW.typical(), plan.clone());
            let step = OptimizerStep { rule, lr: 1e-5, clip_norm: 1.0, t: 1, loss_scale: 1.0 };
            boxed(move |b| fused::update(b, &plan, &step))
        }),
    ];
    table
}

fn boxed(kernel: impl Fn(&mut CpuBackend) + Sync + 'static) -> Kernel {
    Box::new(kernel)
}
