//! A plan as JSON: what `runner plan --format json` prints and `run.json` keeps.
//!
//! Names and order of the fields are a contract with the scripts that read them. The names that engines and the loop
//! use may change without them.

use super::recompute::RecomputeOption;
use super::{DataSize, Group, Plan};
use crate::engine::memory::Recompute;
use crate::recipe::EngineKind;
use serde::Serialize;

/// The document of a [`Plan`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanDocument<'a> {
    /// The device: `cpu`, or `cuda:0` with the product's name.
    pub device: &'a str,
    /// Data-parallel ranks.
    pub world_size: usize,
    /// How many of them share this machine.
    pub ranks_here: usize,
    /// Seconds after which a rank that does not answer counts as hung.
    pub timeout_s: u64,
    /// CPU threads of a rank.
    pub threads: usize,
    /// Whether the precision is emulated by rounding.
    pub emulated: bool,
    /// Embedding rows after padding.
    pub padded_vocab: usize,
    /// Parameters under weight decay, padding left out.
    pub decayed: Group,
    /// Parameters without weight decay.
    pub not_decayed: Group,
    /// All parameters, padding left out.
    pub parameters: usize,
    /// Tokens per optimizer step.
    pub tokens_per_step: usize,
    /// Sequences per optimizer step.
    pub rows_per_step: usize,
    /// Sequences per optimizer step on one rank.
    pub rows_per_rank: usize,
    /// Sequences per forward pass.
    pub micro_batch: usize,
    /// Forward passes per optimizer step on one rank.
    pub micro_steps: usize,
    /// The stages in which the batch grows; left out where it does not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageDocument>,
    /// Optimizer steps, those before a branch included.
    pub steps: u64,
    /// The first step that the run takes itself; left out where that is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_step: Option<u64>,
    /// Tokens of all steps.
    pub tokens: u64,
    /// The validation loss at which the run ends before its last step, where the recipe has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_at_val_loss: Option<f64>,
    /// Times that the training rows are gone through.
    pub epochs: f64,
    /// Rows of one evaluation, of the set that decides what is best.
    pub eval_rows: usize,
    /// Rows of one evaluation of each other set.
    #[serde(skip_serializing_if = "<[usize]>::is_empty")]
    pub eval_others: &'a [usize],
    /// The data.
    pub data: DataSize,
    /// Floating-point operations of training on one token.
    pub flops_per_token: u64,
    /// Floating-point operations of the steps that the run takes itself.
    pub flops: f64,
    /// Bytes that each rank sends per optimizer step.
    pub wire_bytes_per_step: u64,
    /// Bytes of the rank that needs the most, as pairs of kind and number.
    pub bytes: &'a [(&'static str, usize)],
    /// Whether the bytes are what will be allocated, or an estimate.
    pub bytes_exact: bool,
    /// Bytes in all, of the rank that needs the most.
    pub total_bytes: usize,
    /// Bytes of a checkpoint's copy beside them, 0 if there is none.
    pub snapshot_bytes: usize,
    /// Bytes that rank 0 gathers from the others while a checkpoint is written without a copy; 0 where each rank has
    /// all states of the optimizer.
    pub gathered_bytes: usize,
    /// Whether there is memory to keep the outputs of LayerNorm and GELU for the backward pass, which computes them
    /// again otherwise. The choice is part of the result, whatever `recompute` has computed again besides.
    pub keeps_outputs: bool,
    /// What else the backward pass computes again; left out for the reference engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recompute: Option<Recompute>,
    /// What each value of `compute.recompute` comes to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recompute_options: Vec<RecomputeOption>,
}

/// Neighbouring steps of equally many tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StageDocument {
    /// The first of them, counted from 0.
    pub first_step: u64,
    /// Tokens of the run before it.
    pub first_token: u64,
    /// How many of them there are in the run.
    pub steps: u64,
    /// Tokens of each step.
    pub tokens_per_step: u64,
    /// Sequences of each step.
    pub rows_per_step: u64,
    /// Forward passes of each step on one rank.
    pub micro_steps: u64,
}

impl Plan {
    /// The stages that the run comes to, if its batch grows.
    pub fn stages(&self) -> Vec<StageDocument> {
        let (sizes, stages) = (&self.sizes, self.sizes.stages());
        if sizes.is_constant() {
            return Vec::new();
        }
        let passes = (self.ranks.world_size * self.batch.micro_batch) as u64;
        let ends = stages.iter().skip(1).map(|next| next.first_step).chain([u64::MAX]);
        let of_run = stages.iter().zip(ends).filter(|(stage, _)| stage.first_step < self.steps);
        of_run
            .map(|(stage, end)| StageDocument {
                first_step: stage.first_step,
                first_token: stage.first_row * sizes.block_size(),
                steps: end.min(self.steps) - stage.first_step,
                tokens_per_step: stage.rows * sizes.block_size(),
                rows_per_step: stage.rows,
                micro_steps: stage.rows / passes,
            })
            .collect()
    }

    /// What is printed and kept of the plan.
    pub fn document(&self) -> PlanDocument<'_> {
        let Self { ranks, parameters, batch, bytes, memory, .. } = self;
        PlanDocument {
            device: &self.device,
            world_size: ranks.world_size,
            ranks_here: ranks.here,
            timeout_s: ranks.timeout_s,
            threads: self.threads,
            emulated: self.emulated,
            padded_vocab: memory.dims.padded_vocab,
            decayed: parameters.decayed,
            not_decayed: parameters.not_decayed,
            parameters: parameters.total,
            tokens_per_step: batch.tokens_per_step,
            rows_per_step: batch.rows_per_step,
            rows_per_rank: batch.rows_per_rank,
            micro_batch: batch.micro_batch,
            micro_steps: batch.micro_steps,
            stages: self.stages(),
            steps: self.steps,
            first_step: Some(self.before.steps).filter(|step| *step > 0),
            tokens: self.tokens,
            stop_at_val_loss: self.target,
            epochs: self.epochs,
            eval_rows: self.eval_rows,
            eval_others: &self.eval_others,
            data: self.data.clone(),
            flops_per_token: self.flops_per_token,
            flops: self.flops,
            wire_bytes_per_step: self.wire_bytes_per_step,
            bytes: &bytes.kinds,
            bytes_exact: bytes.exact,
            total_bytes: bytes.total,
            snapshot_bytes: bytes.snapshot,
            gathered_bytes: bytes.gathered,
            keeps_outputs: memory.keeps_outputs(),
            recompute: (self.engine == EngineKind::Fused).then(|| memory.recompute()),
            recompute_options: self.recompute_options(),
        }
    }
}
