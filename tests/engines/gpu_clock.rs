//! The device's clock, its memory as it is measured, and names for profilers, over fake libraries.

use crate::cuda_support;

use cuda_support::Fakes;
use runner::cuda::compile::Program;
use runner::cuda::nvtx::Ranges;
use runner::engine::cuda::device::{Address, Arg, Device, Launch};
use runner::engine::cuda::gpu::Gpu;
use runner::engine::traffic::Mark;
use runner::recipe::Precision;
use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

const NOTHING: Program = Program { unit: "", files: &[], options: &[] };

fn open(fakes: &Fakes) -> Gpu {
    Gpu::open_with(&fakes.libraries(), 0, Precision::Fp32, Some(&NOTHING), None).expect("a device")
}

/// `y[0] += x[0]`.
fn add(gpu: &mut Gpu, y: Address, x: Address) {
    let args = [Arg::Pointer(y), Arg::Int(1), Arg::Double(1.0), Arg::Pointer(x), Arg::Float(0.0)];
    gpu.launch(&Launch { kernel: "axpy", grid: [1; 3], block: 32, shared: 0, args: &args })
        .expect("launched");
}

fn mark(gpu: &mut Gpu) -> Mark {
    gpu.mark().expect("a device that works").expect("it has a clock")
}

#[test]
fn moments_are_read_after_one_wait_and_then_forgotten() {
    let fakes = Fakes::whole(&[]);
    let mut gpu = open(&fakes);
    let [x, y] = [(); 2].map(|()| gpu.allocate(4, "numbers").expect("memory"));
    gpu.write(x, &1.0f32.to_ne_bytes()).expect("written");
    for _ in 0..2 {
        let pairs: Vec<_> = (0..3)
            .map(|_| {
                let begin = mark(&mut gpu);
                add(&mut gpu, y, x);
                (begin, mark(&mut gpu))
            })
            .collect();
        // the fake tells a shorter time whenever it is asked, and refuses events that have not passed
        let seconds = Device::seconds(&mut gpu, &pairs).expect("all has passed");
        assert!(seconds.len() == 3 && seconds[0] > seconds[1] && seconds[1] > seconds[2], "{seconds:?}");
        assert!(Device::seconds(&mut gpu, &pairs).is_err(), "they are forgotten");
    }
    let mut bytes = [0; 4];
    gpu.read(y, &mut bytes).expect("read");
    assert_eq!(f32::from_ne_bytes(bytes), 6.0, "what was measured was carried out");
    assert_eq!(Device::seconds(&mut gpu, &[]).expect("nothing to wait for"), [0.0; 0]);
    // a recording is passed whenever it is played, so no moment is part of it
    assert!(gpu.begin_recording().expect("it records"));
    assert_eq!(gpu.mark().expect("no failure"), None);
    add(&mut gpu, y, x);
    assert!(gpu.end_recording().expect("it ends").is_some());
}

#[test]
fn memory_is_measured_and_not_only_planned() {
    let fakes = Fakes::whole(&[]);
    let mut gpu = open(&fakes);
    let before = gpu.memory_taken().expect("the driver tells");
    gpu.allocate(5 << 20, "activations").expect("memory");
    assert_eq!(gpu.memory_taken().expect("the driver tells") - before, 5 << 20);
}

#[test]
fn a_profiler_gets_the_names_of_ranges() {
    let fakes = Fakes::new();
    let path = fakes.nvtx(&[]);
    let ranges = Ranges::injected(&path).expect("a profiler");
    ranges.push("attention_forward");
    ranges.push("inner");
    ranges.pop();
    // SAFETY: the test's own library, which is loaded already.
    let profiler = unsafe { libloading::Library::new(&path) }.expect("it is loaded");
    let number = |name: &[u8]| {
        // SAFETY: the library defines these functions with this type.
        unsafe { profiler.get::<unsafe extern "C" fn() -> c_int>(name).expect("a function")() }
    };
    assert_eq!([number(b"fake_pushed"), number(b"fake_open")], [2, 1]);
    // SAFETY: the library defines this function with this type, and returns a text that stays.
    let last = unsafe {
        let last = profiler.get::<unsafe extern "C" fn() -> *const c_char>(b"fake_last").expect("a function");
        CStr::from_ptr(last())
    };
    assert_eq!(last.to_str(), Ok("inner"));
    ranges.pop();
    assert_eq!(number(b"fake_open"), 0);
    assert!(Ranges::injected(Path::new("/nowhere/libprofiler.so")).is_none());
}
