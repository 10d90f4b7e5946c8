//! `runner verify RECIPE`: is the recipe's engine right, on this machine, for this model?

mod rows;
mod scope;
mod show;

use super::build;
use super::device;
use super::exit::{Exit, UsageError};
use crate::cli::{Format, VerifyArgs};
use crate::engine::memory::MemoryPlan;
use crate::engine::optimizer::{OptimizerKind, OptimizerStep};
use crate::engine::verify::{Report, Tolerances, verify};
use crate::model::init::{initialize, random_bits};
use crate::model::{Dims, ParamLayout};
use crate::plan::{PlanError, gib};
use crate::recipe::{self, EngineKind, Recipe};
use crate::run::RunError;
use crate::train::scaler::LossScaler;
use rows::Rows;
use scope::{Scope, Setting};
use serde::Serialize;

/// The JSON document; its keys are part of the interface.
#[derive(Serialize)]
struct Output<'a> {
    recipe: &'a str,
    device: String,
    precision: recipe::Precision,
    attention: recipe::Attention,
    rows: &'a str,
    declared: Scope,
    verified: Scope,
    #[serde(flatten)]
    report: &'a Report,
}

/// Runs both engines and shows where they differ. Exit code 0 if everything is within its tolerance, else 1.
pub(super) fn run(args: &VerifyArgs) -> anyhow::Result<Exit> {
    let resolved = recipe::load(&args.recipe, &super::overrides(&args.overrides))?;
    if resolved.recipe.compute.engine == EngineKind::Dfdx {
        let message = "compute.engine = \"dfdx\" is the reference itself, there is nothing to compare it with; verify \
                       the other engine with --set compute.engine=fused";
        return Err(UsageError(message.into()).into());
    }
    build::check_supported(&resolved)?;
    let recipe = &resolved.recipe;
    let blame = |error: PlanError| resolved.complain(error.key, &error.message, &error.help);
    let hardware = device::hardware(recipe).map_err(blame)?;
    let setting = Setting {
        dims: Dims::new(&recipe.model),
        precision: recipe.compute.precision,
        attention: recipe.compute.attention,
        optimizer: OptimizerKind::new(&recipe.optimizer),
        threads: if recipe.compute.threads == 0 { hardware.threads } else { recipe.compute.threads },
        cuda: hardware.cuda.is_some(),
        steps: args.steps as usize,
    };
    let declared = Scope::declared(recipe);
    let verified = declared.shrunk(&setting, hardware.free_memory);
    check_memory(verified.bytes(&setting), hardware.free_memory)?;
    let rows = Rows::open(&resolved, verified.block_size, &args.runs.runs_dir);
    if args.format == Format::Text {
        super::print(&show::introduction(recipe, &declared, &verified, rows.name(), args.steps))?;
    }
    let dims = verified.dims(&setting);
    let initial = initial(recipe, &setting.dims, &dims)?;
    let plan = MemoryPlan::new(verified.memory(&setting));
    let mut engine = build::fused(plan, hardware.cuda.as_ref().map(|cuda| cuda.index), &build::solo())?;
    let mut reference = build::reference(dims, setting.optimizer, setting.threads)?;
    let report = verify(
        engine.as_mut(),
        &mut reference,
        &initial,
        |step| rows.step(&resolved, &verified, step),
        &updates(recipe, args.steps),
        Tolerances::new(setting.precision),
    )?;
    super::print(&match args.format {
        Format::Text => show::table(&report, setting.precision),
        Format::Json => {
            let output = Output {
                recipe: &recipe.name,
                device: hardware.device(),
                precision: recipe.compute.precision,
                attention: recipe.compute.attention,
                rows: rows.name(),
                declared,
                verified,
                report: &report,
            };
            format!("{:#}\n", serde_json::to_value(output)?)
        }
    })?;
    Ok(if report.passed { Exit::Finished } else { Exit::Failure })
}

/// Refuses what would not fit even cut down: better now than killed halfway.
fn check_memory(needed: usize, free: usize) -> Result<(), UsageError> {
    if needed <= free {
        return Ok(());
    }
    Err(UsageError(format!(
        "both engines need {} of memory even with the model cut down, but only {} are free: free some, or verify a \
         model with a smaller model.n_embd",
        gib(needed),
        gib(free)
    )))
}

/// The parameters that both engines start from: those of `model.init_from`, as far as the verified model has them, or the
/// run's random ones, moved off the values that would hide a fault.
fn initial(recipe: &Recipe, declared: &Dims, verified: &Dims) -> Result<Vec<f32>, RunError> {
    let layout = ParamLayout::new(verified);
    let mut parameters = vec![0.0; layout.len];
    let Some(path) = &recipe.model.init_from else {
        initialize(verified, &layout, recipe.seed, &mut parameters);
        disturb(&layout, &mut parameters);
        return Ok(parameters);
    };
    let whole = ParamLayout::new(declared);
    let mut weights = vec![0.0; whole.len];
    crate::run::import(path, declared, &whole, &mut weights)?;
    // a shorter context is the first rows of the position embedding
    for tensor in &layout.tensors {
        if let Some(from) = whole.tensor(&tensor.name) {
            parameters[tensor.range()].copy_from_slice(&weights[from.offset..][..tensor.len()]);
        }
    }
    Ok(parameters)
}

/// Moves the vectors off their initial ones and zeros, which would hide a factor or a term left out.
fn disturb(layout: &ParamLayout, parameters: &mut [f32]) {
    for tensor in layout.tensors.iter().filter(|tensor| !tensor.decayed) {
        for i in tensor.range() {
            let uniform = (random_bits(7, i as u64) >> 40) as f32 / (1 << 24) as f32;
            parameters[i] += uniform * 0.1 - 0.05;
        }
    }
}

/// The recipe's optimizer. Its learning rate is reached within these few steps: the first ones of a long warm-up would
/// move parameters by less than their last digit, and show nothing.
fn updates(recipe: &Recipe, steps: u32) -> Vec<OptimizerStep> {
    let loss_scale = LossScaler::new(recipe.compute.precision).scale();
    let lr = |t: u32| recipe.optimizer.lr * f64::from(t) / f64::from(steps);
    (1..=steps).map(|t| OptimizerStep::new(&recipe.optimizer, lr(t), t.into(), loss_scale)).collect()
}
