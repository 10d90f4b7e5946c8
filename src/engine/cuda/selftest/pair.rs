//! A CUDA backend and a CPU backend with equal memory.

use super::stream_gradient;
use crate::engine::Batch;
use crate::engine::EngineError;
use crate::engine::cpu::{self, CpuEngine};
use crate::engine::cuda::CudaBackend;
use crate::engine::cuda::device::Device;
use crate::engine::dropout::{Dropout, Site};
use crate::engine::fused::backend::Backend;
use crate::engine::memory::{Activations, Buffer, MemoryConfig, MemoryPlan, Mode, Span, Target};
use crate::engine::optimizer::OptimizerKind;
use crate::model::Dims;
use crate::model::init::random_bits;
use crate::recipe::{Attention, Precision, Residual};

/// Sequences of a batch: so many that slices of rows hold whole positions.
const ROWS: usize = 4;

/// The training row that the batch begins with: its number changes in both halves within the batch.
const FIRST_ROW: u64 = (2 << 32) - 2;

/// Where something lies in a plan.
pub type Place<'a> = &'a dyn Fn(&MemoryPlan) -> Span;

/// Both backends, with random parameters, gradients and moments, and a batch.
pub struct Pair<D> {
    /// Sequences of the batch.
    rows: usize,
    /// The dimensions of the model.
    pub dims: Dims,
    /// The precision of matrix products.
    pub precision: Precision,
    /// The attention that both were planned for.
    pub attention: Attention,
    /// How the device stores the residual stream; the CPU has it in fp32.
    pub residual: Residual,
    /// What both leave out.
    pub dropout: Option<Dropout>,
    cuda: (CudaBackend<D>, MemoryPlan),
    cpu: (CpuEngine, MemoryPlan),
    /// How many times the usual bound a difference may be.
    slack: f32,
    key: u64,
}

impl<D: Device> Pair<D> {
    /// Allocates both. `slack` is 1 for a device that computes as the emulator does, and more for one with other
    /// orders of sums and other exponentials.
    ///
    /// # Errors
    /// When memory cannot be had, or the device fails.
    pub fn new(
        dims: Dims,
        precision: Precision,
        attention: Attention,
        activations: Activations,
        device: D,
        slack: f32,
    ) -> Result<Self, EngineError> {
        Self::of_rows(ROWS, dims, precision, attention, activations, device, slack)
    }

    /// [`new`](Self::new) with so many sequences.
    ///
    /// # Errors
    /// Those of `new`.
    pub fn of_rows(
        rows: usize,
        dims: Dims,
        precision: Precision,
        attention: Attention,
        activations: Activations,
        device: D,
        slack: f32,
    ) -> Result<Self, EngineError> {
        let plan = |target| {
            let (micro_batch, mode) = (rows, Mode::Train(OptimizerKind::AdamW));
            MemoryPlan::new(MemoryConfig {
                dims,
                micro_batch,
                precision,
                attention,
                target,
                mode,
                activations,
            })
        };
        let (cuda, cpu) = (plan(Target::Cuda), plan(Target::Cpu { threads: 1 }));
        let backend = CudaBackend::new(&cuda, device)?;
        let cpu = (cpu::engine(cpu.clone())?, cpu);
        let Activations { residual, dropout, .. } = activations;
        let cuda = (backend, cuda);
        let mut pair = Self { rows, dims, precision, attention, residual, dropout, cuda, cpu, slack, key: 1 };
        let n = pair.tokens();
        let inputs: Vec<u32> = (0..n).map(|i| (random_bits(9, i as u64) % 31) as u32).collect();
        let targets: Vec<u32> = inputs.iter().map(|token| token * 9 + 22).collect();
        pair.each(|backend, _| {
            let batch = Batch {
                inputs: &inputs,
                targets: &targets,
                rows,
                cols: dims.block_size,
                first_row: FIRST_ROW,
            };
            backend.upload(&batch, 0.01);
        });
        for buffer in [Buffer::Parameters, Buffer::Gradients, Buffer::Optimizer(0)] {
            pair.fill(&|plan| plan.whole(buffer), false).map_err(EngineError::Device)?;
        }
        pair.each(|backend, _| backend.refresh_low());
        Ok(pair)
    }

    /// The site if something is left out.
    pub fn drops_at(&self, site: Site) -> Option<Site> {
        self.dropout.map(|_| site)
    }

    /// Whether the device's residual stream lacks biases.
    pub fn lacks_biases(&self) -> bool {
        self.cuda.1.arena.lacks.is_some()
    }

    /// Sequences of the batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Tokens of the batch.
    pub fn tokens(&self) -> usize {
        self.rows * self.dims.block_size
    }

    /// The device, and the plan of its memory.
    pub fn device_mut(&mut self) -> (&mut D, &MemoryPlan) {
        (self.cuda.0.device_mut(), &self.cuda.1)
    }

    /// Does the same on both.
    pub fn each(&mut self, mut run: impl FnMut(&mut dyn Backend, &MemoryPlan)) {
        run(&mut self.cuda.0, &self.cuda.1);
        run(self.cpu.0.inner_mut().backend_mut(), &self.cpu.1);
    }

    /// Does the same on both and returns what came of it on the CUDA device, and on the CPU.
    ///
    /// # Errors
    /// The failure of either, as text.
    pub fn both<T>(
        &mut self,
        mut run: impl FnMut(&mut dyn Backend, &MemoryPlan) -> Result<T, EngineError>,
    ) -> Result<[T; 2], String> {
        let cuda = run(&mut self.cuda.0, &self.cuda.1).map_err(|error| error.to_string())?;
        let cpu =
            run(self.cpu.0.inner_mut().backend_mut(), &self.cpu.1).map_err(|error| error.to_string())?;
        Ok([cuda, cpu])
    }

    /// Fills both sides with the same random numbers; `operands` are rounded.
    ///
    /// # Errors
    /// The device's failure, as text.
    pub fn fill(&mut self, place: Place, operands: bool) -> Result<(), String> {
        self.key += 1;
        let (key, precision) = (self.key, if operands { self.precision } else { Precision::Fp32 });
        self.both(|backend, plan| {
            let span = place(plan);
            let values: Vec<f32> = (0..span.len).map(|i| rounded(precision, random(key, i))).collect();
            backend.write(span, &values)
        })?;
        Ok(())
    }

    /// Fills the gradient of the residual stream on both sides, however it is stored; `operands` are rounded.
    ///
    /// # Errors
    /// The device's failure, as text.
    pub fn fill_gradient(&mut self, operands: bool) -> Result<(), String> {
        self.key += 1;
        let (key, precision) = (self.key, if operands { self.precision } else { Precision::Fp32 });
        self.both(|backend, plan| {
            let count = plan.arena.dx.map_or(0, |dx| dx.len);
            let values: Vec<f32> = (0..count).map(|i| rounded(precision, random(key, i))).collect();
            stream_gradient::write(backend, plan, &values)
        })?;
        Ok(())
    }

    /// The gradient of the residual stream of the CUDA device, and of the CPU.
    ///
    /// # Errors
    /// The device's failure, as text.
    pub fn read_gradient(&mut self) -> Result<[Vec<f32>; 2], String> {
        self.both(stream_gradient::read)
    }

    /// The contents of a CUDA buffer, and of the CPU's.
    ///
    /// # Errors
    /// The device's failure, as text.
    pub fn read(&mut self, place: Place) -> Result<[Vec<f32>; 2], String> {
        self.both(|backend, plan| Ok(backend.download(place(plan))?.into_owned()))
    }

    /// Compares by the largest difference divided by the largest number.
    ///
    /// # Errors
    /// Where they differ by more than the bound, as text that says where.
    pub fn compare(&mut self, what: &str, place: Place, bound: f32) -> Result<(), String> {
        let read = self.read(place)?;
        self.are_close(what, read, bound)
    }

    /// Compares numbers of the CUDA device with those of the CPU as [`compare`](Self::compare) does.
    ///
    /// # Errors
    /// As there.
    pub fn are_close(&self, what: &str, [a, b]: [Vec<f32>; 2], bound: f32) -> Result<(), String> {
        let largest = b.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        if a.len() != b.len() || !(largest > 0.0 && b.iter().all(|x| x.is_finite())) {
            return Err(format!("{what}: there is nothing to compare"));
        }
        let bound = bound * self.slack * largest;
        // a NaN is not close
        let is_close = |i: usize| (a[i] - b[i]).abs() <= bound;
        let wrong = (0..a.len()).find(|&i| !is_close(i));
        match wrong {
            None => Ok(()),
            Some(at) => Err(format!(
                "{what}: {} instead of {} at {at} of {}, the bound is {bound:e}",
                a[at],
                b[at],
                a.len()
            )),
        }
    }
}

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

/// One rounding step of the operands' precision, relative to the largest number: two neighbours may both be right.
pub fn step(precision: Precision) -> f32 {
    match precision {
        Precision::Fp32 => 2e-6,
        Precision::Tf32 | Precision::Fp16 => 2f32.powi(-10),
        Precision::Bf16 => 2f32.powi(-7),
    }
}
