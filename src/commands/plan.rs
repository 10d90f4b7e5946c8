//! `runner plan RECIPE`: everything that follows from a recipe on this machine, before anything is started.
//!
//! A plan may be made on another machine than the one that will train. So data that cannot be opened costs only the
//! lines that depend on it, and a run that does not fit in memory is shown with its figures.

pub(super) mod roofline;
mod text;

use super::exit::Exit;
use super::named::Named;
use super::voice::Voice;
use crate::cli::{Format, PlanArgs, RooflineDevice};
use crate::plan::hardware::Hardware;
use crate::plan::lints::{Lint, Shards, Subject, lints};
use crate::plan::predict::Prediction;
use crate::plan::roofline::Roofline;
use crate::plan::scaling::Scaling;
use crate::plan::{Begun, DataSize, PROGRAM_BYTES, Plan};
use crate::recipe::{self, Recipe, Resolved};
use crate::run::record::Peak;
use crate::session::ending::in_short;
use crate::session::inputs::{self, relative};
use crate::session::machine::calibration::{self, Basis};
use crate::session::machine::{self, Cache};
use crate::session::standing::{Standing, begun, run_id};
use crate::session::{UsageError, supported};
use serde_json::{Value as Json, json};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Parameters under which the formula of operations is explained.
const FORMULA: &str = "6 N + 6 n_layer n_embd block_size";
const FORMULA_FROM: &str =
    "N parameters times 2 operations forward and 4 backward, and causal attention (Kaplan et al., 2020)";

/// How fast ranks may be said to send, in GB/s.
const LINKS: RangeInclusive<f64> = 1e-6..=1e6;

/// All that there is to show.
struct Outlook<'a> {
    recipe: &'a Recipe,
    /// What the run begins from, where that is more than random weights.
    begins: Vec<String>,
    plan: Plan,
    hardware: Hardware,
    /// The data's shards, or why they could not be opened.
    data: Result<Shards, String>,
    /// The recipe's run; none without the data, which are part of what names it.
    run: Option<Run>,
    /// What the device can do at most.
    peak: Peak,
    /// How long it will take, and what that was taken from.
    prediction: Result<(Prediction, Basis), String>,
    /// What several ranks cost, where it is known how fast they send.
    scaling: Option<Scaling>,
    lints: Vec<Lint>,
    /// Why training would be refused.
    refusal: Option<String>,
    /// The modelled step, if it was asked for.
    roofline: Option<Roofline>,
}

/// The run of a recipe.
struct Run {
    id: String,
    path: PathBuf,
    /// How it stands, or why that cannot be told.
    standing: Result<Standing, String>,
}

/// Prints the plan. Exit code 0 also where data are missing or memory is short.
pub(super) fn run(args: &PlanArgs) -> anyhow::Result<Exit> {
    let (recipe, overrides) = Named::here(&args.recipe).one("plan")?;
    let resolved = recipe::load_among(&recipe, &overrides, &args.runs.runs_dir)?;
    let voice = Voice::default();
    let here = args.ranks_here.map(|here| here as usize);
    supported::check_here(&resolved, here, models_elsewhere(args), &voice)?;
    if let Some(rate) = args.link.filter(|rate| !LINKS.contains(rate)) {
        let (least, most) = (LINKS.start(), LINKS.end());
        return Err(UsageError(format!("--link {rate}: ranks send at {least} to {most} GB/s")).into());
    }
    let outlook = Outlook::new(&resolved, args, &voice)?;
    super::print(&match args.format {
        Format::Text => outlook.text(),
        Format::Json => format!("{:#}\n", outlook.json()?),
    })?;
    Ok(Exit::Finished)
}

/// Whether a step is to be modelled on a device that need not be here.
fn models_elsewhere(args: &PlanArgs) -> bool {
    args.roofline.is_some_and(|device| device != RooflineDevice::Here)
}

impl<'a> Outlook<'a> {
    fn new(resolved: &'a Resolved, args: &PlanArgs, voice: &Voice) -> anyhow::Result<Self> {
        let (recipe, runs_dir) = (&resolved.recipe, &args.runs.runs_dir);
        let blame = supported::at_its_key(resolved);
        let here = args.ranks_here.map(|here| here as usize);
        let hardware = machine::hardware_of(recipe, here);
        let missing =
            models_elsewhere(args).then(|| supported::missing_here(recipe, here, &hardware)).flatten();
        let hardware = match hardware {
            // what is not modelled is planned for the CPU
            Err(_) if missing.is_some() => machine::hardware_of(&supported::on_cpu(recipe), here),
            known => known,
        };
        let hardware = hardware.map_err(&blame)?;
        let (size, data, run, start) = match inputs::open(resolved, runs_dir, false, voice) {
            Ok(data) => {
                inputs::tell_of_discrepancies(&recipe.data, voice);
                // the step of a branch belongs to what names the run
                let pinned = data.start.pinned(resolved.clone()).recipe;
                let id = run_id(&pinned, &recipe::identity(&pinned, &data.digests));
                let path = runs_dir.join(&id);
                let standing =
                    Standing::of(&path, recipe.schedule.stop_at_val_loss).map_err(|error| error.to_string());
                let shards = data.shards();
                (
                    data.size(),
                    Ok(shards),
                    Some(Run { id, path, standing }),
                    (data.start.lines(), data.start.before()),
                )
            }
            Err(error) => (DataSize::default(), Err(reason(&error)), None, Default::default()),
        };
        let (begins, before) = start;
        let begun = run.as_ref().and_then(|run| run.begun(recipe));
        let plan = Plan::derive(recipe, &hardware, size, begun).map_err(&blame)?.after(before);
        let refusal = missing.map_or_else(|| plan.check_fit(&hardware), Err);
        let refusal = refusal.err().map(|error| format!("{error}; {}", error.help));
        let rates = if args.measure { calibration::measured } else { calibration::rates };
        let prediction = rates(&plan, recipe.compute.engine, &Cache::of_user())
            .map(|(rates, basis)| (plan.predict(&rates, &recipe.eval), basis))
            .map_err(|error| error.to_string());
        let peak = machine::peaks::peak(&plan, &Cache::of_user());
        let bytes_per_s = match args.link {
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
        let roofline =
            args.roofline.map(|device| roofline::model(recipe, (&plan, &hardware), device)).transpose()?;
        Ok(Self {
            recipe,
            begins,
            plan,
            hardware,
            data,
            run,
            peak,
            prediction,
            scaling,
            lints,
            refusal,
            roofline,
        })
    }

    /// The prediction with what ranks say to each other.
    fn with_ranks(&self, prediction: &Prediction) -> Prediction {
        let Some(scaling) = self.scaling else { return *prediction };
        let exposed_s = scaling.exposed_s * self.plan.own_steps() as f64;
        Prediction {
            step_s: scaling.step_s,
            tokens_per_s: scaling.tokens_per_s,
            training_s: prediction.training_s + exposed_s,
            total_s: prediction.total_s + exposed_s,
            ..*prediction
        }
    }

    /// The share of the peak that the model's operations are predicted to make up.
    fn mfu(&self) -> Option<f64> {
        let (prediction, _) = self.prediction.as_ref().ok()?;
        Some(self.with_ranks(prediction).tokens_per_s * self.plan.flops_per_token as f64 / self.peak.flops)
    }

    /// Bytes that are free where the run would be: on its device, or on this machine, all ranks together.
    fn free(&self) -> usize {
        self.hardware.cuda.as_ref().map_or(self.hardware.free_memory, |cuda| cuda.free_memory)
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
        out["begins"] = json!(self.begins);
        out["data_error"] = json!(self.data.as_ref().err());
        out["program_bytes"] = json!(self.plan.cuda.is_none().then_some(PROGRAM_BYTES));
        out["free_bytes"] = self.free().into();
        out["host_free_bytes"] = self.hardware.free_memory.into();
        out["refusal"] = json!(self.refusal);
        out["predicted"] =
            json!(self.prediction.as_ref().ok().map(|(prediction, _)| self.with_ranks(prediction)));
        out["predicted_from"] = json!(self.prediction.as_ref().ok().map(|(_, basis)| basis));
        out["predicted_mfu"] = json!(self.mfu());
        out["peak"] = json!(self.peak);
        out["run"] = json!(self.run.as_ref().map(Run::json));
        out["scaling"] = json!(self.scaling);
        out["lints"] = json!(self.lints);
        if let Some(roofline) = &self.roofline {
            out["roofline"] = json!(roofline);
        }
        Ok(out)
    }
}

impl Run {
    /// What it keeps of earlier choices, if it would go on.
    fn begun(&self, recipe: &Recipe) -> Option<Begun> {
        matches!(self.standing, Ok(Standing::Begun { .. })).then(|| begun(&self.path, recipe)).flatten()
    }

    fn json(&self) -> Json {
        let mut out = json!({
            "id": self.id,
            "directory": self.path,
            "state": self.standing.as_ref().ok().map(Standing::word),
            "steps_done": null,
            "checkpoint": null,
            "process": null,
            "error": null,
        });
        match &self.standing {
            Ok(Standing::Begun { steps_done, checkpoint, error, .. }) => {
                out["steps_done"] = json!(steps_done);
                out["checkpoint"] = json!(checkpoint.as_ref().map(|(step, _)| step));
                out["error"] = json!(error);
            }
            Ok(Standing::Live { holder, steps_done }) => {
                out["steps_done"] = json!(steps_done);
                out["process"] = json!(holder);
            }
            Ok(Standing::Finished { at_target: Some(step) }) => out["steps_done"] = json!(step),
            Ok(Standing::Diverged { error }) | Err(error) => out["error"] = json!(error),
            Ok(Standing::NotBegun | Standing::Finished { at_target: None }) => {}
        }
        out
    }
}

/// Why data could not be opened, with paths below the current directory relative to it.
fn reason(error: &anyhow::Error) -> String {
    relative(&in_short(error))
}
