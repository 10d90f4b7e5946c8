//! The resolved recipe: one struct per table, plain data, every value present.
//!
//! Values that are one of a few words are in [`words`](super::words). A component receives its own table's
//! struct and nothing else.

use super::init_from::InitFrom;
use super::keys;
use super::lint::LintCode;
use super::sources::Sources;
use super::validation::Validation;
use super::words::{
    Attention, Device, EngineKind, MicroBatch, Missing, MuonAdjust, MuonPrecision, OptimizerName, Precision,
    RecomputeName, Residual, ScheduleKind, WatchdogAction,
};
use crate::data::TokenizerKind;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A fully resolved experiment: every layer merged, every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Names the run directory; the recipe file's stem unless given.
    pub name: String,
    /// Seeds the initial weights and the order of the training rows.
    pub seed: u64,
    /// The network.
    pub model: ModelConfig,
    /// Where and how it is computed.
    pub compute: ComputeConfig,
    /// What it is trained on.
    pub data: DataConfig,
    /// How much of it is read per optimizer step.
    pub batch: BatchConfig,
    /// How its ranks work together.
    pub distributed: DistributedConfig,
    /// The update rule and gradient clipping.
    pub optimizer: OptimizerConfig,
    /// The learning rate over the steps.
    pub schedule: ScheduleConfig,
    /// Validation during training.
    pub eval: EvalConfig,
    /// Checkpoints.
    pub checkpoint: CheckpointConfig,
    /// What counts as a bad step.
    pub watchdog: WatchdogConfig,
    /// Text generated during training.
    pub sample: SampleConfig,
    /// Logs for other programs.
    pub log: LogConfig,
    /// Remarks about the plan.
    pub lints: LintsConfig,
}

impl Recipe {
    /// Tokens that an evaluation reads of a set of validation data, at most: `eval.tokens` rounded up to whole rows, or
    /// `eval.batches` of a whole batch.
    #[must_use]
    pub fn eval_tokens(&self) -> u64 {
        match (self.eval.tokens, self.eval.batches) {
            (Some(tokens), _) => tokens.next_multiple_of(self.model.block_size as u64),
            (None, batches) => (batches.unwrap_or(0) as u64).saturating_mul(self.batch.total_tokens as u64),
        }
    }
}

/// `[model]`: a GPT-2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Weights, or the state of another run, to begin from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_from: Option<InitFrom>,
    /// Context length T, in tokens.
    pub block_size: usize,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Embedding rows are padded up to a multiple of this; 1 turns padding off.
    pub vocab_multiple: usize,
    /// Number of transformer blocks.
    pub n_layer: usize,
    /// Attention heads per block; divides `n_embd`.
    pub n_head: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// The share of activations that training drops: of the embedding, of attention's probabilities, and of what
    /// each block adds to the residual stream.
    #[serde(default)]
    pub dropout: f64,
}

/// `[compute]`: where and how the model is computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeConfig {
    /// The device to train on.
    pub device: Device,
    /// The implementation of the training step.
    pub engine: EngineKind,
    /// The precision of matrix-product operands.
    pub precision: Precision,
    /// The attention implementation.
    pub attention: Attention,
    /// How the residual stream and its gradient are stored.
    #[serde(default)]
    pub residual: Residual,
    /// What the backward pass computes again.
    #[serde(default)]
    pub recompute: RecomputeName,
    /// CPU threads; 0 means all.
    pub threads: usize,
}

/// `[data]`: what the model is trained and validated on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Training data: files, globs or `builtin:` names, absolute after resolution, or a mixture of them.
    pub train: Sources,
    /// Validation data; empty means no validation.
    pub val: Validation,
    /// The set of `val` whose loss is `val_loss` and decides which checkpoint is best; only with several sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_main: Option<String>,
    /// The fraction of the training data's tokens, the last ones, that are validation data instead; not with `val`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_fraction: Option<f64>,
    /// How text becomes tokens, and what the tokens of a prepared set stand for.
    pub tokenizer: TokenizerKind,
    /// Sample rows without replacement in a seeded order instead of file order.
    pub shuffle: bool,
}

/// A set of validation data: its name, if it has one, and its files.
pub type ValidationSet<'a> = (Option<&'a str>, &'a [String]);

impl DataConfig {
    /// The set of `val` whose loss is `val_loss`, and the others with their names; no files where there are none.
    #[must_use]
    pub fn validation_sets(&self) -> (ValidationSet<'_>, Vec<(&str, &[String])>) {
        let Some(mut sets) = self.val.named() else { return ((None, &self.val), Vec::new()) };
        let is_main = |(name, _): &(&str, &[String])| self.val_main.as_deref() == Some(*name);
        let (name, files) = sets.remove(sets.iter().position(is_main).unwrap_or(0));
        ((Some(name), files), sets)
    }
}

/// `[batch]`: how much data one optimizer step reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchConfig {
    /// Tokens per optimizer step over all ranks.
    pub total_tokens: usize,
    /// Sequences per forward pass per rank.
    pub micro_batch: MicroBatch,
    /// Number of data-parallel ranks.
    pub world_size: usize,
    /// Tokens of the first steps, from which the batch grows to `total_tokens`; 0 if it does not grow.
    #[serde(default)]
    pub ramp_start: usize,
    /// Tokens over which it grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp_tokens: Option<u64>,
    /// Tokens by which a step grows at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp_increment: Option<usize>,
}

/// `[distributed]`: without effect for one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DistributedConfig {
    /// Each rank keeps its part of the moments only (Rajbhandari et al., 2020, ZeRO, stage 1).
    pub shard_optimizer: bool,
    /// Seconds after which a rank that does not answer counts as hung.
    pub timeout_s: u64,
}

/// `[optimizer]`: AdamW (Loshchilov and Hutter, 2019) with global-norm clipping, and Muon beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// The update rule.
    pub kind: OptimizerName,
    /// Peak learning rate of AdamW.
    pub lr: f64,
    /// Decay rates of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, on tensors of two or more dimensions only.
    pub weight_decay: f64,
    /// The learning rate of embeddings over that of everything else.
    pub embedding_lr_factor: f64,
    /// Decoupled weight decay of embeddings, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay_embeddings: Option<f64>,
    /// Gradients are scaled down to this global norm; 0 turns clipping off.
    pub clip_norm: f64,
    /// Peak learning rate of Muon, which follows the same schedule.
    pub muon_lr: f64,
    /// Decay rate of Muon's running mean of gradients.
    pub muon_momentum: f64,
    /// Whether Muon looks ahead by a further step of that mean (Nesterov).
    pub muon_nesterov: bool,
    /// Iterations that make a matrix nearly orthogonal.
    pub muon_ns_steps: u32,
    /// What they round their matrices to.
    pub muon_ns_precision: MuonPrecision,
    /// Decoupled weight decay of the matrices that Muon updates.
    pub muon_weight_decay: f64,
    /// The factor on Muon's learning rate by a matrix's shape.
    pub muon_adjust: MuonAdjust,
}

impl Default for OptimizerConfig {
    /// What holds when no layer sets anything.
    fn default() -> Self {
        let defaults = keys::defaults("optimizer");
        serde_json::from_value(defaults).expect("the table of keys has a default for every field")
    }
}

/// `[schedule]`: keys that a kind does not use are absent, and of two that say the same in steps and in tokens one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleConfig {
    /// The shape of the learning rate.
    pub kind: ScheduleKind,
    /// Optimizer steps in the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u64>,
    /// Tokens of the run at most, in whole steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Steps of linear warm-up; not with `constant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// Tokens of linear warm-up; not with `constant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_tokens: Option<u64>,
    /// The final learning rate as a fraction of the peak; not with `constant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_lr_ratio: Option<f64>,
    /// Steps of the final linear decay (`wsd`), or after which the rate has fallen (`cosine`, `linear`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decay_steps: Option<u64>,
    /// The same length in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decay_tokens: Option<u64>,
    /// End after the first evaluation whose validation loss is at most this, in nats per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at_val_loss: Option<f64>,
}

/// `[eval]`: validation during training.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalConfig {
    /// Validate every this many steps and after the last; 0 means never.
    pub every: u64,
    /// How many batches of `batch.total_tokens` tokens are averaged, at most; absent beside `tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batches: Option<usize>,
    /// How many tokens are averaged, at most, rounded up to whole rows of `model.block_size` tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// HellaSwag's validation examples, scored at each evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hellaswag: Option<PathBuf>,
    /// Further files of tasks, scored at each evaluation.
    #[serde(default)]
    pub tasks: Vec<String>,
    /// What becomes of a task whose file is not there.
    #[serde(default)]
    pub missing: Missing,
}

/// `[checkpoint]`: what is saved, and how often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Save every this many steps and after the last; 0 means after the last only.
    pub every: u64,
    /// How many of the newest are kept; 0 keeps all.
    pub keep: usize,
    /// Keep the one with the lowest validation loss as well, and save one at each evaluation that is the best so far.
    #[serde(default)]
    pub keep_best: bool,
    /// Write from a copy while training goes on, where there is memory for it.
    pub background: bool,
}

/// `[watchdog]`: z-scores of a step's loss and gradient norm among those of the good steps before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchdogConfig {
    /// Largest rise of the loss, in standard deviations of the window; 0 = off.
    pub max_loss_zscore: f64,
    /// Largest rise of the gradient norm before clipping, in standard deviations of the window; 0 = off.
    pub max_grad_zscore: f64,
    /// How many good steps are remembered, and how many it takes to judge one.
    pub window: usize,
    /// What happens at a step that rises higher.
    pub action: WatchdogAction,
}

impl WatchdogConfig {
    /// Whether anything is watched.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.max_loss_zscore > 0.0 || self.max_grad_zscore > 0.0
    }
}

/// `[sample]`: text generated during training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleConfig {
    /// Generate text every this many steps and after the last; 0 means never.
    pub every: u64,
    /// What the text starts with.
    pub prompt: String,
    /// How many tokens are generated.
    pub tokens: usize,
}

/// `[log]`: logs for other programs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Whether the run's directory gets an event file for TensorBoard.
    pub tensorboard: bool,
}

/// `[lints]`: remarks about the plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LintsConfig {
    /// Lints that are not shown.
    pub allow: Vec<LintCode>,
}
