//! `runner plan RECIPE`: everything that follows from a recipe on this machine, before anything is started.
//!
//! A plan may be made on another machine than the one that will train. So data that cannot be opened costs only the
//! lines that depend on it, and a run that does not fit in memory is shown with its figures.

use super::exit::Exit;
use super::voice::{Voice, ranks};
use crate::cli::{Format, PlanArgs};
use crate::plan::hardware::Hardware;
use crate::plan::lints::{Lint, Shards, Subject, lints};
use crate::plan::predict::Prediction;
use crate::plan::scaling::Scaling;
use crate::plan::{DataSize, Plan, gib};
use crate::recipe::{self, Diagnostics, EngineKind, Recipe, Resolved};
use crate::report::numbers::{duration, thousands};
use crate::session::inputs::{self, relative};
use crate::session::machine::{self, calibration};
use crate::session::{Audience, UsageError, supported};
use serde_json::{Value as Json, json};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Parameters under which the formula of operations is explained.
const FORMULA: &str = "6 N + 6 n_layer n_embd block_size";
const FORMULA_FROM: &str =
    "N parameters times 2 operations forward and 4 backward, and causal attention (Kaplan et al., 2020)";

/// All that there is to show.
struct Outlook<'a> {
    recipe: &'a Recipe,
    plan: Plan,
    hardware: Hardware,
    /// The data's shards, or why they could not be opened.
    data: Result<Shards, String>,
    prediction: Result<(Prediction, bool), String>,
    /// What several ranks cost, where it is known how fast they send.
    scaling: Option<Scaling>,
    lints: Vec<Lint>,
    /// Why training would be refused.
    refusal: Option<String>,
}

/// Prints the plan. Exit code 0 also where data are missing or memory is short.
pub(super) fn run(args: &PlanArgs) -> anyhow::Result<Exit> {
    let resolved = recipe::load(&args.recipe, &super::overrides(&args.overrides))?;
    let voice = Voice::default();
    supported::check(&resolved, &voice)?;
    if let Some(rate) = args.link.filter(|rate| !rate.is_finite() || *rate <= 0.0) {
        return Err(UsageError(format!("--link {rate}: ranks send at more than 0 GB/s")).into());
    }
    let outlook = Outlook::new(&resolved, &args.runs.runs_dir, args.link, &voice)?;
    super::print(&match args.format {
        Format::Text => outlook.text(),
        Format::Json => format!("{:#}\n", outlook.json()?),
    })?;
    Ok(Exit::Finished)
}

impl<'a> Outlook<'a> {
    fn new(
        resolved: &'a Resolved,
        runs_dir: &Path,
        link: Option<f64>,
        voice: &Voice,
    ) -> Result<Self, Diagnostics> {
        let recipe = &resolved.recipe;
        let blame = supported::at_its_key(resolved);
        let hardware = machine::hardware(recipe).map_err(&blame)?;
        let (size, data) = match inputs::open(resolved, runs_dir, voice.progress()) {
            Ok(data) => (data.size(), Ok(data.shards())),
            Err(error) => (DataSize::default(), Err(reason(&error))),
        };
        let plan = Plan::derive(recipe, &hardware, size, None).map_err(&blame)?;
        let refusal = plan.check_fit(&hardware).err().map(|error| format!("{error}; {}", error.help));
        let prediction = calibration::rates(&plan, recipe.compute.engine)
            .map(|(rates, remembered)| (plan.predict(&rates, &recipe.eval), remembered))
            .map_err(|error| error.to_string());
        let bytes_per_s = match link {
            _ if plan.ranks.world_size == 1 => None,
            Some(rate) => Some(rate * 1e9),
            // on other devices and machines there is nothing to measure here
            None if plan.cuda.is_some() || plan.ranks.here < plan.ranks.world_size => None,
            None => Some(calibration::link(plan.ranks.world_size)),
        };
        let scaling = prediction.as_ref().ok().zip(bytes_per_s);
        let scaling = scaling.map(|((prediction, _), rate)| plan.scaling(prediction, rate));
        let subject = Subject {
            recipe,
            plan: &plan,
            hardware: &hardware,
            shards: data.as_ref().ok(),
            prediction: prediction.as_ref().ok().map(|(prediction, _)| prediction),
        };
        let lints = lints(&subject);
        Ok(Self { recipe, plan, hardware, data, prediction, scaling, lints, refusal })
    }

    fn text(&self) -> String {
        let plan = &self.plan;
        let dims = &plan.memory.dims;
        let number = |n: usize| thousands(n as u64);
        let mut out = String::new();
        let mut line = |name: &str, text: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{name:<22}{text}");
        };
        line("recipe", self.recipe.name.clone());
        line("model", format!("{} parameters", number(plan.parameters.total)));
        for (name, group) in
            [("  decayed", plan.parameters.decayed), ("  not decayed", plan.parameters.not_decayed)]
        {
            line(name, format!("{} in {} tensors", number(group.elements), group.tensors));
        }
        let padding = plan.memory.dims.padded_vocab - dims.vocab_size;
        line("  vocabulary", format!("{} tokens and {padding} rows of padding", number(dims.vocab_size)));
        line(
            "batch",
            format!(
                "{} tokens per step = {}{} x {} rows of {} tokens",
                number(plan.batch.tokens_per_step),
                ranks(plan.ranks.world_size),
                plan.batch.micro_steps,
                plan.batch.micro_batch,
                dims.block_size
            ),
        );
        if plan.ranks.world_size > 1 {
            line("ranks", self.ranks_text());
            line("", format!("each sends {} bytes per step", thousands(plan.wire_bytes_per_step)));
        }
        line("run", format!("{} steps, {} tokens", thousands(plan.steps), thousands(plan.tokens)));
        for (i, text) in self.data_lines().into_iter().enumerate() {
            line(if i == 0 { "data" } else { "" }, text);
        }
        line("compute", format!("{:.1} MFLOP per token = {FORMULA}", plan.flops_per_token as f64 / 1e6));
        line("", FORMULA_FROM.to_owned());
        line("", format!("{} in all", flops(plan.flops)));
        let precision = if plan.emulated { " (emulated by rounding)" } else { "" };
        line(
            "device",
            format!(
                "{}, {}{} threads, {}{precision}",
                plan.device,
                ranks(plan.ranks.here),
                plan.threads,
                self.recipe.compute.precision.as_str()
            ),
        );
        let exact = if plan.bytes.exact { "" } else { "about " };
        let each = if plan.ranks.world_size > 1 { " for each rank" } else { "" };
        line(
            "memory",
            format!("{exact}{} = {} bytes{each}", gib(plan.bytes.total), number(plan.bytes.total)),
        );
        if self.recipe.compute.engine == EngineKind::Dfdx {
            line("", "an estimate: the dfdx engine allocates as it goes".to_owned());
        }
        for (kind, bytes) in &plan.bytes.kinds {
            line(&format!("  {}", kind.replace('_', " ")), format!("{} bytes", number(*bytes)));
        }
        if plan.bytes.snapshot > 0 {
            let bytes = number(plan.bytes.snapshot);
            line(
                "  checkpoint copy",
                format!("{bytes} bytes more while one is written, if they are free then"),
            );
        }
        line("  free", gib(self.hardware.free_memory));
        line("predicted", self.prediction_text());
        if plan.ranks.world_size > 1 {
            line("", self.scaling_text());
        }
        if let Some(refusal) = &self.refusal {
            let _ = writeln!(out, "\nthis run would be refused: {refusal}");
        }
        for lint in &self.lints {
            let code = lint.code.as_str();
            let _ = write!(
                out,
                "\nlint {code}: {}\n  {}\n  to silence it: [lints] allow = [\"{code}\"]\n",
                lint.message, lint.help
            );
        }
        out
    }

    fn data_lines(&self) -> Vec<String> {
        let plan = &self.plan;
        if let Err(why) = &self.data {
            return vec![format!("could not be opened, so epochs are unknown: {why}")];
        }
        let seen = match (plan.epochs.floor(), plan.epochs.ceil()) {
            (low, high) if low == high => format!("{low} times"),
            (low, high) => format!("{low} or {high} times"),
        };
        let mut lines = vec![
            format!(
                "{} tokens for training in {} rows",
                thousands(plan.data.train_tokens),
                thousands(plan.data.train_rows)
            ),
            format!("{:.2} epochs: each row is seen {seen}", plan.epochs),
        ];
        lines.push(match (plan.eval_rows, self.recipe.eval.every) {
            (0, _) => "no validation".to_owned(),
            (rows, 0) => {
                format!("{} rows for validation, never used: eval.every = 0", thousands(rows as u64))
            }
            (rows, every) => format!(
                "validation on {} of {} rows every {} steps",
                thousands(rows as u64),
                thousands(plan.data.val_rows),
                thousands(every)
            ),
        });
        lines
    }

    fn ranks_text(&self) -> String {
        let plan = &self.plan;
        let moments = if plan.shard.count > 1 { ", with a part of the moments each" } else { "" };
        format!(
            "{} of {} rows per step{moments}",
            thousands(plan.ranks.world_size as u64),
            thousands(plan.batch.rows_per_rank as u64)
        )
    }

    fn scaling_text(&self) -> String {
        match &self.scaling {
            None => "without the time in which gradients are added up: give --link GB/S, as `runner bench` measures \
                     it"
                .into(),
            Some(scaling) => format!(
                "of a step of {:.3} s, {:.3} s go into adding up gradients at {:.2} GB/s: {:.1} % of what {} ranks \
                 could do",
                scaling.step_s,
                scaling.exposed_s,
                scaling.bytes_per_s / 1e9,
                scaling.efficiency * 100.0,
                self.plan.ranks.world_size
            ),
        }
    }

    fn prediction_text(&self) -> String {
        let exposed_s = self.scaling.map_or(0.0, |scaling| scaling.exposed_s * self.plan.steps as f64);
        match &self.prediction {
            Ok((prediction, remembered)) => format!(
                "{} for the run at {} tokens/s, from a small step timed {}",
                time(prediction.total_s + exposed_s),
                rate(self.scaling.map_or(prediction.tokens_per_s, |scaling| scaling.tokens_per_s)),
                if *remembered { "earlier" } else { "now" }
            ),
            Err(why) => format!("nothing: {why}"),
        }
    }

    fn json(&self) -> serde_json::Result<Json> {
        let compute = &self.recipe.compute;
        let mut out = json!({
            "recipe": self.recipe.name,
            "engine": compute.engine,
            "precision": compute.precision,
            "attention": compute.attention,
        });
        if let (Some(out), Json::Object(plan)) =
            (out.as_object_mut(), serde_json::to_value(self.plan.document())?)
        {
            out.extend(plan);
        }
        out["bytes"] =
            self.plan.bytes.kinds.iter().map(|(kind, bytes)| ((*kind).to_owned(), json!(bytes))).collect();
        out["flops_formula"] = format!("{FORMULA}: {FORMULA_FROM}").into();
        if self.data.is_err() {
            for key in ["data", "epochs", "eval_rows"] {
                out[key] = Json::Null;
            }
        }
        out["data_error"] = json!(self.data.as_ref().err());
        out["free_bytes"] = self.hardware.free_memory.into();
        out["refusal"] = json!(self.refusal);
        out["predicted"] = json!(self.prediction.as_ref().ok().map(|(prediction, _)| prediction));
        out["scaling"] = json!(self.scaling);
        out["lints"] = json!(self.lints);
        Ok(out)
    }
}

/// Tokens per second, with a decimal where that matters.
fn rate(tokens_per_s: f64) -> String {
    if tokens_per_s < 10.0 { format!("{tokens_per_s:.1}") } else { thousands(tokens_per_s as u64) }
}

/// Seconds, in the units that suit them.
fn time(seconds: f64) -> String {
    const DAY: f64 = 86_400.0;
    if seconds > 2.0 * DAY {
        return format!("{} days", thousands((seconds / DAY) as u64));
    }
    duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO))
}

/// Why data could not be opened, with paths below the current directory relative to it.
fn reason(error: &anyhow::Error) -> String {
    let text = match error.downcast_ref::<Diagnostics>() {
        Some(problems) => problems.titles().collect::<Vec<_>>().join("; "),
        None => format!("{error:#}"),
    };
    relative(&text)
}

/// Operations in the unit that suits them.
fn flops(flops: f64) -> String {
    let units = [(1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")];
    let (unit, name) = units.into_iter().find(|(unit, _)| flops >= *unit).unwrap_or((1e6, "MFLOP"));
    format!("{:.1} {name}", flops / unit)
}
