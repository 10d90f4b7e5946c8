//! Verifying a recipe: its engine, on this machine, against the reference.

mod rows;
mod scope;

use super::audience::Audience;
use super::ending::UsageError;
use super::inputs::of_init_from;
use super::start::weights_of;
use super::supported::at_its_key;
use super::{engines, machine};
use crate::engine::dropout::Dropout;
use crate::engine::memory::MemoryPlan;
use crate::engine::optimizer::{OptimizerKind, OptimizerStep, Rule};
use crate::engine::verify::{Report, Tolerances, verify};
use crate::model::init::{initialize, random_bits};
use crate::model::{Dims, ParamLayout};
use crate::plan::hardware::Hardware;
use crate::plan::{fixed, gib};
use crate::recipe::{Recipe, Resolved};
use crate::run::RunError;
use crate::train::scaler::LossScaler;
use rows::Rows;
use scope::Setting;
use std::path::{Path, PathBuf};

pub use scope::Scope;

/// A verification that is ready to run.
pub struct Verification<'a> {
    recipe: &'a Recipe,
    /// Where the initial weights lie, if they are not random.
    weights: Option<PathBuf>,
    hardware: Hardware,
    setting: Setting,
    steps: u32,
    rows: Rows,
    /// What the recipe declares.
    pub declared: Scope,
    /// What is verified of it.
    pub verified: Scope,
}

impl<'a> Verification<'a> {
    /// Prepares `steps` optimizer steps on as much of a recipe's model as the reference can do here.
    ///
    /// # Errors
    /// Where the recipe's device is not there, or the memory for both engines is not.
    pub fn new(
        resolved: &'a Resolved,
        steps: u32,
        runs_dir: &Path,
        audience: &dyn Audience,
    ) -> anyhow::Result<Self> {
        let recipe = &resolved.recipe;
        let hardware = machine::hardware(recipe).map_err(at_its_key(resolved))?;
        let setting = Setting {
            dims: Dims::new(&recipe.model),
            precision: recipe.compute.precision,
            attention: recipe.compute.attention,
            residual: recipe.compute.residual,
            // there is memory for as little as is verified
            recompute: fixed(recipe.compute.recompute).unwrap_or_default(),
            dropout: Dropout::new(recipe.model.dropout, recipe.seed),
            optimizer: OptimizerKind::new(&recipe.optimizer),
            threads: if recipe.compute.threads == 0 { hardware.threads } else { recipe.compute.threads },
            cuda: hardware.cuda.is_some(),
            steps: steps as usize,
        };
        let declared = Scope::declared(recipe);
        let verified = declared.shrunk(&setting, hardware.free_memory);
        check_memory(verified.bytes(&setting), hardware.free_memory)?;
        let rows = Rows::open(recipe, verified.block_size, runs_dir, audience.progress());
        Ok(Self {
            recipe,
            weights: weights_of(resolved, audience)?,
            hardware,
            setting,
            steps,
            rows,
            declared,
            verified,
        })
    }

    /// What the rows are called that are verified on.
    pub fn rows(&self) -> &'static str {
        self.rows.name()
    }

    /// The device of the engine under test.
    pub fn device(&self) -> String {
        self.hardware.device()
    }

    /// Whether the engine under test computes on a CUDA device; the reference is on the CPU in any case.
    pub fn is_on_cuda(&self) -> bool {
        self.hardware.cuda.is_some()
    }

    /// Runs both engines.
    ///
    /// # Errors
    /// Where an engine fails or the initial weights cannot be read.
    pub fn run(&self) -> anyhow::Result<Report> {
        let Self { recipe, setting, verified, .. } = self;
        let dims = verified.dims(setting);
        let initial = initial(recipe, self.weights.as_deref(), &setting.dims, &dims).map_err(of_init_from)?;
        let plan = MemoryPlan::new(verified.memory(setting));
        let cuda = self.hardware.cuda.as_ref().map(|cuda| cuda.index);
        let mut engine = engines::fused(plan, cuda, &engines::solo())?;
        let mut reference = engines::reference(dims, setting.optimizer, setting.dropout, setting.threads)?;
        Ok(verify(
            engine.as_mut(),
            &mut reference,
            &initial,
            |step| self.rows.step(recipe, verified, step),
            &updates(recipe, self.steps),
            Tolerances::new(setting.precision).under(&Rule::new(&recipe.optimizer)),
        )?)
    }
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

/// The parameters that both engines start from: those of `model.init_from`, as far as the verified model has them, or
/// the run's random ones, moved off the values that would hide a fault.
fn initial(
    recipe: &Recipe,
    path: Option<&Path>,
    declared: &Dims,
    verified: &Dims,
) -> Result<Vec<f32>, RunError> {
    let layout = ParamLayout::new(verified);
    let mut parameters = vec![0.0; layout.len];
    let Some(path) = path else {
        initialize(verified, &layout, recipe.seed, &mut parameters);
        disturb(&layout, &mut parameters);
        return Ok(parameters);
    };
    let whole = ParamLayout::new(declared);
    let mut weights = vec![0.0; whole.len];
    crate::run::import(path, declared, &whole, None, &mut weights)?;
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
