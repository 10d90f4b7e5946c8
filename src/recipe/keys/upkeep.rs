//! Rows of the table: evaluation, checkpoints, watchdog, samples, further logs and lints.

use super::Fallback::{Absent, Is};
use super::Identity::{UnlessDefault, While};
use super::Interval::NonNegative;
use super::Key;
use super::Kind::{Choice, Choices, File, Files, Flag, Integer, Number, Text};
use super::OnResume::Free;
use super::switch::{SAMPLES, VALIDATION, WATCHDOG};
use super::table::{STEPS, key};
use crate::recipe::lint;

pub(super) const ROWS: &[Key] = &[
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
    .between_steps()
    .example("1"),
    key("eval.batches", Integer { min: 1, max: 1 << 32 }, Is("20"), "how many batches are averaged at most")
        .silenced_by(&VALIDATION)
        .instead_of("eval.tokens")
        .also_called(&["eval_iters"])
        .between_steps()
        .example("1"),
    key(
        "eval.tokens",
        Integer { min: 1, max: 1 << 50 },
        Absent,
        "how many tokens are averaged at most, rounded up to whole rows, instead of eval.batches",
    )
    .silenced_by(&VALIDATION)
    .identity(UnlessDefault)
    .also_called(&["val_tokens"])
    .between_steps()
    .example("64"),
    key(
        "eval.hellaswag",
        File,
        Absent,
        "HellaSwag's examples, of which each evaluation gives the accuracy, in val.csv",
    )
    .silenced_by(&VALIDATION)
    .free()
    .between_steps()
    .example("\"../datasets/hellaswag_val.jsonl\""),
    key(
        "eval.tasks",
        Files { min: 0 },
        Is("[]"),
        "further files of examples, such as LAMBADA's, of which each evaluation gives the accuracy",
    )
    .silenced_by(&VALIDATION)
    .free()
    .between_steps()
    .example("[\"../datasets/lambada_test.jsonl\"]"),
    key(
        "eval.missing",
        Choice(&["error", "skip"]),
        Is("\"error\""),
        "what becomes of a task whose file is not there: an error, or the run trains without it and says so",
    )
    .silenced_by(&VALIDATION)
    .free()
    .example("\"skip\""),
    // checkpoint
    key(
        "checkpoint.every",
        Integer { min: 0, max: STEPS },
        Is("1000"),
        "save every this many steps, 0 means at the end",
    )
    .free()
    .between_steps()
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
    .between_steps()
    .example("true"),
    key(
        "checkpoint.background",
        Flag,
        Is("true"),
        "write from a copy while training goes on, where memory for the copy is free",
    )
    .free()
    .between_steps()
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
    .between_steps()
    .example("1"),
    key("sample.prompt", Text, Is("\"Hello, I'm a language model,\""), "what the generated text starts with")
        .silenced_by(&SAMPLES)
        .free()
        .example("\"O\""),
    key("sample.tokens", Integer { min: 1, max: 1 << 20 }, Is("32"), "how many tokens are generated")
        .silenced_by(&SAMPLES)
        .free()
        .between_steps()
        .example("1"),
    // log
    key(
        "log.tensorboard",
        Flag,
        Is("false"),
        "also write the logs, the samples and the recipe as an event file that TensorBoard shows",
    )
    .free()
    .not_compared()
    .between_steps()
    .example("true"),
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
