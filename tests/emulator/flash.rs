//! The flash attention kernels, run on the CPU by the emulator, against the definition of attention, in f64.
//!
//! The inputs are representable in the precision, so results differ only by what the kernels round. The
//! bounds are derived from that, element by element. Each launch runs with three orders of threads, which
//! must agree in every bit.

use runner::engine::cuda::device::{Address, Arg, KernelConfig, Launch};
use runner::engine::cuda::emulator::{Emulator, Memory, ThreadOrder};
use runner::engine::cuda::kernels::flash_attention::{Flash, Geometry};
use runner::engine::fused::backend::AttentionShape;
use runner::model::init::random_bits;
use runner::recipe::Precision;
use std::path::Path;

const ORDERS: [ThreadOrder; 3] = [ThreadOrder::Ascending, ThreadOrder::Descending, ThreadOrder::Shuffled(7)];

/// How a precision stores numbers.
#[derive(Clone, Copy)]
struct Format {
    precision: Precision,
    /// Bytes of an operand.
    bytes: usize,
    /// Largest relative error of rounding.
    unit: f64,
    /// Largest absolute error of rounding among subnormal numbers.
    tiny: f64,
}

impl Format {
    fn new(precision: Precision) -> Self {
        let (bytes, unit, tiny) = match precision {
            Precision::Fp32 => (4, 0.0, 0.0),
            Precision::Tf32 => (4, 2f64.powi(-11), 0.0),
            Precision::Bf16 => (2, 2f64.powi(-8), 0.0),
            Precision::Fp16 => (2, 2f64.powi(-11), 2f64.powi(-25)),
        };
        Self { precision, bytes, unit, tiny }
    }

    fn encode(&self, x: f32) -> Vec<u8> {
        match self.precision {
            Precision::Fp32 => x.to_le_bytes().to_vec(),
            // these inputs are multiples of 2⁻¹⁰ below 1
            Precision::Tf32 => ((x * 1024.0).round() / 1024.0).to_le_bytes().to_vec(),
            Precision::Bf16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
            Precision::Fp16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        }
    }

    fn decode(&self, bytes: &[u8]) -> Vec<f64> {
        let word = |b: &[u8]| match self.precision {
            Precision::Bf16 => half::bf16::from_le_bytes([b[0], b[1]]).to_f64(),
            Precision::Fp16 => half::f16::from_le_bytes([b[0], b[1]]).to_f64(),
            _ => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        };
        bytes.chunks_exact(self.bytes).map(word).collect()
    }

    /// Numbers of this format in (-1, 1), as bytes.
    fn random(&self, key: u64, len: usize) -> Vec<u8> {
        let number = |i| (random_bits(key, i as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        (0..len).flat_map(|i| self.encode(number(i))).collect()
    }
}

/// Numbers that the kernels have written, as bytes.
#[derive(PartialEq)]
struct Results {
    out: Vec<u8>,
    lse: Vec<u8>,
    dqkv: Vec<u8>,
    /// The sums of the columns of dqkv over all tokens, from what the blocks have left.
    columns: Vec<u64>,
}

/// Forward and backward pass with one order of threads.
fn run(
    emulator: &Emulator,
    flash: &Flash,
    shape: AttentionShape,
    qkv: &[u8],
    dout: &[u8],
    order: ThreadOrder,
) -> Result<Results, String> {
    let AttentionShape { rows, cols, n_head, .. } = shape;
    let statistics = rows * n_head * cols * 4;
    let mut memory = Memory::default();
    // what no kernel writes stays NaN
    let mut filled = |bytes: usize, what, content: Option<&[u8]>| {
        let address = memory.allocate(bytes, what);
        let to = memory.bytes_mut(address).expect("just allocated");
        match content {
            Some(content) => to.copy_from_slice(content),
            None => to.fill(0xff),
        }
        address
    };
    let qkv_at = filled(qkv.len(), "qkv", Some(qkv));
    let dout_at = filled(dout.len(), "dout", Some(dout));
    let out_at = filled(dout.len(), "out", None);
    let lse_at = filled(statistics, "lse", None);
    let delta_at = filled(flash.delta * 4, "delta", None);
    let columns_at = filled(flash.columns * 4, "columns", None);
    let sums_at = filled(flash.sums * 4, "sums", None);
    let dqkv_at = filled(qkv.len(), "dqkv", None);
    let sizes = [cols, n_head, flash.parts].map(|size| Arg::Int(size as i32));
    let launch = |kernel, geometry: Geometry, pointers: &[Address], sizes: &[Arg], scale: Option<f32>| {
        let pointers = pointers.iter().map(|&address| Arg::Pointer(address));
        let nothing_dropped = [Arg::Pointer(Address(0)), Arg::Int(-1)];
        let dropped = nothing_dropped.into_iter().filter(|_| kernel != "flash_backward_sum");
        let args: Vec<Arg> =
            pointers.chain(sizes.iter().cloned()).chain(scale.map(Arg::Float)).chain(dropped).collect();
        let Geometry { grid, block, shared } = geometry;
        let launch = Launch { kernel, grid, block, shared, args: &args };
        emulator.launch(&launch, order).map_err(|error| error.to_string())
    };
    let scale = Some(flash.scale);
    launch("flash_forward", flash.forward, &[qkv_at, out_at, lse_at], &sizes[..2], scale)?;
    let pointers = [qkv_at, out_at, dout_at, lse_at, dqkv_at, sums_at, delta_at, columns_at];
    launch("flash_backward", flash.backward, &pointers, &sizes[..2], scale)?;
    if flash.parts > 1 {
        launch("flash_backward_sum", flash.backward_sum, &[sums_at, dqkv_at], &sizes, scale)?;
    }
    memory.check().map_err(|overrun| overrun.to_string())?;
    let bytes = |at| memory.bytes(at).expect("allocated").to_vec();
    let parts = Format::new(Precision::Fp32).decode(&bytes(columns_at));
    let width = 3 * n_head * shape.head_size;
    let column = |i: usize| parts.iter().skip(i).step_by(width).sum::<f64>().to_bits();
    let columns = (0..width).map(column).collect();
    Ok(Results { out: bytes(out_at), lse: bytes(lse_at), dqkv: bytes(dqkv_at), columns })
}

/// A result by definition, and how far rounding may move it.
struct Expected {
    value: Vec<f64>,
    bound: Vec<f64>,
}

impl Expected {
    fn new(len: usize) -> Self {
        Self { value: vec![0.0; len], bound: vec![0.0; len] }
    }

    /// Adds a product whose first factor may be wrong by `error`; `slack` is the additional error of fp32.
    fn add(&mut self, at: usize, a: f64, b: f64, error: f64, slack: f64) {
        self.value[at] += a * b;
        self.bound[at] += (error + slack * a.abs()) * b.abs();
    }

    /// Accounts for rounding when the result is written.
    fn round(&mut self, format: Format) {
        for (bound, value) in self.bound.iter_mut().zip(&self.value) {
            *bound += format.unit * (value.abs() + *bound) + format.tiny;
        }
    }

    /// The sums of columns of a matrix with rows of `width`. The errors of rows do not depend on each other: their sum
    /// grows with the root of their number, and a bound that grew with the number would notice little.
    fn of_columns(&self, width: usize) -> Self {
        const DEVIATIONS: f64 = 4.0;
        let sum = |of: &[f64], i: usize, power| -> f64 {
            of.iter().skip(i).step_by(width).map(|x| x.powi(power)).sum()
        };
        Self {
            value: (0..width).map(|i| sum(&self.value, i, 1)).collect(),
            bound: (0..width).map(|i| DEVIATIONS * sum(&self.bound, i, 2).sqrt()).collect(),
        }
    }

    fn check(&self, got: &[f64], what: &str) -> Result<(), String> {
        assert_eq!(got.len(), self.value.len(), "{what}");
        for (i, ((got, value), bound)) in got.iter().zip(&self.value).zip(&self.bound).enumerate() {
            let error = (got - value).abs();
            // a NaN is not close
            let is_close = error <= bound + 1e-6;
            if !is_close {
                return Err(format!(
                    "{what}[{i}]: {got} instead of {value}, off by {error:.2e}, allowed are {bound:.2e}"
                ));
            }
        }
        Ok(())
    }
}

/// Attention of every head and its gradients by their definitions: out, lse, dqkv.
fn reference(format: Format, shape: AttentionShape, qkv: &[f64], dout: &[f64]) -> [Expected; 3] {
    // the error of fp32 relative to the sum of the terms' sizes; measured errors are a tenth of it
    const SLACK: f64 = 1e-5;
    let AttentionShape { rows, cols, n_head, head_size } = shape;
    let Format { unit, tiny, .. } = format;
    let c = n_head * head_size;
    let scale = 1.0 / (head_size as f64).sqrt();
    let mut out = Expected::new(rows * cols * c);
    let mut lse = Expected::new(rows * n_head * cols);
    let mut dqkv = Expected::new(rows * cols * 3 * c);
    for task in 0..rows * n_head {
        let (row, head) = (task / n_head, task % n_head);
        // element x of token t's head in [N, C], and in the third (0 query, 1 key, 2 value) of [N, 3C] that
        // `which` selects
        let place = |t: usize, x: usize| (row * cols + t) * c + head * head_size + x;
        let packed =
            |part: usize, t: usize, x: usize| (row * cols + t) * 3 * c + part * c + head * head_size + x;
        let dot = |a: &dyn Fn(usize) -> f64, b: &dyn Fn(usize) -> f64| -> f64 {
            (0..head_size).map(|x| a(x) * b(x)).sum()
        };
        for i in 0..cols {
            let scores: Vec<f64> =
                (0..=i).map(|j| scale * dot(&|x| qkv[packed(0, i, x)], &|x| qkv[packed(1, j, x)])).collect();
            let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s - highest).exp()).sum();
            lse.value[task * cols + i] = (highest + total.ln()) * std::f64::consts::LOG2_E;
            lse.bound[task * cols + i] = SLACK;
            let p: Vec<f64> = scores.iter().map(|s| (s - highest).exp() / total).collect();
            for x in 0..head_size {
                for (j, p) in p.iter().enumerate() {
                    // a probability is rounded before it is divided by the total
                    out.add(place(i, x), *p, qkv[packed(2, j, x)], unit * p + tiny / total, SLACK);
                }
            }
        }
        let mut rounded = Expected { value: out.value.clone(), bound: out.bound.clone() };
        rounded.round(format);
        for i in 0..cols {
            let delta = dot(&|x| dout[place(i, x)], &|x| out.value[place(i, x)]);
            // delta is computed from the rounded output
            let delta_error = dot(&|x| dout[place(i, x)].abs(), &|x| rounded.bound[place(i, x)]);
            for j in 0..=i {
                let s = scale * dot(&|x| qkv[packed(0, i, x)], &|x| qkv[packed(1, j, x)]);
                let p = (s * std::f64::consts::LOG2_E - lse.value[task * cols + i]).exp2();
                let dp = dot(&|x| dout[place(i, x)], &|x| qkv[packed(2, j, x)]);
                let ds = p * (dp - delta) * scale;
                let ds_error = p * scale * (delta_error + SLACK * (dp.abs() + delta.abs()));
                let ds_error = ds_error + unit * (ds.abs() + ds_error) + tiny;
                for x in 0..head_size {
                    dqkv.add(packed(0, i, x), ds, qkv[packed(1, j, x)], ds_error, SLACK);
                    dqkv.add(packed(1, j, x), ds, qkv[packed(0, i, x)], ds_error, SLACK);
                    dqkv.add(packed(2, j, x), p, dout[place(i, x)], unit * p + tiny, SLACK);
                }
            }
        }
    }
    out.round(format);
    dqkv.round(format);
    [out, lse, dqkv]
}

fn emulator(config: &KernelConfig) -> Emulator {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator");
    Emulator::new(config, &cache)
}

/// Compares one configuration with the definition, for several numbers of tokens.
fn check(precision: Precision, head_size: usize, lengths: &[usize]) {
    let config = KernelConfig { precision, head_size, dropout: false };
    let emulator = emulator(&config);
    for &cols in lengths {
        let shape = AttentionShape { rows: 2, cols, n_head: 2, head_size };
        examine(&emulator, &config, shape).unwrap_or_else(|wrong| panic!("{config:?}, {shape:?}: {wrong}"));
    }
}

/// Compares one shape with the definition. Tells what is wrong.
pub(crate) fn examine(
    emulator: &Emulator,
    config: &KernelConfig,
    shape: AttentionShape,
) -> Result<(), String> {
    let format = Format::new(config.precision);
    let elements = shape.rows * shape.cols * shape.n_head * shape.head_size;
    let (qkv, dout) = (format.random(shape.cols as u64, 3 * elements), format.random(99, elements));
    let [out, lse, dqkv] = reference(format, shape, &format.decode(&qkv), &format.decode(&dout));
    let flash = Flash::new(config, shape).expect("heads that are narrow enough");
    // where few heads are cut into parts, also as one block would walk through all keys of a head
    for flash in [flash, in_parts(flash, 1)].into_iter().take(flash.parts) {
        let mut first: Option<Results> = None;
        for order in ORDERS {
            let named = |wrong: String| format!("{} parts, {order:?}: {wrong}", flash.parts);
            let results = run(emulator, &flash, shape, &qkv, &dout, order);
            let results = results.map_err(named)?;
            if first.as_ref().is_some_and(|first| *first != results) {
                return Err(named(format!("the results differ from those of {:?}", ORDERS[0])));
            }
            if first.is_none() {
                out.check(&format.decode(&results.out), "out").map_err(named)?;
                lse.check(&Format::new(Precision::Fp32).decode(&results.lse), "lse").map_err(named)?;
                dqkv.check(&format.decode(&results.dqkv), "dqkv").map_err(named)?;
                let columns: Vec<f64> = results.columns.iter().copied().map(f64::from_bits).collect();
                dqkv.of_columns(columns.len()).check(&columns, "columns").map_err(named)?;
                first = Some(results);
            }
        }
    }
    Ok(())
}

/// The launches with another number of blocks for each head in the backward pass.
fn in_parts(flash: Flash, parts: usize) -> Flash {
    let [_, heads, rows] = flash.backward.grid;
    let backward = Geometry { grid: [parts as u32, heads, rows], ..flash.backward };
    let [sums, delta, columns] =
        [flash.sums, flash.delta, flash.columns].map(|elements| elements / flash.parts * parts);
    Flash { backward, parts, sums, delta, columns, ..flash }
}

#[test]
fn bf16_with_tiny_heads() {
    // rows that are not a multiple of 16 bytes, and pairs that are not whole words
    check(Precision::Bf16, 5, &[1, 7, 65]);
    check(Precision::Bf16, 4, &[64, 130]);
    check(Precision::Bf16, 16, &[1, 65, 130]);
}

#[test]
fn bf16_with_usual_heads() {
    check(Precision::Bf16, 32, &[7, 64, 130]);
    check(Precision::Bf16, 64, &[1, 7, 64, 65, 127, 130, 200, 300]);
}

#[test]
fn bf16_with_wide_heads() {
    check(Precision::Bf16, 80, &[1, 65, 130]);
    check(Precision::Bf16, 96, &[7, 64, 100]);
    check(Precision::Bf16, 128, &[1, 65, 130]);
}

#[test]
fn parts_take_the_tiles_of_keys_back_and_forth() {
    // five tiles of 64 keys for two and for three parts: 0 3 4 and 1 2; 0, 1 4 and 2 3
    check(Precision::Fp32, 8, &[320]);
    check(Precision::Bf16, 16, &[600]);
}

#[test]
fn fp16() {
    check(Precision::Fp16, 4, &[1, 65]);
    check(Precision::Fp16, 64, &[7, 130]);
}

#[test]
fn tf32() {
    check(Precision::Tf32, 4, &[1, 7, 65]);
    check(Precision::Tf32, 64, &[1, 64, 130]);
    check(Precision::Tf32, 80, &[65]);
    check(Precision::Tf32, 128, &[1, 65]);
}

#[test]
fn fp32() {
    check(Precision::Fp32, 3, &[1, 7, 130]);
    check(Precision::Fp32, 32, &[64, 65]);
    check(Precision::Fp32, 64, &[1, 65, 130]);
    check(Precision::Fp32, 128, &[1, 65]);
}

#[test]
fn the_host_requests_no_more_shared_memory_than_the_kernels_use() {
    for (precision, head_size) in [(Precision::Bf16, 64), (Precision::Bf16, 128), (Precision::Tf32, 128)] {
        let config = KernelConfig { precision, head_size, dropout: false };
        let emulator = emulator(&config);
        let shape = AttentionShape { rows: 1, cols: 130, n_head: 1, head_size };
        let flash = Flash::new(&config, shape).expect("heads that are narrow enough");
        let zeros = vec![0; shape.cols * head_size * Format::new(precision).bytes];
        let qkv = zeros.repeat(3);
        let attempt = |flash| run(&emulator, &flash, shape, &qkv, &zeros, ThreadOrder::Ascending).err();
        assert!(attempt(flash).is_none());
        // the last row of the values ends in 16 bytes of padding, and statistics of 8 bytes are the last
        let less = |geometry: Geometry, bytes| Geometry { shared: geometry.shared - bytes, ..geometry };
        for (kernel, flash) in [
            ("flash_forward", Flash { forward: less(flash.forward, 32), ..flash }),
            ("flash_backward", Flash { backward: less(flash.backward, 8), ..flash }),
        ] {
            let error = attempt(flash).expect("too little");
            assert!(error.contains(kernel) && error.contains("dynamic shared memory"), "{error}");
        }
    }
}
