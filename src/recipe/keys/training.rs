//! Rows of the table: batch, ranks, optimizer and schedule.

use super::Fallback::{Absent, FifthOf, Is, Required, SameAs};
use super::Identity::{UnlessDefault, While};
use super::Interval::{NonNegative, Positive, Unit};
use super::Key;
use super::Kind::{Betas, Choice, Flag, Integer, MicroBatch, Number, Tokens};
use super::OnResume::Free;
use super::Stated::Position;
use super::muon;
use super::switch::{RAMP, RANKS, VALIDATION};
use super::table::{BATCH, MAX_STEPS, RAMP_START, SCHEDULE_KIND, STEPS, TOKENS, WITH_WARMUP, key};

pub(super) const ROWS: &[Key] = &[
    // batch
    key(
        "batch.total_tokens",
        Integer { min: 1, max: BATCH },
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
    key(
        RAMP_START,
        Integer { min: 0, max: BATCH },
        Is("0"),
        "tokens of the first steps, from which the batch grows to total_tokens; 0 means that it does not grow",
    )
    .identity(UnlessDefault)
    .stated(Position)
    .also_called(&["rampup_batch_size"])
    .example("1024"),
    key("batch.ramp_tokens", Tokens { max: TOKENS }, Absent, "over how many tokens the batch grows")
        .silenced_by(&RAMP)
        .identity(UnlessDefault)
        .stated(Position)
        .example("10000"),
    key(
        "batch.ramp_increment",
        Integer { min: 1, max: BATCH },
        SameAs(RAMP_START),
        "by how many tokens a step grows at a time",
    )
    .silenced_by(&RAMP)
    .identity(While(&RAMP))
    .stated(Position)
    .example("1024"),
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
        "optimizer.embedding_lr_factor",
        Number(NonNegative),
        Is("1.0"),
        "the learning rate of both embeddings as a multiple of lr",
    )
    .identity(UnlessDefault)
    .example("0.3"),
    key(
        "optimizer.weight_decay_embeddings",
        Number(NonNegative),
        Absent,
        "decay of both embeddings, if it is not weight_decay",
    )
    .identity(UnlessDefault)
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
        .instead_of("schedule.max_tokens")
        .also_called(&["max_iters", "lr_decay_iters"])
        .example("1000"),
    key(
        "schedule.max_tokens",
        Tokens { max: TOKENS },
        Absent,
        "tokens of the run at most, in whole steps, instead of max_steps",
    )
    .identity(UnlessDefault)
    .also_called(&["train_tokens"])
    .example("1_000_000_000"),
    key("schedule.warmup_steps", Integer { min: 0, max: STEPS }, Is("0"), "steps of linear warm-up")
        .only_with(WITH_WARMUP)
        .instead_of("schedule.warmup_tokens")
        .also_called(&["warmup_iters"])
        .example("1"),
    key(
        "schedule.warmup_tokens",
        Tokens { max: TOKENS },
        Absent,
        "tokens of linear warm-up, instead of warmup_steps",
    )
    .only_with(WITH_WARMUP)
    .identity(UnlessDefault)
    .example("1024"),
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
        "steps of the final, linear decay (wsd), or after which the rate has fallen to its minimum (cosine, linear)",
    )
    .only_with(WITH_WARMUP)
    .special_in("wsd")
    .stays_without_kind()
    .instead_of("schedule.decay_tokens")
    .example("3"),
    key(
        "schedule.decay_tokens",
        Tokens { max: TOKENS },
        Absent,
        "tokens of the final, linear decay (wsd), or after which the rate has fallen to its minimum (cosine, linear)",
    )
    .only_with(WITH_WARMUP)
    .special_in("wsd")
    .identity(UnlessDefault)
    .example("3072"),
    // as with the watchdog: what a run ends with depends on it, and a run that it has ended must be able to go on
    key(
        "schedule.stop_at_val_loss",
        Number(Positive),
        Absent,
        "end the run after the first evaluation whose val_loss is at most this",
    )
    .silenced_by(&VALIDATION)
    .identity(UnlessDefault)
    .on_resume(Free)
    .example("3.28"),
];
