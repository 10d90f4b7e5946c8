//! How long a training step should take on a CUDA device at assumed rates, kernel by kernel: a model.
//!
//! Each launch takes the longer of two times (Williams, Waterman and Patterson, 2009): its bytes at the bandwidth of
//! the memory, and its operations at the rate of the unit that computes them; and the gap before the next launch. What
//! the launches are comes from the engine itself, which issues them on a device that does nothing.

use super::Plan;
use crate::engine::EngineError;
use crate::engine::cuda::paper::{Outline, outline};
use crate::engine::memory::{MemoryConfig, MemoryPlan, OptimizerShard, Recompute, Target};
use crate::engine::optimizer::{OptimizerKind, muon};
use crate::engine::traffic::{Noted, Traffic, Unit};
use crate::plan::hardware::{CudaDevice, Hardware, for_cuda};
use crate::recipe::{EngineKind, Precision};
use serde::Serialize;
use std::collections::HashMap;

/// What a device could do at most, as published.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Its name.
    pub device: String,
    /// Compute capability, major number.
    pub major: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of shared memory that a block may have.
    pub shared_per_block: u32,
    /// Bytes of memory per second.
    pub bandwidth: f64,
    /// Operations per second of matrix products: of 16-bit operands, of tf32, and of fp32 without tensor cores.
    pub peaks: [f64; 3],
}

impl Limits {
    /// A model of which there is a data sheet here, by its short name.
    pub fn named(name: &str) -> Option<Self> {
        // data sheets of H100 SXM, H200 SXM, A100 SXM 80 GB, and the white paper of the Ada architecture
        let (device, major, [gb, shared], bandwidth, peaks) = match name {
            "h100" => ("H100 SXM", 9, [80, 227], 3.35, [989.4, 494.7, 66.9]),
            "h200" => ("H200 SXM", 9, [141, 227], 4.8, [989.4, 494.7, 66.9]),
            "a100" => ("A100 SXM 80 GB", 8, [80, 163], 2.039, [312.0, 156.0, 19.5]),
            "rtx4090" => ("GeForce RTX 4090", 8, [24, 99], 1.008, [165.2, 82.6, 82.6]),
            _ => return None,
        };
        let (memory, shared_per_block) = (gb * 1_000_000_000, (shared as u32) << 10);
        let peaks = peaks.map(|tera| tera * 1e12);
        Some(Self {
            device: device.to_owned(),
            major,
            memory,
            shared_per_block,
            bandwidth: bandwidth * 1e12,
            peaks,
        })
    }

    /// A host like this one with such a device, all of whose memory is free.
    pub fn hardware(&self, host: &Hardware) -> Hardware {
        let bytes = self.memory as usize;
        let name = self.device.clone();
        let cuda = CudaDevice { index: 0, name, total_memory: bytes, free_memory: bytes };
        Hardware { cuda: Some(cuda), ..host.clone() }
    }
}

/// The rates that a model assumes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Assumed {
    /// Bytes of memory per second.
    pub bytes_per_s: f64,
    /// Operations per second of the library's products.
    pub product_flops: f64,
    /// Operations per second of attention in tiles, forward.
    pub attention_forward_flops: f64,
    /// Operations per second of attention in tiles, backward.
    pub attention_backward_flops: f64,
    /// Operations per second of all other kernels.
    pub kernel_flops: f64,
    /// Microseconds from the end of a launch to the beginning of the next one, in a recording.
    pub gap_us: f64,
}

impl Assumed {
    /// The shares of a device's limits that kernels reach.
    pub fn of(limits: &Limits, precision: Precision) -> Self {
        let [half, tf32, fp32] = limits.peaks;
        let peak = match precision {
            Precision::Bf16 | Precision::Fp16 => half,
            Precision::Tf32 => tf32,
            Precision::Fp32 => fp32,
        };
        let (product, forward, backward) = match (limits.major, precision) {
            // attention without tensor cores is bound by shared memory
            (_, Precision::Fp32) => (0.8, 0.3, 0.25),
            // of 989 TFLOP/s on H100, cuBLASLt reaches 770 to 798 with cubes of 8192 and some 640 with the shapes of a
            // small model; mma.sync, the instruction of our attention, reaches two thirds of what wgmma does, and
            // attention with heads of 64 over 1024 keys a third of that
            (9.., _) => (640.0 / 989.4, 190.0 / 989.4, 170.0 / 989.4),
            // mma.sync is the fastest instruction there; FlashAttention-2 (Dao, 2023) reaches half of an A100's peak
            // and more with longer rows
            _ => (0.8, 0.4, 0.35),
        };
        Self {
            // 3.0 of 3.35 TB/s were measured on H100
            bytes_per_s: 3.0 / 3.35 * limits.bandwidth,
            product_flops: product * peak,
            attention_forward_flops: forward * peak,
            attention_backward_flops: backward * peak,
            kernel_flops: 0.5 * fp32,
            gap_us: 2.0,
        }
    }

    /// Seconds of one launch with the gap after it, and whether its bytes or its operations take longer. The time on
    /// the connection between devices is left out.
    pub fn seconds(&self, traffic: &Traffic) -> (f64, Bound) {
        let rate = match traffic.unit {
            Unit::Cores => self.kernel_flops,
            Unit::Products => self.product_flops,
            Unit::AttentionForward => self.attention_forward_flops,
            Unit::AttentionBackward => self.attention_backward_flops,
            Unit::Link => return (0.0, Bound::Link),
        };
        let (memory, compute) = (traffic.bytes() as f64 / self.bytes_per_s, traffic.operations as f64 / rate);
        let gap = self.gap_us * 1e-6;
        let bound = match memory.max(compute) {
            longest if longest < gap => Bound::Gap,
            longest if longest > memory => Bound::Compute,
            _ => Bound::Memory,
        };
        (memory.max(compute) + gap, bound)
    }
}

/// What takes the most time of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Its bytes.
    Memory,
    /// Its operations.
    Compute,
    /// The gap before the next launch.
    Gap,
    /// The connection between devices, which is not modelled.
    Link,
}

/// All launches of one kernel, or all products of one shape, in an optimizer step of one rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelTime {
    /// The kernel's name, or the product's shape.
    pub name: String,
    /// Launches.
    pub launches: usize,
    /// Bytes from and to memory.
    pub bytes: u64,
    /// Operations.
    pub flops: u64,
    /// Milliseconds by the model.
    pub ms: f64,
    /// What takes the most of them.
    pub bound: Bound,
    /// Milliseconds by the device's clock, where it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_ms: Option<f64>,
}

impl KernelTime {
    /// Adds up launches by name, those that take longest first. Each list is launched so many times.
    pub fn by_name(lists: &[(&[Noted], usize)], assumed: &Assumed) -> Vec<Self> {
        let mut kernels: Vec<Self> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (noted, times) in
            lists.iter().flat_map(|(list, times)| list.iter().map(move |noted| (noted, *times)))
        {
            if times == 0 {
                continue;
            }
            let (seconds, bound) = assumed.seconds(&noted.traffic);
            let place = *places.entry(&noted.name).or_insert(kernels.len());
            if place == kernels.len() {
                let name = noted.name.clone().into_owned();
                kernels.push(Self {
                    name,
                    launches: 0,
                    bytes: 0,
                    flops: 0,
                    ms: 0.0,
                    bound,
                    measured_ms: None,
                });
            }
            let kernel = &mut kernels[place];
            kernel.launches += times;
            kernel.bytes += noted.traffic.bytes() * times as u64;
            kernel.flops += noted.traffic.operations * times as u64;
            kernel.ms += seconds * 1e3 * times as f64;
            if let Some(seconds) = noted.seconds {
                *kernel.measured_ms.get_or_insert(0.0) += seconds * 1e3 * times as f64;
            }
        }
        let longest = |kernel: &Self| kernel.measured_ms.unwrap_or(kernel.ms);
        kernels.sort_by(|a, b| longest(b).total_cmp(&longest(a)));
        kernels
    }
}

/// The modelled step of one rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Roofline {
    /// The device.
    pub device: String,
    /// What kind of statement this is.
    pub kind: &'static str,
    /// Whether the figures are those of one rank among several, without the time in which gradients are added up.
    pub without_sums: bool,
    /// The rates that were assumed.
    pub assumed: Assumed,
    /// Sequences per forward pass.
    pub micro_batch: usize,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// Whether the outputs of LayerNorm and GELU are kept for it, as far as `recompute` leaves them.
    pub keeps_outputs: bool,
    /// Bytes that the step takes of the device, on the rank that needs the most.
    pub total_bytes: usize,
    /// Bytes that the device has.
    pub device_bytes: u64,
    /// Whether the one is no more than the other.
    pub fits: bool,
    /// Forward and backward passes of a step.
    pub micro_steps: usize,
    /// Milliseconds of one of them.
    pub micro_step_ms: f64,
    /// Milliseconds of the update.
    pub update_ms: f64,
    /// Milliseconds of the step.
    pub step_ms: f64,
    /// Tokens per second of one rank.
    pub tokens_per_s: f64,
    /// Launches of the step.
    pub launches: usize,
    /// Every kernel and every shape of a product, those that take longest first; for the step.
    pub kernels: Vec<KernelTime>,
}

impl Roofline {
    /// Models a step of a plan, whichever device the plan is for, on a CUDA device with these limits.
    ///
    /// # Errors
    /// Where the CUDA engine cannot train this model.
    pub fn new(plan: &Plan, limits: &Limits) -> Result<Self, EngineError> {
        let config = MemoryConfig { target: Target::Cuda, ..plan.memory };
        let config =
            super::need::keeping_outputs(EngineKind::Fused, config, plan.shard, for_cuda(limits.memory));
        let memory = MemoryPlan::new(config);
        let total_bytes = memory.clone().largest_share(plan.shard.count).total_bytes();
        // the others wait for the rank with the most matrices
        let index = match (memory.optimizer(), plan.shard.count) {
            (Some(OptimizerKind::Muon), 2..) => muon::busiest(&memory.layout, plan.shard.count),
            _ => plan.shard.index,
        };
        let memory = memory.sharded(OptimizerShard { index, ..plan.shard });
        let outline = outline(&memory, plan.ranks.world_size, limits.shared_per_block)?;
        let tokens = plan.batch.tokens_per_step / plan.ranks.world_size;
        let assumed = Assumed::of(limits, plan.memory.precision);
        let mut roofline = Self::of(&outline, plan.batch.micro_steps, tokens, assumed);
        roofline.device.clone_from(&limits.device);
        roofline.without_sums = plan.ranks.world_size > 1;
        roofline.micro_batch = config.micro_batch;
        roofline.recompute = config.recompute();
        roofline.keeps_outputs = config.keeps_outputs();
        roofline.total_bytes = total_bytes;
        roofline.device_bytes = limits.memory;
        roofline.fits = total_bytes as u64 <= limits.memory;
        Ok(roofline)
    }

    fn of(outline: &Outline, micro_steps: usize, tokens: usize, assumed: Assumed) -> Self {
        let Outline { micro_step, last_micro_step, update } = outline;
        let lists = [(&micro_step[..], micro_steps - 1), (last_micro_step, 1), (update, 1)];
        let ms =
            |list: &[Noted]| list.iter().map(|noted| assumed.seconds(&noted.traffic).0 * 1e3).sum::<f64>();
        let [micro_step_ms, update_ms] = [micro_step, update].map(|list| ms(list));
        let step_ms = lists.iter().map(|(list, times)| ms(list) * *times as f64).sum::<f64>();
        Self {
            device: String::new(),
            kind: "model",
            without_sums: false,
            assumed,
            micro_batch: 0,
            recompute: Recompute::None,
            keeps_outputs: false,
            total_bytes: 0,
            device_bytes: 0,
            fits: true,
            micro_steps,
            micro_step_ms,
            update_ms,
            step_ms,
            tokens_per_s: tokens as f64 / step_ms * 1e3,
            launches: lists.iter().map(|(list, times)| list.len() * times).sum(),
            kernels: KernelTime::by_name(&lists, &assumed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assumed() -> Assumed {
        Assumed::of(&Limits::named("h100").expect("a data sheet"), Precision::Bf16)
    }

    fn noted(name: &'static str, traffic: Traffic, seconds: Option<f64>) -> Noted {
        Noted { name: name.into(), traffic, seconds }
    }

    #[test]
    fn h100_has_the_rates_that_were_measured() {
        let rates = assumed();
        let tera =
            [rates.bytes_per_s, rates.product_flops, rates.attention_forward_flops].map(|rate| rate / 1e12);
        assert!(tera.iter().zip([3.0, 640.0, 190.0]).all(|(a, b)| (a - b).abs() < 1e-9), "{tera:?}");
        assert!(rates.attention_backward_flops <= 170.000_1e12);
        assert_eq!(Limits::named("h999"), None);
    }

    #[test]
    fn the_longer_of_memory_and_operations_counts_and_a_gap_follows() {
        let rates = assumed();
        let gap = 2e-6;
        let product = Traffic::by(Unit::Products).reads(1_000_000_000, 3);
        let (seconds, bound) = rates.seconds(&product);
        assert!((seconds - gap - 1e-3).abs() < 1e-9, "{seconds}");
        assert_eq!(bound, Bound::Memory);
        let (seconds, bound) = rates.seconds(&product.computes(1_280_000_000_000));
        assert!((seconds - gap - 2e-3).abs() < 1e-9, "{seconds}");
        assert_eq!(bound, Bound::Compute);
        assert_eq!(rates.seconds(&Traffic::of_kernel().writes(1, 4)).1, Bound::Gap);
        assert_eq!(rates.seconds(&Traffic::by(Unit::Link).writes(1 << 30, 4)), (0.0, Bound::Link));
    }

    #[test]
    fn a_step_has_its_micro_steps_and_one_update() {
        let pass = noted("a", Traffic::of_kernel().reads(3_000_000_000, 1), None);
        let sum = noted("sum", Traffic::by(Unit::Link).reads(8, 1), None);
        let update = noted("b", Traffic::of_kernel().writes(6_000_000_000, 1), None);
        let outline = Outline {
            micro_step: vec![pass.clone()],
            last_micro_step: vec![pass, sum],
            update: vec![update],
        };
        let roofline = Roofline::of(&outline, 4, 1000, assumed());
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(close(roofline.micro_step_ms, 1.002) && close(roofline.update_ms, 2.002), "{roofline:?}");
        assert!(close(roofline.step_ms, 4.0 * 1.002 + 2.002), "{roofline:?}");
        assert_eq!(roofline.launches, 4 + 1 + 1);
        let names: Vec<_> =
            roofline.kernels.iter().map(|kernel| (&kernel.name[..], kernel.launches)).collect();
        assert_eq!(names, [("a", 4), ("b", 1), ("sum", 1)]);
        assert_eq!(roofline.kernels[0].bytes, 12_000_000_000);
    }

    #[test]
    fn what_was_measured_stands_beside_the_model_and_orders_the_kernels() {
        let slow = noted("slow", Traffic::of_kernel().reads(30, 1), Some(3e-3));
        let fast = noted("fast", Traffic::of_kernel().reads(3_000_000_000, 1), Some(1e-3));
        let kernels = KernelTime::by_name(&[(&[fast.clone(), slow, fast], 1)], &assumed());
        let found: Vec<_> =
            kernels.iter().map(|one| (&one.name[..], one.launches, one.measured_ms)).collect();
        assert_eq!(found, [("slow", 1, Some(3.0)), ("fast", 2, Some(2.0))]);
    }
}
