//! The matrix products of a training step, each alone: the algorithm that was chosen, its time, its error, and whether
//! its epilogue is fused.

use super::{Tell, attempt, text};
use crate::cuda::Libraries;
use crate::engine::cuda::device::{Address, Device, Fused, KernelConfig, Operand, Product, Way};
use crate::engine::cuda::gpu::Gpu;
use crate::engine::cuda::kernels::dropout::Draws;
use crate::engine::cuda::kernels::layernorm::{self, Norm};
use crate::engine::cuda::kernels::ready::Ready;
use crate::engine::cuda::kernels::{self, PartialSums, Slices, gelu};
use crate::engine::memory::Element;
use crate::recipe::Precision;
use std::path::Path;

/// Elements of the result that are compared with sums on the host.
const SAMPLED: usize = 64;

/// The sizes of a model and its batch.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    /// Width of the residual stream.
    c: usize,
    /// Rows of the head's products, and the padded vocabulary.
    head: (usize, usize),
}

/// GPT-2 124M with four rows of 1024 tokens, and something for devices with little memory.
const SIZES: [Sizes; 2] =
    [Sizes { tokens: 4096, c: 768, head: (1024, 50304) }, Sizes { tokens: 64, c: 64, head: (32, 128) }];

/// What follows a product.
#[derive(Clone, Copy, PartialEq)]
enum After {
    Nothing,
    Bias,
    BiasGelu,
    GeluSlope,
    /// The sum with the residual stream, and its LayerNorm.
    Residual,
}

/// A product `[m, n, k]` of a step, with its factors as they are read.
struct Case {
    name: &'static str,
    size: [usize; 3],
    transposed: [bool; 2],
    /// Whether the result is stored like the factors; otherwise in fp32.
    operand: bool,
    accumulate: bool,
    after: After,
}

/// The products of a step in the order in which they come.
fn cases(Sizes { tokens: n, c, head: (rows, vocab) }: Sizes) -> Vec<Case> {
    let forward = |name, outputs, inputs, operand, after| Case {
        name,
        size: [n, outputs, inputs],
        transposed: [false, false],
        operand,
        accumulate: false,
        after,
    };
    let weight = |name, inputs, outputs, rows| Case {
        name,
        size: [inputs, outputs, rows],
        transposed: [true, false],
        operand: false,
        accumulate: true,
        after: After::Nothing,
    };
    let input = |name, inputs, outputs, operand, after| Case {
        name,
        size: [n, inputs, outputs],
        transposed: [false, true],
        operand,
        accumulate: false,
        after,
    };
    let head = |name, size, transposed| Case {
        name,
        size,
        transposed,
        operand: true,
        accumulate: false,
        after: After::Nothing,
    };
    vec![
        forward("c_attn", 3 * c, c, true, After::Bias),
        forward("attn_proj", c, c, false, After::Residual),
        forward("c_fc", 4 * c, c, true, After::BiasGelu),
        forward("mlp_proj", c, 4 * c, false, After::Residual),
        head("head", [rows, vocab, c], [false, true]),
        head("head, input's gradient", [rows, c, vocab], [false, false]),
        weight("head, weight's gradient", vocab, c, rows),
        weight("mlp_proj, weight's gradient", 4 * c, c, n),
        input("mlp_proj, input's gradient", 4 * c, c, true, After::GeluSlope),
        weight("c_fc, weight's gradient", c, 4 * c, n),
        input("c_fc, input's gradient", c, 4 * c, true, After::Nothing),
        weight("attn_proj, weight's gradient", c, c, n),
        input("attn_proj, input's gradient", c, c, true, After::Nothing),
        weight("c_attn, weight's gradient", c, 3 * c, n),
        input("c_attn, input's gradient", c, 3 * c, true, After::Nothing),
    ]
}

/// Tries every product in bf16 and in fp32.
pub(super) fn run(libraries: &Libraries, index: usize, cache: &Path, tell: &mut Tell) {
    let free = libraries.memory(index).map_or(0, |(free, _)| free);
    let [large, small] = SIZES;
    // the head's factors and its result in fp32
    let needed = 4 * (large.head.0 * large.head.1 + large.head.1 * large.c + large.head.0 * large.c);
    let sizes = if needed <= free / 4 { large } else { small };
    for precision in [Precision::Bf16, Precision::Fp32] {
        for mut case in cases(sizes) {
            let [m, n, k] = case.size;
            // as training does
            if precision == Precision::Fp32 && matches!(case.after, After::BiasGelu | After::GeluSlope) {
                case.after = After::Nothing;
            }
            let name = format!("product {m} x {n} x {k}, {}, {}", precision.as_str(), case.name);
            attempt(tell, name, || {
                let config = KernelConfig { precision, head_size: 64, dropout: false };
                // without kernels the product can be tried all the same
                let gpu = Gpu::open(libraries, index, &config, Some(cache)).map_err(text);
                let bare = || Gpu::open_with(libraries, index, precision, None, Some(cache)).map_err(text);
                measure(&mut gpu.or_else(|_| bare())?, precision, &case)
            });
        }
    }
}

/// Numbers that every precision holds exactly: a sign, 7 bits, and an absolute value from 1/4 to 1/2.
fn value(i: usize) -> f32 {
    let bits = ((i.wrapping_mul(2_654_435_761)) >> 7) as u16 & 0x807F | 0x3E80;
    f32::from_bits(u32::from(bits) << 16)
}

fn measure(gpu: &mut Gpu, precision: Precision, case: &Case) -> Result<String, String> {
    let low = if precision == Precision::Fp32 { Element::F32 } else { Element::Half };
    let [m, n, k] = case.size;
    let result = if case.operand { low } else { Element::F32 };
    let mut place = |len: usize, from: usize, element: Element| -> Result<Address, String> {
        let values: Vec<f32> = (from..from + len).map(value).collect();
        let bytes = kernels::bytes(&values, element, precision);
        let at = gpu.allocate(bytes.len(), "a matrix").map_err(text)?;
        gpu.write(at, &bytes).map_err(text)?;
        Ok(at)
    };
    // where each matrix begins in the endless sequence of values
    let [from_a, from_b, from_out, from_aux, from_bias] = [0, m * k, 7, 11, 13];
    let (a, b) = (place(m * k, from_a, low)?, place(k * n, from_b, low)?);
    let (out, aux) = (place(m * n, from_out, result)?, place(m * n, from_aux, result)?);
    let (bias, bias_fp32) = (place(n, from_bias, result)?, place(n, from_bias, Element::F32)?);
    let operand = |address, element, (rows, cols): (usize, usize), transposed| {
        let stride = if transposed { rows } else { cols };
        Operand { address, element, stride, stack: 0, transposed }
    };
    let [a_transposed, b_transposed] = case.transposed;
    let (alone_out, alone_result) = match case.after {
        After::BiasGelu => (aux, result),
        After::Residual => (place(m * n, 0, low)?, low),
        _ => (out, result),
    };
    let alone = Product {
        m,
        n,
        k,
        count: 1,
        a: operand(a, low, (m, k), a_transposed),
        b: operand(b, low, (k, n), b_transposed),
        out: operand(alone_out, alone_result, (m, n), false),
        alpha: 1.0,
        accumulate: case.accumulate,
        fused: Fused::None,
        tf32: None,
    };
    let slices = Slices::of(m);
    let partials = place(if case.after == After::GeluSlope { slices.count * n } else { 1 }, 0, Element::F32)?;
    let elementwise = |kernel, pointers: &[Address]| Ready::elementwise(kernel, pointers, [m, n], result);
    // the kernels after the whole product, and after the one alone
    let (fused, then, after) = match case.after {
        After::Nothing => (Fused::None, None, None),
        After::Bias => (Fused::Bias(bias), None, Some(elementwise("add_bias", &[out, bias_fp32]))),
        After::BiasGelu => {
            let kernel = elementwise("bias_gelu", &[aux, bias_fp32, out]);
            (Fused::BiasGelu { bias, sum: aux }, None, Some(kernel))
        }
        After::GeluSlope => {
            let sums = PartialSums { at: partials, stride: n, slices };
            let kernel = Ready::gelu_slope([out, aux], sums, [m, n], result);
            (Fused::GeluSlope { at: aux, sums: bias }, None, Some(kernel))
        }
        After::Residual => {
            let (stats, normalized) = (place(2 * m, 0, Element::F32)?, place(m * n, 0, low)?);
            let [weight, lacks] = [bias_fp32; 2];
            let norm = Norm { lacks: Some(lacks), weight, bias: bias_fp32, stats, residual: Element::F32 };
            let draws = (Draws { at: None }, m);
            let then = layernorm::forward(low, out, norm, normalized, m, n);
            let after =
                layernorm::residual(low, [aux, alone_out, out], None, norm, normalized, [m, n], draws);
            (Fused::Residual(aux), Some(then), Some(after))
        }
    };
    let whole = Product { fused, out: operand(out, result, (m, n), false), ..alone };
    let then = then.as_ref().map(Ready::as_launch).transpose().map_err(text)?;
    let after = after.as_ref().map(Ready::as_launch).transpose().map_err(text)?;
    let fused = Way { product: &whole, then: then.as_ref() };
    let fuses = after.is_some() && gpu.fuses(fused, Way { product: &alone, then: after.as_ref() });
    // once more, since trials may have changed the result's memory
    if case.accumulate {
        let values: Vec<f32> = (from_out..from_out + m * n).map(value).collect();
        gpu.write(out, &kernels::bytes(&values, result, precision)).map_err(text)?;
    }
    let (used, used_after) = if fuses { (&whole, case.after) } else { (&alone, After::Nothing) };
    gpu.product(used).map_err(text)?;
    let result = used.out.element;
    let mut bytes = vec![0; m * n * result.bytes()];
    gpu.read(used.out.address, &mut bytes).map_err(text)?;
    let found = kernels::floats(&bytes, result, precision);
    let at = |from: usize, (rows, cols): (usize, usize), transposed: bool, row: usize, col: usize| {
        f64::from(value(from + if transposed { col * rows + row } else { row * cols + col }))
    };
    // the size of a sum of k products of numbers of about 0.36
    let scale = (k as f64).sqrt() * 0.13;
    // one step of bf16, or the rounding of fp32 sums
    let bound = if result == Element::Half { 0.01 } else { 1e-4 };
    let mut worst = 0.0_f64;
    for sample in 0..SAMPLED {
        // spread over the result, its last element included
        let i = (m * n - 1) - sample * (m * n - 1) / SAMPLED;
        let (row, col) = (i / n, i % n);
        let mut expected: f64 = (0..k)
            .map(|j| at(from_a, (m, k), a_transposed, row, j) * at(from_b, (k, n), b_transposed, j, col))
            .sum();
        if case.accumulate {
            expected += f64::from(value(from_out + i));
        }
        if matches!(used_after, After::Bias | After::BiasGelu) {
            expected += f64::from(value(from_bias + col));
        }
        expected = match used_after {
            After::Residual => expected + f64::from(value(from_aux + i)),
            After::BiasGelu => gelu(expected).0,
            After::GeluSlope => expected * gelu(f64::from(value(from_aux + i))).1,
            _ => expected,
        };
        let off = (f64::from(found[i]) - expected).abs() / scale.max(expected.abs());
        // a NaN is not close
        let is_close = off <= bound;
        if !is_close {
            return Err(format!("the element at row {row}, column {col} is {}, not {expected}", found[i]));
        }
        worst = worst.max(off);
    }
    let seconds = gpu.seconds_of(|gpu| gpu.product(used)).map_err(text)?;
    let rate = 2.0 * m as f64 * n as f64 * k as f64 / seconds / 1e12;
    let epilogue = match case.after {
        After::Nothing => String::new(),
        _ if fuses => ", epilogue fused".to_owned(),
        _ => format!("; {}", gpu.notes().join("; ")),
    };
    Ok(format!("{:.1} us, {rate:.2} TFLOP/s, relative error {worst:.0e}{epilogue}", seconds * 1e6))
}
