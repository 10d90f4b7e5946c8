//! The resolved recipe: one struct per table, plain data, every value present.
//!
//! A component receives its own table's struct and nothing else.

use super::lint::LintCode;
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
    /// AdamW and gradient clipping.
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
    /// Remarks about the plan.
    pub lints: LintsConfig,
}

/// `[model]`: a GPT-2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Hugging Face GPT-2 weights to start from: a `.safetensors` file or a model directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_from: Option<PathBuf>,
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
    /// CPU threads; 0 means all.
    pub threads: usize,
}

/// `compute.device`, written `auto`, `cpu`, `cuda` or `cuda:N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// CUDA where there is one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device with this ordinal.
    Cuda(usize),
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            other => other
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| format!("unknown device `{other}`, expected auto, cpu, cuda or cuda:N")),
        }
    }
}

impl From<Device> for String {
    fn from(device: Device) -> String {
        match device {
            Device::Auto => "auto".into(),
            Device::Cpu => "cpu".into(),
            Device::Cuda(0) => "cuda".into(),
            Device::Cuda(n) => format!("cuda:{n}"),
        }
    }
}

/// `compute.engine`: the implementation of the training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Hand-written forward and backward passes with fused kernels.
    Fused,
    /// Plain tensors and autograd from the `dfdx` crate: the reference.
    Dfdx,
}

impl EngineKind {
    /// The word for it in a recipe.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fused => "fused",
            Self::Dfdx => "dfdx",
        }
    }
}

/// `compute.precision`: what the operands of matrix products are rounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE single precision: 23 mantissa bits.
    Fp32,
    /// 10 mantissa bits, the exponent range of fp32.
    Tf32,
    /// 7 mantissa bits, the exponent range of fp32.
    Bf16,
    /// IEEE half precision: 10 mantissa bits, 5 exponent bits, with a dynamic loss scaler.
    Fp16,
}

impl Precision {
    /// The word for it in a recipe.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        }
    }
}

/// `compute.attention`: the attention implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// Tiled with an online softmax; memory linear in T.
    Flash,
    /// Materializes the T x T matrix of every head and keeps it for the backward pass.
    Naive,
}

impl Attention {
    /// The word for it in a recipe.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flash => "flash",
            Self::Naive => "naive",
        }
    }
}

/// `[data]`: what the model is trained and validated on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// Training data: files, globs or `builtin:` names; absolute after resolution.
    pub train: Vec<String>,
    /// Validation data, in the forms of `train`; empty means no validation.
    pub val: Vec<String>,
    /// Sample rows without replacement in a seeded order instead of file order.
    pub shuffle: bool,
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
}

/// `batch.micro_batch`: a number of sequences, or `"auto"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MicroBatch {
    /// The largest that fits in memory.
    Auto,
    /// This many sequences.
    Rows(usize),
}

impl Serialize for MicroBatch {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Rows(n) => serializer.serialize_u64(*n as u64),
        }
    }
}

impl<'de> Deserialize<'de> for MicroBatch {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = MicroBatch;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a number of sequences or \"auto\"")
            }

            fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<MicroBatch, E> {
                Ok(MicroBatch::Rows(n as usize))
            }

            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<MicroBatch, E> {
                u64::try_from(n)
                    .map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(n), &self))
                    .and_then(|n| self.visit_u64(n))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<MicroBatch, E> {
                match text {
                    "auto" => Ok(MicroBatch::Auto),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
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

/// `[optimizer]`: AdamW (Loshchilov and Hutter, 2019) with global-norm clipping.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// Peak learning rate.
    pub lr: f64,
    /// Decay rates of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay, on tensors of two or more dimensions only.
    pub weight_decay: f64,
    /// Gradients are scaled down to this global norm; 0 turns clipping off.
    pub clip_norm: f64,
}

/// `[schedule]`: keys that a kind does not use are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleConfig {
    /// The shape of the learning rate.
    pub kind: ScheduleKind,
    /// Optimizer steps in the run.
    pub max_steps: u64,
    /// Steps of linear warm-up; not with `constant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// The final learning rate as a fraction of the peak; not with `constant`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_lr_ratio: Option<f64>,
    /// Steps of the final linear decay; `wsd` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decay_steps: Option<u64>,
}

/// `schedule.kind`: the shape of the learning rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// Linear warm-up, then half a cosine down to the minimum.
    Cosine,
    /// The peak learning rate throughout.
    Constant,
    /// Linear warm-up, then a straight line down to the minimum.
    Linear,
    /// Warm-up, stable, decay (Hu et al., 2024, MiniCPM): a line down over the last `decay_steps`.
    Wsd,
}

/// `[eval]`: validation during training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalConfig {
    /// Validate every this many steps and after the last; 0 means never.
    pub every: u64,
    /// How many batches of `batch.total_tokens` tokens are averaged, at most.
    pub batches: usize,
}

/// `[checkpoint]`: what is saved, and how often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Save every this many steps and after the last; 0 means after the last only.
    pub every: u64,
    /// How many of the newest are kept; 0 keeps all.
    pub keep: usize,
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

/// `watchdog.action`: what happens at a bad step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchdogAction {
    /// The run ends as diverged, with the last checkpoint.
    Stop,
    /// The update is left out and the run goes on.
    Skip,
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

/// `[lints]`: remarks about the plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LintsConfig {
    /// Lints that are not shown.
    pub allow: Vec<LintCode>,
}
