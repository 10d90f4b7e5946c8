//! What every rank of a run does: an engine with its share of the memory, the weights, and the loop over its rows.

use super::super::build::{self, Data};
use crate::comm::Comm;
use crate::data::Stream;
use crate::engine::{Engine, State};
use crate::model::init::initialize;
use crate::plan::Plan;
use crate::recipe::Resolved;
use crate::run::checkpoint;
use crate::train::scaler::LossScaler;
use crate::train::schedule::Schedule;
use crate::train::watchdog::{Watchdog, Window};
use crate::train::{self, Events, Outcome, Progress, TrainConfig, TrainError};
use std::sync::Arc;

/// One rank.
pub(super) struct Member<'a> {
    pub(super) resolved: &'a Resolved,
    pub(super) data: &'a Data,
    /// Its own plan.
    pub(super) plan: Plan,
    /// Its connection to the others.
    pub(super) comm: Arc<dyn Comm>,
}

impl Member<'_> {
    /// The engine, with the weights and moments of a checkpoint, of `model.init_from`, or fresh random weights; and where
    /// the run stands.
    pub(super) fn begin(
        &self,
        start: Option<checkpoint::Reader>,
    ) -> anyhow::Result<(Box<dyn Engine>, Progress)> {
        let mut engine = build::engine(&self.resolved.recipe, &self.plan, &self.comm)?;
        let progress = self.load(engine.as_mut(), start)?;
        Ok((engine, progress))
    }

    fn load(&self, engine: &mut dyn Engine, start: Option<checkpoint::Reader>) -> anyhow::Result<Progress> {
        let recipe = &self.resolved.recipe;
        let (dims, precision) = (&self.plan.memory.dims, recipe.compute.precision);
        let layout = engine.layout().clone();
        let mut buffer = vec![0.0; layout.len];
        let Some(mut reader) = start else {
            match &recipe.model.init_from {
                Some(path) => crate::run::import(path, dims, &layout, &mut buffer)?,
                None => initialize(dims, &layout, recipe.seed, &mut buffer),
            }
            engine.write(State::Parameters, &buffer)?;
            let scaler = LossScaler::new(precision);
            let watchdog = Watchdog::new(recipe.watchdog.clone(), Window::default());
            return Ok(Progress { step: 0, updates: 0, scaler, watchdog, best_val_loss: None });
        };
        for state in engine.saved_states() {
            reader.fill(state, dims, &layout, &mut buffer)?;
            engine.write(state, &buffer)?;
        }
        let state = reader.state();
        let window = Window {
            losses: state.watchdog.losses.iter().copied().collect(),
            grad_norms: state.watchdog.grad_norms.iter().copied().collect(),
            skipped: state.watchdog.skipped,
        };
        Ok(Progress {
            step: state.step,
            updates: state.updates_applied,
            scaler: LossScaler::restore(precision, state.scaler.scale, state.scaler.good_steps),
            watchdog: Watchdog::new(recipe.watchdog.clone(), window),
            best_val_loss: state.best_val,
        })
    }

    /// Trains to the end, or until something happens.
    pub(super) fn run<E: Events>(
        &self,
        engine: &mut dyn Engine,
        mut progress: Progress,
        events: &mut E,
    ) -> Result<Outcome, TrainError<E::Error>> {
        let recipe = &self.resolved.recipe;
        let config = TrainConfig {
            max_steps: self.plan.steps,
            rows_per_step: self.plan.batch.rows_per_step,
            micro_batch: self.plan.batch.micro_batch,
            block_size: recipe.model.block_size,
            optimizer: recipe.optimizer.clone(),
            schedule: Schedule::new(&recipe.schedule, recipe.optimizer.lr),
            eval_every: recipe.eval.every,
            eval_rows: self.plan.eval_rows,
            checkpoint_every: recipe.checkpoint.every,
            sample_every: recipe.sample.every,
        };
        let training = Stream::new(&self.data.train, recipe.seed, recipe.data.shuffle);
        let validation = self.data.val.as_ref().map(|data| Stream::new(data, recipe.seed, false));
        let validation = validation.as_ref().filter(|_| config.eval_rows > 0).map(|v| v as &dyn train::Rows);
        train::train(self.comm.as_ref(), engine, &training, validation, &config, &mut progress, events)
    }
}
