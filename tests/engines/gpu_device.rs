//! The GPU's implementation over fake libraries that compute on the host: everything except the GPU itself.
//!
//! The fake cuBLASLt computes column by column what its documentation defines. So the exchange of rows and
//! columns, strides, stacks and epilogues are checked against a plain row-major product.

use crate::cuda_support;

use cuda_support::Fakes;
use runner::cuda::Libraries;
use runner::cuda::compile::Program;
use runner::engine::EngineError;
use runner::engine::cuda::device::{Address, Arg, Device, Fused, Launch, Operand, Product, Way};
use runner::engine::cuda::gpu::Gpu;
use runner::engine::memory::Element;
use runner::recipe::Precision;
use std::path::Path;

const NOTHING: Program = Program { unit: "", files: &[], options: &[] };

fn open(libraries: &Libraries, precision: Precision, cache: Option<&Path>) -> Gpu {
    Gpu::open_with(libraries, 0, precision, Some(&NOTHING), cache).expect("a device")
}

fn upload(gpu: &mut Gpu, values: &[f32]) -> Address {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let at = gpu.allocate(bytes.len(), "values").expect("memory");
    gpu.write(at, &bytes).expect("written");
    at
}

fn download(gpu: &mut Gpu, at: Address, len: usize) -> Vec<f32> {
    let mut bytes = vec![0; 4 * len];
    gpu.read(at, &mut bytes).expect("read");
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

/// `y[i] += a x[i] + b` for the first n.
fn axpy(gpu: &mut Gpu, y: Address, n: i32, a: f64, x: Address, b: f32) -> Result<(), EngineError> {
    let args = [Arg::Pointer(y), Arg::Int(n), Arg::Double(a), Arg::Pointer(x), Arg::Float(b)];
    gpu.launch(&Launch { kernel: "axpy", grid: [2, 2, 1], block: 32, shared: 0, args: &args })
}

#[test]
fn memory_begins_as_zeros_and_keeps_what_is_written_in_order() {
    let fakes = Fakes::whole(&[]);
    let libraries = fakes.libraries();
    let before = libraries.memory(0).expect("memory").0;
    let mut gpu = open(&libraries, Precision::Fp32, None);
    let at = gpu.allocate(100_000, "bytes").expect("memory");
    let mut bytes = vec![1; 100_000];
    gpu.read(at, &mut bytes).expect("read");
    assert!(bytes.iter().all(|&byte| byte == 0));
    let large: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
    gpu.write(at, &large).expect("written");
    // small writes over the large one, more than their pinned memory holds
    for i in 0..200_u64 {
        gpu.write(at.offset(i as usize * 300), &[i as u8; 1000]).expect("written");
    }
    gpu.read(at, &mut bytes).expect("read");
    let expected = |i: usize| match i {
        ..60_700 => (i / 300).min(199) as u8,
        _ => (i % 251) as u8,
    };
    let wrong = (0..100_000).find(|&i| bytes[i] != expected(i));
    assert_eq!(wrong, None, "first wrong byte");
    let copy = gpu.allocate(100_000, "bytes").expect("memory");
    gpu.copy(at, copy, 100_000).expect("copied");
    let mut copied = vec![0; 100_000];
    gpu.read(copy, &mut copied).expect("read");
    assert_eq!(copied, bytes);
    drop(gpu);
    assert_eq!(libraries.memory(0).expect("memory").0, before, "everything was given back");
}

#[test]
fn an_allocation_that_fails_is_named() {
    let fakes = Fakes::whole(&[]);
    let mut gpu = open(&fakes.libraries(), Precision::Fp32, None);
    let error = gpu.allocate(100 << 20, "activations").expect_err("too much").to_string();
    assert!(error.contains("activations needs 100 MiB, 32 of 64 MiB are free"), "{error}");
}

#[test]
fn rows_are_staged_in_two_slots_and_taken_when_they_have_arrived() {
    let fakes = Fakes::whole(&[]);
    let mut gpu = open(&fakes.libraries(), Precision::Fp32, None);
    let at = gpu.allocate(4 * 1000, "rows").expect("memory");
    let error = gpu.take(0, at).expect_err("nothing was staged").to_string();
    assert!(error.contains("nothing was staged in slot 0"), "{error}");
    let mut word = [0; 4];
    for step in 0..6_u32 {
        // larger ones from the third on
        let count = if step < 3 { 10 } else { 1000 };
        gpu.stage(step as usize % 2, &vec![step; count]).expect("staged");
        if step > 0 {
            gpu.take((step as usize - 1) % 2, at).expect("taken");
            gpu.read(at, &mut word).expect("read");
            assert_eq!(u32::from_ne_bytes(word), step - 1);
        }
    }
    assert!(gpu.stage(2, &[1]).is_err(), "there are two");
}

#[test]
fn kernels_get_their_arguments() {
    let fakes = Fakes::whole(&[]);
    let mut gpu = open(&fakes.libraries(), Precision::Fp32, None);
    let (x, y) = (upload(&mut gpu, &[1.0, 2.0, 3.0, 4.0]), upload(&mut gpu, &[10.0; 4]));
    axpy(&mut gpu, y, 3, 0.5, x, 0.25).expect("launched");
    assert_eq!(download(&mut gpu, y, 4), [10.75, 11.25, 11.75, 10.0]);

    let launch = |kernel, shared| Launch { kernel, grid: [1; 3], block: 32, shared, args: &[] };
    let error = gpu.launch(&launch("absent", 0)).expect_err("there is none").to_string();
    assert!(error.contains("no kernel `absent`"), "{error}");
    let error = gpu.launch(&launch("axpy", 300_000)).expect_err("too much").to_string();
    assert!(
        error.contains("axpy needs 300000 bytes of shared memory, and NVIDIA H200 has 232448"),
        "{error}"
    );
    let args = [Arg::Pointer(y), Arg::Int(0), Arg::Double(0.0), Arg::Pointer(x), Arg::Float(0.0)];
    for shared in [45 << 10, 100_000, 10] {
        let more = Launch { kernel: "axpy", grid: [1; 3], block: 32, shared, args: &args };
        gpu.launch(&more).expect("more shared memory than the default is requested");
    }
    let error = axpy_with(&mut gpu, &args[..4]).expect_err("one is missing").to_string();
    assert!(error.contains("started last: axpy, axpy, axpy"), "{error}");
}

fn axpy_with(gpu: &mut Gpu, args: &[Arg]) -> Result<(), EngineError> {
    gpu.launch(&Launch { kernel: "axpy", grid: [1; 3], block: 32, shared: 0, args })
}

#[test]
fn a_failure_of_the_device_names_what_was_started_last() {
    let fakes = Fakes::whole(&[]);
    let mut gpu = open(&fakes.libraries(), Precision::Fp32, None);
    let (x, y) = (upload(&mut gpu, &[1.0; 4]), upload(&mut gpu, &[1.0; 4]));
    axpy(&mut gpu, y, 4, 1.0, x, 0.0).expect("launched");
    gpu.launch(&Launch { kernel: "crash", grid: [1; 3], block: 1, shared: 0, args: &[] }).expect("launched");
    let error = gpu.synchronize().expect_err("it crashed").to_string();
    assert_eq!(
        error,
        "the device failed: cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was \
         encountered; started last: axpy, crash"
    );
    let error = gpu.read(y, &mut [0; 4]).expect_err("it has crashed").to_string();
    assert!(error.contains("ILLEGAL_ADDRESS"), "{error}");
}

#[test]
fn kernels_that_do_not_compile_show_the_compiler_s_messages() {
    let fakes = Fakes::whole(&[]);
    let program = Program {
        unit: "#include \"norm.cu\"\n",
        files: &[("norm.cu", "#error")],
        options: &["--std=c++17".to_owned()],
    };
    let opened = Gpu::open_with(&fakes.libraries(), 0, Precision::Bf16, Some(&program), None);
    let error = opened.err().expect("it does not compile").to_string();
    assert!(error.contains("do not compile for sm_90"), "{error}");
    assert!(error.contains("norm.cu(1): error: #error directive"), "{error}");
}

#[test]
fn machine_code_is_cached_and_compiled_again_when_it_is_broken() {
    let fakes = Fakes::whole(&[]);
    let libraries = fakes.libraries();
    let cache = tempfile::tempdir().expect("a directory");
    let kept = || {
        let files = std::fs::read_dir(cache.path()).expect("a directory").flatten();
        let cubins =
            files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "cubin"));
        cubins.collect::<Vec<_>>()
    };
    drop(open(&libraries, Precision::Bf16, Some(cache.path())));
    let [file] = &kept()[..] else { panic!("{:?}", kept()) };
    let whole = std::fs::read(file).expect("a file");
    let code = whole.len() - 64;
    for broken in [whole[..40].to_vec(), [&blake3::hash(b"no code").as_bytes()[..], b"no code"].concat()] {
        std::fs::write(file, &broken).expect("a file");
        drop(open(&libraries, Precision::Bf16, Some(cache.path())));
        assert_eq!(std::fs::read(file).expect("a file"), whole);
    }
    assert_eq!(code, 32, "a checksum and the code");
    let other = Program { options: &["-DOTHER".to_owned()], ..NOTHING };
    drop(Gpu::open_with(&libraries, 0, Precision::Bf16, Some(&other), Some(cache.path())).expect("a device"));
    assert_eq!(kept().len(), 2, "other options are other code");
}

/// A stack of row-major matrices in host memory, and the operand that stands for it in a product.
struct Stack {
    values: Vec<f32>,
    operand: Operand,
}

impl Stack {
    /// `rows` x `cols` as read, with gaps after each row and between the matrices.
    fn new(
        gpu: &mut Gpu,
        element: Element,
        (rows, cols): (usize, usize),
        count: usize,
        transposed: bool,
        seed: usize,
    ) -> Self {
        let (high, wide) = if transposed { (cols, rows) } else { (rows, cols) };
        let (stride, stack) = ((wide + 3).next_multiple_of(8), (high * (wide + 16)).next_multiple_of(8));
        let value = |i: usize| ((i * 37 + seed * 101) % 19) as f32 / 8.0 - 1.0;
        let values: Vec<f32> = (0..count * stack.max(high * stride)).map(value).collect();
        let stack = stack.max(high * stride);
        let bytes: Vec<u8> = match element {
            Element::F32 => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
            Element::Half => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_ne_bytes()).collect(),
        };
        let address = gpu.allocate(bytes.len(), "a matrix").expect("memory");
        gpu.write(address, &bytes).expect("written");
        Self { values, operand: Operand { address, element, stride, stack, transposed } }
    }

    fn at(&self, matrix: usize, row: usize, col: usize) -> usize {
        let Operand { stride, stack, transposed, .. } = self.operand;
        matrix * stack + if transposed { col * stride + row } else { row * stride + col }
    }

    fn read(&self, gpu: &mut Gpu) -> Vec<f32> {
        let mut bytes = vec![0; self.values.len() * self.operand.element.bytes()];
        gpu.read(self.operand.address, &mut bytes).expect("read");
        match self.operand.element {
            Element::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect(),
            Element::Half => {
                bytes.as_chunks::<2>().0.iter().map(|b| half::bf16::from_ne_bytes(*b).to_f32()).collect()
            }
        }
    }
}

fn gelu(x: f64) -> (f64, f64) {
    let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    let value = |x: f64| 0.5 * x * (1.0 + inner(x).tanh());
    (value(x), (value(x + 1e-5) - value(x - 1e-5)) / 2e-5)
}

/// Whether the device computes a product with its epilogue as one; it may try it beside a product and a kernel.
fn fuses(gpu: &mut Gpu, whole: &Product) -> bool {
    let at = gpu.allocate(64, "nothing").expect("memory");
    let args = [Arg::Pointer(at), Arg::Int(0), Arg::Double(0.0), Arg::Pointer(at), Arg::Float(0.0)];
    let after = Launch { kernel: "axpy", grid: [1; 3], block: 32, shared: 0, args: &args };
    let alone = Product { fused: Fused::None, ..*whole };
    gpu.fuses(Way { product: whole, then: None }, Way { product: &alone, then: Some(&after) })
}

/// Runs one product and compares everything that it wrote, and everything that it must not change.
fn check(
    gpu: &mut Gpu,
    element: Element,
    out_element: Element,
    count: usize,
    transposed: [bool; 2],
    accumulate: bool,
    fuse: u32,
) {
    let (m, n, k) = (5, 16, 7);
    let a = Stack::new(gpu, element, (m, k), count, transposed[0], 1);
    let b = Stack::new(gpu, element, (k, n), count, transposed[1], 2);
    let out = Stack::new(gpu, out_element, (m, n), count, false, 3);
    let sum = Stack::new(gpu, out_element, (m, n), count, false, 4);
    let bias = Stack::new(gpu, out_element, (1, n), 1, false, 5);
    let fused = match fuse {
        0 => Fused::None,
        1 => Fused::Bias(bias.operand.address),
        2 => Fused::BiasGelu { bias: bias.operand.address, sum: sum.operand.address },
        3 => Fused::GeluSlope { at: sum.operand.address, sums: bias.operand.address },
        _ => Fused::Residual(sum.operand.address),
    };
    let (alpha, [a_op, b_op, out_op]) = (0.5, [&a, &b, &out].map(|stack| stack.operand));
    let product =
        Product { m, n, k, count, a: a_op, b: b_op, out: out_op, alpha, accumulate, fused, tf32: None };
    let what = format!("{product:?}");
    assert!(fuses(gpu, &product), "{what}: {:?}", gpu.notes());
    let halved = |value: f64| match out_element {
        Element::F32 => value as f32,
        Element::Half => half::bf16::from_f64(value).to_f32(),
    };
    let [mut expected, mut expected_sum, mut expected_bias] =
        [&out, &sum, &bias].map(|stack| stack.values.clone());
    let stored = |value: &f32| halved(f64::from(*value));
    let before = expected.iter_mut().chain(&mut expected_sum).chain(&mut expected_bias);
    before.for_each(|value| *value = stored(value));
    for s in 0..count {
        for (row, col) in (0..m).flat_map(|row| (0..n).map(move |col| (row, col))) {
            let rounded = |value: f32| match element {
                Element::F32 => f64::from(value),
                Element::Half => half::bf16::from_f32(value).to_f64(),
            };
            let terms =
                (0..k).map(|i| rounded(a.values[a.at(s, row, i)]) * rounded(b.values[b.at(s, i, col)]));
            let at = out.at(s, row, col);
            let mut value = f64::from(alpha) * terms.sum::<f64>();
            if accumulate {
                value += f64::from(expected[at]);
            }
            if fuse == 1 || fuse == 2 {
                value += f64::from(stored(&bias.values[col]));
            }
            if fuse == 2 {
                expected_sum[at] = halved(value);
                value = gelu(value).0;
            }
            if fuse == 3 {
                value *= gelu(f64::from(expected_sum[at])).1;
            }
            if fuse == 4 {
                value += f64::from(expected_sum[at]);
            }
            expected[at] = halved(value);
        }
        if fuse == 3 {
            let sum = |col| (0..m).map(|row| expected[out.at(s, row, col)]).sum::<f32>();
            (0..n).for_each(|col| expected_bias[bias.at(0, 0, col)] = sum(col));
        }
    }
    // the first run chooses an algorithm; the second one of an accumulating product adds again
    gpu.product(&product).expect("a product");
    let tolerance = if out_element == Element::Half { 0.02 } else { 1e-5 };
    // the sums of columns have as many terms as there are rows
    let written = [(&out, &expected, tolerance), (&sum, &expected_sum, tolerance)];
    for (stack, expected, tolerance) in
        written.into_iter().chain([(&bias, &expected_bias, m as f32 * tolerance)])
    {
        for (i, (found, expected)) in stack.read(gpu).iter().zip(expected).enumerate() {
            assert!((found - expected).abs() <= tolerance, "{what}: element {i} is {found}, not {expected}");
        }
    }
}

#[test]
fn row_major_products_are_column_major_ones_with_the_factors_exchanged() {
    let fakes = Fakes::whole(&[]);
    let libraries = fakes.libraries();
    let cache = tempfile::tempdir().expect("a directory");
    for cache in [None, Some(cache.path())] {
        let mut gpu = open(&libraries, Precision::Bf16, cache);
        for (element, out) in
            [(Element::F32, Element::F32), (Element::Half, Element::F32), (Element::Half, Element::Half)]
        {
            for transposed in [[false, false], [false, true], [true, false], [true, true]] {
                for count in [1, 3] {
                    check(&mut gpu, element, out, count, transposed, false, 0);
                    check(&mut gpu, element, out, count, transposed, true, 0);
                }
                for fuse in 1..5 {
                    check(&mut gpu, element, out, 1, transposed, false, fuse);
                }
            }
            check(&mut gpu, element, out, 3, [false, false], false, 2);
            check(&mut gpu, element, out, 3, [false, false], false, 4);
        }
    }
}

/// A product of 4 x 4 matrices of ones.
fn ones(gpu: &mut Gpu, k: usize, accumulate: bool) -> Product {
    let factor = upload(gpu, &vec![1.0; 16 * k]);
    let out = upload(gpu, &[0.0; 16]);
    let operand =
        |address, stride| Operand { address, element: Element::F32, stride, stack: 0, transposed: false };
    let (a, b, out) = (operand(factor, k), operand(factor, 4), operand(out, 4));
    Product { m: 4, n: 4, k, count: 1, a, b, out, alpha: 1.0, accumulate, fused: Fused::None, tf32: None }
}

#[test]
fn a_recording_can_be_played_repeatedly() {
    let fakes = Fakes::whole(&[]);
    let mut gpu = open(&fakes.libraries(), Precision::Fp32, None);
    assert!(!gpu.begin_recording().expect("asked"), "nothing has run, so nothing can be recorded");
    let product = ones(&mut gpu, 3, true);
    let (out, x) = (product.out.address, upload(&mut gpu, &[1.0; 16]));
    let sequence = |gpu: &mut Gpu| {
        gpu.product(&product).expect("a product");
        axpy(gpu, out, 16, 1.0, x, 0.0).expect("launched");
    };
    sequence(&mut gpu);
    assert_eq!(download(&mut gpu, out, 16), [4.0; 16]);
    assert!(gpu.begin_recording().expect("begun"));
    for refused in [
        gpu.read(out, &mut [0; 4]),
        gpu.write(out, &[0; 4]),
        gpu.synchronize(),
        gpu.stage(0, &[1]),
        gpu.take(0, out),
        gpu.allocate(4, "more").map(drop),
    ] {
        let error = refused.expect_err("it cannot be recorded").to_string();
        assert!(error.contains("cannot be part of a recording"), "{error}");
    }
    sequence(&mut gpu);
    let recording = gpu.end_recording().expect("ended").expect("kept");
    assert_eq!(download(&mut gpu, out, 16), [4.0; 16], "recorded is not done");
    for played in 1..4 {
        gpu.play(recording).expect("played");
        assert_eq!(download(&mut gpu, out, 16), [4.0 + 4.0 * played as f32; 16]);
    }
    assert!(gpu.end_recording().is_err(), "none was begun");
}

#[test]
fn a_recording_that_meets_something_new_is_given_up() {
    let fakes = Fakes::whole(&[]);
    let mut gpu = open(&fakes.libraries(), Precision::Fp32, None);
    let (seen, new) = (ones(&mut gpu, 3, true), ones(&mut gpu, 5, true));
    let x = upload(&mut gpu, &[1.0; 16]);
    gpu.product(&seen).expect("a product");
    assert!(gpu.begin_recording().expect("begun"));
    gpu.product(&seen).expect("a product");
    gpu.product(&new).expect("ignored");
    assert!(gpu.end_recording().expect("ended").is_none());
    assert!(gpu.begin_recording().expect("begun"));
    axpy(&mut gpu, new.out.address, 16, 1.0, x, 0.0).expect("ignored");
    assert!(gpu.end_recording().expect("ended").is_none());
    // launched again, everything runs, and can be recorded from then on
    gpu.product(&new).expect("a product");
    axpy(&mut gpu, new.out.address, 16, 1.0, x, 0.0).expect("launched");
    assert_eq!(download(&mut gpu, new.out.address, 16), [6.0; 16]);
    assert_eq!(download(&mut gpu, seen.out.address, 16), [3.0; 16], "only what was not recorded");
    assert!(gpu.begin_recording().expect("begun"));
    gpu.product(&new).expect("a product");
    assert!(gpu.end_recording().expect("ended").is_some());
}

#[test]
fn the_algorithm_that_was_chosen_first_is_kept() {
    let fakes = Fakes::whole(&[]);
    let libraries = fakes.libraries();
    let cache = tempfile::tempdir().expect("a directory");
    let file = || {
        let files = std::fs::read_dir(cache.path()).expect("a directory").flatten().map(|file| file.path());
        files.filter(|path| path.extension().is_some_and(|e| e == "json")).collect::<Vec<_>>()
    };
    let run = || {
        let mut gpu = open(&libraries, Precision::Fp32, Some(cache.path()));
        let product = ones(&mut gpu, 3, true);
        gpu.product(&product).expect("a product");
        assert_eq!(download(&mut gpu, product.out.address, 16), [3.0; 16], "trials spoil nothing");
        std::fs::read_to_string(&file()[0]).expect("a file")
    };
    let first = run();
    // the last of the fake's three proposals is the fastest
    let word = |number: u32| format!("\"000000000000a190-{number:016x}-");
    assert!(first.contains(&word(2)), "{first}");
    assert_eq!(run(), first);
    let chosen = first.replace(&word(2), &word(1));
    std::fs::write(&file()[0], &chosen).expect("a file");
    assert_eq!(run(), chosen, "what is remembered is not measured again");
    let unknown = first.replace(&word(2), &word(9));
    std::fs::write(&file()[0], &unknown).expect("a file");
    assert!(run().contains(&word(2)), "an algorithm that the library refuses is replaced");
    assert_eq!(file().len(), 1);
}

#[test]
fn a_choice_without_memory_for_a_trial_is_kept_too() {
    let fakes = Fakes::whole(&[]);
    let libraries = fakes.libraries();
    let cache = tempfile::tempdir().expect("a directory");
    let run = |fill: bool| {
        let mut gpu = open(&libraries, Precision::Fp32, Some(cache.path()));
        let product = ones(&mut gpu, 3, true);
        if fill {
            gpu.allocate(libraries.memory(0).expect("memory").0, "everything").expect("memory");
        }
        gpu.product(&product).expect("a product");
        assert_eq!(download(&mut gpu, product.out.address, 16), [3.0; 16]);
        let files = std::fs::read_dir(cache.path()).expect("a directory").flatten().map(|file| file.path());
        let file = files.into_iter().find(|path| path.extension().is_some_and(|e| e == "json"));
        std::fs::read_to_string(file.expect("a choice is kept")).expect("a file")
    };
    let first = run(true);
    assert!(first.contains("\"000000000000a190-0000000000000000-"), "the first proposal: {first}");
    assert_eq!(run(false), first, "with more memory");
}

#[test]
fn a_device_has_one_context_however_often_it_is_looked_at() {
    let fakes = Fakes::whole(&["ONE_CONTEXT"]);
    let libraries = fakes.libraries();
    for _ in 0..3 {
        libraries.memory(0).expect("memory");
        drop(open(&libraries, Precision::Fp32, None));
    }
}

/// A product in bf16 with a bias, and the values that it has.
fn with_bias(gpu: &mut Gpu) -> (Product, Vec<f32>) {
    let halves = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|&value| half::bf16::from_f32(value).to_ne_bytes()).collect()
    };
    let mut place = |values: &[f32]| {
        let bytes = halves(values);
        let at = gpu.allocate(bytes.len(), "values").expect("memory");
        gpu.write(at, &bytes).expect("written");
        at
    };
    let (ones, bias, out) = (place(&[1.0; 64]), place(&[0.5; 8]), place(&[9.0; 64]));
    let operand =
        |address| Operand { address, element: Element::Half, stride: 8, stack: 0, transposed: false };
    let (a, b, out) = (operand(ones), operand(ones), operand(out));
    let fused = Fused::Bias(bias);
    let product =
        Product { m: 8, n: 8, k: 8, count: 1, a, b, out, alpha: 1.0, accumulate: false, fused, tf32: None };
    (product, vec![8.5; 64])
}

#[test]
fn an_epilogue_that_fails_in_any_way_is_left_out_and_noted() {
    for (fault, expected) in [
        ("REFUSES_EPILOGUES", "cublasLtMatmul: not supported (status 15)"),
        ("INVALID_EPILOGUES", "cublasLtMatmulAlgoGetHeuristic: invalid value (status 7)"),
        ("WRONG_EPILOGUES", "computes this epilogue wrongly: element 0 of the result of a small product is"),
    ] {
        let fakes = Fakes::whole(&[]);
        fakes.cublaslt(&[fault]);
        let cache = tempfile::tempdir().expect("a directory");
        for cache in [None, Some(cache.path())] {
            let mut gpu = open(&fakes.libraries(), Precision::Bf16, cache);
            let (product, _) = with_bias(&mut gpu);
            assert!(!fuses(&mut gpu, &product), "{fault}");
            let larger = Product { m: 4, ..product };
            assert!(!fuses(&mut gpu, &larger), "{fault}: what has failed once is not used elsewhere");
            let notes = gpu.notes().to_vec();
            let [first, ..] = &notes[..] else { panic!("{fault}: {notes:?}") };
            assert!(first.starts_with("not fused: 8x8x8 a Bf16") && first.contains(expected), "{first}");
            assert!(fuses(&mut gpu, &Product { fused: Fused::None, ..product }), "there is nothing to fuse");
            gpu.product(&Product { fused: Fused::None, ..product }).expect("the product alone");
            let mut bytes = [0; 2];
            gpu.read(product.out.address, &mut bytes).expect("read");
            assert_eq!(half::bf16::from_ne_bytes(bytes).to_f32(), 8.0);
        }
    }
}

/// A product of bf16 to which a matrix in fp32 is added, stored elsewhere than the result and aligned less.
fn with_residual(gpu: &mut Gpu) -> Product {
    let (product, _) = with_bias(gpu);
    let added = upload(gpu, &[0.25; 80]).offset(64);
    let out = Operand { address: upload(gpu, &[7.0; 64]), element: Element::F32, ..product.out };
    Product { out, fused: Fused::Residual(added), ..product }
}

#[test]
fn a_residual_stream_is_added_by_a_product_unless_the_library_fails_to() {
    for (fault, expected) in [
        ("REFUSES_SUMS", "cublasLtMatmul: not supported (status 15)"),
        ("WRONG_SUMS", "computes this epilogue wrongly: element 0 of the result of a small product is"),
    ] {
        let fakes = Fakes::whole(&[]);
        fakes.cublaslt(&[fault]);
        let mut gpu = open(&fakes.libraries(), Precision::Bf16, None);
        let product = with_residual(&mut gpu);
        assert!(!fuses(&mut gpu, &product), "{fault}");
        let [note] = gpu.notes() else { panic!("{fault}: {:?}", gpu.notes()) };
        assert!(note.contains("out F32 8/0@64 Add: ") && note.contains(expected), "{note}");
        // added to the result itself, as gradients are
        let summed = Product { fused: Fused::None, accumulate: true, ..product };
        gpu.product(&summed).expect("a product");
        assert_eq!(download(&mut gpu, product.out.address, 64), [15.0; 64], "{fault}");
    }
    let fakes = Fakes::whole(&[]);
    let mut gpu = open(&fakes.libraries(), Precision::Bf16, None);
    let product = with_residual(&mut gpu);
    assert!(fuses(&mut gpu, &product), "{:?}", gpu.notes());
    gpu.product(&product).expect("a product");
    assert_eq!(download(&mut gpu, product.out.address, 64), [8.25; 64]);
}

#[test]
fn an_epilogue_is_fused_where_that_is_faster_and_this_is_remembered() {
    let fakes = Fakes::whole(&["SLOWER"]);
    let cache = tempfile::tempdir().expect("a directory");
    // the fused product is timed last, so by the clock of these fakes it takes longest
    let mut gpu = open(&fakes.libraries(), Precision::Bf16, Some(cache.path()));
    let (product, values) = with_bias(&mut gpu);
    assert!(!fuses(&mut gpu, &product));
    let [note] = gpu.notes() else { panic!("{:?}", gpu.notes()) };
    assert!(note.contains("us as a product and a kernel"), "{note}");
    drop(gpu);
    let usual = Fakes::whole(&[]);
    let mut gpu = open(&usual.libraries(), Precision::Bf16, Some(cache.path()));
    let (product, _) = with_bias(&mut gpu);
    assert!(!fuses(&mut gpu, &product), "the first choice holds");
    drop(gpu);
    let other = tempfile::tempdir().expect("a directory");
    let mut gpu = open(&usual.libraries(), Precision::Bf16, Some(other.path()));
    let (product, _) = with_bias(&mut gpu);
    assert!(fuses(&mut gpu, &product), "{:?}", gpu.notes());
    gpu.product(&product).expect("a product");
    let mut bytes = vec![0; 128];
    gpu.read(product.out.address, &mut bytes).expect("read");
    let found: Vec<f32> =
        bytes.as_chunks::<2>().0.iter().map(|bytes| half::bf16::from_ne_bytes(*bytes).to_f32()).collect();
    assert_eq!(found, values);
}

#[test]
fn a_graph_that_the_driver_cannot_make_is_noted_and_its_work_is_launched() {
    let fakes = Fakes::whole(&["NO_GRAPHS"]);
    let mut gpu = open(&fakes.libraries(), Precision::Fp32, None);
    let product = ones(&mut gpu, 3, true);
    gpu.product(&product).expect("a product");
    assert!(gpu.begin_recording().expect("begun"));
    gpu.product(&product).expect("a product");
    assert!(gpu.end_recording().expect("ended").is_none());
    let [note] = gpu.notes() else { panic!("{:?}", gpu.notes()) };
    assert_eq!(note, "no CUDA graph: cuGraphInstantiateWithFlags: status 801");
    gpu.product(&product).expect("a product");
    assert_eq!(download(&mut gpu, product.out.address, 16), [6.0; 16]);
}

#[test]
fn another_patch_of_the_library_chooses_anew() {
    let cache = tempfile::tempdir().expect("a directory");
    for (release, files) in [("RELEASE=130100", 1), ("RELEASE=130101", 2), ("RELEASE=130100", 2)] {
        let fakes = Fakes::whole(&[]);
        fakes.cublaslt(&[release]);
        let mut gpu = open(&fakes.libraries(), Precision::Fp32, Some(cache.path()));
        let product = ones(&mut gpu, 3, false);
        gpu.product(&product).expect("a product");
        let kept = std::fs::read_dir(cache.path()).expect("a directory").flatten();
        let kept = kept.filter(|file| file.path().extension().is_some_and(|e| e == "json")).count();
        assert_eq!(kept, files, "{release}");
    }
}

#[test]
fn an_epilogue_that_the_library_cannot_compute_is_not_fused() {
    let fakes = Fakes::whole(&[]);
    let mut gpu = open(&fakes.libraries(), Precision::Bf16, None);
    let at = gpu.allocate(4096, "values").expect("memory");
    let operand =
        |stride| Operand { address: at, element: Element::Half, stride, stack: 0, transposed: false };
    let slope = |stride, address| {
        let (m, n, k, count) = (4, 8, 8, 1);
        let (a, b, out) = (operand(8), operand(8), operand(stride));
        let fused = Fused::GeluSlope { at: address, sums: at };
        Product { m, n, k, count, a, b, out, alpha: 1.0, accumulate: false, fused, tf32: None }
    };
    assert!(fuses(&mut gpu, &slope(8, at)));
    assert!(!fuses(&mut gpu, &slope(12, at)), "rows of half precision are multiples of 8 apart");
    assert!(!fuses(&mut gpu, &slope(8, at.offset(8))), "auxiliary matrices begin at multiples of 16 bytes");
    let bias = Product { fused: Fused::Bias(at.offset(2)), ..slope(8, at) };
    assert!(!fuses(&mut gpu, &bias));
    drop(gpu);

    let mut gpu = open(&fakes.libraries(), Precision::Fp32, None);
    let error = gpu.product(&slope(8, at)).expect_err("there are no halves").to_string();
    assert!(error.contains("nothing has two bytes"), "{error}");
}
