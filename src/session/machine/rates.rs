//! Rates of arithmetic and of copies, measured rather than looked up. Arithmetic is in operations per second, copies
//! in bytes per second.

use super::{Cache, peaks};
use crate::cuda::{DeviceInfo, Libraries};
use crate::engine::EngineError;
use crate::engine::cpu::peak;
use crate::engine::cuda::device::{Address, Device, Fused, Operand, Product};
use crate::engine::cuda::gpu::Gpu;
use crate::engine::memory::Element;
use crate::recipe::Precision;
use serde::Serialize;
use std::time::Instant;

/// Rates of the processor, all threads together.
#[derive(Serialize)]
pub struct CpuRates {
    /// Fused multiply-adds on registers: the highest rate ever measured.
    pub fp32_peak: f64,
    /// A large matrix product.
    pub matmul_fp32: f64,
    /// Copies in memory, each byte counted once.
    pub copy: f64,
}

/// Rates of a CUDA device.
#[derive(Serialize)]
pub struct GpuRates {
    /// Rows and columns of the matrices that were multiplied.
    pub matmul_size: usize,
    /// Their product in bf16, in operations per second.
    pub matmul_bf16: f64,
    /// Their product in tf32, in operations per second.
    pub matmul_tf32: f64,
    /// Their product in fp32, in operations per second.
    pub matmul_fp32: f64,
    /// Copies from pinned memory to the device, in bytes per second.
    pub copy_to: f64,
    /// Copies from the device to ordinary memory, in bytes per second.
    pub copy_from: f64,
    /// Copies on the device, in bytes per second, each byte counted once.
    pub copy_on: f64,
}

/// Measures the processor with so many threads. The peak is the highest that `cache` remembers, or a higher one.
pub fn cpu(threads: usize, cache: &Cache) -> CpuRates {
    CpuRates {
        fp32_peak: peaks::of_processor(threads, cache).flops,
        matmul_fp32: peak::matmul_rate(threads),
        copy: peak::copy_bandwidth(threads),
    }
}

/// Measures a CUDA device through the calls that training makes.
///
/// # Errors
/// Where the device fails or has too little free memory.
pub fn gpu(libraries: &Libraries, info: &DeviceInfo) -> Result<GpuRates, EngineError> {
    let open = |precision| Gpu::open_with(libraries, info.index, precision, None, None);
    let mut device = open(Precision::Bf16)?;
    let (free, _) = device.memory()?;
    // the largest for which two factors and a result take a quarter of what is free
    let fits = |&size: &usize| 3 * 4 * size * size <= free / 4;
    let size = [8192, 4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(fits)
        .ok_or_else(|| EngineError::Device(format!("only {} MiB of its memory are free", free >> 20)))?;
    let [copy_to, copy_from, copy_on] = copies(&mut device, (free / 8).min(256 << 20) / 4096 * 4096)?;
    let matmul_bf16 = product(&mut device, size, Element::Half)?;
    drop(device);
    let matmul_tf32 = product(&mut open(Precision::Tf32)?, size, Element::F32)?;
    let matmul_fp32 = product(&mut open(Precision::Fp32)?, size, Element::F32)?;
    Ok(GpuRates { matmul_size: size, matmul_bf16, matmul_tf32, matmul_fp32, copy_to, copy_from, copy_on })
}

/// Bytes per second that readers get: of the memory of a CUDA device, taken from copies on it, of which each byte is
/// read and written, or of the machine's, with so many threads.
///
/// # Errors
/// Where the device fails or has too little free memory.
pub fn read_bandwidth(cuda: Option<usize>, threads: usize) -> Result<f64, EngineError> {
    let Some(index) = cuda else { return Ok(peak::read_bandwidth(threads)) };
    let mut device = Gpu::open_with(Libraries::get(), index, Precision::Fp32, None, None)?;
    let (free, _) = device.memory()?;
    let [.., copy_on] = copies(&mut device, (free / 8).min(256 << 20) / 4096 * 4096)?;
    Ok(2.0 * copy_on)
}

/// Seconds of one of several repetitions, after one that is not counted.
fn time(
    device: &mut Gpu,
    mut once: impl FnMut(&mut Gpu) -> Result<(), EngineError>,
) -> Result<f64, EngineError> {
    const TIMES: u32 = 8;
    once(device)?;
    device.synchronize()?;
    let start = Instant::now();
    for _ in 0..TIMES {
        once(device)?;
    }
    device.synchronize()?;
    Ok(start.elapsed().as_secs_f64() / f64::from(TIMES))
}

/// Bytes per second to the device, from it, on it.
fn copies(device: &mut Gpu, bytes: usize) -> Result<[f64; 3], EngineError> {
    let (one, two) = (device.allocate(bytes, "a copy")?, device.allocate(bytes, "a copy")?);
    let words = vec![0x5555_5555_u32; bytes / 4];
    // filling pinned memory is the processor's work, so only the copies that follow are counted
    let mut seconds_to = f64::INFINITY;
    for _ in 0..4 {
        device.stage(0, &words)?;
        let start = Instant::now();
        device.synchronize()?;
        seconds_to = seconds_to.min(start.elapsed().as_secs_f64());
    }
    device.take(0, one)?;
    let mut host = vec![0; bytes];
    let from = time(device, |device| device.read(one, &mut host))?;
    let on = time(device, |device| device.copy(one, two, bytes))?;
    Ok([seconds_to, from, on].map(|seconds| bytes as f64 / seconds))
}

/// Operations per second of a product of square matrices of numbers between -1 and 1.
fn product(device: &mut Gpu, size: usize, element: Element) -> Result<f64, EngineError> {
    let bytes = size * size * element.bytes();
    let [a, b, out] = ["a factor", "a factor", "a product"].map(|what| device.allocate(bytes, what));
    let (a, b, out) = (a?, b?, out?);
    // devices are faster on zeros, which is not what matrices are made of
    let value = |i: usize| ((i * 2_654_435_761) >> 7) as u16;
    let numbers: Vec<u8> = match element {
        // bf16 of random sign and mantissa, and the exponent of 1/4
        Element::Half => (0..size * size).flat_map(|i| (value(i) & 0x807F | 0x3E80).to_ne_bytes()).collect(),
        Element::F32 => {
            (0..size * size).flat_map(|i| (f32::from(value(i)) / 32768.0 - 1.0).to_ne_bytes()).collect()
        }
    };
    device.write(a, &numbers)?;
    device.write(b, &numbers)?;
    let operand =
        |address: Address, transposed| Operand { address, element, stride: size, stack: 0, transposed };
    let product = Product {
        m: size,
        n: size,
        k: size,
        count: 1,
        a: operand(a, false),
        b: operand(b, true),
        out: operand(out, false),
        alpha: 1.0,
        accumulate: false,
        fused: Fused::None,
        tf32: None,
    };
    let seconds = time(device, |device| device.product(&product))?;
    Ok(2.0 * (size as f64).powi(3) / seconds)
}
