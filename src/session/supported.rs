//! What a recipe may say and this build or machine cannot do. It is refused at the line that says it, never ignored.

use super::audience::{Audience, Event};
use super::inputs;
use super::machine;
use super::ranks;
use crate::engine::{cuda, dfdx};
use crate::model::Dims;
use crate::plan::PlanError;
use crate::plan::hardware::Hardware;
use crate::recipe::{Attention, Device, Diagnostics, EngineKind, Precision, Recipe, Residual, Resolved};
use crate::wording::count;

const RESIDUAL: &str = "compute.residual";

/// Turns a plan's error into a problem of the recipe, at the line that sets the key to blame.
pub fn at_its_key(resolved: &Resolved) -> impl Fn(PlanError) -> Diagnostics {
    |error| resolved.complain(error.key, &error.message, &error.help)
}

/// Refuses what this build cannot do for a recipe. Tells the audience where a CUDA device is passed over.
///
/// # Errors
/// Everything that is wrong, at once.
pub fn check(resolved: &Resolved, audience: &dyn Audience) -> Result<(), Diagnostics> {
    check_here(resolved, None, false, audience)
}

/// What keeps a step from being trained on this machine, and not from being modelled on another one: a CUDA device that
/// is not here, and what exists on such a device only. `hardware` is that of the recipe and of `here`.
pub fn missing_here(
    recipe: &Recipe,
    here: Option<usize>,
    hardware: &Result<Hardware, PlanError>,
) -> Option<PlanError> {
    match hardware {
        Err(error) => {
            let only_device = || machine::hardware_of(&on_cpu(recipe), here).is_ok();
            (recipe.compute.engine == EngineKind::Fused && only_device()).then(|| error.clone())
        }
        Ok(hardware) if hardware.cuda.is_none() && recipe.compute.residual == Residual::Bf16 => {
            let message = "a residual stream in bf16 exists on CUDA devices only; the CPU keeps it in fp32";
            let help = "train on a CUDA device, or leave compute.residual out";
            Some(PlanError { key: RESIDUAL, message: message.to_owned(), help: help.to_owned() })
        }
        Ok(_) => None,
    }
}

/// The recipe as it would train on the CPU.
pub fn on_cpu(recipe: &Recipe) -> Recipe {
    let mut recipe = recipe.clone();
    recipe.compute.device = Device::Cpu;
    recipe
}

/// [`check`] for `here` of the recipe's ranks, if that many are to share this machine. If a step is to be `modelled`,
/// its CUDA device need not be here, but the device must be able to train the model.
///
/// # Errors
/// Everything that is wrong, at once.
pub fn check_here(
    resolved: &Resolved,
    here: Option<usize>,
    modelled: bool,
    audience: &dyn Audience,
) -> Result<(), Diagnostics> {
    let recipe = &resolved.recipe;
    let mut problems = Diagnostics::default();
    let mut refuse = |key, message: &str, help: &str| problems.append(resolved.complain(key, message, help));
    let hardware = machine::hardware_of(recipe, here);
    let missing = missing_here(recipe, here, &hardware);
    if let Some(missing) = missing.as_ref().filter(|_| !modelled) {
        refuse(missing.key, &missing.message, &missing.help);
    }
    let on_cuda = hardware.as_ref().is_ok_and(|hardware| hardware.cuda.is_some());
    match hardware {
        Err(error) if missing.is_none() => refuse(error.key, &error.message, &error.help),
        _ if on_cuda || modelled && recipe.compute.engine == EngineKind::Fused => {
            if recipe.model.n_embd > cuda::kernels::WIDEST {
                let (widest, width) = (cuda::kernels::WIDEST, recipe.model.n_embd);
                let message =
                    format!("the kernels for CUDA have at most {widest} columns, the model has {width}");
                refuse("model.n_embd", &message, "choose a narrower model");
            }
            if recipe.compute.residual == Residual::Bf16 && recipe.compute.precision != Precision::Bf16 {
                let message = format!(
                    "a residual stream in bf16 goes with compute.precision = \"bf16\", not \"{}\"",
                    recipe.compute.precision.as_str()
                );
                refuse(RESIDUAL, &message, "set compute.precision = \"bf16\", or leave compute.residual out");
            }
            let (attention, size) = (recipe.compute.attention, Dims::new(&recipe.model).head_size());
            if attention == Attention::Flash && size > cuda::kernels::flash_attention::LARGEST_HEAD {
                let message = format!(
                    "flash attention on CUDA has heads of at most {}, the model's have {size}",
                    cuda::kernels::flash_attention::LARGEST_HEAD
                );
                refuse("compute.attention", &message, "use more heads (model.n_head), or \"naive\"");
            }
        }
        Ok(hardware) if recipe.compute.engine == EngineKind::Fused => {
            let device = recipe.compute.device;
            if let Some(missing) = machine::passed_over(device, machine::choice(device, hardware.ranks)) {
                audience.tell(Event::CudaPassedOver(&missing));
            }
        }
        _ => {}
    }
    let ranks = recipe.batch.world_size;
    match ranks::place() {
        Err(problem) => refuse("batch.world_size", &problem.to_string(), "start the ranks with one launcher"),
        Ok(Some(place)) if place.size != ranks => {
            let message = format!(
                "batch.world_size is {ranks}, but {} started {}",
                place.launcher,
                count(place.size, "rank")
            );
            let help = format!("set batch.world_size = {}, or start {}", place.size, count(ranks, "rank"));
            refuse("batch.world_size", &message, &help);
        }
        Ok(_) if ranks > 1 && recipe.compute.engine == EngineKind::Dfdx => refuse(
            "batch.world_size",
            "the dfdx engine is a reference and trains on one rank",
            "use batch.world_size = 1, or compute.engine = \"fused\"",
        ),
        Ok(_) => {}
    }
    if recipe.compute.engine == EngineKind::Dfdx
        && let Err(error) = dfdx::check_precision(recipe.compute.precision)
    {
        refuse("compute.precision", &error.to_string(), "");
    }
    if recipe.sample.every > 0
        // data that cannot be read have a message of their own
        && let Ok(tokenizer) = inputs::tokenizer(&recipe.data)
        && let Err(problem) = tokenizer.prompt(&recipe.sample.prompt, recipe.model.vocab_size)
    {
        refuse(
            "sample.prompt",
            &problem.to_string(),
            "choose another prompt, or turn sampling off with sample.every = 0",
        );
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}
