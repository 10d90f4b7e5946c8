//! The launches of a training step, from the backend itself on a device that does nothing.
//!
//! The choreography and the backend are the real ones, so what is counted here cannot drift from what is launched. The
//! device allocates nothing and computes nothing: it works on any machine, for a model of any size.

use super::CudaBackend;
use super::device::{Address, Collective, Device, Launch, Product, Recording, Way};
use crate::comm::{Comm, CommError, Solo};
use crate::engine::fused::Fused;
use crate::engine::fused::backend::Backend;
use crate::engine::memory::MemoryPlan;
use crate::engine::optimizer::OptimizerStep;
use crate::engine::traffic::Noted;
use crate::engine::{Batch, Engine, EngineError};
use std::ops::Range;
use std::sync::Arc;

/// Everything that one optimizer step of a rank launches, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// Forward and backward pass over a micro-batch.
    pub micro_step: Vec<Noted>,
    /// The last of them, in which ranks add up their gradients.
    pub last_micro_step: Vec<Noted>,
    /// The update.
    pub update: Vec<Noted>,
}

/// The launches of a step of one of `ranks` ranks, over whole micro-batches, on a device whose blocks have
/// `shared_per_block` bytes of shared memory. Epilogues count as fused where the backend may fuse them.
///
/// # Errors
/// Where the plan is not one of training on CUDA, or has heads that flash attention does not support.
pub fn outline(plan: &MemoryPlan, ranks: usize, shared_per_block: u32) -> Result<Outline, EngineError> {
    let kind = plan.optimizer().ok_or_else(|| EngineError::Input("an outline is one of training".into()))?;
    let comm: Arc<dyn Comm> = match ranks {
        1 => Arc::new(Solo),
        size => Arc::new(PaperRanks { rank: plan.shard.index, size }),
    };
    let device = Paper { used: 0, shared_per_block };
    let backend = match ranks {
        1 => CudaBackend::new(plan, device)?,
        _ => CudaBackend::ranked(plan, device, comm.clone())?,
    };
    let mut engine = Fused::new(plan.clone(), backend, comm);
    engine.backend_mut().note_launches(true);
    let (rows, cols) = (plan.config.micro_batch, plan.config.dims.block_size);
    // as many distinct tokens as there can be, which is what the embeddings' kernels state
    let tokens: Vec<u32> = (0..rows * cols).map(|i| (i % plan.config.dims.vocab_size) as u32).collect();
    let batch = Batch { inputs: &tokens, targets: &tokens, rows, cols, first_row: 0 };
    let noted = |engine: &mut Fused<CudaBackend<Paper>>| {
        Ok::<_, EngineError>(engine.backend_mut().measured(&[])?.launches)
    };
    engine.accumulate(batch, 1.0)?;
    let micro_step = noted(&mut engine)?;
    engine.accumulate_last(batch, 1.0)?;
    let last_micro_step = noted(&mut engine)?;
    let rule = kind.typical();
    engine.update(&OptimizerStep { rule, lr: 1e-3, clip_norm: 1.0, t: 1, loss_scale: 1.0 })?;
    let update = noted(&mut engine)?;
    Ok(Outline { micro_step, last_micro_step, update })
}

/// A device that gives out addresses and does nothing.
struct Paper {
    used: u64,
    shared_per_block: u32,
}

impl Device for Paper {
    fn allocate(&mut self, bytes: usize, _: &'static str) -> Result<Address, EngineError> {
        // not zero, which is the null pointer
        let at = self.used + 256;
        self.used = (at + bytes as u64).next_multiple_of(256);
        Ok(Address(at))
    }

    fn write(&mut self, _: Address, _: &[u8]) -> Result<(), EngineError> {
        Ok(())
    }

    fn read(&mut self, _: Address, bytes: &mut [u8]) -> Result<(), EngineError> {
        bytes.fill(0);
        Ok(())
    }

    fn stage(&mut self, _: usize, _: &[u32]) -> Result<(), EngineError> {
        Ok(())
    }

    fn take(&mut self, _: usize, _: Address) -> Result<(), EngineError> {
        Ok(())
    }

    fn clear(&mut self, _: Address, _: usize) -> Result<(), EngineError> {
        Ok(())
    }

    fn launch(&mut self, _: &Launch) -> Result<(), EngineError> {
        Ok(())
    }

    fn product(&mut self, _: &Product) -> Result<(), EngineError> {
        Ok(())
    }

    fn fuses(&mut self, _: Way, _: Way) -> bool {
        true
    }

    fn collective(&mut self, _: &Collective) -> Result<(), EngineError> {
        Ok(())
    }

    fn join(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn records_collectives(&self) -> bool {
        false
    }

    fn begin_recording(&mut self) -> Result<bool, EngineError> {
        Ok(false)
    }

    fn end_recording(&mut self) -> Result<Option<Recording>, EngineError> {
        Ok(None)
    }

    fn shared_per_block(&self) -> u32 {
        self.shared_per_block
    }

    fn play(&mut self, _: Recording) -> Result<(), EngineError> {
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn notes(&self) -> &[String] {
        &[]
    }
}

/// Other ranks that say what this one says.
struct PaperRanks {
    rank: usize,
    size: usize,
}

impl Comm for PaperRanks {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        Ok(vec![mine.to_vec(); self.size])
    }

    fn broadcast(&self, _: &mut Vec<u8>) -> Result<(), CommError> {
        Ok(())
    }

    fn all_reduce(&self, _: &mut [f32]) -> Result<(), CommError> {
        Ok(())
    }

    fn reduce_scatter(&self, _: &mut [f32], _: &[Range<usize>]) -> Result<(), CommError> {
        Ok(())
    }

    fn all_gather(&self, _: &mut [f32], _: &[Range<usize>]) -> Result<(), CommError> {
        Ok(())
    }

    fn check(&self) -> Result<(), CommError> {
        Ok(())
    }

    fn abandon(&self, _: &str) {}

    fn name(&self) -> &'static str {
        "paper"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::{Activations, MemoryConfig, Mode, OptimizerShard, Target};
    use crate::engine::optimizer::OptimizerKind;
    use crate::engine::traffic::Unit;
    use crate::model::Dims;
    use crate::recipe::{Attention, Precision};

    /// Of an H100.
    const SHARED: u32 = 227 << 10;
    const GPT2: Dims = Dims {
        n_layer: 12,
        n_head: 12,
        n_embd: 768,
        block_size: 1024,
        vocab_size: 50257,
        padded_vocab: 50304,
    };

    fn plan(dims: Dims, micro_batch: usize) -> MemoryPlan {
        MemoryPlan::new(MemoryConfig {
            dims,
            micro_batch,
            precision: Precision::Bf16,
            attention: Attention::Flash,
            target: Target::Cuda,
            mode: Mode::Train(OptimizerKind::AdamW),
            activations: Activations::default(),
        })
    }

    fn operations(noted: &[Noted], unit: Unit) -> u64 {
        noted.iter().filter(|one| one.traffic.unit == unit).map(|one| one.traffic.operations).sum()
    }

    #[test]
    fn products_compute_six_operations_for_each_weight_and_token() {
        let outline = outline(&plan(GPT2, 64), 1, SHARED).expect("an outline");
        let weights = 12 * 12 * 768 * 768 + 50304 * 768;
        assert_eq!(operations(&outline.micro_step, Unit::Products), 6 * weights * 65536);
        assert_eq!(operations(&outline.update, Unit::Products), 0);
        assert_eq!(outline.last_micro_step, outline.micro_step, "one rank has nothing to add up");
    }

    #[test]
    fn causal_attention_computes_two_products_of_half_a_square_forward() {
        let outline = outline(&plan(GPT2, 2), 1, SHARED).expect("an outline");
        let pairs = 1024 * 1025 / 2;
        assert_eq!(operations(&outline.micro_step, Unit::AttentionForward), 12 * 2 * 12 * pairs * 2 * 2 * 64);
    }

    #[test]
    fn the_update_reads_and_writes_each_parameter_and_moment_once() {
        let outline = outline(&plan(GPT2, 1), 1, SHARED).expect("an outline");
        let adamw: Vec<_> = outline.update.iter().filter(|one| one.name == "adamw").collect();
        assert_eq!(adamw.len(), 2, "with and without decay");
        let bytes: u64 = adamw.iter().map(|one| one.traffic.bytes()).sum();
        let parameters = 124_475_904;
        assert!((bytes as f64 / f64::from(parameters) - 34.0).abs() < 0.01, "{bytes}");
    }

    #[test]
    fn ranks_add_up_in_the_last_pass_and_share_the_update() {
        let whole = outline(&plan(GPT2, 1), 1, SHARED).expect("an outline");
        let sharded = plan(GPT2, 1).sharded(OptimizerShard { index: 0, count: 4 });
        let shared = outline(&sharded, 4, SHARED).expect("an outline");
        let on_links = |noted: &[Noted]| noted.iter().filter(|one| one.traffic.unit == Unit::Link).count();
        assert_eq!(on_links(&shared.micro_step), 0);
        assert_eq!(on_links(&shared.last_micro_step), 12 + 3);
        assert_eq!(on_links(&shared.update), 2, "squares, and parameters");
        let adamw = |outline: &Outline| {
            let all = outline.update.iter().filter(|one| one.name == "adamw");
            all.map(|one| one.traffic.operations).sum::<u64>()
        };
        assert!((adamw(&whole) as f64 / adamw(&shared) as f64 - 4.0).abs() < 0.01);
    }

    #[test]
    fn wide_heads_have_no_flash_attention() {
        let dims = Dims { n_head: 4, ..GPT2 };
        assert!(outline(&plan(dims, 1), 1, SHARED).is_err());
    }
}
