//! The rows.

use super::Fallback::{Absent, FifthOf, FileStem, Is, Required};
use super::Identity::{Contents, Never, UnlessDefault, While};
use super::Interval::{Fraction, NonNegative, Positive, Unit};
use super::Kind::{
    Betas, Choice, Choices, Device, Extends, Files, Flag, Integer, MicroBatch, Name, Number, Preset, Sources,
    Start, Text,
};
use super::OnResume::Free;
use super::Stated::{Any, AtMost, Padded, Position, Same};
use super::switch::{CPU, FUSED, RANKS, SAMPLES, VALIDATION, WATCHDOG};
use super::{Fallback, Key, Kind, muon};
use crate::recipe::lint;

/// The key by which replicas of an experiment differ.
pub const SEED: &str = "seed";
/// The key that chooses a preset.
pub const PRESET: &str = "model.preset";
/// The key whose value may be emulated where a device lacks it.
pub const PRECISION: &str = "compute.precision";
/// The key that decides which keys of `schedule` are used.
pub const SCHEDULE_KIND: &str = "schedule.kind";
const MAX_STEPS: &str = "schedule.max_steps";

/// Bounds are far above any sensible experiment: they keep every derived product within 64 bits.
const STEPS: i64 = 1 << 40;
const WITH_WARMUP: &[&str] = &["cosine", "linear", "wsd"];

const fn key(path: &'static str, kind: Kind, default: Fallback, doc: &'static str) -> Key {
    Key::new(path, kind, default, doc)
}

/// Every key, in the order in which a resolved recipe is written.
pub const KEYS: &[Key] = &[
    key("extends", Extends, Absent, "recipe files that this one builds upon, later ones win"),
    key("name", Name, FileStem, "names the run directory")
        .identity(Never)
        .not_compared()
        .example("\"other\""),
    key(
        SEED,
        Integer { min: 0, max: i64::MAX },
        Is("1337"),
        "seeds the initial weights and the order of rows",
    )
    .example("1"),
    // model
    key(PRESET, Preset, Absent, "a published model, whose values every explicit key overrides"),
    key(
        "model.init_from",
        Start,
        Absent,
        "weights to begin from, a file or a directory, or { run, step, optimizer } to branch off a run",
    )
    .identity(Contents)
    .on_resume(Free)
    .example("\"weights\""),
    key("model.block_size", Integer { min: 1, max: 1 << 20 }, Is("1024"), "context length in tokens")
        .stated(AtMost)
        .also_called(&["n_ctx", "context_length"])
        .example("512"),
    key("model.vocab_size", Integer { min: 1, max: (1 << 24) - 1 }, Is("50257"), "number of token ids")
        .stated(Padded)
        .example("50000"),
    key(
        "model.vocab_multiple",
        Integer { min: 1, max: 1 << 16 },
        Is("1"),
        "embedding rows are padded up to a multiple of this, 1 turns it off",
    )
    .stated(Any)
    .example("128"),
    key("model.n_layer", Integer { min: 1, max: 1 << 10 }, Is("12"), "number of transformer blocks")
        .stated(Same)
        .also_called(&["num_layers"])
        .example("2"),
    key(
        "model.n_head",
        Integer { min: 1, max: 1 << 10 },
        Is("12"),
        "attention heads per block, divides n_embd",
    )
    .stated(Same)
    .also_called(&["num_heads"])
    .example("8"),
    key("model.n_embd", Integer { min: 1, max: 1 << 17 }, Is("768"), "width of the residual stream")
        .stated(Same)
        .also_called(&["hidden_size", "d_model"])
        .example("1536"),
    // compute
    key("compute.device", Device, Is("\"auto\""), "where to train").on_resume(Free).example("\"cpu\""),
    key(
        "compute.engine",
        Choice(&["fused", "dfdx"]),
        Is("\"fused\""),
        "the implementation of the training step",
    )
    .example("\"dfdx\""),
    key(
        PRECISION,
        Choice(&["fp32", "tf32", "bf16", "fp16"]),
        Is("\"fp32\""),
        "the precision of matrix-product operands",
    )
    .also_called(&["dtype"])
    .example("\"bf16\""),
    key("compute.attention", Choice(&["flash", "naive"]), Is("\"flash\""), "the attention implementation")
        .silenced_by(&FUSED)
        .example("\"naive\""),
    key(
        "compute.residual",
        Choice(&["fp32", "bf16"]),
        Is("\"fp32\""),
        "how the residual stream is stored, bf16 on CUDA only",
    )
    .silenced_by(&FUSED)
    .identity(UnlessDefault)
    .example("\"bf16\""),
    key("compute.threads", Integer { min: 0, max: 1 << 12 }, Is("0"), "CPU threads, 0 means all")
        .silenced_by(&CPU)
        .on_resume(Free)
        .example("1"),
    // data
    key(
        "data.train",
        Sources,
        Required,
        "training data: files, globs or builtin names, or a mixture of them with weights",
    )
    .identity(Contents)
    .on_resume(Free)
    .example("[\"../datasets/train-*.bin\"]"),
    key(
        "data.val",
        Files { min: 0 },
        Is("[]"),
        "validation data: files, globs or builtin names; empty means no validation",
    )
    .identity(Contents)
    .on_resume(Free)
    .example("[\"../datasets/val-*.bin\"]"),
    key(
        "data.val_fraction",
        Number(Fraction),
        Absent,
        "validate on the last tokens of data.train, this fraction of them, which are then not trained on",
    )
    .identity(UnlessDefault)
    .example("0.1"),
    key(
        "data.tokenizer",
        Choice(&["gpt2", "char", "bytes"]),
        Is("\"gpt2\""),
        "how text becomes tokens; a prepared set states its own",
    )
    .identity(UnlessDefault)
    .example("\"bytes\""),
    key("data.shuffle", Flag, Is("true"), "sample rows without replacement in a seeded order")
        .example("false"),
    // batch
    key(
        "batch.total_tokens",
        Integer { min: 1, max: 1 << 36 },
        Is("524288"),
        "tokens per optimizer step over all ranks",
    )
    .stated(Position)
    .also_called(&["total_batch_size", "gradient_accumulation_steps"])
    .example("1024"),
    key(
        "batch.micro_batch",
        MicroBatch { max: 1 << 20 },
        Is("\"auto\""),
        "sequences per forward pass per rank, or \"auto\"",
    )
    .also_called(&["batch_size"])
    .on_resume(Free)
    .example("4"),
    key("batch.world_size", Integer { min: 1, max: 1 << 16 }, Is("1"), "number of data-parallel ranks")
        .on_resume(Free)
        .example("2"),
    // distributed
    key(
        "distributed.shard_optimizer",
        Flag,
        Is("false"),
        "each rank keeps and updates its part of the optimizer's states only (ZeRO stage 1)",
    )
    .silenced_by(&RANKS)
    .identity(UnlessDefault)
    .on_resume(Free)
    .example("true"),
    key(
        "distributed.timeout_s",
        Integer { min: 1, max: 86_400 },
        Is("600"),
        "seconds after which a rank that does not answer counts as hung, and the run ends",
    )
    .silenced_by(&RANKS)
    .free()
    .example("7"),
    // optimizer
    key(
        "optimizer.kind",
        Choice(&["adamw", "muon"]),
        Is("\"adamw\""),
        "the update rule; with muon that of the matrices of the blocks, and AdamW's for everything else",
    )
    .identity(UnlessDefault)
    .example("\"muon\""),
    key("optimizer.lr", Number(Positive), Is("6e-4"), "peak learning rate")
        .also_called(&["learning_rate", "max_lr"])
        .example("1e-3"),
    key("optimizer.betas", Betas, Is("[0.9, 0.95]"), "decay rates of AdamW's two moments")
        .also_called(&["beta1", "beta2"])
        .example("[0.9, 0.99]"),
    key("optimizer.eps", Number(Positive), Is("1e-8"), "added to the square root of the second moment")
        .example("1e-6"),
    key(
        "optimizer.weight_decay",
        Number(NonNegative),
        Is("0.1"),
        "decay of tensors of two or more dimensions",
    )
    .example("0.0"),
    key(
        "optimizer.clip_norm",
        Number(NonNegative),
        Is("1.0"),
        "largest global gradient norm, 0 turns clipping off",
    )
    .also_called(&["grad_clip", "gradient_clip"])
    .example("0.0"),
    muon::LR,
    muon::MOMENTUM,
    muon::NESTEROV,
    muon::NS_STEPS,
    muon::NS_PRECISION,
    muon::WEIGHT_DECAY,
    muon::ADJUST,
    // schedule
    key(
        SCHEDULE_KIND,
        Choice(&["cosine", "constant", "linear", "wsd"]),
        Is("\"cosine\""),
        "the shape of the learning rate",
    )
    .example("\"linear\""),
    key(MAX_STEPS, Integer { min: 1, max: STEPS }, Required, "optimizer steps in the run")
        .also_called(&["max_iters", "lr_decay_iters"])
        .example("1000"),
    key("schedule.warmup_steps", Integer { min: 0, max: STEPS }, Is("0"), "steps of linear warm-up")
        .only_with(WITH_WARMUP)
        .also_called(&["warmup_iters"])
        .example("1"),
    key(
        "schedule.min_lr_ratio",
        Number(Unit),
        Is("0.1"),
        "the final learning rate as a fraction of the peak",
    )
    .only_with(WITH_WARMUP)
    .also_called(&["min_lr"])
    .example("0.0"),
    key(
        "schedule.decay_steps",
        Integer { min: 1, max: STEPS },
        FifthOf(MAX_STEPS),
        "steps of the final decay",
    )
    .only_with(&["wsd"])
    .example("3"),
    // eval
    key(
        "eval.every",
        Integer { min: 0, max: STEPS },
        Is("250"),
        "validate every this many steps, 0 means never",
    )
    .silenced_by(&VALIDATION)
    .free()
    .also_called(&["eval_interval"])
    .example("1"),
    key("eval.batches", Integer { min: 1, max: 1 << 32 }, Is("20"), "how many batches are averaged at most")
        .silenced_by(&VALIDATION)
        .on_resume(Free)
        .also_called(&["eval_iters"])
        .example("1"),
    // checkpoint
    key(
        "checkpoint.every",
        Integer { min: 0, max: STEPS },
        Is("1000"),
        "save every this many steps, 0 means at the end",
    )
    .free()
    .example("1"),
    key(
        "checkpoint.keep",
        Integer { min: 0, max: 1 << 32 },
        Is("3"),
        "how many of the newest are kept, 0 keeps all",
    )
    .free()
    .example("1"),
    key(
        "checkpoint.keep_best",
        Flag,
        Is("false"),
        "keep the one with the lowest validation loss besides, saved at its evaluation",
    )
    .silenced_by(&VALIDATION)
    .free()
    .example("true"),
    key(
        "checkpoint.background",
        Flag,
        Is("true"),
        "write from a copy while training goes on, where memory for the copy is free",
    )
    .free()
    .example("false"),
    // watchdog: a run that it has stopped must be able to go on under a milder one
    key(
        "watchdog.max_loss_zscore",
        Number(NonNegative),
        Is("0.0"),
        "largest rise of the loss in standard deviations of the window, 0 turns it off",
    )
    .identity(While(&WATCHDOG))
    .on_resume(Free)
    .example("6.0"),
    key(
        "watchdog.max_grad_zscore",
        Number(NonNegative),
        Is("0.0"),
        "largest rise of the gradient norm before clipping in standard deviations, 0 turns it off",
    )
    .identity(While(&WATCHDOG))
    .on_resume(Free)
    .example("6.0"),
    key(
        "watchdog.window",
        Integer { min: 2, max: 1 << 16 },
        Is("128"),
        "how many good steps are remembered; until there are as many, nothing is judged",
    )
    .silenced_by(&WATCHDOG)
    .identity(While(&WATCHDOG))
    .on_resume(Free)
    .example("64"),
    key(
        "watchdog.action",
        Choice(&["stop", "skip"]),
        Is("\"stop\""),
        "end the run at such a step, or leave its update out",
    )
    .silenced_by(&WATCHDOG)
    .identity(While(&WATCHDOG))
    .on_resume(Free)
    .example("\"skip\""),
    // sample
    key(
        "sample.every",
        Integer { min: 0, max: STEPS },
        Is("0"),
        "generate text every this many steps, 0 means never",
    )
    .free()
    .example("1"),
    key("sample.prompt", Text, Is("\"Hello, I'm a language model,\""), "what the generated text starts with")
        .silenced_by(&SAMPLES)
        .free()
        .example("\"O\""),
    key("sample.tokens", Integer { min: 1, max: 1 << 20 }, Is("32"), "how many tokens are generated")
        .silenced_by(&SAMPLES)
        .free()
        .example("1"),
    // lints
    key(
        "lints.allow",
        Choices(lint::CODES),
        Is("[]"),
        "lints that `runner plan` and training keep to themselves",
    )
    .free()
    .not_compared()
    .example("[\"ugly-vocab\"]"),
];
