//! Values of a resolved recipe that are one of a few words, with their spellings.

use serde::{Deserialize, Serialize};

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

/// `compute.residual`: how the residual stream and its gradient are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residual {
    /// As autocast does.
    #[default]
    Fp32,
    /// As llm.c does, on a CUDA device: half the memory traffic, and each sum is rounded.
    Bf16,
}

/// `compute.recompute`: what the backward pass computes again instead of finding it kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecomputeName {
    /// As little as possible.
    #[default]
    None,
    /// The MLP's hidden layer.
    Mlp,
    /// Everything inside a block, from its input.
    Block,
    /// The first of these that fits in memory.
    Auto,
}

/// `eval.missing`: what becomes of a task whose file is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// The run does not begin.
    #[default]
    Error,
    /// The run trains without it, and says so.
    Skip,
}

/// `optimizer.kind`: the rule that updates the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// AdamW (Loshchilov and Hutter, 2019) for every parameter.
    #[default]
    Adamw,
    /// Muon (Jordan et al., 2024) for the matrices of the blocks, AdamW for everything else.
    Muon,
}

/// `optimizer.muon_adjust`: the factor on Muon's learning rate by the shape of a matrix, `[out, in]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MuonAdjust {
    /// 0.2 √max(out, in) (Liu et al., 2025): updates as large as AdamW's.
    #[default]
    MatchRmsAdamw,
    /// √max(1, out / in) (Jordan et al., 2024).
    Original,
}

/// `optimizer.muon_ns_precision`: what Newton and Schulz's iteration rounds its matrices to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MuonPrecision {
    /// 7 mantissa bits, as `torch.optim.Muon` does.
    #[default]
    Bf16,
    /// Nothing: 23 mantissa bits.
    Fp32,
}

impl From<MuonPrecision> for Precision {
    fn from(precision: MuonPrecision) -> Self {
        match precision {
            MuonPrecision::Bf16 => Self::Bf16,
            MuonPrecision::Fp32 => Self::Fp32,
        }
    }
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

/// `watchdog.action`: what happens at a bad step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchdogAction {
    /// The run ends as diverged, with the last checkpoint.
    Stop,
    /// The update is left out and the run goes on.
    Skip,
}
