//! A plan as JSON: what `runner plan --format json` prints and `run.json` keeps.
//!
//! Names and order of the fields are a contract with the scripts that read them. The names that engines and the loop
//! use may change without them.

use super::{DataSize, Group, Plan};
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
    /// Optimizer steps.
    pub steps: u64,
    /// Tokens of the whole run.
    pub tokens: u64,
    /// The validation loss at which the run ends before its last step, where the recipe has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_at_val_loss: Option<f64>,
    /// Times that the run goes through the training rows.
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
    /// Floating-point operations of the whole run.
    pub flops: f64,
    /// Bytes that each rank sends per optimizer step.
    pub wire_bytes_per_step: u64,
    /// Bytes of the first rank, as pairs of kind and number.
    pub bytes: &'a [(&'static str, usize)],
    /// Whether the bytes are what will be allocated, or an estimate.
    pub bytes_exact: bool,
    /// Bytes in all, of one rank.
    pub total_bytes: usize,
    /// Bytes of a checkpoint's copy beside them, 0 if there is none.
    pub snapshot_bytes: usize,
    /// Whether the outputs of LayerNorm and GELU are kept for the backward pass, which computes them again otherwise.
    pub keeps_outputs: bool,
}

impl Plan {
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
            steps: self.steps,
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
            keeps_outputs: memory.keeps_outputs(),
        }
    }
}
