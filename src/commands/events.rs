//! `--log-format json`: what happens in a session, one JSON object on each line of stderr, for programs.
//!
//! The schema is committed as `docs/events.schema.json`; a test holds the two together, and what is printed against it.

use super::amiss::{is_amiss, warning};
use super::terminal;
use crate::data::Progress;
use crate::session::{Audience, End, Event};
use serde_json::{Map, Value as Json, json};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The audience of a command whose stderr a program reads.
pub(super) struct Events {
    /// Whether only what is wrong is said.
    quiet: bool,
    /// The run that events are about.
    run: Mutex<Option<PathBuf>>,
}

impl Events {
    /// From now on stderr gets JSON alone.
    pub(super) fn new(quiet: bool) -> Self {
        terminal::speak_json();
        Self { quiet, run: Mutex::new(None) }
    }

    fn about(&self, run: &Path) {
        *self.run.lock().unwrap_or_else(PoisonError::into_inner) = Some(run.to_path_buf());
    }

    /// Writes an event of this kind about the run at hand.
    fn write(&self, kind: &str, fields: Json) {
        let run = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        let mut event = Map::new();
        if let Some(run) = &*run {
            event.insert("run".into(), run.display().to_string().into());
        }
        event.extend(fields.as_object().cloned().unwrap_or_default());
        terminal::event(kind, event);
    }

    fn ended(&self, end: &End) {
        let mut fields = json!({
            "status": end.status().to_string(),
            "step": end.steps_done,
            "steps": end.steps,
            "loss": end.loss,
            "val_loss": end.val_loss,
            "tokens_per_s": end.tokens_per_s,
            "elapsed_s": end.elapsed.as_secs_f64(),
        });
        if let Some(error) = end.error() {
            fields["error"] = error.into();
        }
        self.write("end", fields);
    }
}

impl Audience for Events {
    fn tell(&self, event: Event) {
        match &event {
            Event::AlreadyFinished { run, .. }
            | Event::AlreadyDiverged { run, .. }
            | Event::Planned { run, .. }
            | Event::Rehearsed { run, .. } => self.about(run),
            Event::Ended(end) => self.about(end.run),
            _ => {}
        }
        if self.quiet && !is_amiss(&event) {
            return;
        }
        if let Some(message) = warning(&event) {
            return self.write("warning", json!({ "message": message }));
        }
        match event {
            Event::AlreadyFinished { .. } => {
                self.write("end", json!({ "status": "finished", "before": true }))
            }
            Event::AlreadyDiverged { error, .. } => {
                self.write("end", json!({ "status": "diverged", "error": error, "before": true }));
            }
            Event::SetAside { aside, instead } => {
                let message =
                    format!("set aside as {}; going on from {}", aside.display(), instead.display());
                self.write("warning", json!({ "message": message }));
            }
            Event::Planned { step, plan, prediction, lints, .. } => {
                let lints: Vec<Json> = lints
                    .iter()
                    .map(|lint| json!({ "code": lint.code.as_str(), "message": lint.message, "help": lint.help }))
                    .collect();
                let fields = json!({
                    "step": step,
                    "steps": plan.steps,
                    "predicted_s": prediction.map(|prediction| prediction.total_s),
                    "lints": lints,
                    "plan": plan.document(),
                });
                self.write("plan", fields);
            }
            Event::Begins(message) => self.write("message", json!({ "message": message })),
            Event::Rehearsed { step, steps, checkpoint, discarded, .. } => self.write(
                "rehearsal",
                json!({
                    "step": step,
                    "steps": steps,
                    "checkpoint": checkpoint.map(|checkpoint| checkpoint.display().to_string()),
                    "discards": discarded.is_some(),
                }),
            ),
            Event::Step { report, steps, row, .. } => self.write(
                "step",
                json!({
                    "step": report.step,
                    "steps": steps,
                    "tokens": row.tokens,
                    "loss": report.loss,
                    "lr": report.lr,
                    "grad_norm": report.grad_norm,
                    "epoch": row.epoch,
                    "loss_scale": row.loss_scale,
                    "skipped": row.skipped,
                    "step_ms": row.step_ms,
                    "tokens_per_s": row.tokens_per_s,
                    "mfu": row.mfu,
                    "memory_bytes": row.memory_bytes,
                    "elapsed_s": row.elapsed_s,
                }),
            ),
            Event::Evaluated { step, steps, tokens, val_loss, also } => {
                let also: Map<String, Json> =
                    also.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
                self.write(
                    "eval",
                    json!({ "step": step, "steps": steps, "tokens": tokens, "val_loss": val_loss, "also": also }),
                );
            }
            Event::Sampled { step, text, .. } => self.write("sample", json!({ "step": step, "text": text })),
            Event::CopyDoesNotFit { needed, free } => {
                let message = format!(
                    "a copy of {needed} bytes does not fit in the {free} bytes of memory that are free: training waits \
                     while checkpoints are written"
                );
                self.write("message", json!({ "message": message }));
            }
            Event::Saved { step, checkpoint, took } => self.write(
                "checkpoint",
                json!({
                    "step": step,
                    "path": checkpoint.display().to_string(),
                    "seconds": took.as_secs_f64(),
                }),
            ),
            Event::Ended(end) => self.ended(end),
            Event::Failed(error) => terminal::report(error),
            Event::Hung(error) => super::signals::end_hung(error),
            // said by others, or part of what is said
            _ => {}
        }
    }

    fn result(&self, run: &Path) -> anyhow::Result<()> {
        self.about(run);
        super::print_path(run).map(drop)
    }

    fn progress(&self) -> &dyn Progress {
        self
    }
}

impl Progress for Events {
    fn start(&self, what: &str, _total: u64) {
        if !self.quiet {
            self.write("message", json!({ "message": what }));
        }
    }

    fn advance(&self, _by: u64) {}

    fn finish(&self) {}
}

/// The JSON Schema of a line.
pub(super) fn schema() -> String {
    let number = json!({ "type": "number" });
    // a number that is not finite is null
    let measure = json!({ "type": ["number", "null"] });
    let (count, text) = (json!({ "type": "integer", "minimum": 0 }), json!({ "type": "string" }));
    let flag = json!({ "type": "boolean" });
    let kind = |name: &str, about: &str, required: Json, optional: Json| {
        let mut properties = Map::from_iter([("event".to_owned(), json!({ "const": name }))]);
        properties
            .insert("time".into(), json!({ "type": "string", "format": "date-time", "description": "UTC" }));
        properties.insert(
            "run".into(),
            json!({ "type": "string", "description": "the run's directory, once it is known" }),
        );
        let mut names = vec![json!("event"), json!("time")];
        for (name, schema) in required.as_object().into_iter().flatten() {
            names.push(name.as_str().into());
            properties.insert(name.clone(), schema.clone());
        }
        properties.extend(optional.as_object().cloned().unwrap_or_default());
        json!({
            "description": about,
            "type": "object",
            "properties": properties,
            "required": names,
            "additionalProperties": false,
        })
    };
    let none = || json!({});
    let message = || json!({ "message": text });
    let lint = json!({
        "type": "object",
        "properties": { "code": text, "message": text, "help": text },
        "required": ["code", "message", "help"],
        "additionalProperties": false,
    });
    let mut kinds = Vec::new();
    let mut add = |name: &str, about: &str, required: Json, optional: Json| {
        kinds.push(kind(name, about, required, optional));
    };
    add(
        "plan",
        "everything is settled, and a run is about to be trained",
        json!({
            "step": count, "steps": count, "predicted_s": measure,
            "lints": { "type": "array", "items": lint },
            "plan": { "type": "object", "description": "as `plan` in run.json has it" },
        }),
        none(),
    );
    add(
        "rehearsal",
        "what --dry-run would train",
        json!({
            "step": count, "steps": count, "checkpoint": { "type": ["string", "null"] }, "discards": flag,
        }),
        none(),
    );
    add(
        "step",
        "an optimizer step was done; the row of train.csv",
        json!({
            "step": count, "steps": count, "tokens": count, "loss": measure, "lr": number,
            "grad_norm": measure, "epoch": number, "loss_scale": number, "skipped": flag, "step_ms": number,
            "tokens_per_s": number, "mfu": measure, "memory_bytes": count, "elapsed_s": number,
        }),
        none(),
    );
    add(
        "eval",
        "the validation loss was computed; the row of val.csv",
        json!({
            "step": count, "steps": count, "tokens": count, "val_loss": measure,
            "also": { "type": "object", "additionalProperties": measure },
        }),
        none(),
    );
    add("sample", "the model has generated a text", json!({ "step": count, "text": text }), none());
    add(
        "checkpoint",
        "a checkpoint is on the disk",
        json!({
            "step": count, "path": text, "seconds": number,
        }),
        none(),
    );
    add(
        "end",
        "nothing more is said about the run",
        json!({
            "status": { "enum": ["finished", "interrupted", "diverged", "failed"] },
        }),
        json!({
            "before": { "const": true, "description": "nothing was trained: the run had ended before" },
            "step": count, "steps": count, "loss": measure, "val_loss": measure,
            "tokens_per_s": measure, "elapsed_s": number, "error": text,
        }),
    );
    add("message", "something worth knowing, in words", message(), none());
    add("warning", "something that may need looking after, in words", message(), none());
    add("error", "what went wrong and what to do, in words", message(), none());
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of a training",
        "description": "a line of what `runner RECIPE... --log-format json` writes to stderr",
        "oneOf": kinds,
    });
    format!("{schema:#}")
}
