//! The driver's calls, each alone: context, memory, copies, events, recordings.

use super::{Tell, attempt, text};
use crate::cuda::{Context, Event, Libraries, Memory, Pinned, Stream};
use crate::engine::cuda::device::{Address, Arg, Device, Fused, KernelConfig, Launch, Operand, Product};
use crate::engine::cuda::gpu::Gpu;
use crate::engine::memory::Element;
use crate::recipe::Precision;
use std::path::Path;
use std::rc::Rc;

/// Bytes of the copies.
const BYTES: usize = 1 << 20;

/// Tries what needs no kernel.
pub(super) fn run(libraries: &Libraries, index: usize, tell: &mut Tell) {
    attempt(tell, "context and free memory", || {
        let (free, total) = libraries.memory(index).map_err(|missing| missing.to_string())?;
        Ok(format!("{} of {} MiB are free", free >> 20, total >> 20))
    });
    let open = || -> Result<Rc<Context>, String> {
        let info = libraries.require_device(index).map_err(|missing| missing.to_string())?;
        Context::open(libraries, &info).map_err(text)
    };
    attempt(tell, "copies from and to pinned memory", || {
        let context = open()?;
        let (stream, copied) = (Stream::new(&context).map_err(text)?, Event::new(&context).map_err(text)?);
        let mut pinned = Pinned::new(&context, BYTES).map_err(text)?;
        pinned.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
        let memory = Memory::new(&context, BYTES, "a copy").map_err(text)?;
        stream.upload(&pinned, 0..BYTES, memory.address()).map_err(text)?;
        copied.record(&stream).map_err(text)?;
        copied.synchronize().map_err(text)?;
        let mut back = vec![0; BYTES];
        stream.download(memory.address(), &mut back).map_err(text)?;
        match back == pinned.as_bytes() {
            true => Ok(format!("{} KiB came back unchanged", BYTES >> 10)),
            false => Err("what came back differs from what was sent".to_owned()),
        }
    });
    attempt(tell, "the device's clock", || {
        let context = open()?;
        let stream = Stream::new(&context).map_err(text)?;
        let memory = Memory::new(&context, BYTES, "a copy").map_err(text)?;
        let (begin, end) = (Event::timed(&context).map_err(text)?, Event::timed(&context).map_err(text)?);
        begin.record(&stream).map_err(text)?;
        stream.clear(memory.address(), BYTES).map_err(text)?;
        end.record(&stream).map_err(text)?;
        end.synchronize().map_err(text)?;
        let seconds = begin.seconds_to(&end).map_err(text)?;
        match seconds > 0.0 {
            true => Ok(format!("clearing 1 MiB took {:.1} us", seconds * 1e6)),
            false => Err(format!("clearing 1 MiB took {seconds} s by events")),
        }
    });
    attempt(tell, "rows staged beside the stream", || {
        let mut gpu = Gpu::open_with(libraries, index, Precision::Fp32, None, None).map_err(text)?;
        let at = gpu.allocate(BYTES, "rows").map_err(text)?;
        let mut word = [0; 4];
        for step in 0..4_u32 {
            let slot = step as usize % 2;
            gpu.stage(slot, &vec![step; BYTES / 4]).map_err(text)?;
            gpu.take(slot, at).map_err(text)?;
            gpu.read(at.offset(BYTES - 4), &mut word).map_err(text)?;
            if u32::from_ne_bytes(word) != step {
                return Err(format!("step {step} finds the rows of step {}", u32::from_ne_bytes(word)));
            }
        }
        Ok("4 steps found their own rows".to_owned())
    });
}

/// Records a clearing, a product and a kernel, and plays them.
pub(super) fn recording(libraries: &Libraries, index: usize, cache: &Path, tell: &mut Tell) {
    const SIDE: usize = 64;
    attempt(tell, "a CUDA graph of a clearing, a product and a kernel", || {
        let config = KernelConfig { precision: Precision::Fp32, head_size: 64, dropout: false };
        let mut gpu = Gpu::open(libraries, index, &config, Some(cache)).map_err(text)?;
        let ones: Vec<u8> = (0..SIDE * SIDE).flat_map(|_| 1f32.to_ne_bytes()).collect();
        let mut place = || -> Result<Address, String> {
            let at = gpu.allocate(ones.len(), "a matrix").map_err(text)?;
            gpu.write(at, &ones).map_err(text)?;
            Ok(at)
        };
        let (factor, out, cleared) = (place()?, place()?, place()?);
        let operand = |address| {
            let (element, stride, stack, transposed) = (Element::F32, SIDE, 0, false);
            Operand { address, element, stride, stack, transposed }
        };
        let product = Product {
            m: SIDE,
            n: SIDE,
            k: SIDE,
            count: 1,
            a: operand(factor),
            b: operand(factor),
            out: operand(out),
            alpha: 1.0,
            accumulate: true,
            fused: Fused::None,
            tf32: None,
        };
        // adds the first row of the factor, which is all ones, to each row of the result
        let args = [Arg::Pointer(out), Arg::Pointer(factor), Arg::Int(SIDE as i32)];
        let kernel =
            Launch { kernel: "add_bias", grid: [SIDE as u32, 1, 1], block: 128, shared: 0, args: &args };
        let sequence = |gpu: &mut Gpu| {
            gpu.clear(cleared, ones.len())?;
            gpu.product(&product)?;
            gpu.launch(&kernel)
        };
        sequence(&mut gpu).map_err(text)?;
        if !gpu.begin_recording().map_err(text)? {
            return Err("the device does not record".to_owned());
        }
        sequence(&mut gpu).map_err(text)?;
        let Some(recording) = gpu.end_recording().map_err(text)? else {
            return Err(gpu.notes().join("; "));
        };
        for _ in 0..2 {
            gpu.play(recording).map_err(text)?;
        }
        let mut found = vec![0; ones.len()];
        gpu.read(out, &mut found).map_err(text)?;
        let expected = 1.0 + 3.0 * (SIDE as f32 + 1.0);
        let wrong = found.as_chunks::<4>().0.iter().map(|x| f32::from_ne_bytes(*x)).find(|x| *x != expected);
        if let Some(wrong) = wrong {
            return Err(format!("launched once and played twice, an element is {wrong}, not {expected}"));
        }
        gpu.read(cleared, &mut found).map_err(text)?;
        match found.iter().all(|byte| *byte == 0) {
            true => Ok("launched once and played twice".to_owned()),
            false => Err("memory was not cleared".to_owned()),
        }
    });
}
