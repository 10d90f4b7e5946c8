//! Small correct and incorrect kernels: the emulator must run the former and refuse the latter.

use super::{Emulator, EmulatorError, Memory, ThreadOrder, Watch};
use crate::engine::cuda::device::{Address, Arg, KernelConfig, Launch};
use crate::engine::cuda::kernels;
use crate::model::init::random_bits;
use crate::recipe::Precision;

const SOURCES: &[(&str, &str)] = &[("tests.cu", include_str!("tests.cu"))];

/// The kernels of these tests, and the directory with their library.
fn emulator(precision: Precision) -> (Emulator, tempfile::TempDir) {
    let cache = tempfile::tempdir().expect("a temporary directory");
    let config = KernelConfig { precision, head_size: 64, dropout: false };
    (Emulator::of_files(&config, kernels::HEADERS, SOURCES, cache.path()), cache)
}

/// A launch of `grid` blocks with `shared` bytes of dynamic shared memory.
#[derive(Clone, Copy)]
struct Case<'a> {
    kernel: &'static str,
    grid: u32,
    block: u32,
    shared: u32,
    args: &'a [Arg],
}

impl<'a> Case<'a> {
    /// One block of two warps.
    fn new(kernel: &'static str, args: &'a [Arg]) -> Self {
        Self { kernel, grid: 1, block: 64, shared: 0, args }
    }

    fn run(&self, emulator: &Emulator, order: ThreadOrder) -> Result<(), EmulatorError> {
        let Self { kernel, grid, block, shared, args } = *self;
        emulator.launch(&Launch { kernel, grid: [grid, 1, 1], block, shared, args }, order)
    }

    fn error(&self, emulator: &Emulator) -> String {
        self.run(emulator, ThreadOrder::Ascending).expect_err("a refusal").to_string()
    }
}

fn floats(memory: &Memory, at: Address) -> Vec<f32> {
    let bytes = memory.bytes(at).expect("allocated");
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn upload(memory: &mut Memory, values: &[f32]) -> Address {
    let at = memory.allocate(4 * values.len(), "input");
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    memory.bytes_mut(at).expect("allocated").copy_from_slice(&bytes);
    at
}

/// Small numbers, near ties, powers of two, and the limits of the formats.
fn numbers() -> Vec<f32> {
    let spread = (0..20_000).map(|i| f32::from_bits(random_bits(3, i) as u32));
    let near = (0..20_000).map(|i| f32::from_bits(0x3300_0000 + i * 8191));
    let edges =
        [0.0, -0.0, 65504.0, 65519.9, 65520.0, -7e4, f32::INFINITY, f32::NAN, 5.96e-8, 2.98e-8, 6.1e-5];
    spread.chain(near).chain(edges).collect()
}

/// The numbers converted to operands and back to fp32.
fn converted(precision: Precision, numbers: &[f32]) -> Vec<f32> {
    let (emulator, _cache) = emulator(precision);
    let mut memory = Memory::default();
    let bytes = 4 * numbers.len();
    let buffers =
        [upload(&mut memory, numbers), memory.allocate(bytes, "out"), memory.allocate(bytes, "back")];
    let args = [&buffers.map(Arg::Pointer)[..], &[Arg::Int(numbers.len() as i32)]].concat();
    let grid = numbers.len().div_ceil(256) as u32;
    let case = Case { kernel: "convert", grid, block: 256, shared: 0, args: &args };
    case.run(&emulator, ThreadOrder::Ascending).expect("it runs");
    memory.check().expect("inside");
    floats(&memory, buffers[2])
}

#[test]
fn sixteen_bit_operands_round_as_the_half_crate_does() {
    let numbers = numbers();
    let same = |a: f32, b: f32| a == b || a.is_nan() && b.is_nan();
    for (precision, round) in [
        (Precision::Bf16, (|x| half::bf16::from_f32(x).to_f32()) as fn(f32) -> f32),
        (Precision::Fp16, |x| half::f16::from_f32(x).to_f32()),
    ] {
        for (&x, got) in numbers.iter().zip(converted(precision, &numbers)) {
            assert!(same(got, round(x)), "{precision:?}: {x:e} became {got:e}, not {:e}", round(x));
        }
    }
}

#[test]
fn tf32_operands_keep_ten_bits_and_round_ties_away_from_zero() {
    let numbers = numbers();
    for (&x, got) in numbers.iter().zip(converted(Precision::Tf32, &numbers)) {
        if x.is_normal() && x.abs() < 1e38 {
            let step = f64::from(f32::from_bits(x.to_bits() & 0x7f80_0000)) * 2f64.powi(-10);
            let expected = (f64::from(x) / step).round() * step;
            assert_eq!(f64::from(got), expected, "{x:e}");
        }
    }
}

#[test]
fn correct_kernels_give_correct_results_in_every_order() {
    let (emulator, _cache) = emulator(Precision::Bf16);
    for order in [ThreadOrder::Ascending, ThreadOrder::Descending, ThreadOrder::Shuffled(1)] {
        let mut memory = Memory::default();
        let run = |kernel, grid, block, shared, args: &[Arg]| {
            let case = Case { kernel, grid, block, shared, args };
            case.run(&emulator, order).unwrap_or_else(|error| panic!("{order:?}: {error}"));
        };
        let out = memory.allocate(4, "out");
        let args = [Arg::Pointer(out), Arg::Int(-1), Arg::Long(10), Arg::Float(100.0), Arg::Double(1000.0)];
        run("types", 2, 32, 0, &args);
        assert_eq!(memory.bytes(out).expect("allocated"), 1109i32.to_le_bytes());

        let values: Vec<f32> = (0..256).map(|i| ((i * 37 % 101) as f32) - 50.0).collect();
        let (input, out) = (upload(&mut memory, &values), memory.allocate(4 * 256, "out"));
        run("reduce", 2, 128, 0, &[Arg::Pointer(input), Arg::Pointer(out)]);
        for (block, got) in values.chunks_exact(128).zip(floats(&memory, out).chunks_exact(3)) {
            let largest = block.iter().copied().fold(f32::MIN, f32::max);
            let positive = (0..32).map(|i| u32::from(block[i] > 0.0) << i).sum::<u32>();
            assert_eq!(got, [block.iter().sum(), largest, positive as f32]);
        }

        run("reverse", 1, 256, 1024, &[Arg::Pointer(input), Arg::Pointer(out), Arg::Int(1)]);
        assert!(floats(&memory, out).iter().eq(values.iter().rev()));

        run("copy", 1, 32, 0, &[Arg::Pointer(input), Arg::Pointer(out), Arg::Int(2)]);
        let copied = floats(&memory, out);
        assert_eq!(copied[..124], values[..124]);
        assert_eq!(copied[124..128], [0.0; 4], "a partial copy writes zeros");
        memory.check().expect("inside");
    }
}

#[test]
fn incorrect_kernels_leave_traces() {
    let (emulator, _cache) = emulator(Precision::Fp32);
    let mut memory = Memory::default();
    let input = upload(&mut memory, &[1.0; 256]);
    let out = memory.allocate(4 * 256, "out");
    let pointers = [Arg::Pointer(input), Arg::Pointer(out)];
    let mut run = |kernel, grid, block, shared, args: &[Arg], order| {
        Case { kernel, grid, block, shared, args }
            .run(&emulator, order)
            .unwrap_or_else(|error| panic!("{error}"));
        let found = floats(&memory, out);
        memory.bytes_mut(out).expect("allocated").fill(0);
        found
    };
    let nan = |values: &[f32]| values.iter().filter(|x| x.is_nan()).count();

    let reversed = [&pointers[..], &[Arg::Int(0)]].concat();
    assert!(
        nan(&run("reverse", 1, 256, 1024, &reversed, ThreadOrder::Ascending)) > 0,
        "a barrier is missing"
    );
    let late = [&pointers[..], &[Arg::Int(1)]].concat();
    assert_eq!(nan(&run("copy", 1, 32, 0, &late, ThreadOrder::Ascending)), 128, "the wait comes too late");
    let leaked = run("leak", 2, 32, 128, &pointers[1..], ThreadOrder::Ascending);
    assert_eq!(nan(&leaked), 32, "a block sees what another one left: {leaked:?}");
    let [first, last] = [ThreadOrder::Ascending, ThreadOrder::Descending]
        .map(|order| run("last_one", 1, 128, 0, &pointers[1..], order)[0].to_bits());
    assert_eq!([first, last], [3, 0], "orders show a race");

    let past = [Arg::Pointer(out), Arg::Int(256)];
    run("out_of_bounds", 1, 32, 0, &past, ThreadOrder::Ascending);
    let overrun = memory.check().expect_err("it wrote past the end");
    assert_eq!((overrun.what, overrun.side, overrun.distance), ("out", "after", 1));
}

#[test]
fn what_no_kernel_may_do_is_refused_with_block_and_thread() {
    let (emulator, _cache) = emulator(Precision::Tf32);
    let mut memory = Memory::default();
    let pointer = Arg::Pointer(memory.allocate(1024, "memory"));
    for (case, expected) in [
        (Case::new("nothing", &[]), "kernel `nothing`, there is no such kernel"),
        (Case::new("types", &[]), "kernel `types`, block (0, 0, 0): 0 arguments given, it has 5 parameters"),
        (
            Case::new("out_of_bounds", &[pointer, Arg::Long(3)]),
            "kernel `out_of_bounds`, block (0, 0, 0): argument 1 is a long long, the parameter an int",
        ),
        (
            Case { block: 48, ..Case::new("leave", &[]) },
            "kernel `leave`, block (0, 0, 0): a block has 32 to 1024 threads, a multiple of 32, not 48",
        ),
        (
            Case::new("leave", &[]),
            "kernel `leave`, block (0, 0, 0): deadlock: 32 threads wait at __syncthreads, 0 for their warp, \
             32 are done",
        ),
        (
            Case::new("leave_warp", &[pointer]),
            "kernel `leave_warp`, block (0, 0, 0): deadlock: 0 threads wait at __syncthreads, 31 for their warp at \
             __shfl_xor_sync, 33 are done",
        ),
        (
            Case::new("diverge", &[]),
            "kernel `diverge`, block (0, 0, 0), thread 16: it is at __any_sync while other lanes of its warp wait at \
             __shfl_xor_sync",
        ),
        (
            Case::new("misaligned", &[pointer]),
            "kernel `misaligned`, block (0, 0, 0), thread 0: the destination of cp.async is not aligned to 16 bytes",
        ),
        (
            Case::new("copy", &[pointer, pointer, Arg::Int(0)]),
            "kernel `copy`, block (0, 0, 0), thread 0: it ended with asynchronous copies that it did not wait for",
        ),
        (
            Case { shared: 192, ..Case::new("overflow_shared", &[]) },
            "kernel `overflow_shared`, block (0, 0, 0): something wrote 1 bytes past the 192 bytes of dynamic shared \
             memory",
        ),
    ] {
        assert_eq!(case.error(&emulator), expected);
    }
    // after all these failures it still works
    let args = [pointer, Arg::Int(1), Arg::Long(2), Arg::Float(3.0), Arg::Double(4.0)];
    Case::new("types", &args).run(&emulator, ThreadOrder::Ascending).expect("it runs");
}

#[test]
fn sources_that_do_not_compile_are_reported_with_the_compilers_messages() {
    let cache = tempfile::tempdir().expect("a temporary directory");
    let config = KernelConfig { precision: Precision::Fp32, head_size: 64, dropout: false };
    let source = "extern \"C\" __global__ void wrong() { nonsense; }";
    let emulator = Emulator::of_files(&config, kernels::HEADERS, &[("wrong.cu", source)], cache.path());
    let error = Case::new("wrong", &[]).error(&emulator);
    assert!(error.contains("wrong.cu") && error.contains("nonsense"), "{error}");
    let left = std::fs::read_dir(cache.path()).expect("it is there");
    let left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    let is_machine = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("machine-");
    assert!(left.iter().all(is_machine), "{left:?}");
}

#[test]
fn what_a_kernel_touches_is_counted_byte_by_byte() {
    let cache = tempfile::tempdir().expect("a temporary directory");
    let config = KernelConfig { precision: Precision::Fp32, head_size: 64, dropout: false };
    let emulator = Emulator::build(&config, kernels::HEADERS, SOURCES, cache.path(), true);
    let mut memory = Memory::default();
    let input = upload(&mut memory, &[1.0; 256]);
    let out = memory.allocate(4 * 256, "out");
    let watch = Watch::new(&memory);
    let pointers = [Arg::Pointer(input), Arg::Pointer(out)];
    let run = |kernel, grid, block, shared, args: &[Arg], order| {
        let launch = Launch { kernel, grid: [grid, 1, 1], block, shared, args };
        let touched = emulator.launch_watched(&launch, order, Some(&watch)).unwrap_or_else(|e| panic!("{e}"));
        [touched.read, touched.written, touched.streamed]
    };
    for order in [ThreadOrder::Ascending, ThreadOrder::Shuffled(2)] {
        let args = [&pointers[..], &[Arg::Int(1)]].concat();
        assert_eq!(run("reverse", 1, 256, 1024, &args, order), [1024, 1024, 1024]);
        // an asynchronous copy reads too; the last four numbers are zeros instead
        let args = [&pointers[..], &[Arg::Int(2)]].concat();
        assert_eq!(run("copy", 1, 32, 0, &args, order)[..2], [496, 512]);
        // three times by each of two blocks, with a barrier after the second time: memory has each byte once
        assert_eq!(run("read_thrice", 2, 64, 0, &pointers, order), [256, 4, 2 * 2 * 256]);
        // what it has written itself it does not read from memory
        assert_eq!(run("write_then_read", 1, 64, 0, &pointers[1..], order), [0, 256, 0]);
    }
}
