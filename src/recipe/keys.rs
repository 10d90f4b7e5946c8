//! The one table of recipe keys: name, kind, range, default, meaning.
//!
//! Unknown-key detection, type and range checks, the defaults layer and the order in which a resolved recipe is
//! written are all read from it, so a key cannot be half added.

/// One key of the recipe language.
#[derive(Debug)]
pub struct Key {
    /// Dotted path, such as `model.n_layer`.
    pub path: &'static str,
    /// What its value must be.
    pub kind: Kind,
    /// What holds when no layer sets it.
    pub default: Fallback,
    /// The `schedule.kind`s that use it; empty for a key that always has an effect.
    pub schedules: &'static [&'static str],
    /// What it means, in one sentence without a full stop.
    pub doc: &'static str,
}

impl Key {
    /// The part after the last dot: how the key is written inside its table.
    #[must_use]
    pub fn leaf(&self) -> &'static str {
        self.path.rsplit('.').next().unwrap_or(self.path)
    }

    /// The table that holds the key; empty at the top level.
    #[must_use]
    pub fn table(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// False for the keys that are consumed by resolution: `extends` and `model.preset`.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        !matches!(self.kind, Kind::Extends | Kind::Preset)
    }
}

/// The kind of a key's value, with its range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// An integer in `min..=max`.
    Integer {
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: i64,
    },
    /// An integer in `1..=max` or `"auto"`.
    MicroBatch {
        /// Largest value.
        max: i64,
    },
    /// A finite number in an interval.
    Number(Interval),
    /// Two numbers in `[0, 1)`.
    Betas,
    /// `true` or `false`.
    Flag,
    /// A string that is not empty.
    Text,
    /// A string of letters, digits, `.`, `_` and `-`, fit for a directory's name.
    Name,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Some of these words, as a list or a single string.
    Choices(&'static [&'static str]),
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    Device,
    /// The path of one file or directory, relative to the file that names it.
    File,
    /// Files, globs or `builtin:` names, as a list or a single string.
    Files {
        /// Fewest entries.
        min: usize,
    },
    /// The name of a preset.
    Preset,
    /// Recipe files to build upon, as a list or a single string.
    Extends,
}

/// The numbers that a key accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interval {
    /// Greater than 0.
    Positive,
    /// 0 or more.
    NonNegative,
    /// From 0 to 1, both included.
    Unit,
}

/// The value of a key that no layer sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// This TOML value.
    Is(&'static str),
    /// None: the key may be absent.
    Absent,
    /// None: leaving the key out is an error.
    Required,
    /// The stem of the recipe's file name.
    FileStem,
    /// A fifth of `schedule.max_steps`, rounded up.
    FifthOfMaxSteps,
}

use Fallback::{Absent, FifthOfMaxSteps, FileStem, Is, Required};
use Interval::{NonNegative, Positive, Unit};
use Kind::{
    Betas, Choice, Choices, Device, Extends, File, Files, Flag, Integer, MicroBatch, Name, Number, Preset,
    Text,
};

const fn key(path: &'static str, kind: Kind, default: Fallback, doc: &'static str) -> Key {
    Key { path, kind, default, schedules: &[], doc }
}

const fn scheduled(
    path: &'static str,
    kind: Kind,
    default: Fallback,
    schedules: &'static [&'static str],
    doc: &'static str,
) -> Key {
    Key { path, kind, default, schedules, doc }
}

/// Bounds are far above any sensible experiment: they keep every derived product within 64 bits.
const STEPS: i64 = 1 << 40;
const WITH_WARMUP: &[&str] = &["cosine", "linear", "wsd"];

/// Every key, in the order in which a resolved recipe is written.
pub const KEYS: &[Key] = &[
    key("extends", Extends, Absent, "recipe files that this one builds upon, later ones win"),
    key("name", Name, FileStem, "names the run directory"),
    key(
        "seed",
        Integer { min: 0, max: i64::MAX },
        Is("1337"),
        "seeds the initial weights and the order of rows",
    ),
    key("model.preset", Preset, Absent, "a published model, whose values every explicit key overrides"),
    key("model.init_from", File, Absent, "Hugging Face GPT-2 weights to start from, a file or a directory"),
    key("model.block_size", Integer { min: 1, max: 1 << 20 }, Is("1024"), "context length in tokens"),
    key("model.vocab_size", Integer { min: 1, max: (1 << 24) - 1 }, Is("50257"), "number of token ids"),
    key(
        "model.vocab_multiple",
        Integer { min: 1, max: 1 << 16 },
        Is("1"),
        "embedding rows are padded up to a multiple of this, 1 turns it off",
    ),
    key("model.n_layer", Integer { min: 1, max: 1 << 10 }, Is("12"), "number of transformer blocks"),
    key(
        "model.n_head",
        Integer { min: 1, max: 1 << 10 },
        Is("12"),
        "attention heads per block, divides n_embd",
    ),
    key("model.n_embd", Integer { min: 1, max: 1 << 17 }, Is("768"), "width of the residual stream"),
    key("compute.device", Device, Is("\"auto\""), "where to train"),
    key(
        "compute.engine",
        Choice(&["fused", "dfdx"]),
        Is("\"fused\""),
        "the implementation of the training step",
    ),
    key(
        "compute.precision",
        Choice(&["fp32", "tf32", "bf16", "fp16"]),
        Is("\"fp32\""),
        "the precision of matrix-product operands",
    ),
    key("compute.attention", Choice(&["flash", "naive"]), Is("\"flash\""), "the attention implementation"),
    key("compute.threads", Integer { min: 0, max: 1 << 12 }, Is("0"), "CPU threads, 0 means all"),
    key("data.train", Files { min: 1 }, Required, "training data: files, globs or builtin names"),
    key("data.val", Files { min: 0 }, Is("[]"), "validation data, likewise; empty means no validation"),
    key("data.shuffle", Flag, Is("true"), "sample rows without replacement in a seeded order"),
    key(
        "batch.total_tokens",
        Integer { min: 1, max: 1 << 36 },
        Is("524288"),
        "tokens per optimizer step over all ranks",
    ),
    key(
        "batch.micro_batch",
        MicroBatch { max: 1 << 20 },
        Is("\"auto\""),
        "sequences per forward pass per rank, or \"auto\"",
    ),
    key("batch.world_size", Integer { min: 1, max: 1 << 16 }, Is("1"), "number of data-parallel ranks"),
    key(
        "distributed.shard_optimizer",
        Flag,
        Is("false"),
        "each rank keeps and updates its part of AdamW's moments only (ZeRO stage 1)",
    ),
    key(
        "distributed.timeout_s",
        Integer { min: 1, max: 86_400 },
        Is("600"),
        "seconds after which a rank that does not answer counts as hung, and the run ends",
    ),
    key("optimizer.lr", Number(Positive), Is("6e-4"), "peak learning rate"),
    key("optimizer.betas", Betas, Is("[0.9, 0.95]"), "decay rates of AdamW's two moments"),
    key("optimizer.eps", Number(Positive), Is("1e-8"), "added to the square root of the second moment"),
    key(
        "optimizer.weight_decay",
        Number(NonNegative),
        Is("0.1"),
        "decay of tensors of two or more dimensions",
    ),
    key(
        "optimizer.clip_norm",
        Number(NonNegative),
        Is("1.0"),
        "largest global gradient norm, 0 turns clipping off",
    ),
    key(
        "schedule.kind",
        Choice(&["cosine", "constant", "linear", "wsd"]),
        Is("\"cosine\""),
        "the shape of the learning rate",
    ),
    key("schedule.max_steps", Integer { min: 1, max: STEPS }, Required, "optimizer steps in the run"),
    scheduled(
        "schedule.warmup_steps",
        Integer { min: 0, max: STEPS },
        Is("0"),
        WITH_WARMUP,
        "steps of linear warm-up",
    ),
    scheduled(
        "schedule.min_lr_ratio",
        Number(Unit),
        Is("0.1"),
        WITH_WARMUP,
        "the final learning rate as a fraction of the peak",
    ),
    scheduled(
        "schedule.decay_steps",
        Integer { min: 1, max: STEPS },
        FifthOfMaxSteps,
        &["wsd"],
        "steps of the final decay",
    ),
    key(
        "eval.every",
        Integer { min: 0, max: STEPS },
        Is("250"),
        "validate every this many steps, 0 means never",
    ),
    key("eval.batches", Integer { min: 1, max: 1 << 32 }, Is("20"), "how many batches are averaged at most"),
    key(
        "checkpoint.every",
        Integer { min: 0, max: STEPS },
        Is("1000"),
        "save every this many steps, 0 means at the end",
    ),
    key(
        "checkpoint.keep",
        Integer { min: 0, max: 1 << 32 },
        Is("3"),
        "how many of the newest are kept, 0 keeps all",
    ),
    key(
        "checkpoint.background",
        Flag,
        Is("true"),
        "write from a copy while training goes on, where memory for the copy is free",
    ),
    key(
        "watchdog.max_loss_zscore",
        Number(NonNegative),
        Is("0.0"),
        "largest rise of the loss in standard deviations of the window, 0 turns it off",
    ),
    key(
        "watchdog.max_grad_zscore",
        Number(NonNegative),
        Is("0.0"),
        "the same of the gradient norm before clipping",
    ),
    key(
        "watchdog.window",
        Integer { min: 2, max: 1 << 16 },
        Is("128"),
        "how many good steps are remembered; until there are as many, nothing is judged",
    ),
    key(
        "watchdog.action",
        Choice(&["stop", "skip"]),
        Is("\"stop\""),
        "end the run at such a step, or leave its update out",
    ),
    key(
        "sample.every",
        Integer { min: 0, max: STEPS },
        Is("0"),
        "generate text every this many steps, 0 means never",
    ),
    key("sample.prompt", Text, Is("\"Hello, I'm a language model,\""), "what the generated text starts with"),
    key("sample.tokens", Integer { min: 1, max: 1 << 20 }, Is("32"), "how many tokens are generated"),
    key(
        "lints.allow",
        Choices(super::lint::CODES),
        Is("[]"),
        "lints that `runner plan` and training keep to themselves",
    ),
];

/// The tables that hold the keys.
pub const TABLES: &[&str] = &[
    "model",
    "compute",
    "data",
    "batch",
    "distributed",
    "optimizer",
    "schedule",
    "eval",
    "checkpoint",
    "watchdog",
    "sample",
    "lints",
];

/// The key with this dotted path.
#[must_use]
pub fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The key with this dotted path, which the caller spells out in the source.
pub(super) fn known(path: &'static str) -> &'static Key {
    find(path).expect("a key written in this crate is in the table")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_named_once_and_lives_in_a_known_table() {
        for (i, key) in KEYS.iter().enumerate() {
            assert!(KEYS[..i].iter().all(|other| other.path != key.path), "{} is there twice", key.path);
            assert!(key.table().is_empty() || TABLES.contains(&key.table()), "{}", key.path);
            assert!(!key.doc.is_empty() && !key.doc.ends_with('.'), "{}", key.path);
        }
    }
}
