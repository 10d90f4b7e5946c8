//! What every rank of a run does: make an engine, load the weights, run the training loop.

use super::engines;
use super::inputs::Data;
use super::model::Weights;
use super::start::Start;
use crate::comm::Comm;
use crate::data::TokenStream;
use crate::engine::Engine;
use crate::plan::Plan;
use crate::recipe::{Precision, Resolved};
use crate::run::checkpoint::{self, BestState, CheckpointState, Scaler};
use crate::train::scaler::LossScaler;
use crate::train::schedule::Schedule;
use crate::train::watchdog::{Watchdog, Window};
use crate::train::{
    self, Best, Evaluations, Events, Outcome, Progress, TrainConfig, TrainError, ValidationSet,
};
use std::sync::Arc;

/// One rank of a run.
pub(super) struct Member<'a> {
    pub(super) resolved: &'a Resolved,
    pub(super) data: &'a Data,
    /// The plan of this rank.
    pub(super) plan: Plan,
    /// The connection to the other ranks.
    pub(super) comm: Arc<dyn Comm>,
}

impl Member<'_> {
    /// The engine, with the weights and optimizer states of a checkpoint, those of `model.init_from`, or
    /// fresh random weights; and where the run stands.
    pub(super) fn begin(
        &self,
        start: Option<checkpoint::Reader>,
    ) -> anyhow::Result<(Box<dyn Engine>, Progress)> {
        let recipe = &self.resolved.recipe;
        let mut engine = engines::engine(recipe, &self.plan, &self.comm)?;
        let mut weights = match (start, &self.data.start) {
            (Some(reader), _) => Weights::Checkpoint(Box::new(reader)),
            (None, Start::State { checkpoint, digest, .. }) => {
                Weights::Branch(Box::new(Start::open_state(checkpoint, digest)?))
            }
            (None, Start::Weights { path, digest, .. }) => {
                Weights::InitFrom { path: path.clone(), digest: digest.clone() }
            }
            (None, Start::Random) => Weights::Random { seed: recipe.seed },
            (None, Start::Own { .. }) => {
                anyhow::bail!("the checkpoints of the run are gone: start over with --fresh")
            }
        };
        weights.load(engine.as_mut(), &self.plan.memory.dims)?;
        Ok((engine, self.progress(&weights)))
    }

    /// Where a run stands that begins with these weights.
    fn progress(&self, weights: &Weights) -> Progress {
        let recipe = &self.resolved.recipe;
        let (precision, watchdog) = (recipe.compute.precision, recipe.watchdog.clone());
        let (reader, is_own) = match weights {
            Weights::Checkpoint(reader) => (reader, true),
            Weights::Branch(reader) => (reader, false),
            Weights::Random { .. } | Weights::At { .. } | Weights::InitFrom { .. } => {
                let scaler = LossScaler::new(precision);
                let watchdog = Watchdog::new(watchdog, Window::default());
                return Progress {
                    step: 0,
                    updates: 0,
                    scaler,
                    watchdog,
                    best_val_loss: None,
                    kept: None,
                    evaluated: false,
                    reached: None,
                };
            }
        };
        let state = reader.state();
        // a branch may have another precision, whose scale the other run does not tell
        let was_scaled = state.scaler != Scaler::default();
        let scaler = match is_own || (precision == Precision::Fp16 && was_scaled) {
            true => LossScaler::restore(precision, state.scaler.scale, state.scaler.good_steps),
            false => LossScaler::new(precision),
        };
        let window = Window {
            losses: state.watchdog.losses.iter().copied().collect(),
            grad_norms: state.watchdog.grad_norms.iter().copied().collect(),
            skipped: state.watchdog.skipped,
        };
        Progress {
            step: state.step,
            updates: state.updates_applied,
            scaler,
            watchdog: Watchdog::new(watchdog, window),
            // that of this run
            best_val_loss: state.best_val.filter(|_| is_own),
            kept: if is_own { kept(state) } else { None },
            evaluated: false,
            reached: None,
        }
    }

    /// Whether a run that begins without a checkpoint of its own begins with one of another run.
    fn branches(&self) -> bool {
        matches!(self.data.start, Start::State { .. })
    }

    /// Trains to the last step, or until a stop, a divergence or a failure.
    ///
    /// A run that branches off another one saves what it begins from, so that it does not need the other one again;
    /// `is_new` says that it has no checkpoint yet.
    pub(super) fn run<E: Events>(
        &self,
        engine: &mut dyn Engine,
        mut progress: Progress,
        is_new: bool,
        events: &mut E,
    ) -> Result<Outcome, TrainError<E::Error>> {
        let recipe = &self.resolved.recipe;
        let config = TrainConfig {
            max_steps: self.plan.steps,
            sizes: self.plan.sizes.clone(),
            micro_batch: self.plan.batch.micro_batch,
            block_size: recipe.model.block_size,
            optimizer: recipe.optimizer.clone(),
            schedule: Schedule::new(&recipe.schedule, recipe.optimizer.lr, &self.plan.sizes),
            eval_every: recipe.eval.every,
            stop_at_val_loss: recipe.schedule.stop_at_val_loss,
            checkpoint_every: recipe.checkpoint.every,
            keep_best: recipe.checkpoint.keep_best,
            sample_every: recipe.sample.every,
        };
        let training = TokenStream::new(&self.data.train, recipe.seed, recipe.data.shuffle);
        let stream = |(_, set)| TokenStream::new(set, recipe.seed, false);
        let streams: Vec<_> = self.data.validation().map(stream).collect();
        let counts = std::iter::once(self.plan.eval_rows).chain(self.plan.eval_others.iter().copied());
        let sets = self.data.validation().zip(&streams).zip(counts);
        let evaluations = Evaluations {
            sets: sets.map(|(((name, _), rows), count)| ValidationSet { name, rows, count }).collect(),
            tasks: &self.data.tasks.found,
        };
        if is_new && self.branches() {
            self.comm.set_working(true);
            events.checkpoint(engine, &progress).map_err(TrainError::Events)?;
            self.comm.set_working(false);
        }
        train::train(self.comm.as_ref(), engine, &training, &evaluations, &config, &mut progress, events)
    }
}

/// The best evaluation that a checkpoint states. It stays the best one, even if its own checkpoint was damaged.
fn kept(state: &CheckpointState) -> Option<Best> {
    state.kept.map(|BestState { step, val_loss }| Best { step, val_loss })
}
