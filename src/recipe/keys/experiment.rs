//! Rows of the table: the recipe's own keys, model, device and data.

use super::Fallback::{Absent, FileStem, Is, Required};
use super::Identity::{Contents, Never, UnlessDefault};
use super::Interval::{BelowOne, Fraction};
use super::Key;
use super::Kind::{Choice, Device, Extends, Flag, Integer, Name, Number, Preset, Sets, Sources, Start, Text};
use super::OnResume::Free;
use super::Stated::{Any, AtMost, Padded, Same};
use super::switch::{CPU, FUSED, TAPE, VALIDATION};
use super::table::{PRECISION, PRESET, SEED, key};

pub(super) const ROWS: &[Key] = &[
    key("extends", Extends, Absent, "recipe files that this one builds upon, later ones win"),
    key("name", Name, FileStem, "names the run directory")
        .identity(Never)
        .not_compared()
        .example("\"other\""),
    key(
        SEED,
        Integer { min: 0, max: i64::MAX },
        Is("1337"),
        "seeds the initial weights, the order of rows and dropout",
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
    key(
        "model.dropout",
        Number(BelowOne),
        Is("0.0"),
        "share of activations that training drops, 0 turns it off",
    )
    .identity(UnlessDefault)
    .also_called(&["attn_pdrop", "resid_pdrop", "embd_pdrop"])
    .example("0.1"),
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
    key(
        "compute.recompute",
        Choice(&["none", "mlp", "block", "auto"]),
        Is("\"none\""),
        "what the backward pass computes again to save memory, auto takes the least that fits; results stay the same",
    )
    .silenced_by(&TAPE)
    .free()
    .example("\"block\""),
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
        Sets,
        Is("[]"),
        "validation data: files, globs or builtin names, or several sets of them by name; empty means no validation",
    )
    .identity(Contents)
    .on_resume(Free)
    .example("[\"../datasets/val-*.bin\"]"),
    key(
        "data.val_main",
        Text,
        Absent,
        "the set of data.val whose loss is val_loss and decides which checkpoint is best, where there are several sets",
    )
    .silenced_by(&VALIDATION)
    .identity(UnlessDefault)
    .example("\"web\""),
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
];
